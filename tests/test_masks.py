"""Masks: counting what codes selected, and masking the most selected."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise.bottleneck.reference import NO_PAIR
from excise.forgetting import masks
from excise.forgetting.masks import activation_counts, unused_pairs


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
