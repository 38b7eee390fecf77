"""The kernels in readable numpy: the oracle of every test, and the fall-back where nothing was compiled.

Axes: n examples, f feature, c codebooks, m pairs, d key, k retrieved, v classes.

Every sum has a fixed order and every product of a chain is fused with its addition, so the compiled kernels return
the same bits on any instruction set and with any number of threads; and the bits of this file, but for Adam, which they
compute lazily and which agrees to rounding.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.features.arrays import Array

NO_PAIR = 65535  # what a code holds where no live pair was left
NEVER = int(np.iinfo(np.int32).max)  # the rank of a pair that no size of a mask holds
SUM_GROUPS = 16  # logits are summed within so many runs of codebooks first, then over the runs
EMA_DECAY, EMA_EPSILON = 0.95, 1e-5


def fused(a: Array, b: Array, acc: Array) -> Array:
    """acc + a*b as fused instructions give it, but for one sum in some hundred millions.

    A product of two floats is exact in a double; the sum is rounded to a double first, and only then to a float.
    """
    return (acc + a.astype(np.float64) * b).astype(np.float32)


def project(x: Array, projection: Array, threads: int = 1) -> Array:
    """Features (n, f) times projection (f, c*d), summed over f in order."""
    z = np.zeros((len(x), projection.shape[1]), np.float32)
    for i in range(projection.shape[0]):
        z = fused(x[:, i, None], projection[i], z)
    return z


def half_norms(keys: Array) -> Array:
    """Half the squared length of every key (..., d)."""
    total = np.zeros(keys.shape[:-1], np.float32)
    for j in range(keys.shape[-1]):
        total = fused(keys[..., j], keys[..., j], total)
    return np.float32(0.5) * total


def iterate_scores(z: Array, keys: Array) -> Iterator[tuple[slice, Array]]:
    """Pairs (rows, scores (b, m)) of queries z (n, d) and keys (m, d) in bounded memory: the nearer, the lower."""
    start = half_norms(keys)
    for first in range(0, len(z), 256):
        rows = slice(first, first + 256)
        score = np.broadcast_to(start, (len(z[rows]), len(keys)))
        for j in range(keys.shape[1]):  # |z - key|^2 / 2 - |z|^2 / 2; the last term is the same for all keys
            score = fused(-z[rows, j, None], keys[:, j], score)
        yield rows, score


@dataclass
class PreparedKeys:
    """Keys ready for search; a masked pair is infinitely far away."""

    keys: Array  # (c, m, d)
    live: Array | None = None  # (c, m) bool
    threads: int = 1

    def nearest(self, z: Array, k: int, threads: int = 1) -> Array:
        """Codes (n, c, k) of the projected features z (n, c, d): nearest first, the lower pair on a tie."""
        codes = np.full((len(z), len(self.keys), k), NO_PAIR, np.uint16)
        for i, keys in enumerate(self.keys):
            for rows, score in iterate_scores(z[:, i], keys):
                if self.live is not None:
                    score = np.where(self.live[i], score, np.float32(np.inf))
                order = np.argsort(score, axis=1, kind="stable")[:, :k]
                found = np.take_along_axis(score, order, axis=1) < np.inf
                codes[rows, i, : order.shape[1]] = np.where(found, order, NO_PAIR)
        return codes


Steps = tuple[Array, Array, Array, Array, Array, Array]


@dataclass
class PreparedStairs:
    """Keys ready to be searched under a whole row of nested masks: a pair is masked at every size above its rank.

    A pair of rank NEVER is masked at no size, one of negative rank at every size from 0.
    """

    keys: Array  # (c, m, d)
    ranks: Array  # (c, m) int32
    threads: int = 1

    def steps(self, z: Array, k: int, threads: int = 1) -> Steps:
        """What the k nearest pairs of the projected features z (n, c, d) are at every size of the mask.

        Returns codes (n, c, k) uint16, the choice where all finite ranks are masked; offsets (n + 1,) int64, the steps
        of each query among all; and of every step its size (int32), codebook (int32), pair (uint16) and place (uint8).
        At that size and below, the pair stands at that place of the codebook's slots, those behind it move up by one,
        and the last falls out, until a later step changes them again.

        The steps of a query are in the order in which a shrinking mask frees pairs: size descending, then codebook
        ascending, then pair ascending. Pairs of one rank come one after another, so one that enters may fall out at
        the same size: the slots are right after all steps of a size.
        """
        codes = PreparedKeys(self.keys, self.ranks == NEVER).nearest(z, k)
        found = [np.zeros((0, 5), np.int64)]  # query, size, codebook, pair, place
        for i, keys in enumerate(self.keys):
            rank = self.ranks[i].astype(np.int64)
            order = np.argsort(-rank, kind="stable")
            order = order[(rank[order] >= 0) & (rank[order] < NEVER)]
            for rows, score in iterate_scores(z[:, i], keys):
                pairs = codes[rows, i].astype(np.int64)  # (b, k)
                nearest = np.take_along_axis(score, np.where(pairs == NO_PAIR, 0, pairs), axis=1)
                nearest = np.where(pairs == NO_PAIR, np.float32(np.inf), nearest)
                for pair in order:
                    x = score[:, pair, None]
                    places = ((nearest < x) | ((nearest == x) & (pairs < pair))).sum(axis=1)
                    enters = np.flatnonzero((places < k) & (x[:, 0] < np.inf))
                    place = places[enters]
                    nearest[enters] = insert(nearest[enters], place, x[enters])
                    pairs[enters] = insert(pairs[enters], place, pair)
                    size, book = np.full_like(place, rank[pair]), np.full_like(place, i)
                    found.append(np.stack([enters + rows.start, size, book, np.full_like(place, pair), place], axis=1))
        steps = np.concatenate(found)
        query, size, book, pair, place = steps[np.lexsort((steps[:, 3], steps[:, 2], -steps[:, 1], steps[:, 0]))].T
        offsets = np.searchsorted(query, np.arange(len(z) + 1)).astype(np.int64)
        return (
            codes,
            offsets,
            size.astype(np.int32),
            book.astype(np.int32),
            pair.astype(np.uint16),
            place.astype(np.uint8),
        )


def insert(slots: Array, place: Array, new: Any) -> Array:
    """The slots (n, k) with something new at a place (n,) of each row: those behind move up, the last falls out."""
    column = np.arange(slots.shape[1])
    moved: Array = np.where(column < place[:, None], slots, np.roll(slots, 1, axis=1))
    return np.where(column == place[:, None], new, moved)


def draws(seed: int, step: int, codebook: int, pairs: int, batch: int) -> Array:
    """For every pair, an example of the batch: a hash of (seed, step, codebook, pair), so no order matters."""
    with np.errstate(over="ignore"):
        x = np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15) * (np.uint64(step) + np.uint64(1))
        x = _mix(x) + np.uint64(0xBF58476D1CE4E5B9) * (np.uint64(codebook) + np.uint64(1))
        x = _mix(x) + np.uint64(0x94D049BB133111EB) * (np.arange(pairs, dtype=np.uint64) + np.uint64(1))
        chosen: Array = ((_mix(x) >> np.uint64(32)) * np.uint64(batch)) >> np.uint64(32)
        return chosen


def _mix(x: Any) -> Any:
    """The finaliser of splitmix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class KeyInitializer:
    """Moving averages that pull every key to the projected examples nearest to it, without labels."""

    def __init__(self, keys: Array, seed: int, batch_size: int):
        self._keys = keys.copy()  # (c, m, d)
        self._sums = keys.copy()
        self._counts = np.zeros(keys.shape[:2], np.float32)
        self._seed, self._batch_size, self._step = seed, batch_size, 0

    def keys(self) -> Array:
        """Keys (c, m, d) as they are now."""
        return self._keys.copy()

    def update(self, z: Array, threads: int = 1) -> None:
        """One or more batches, in order: z (n, c, d)."""
        for start in range(0, len(z), self._batch_size):
            for i in range(len(self._keys)):
                self._update_codebook(i, z[start : start + self._batch_size, i])
            self._step += 1

    def _update_codebook(self, i: int, z: Array) -> None:
        keys, sums, counts = self._keys[i], self._sums[i], self._counts[i]
        decay, rest = np.float32(EMA_DECAY), np.float32(1 - EMA_DECAY)
        m = len(keys)
        codes = PreparedKeys(keys[None]).nearest(z[:, None], 1)[:, 0, 0]
        z_found, codes = z[codes != NO_PAIR], codes[codes != NO_PAIR]
        hits = np.bincount(codes, minlength=m).astype(np.float32)
        added = np.zeros_like(sums)
        np.add.at(added, codes, z_found)
        counts[:] = decay * counts + rest * hits
        sums[:] = decay * sums + rest * added
        lanes = np.zeros((-(-m // 16), 16))  # every 16th count is summed first, then over the 16 sums
        lanes.flat[:m] = counts
        total = np.add.accumulate(np.add.accumulate(lanes)[-1])[-1]
        smoothed = (counts.astype(np.float64) + EMA_EPSILON) / (total + m * EMA_EPSILON) * total
        keys[:] = sums / smoothed.astype(np.float32)[:, None]
        dead = counts < np.float32(0.1 * self._batch_size / m)
        chosen = draws(self._seed, self._step, i, m, len(z))
        keys[dead] = z[chosen[dead].astype(np.int64)]  # counts and sums stay as they are


def logits(codes: Array, values: Array, decoder: str, threads: int = 1) -> Array:
    """Mean over codebooks of the mean (or sum) over the retrieved values: (n, v)."""
    n, c, _ = codes.shape
    total = np.zeros((n, values.shape[2]), np.float32)
    for g in range(min(SUM_GROUPS, c)):
        groups = min(SUM_GROUPS, c)
        part = np.zeros_like(total)
        for i in range(g * c // groups, (g + 1) * c // groups):
            weight = slot_weights(codes[:, i], decoder)
            for slot in range(codes.shape[2]):
                found = codes[:, i, slot] != NO_PAIR
                row = values[i, np.where(found, codes[:, i, slot], 0)]
                part += np.where(found[:, None], row * weight[:, None], np.float32(0))
        total += part
    return total * np.float32(1 / c)


def slot_weights(codes: Array, decoder: str) -> Array:
    """What one retrieved pair of a codebook counts for: 1 over the live ones for the mean, else 1. codes (n, k)."""
    if decoder == "sum":
        return np.ones(len(codes), np.float32)
    live = (codes != NO_PAIR).sum(axis=1)
    weights: Array = np.float32(1) / np.maximum(live, 1).astype(np.float32)
    return weights


def gradient(codes: Array, residuals: Array, pairs: int, decoder: str, threads: int = 1) -> Array:
    """Transpose of `logits`: residuals (n, v) scattered into a table (c, m, v), examples in order."""
    c = codes.shape[1]
    table = np.zeros((c, pairs, residuals.shape[1]), np.float32)
    scaled = residuals * np.float32(1 / c)
    for i in range(c):
        weight = slot_weights(codes[:, i], decoder)
        rows = np.repeat(np.arange(len(codes)), codes.shape[2])
        slots = codes[:, i].reshape(-1)
        found = slots != NO_PAIR
        np.add.at(table[i], slots[found], scaled[rows[found]] * weight[rows[found], None])
    return table


def exp(x: Array) -> Array:
    """e^x for x <= 0 in float32, the same bits everywhere (libm's are not)."""
    f = np.float32
    x = np.maximum(x, f(-104))
    n = np.rint(x * f(1.44269504088896341))
    r = (x - n * f(0.693359375)) - n * f(-2.12194440e-4)
    p: Array = np.full_like(x, 1.9875691500e-4)
    for term in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = p * r + f(term)
    y = p * (r * r) + r + f(1)
    return np.where(n < -125, f(0), np.ldexp(y, n.astype(np.int32))).astype(np.float32)


def cross_entropy(logits: Array, labels: Array, smoothing: float) -> tuple[Array, Array]:
    """Residuals (softmax - target, (n, v)) and losses ((n,), float64)."""
    v = logits.shape[1]
    shifted = logits - logits.max(axis=1, keepdims=True)
    e = exp(shifted)
    total = np.zeros(len(logits), np.float32)
    for j in range(v):
        total = total + e[:, j]
    p = e * (np.float32(1) / total)[:, None]
    off, on = np.float32(smoothing / v), np.float32(1 - smoothing + smoothing / v)
    target = np.full_like(logits, off)
    target[np.arange(len(labels)), labels] = on
    losses = np.log(total.astype(np.float64)) - (target.astype(np.float64) * shifted).sum(axis=1)
    return p - target, losses


def walk(
    codes: Array,
    offsets: Array,
    sizes: Array,
    books: Array,
    pairs: Array,
    places: Array,
    values: Array,
    labels: Array,
    decoder: str,
    threads: int = 1,
) -> tuple[Array, Array, Array, Array]:
    """Predictions and losses of queries with some labels (n,) on their way through `PreparedStairs.steps`.

    Returns predictions (n,) int32 and losses (n,) float64 of the codes, and both again after each step: those of
    `logits`, to the bit, the first of equals, and of `cross_entropy`. Only the last step of a size counts; where the
    next one has the same size, what was so before is repeated.
    """
    first_best, first_loss = np.empty(len(codes), np.int32), np.empty(len(codes))
    best, loss = np.empty(len(sizes), np.int32), np.empty(len(sizes))
    for q in range(len(codes)):
        own = slice(offsets[q], offsets[q + 1])
        states = np.repeat(codes[q : q + 1], 1 + offsets[q + 1] - offsets[q], axis=0)
        for step, (book, pair, place) in enumerate(zip(books[own], pairs[own], places[own], strict=True), start=1):
            states[step] = states[step - 1]
            states[step, book] = insert(states[step, book][None], np.array([place]), pair)[0]
        scores = logits(states, values, decoder)
        _, losses = cross_entropy(scores, np.full(len(states), labels[q]), 0.0)
        counts = np.append(True, np.diff(sizes[own], append=-1) != 0)  # sizes are not negative
        last = np.maximum.accumulate(np.where(counts, np.arange(len(states)), 0))
        predicted, losses = scores.argmax(axis=1)[last], losses[last]
        first_best[q], first_loss[q], best[own], loss[own] = predicted[0], losses[0], predicted[1:], losses[1:]
    return first_best, first_loss, best, loss


@dataclass(frozen=True)
class Optimiser:
    """How values move. Adam is the dense one: a row keeps moving on its moments after it was last touched."""

    solver: str = "adam"
    learning_rate: float = 0.3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    label_smoothing: float = 0.0
    gradient_clip: float | None = None
    l2: float = 0.0
    decoder: str = "mean"


class ValueTrainer:
    """Mini-batch training of a value table on cached codes, every step over the dense table."""

    def __init__(self, values: Array, options: Optimiser):
        self._values = values.astype(np.float32, copy=True)
        self._options = options
        self._m = np.zeros_like(self._values)
        self._s = np.zeros_like(self._values)
        self._step = 0

    def values(self, threads: int = 1) -> Array:
        """The table (c, m, v) as it is now."""
        return self._values.copy()

    def train(self, codes: Array, labels: Array, order: Array, batch_size: int, threads: int = 1) -> float:
        """Steps over codes[order] (n, c, k) in batches; returns the sum of the losses."""
        total = 0.0
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            with np.errstate(over="ignore", invalid="ignore"):  # training that runs away is seen by its loss
                total += self._train_batch(codes[rows], labels[rows])
        return total

    def _train_batch(self, codes: Array, labels: Array) -> float:
        o = self._options
        residuals, losses = cross_entropy(logits(codes, self._values, o.decoder), labels, o.label_smoothing)
        scaled = residuals * np.float32(1 / len(labels))
        g = gradient(codes, scaled, self._values.shape[1], o.decoder)
        if o.l2:
            g += np.float32(o.l2) * self._values
        if o.gradient_clip is not None:
            norm = float(np.sqrt((g.astype(np.float64) ** 2).sum()))
            g *= np.float32(min(1.0, o.gradient_clip / (norm + 1e-6)))
        self._step += 1
        if o.solver == "sgd":
            self._values -= np.float32(o.learning_rate) * g
        else:
            self._m += np.float32(1 - o.beta1) * (g - self._m)
            self._s = np.float32(o.beta2) * self._s + np.float32(1 - o.beta2) * g * g
            size = np.float32(o.learning_rate / (1 - o.beta1**self._step))
            root = np.float32(1 / np.sqrt(1 - o.beta2**self._step))
            self._values -= size * self._m / (np.sqrt(self._s) * root + np.float32(o.epsilon))
        return float(losses.sum())
