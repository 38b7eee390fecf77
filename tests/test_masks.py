"""Masks: counting what codes selected, and masking the most selected."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise import InputError
from excise.bottleneck.reference import NO_PAIR
from excise.forgetting import masks
from excise.forgetting.masks import activation_counts, most_activated, unused_pairs


@given(st.integers(0, 40), st.integers(1, 4), st.integers(1, 9), st.integers(1, 3), st.integers(0, 99))
def test_counts_are_those_of_a_loop(n: int, c: int, m: int, k: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, m + 1, (n, c, k)).astype(np.uint16)
    codes[codes == m] = NO_PAIR
    expected = np.zeros((c, m), np.int64)
    for i, j in ((i, int(j)) for example in codes for i, slots in enumerate(example) for j in slots):
        if j != NO_PAIR:
            expected[i, j] += 1
    counts = activation_counts(codes, m)
    assert counts.dtype == np.int64
    assert np.array_equal(counts, expected)


def test_counts_add_up_over_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = np.random.default_rng(0).integers(0, 5, (100, 3, 2)).astype(np.uint16)
    whole = activation_counts(codes, 5)
    monkeypatch.setattr(masks, "ROWS", 7)
    assert np.array_equal(activation_counts(codes, 5), whole)
    assert whole.sum() == codes.size


def test_the_most_pairs_and_the_mark_of_none_stay_apart() -> None:
    codes = np.array([[[65_534, NO_PAIR]]], np.uint16)
    assert activation_counts(codes, 65_535).nonzero()[1].tolist() == [65_534]


def test_unused_pairs_are_those_never_counted() -> None:
    codes = np.array([[[0, 2], [1, NO_PAIR]]], np.uint16)
    assert unused_pairs(codes, 3).tolist() == [[False, True, False], [True, False, True]]


@given(st.lists(st.integers(0, 3), min_size=6, max_size=6), st.integers(0, 6), st.integers(0, 6))
def test_masks_are_nested_and_hold_the_most_activated(counts: Any, small: int, large: int) -> None:
    small, large = sorted((small, large))
    table = np.array(counts).reshape(2, 3)
    inner, outer = most_activated(table, small), most_activated(table, large)
    assert inner.sum() == small
    assert not (inner & ~outer).any()
    if 0 < small < 6:
        assert table[inner].min() >= table[~inner].max()


def test_ties_go_to_the_lower_codebook_and_pair() -> None:
    counts = np.array([[1, 2, 2], [2, 0, 2]])
    assert most_activated(counts, 3).tolist() == [[False, True, True], [True, False, False]]


@pytest.mark.parametrize("size", [-1, 7])
def test_a_mask_larger_than_the_table_is_refused(size: int) -> None:
    with pytest.raises(InputError, match=rf"^the mask cannot hold {size} pairs: there are 6$"):
        most_activated(np.zeros((2, 3)), size)
