"""Features to heads: one frozen random projection per codebook, every column of unit length."""

import numpy as np

from excise.features.arrays import Array


def draw_projection(features: int, codebooks: int, key_dim: int, generator: np.random.Generator) -> Array:
    """(f, c, d) float32: standard normal, each of the c*d columns scaled to unit L2 norm over f; no bias."""
    columns = generator.standard_normal((codebooks, features, key_dim), dtype=np.float32)
    columns /= np.sqrt((columns.astype(np.float64) ** 2).sum(axis=1, keepdims=True)).astype(np.float32)
    return np.ascontiguousarray(columns.transpose(1, 0, 2))
