"""Features in bounded memory: an array, a view or a memory map, read as finite float32 rows in chunks."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from excise.errors import ExciseError, InputError

Array = NDArray[Any]
MOST_ROWS = 8192  # longer chunks are no faster
MOST_MULTIPLY_ADDS = 4e10  # of a chunk: a second or so, in which Ctrl-C is not heard and progress stands still
LARGEST = 1e15  # of a feature; beyond, squared distances come near the end of float32


def chunk_rows(
    bytes_per_row: int, working_memory: float, multiple: int = 256, multiply_adds: int = 0, tables: int = 0
) -> int:
    """Rows of a chunk, a multiple of `multiple`: within `working_memory` MiB beside `tables` bytes, and about a second.

    Where the tables leave less than a quarter of the memory, a chunk takes a quarter all the same.
    """
    whole = working_memory * 2**20
    room = max(whole - tables, whole / 4)
    rows = min(room / bytes_per_row, MOST_ROWS, MOST_MULTIPLY_ADDS / max(multiply_adds, 1))
    return max(int(rows) // multiple, 1) * multiple


def read_chunks(features: Array, rows: int, order: Array | None = None) -> Iterator[tuple[int, Array]]:
    """Pairs (first row, rows (b, f) float32) of `features`, or of features[order]."""
    count = len(features) if order is None else len(order)
    for start in range(0, count, rows):
        if order is None:
            yield start, finite_float32(features[start : start + rows], range(start, count))
        else:
            part = order[start : start + rows]
            yield start, finite_float32(features[part], part)


def finite_float32(rows: Array, numbers: Sequence[int] | Array | None = None) -> Array:
    """The rows as contiguous float32, refused where a value is missing or too large; `numbers` are their names."""
    with np.errstate(over="ignore"):
        out = np.ascontiguousarray(rows, dtype=np.float32)
    if max(out.max(initial=0), -out.min(initial=0)) <= LARGEST:  # not where there is a NaN
        return out
    row, column = np.argwhere(~(np.abs(out) <= LARGEST))[0].tolist()
    place = f"row {row if numbers is None else numbers[row]}, column {column}"
    if np.isnan(out[row, column]):
        raise InputError(f"Input X contains NaN, as in {place}: drop such rows or fill the missing values")
    raise InputError(
        f"Input X contains infinity or a value too large for float32 distances, as in {place}: "
        f"features must lie within +-{LARGEST:g}; scale them"
    )


def check_finite(features: Array, working_memory: float) -> None:
    """Read all of the features (n, f) once, for the sake of refusing a value that is missing or too large."""
    for _ in read_chunks(features, chunk_rows(8 * features.shape[1], working_memory)):
        pass


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
