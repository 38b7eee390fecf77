"""Nearest keys by faiss-cpu: a flat index for each codebook.

faiss chooses between two loops by `distance_compute_blas_threshold`. At its default (1.15: below queries * size of
128,000) small keys take a sequential loop; a threshold of 20 makes them take a blocked one, which for the single
nearest key of a small size is fused and many times faster. Both are measured.
"""

from collections.abc import Callable
from importlib.util import find_spec

import numpy as np

AVAILABLE = find_spec("faiss") is not None
SETTINGS = {"default setting": None, "distance_compute_blas_threshold = 20": 20}


def searches(keys: np.ndarray, top_k: int, threads: int) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """A search z (n, c, d) -> codes (n, c, k) for each setting, over all queries of a codebook at once."""
    import faiss

    faiss.omp_set_num_threads(threads)
    indexes = [faiss.IndexFlatL2(keys.shape[2]) for _ in keys]
    for index, own in zip(indexes, keys, strict=True):
        index.add(own)
    default = faiss.cvar.distance_compute_blas_threshold

    def search(z: np.ndarray, threshold: int) -> np.ndarray:
        faiss.cvar.distance_compute_blas_threshold = threshold
        out = np.empty((len(z), len(keys), top_k), np.int64)
        for i, index in enumerate(indexes):
            out[:, i] = index.search(np.ascontiguousarray(z[:, i]), top_k)[1]
        faiss.cvar.distance_compute_blas_threshold = default
        return out

    return {
        name: lambda z, threshold=default if value is None else value: search(z, threshold)
        for name, value in SETTINGS.items()
    }
