"""Masks as plain boolean arrays (c, m), True = masked: combine with `|`, undo by dropping one."""

import numpy as np

from excise.bottleneck.reference import NO_PAIR
from excise.errors import InputError
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


def most_activated(counts: Array, size: int) -> Array:
    """The mask of the `size` most activated pairs of all codebooks; ties go to the lower codebook and pair.

    'Unlearning via Activations' in the paper, which leaves ties open.
    """
    if not 0 <= size <= counts.size:
        raise InputError(f"the mask cannot hold {size:,} pairs: there are {counts.size:,}")
    mask = np.zeros(counts.size, bool)
    mask[np.argsort(-counts.reshape(-1), kind="stable")[:size]] = True
    return mask.reshape(counts.shape)
