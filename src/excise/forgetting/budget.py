"""What is left to forget with: live pairs per codebook, and how much of what is retained was moved to other pairs."""

from typing import Any

import numpy as np

from excise.features.arrays import Array
from excise.forgetting.activations import Activations

MOST_DISPLACED = 0.5  # of the retained classes' activations; experiments/multi_class.py shows what it costs


def measure_budget(mask: Array, activations: Activations | None, forgotten: set[int]) -> dict[str, Any]:
    """Live pairs (c,) under mask (c, m), and where activations were logged the share of retained ones displaced."""
    live = mask.shape[1] - np.count_nonzero(mask, axis=1)
    found: dict[str, Any] = {
        "pairs": int(mask.size),
        "live": int(live.sum()),
        "live_share": float(live.sum() / mask.size),
        "live_per_codebook": live.tolist(),
        "fewest_live": int(live.min()),
        "displaced": None,
    }
    if activations is not None:
        flat = mask.reshape(-1)
        moved, retained = _sum(activations.totals[np.flatnonzero(flat)]), activations.total
        for label in forgotten:
            pairs, counts = activations.of(label)
            moved, retained = moved - _sum(counts * flat.take(pairs)), retained - _sum(counts)
        found["displaced"] = moved / retained if retained else 0.0
    return found


def _sum(counts: Array) -> int:
    return int(counts.sum(dtype=np.int64))


def warning_of(budget: dict[str, Any], top_k: int) -> str | None:
    """One sentence where quality is about to fall, else None."""
    if budget["fewest_live"] < top_k:
        return (
            f"a codebook has {budget['fewest_live']} live pairs left, fewer than the {top_k} it retrieves: "
            "restore a request, or train anew without the forgotten classes"
        )
    if budget["displaced"] is not None and budget["displaced"] > MOST_DISPLACED:
        return (
            f"{budget['displaced']:.0%} of the retained classes' activations now go to other pairs than they were "
            f"trained on (over {MOST_DISPLACED:.0%}): retain accuracy falls from here; use by='exact' instead"
        )
    return None
