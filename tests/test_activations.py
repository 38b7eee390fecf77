"""The log of activations: what was selected by whom, added up, taken out, and nothing else."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise.bottleneck.reference import NO_PAIR
from excise.forgetting.activations import Activations, record_activations
from excise.forgetting.masks import activation_counts


def drawn(seed: int, n: int = 30, c: int = 3, m: int = 7, k: int = 2, v: int = 4) -> Any:
    generator = np.random.default_rng(seed)
    codes = generator.integers(0, m + 1, (n, c, k)).astype(np.uint16)
    codes[codes == m] = NO_PAIR
    return codes, generator.integers(0, v, n)


def dense(log: Activations, label: int, size: int = 21) -> Any:
    pairs, counts = log.of(label)
    table = np.zeros(size, np.int64)
    table[pairs] = counts
    return table


@given(st.integers(0, 999), st.integers(0, 30))
def test_the_log_is_the_counts_of_each_class(seed: int, n: int) -> None:
    codes, labels = drawn(seed, n)
    log = record_activations(codes, labels, 7, 4)
    for label in range(4):
        assert np.array_equal(dense(log, label), activation_counts(codes[labels == label], 7).reshape(-1))
        pairs, counts = log.of(label)
        assert (np.diff(pairs.astype(np.int64)) > 0).all()
        assert (counts > 0).all()
    assert np.array_equal(log.totals, activation_counts(codes, 7).reshape(-1))


@given(st.integers(0, 999))
def test_logs_add_up_and_take_away(seed: int) -> None:
    (a, a_labels), (b, b_labels) = drawn(seed), drawn(seed + 1, n=20)
    one, two = record_activations(a, a_labels, 7, 4), record_activations(b, b_labels, 7, 4)
    both = record_activations(np.concatenate([a, b]), np.concatenate([a_labels, b_labels]), 7, 4)
    for log, expected in ((one.plus(two), both), (both.plus(two, -1), one)):
        for name in ("first", "pairs", "counts", "totals"):
            assert np.array_equal(getattr(log, name), getattr(expected, name))


def test_a_class_is_taken_out_whole() -> None:
    codes, labels = drawn(0)
    log = record_activations(codes, labels, 7, 4)
    rest = log.without({1, 3})
    assert [len(rest.of(label)[0]) for label in (1, 3)] == [0, 0]
    assert all(np.array_equal(dense(rest, label), dense(log, label)) for label in (0, 2))
    assert np.array_equal(rest.totals, dense(log, 0) + dense(log, 2))


@pytest.mark.parametrize(("repeats", "kind"), [(65_535, np.uint16), (65_536, np.uint32)])
def test_counts_take_the_room_that_they_need(repeats: int, kind: Any) -> None:
    log = record_activations(np.zeros((repeats, 1, 1), np.uint16), np.zeros(repeats, np.int64), 3, 2)
    assert log.counts.dtype == kind
    assert log.of(0)[1].tolist() == [repeats]
