"""Prediction in torch operations: projection, a form of search, `embedding_bag`, argmax."""

from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional

from excise.bottleneck.model import Bottleneck

Search = Callable[[np.ndarray], np.ndarray]


class TorchPrediction:
    """A bottleneck that retrieves one pair a codebook and takes the mean, by one form of search."""

    def __init__(self, bottleneck: Bottleneck, search: Search):
        self.shape = f, c, d = bottleneck.projection.shape
        self.projection = torch.from_numpy(bottleneck.projection.reshape(f, c * d))
        self.values = torch.from_numpy(bottleneck.values).reshape(-1, bottleneck.values.shape[2])
        self.offsets = torch.arange(c) * bottleneck.keys.shape[1]
        self.search = search

    def codes(self, x: np.ndarray) -> np.ndarray:
        """Codes (n, c, 1) of features (n, f)."""
        with torch.inference_mode():
            z = (torch.from_numpy(x) @ self.projection).view(len(x), *self.shape[1:])
            return self.search(z.numpy())

    def logits(self, codes: np.ndarray) -> np.ndarray:
        """Logits (n, v)."""
        with torch.inference_mode():
            bags = torch.from_numpy(codes)[:, :, 0] + self.offsets
            return functional.embedding_bag(bags, self.values, mode="mean").numpy()

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Classes (n,)."""
        return self.logits(self.codes(x)).argmax(1)
