"""Masks as plain boolean arrays (c, m), True = masked: combine with `|`, undo by dropping one."""

import numpy as np

from excise.bottleneck.reference import NO_PAIR, Array
from excise.errors import InputError


def activation_counts(codes: Array, pairs: int) -> Array:
    """How often each pair was selected by codes (n, c, k): (c, m) int64."""
    counts = np.zeros((codes.shape[1], pairs), np.int64)
    for i in range(codes.shape[1]):
        slots = codes[:, i].reshape(-1)
        counts[i] = np.bincount(slots[slots != NO_PAIR], minlength=pairs)
    return counts


def most_activated(counts: Array, size: int) -> Array:
    """The mask of the `size` most activated pairs of all codebooks; ties go to the lower codebook and pair."""
    if not 0 <= size <= counts.size:
        raise InputError(f"the mask cannot hold {size} pairs: there are {counts.size}")
    mask = np.zeros(counts.size, bool)
    mask[np.argsort(-counts.reshape(-1), kind="stable")[:size]] = True
    return mask.reshape(counts.shape)
