"""How many pairs: the rule for logs, where a curve meets its goal, and what is sure."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise.forgetting.ranking import Ranking, rank_by_activations
from excise.forgetting.sizes import (
    COVERED,
    COVERED_BLINDLY,
    DISPLACED,
    Goal,
    first_by_counts,
    size_from_counts,
    smallest,
    upper_bound,
)


def ranked(counts: list[int], others: Any) -> Ranking:
    pairs = np.arange(len(counts))
    return rank_by_activations(pairs, np.array(counts, np.uint16), 0, None if others is None else np.array(others))


@given(st.integers(0, 60), st.sampled_from([1, 5, 300]), st.sampled_from([None, 0, 1, 5, 2**16]), st.integers(0, 999))
def test_counting_gives_the_pairs_that_a_ranking_gives(n: int, most: int, of_others: int | None, seed: int) -> None:
    rng = np.random.default_rng(seed)
    pairs, counts = np.sort(rng.permutation(100)[:n]), rng.integers(1, most + 1, n).astype(np.uint16)
    others = None if of_others is None else rng.integers(0, of_others + 1, n)
    for total in (0, int(counts.sum()), int(counts.sum()) + rng.integers(1, 10_000)):
        ranking = rank_by_activations(pairs, counts, 0, others)
        expected = ranking.first(size_from_counts(ranking, total))
        assert np.sort(first_by_counts(pairs, counts, others, total)).tolist() == sorted(expected.tolist())


@given(st.lists(st.integers(1, 5), min_size=1, max_size=40), st.integers(0, 999))
def test_the_rule_for_logs_covers_enough_and_displaces_no_more_than_allowed(counts: list[int], seed: int) -> None:
    others = np.random.default_rng(seed).integers(0, 6, len(counts))
    ranking = ranked(counts, others)
    own, rest = sum(counts), 10 * sum(counts) + int(others.sum())
    size = size_from_counts(ranking, own + rest)
    allowed = DISPLACED * np.sqrt(own / (own + rest))

    def displaced(size: int) -> float:
        assert ranking.others is not None
        return float(ranking.others[:size].sum() / rest)

    assert ranking.counts[:size].sum() >= COVERED * own
    assert displaced(size) <= allowed or ranking.counts[: size - 1].sum() < COVERED * own
    assert size == len(counts) or displaced(size + 1) > allowed


@given(st.lists(st.integers(1, 5), min_size=1, max_size=40))
def test_where_others_are_not_known_more_is_covered(counts: list[int]) -> None:
    ranking = ranked(counts, None)
    size = size_from_counts(ranking, 0)
    assert ranking.counts[: size - 1].sum() < COVERED_BLINDLY * sum(counts) <= ranking.counts[:size].sum()


def test_nothing_logged_masks_nothing() -> None:
    assert size_from_counts(ranked([], None), 0) == 0


@pytest.mark.parametrize(
    ("accuracy", "loss", "goal", "size"),
    [
        ([0.9, 0.5, 0.0, 0.1, 0.0, 0.0], [0] * 6, Goal(), 4),
        ([0.9, 0.5, 0.0, 0.1, 0.0, 0.0], [0] * 6, Goal(0.1), 2),
        ([0.0, 0.0], [0, 0], Goal(), 0),
        ([0.9, 0.5], [0, 0], Goal(), None),
        ([0.9] * 4, [0.1, 1.5, 0.9, 2.0], Goal(loss=1.0), 1),
        ([0.9] * 4, [0.1, 0.2, 0.3, 0.4], Goal(loss=1.0), None),
    ],
)
def test_where_a_curve_meets_its_goal(accuracy: list[float], loss: list[float], goal: Goal, size: int | None) -> None:
    assert smallest(np.array(accuracy), np.array(loss), goal) == size


def test_the_bound_is_that_of_the_binomial() -> None:
    from scipy.stats import binom

    assert upper_bound(0, 59) == pytest.approx(1 - 0.05 ** (1 / 59))
    assert binom.cdf(3, 50, upper_bound(3, 50)) == pytest.approx(0.05)
    assert upper_bound(7, 7) == 1.0
