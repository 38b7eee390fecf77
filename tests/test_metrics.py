"""Intervals hold what they should, and distances are symmetrical, nothing between equals, and bounded."""

import numpy as np
import pytest

from excise.metrics import (
    cross_entropies,
    divergences,
    jensen_shannon,
    probabilities,
    total_variation,
    wilson_interval,
)

LOGITS = np.random.default_rng(0).normal(size=(2, 50, 6)).astype(np.float32)


def test_wilson_intervals_are_the_published_ones() -> None:
    assert wilson_interval(0, 10) == (0.0, pytest.approx(0.2775, abs=1e-4))
    assert wilson_interval(10, 10) == (pytest.approx(0.7225, abs=1e-4), 1.0)
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998
    assert wilson_interval(0, 0) is None


@pytest.mark.parametrize("examples", [1, 7, 1000])
def test_intervals_hold_the_accuracy_and_mirror(examples: int) -> None:
    for right in range(0, examples + 1, max(1, examples // 7)):
        low, high = wilson_interval(right, examples) or (1, 0)
        assert 0 <= low <= right / examples <= high <= 1
        assert wilson_interval(examples - right, examples) == pytest.approx((1 - high, 1 - low))


def test_divergence_is_symmetrical_zero_on_equals_and_log_2_at_most() -> None:
    a, b = LOGITS
    assert np.array_equal(divergences(a, b), divergences(b, a))
    assert (divergences(a, b) > 0).all()
    assert not divergences(a, a).any()
    apart = jensen_shannon(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]))
    assert apart == pytest.approx(np.log(2))


def test_a_logit_of_minus_infinity_is_no_class() -> None:
    logits = LOGITS[0].copy()
    logits[:, 2] = -np.inf
    p = probabilities(logits)
    assert not p[:, 2].any()
    assert p.sum(axis=1) == pytest.approx(1)
    rest = np.delete(probabilities(LOGITS[0]), 2, axis=1)
    assert np.delete(p, 2, axis=1) == pytest.approx(rest / rest.sum(axis=1, keepdims=True))
    assert np.isinf(cross_entropies(logits, np.full(50, 2))).all()
    assert np.isfinite(divergences(logits, LOGITS[0])).all()


def test_total_variation_is_the_share_that_moves() -> None:
    assert total_variation(np.array([5, 5, 0]), np.array([50, 50, 0])) == 0
    assert total_variation(np.array([4, 0]), np.array([0, 2])) == 1
    assert total_variation(np.array([3, 1]), np.array([2, 2])) == 0.25
