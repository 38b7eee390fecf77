"""Key initialisation: keys move by moving averages until they cover the projected features; no labels are used."""

import numpy as np

from excise.bottleneck import kernels
from excise.bottleneck.reference import Array
from excise.features.arrays import chunk_rows, read_chunks
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
    """Keys (c, m, d) after `passes` over the features in random order, in batches of `batch_size`."""
    f, c, d = projection.shape
    start = generator.standard_normal((c, pairs, d), dtype=np.float32)
    if passes == 0:
        return start
    initializer = kernels.KeyInitializer(start, int(generator.integers(2**63)), batch_size)
    flat = projection.reshape(f, c * d)
    rows = chunk_rows(4 * (f + c * d), working_memory, batch_size)
    with track("keys", passes * len(features), "examples", verbose) as progress:
        for _ in range(passes):
            for _, x in read_chunks(features, rows, generator.permutation(len(features))):
                z = kernels.project(x, flat, threads)
                initializer.update(z.reshape(len(x), c, d), threads)
                progress.advance(len(x))
    keys: Array = initializer.keys()
    return keys
