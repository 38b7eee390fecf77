"""Features in chunks: every row once, in order, as finite float32, within the memory allowed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise import InputError
from excise.features.arrays import chunk_rows, empty_array, finite_float32, read_chunks


@given(st.integers(1, 2**20), st.floats(1, 4096), st.integers(1, 20_000))
def test_chunks_are_whole_batches_within_memory(row: int, memory: float, multiple: int) -> None:
    rows = chunk_rows(row, memory, multiple)
    assert rows > 0
    assert rows % multiple == 0
    assert rows == multiple or rows * row <= memory * 2**20


def test_chunks_leave_room_for_tables_and_end_in_a_second() -> None:
    assert chunk_rows(1024, 8, 1) == 8192
    assert chunk_rows(1024, 8, 1, tables=4 * 2**20) == 4096
    assert chunk_rows(1024, 8, 1, tables=2**30) == 2048
    assert chunk_rows(1024, 8, 1, multiply_adds=10**8) == 400


@given(st.integers(0, 30), st.integers(1, 40), st.booleans(), st.sampled_from(["f2", "f4", "f8", ">f4", "i8"]))
def test_chunks_hold_every_row_in_order(n: int, rows: int, shuffled: bool, dtype: str) -> None:
    features = np.arange(3 * n).reshape(n, 3).astype(dtype)
    order = np.random.default_rng(n).permutation(n) if shuffled else None
    chunks = list(read_chunks(features, rows, order))
    assert [start for start, _ in chunks] == list(range(0, n, rows))
    assert all(part.dtype == np.float32 and part.flags.c_contiguous for _, part in chunks)
    joined = np.concatenate([np.empty((0, 3)), *(part for _, part in chunks)])
    assert np.array_equal(joined, features if order is None else features[order])


def test_a_memory_map_is_read_chunk_by_chunk(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", np.ones((10, 2), np.float16))
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    for _, part in read_chunks(mapped, 4):
        assert not isinstance(part, np.memmap)


def test_contiguous_float32_is_not_copied() -> None:
    rows = np.ones((4, 3), np.float32)
    assert finite_float32(rows) is rows


@pytest.mark.parametrize(
    ("value", "what"),
    [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity"), (3.5e38, "too large"), (-1.1e15, "too large")],
)
@pytest.mark.parametrize("order", [None, np.array([2, 1, 0])])
def test_what_has_no_distance_is_refused_by_its_place(value: float, what: str, order: Any) -> None:
    features = np.array([[0.0, 1e15], [0.0, value], [0.0, 0.0]])
    with pytest.raises(InputError, match=f"^Input X contains .*{what}.*, as in row 1, column 1: "):
        list(read_chunks(features, 1, order))


def test_only_what_is_read_is_refused() -> None:
    features: Any = np.array([[1.0], [2.0], [np.nan]])
    chunks = read_chunks(features, 2)
    assert next(chunks)[0] == 0
    with pytest.raises(InputError):
        next(chunks)


def test_an_array_beyond_the_memory_goes_to_a_file() -> None:
    small, large = (empty_array((2**18, columns), np.uint16, 1.0) for columns in (2, 3))
    assert type(small) is np.ndarray
    assert isinstance(large, np.memmap)
    assert large.shape == (2**18, 3)
    large[:] = 7
    assert (large == 7).all()
