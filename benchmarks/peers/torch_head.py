"""Forgetting by fine-tuning, in its cheapest form: a linear head on cached features, trained on what is retained."""

import numpy as np
import torch
from torch.nn import functional

BATCH, RATE = 256, 0.01


class LinearHead:
    """`torch.nn.Linear` under plain SGD, its data in memory as tensors."""

    def __init__(self, features: np.ndarray, labels: np.ndarray, classes: int):
        self.features, self.labels = torch.from_numpy(features), torch.from_numpy(labels)
        self.head = torch.nn.Linear(features.shape[1], classes)
        self.optimiser = torch.optim.SGD(self.head.parameters(), lr=RATE)

    def shuffled(self) -> None:
        """One epoch whose batches are drawn anew."""
        for rows in torch.randperm(len(self.labels)).split(BATCH):
            self._step(self.features[rows], self.labels[rows])

    def as_stored(self) -> None:
        """One epoch over the rows as they lie in memory, which saves the gathering."""
        for x, y in zip(self.features.split(BATCH), self.labels.split(BATCH), strict=True):
            self._step(x, y)

    def _step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        functional.cross_entropy(self.head(x), y).backward()
        self.optimiser.step()
