"""The demo: test data has no part in it, the same seed forgets the same pairs, and the control is honest."""

import numpy as np
import pytest

from excise import InputError, KeyValueClassifier, demo

TINY = {"codebooks": 16, "pairs": 32, "key_epochs": 2, "epochs": 5}


@pytest.fixture(scope="module")
def report() -> demo.DemoReport:
    return demo.run(3, **TINY)


def test_parts_are_disjoint_and_whole() -> None:
    split = demo.split_digits(0)
    parts = [split.train, split.held_out, split.test]
    assert sum(len(y) for _, y in parts) == 1797
    assert len(np.unique(np.concatenate([x for x, _ in parts]), axis=0)) == 1797
    assert all(set(y) == set(range(10)) for _, y in parts)


def test_one_digit_is_forgotten_and_the_others_stay(report: demo.DemoReport) -> None:
    assert report.reached_zero
    assert report.before.forget > 0.9
    assert report.after.forget < 0.1
    assert report.after.retain > report.before.retain - 0.1
    assert 0 < report.pairs_masked < report.pairs == 16 * 32


def test_the_control_forgets_without_a_mask(report: demo.DemoReport) -> None:
    assert report.control.forget == 0
    assert report.control.retain >= report.before.retain


def test_the_same_seed_forgets_the_same(report: demo.DemoReport) -> None:
    again = demo.run(3, n_jobs=1, **TINY)
    for name in ("before", "after", "control", "pairs_masked"):
        assert getattr(again, name) == getattr(report, name)


def test_the_size_is_the_smallest_that_reaches_zero() -> None:
    split = demo.split_digits(0)
    model = KeyValueClassifier(**demo.PARAMETERS | TINY, random_state=0).fit(*split.train)
    size, reached = demo.choose_size(model, split.held_out, 3)
    assert reached
    assert demo.measure(model.with_mask(demo.forget_mask(model, 3, size)), split.held_out, 3).forget == 0
    assert demo.measure(model.with_mask(demo.forget_mask(model, 3, size // 2)), split.held_out, 3).forget > 0


def test_only_digits_can_be_forgotten() -> None:
    with pytest.raises(InputError, match="there is no digit 10: choose one from 0 to 9"):
        demo.run(10)
