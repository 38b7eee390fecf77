"""The report: its numbers are those measured by hand, what it lacks has a reason, and it comes out the same twice."""

import copy
import json
from typing import Any

import numpy as np
import pytest

from conftest import SMALL, blobs
from excise import InputError, KeyValueClassifier
from excise.audit import accuracy as accuracies
from excise.audit import words
from excise.audit.accuracy import COMPARED, NAMES
from excise.audit.sizes import POINTS, _thinned
from excise.audit.subject import DRAWS, Subject
from excise.forgetting.curve import Curve
from excise.report import FORMAT, make_report

X, Y = blobs(200, classes=4, seed=3)
TRAIN, TEST = (X[:120], Y[:120]), (X[120:], Y[120:])


def fitted(**parameters: Any) -> KeyValueClassifier:
    return KeyValueClassifier(**SMALL | {"top_k": 2} | parameters).fit(*TRAIN)


def forgetful(label: Any = 1, **parameters: Any) -> KeyValueClassifier:
    model = fitted(**parameters)
    model.forget(label)
    return model


def subject_of(model: KeyValueClassifier, **options: Any) -> Subject:
    return Subject(model, *TEST, **{"before": None, "train": None, "random_state": 0, "verbose": 0} | options)


def untimed(report: dict[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in report.items() if name != "times"}


def why(report: dict[str, Any], what: str) -> str:
    return next(part["why"] for part in report["skipped"] if part["what"] == what)


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return make_report(forgetful(), *TEST, train=TRAIN, milliseconds={1: 2.5})


# -- plain data -------------------------------------------------------------------------------------------------------


def test_it_is_plain_data(report: dict[str, Any]) -> None:
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert report["format"] == FORMAT
    assert report["skipped"] == []


def test_the_same_is_measured_twice(report: dict[str, Any]) -> None:
    assert untimed(make_report(forgetful(), *TEST, train=TRAIN, milliseconds={1: 2.5})) == untimed(report)
    assert untimed(make_report(forgetful(n_jobs=1), *TEST, train=TRAIN)) == untimed(report)


def test_measuring_changes_nothing() -> None:
    model = forgetful()
    logits, requests = model.logits(TEST[0]), model.requests_
    make_report(model, *TEST, train=TRAIN)
    assert np.array_equal(model.logits(TEST[0]), logits)
    assert model.requests_ is requests


def test_the_requests_are_recorded(report: dict[str, Any]) -> None:
    model = forgetful()
    done = report["asked_and_done"]
    assert done["requests"] == [model.requests_[0].to_dict(timed=False)]
    assert done["forgotten"] == [1]
    assert done["totals"]["masked"] == done["totals"]["masked_by_requests"] == int(model.mask.sum())
    assert done["totals"]["live"] == int((~model.mask).sum())
    assert done["layout"]["top_k"] == 2
    assert report["times"]["forget_milliseconds"] == [{"request": 1, "milliseconds": 2.5}]


# -- accuracy and distance --------------------------------------------------------------------------------------------


def test_accuracies_are_those_measured_by_hand(report: dict[str, Any]) -> None:
    model = forgetful()
    for name, other in (("before", model.with_mask(None)), ("after", model)):
        for group, own in (("retain", TEST[1] != 1), ("forget", TEST[1] == 1)):
            row = report["accuracy"][name][group]
            assert row["accuracy"] == other.score(TEST[0][own], TEST[1][own])
            assert row["examples"] == own.sum()
            assert row["right"] == round(row["accuracy"] * own.sum())
            p = other.predict_proba(TEST[0][own])[np.arange(own.sum()), TEST[1][own]]
            assert row["loss"] == pytest.approx(-np.log(p).mean())
    after, before = report["accuracy"]["after"], report["accuracy"]["before"]
    assert after["retain_change"] == after["retain"]["accuracy"] / before["retain"]["accuracy"] - 1
    assert before["retain_change"] == 0


def test_the_knock_out_is_a_logit_of_minus_infinity(report: dict[str, Any]) -> None:
    logits = forgetful().with_mask(None).logits(TEST[0])
    logits[:, 1] = -np.inf
    right = logits.argmax(axis=1) == TEST[1]
    row = report["accuracy"]["knock_out"]
    assert row["retain"]["accuracy"] == right[TEST[1] != 1].mean()
    assert row["forget"]["accuracy"] == 0
    assert row["forget"]["loss"] is None
    assert np.array_equal(subject_of(forgetful()).logits["knock_out"][0], logits)


@pytest.mark.parametrize("parameters", [{}, {"gate_unused": True}, {"value_init": "normal", "decoder": "sum"}])
def test_the_oracle_is_exact_forgetting_bit_for_bit(parameters: dict[str, Any]) -> None:
    exact = fitted(**parameters)
    exact.forget(1, by="exact")
    wanted = exact.logits(TEST[0])
    model = forgetful(**parameters)
    assert np.array_equal(subject_of(model).logits["oracle"][0], wanted)
    without = copy.copy(model)  # no copy takes the codes along
    assert "oracle" not in subject_of(without).logits
    assert np.array_equal(subject_of(without, train=TRAIN).logits["oracle"][0], wanted)
    report = make_report(exact, *TEST)
    assert report["distance"]["rows"]["after"]["forget"] == {"divergence": 0.0, "agreement": 1.0}
    assert report["accuracy"]["oracle"]["forget"] == report["accuracy"]["after"]["forget"]


def test_another_order_is_another_re_fit_and_new_keys_are_other_keys(report: dict[str, Any]) -> None:
    logits = subject_of(forgetful(), train=TRAIN).logits
    assert not np.array_equal(logits["oracle"][0], logits["oracle_other_order"][0])
    fresh = fitted()
    fresh.forget(1, *TRAIN, by="exact", reinitialize_keys=True)
    assert np.array_equal(logits["oracle_new_keys"][0], fresh.logits(TEST[0]))


def test_distances_are_those_measured_by_hand(report: dict[str, Any]) -> None:
    logits = subject_of(forgetful()).logits
    p, q = (np.exp(t[0].astype(float)) / np.exp(t[0].astype(float)).sum(1, keepdims=True)
            for t in (logits["after"], logits["oracle"]))  # fmt: skip
    m = (p + q) / 2
    apart = ((p * np.log(p / m)).sum(1) + (q * np.log(q / m)).sum(1)) / 2
    row = report["distance"]["rows"]["after"]
    assert row["forget"]["divergence"] == pytest.approx(apart[TEST[1] == 1].mean())
    assert row["retain"]["divergence"] == pytest.approx(apart[TEST[1] != 1].mean())
    agrees = logits["after"][0].argmax(1) == logits["oracle"][0].argmax(1)
    assert row["forget"]["agreement"] == agrees[TEST[1] == 1].mean()
    assert list(report["distance"]["rows"]) == list(COMPARED)


def test_controls_are_drawn_several_times(report: dict[str, Any]) -> None:
    for name in ("random_mask", "matched_mask"):
        row = report["accuracy"][name]
        low, high = row["forget"]["spread"]
        assert row["draws"] == DRAWS
        assert low <= row["forget"]["accuracy"] <= high
        assert row["forget"]["accuracy"] > report["accuracy"]["after"]["forget"]["accuracy"]
    assert report["accuracy"]["after"]["draws"] == 1
    assert report["accuracy"]["after"]["forget"]["spread"] is None


def test_the_matched_mask_needs_log_or_codes() -> None:
    with_log, with_codes = subject_of(forgetful()), subject_of(forgetful(keep_activations=False))
    assert np.array_equal(with_log.logits["matched_mask"], with_codes.logits["matched_mask"])
    bare = copy.copy(forgetful())
    bare.activations_ = None
    report = make_report(bare, *TEST)
    assert report["accuracy"]["matched_mask"] is None
    assert "there is neither" in why(report, "accuracy.matched_mask")


# -- the curve --------------------------------------------------------------------------------------------------------


def test_the_curve_begins_before_and_passes_the_chosen_size(report: dict[str, Any]) -> None:
    curve, rows = report["curve"], report["accuracy"]
    chosen = curve["pairs"].index(curve["chosen"]["shown_at"])
    for group in ("retain", "forget"):
        assert curve[f"{group}_accuracy"][0] == rows["before"][group]["accuracy"]
        assert curve[f"{group}_accuracy"][chosen] == rows["after"][group]["accuracy"]
        assert curve[f"{group}_loss"][chosen] == pytest.approx(rows["after"][group]["loss"], rel=1e-5, abs=1e-6)
    assert curve["chosen"]["on_the_curve"]
    assert curve["chosen"]["pairs"] == report["summary"]["pairs_masked"]
    assert len(curve["pairs"]) <= POINTS


@pytest.mark.parametrize("source", ["log", "codes", "forget_set", "train"])
def test_the_ranking_is_the_same_wherever_it_is_known_from(source: str, report: dict[str, Any]) -> None:
    model = forgetful()
    if source in ("forget_set", "train"):
        model = copy.copy(model)
    if source != "log":
        model.activations_ = None
    options = {"forget_set": {"forget_set": TRAIN[0][TRAIN[1] == 1]}, "train": {"train": TRAIN}}.get(source, {})
    curve = make_report(model, *TEST, **options)["curve"]
    if source in ("log", "codes"):
        for name, column in report["curve"].items():
            assert name == "ranked_by" or curve[name] == (pytest.approx(column) if "loss" in name else column)
    assert curve["sizes"] == report["curve"]["sizes"]
    for name in (
        "retain_accuracy",
        "forget_accuracy",
    ):  # ties are broken otherwise where nobody knows the other classes
        assert (curve[name][0], curve[name][-1]) == (report["curve"][name][0], report["curve"][name][-1])


def test_without_any_source_there_is_no_curve() -> None:
    model = copy.copy(forgetful())
    model.activations_ = None
    report = make_report(model, *TEST)
    assert report["curve"] is None
    assert "pass forget_set" in why(report, "curve")


def test_the_curve_of_the_last_request_stands_on_the_others() -> None:
    model = forgetful()
    between = {own: model.score(*both(TEST, own)) for own in (3, 0)}
    model.forget(3)
    report = make_report(model, *TEST)
    assert report["curve"]["classes"] == [3]
    assert report["curve"]["forget_accuracy"][0] == between[3]
    assert report["asked_and_done"]["forgotten"] == [1, 3]


def both(data: tuple[Any, Any], label: int) -> tuple[Any, Any]:
    return data[0][data[1] == label], data[1][data[1] == label]


def test_a_mask_off_the_curve_is_marked_by_its_size() -> None:
    model = fitted()
    model.forget([1, 3], pairs=40)  # both together have one ranking
    assert make_report(model, *TEST)["curve"]["chosen"]["on_the_curve"]
    model = fitted()
    model.forget(1, by="examples", examples=2, random_state=0)
    chosen = make_report(model, *TEST)["curve"]["chosen"]
    assert not chosen["on_the_curve"]
    assert chosen["pairs"] == model.mask.sum()
    assert "marked by its number of pairs" in chosen["note"]


def test_long_curves_are_thinned() -> None:
    hits = np.array([np.full(5001, 9), np.where(np.arange(5001) < 2000, 7, 0)])
    found = _thinned(Curve(np.array([10, 10]), hits, hits * 1.0), 3333)
    assert len(found) <= POINTS
    assert {0, 2000, 3333, 5000} <= set(found.tolist())


# -- where the examples go, and what remains --------------------------------------------------------------------------


def test_redirection_counts_predictions(report: dict[str, Any]) -> None:
    model = forgetful()
    (row,) = report["redirection"]
    names, counts = np.unique(model.predict(both(TEST, 1)[0]), return_counts=True)
    assert {d["class"]: d["count"] for d in row["after"]} == dict(zip(names.tolist(), counts.tolist(), strict=True))
    for side in ("after", "oracle", "knock_out"):
        numbers = [d["count"] for d in row[side]]
        assert numbers == sorted(numbers, reverse=True)
        assert sum(numbers) == row["examples"]
    assert 0 <= row["distance"]["after_to_oracle"] <= 1


def test_collateral_names_who_fell(report: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = report["collateral"]["classes"]
    assert sorted(row["class"] for row in rows) == [0, 2, 3]
    changes = [row["change_points"] for row in rows]
    assert changes == sorted(changes)
    model = forgetful()
    assert {row["class"]: row["after"] for row in rows} == {k: model.score(*both(TEST, k)) for k in (0, 2, 3)}
    monkeypatch.setattr(accuracies, "FALL", -101)
    flagged = make_report(model, *TEST)
    assert all(row["flagged"] for row in flagged["collateral"]["classes"])
    assert sum("Retained class" in warning for warning in flagged["warnings"]) == 3
    monkeypatch.setattr(words, "MOST_SENTENCES", 2)
    (said,) = (w for w in make_report(model, *TEST)["warnings"] if "retained classes fell" in w)
    assert all(f"{row['class']} ({row['change_points']:.1f})" in said for row in rows)


def test_remaining_counts_pairs_that_speak_for_the_class(report: dict[str, Any]) -> None:
    model = forgetful()
    for side, mask in (("before", np.zeros_like(model.mask)), ("after", model.mask)):
        live = model.bottleneck_.values[~mask]
        clear = [row for row in live if (row == row.max()).sum() == 1]
        found = report["remaining"]["classes"][0][side]
        assert found["live"] == len(live)
        assert found["speaking"] == len(clear)
        assert found["largest"] == sum(row.argmax() == 1 for row in clear)
        assert found["softmax"] == pytest.approx(np.mean([np.exp(row[1]) / np.exp(row).sum() for row in clear]))
    assert report["remaining"]["state"] == "hidden"
    said = " ".join(report["remaining"]["statements"])
    assert "one flip of the mask restores" in said
    assert "backbone is unchanged" in said
    assert "personal data" in said


def test_the_limits_are_said(report: dict[str, Any]) -> None:
    said = " ".join(report["limits"])
    assert "no claim of legal compliance" in said
    assert "not single examples" in said


# -- cost -------------------------------------------------------------------------------------------------------------


def test_costs_are_counted_as_the_paper_counts() -> None:
    model = forgetful()
    cost = make_report(model, *TEST, backbone_macs=1000)["cost"]
    f, c, d = model.bottleneck_.projection.shape
    m, k, v, epochs = model.pairs, model.top_k, 4, model.epochs
    forget, retain = (TRAIN[1] == 1).sum(), (TRAIN[1] != 1).sum()
    one = f * c * d + c * m * d
    trained = 2 * epochs * retain * c * k * v
    assert cost["bottleneck_per_example"] == one
    assert [cell["multiply_adds"] for cell in cost["rows"][0]["cells"]] == [forget * (1000 + one), forget * one, 0]
    assert [cell["multiply_adds"] for cell in cost["rows"][-1]["cells"]] == [
        epochs * retain * (1000 + one) + trained, retain * one + trained, trained]  # fmt: skip
    unknown = make_report(model, *TEST)["cost"]["rows"][0]["cells"][0]
    assert unknown == {"multiply_adds": None, "formula": f"{forget} x (backbone + {one:,})"}


# -- what is missing, and why -----------------------------------------------------------------------------------------


def reasons_are_complete(report: dict[str, Any]) -> None:
    said = {part["what"] for part in report["skipped"]}
    assert all(part["why"] for part in report["skipped"])
    for name in ("distance", "curve", "redirection"):
        assert (report[name] is None) == (name in said)
    for name in NAMES:
        assert (report["accuracy"][name] is None) == (f"accuracy.{name}" in said)
    for name, row in report["distance"]["rows"].items() if report["distance"] else ():
        assert (row is None) == (f"distance.{name}" in said)


def erased(model: KeyValueClassifier) -> KeyValueClassifier:
    model.erase()
    return model


def exactly(**options: Any) -> KeyValueClassifier:
    model = fitted()
    model.forget(1, **options, by="exact")
    return model


def trained_on() -> KeyValueClassifier:
    model = KeyValueClassifier(**SMALL).partial_fit(*TRAIN, classes=[0, 1, 2, 3])
    model.forget(1)
    return model


def without_rows() -> KeyValueClassifier:
    model = fitted()
    model.forget(rows=[0, 5], by="exact")
    return model


CASES = {
    "masked": forgetful,
    "copied": lambda: copy.copy(forgetful()),
    "no log": lambda: forgetful_without_log(),
    "erased": lambda: erased(forgetful()),
    "exact": exactly,
    "exact, erased": lambda: erased(exactly()),
    "new keys": lambda: exactly(X=TRAIN[0], y=TRAIN[1], reinitialize_keys=True),
    "trained on": trained_on,
    "rows": without_rows,
    "mixed": lambda: mixed(),
}


def forgetful_without_log() -> KeyValueClassifier:
    model = copy.copy(fitted(keep_activations=False))
    model.forget(1, *both(TRAIN, 1), random_state=0)
    return model


def mixed() -> KeyValueClassifier:
    model = forgetful(1)
    model.forget(2, by="exact")
    return model


@pytest.mark.parametrize("case", CASES)
def test_what_is_missing_has_a_reason(case: str) -> None:
    model = CASES[case]()
    report = make_report(model, *TEST)
    reasons_are_complete(report)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert report["accuracy"]["after"] is not None
    assert report["summary"]["text"]


def test_after_erasing_only_the_model_before_can_be_compared_with() -> None:
    model, before = forgetful(), fitted()
    whole = make_report(model, *TEST)
    model.erase()
    alone = make_report(model, *TEST)
    assert alone["accuracy"]["before"] is None
    assert "pass the model before" in why(alone, "before")
    assert alone["collateral"]["classes"][0]["change_points"] is None
    assert alone["remaining"]["state"] == "erased"
    assert alone["remaining"]["classes"][0]["before"] is None
    report = make_report(model, *TEST, before=before)
    for name in ("before", "after", "knock_out", "random_mask", "matched_mask", "oracle"):
        assert report["accuracy"][name] == whole["accuracy"][name]
    assert report["distance"]["rows"]["after"] == whole["distance"]["rows"]["after"]


def test_masks_and_re_fits_together_are_compared_with_the_model_before_both() -> None:
    report = make_report(mixed(), *TEST)
    own = np.isin(TEST[1], [1, 2])
    assert report["accuracy"]["before"]["forget"]["accuracy"] == fitted().score(TEST[0][own], TEST[1][own])
    assert "no size" in why(report, "curve")


def test_single_examples_leave_all_classes() -> None:
    report = make_report(without_rows(), *TEST)
    assert report["accuracy"]["after"]["forget"] is None
    assert report["accuracy"]["after"]["retain"]["examples"] == len(TEST[1])
    assert report["redirection"] is None
    assert "only single examples" in why(report, "accuracy.knock_out")


@pytest.mark.filterwarnings("ignore:.*of the retained classes:UserWarning")
def test_restored_requests_are_no_longer_measured() -> None:
    model = forgetful()
    model.forget(2)
    model.restore(1)
    report = make_report(model, *TEST)
    assert report["asked_and_done"]["forgotten"] == [2]
    assert [r["state"] for r in report["asked_and_done"]["requests"]] == ["restored", "masked"]
    model.restore(2)
    with pytest.raises(InputError, match="no request is in force; forget something first"):
        make_report(model, *TEST)


def test_what_cannot_be_reported_is_refused() -> None:
    model = forgetful()
    retained = TEST[1] != 1
    with pytest.raises(InputError, match="X has no example of class 1, which was forgotten: a report needs"):
        make_report(model, TEST[0][retained], TEST[1][retained])
    with pytest.raises(InputError, match="X has no example of a retained class: a report needs"):
        make_report(model, *both(TEST, 1))
    with pytest.raises(InputError, match="80 examples and 79 labels"):
        make_report(model, TEST[0], TEST[1][:-1])
    with pytest.raises(InputError, match="label 9 was never seen"):
        make_report(model, TEST[0], np.where(TEST[1] == 2, 9, TEST[1]))
    with pytest.raises(InputError, match="before is another model"):
        make_report(model, *TEST, before=fitted(pairs=17))


def test_a_model_that_still_recognises_the_class_is_warned_of() -> None:
    model = fitted()
    model.forget(1, pairs=1)
    report = make_report(model, *TEST)
    right = report["accuracy"]["after"]["forget"]["right"]
    assert right
    assert f"{right} of 20 forgotten test examples are still recognised." in report["warnings"]
