"""What every size of a mask keeps and forgets: the curve of one request, as the paper's figures 2 and 3 draw it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.bottleneck.model import Bottleneck
from excise.features.arrays import Array
from excise.forgetting.curve import trace
from excise.forgetting.ranking import Ranking


@dataclass(frozen=True, eq=False)
class ForgettingCurve:
    """Accuracy and mean loss at the sizes 0 to S of a mask, of retained and of forgotten examples.

    A size counts pairs for by='activations' and examples for by='examples'.
    """

    by: str
    classes: list[Any]
    sizes: Array  # (S + 1,) 0, 1, ..., S
    masked: Array  # (S + 1,) pairs that a mask of the size holds
    retain_examples: int
    forget_examples: int
    retain_accuracy: Array  # (S + 1,) each; nan where there are no such examples
    forget_accuracy: Array
    retain_loss: Array
    forget_loss: Array

    def to_dict(self, points: int | None = None) -> dict[str, Any]:
        """Plain data, of all sizes or of about so many: the ends, and as evenly spaced as may be."""
        at = self.sizes
        if points is not None and len(at) > points:
            at = np.unique(np.linspace(0, at[-1], points).astype(np.int64))
        columns = {"size": at, "masked": self.masked[at]}
        for name in ("retain_accuracy", "forget_accuracy", "retain_loss", "forget_loss"):
            columns[name] = getattr(self, name)[at]
        return {
            "by": self.by,
            "classes": self.classes,
            "retain_examples": self.retain_examples,
            "forget_examples": self.forget_examples,
            "points": {name: [None if x != x else x for x in column.tolist()] for name, column in columns.items()},
        }


def draw_curve(
    bottleneck: Bottleneck,
    features: Array,
    labels: Array,
    forget: Array,
    ranking: Ranking,
    classes: list[Any],
    threads: int = 1,
    working_memory: float = 256,
    verbose: int = 0,
) -> ForgettingCurve:
    """The curve on features (n, f) with labels (n,), of which `forget` (n,) bool are to be forgotten, in one pass."""
    shape = bottleneck.keys.shape[:2]
    found = trace(
        bottleneck,
        features,
        labels,
        forget.astype(np.int64),
        ranking.ranks(shape),
        ranking.largest,
        group_count=2,
        threads=threads,
        working_memory=working_memory,
        verbose=verbose,
    )
    sizes = np.arange(ranking.largest + 1)
    with np.errstate(invalid="ignore"):
        accuracy = found.hits / found.examples[:, None]
    loss = np.where(found.examples[:, None] > 0, found.loss, np.nan)
    return ForgettingCurve(
        ranking.by,
        classes,
        sizes,
        np.searchsorted(ranking.steps, sizes),
        int(found.examples[0]),
        int(found.examples[1]),
        accuracy[0],
        accuracy[1],
        loss[0],
        loss[1],
    )
