"""How many pairs to mask without looking at test data: by a rule for logs, or on examples held out of training."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from excise.bottleneck.model import Bottleneck
from excise.features.arrays import Array
from excise.forgetting.curve import trace
from excise.forgetting.ranking import Ranking, places_of, rank_by_activations

# What "auto" goes by: experiments/mask_size.py measures these on held-out training data, but for those of draws.
DISPLACED = 0.8  # times the square root of the class's share of all activations: what others may lose to the mask
COVERED = 0.6  # of the class's activations: at least so much is masked whatever others lose,
COVERED_BLINDLY = 0.8  # and so much where nothing is known of the others
COVERED_BY_EXAMPLES = 0.85  # by the pairs of a draw, which no ranking chose
MORE = 0.2  # of the pairs that held-out examples ask for: the last that would be recognised may not be among them
MORE_EXAMPLES = 0.5  # of the examples, likewise: which of them are drawn matters too
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Goal:
    """Where to stop: no more of the forget set right than so many, or a mean loss on it of so much."""

    accuracy: float = 0.0
    loss: float | None = None  # where it is set, it decides

    def __str__(self) -> str:
        return f"accuracy {self.accuracy:g}" if self.loss is None else f"loss {self.loss:g}"


def size_from_counts(ranking: Ranking, total: int, logged: int | None = None) -> int:
    """How many pairs of a ranking to mask, where only counts are known: its own, and of `total` those of other classes.

    `logged` is how many of the total are the classes' own, where the ranking does not come from the log.

    A class that shares its pairs with many others is forgotten by fewer of them, and masking more would cost the others
    most; one that has its pairs for itself needs more masked, and nobody misses them. So the mask grows until it has
    displaced as many of the others' activations as it may.
    """
    if not len(ranking.pairs):
        return 0
    covered = np.cumsum(ranking.counts, dtype=np.int64) / ranking.counts.sum(dtype=np.int64)
    if ranking.others is None:
        return _reach(covered, COVERED_BLINDLY)
    own = int(ranking.counts.sum(dtype=np.int64)) if logged is None else logged
    displaced = np.cumsum(ranking.others, dtype=np.int64) / max(total - own, 1)
    allowed = DISPLACED * np.sqrt(own / max(total, 1))
    return max(_reach(covered, COVERED), int(np.searchsorted(displaced, allowed, side="right")))


def first_by_counts(pairs: Array, counts: Array, others: Array | None, total: int) -> Array:
    """The pairs that a ranking of these gives at `size_from_counts`, by rising pair: counted by place, not sorted."""
    places = places_of(counts, others)
    if places is None or others is None:
        ranking = rank_by_activations(pairs, counts, 0, others)
        return ranking.first(size_from_counts(ranking, total))
    have = np.bincount(places)  # (p,) pairs at each place; all of a place have the same count, and the same of others
    most, own = int(others.max()) + 1, int(counts.sum(dtype=np.int64))
    count, other = int(counts.max()) - np.arange(len(have)) // most, np.arange(len(have)) % most
    allowed = DISPLACED * np.sqrt(own / max(total, 1))
    size = max(
        min(_search(have, count, own, COVERED, "left") + 1, len(pairs)),
        _search(have, other, max(total - own, 1), allowed, "right"),
    )
    reach = np.cumsum(have)
    last = int(np.searchsorted(reach, size))
    chosen = places < last
    chosen[np.flatnonzero(places == last)[: size - int(reach[last] - have[last])]] = True
    return pairs[chosen].astype(np.int64)


def _search(have: Array, amounts: Array, total: int, share: float, side: Literal["left", "right"]) -> int:
    """Where a share would go among the running sums of amounts (p,), each added `have` (p,) times over, of a total."""
    ends = np.cumsum(have * amounts)
    place = int(np.searchsorted(ends / total, share, side))
    before = int(have[:place].sum())
    if place == len(have):
        return before
    inside = ends[place] - amounts[place] * np.arange(have[place] - 1, -1, -1)
    return before + int(np.searchsorted(inside / total, share, side))


def pairs_of_draw(ranking: Ranking, counts: Array) -> int:
    """How many pairs of a ranking by examples to mask; `counts` (c*m,) are the forget set's."""
    covered = np.cumsum(counts[ranking.pairs], dtype=np.int64)
    return _reach(covered / max(1, covered[-1]), COVERED_BY_EXAMPLES) if len(covered) else 0


def _reach(shares: Array, share: float) -> int:
    """How many come first until their shares add up to one."""
    return min(int(np.searchsorted(shares, share)) + 1, len(shares))


@dataclass(frozen=True)
class Choice:
    """A size, and what held-out examples of the forget set said of it."""

    size: int  # of the ranking, and
    pairs: int  # that its mask holds
    reached: bool
    examples: int
    right: int  # of them
    loss: float  # mean

    @property
    def sure(self) -> dict[str, Any]:
        """In numbers, at the smallest size: the forget accuracy, and what it lies under with 95% confidence."""
        return {
            "held_out_examples": self.examples,
            "recognised": self.right,
            "accuracy": self.right / self.examples,
            "accuracy_at_most": upper_bound(self.right, self.examples),
            "confidence": CONFIDENCE,
            "loss": self.loss,
        }


def upper_bound(right: int, examples: int) -> float:
    """The largest accuracy under which so few would be right in one of twenty samples (Clopper and Pearson)."""
    from scipy.stats import beta

    return 1.0 if right == examples else float(beta.ppf(CONFIDENCE, right + 1, examples - right))


def choose_size(
    bottleneck: Bottleneck,
    ranking: Ranking,
    features: Array,
    labels: Array,
    goal: Goal,
    threads: int,
    working_memory: float,
) -> Choice:
    """The smallest size of a ranking that reaches the goal on examples (n, f) with labels (n,)."""
    shape, n = bottleneck.keys.shape[:2], len(features)
    found = trace(
        bottleneck,
        features,
        labels,
        np.zeros(n, np.int64),
        ranking.ranks(shape),
        ranking.largest,
        threads=threads,
        working_memory=working_memory,
    )
    reached = smallest(found.accuracy[0], found.loss[0], goal)
    size = ranking.largest if reached is None else reached
    return Choice(
        size, len(ranking.first(size)), reached is not None, n, int(found.hits[0, size]), float(found.loss[0, size])
    )


def smallest(accuracy: Array, loss: Array, goal: Goal) -> int | None:
    """The first size at which the loss meets the goal, or from which on the accuracy stays within it."""
    if goal.loss is not None:
        reached = (loss >= goal.loss).nonzero()[0]
        return int(reached[0]) if len(reached) else None
    missed = (accuracy > goal.accuracy).nonzero()[0]
    if not len(missed):
        return 0
    return int(missed[-1]) + 1 if missed[-1] + 1 < len(accuracy) else None
