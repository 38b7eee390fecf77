"""Exact forgetting: the values trained again, from the same start, on the codes of what is retained."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from excise.bottleneck.reference import Optimiser
from excise.bottleneck.values import initial_values, train_values
from excise.features.arrays import Array


@dataclass(frozen=True)
class Recipe:
    """How values were trained, so that it can be done again to the same bytes."""

    value_init: str
    epochs: int
    batch_size: int
    optimiser: Optimiser
    values_seed: int
    order_seed: int

    def start(self, shape: tuple[int, int, int]) -> Array:
        """The table (c, m, v) before training."""
        return initial_values(shape, self.value_init, np.random.default_rng(self.values_seed))

    def train(
        self, values: Array, codes: Array, labels: Array, rows: Array | None = None, threads: int = 1, verbose: int = 0
    ) -> tuple[Array, list[float]]:
        """The table after training from `values` on codes (n, c, k), or some rows of them; the loss of each epoch."""
        return train_values(
            values,
            codes,
            labels,
            self.optimiser,
            epochs=self.epochs,
            batch_size=min(self.batch_size, len(codes) if rows is None else len(rows)),
            generator=np.random.default_rng(self.order_seed),
            threads=threads,
            verbose=verbose,
            rows=rows,
        )

    def multiply_adds(self, examples: int, codebooks: int, top_k: int, classes: int) -> int:
        """Of look-ups and their gradients; Adam's own arithmetic is not counted."""
        return 2 * self.epochs * examples * codebooks * top_k * classes

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Recipe":
        """The recipe again."""
        return cls(**{**data, "optimiser": Optimiser(**data["optimiser"])})
