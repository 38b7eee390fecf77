"""The demo: the real thing on real digits, test data apart from it, and the same again from the same seed."""

import numpy as np
import pytest

from excise import InputError, KeyValueClassifier, demo

TINY = {"codebooks": 16, "pairs": 32, "key_epochs": 2, "epochs": 5}


@pytest.fixture(scope="module")
def done() -> demo.DemoReport:
    return demo.run(3, **TINY)


def test_parts_are_disjoint_and_whole() -> None:
    split = demo.split_digits(0)
    parts = [split.train, split.test]
    assert sum(len(y) for _, y in parts) == 1797
    assert len(np.unique(np.concatenate([x for x, _ in parts]), axis=0)) == 1797
    assert all(set(y) == set(range(10)) for _, y in parts)


def test_one_digit_is_forgotten_and_the_others_stay(done: demo.DemoReport) -> None:
    rows = done.report["accuracy"]
    assert rows["before"]["forget"]["accuracy"] > 0.9
    assert rows["after"]["forget"]["accuracy"] < 0.1
    assert rows["after"]["retain"]["accuracy"] > rows["before"]["retain"]["accuracy"] - 0.1
    assert 0 < done.report["summary"]["pairs_masked"] < done.report["summary"]["pairs"] == 16 * 32


def test_the_controls_stand_beside(done: demo.DemoReport) -> None:
    rows = done.report["accuracy"]
    assert rows["knock_out"]["forget"]["accuracy"] == 0
    assert rows["knock_out"]["retain"]["accuracy"] >= rows["before"]["retain"]["accuracy"]
    assert rows["oracle"]["forget"]["accuracy"] == 0
    assert rows["random_mask"]["forget"]["accuracy"] > 0.5
    assert done.report["skipped"] == []


def test_the_numbers_are_those_of_a_model_made_by_hand(done: demo.DemoReport) -> None:
    split = demo.split_digits(0)
    model = KeyValueClassifier(**demo.PARAMETERS | TINY, random_state=0).fit(*split.train)
    model.forget(3)
    x, y = split.test
    rows = done.report["accuracy"]
    assert rows["after"]["retain"]["accuracy"] == model.score(x[y != 3], y[y != 3])
    assert done.report["summary"]["pairs_masked"] == model.mask.sum()


def test_the_same_seed_forgets_the_same(done: demo.DemoReport) -> None:
    again = demo.run(3, n_jobs=1, **TINY)
    assert {**again.report, "times": None} == {**done.report, "times": None}


def test_only_digits_can_be_forgotten() -> None:
    with pytest.raises(InputError, match="there is no digit 10: choose one from 0 to 9"):
        demo.run(10)
