"""Key initialisation: keys move by moving averages until they cover the projected features; no labels are used."""

import numpy as np

from excise.bottleneck import kernels
from excise.features.arrays import Array, chunk_rows, read_chunks
from excise.progress import track


def initialize_keys(
    features: Array,
    projection: Array,
    pairs: int,
    *,
    passes: int,
    batch_size: int,
    generator: np.random.Generator,
    threads: int = 1,
    working_memory: float = 256,
    verbose: int = 0,
) -> Array:
    """Keys (c, m, d) after `passes` over the features in random order, in batches of `batch_size`.

    'Key Initialization in DKVB models' in the paper; the averages, and what becomes of dead keys, are those of the
    ICML-2023 article that it builds on.
    """
    f, c, d = projection.shape
    if passes == 0:
        return draw_keys(c, pairs, d, generator)
    initializer = kernels.KeyInitializer(draw_keys(c, pairs, d, generator), int(generator.integers(2**63)), batch_size)
    tables = 4 * c * (pairs * (d + 1) + f * d)  # sums and counts, and the projection laid out for products
    rows = chunk_rows(8 * (f + c * d), working_memory, batch_size, c * pairs * d, tables)
    flat = projection.reshape(f, c * d)
    with track("keys", passes * len(features), "examples", verbose) as progress:
        for _ in range(passes):
            for _, x in read_chunks(features, rows, generator.permutation(len(features))):
                initializer.update(kernels.project(x, flat, threads).reshape(len(x), c, d), threads)
                progress.advance(len(x))
                del x  # before the next chunk is read
    keys: Array = initializer.keys()
    return keys


def draw_keys(codebooks: int, pairs: int, key_dim: int, generator: np.random.Generator) -> Array:
    """Keys (c, m, d) where nothing has moved them yet: standard normal."""
    return generator.standard_normal((codebooks, pairs, key_dim), dtype=np.float32)
