"""The kernels in readable numpy: the oracle of every test, and the fall-back where nothing was compiled.

Axes: n examples, f feature, c codebooks, m pairs, d key, k retrieved, v classes.

Every sum has a fixed order and every product of a chain is fused with its addition, so the compiled kernels return
the same bits on any instruction set and with any number of threads; and the bits of this file, but for Adam, which they
compute lazily and which agrees to rounding.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.features.arrays import Array

NO_PAIR = 65535  # what a code holds where no live pair was left
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


@dataclass
class PreparedKeys:
    """Keys ready for search; a masked pair is infinitely far away."""

    keys: Array  # (c, m, d)
    live: Array | None = None  # (c, m) bool

    def nearest(self, z: Array, k: int, threads: int = 1) -> Array:
        """Codes (n, c, k) of the projected features z (n, c, d): nearest first, the lower pair on a tie."""
        c, m, d = self.keys.shape
        codes = np.full((len(z), c, k), NO_PAIR, np.uint16)
        for i in range(c):
            start = half_norms(self.keys[i])
            if self.live is not None:
                start = np.where(self.live[i], start, np.float32(np.inf))
            for rows in range(0, len(z), 256):
                score = np.broadcast_to(start, (len(z[rows : rows + 256]), m))
                for j in range(d):  # |z - key|^2 / 2 - |z|^2 / 2; the last term is the same for all keys
                    score = fused(-z[rows : rows + 256, i, j, None], self.keys[i, :, j], score)
                order = np.argsort(score, axis=1, kind="stable")[:, :k]
                found = np.take_along_axis(score, order, axis=1) < np.inf
                codes[rows : rows + 256, i, : order.shape[1]] = np.where(found, order, NO_PAIR)
        return codes


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
