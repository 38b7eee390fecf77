"""Features in bounded memory: an array, a view or a memory map, read as finite float32 rows in chunks."""

import os
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from excise.errors import ExciseError, InputError

Array = NDArray[Any]
MOST_ROWS = 8192  # longer chunks are no faster


def chunk_rows(bytes_per_row: int, working_memory: float, multiple: int = 256) -> int:
    """Rows of a chunk, a multiple of `multiple`, so that a few copies of it stay within `working_memory` MiB."""
    rows = min(int(working_memory * 2**20 / 3 / bytes_per_row), MOST_ROWS)
    return max(rows // multiple, 1) * multiple


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


def empty_array(shape: tuple[int, ...], dtype: DTypeLike, working_memory: float) -> Array:
    """Room for an array: in memory, or in an unnamed temporary file once it outgrows `working_memory` MiB."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if size <= working_memory * 2**20:
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile() as file:  # the map keeps it open
        try:
            if hasattr(os, "posix_fallocate"):  # else a full disk shows only when the map is written, as a crash
                os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(file, dtype, "w+", shape=shape)
        except OSError as error:
            raise ExciseError(
                f"no room for a temporary file of {size / 2**20:,.0f} MiB in {tempfile.gettempdir()} "
                f"({error.strerror}): free some, set TMPDIR to another folder, or raise working_memory above that"
            ) from error
