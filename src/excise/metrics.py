"""What reports compare models by: intervals of accuracies, and distances between predictions; pure functions."""

import math

import numpy as np

from excise.features.arrays import Array

Z = 1.959963984540054  # of the normal distribution, for 95%
ROWS = 8192  # of probabilities held at once, in float64


def wilson_interval(right: float, examples: int) -> tuple[float, float] | None:
    """The 95% interval (Wilson's) of an accuracy seen on so many examples; None where there are none."""
    if not examples:
        return None
    share, z2 = right / examples, Z * Z / examples
    middle = (share + z2 / 2) / (1 + z2)
    reach = Z / (1 + z2) * math.sqrt(share * (1 - share) / examples + z2 / (4 * examples))
    low, high = max(0.0, middle - reach), min(1.0, middle + reach)
    return 0.0 if right == 0 else low, 1.0 if right == examples else high


def probabilities(logits: Array) -> Array:
    """Softmax (n, v) in float64; a logit of minus infinity has no share."""
    wide = logits.astype(np.float64)
    e = np.exp(wide - wide.max(axis=1, keepdims=True))
    p: Array = e / e.sum(axis=1, keepdims=True)
    return p


def cross_entropies(logits: Array, labels: Array) -> Array:
    """The loss (n,) of each example, in float64; infinite where the logit of its label is minus infinity."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    losses: Array = np.log(np.exp(wide).sum(axis=1)) - wide[np.arange(len(labels)), labels]
    return losses


def jensen_shannon(p: Array, q: Array) -> Array:
    """The divergence (n,) of probabilities (n, v), in nats: 0 where they are equal, log 2 where nothing is shared."""
    from scipy.special import rel_entr

    m = (p + q) / 2
    found: Array = (rel_entr(p, m).sum(axis=1) + rel_entr(q, m).sum(axis=1)) / 2
    return np.maximum(found, 0)


def divergences(a: Array, b: Array) -> Array:
    """The Jensen-Shannon divergence (n,) between the predictions that logits (n, v) stand for, in bounded memory."""
    found = np.empty(len(a))
    for start in range(0, len(a), ROWS):
        part = slice(start, start + ROWS)
        found[part] = jensen_shannon(probabilities(a[part]), probabilities(b[part]))
    return found


def total_variation(a: Array, b: Array) -> float:
    """The distance between two distributions given as counts (v,): the share that would have to move."""
    return float(np.abs(a / a.sum() - b / b.sum()).sum() / 2)
