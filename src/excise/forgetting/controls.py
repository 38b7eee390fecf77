"""Masks that know nothing of the class, to compare with: of random pairs, and of pairs that are in use as often."""

import numpy as np

from excise.features.arrays import Array


def random_mask(live: Array, size: int, generator: np.random.Generator) -> Array:
    """The mask (c, m) of `size` of the live pairs, all equally likely."""
    return _draw(live.reshape(-1).nonzero()[0], size, np.zeros(live.size, bool), generator).reshape(live.shape)


def matched_mask(mask: Array, live: Array, totals: Array, generator: np.random.Generator) -> Array:
    """As many of the live pairs as `mask` holds, and as often in use.

    `totals` (c*m,) is how often all training examples selected each pair. Within every bin of it, from one power of
    two to the next, as many pairs are drawn as the mask has there; pairs of the mask itself are as likely as others.
    """
    bins = _bins(totals)
    found = np.zeros(mask.size, bool)
    chosen, free = mask.reshape(-1) & live.reshape(-1), live.reshape(-1)
    for bin in np.unique(bins[chosen]):
        here = bins == bin
        _draw((here & free).nonzero()[0], int((here & chosen).sum()), found, generator)
    return found.reshape(mask.shape)


def _bins(totals: Array) -> Array:
    """0 for 0, 1 for 1, 2 for 2 and 3, 3 for 4 to 7, and so on."""
    bins: Array = np.frexp(totals.astype(np.float64))[1]
    return bins


def _draw(pairs: Array, size: int, mask: Array, generator: np.random.Generator) -> Array:
    mask[generator.choice(pairs, size, replace=False)] = True
    return mask
