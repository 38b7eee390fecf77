"""Values trained by torch: `embedding_bag` and the fused Adam on the dense table; and with its gradient by hand."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


def bags(codes: np.ndarray, pairs: int) -> Tensor:
    """Codes (n, c, k) as rows of the flat table: (n, c*k)."""
    offsets = np.arange(codes.shape[1], dtype=np.int64) * pairs
    return torch.from_numpy((codes + offsets[:, None]).reshape(len(codes), -1))


class TorchTrainer:
    """Mini-batches of cross-entropy over the mean of the looked-up values."""

    def __init__(self, codes: np.ndarray, labels: np.ndarray, pairs: int, classes: int, rate: float, by_hand: bool):
        self.bags, self.labels = bags(codes, pairs), torch.from_numpy(labels)
        self.values = torch.zeros(codes.shape[1] * pairs, classes, requires_grad=not by_hand)
        self.values.grad = torch.zeros_like(self.values) if by_hand else None
        self.optimiser = torch.optim.Adam([self.values], lr=rate, fused=True)
        self._step = self._by_hand if by_hand else self._by_autograd

    def start_at(self, values: np.ndarray) -> None:
        """Take these values (c, m, v) in place of zeros."""
        with torch.no_grad():
            self.values.copy_(torch.from_numpy(values).reshape(self.values.shape))

    def train(self, order: np.ndarray, batch: int) -> None:
        """One step for each batch of examples[order]."""
        for s in range(0, len(order), batch):
            rows = torch.from_numpy(order[s : s + batch])
            self._step(self.bags[rows], self.labels[rows])

    def table(self, codebooks: int) -> np.ndarray:
        """Values (c, m, v)."""
        return self.values.detach().numpy().reshape(codebooks, -1, self.values.shape[1])

    def _by_autograd(self, bag: Tensor, labels: Tensor) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        logits = functional.embedding_bag(bag, self.values, mode="mean")
        functional.cross_entropy(logits, labels).backward()
        self.optimiser.step()

    def _by_hand(self, bag: Tensor, labels: Tensor) -> None:
        """The gradient is residuals scattered into the rows that were looked up."""
        self.values.grad.zero_()
        residuals = functional.embedding_bag(bag, self.values, mode="mean").softmax(1)
        residuals[torch.arange(len(labels)), labels] -= 1
        residuals /= bag.numel()
        self.values.grad.index_add_(0, bag.reshape(-1), residuals.repeat_interleave(bag.shape[1], 0))
        self.optimiser.step()


def full_gradient(bag: Tensor, labels: Tensor, values: np.ndarray) -> Tensor:
    """Gradient (c*m, v) of the mean cross-entropy over all examples."""
    table = torch.from_numpy(values.reshape(-1, values.shape[2])).requires_grad_()
    functional.cross_entropy(functional.embedding_bag(bag, table, mode="mean"), labels).backward()
    return table.grad
