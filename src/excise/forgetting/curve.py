"""The whole forgetting curve in one pass: what a model gets right at every size of a growing mask.

Masks of growing sizes are nested, so a table of ranks says all of them: a pair is masked at every size above its rank.
As the size falls from the largest to none, few pairs change what an example looks up, and only those are looked at.
"""

from dataclasses import dataclass

import numpy as np

from excise.bottleneck import kernels
from excise.bottleneck.kernels import NEVER
from excise.bottleneck.model import Bottleneck
from excise.errors import InputError
from excise.features.arrays import Array
from excise.progress import track

__all__ = ["NEVER", "Curve", "trace"]


@dataclass(frozen=True, eq=False)
class Curve:
    """What a model gets right at every mask size 0..S, by group of examples."""

    examples: Array  # (g,) int64, how many examples a group has
    hits: Array  # (g, S+1) int64, how many of them are right at each size
    loss: Array  # (g, S+1) float64, mean cross-entropy at each size; NaN where a group is empty

    @property
    def accuracy(self) -> Array:
        """Share of a group that is right at each size (g, S+1); NaN where a group is empty."""
        return _mean(self.hits.astype(np.float64), self.examples)


def trace(
    bottleneck: Bottleneck,
    features: Array,
    labels: Array,
    groups: Array,
    ranks: Array,
    largest: int,
    *,
    group_count: int | None = None,
    threads: int = 1,
    working_memory: float = 256,
    verbose: int = 0,
) -> Curve:
    """The curve of features (n, f) whose labels (n,) are indices of classes, by groups (n,) numbered from 0.

    At size s the mask holds the pairs of rank < s, as `bottleneck.with_mask(mask | (ranks < s))` would: ranks (c, m)
    int32, from 0 to `largest` - 1, or NEVER for a pair that no mask holds, negative for one that every mask holds. What
    the bottleneck's own mask holds stays masked. The bits are the same for any number of threads and any memory.
    """
    labels, groups = _indices(labels, "labels"), _indices(groups, "groups")
    if group_count is None:
        group_count = int(groups.max(initial=-1)) + 1
    _check(bottleneck, features, labels, groups, ranks, largest, group_count)
    examples = np.bincount(groups, minlength=group_count)
    hits = np.zeros((group_count, largest + 1), np.int64)  # until the end, what a size adds to those above it
    loss = np.zeros((group_count, largest + 1))
    with track("curve", len(features), "examples", verbose) as progress:
        for start, steps in bottleneck.iterate_steps(features, ranks, threads, working_memory):
            codes, offsets, sizes = steps[:3]
            part = slice(start, start + len(codes))
            walked = kernels.walk(*steps, bottleneck.values, labels[part], bottleneck.decoder, threads)
            first_best, first_loss, best, losses = walked
            counts = np.diff(offsets)
            cells = np.repeat(groups[part] * (largest + 1), counts) + sizes
            right, first_right = best == np.repeat(labels[part], counts), first_best == labels[part]
            change = _changes(right.astype(np.int64), first_right.astype(np.int64), offsets)
            moved = np.flatnonzero(change)
            np.add.at(hits.reshape(-1), cells[moved], change[moved])
            np.add.at(loss.reshape(-1), cells, _changes(losses, first_loss, offsets))
            np.add.at(hits[:, largest], groups[part], first_right)
            np.add.at(loss[:, largest], groups[part], first_loss)
            progress.advance(len(codes))
    for table in (hits, loss):
        np.cumsum(table[:, ::-1], axis=1, out=table[:, ::-1])
    return Curve(examples, hits, _mean(loss, examples))


def _changes(after: Array, first: Array, offsets: Array) -> Array:
    """What each step of each query changes, (E,): after (E,), first (n,) before the first step of each query."""
    before = np.empty_like(after)
    before[1:] = after[:-1]
    moves = offsets[:-1] < offsets[1:]
    before[offsets[:-1][moves]] = first[moves]
    changes: Array = after - before
    return changes


def _mean(totals: Array, examples: Array) -> Array:
    """Totals (g, S+1) over the examples (g,) of each group; NaN where there are none."""
    divisor = np.where(examples > 0, examples, np.nan)
    mean: Array = totals / divisor[:, None]
    return mean


def _indices(values: Array, name: str) -> Array:
    """Whole numbers from 0 as int64."""
    values = np.asarray(values)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise InputError(f"{name} are {values.dtype} {values.shape}: they must be whole numbers, one for each example")
    if len(values) and values.min() < 0:
        raise InputError(f"{name} hold {values.min()}: they are counted from 0")
    return np.ascontiguousarray(values, np.int64)


def _check(
    bottleneck: Bottleneck,
    features: Array,
    labels: Array,
    groups: Array,
    ranks: Array,
    largest: int,
    group_count: int,
) -> None:
    if not len(features) == len(labels) == len(groups):
        raise InputError(
            f"there are {len(features)} examples, {len(labels)} labels and {len(groups)} groups: "
            "pass as many of each as of the others"
        )
    classes = bottleneck.values.shape[2]
    if len(labels) and labels.max() >= classes:
        raise InputError(f"labels hold {labels.max()}: the model knows {classes} classes, counted from 0")
    if len(groups) and groups.max() >= group_count:
        raise InputError(f"groups hold {groups.max()}: there are {group_count} groups, counted from 0")
    shape = bottleneck.keys.shape[:2]
    if ranks.shape != shape or ranks.dtype != np.int32:
        raise InputError(f"ranks are {ranks.dtype} {ranks.shape}: they must be int32 {shape}")
    highest = int(ranks.max(initial=-1, where=ranks < NEVER))
    if largest <= highest or largest < 0:
        raise InputError(
            f"the largest mask is {largest:,}, but a pair has rank {highest:,}: "
            "a pair is masked at the sizes above its rank, so the largest must exceed every rank but NEVER"
        )
