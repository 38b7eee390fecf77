"""Features in bounded memory: an array, a view or a memory map, read as finite float32 rows in chunks."""

from collections.abc import Iterator

import numpy as np

from excise.bottleneck.reference import Array
from excise.errors import InputError


def chunk_rows(bytes_per_row: int, working_memory: float, multiple: int = 256) -> int:
    """Rows of a chunk so that a few copies of it stay within `working_memory` MiB."""
    rows = int(working_memory * 2**20 / 3 / max(1, bytes_per_row))
    return max(multiple, min(rows, 8192) // multiple * multiple)


def read_chunks(features: Array, rows: int, order: Array | None = None) -> Iterator[tuple[int, Array]]:
    """Pairs (first row, rows (b, f) float32) of `features`, or of features[order]."""
    count = len(features) if order is None else len(order)
    for start in range(0, count, rows):
        chunk = features[start : start + rows] if order is None else features[order[start : start + rows]]
        yield start, finite_float32(np.asarray(chunk))


def finite_float32(rows: Array) -> Array:
    """The rows as contiguous float32, refused where a value is missing or does not fit."""
    with np.errstate(over="ignore"):
        out = np.ascontiguousarray(rows, dtype=np.float32)
    if not np.isfinite(out).all():
        if np.isnan(out).any():
            raise InputError("Input X contains NaN: drop those rows or fill the missing values first")
        raise InputError(
            "Input X contains infinity or a value too large for float32: features must lie within +-3.4e38"
        )
    return out
