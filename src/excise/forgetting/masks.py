"""Masks as plain boolean arrays (c, m), True = masked: combine with `|`, undo by dropping one."""

import numpy as np

from excise.bottleneck.reference import NO_PAIR
from excise.features.arrays import Array

ROWS = 4096  # counted at once


def activation_counts(codes: Array, pairs: int) -> Array:
    """How often each pair was selected by codes (n, c, k): (c, m) int64; each of the k pairs counts once."""
    c = codes.shape[1]
    counts = np.zeros(c * pairs, np.int64)
    first = pairs * np.arange(c)[:, None]  # (c, 1)
    for start in range(0, len(codes), ROWS):
        part = codes[start : start + ROWS]
        counts += np.bincount((first + part)[part != NO_PAIR], minlength=c * pairs)
    return counts.reshape(c, pairs)


def unused_pairs(codes: Array, pairs: int) -> Array:
    """The mask (c, m) of the pairs that no code selected."""
    mask: Array = activation_counts(codes, pairs) == 0
    return mask
