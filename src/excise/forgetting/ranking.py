"""The order in which pairs are masked as a mask grows: the most activated first, or example by example."""

from dataclasses import dataclass

import numpy as np

from excise.bottleneck.kernels import NEVER, NO_PAIR
from excise.features.arrays import Array
from excise.forgetting.masks import activation_counts


@dataclass(frozen=True, eq=False)
class Ranking:
    """Pairs in the order of masking; masks for growing sizes are nested.

    The size of 'unlearning via activations' is a number of pairs, that of 'unlearning via examples' one of examples.
    """

    pairs: Array  # (e,) int64, codebook * m + pair
    counts: Array  # (e,) how often each was selected, falling; for examples, in which of them it first was
    by: str  # "activations" | "examples"
    examples: int  # that selected them
    others: Array | None = None  # (e,) how often examples of other classes did, where that is known

    @property
    def steps(self) -> Array:
        """The size from which each pair is masked, less one."""
        return self.counts if self.by == "examples" else np.arange(len(self.pairs))

    @property
    def largest(self) -> int:
        """The size that masks all pairs of the ranking."""
        return self.examples if self.by == "examples" else len(self.pairs)

    def first(self, size: int) -> Array:
        """The pairs that a mask of `size` holds."""
        return self.pairs[: np.searchsorted(self.steps, size)]

    def size_of(self, pairs: int) -> int:
        """The smallest size that masks so many pairs, or the largest size."""
        return int(self.steps[pairs - 1]) + 1 if 0 < pairs <= len(self.pairs) else self.largest if pairs else 0

    def mask(self, size: int, shape: tuple[int, int]) -> Array:
        """The mask (c, m) of `size`."""
        mask = np.zeros(shape[0] * shape[1], bool)
        mask[self.first(size)] = True
        return mask.reshape(shape)

    def ranks(self, shape: tuple[int, int]) -> Array:
        """For each pair the last size that leaves it live: (c, m) int32, NEVER where no size masks it."""
        ranks = np.full(shape[0] * shape[1], NEVER, np.int32)
        ranks[self.pairs] = self.steps
        return ranks.reshape(shape)


def rank_by_activations(pairs: Array, counts: Array, examples: int, others: Array | None = None) -> Ranking:
    """'Unlearning via Activations': the most often selected first.

    `pairs` (e,) rise, `counts` (e,) are positive. Ties, which the paper leaves open and which are many, go to the pair
    that examples of other classes select least, `others` (e,), then to the lower pair.
    """
    places, behind = places_of(counts, others), counts.max(initial=0) - counts
    if others is None:
        order = np.argsort(_few_digits(behind), kind="stable")
    elif places is not None:
        order = np.argsort(places, kind="stable")
    else:
        order = np.argsort(_few_digits(others), kind="stable")
        order = order[np.argsort(_few_digits(behind).take(order), kind="stable")]
    others = None if others is None else others.take(order)  # twice as fast as others[order]
    return Ranking(pairs.take(order).astype(np.int64), counts.take(order), "activations", examples, others)


def places_of(counts: Array, others: Array | None) -> Array | None:
    """What pairs are ranked by in one number (e,) of 16 bits: how far behind the first, then `others`; or None."""
    if others is None or not len(counts):
        return None
    behind, most = counts.max() - counts, int(others.max()) + 1
    if most * (int(behind.max()) + 1) >= 2**16:
        return None
    places: Array = behind.astype(np.uint16) * np.uint16(most) + others.astype(np.uint16)
    return places


def rank_codes_by_activations(codes: Array, pairs: int, others: Array | None = None) -> Ranking:
    """The same for codes (n, c, k); `others` (c*m,) says how often examples of other classes select each pair."""
    counts = activation_counts(codes, pairs).reshape(-1)
    selected = counts.nonzero()[0]
    known = None if others is None else others[selected]
    return rank_by_activations(selected, counts[selected], len(codes), known)


def _few_digits(counts: Array) -> Array:
    """Counts in 16 bits, where they fit: those are sorted digit by digit, many times faster."""
    return counts.astype(np.uint16) if counts.max(initial=0) < 2**16 else counts


def rank_codes_by_examples(codes: Array, pairs: int) -> Ranking:
    """'Unlearning via Examples': all pairs of the first of codes (n, c, k), then those that the next adds, ..."""
    n, c, _ = codes.shape
    earliest = np.full(c * pairs, n, np.int64)
    backwards = codes[::-1]
    selected = (backwards != NO_PAIR).reshape(-1)
    flat = (pairs * np.arange(c)[:, None] + backwards).reshape(-1)[selected]
    earliest[flat] = np.repeat(np.arange(n)[::-1], codes[0].size if n else 0)[selected]  # the last written stays
    selected = (earliest < n).nonzero()[0]
    order = np.argsort(earliest[selected], kind="stable")
    return Ranking(selected[order], earliest[selected][order], "examples", n)
