"""The log of activations: which pairs the training examples of each class selected, and how often; personal data."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from excise.bottleneck.reference import NO_PAIR
from excise.features.arrays import Array
from excise.forgetting.masks import activation_counts

MOST_IN_16_BITS = 65_535


@dataclass(frozen=True, eq=False)
class Activations:
    """Sparse counts: the entries of class j are those from first[j] to first[j + 1], by rising pair."""

    first: Array  # (v + 1,) int64
    pairs: Array  # (e,) uint32, codebook * m + pair
    counts: Array  # (e,) uint16, or uint32 where that is too small
    totals: Array  # (c*m,) uint32, over all classes

    @cached_property
    def total(self) -> int:
        """Activations of all classes on all pairs."""
        return int(self.totals.sum(dtype=np.int64))

    def of(self, label: int) -> tuple[Array, Array]:
        """The pairs (e,) that examples of one class selected, and how often each."""
        own = slice(int(self.first[label]), int(self.first[label + 1]))
        return self.pairs[own], self.counts[own]

    def without(self, labels: set[int]) -> "Activations":
        """The log with nothing left of these classes."""
        parts = [(np.zeros(0, np.uint32),) * 2 if j in labels else self.of(j) for j in range(len(self.first) - 1)]
        return _joined(parts, len(self.totals))

    def plus(self, other: "Activations", times: int = 1) -> "Activations":
        """Both logs added up; with `times` -1 what the other holds is taken out."""
        parts = []
        for j in range(len(self.first) - 1):
            (a, a_counts), (b, b_counts) = self.of(j), other.of(j)
            pairs, where = np.unique(np.concatenate([a, b]), return_inverse=True)
            weights = np.concatenate([a_counts.astype(np.int64), times * b_counts.astype(np.int64)])
            counts = np.bincount(where, weights, len(pairs)).astype(np.int64)
            parts.append((pairs[counts > 0], counts[counts > 0]))
        return _joined(parts, len(self.totals))


def record_activations(codes: Array, labels: Array, pairs: int, classes: int) -> Activations:
    """The log of codes (n, c, k) of examples with labels (n,), from 0 to `classes` - 1."""
    order = np.argsort(labels, kind="stable")
    ends = np.searchsorted(labels[order], np.arange(classes + 1))
    parts = []
    for start, end in pairwise(ends.tolist()):
        own = codes[np.sort(order[start:end])]
        if 8 * own.size < codes.shape[1] * pairs:  # too few to walk the whole table for
            flat = (pairs * np.arange(codes.shape[1])[:, None] + own)[own != NO_PAIR]
            parts.append(np.unique(flat, return_counts=True))
            continue
        counts = activation_counts(own, pairs).reshape(-1)
        selected = counts.nonzero()[0]
        parts.append((selected, counts[selected]))
    return _joined(parts, codes.shape[1] * pairs)


def _joined(parts: list[tuple[Array, Array]], size: int) -> Activations:
    counts = np.concatenate([counts for _, counts in parts])
    kind = np.uint16 if counts.max(initial=0) <= MOST_IN_16_BITS else np.uint32
    first = np.cumsum([0, *(len(pairs) for pairs, _ in parts)], dtype=np.int64)
    pairs = np.concatenate([pairs for pairs, _ in parts]).astype(np.uint32)
    totals = np.bincount(pairs, counts, size).astype(np.uint32)
    return Activations(first, pairs, counts.astype(kind), totals)
