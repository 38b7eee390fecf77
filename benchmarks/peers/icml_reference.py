"""The formulation of Träuble et al., Discrete Key-Value Bottleneck (ICML 2023), written anew from what it computes.

Distances of batch x codebooks x pairs, then moving averages; no line of the code that the authors published is here.
"""

import numpy as np
import torch
from torch import Tensor


def distances(z: Tensor, keys: Tensor) -> Tensor:
    """|z|^2 - 2 z.key + |key|^2 of every example, codebook and pair: (b, c, m)."""
    products = torch.einsum("bcd,cmd->bcm", z, keys)
    return z.square().sum(2)[..., None] - 2 * products + keys.square().sum(2)


def search(z: np.ndarray, keys: np.ndarray, batch: int = 256) -> np.ndarray:
    """Codes (n, c, 1)."""
    tensor, key_tensor = torch.from_numpy(z), torch.from_numpy(keys)
    with torch.inference_mode():
        parts = [distances(tensor[s : s + batch], key_tensor).argmin(2) for s in range(0, len(z), batch)]
    return torch.cat(parts).numpy()[:, :, None]


class KeyInitialisation:
    """Moving averages of one-hot assignments, and dead keys replaced by examples of the batch."""

    def __init__(self, keys: np.ndarray, batch: int, seed: int = 0):
        self.keys = torch.from_numpy(keys.copy())
        self.sums, self.counts = self.keys.clone(), torch.zeros(keys.shape[:2])
        self.batch, self.generator = batch, torch.Generator().manual_seed(seed)

    def step(self, z: np.ndarray, drawn: np.ndarray | None = None) -> None:
        """One batch z (b, c, d); `drawn` (c, m) names the example that a dead key copies."""
        with torch.inference_mode():
            self._step(torch.from_numpy(z), drawn)

    def _step(self, z: Tensor, drawn: np.ndarray | None) -> None:
        one_hot = torch.zeros(len(z), *self.counts.shape)
        one_hot.scatter_(2, distances(z, self.keys).argmin(2, keepdim=True), 1)
        self.counts.mul_(0.95).add_(one_hot.sum(0), alpha=0.05)
        self.sums.mul_(0.95).add_(torch.einsum("bcm,bcd->cmd", one_hot, z), alpha=0.05)
        total, m = self.counts.sum(1, keepdim=True), self.counts.shape[1]
        smoothed = (self.counts + 1e-5) / (total + m * 1e-5) * total
        self.keys = self.sums / smoothed[..., None]
        dead = self.counts < 0.1 * self.batch / m
        book = torch.arange(len(self.keys))[:, None]
        chosen = self._draw(len(z)) if drawn is None else torch.from_numpy(drawn)
        self.keys = torch.where(dead[..., None], z[chosen, book], self.keys)

    def _draw(self, examples: int) -> Tensor:
        return torch.randint(examples, self.counts.shape, generator=self.generator)
