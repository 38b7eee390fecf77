"""Forgetting as a user asks for it: what is masked, that it is undone bit for bit, and that erasing is final."""

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import excise
import excise.evaluation
from conftest import SMALL, blobs
from excise import InputError, KeyValueClassifier
from excise.bottleneck.reference import NO_PAIR
from excise.forgetting import sizes
from excise.forgetting.masks import activation_counts
from excise.forgetting.requests import unpack

NAMES = np.array(["ant", "bee", "cat", "dog", "eel"])
X, Y = blobs(300, classes=5)
LABELS = NAMES[Y]
TEST, _ = blobs(100, classes=5, seed=1)


def fitted(**changes: Any) -> KeyValueClassifier:
    return KeyValueClassifier(**SMALL | {"pairs": 48} | changes).fit(X, LABELS)


@pytest.fixture(scope="module")
def base() -> KeyValueClassifier:
    return fitted()


@pytest.fixture
def model(base: KeyValueClassifier) -> KeyValueClassifier:
    """A copy with the training codes, to be changed at will."""
    return twin(base)


def twin(model: KeyValueClassifier) -> KeyValueClassifier:
    other = copy.copy(model)
    other.__dict__.update(model.__dict__)
    return other


def masks_of(model: KeyValueClassifier) -> Any:
    return model.bottleneck_.keys.shape[:2]


# -- what a request does ----------------------------------------------------------------------------------------------


def test_from_logs_as_much_is_masked_as_the_others_can_spare(model: KeyValueClassifier) -> None:
    counts = activation_counts(model.training_codes_[LABELS == "cat"], 48)
    others = activation_counts(model.training_codes_[LABELS != "cat"], 48)
    record = model.forget("cat")
    allowed = sizes.DISPLACED * np.sqrt(counts.sum() / (counts + others).sum())
    covered, displaced = (table[model.mask].sum() / table.sum() for table in (counts, others))
    assert covered >= sizes.COVERED
    assert displaced <= allowed or counts[model.mask].sum() - counts[model.mask].min() < sizes.COVERED * counts.sum()
    left = others[(counts > 0) & ~model.mask]
    assert not len(left) or displaced + left.min() / others.sum() > allowed or covered < sizes.COVERED
    assert record.masked == record.size == model.mask.sum()
    assert record.per_codebook == model.mask.sum(axis=1).tolist()
    assert record.covered == pytest.approx(counts[model.mask].sum() / counts.sum())
    assert (record.examples_read, record.multiply_adds) == (0, 0)
    assert record.tie is None
    assert record is not model.requests_[0]
    assert record.milliseconds is not None
    assert record.milliseconds > 0


def test_the_class_is_forgotten_and_the_others_are_not(model: KeyValueClassifier) -> None:
    X, y = blobs(400, features=16, classes=5)
    X, y, X_test, y_test = X[:300], NAMES[y[:300]], X[300:], NAMES[y[300:]]
    model = KeyValueClassifier(**SMALL | {"codebooks": 32, "pairs": 64, "key_dim": 3}).fit(X, y)
    before = model.score(X_test, y_test)
    model.forget("cat")
    gone = y_test == "cat"
    assert model.score(X_test[gone], y_test[gone]) == 0
    assert model.score(X_test[~gone], y_test[~gone]) > before - 0.1


@pytest.mark.parametrize("size", [1, 7, 40])
def test_a_number_of_pairs_masks_the_most_activated(model: KeyValueClassifier, size: int) -> None:
    counts = activation_counts(model.training_codes_[LABELS == "cat"], 48).reshape(-1)
    record = model.forget("cat", pairs=size)
    mask = model.mask.reshape(-1)
    assert mask.sum() == size
    assert counts[mask].min() >= counts[~mask].max()
    cut = counts[mask].min()
    assert record.tie == {
        "activations": cut,
        "pairs": (counts == cut).sum(),
        "masked": (counts[mask] == cut).sum(),
    }


def test_more_pairs_than_the_class_activates_are_those(model: KeyValueClassifier) -> None:
    counts = activation_counts(model.training_codes_[LABELS == "cat"], 48)
    record = model.forget("cat", pairs=8 * 48)
    assert np.array_equal(model.mask, counts > 0)
    assert record.why == "as asked; the forget set activates no more"
    assert record.size == record.masked == (counts > 0).sum()


def test_the_same_mask_from_the_log_the_codes_and_the_features(base: KeyValueClassifier) -> None:
    forget = X[LABELS == "cat"]
    masks = []
    for kept, features in ((True, None), (False, None), (True, forget)):
        model = twin(base)
        model.activations_ = base.activations_ if kept else None
        record = model.forget("cat", features, pairs=30)
        masks.append(model.mask)
        assert record.examples_read == (0 if features is None else len(forget))
        assert (record.multiply_adds > 0) == (features is not None)
    assert all(np.array_equal(mask, masks[0]) for mask in masks)


def test_ties_go_to_the_pair_that_others_select_least(model: KeyValueClassifier) -> None:
    counts = activation_counts(model.training_codes_[LABELS == "cat"], 48)
    others = activation_counts(model.training_codes_[LABELS != "cat"], 48)
    record = model.forget("cat", pairs=30)
    assert record.tie is not None
    tied = counts == record.tie["activations"]
    assert others[tied & model.mask].max() <= others[tied & ~model.mask].min()


def test_examples_mask_all_pairs_that_any_of_them_selects(model: KeyValueClassifier) -> None:
    forget = X[LABELS == "cat"]
    record = model.forget("cat", forget, by="examples", examples=len(forget), random_state=0)
    counts = activation_counts(model.training_codes_[LABELS == "cat"], 48)
    assert np.array_equal(model.mask, counts > 0)
    assert record.size == len(forget)


def test_examples_are_drawn_without_replacement_and_by_the_seed(base: KeyValueClassifier) -> None:
    forget = X[LABELS == "cat"]
    drawn = []
    for seed in (0, 0, 1):
        model = twin(base)
        model.forget("cat", forget, by="examples", examples=3, random_state=seed)
        drawn.append(model.mask)
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])
    some = activation_counts(base.codes(forget), 48) > 0
    assert not (drawn[0] & ~some).any()
    assert drawn[0].sum() <= 3 * 8


def test_training_codes_serve_where_no_features_are_given(base: KeyValueClassifier) -> None:
    model = twin(base)
    model.forget("cat", by="examples", examples=5, random_state=0)
    assert 0 < model.mask.sum() <= 5 * 8


def test_a_masked_pair_is_never_selected_and_others_keep_their_logits(model: KeyValueClassifier) -> None:
    before, codes = model.logits(TEST), model.codes(TEST)
    model.forget("cat")
    touched = model.mask[np.arange(8)[:, None], codes].any(axis=(1, 2))
    now = model.codes(TEST)
    assert not model.mask[np.broadcast_to(np.arange(8)[:, None], now.shape[1:]), np.where(now == NO_PAIR, 0, now)].any()
    assert np.array_equal(model.logits(TEST)[~touched], before[~touched])


def test_several_classes_at_once_are_those_in_sequence_whatever_the_order(base: KeyValueClassifier) -> None:
    masks = []
    for requests in (["ant", "cat"], ["cat"], ["ant"]), (["ant"], ["cat"]), (["cat"], ["ant"]):
        model = twin(base)
        for request in requests if isinstance(requests[0], list) and len(requests) == 2 else [["ant", "cat"]]:
            model.forget(request)
        masks.append(model.mask)
    assert all(np.array_equal(mask, masks[0]) for mask in masks)


def test_a_second_request_ranks_live_pairs_only(model: KeyValueClassifier) -> None:
    model.forget("ant")
    before = model.mask
    record = model.forget("bee", pairs=20)
    assert (model.mask & ~before).sum() == 20 == record.masked
    assert record.overlapping == unpack(model.requests_[1].mask, masks_of(model)).sum() - 20


def test_a_class_stays_forgotten_when_an_earlier_request_is_restored(base: KeyValueClassifier) -> None:
    model, alone = twin(base), twin(base)
    model.forget("ant")
    model.forget("bee")
    model.restore(1)
    alone.forget("bee")
    assert np.array_equal(model.mask, alone.mask)


def test_the_gate_of_unused_pairs_stays(base: KeyValueClassifier) -> None:
    model = fitted(gate_unused=True)
    gate = model.mask
    assert gate.any()
    model.forget("cat")
    assert not (gate & ~model.mask).any()
    model.restore(1)
    assert np.array_equal(model.mask, gate)


def test_records_are_plain_data(model: KeyValueClassifier) -> None:
    record = model.forget(["cat", "ant"], X, LABELS, random_state=0, retain_budget=1)
    again = json.loads(json.dumps(record.to_dict()))
    assert again["classes"] == ["ant", "cat"]
    assert again["budget"]["live"] == 8 * 48 - model.mask.sum()
    assert "milliseconds" not in record.to_dict(timed=False)


def test_integer_labels_are_found_by_their_text() -> None:
    model = KeyValueClassifier(**SMALL).fit(X, Y)
    assert model.forget("3").classes == [3]


# -- how many ---------------------------------------------------------------------------------------------------------


def clear(seed: int = 0) -> tuple[Any, Any]:
    """Features of classes that are easy to tell, which the model below learns well."""
    features, y = blobs(800, features=16, classes=5)
    own = np.random.default_rng(seed).permutation(800)
    return features[own], NAMES[y[own]]


@pytest.fixture(scope="module")
def learned() -> KeyValueClassifier:
    features, y = clear()
    return KeyValueClassifier(**SMALL | {"codebooks": 32, "pairs": 64, "key_dim": 3}).fit(features[:500], y[:500])


@pytest.mark.parametrize("by", ["activations", "examples"])
@pytest.mark.parametrize("source", ["log", "features"])
def test_held_out_examples_choose_the_size_and_say_how_sure_it_is(
    by: str, source: str, learned: KeyValueClassifier
) -> None:
    model, (features, y) = twin(learned), clear()
    held_out = (features[500:], y[500:])
    forget = None if source == "log" else features[:500][y[:500] == "cat"]
    before = model.score(features[500:][y[500:] != "cat"], y[500:][y[500:] != "cat"])
    record = model.forget("cat", forget, by=by, held_out=held_out, random_state=0)
    unseen = features[500:][y[500:] == "cat"]
    assert not (model.predict(unseen) == "cat").any()
    assert record.sure["recognised"] == 0
    assert record.sure["held_out_examples"] == len(unseen)
    assert record.sure["accuracy_at_most"] == pytest.approx(1 - 0.05 ** (1 / len(unseen)))
    assert record.sure["retain_before"] == pytest.approx(before)
    assert record.why == "brings held-out examples to accuracy 0, with a margin"
    assert record.multiply_adds > 0


def test_held_out_examples_ask_for_no_less_than_the_counts_do(learned: KeyValueClassifier) -> None:
    model, from_log, (features, y) = twin(learned), twin(learned), clear()
    model.forget("cat", held_out=(features[500:], y[500:]))
    from_log.forget("cat")
    assert not (from_log.mask & ~model.mask).any()


def test_partial_forgetting_stops_at_a_loss_or_an_accuracy(learned: KeyValueClassifier) -> None:
    features, y = clear()
    own = y[500:] == "cat"
    held_out = (features[500:][own], y[500:][own])
    found = [twin(learned).forget("cat", held_out=held_out, target_loss=loss).size for loss in (0.3, 0.6, 1.2)]
    assert found == sorted(found)
    assert found[0] < twin(learned).forget("cat", held_out=held_out).size
    for target in (0.5, 0.2):
        model = twin(learned)
        record = model.forget("cat", held_out=held_out, target_accuracy=target)
        assert record.sure["recognised"] == (model.predict(held_out[0]) == "cat").sum() <= target * len(held_out[0])


def test_a_mask_that_costs_too_much_is_refused(model: KeyValueClassifier) -> None:
    before = model.logits(TEST)
    with pytest.raises(InputError, match=r"^masking \d+ pairs, .* would lower accuracy on the 240 retained examples "):
        model.forget("cat", X, LABELS, pairs=8 * 48, retain_budget=0)
    assert np.array_equal(model.logits(TEST), before)
    assert not model.requests_


def test_a_budget_that_runs_out_is_said(model: KeyValueClassifier) -> None:
    with pytest.warns(UserWarning, match=r"^\d+% of the retained classes' activations now go to other pairs"):
        model.forget(["ant", "bee", "cat", "dog"])
    assert model.budget()["displaced"] > 0.5
    assert model.budget()["live_per_codebook"] == (~model.mask).sum(axis=1).tolist()


def test_displaced_is_the_share_of_retained_activations_on_masked_pairs(model: KeyValueClassifier) -> None:
    model.forget(["ant", "cat"])
    kept = activation_counts(model.training_codes_[~np.isin(LABELS, ["ant", "cat"])], 48)
    assert model.budget()["displaced"] == pytest.approx(kept[model.mask].sum() / kept.sum())


# -- the curve --------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*of the retained classes:UserWarning")
@pytest.mark.parametrize("by", ["activations", "examples"])
@pytest.mark.parametrize("changes", [{}, {"top_k": 3, "decoder": "sum"}, {"gate_unused": True}])
def test_the_curve_is_what_every_size_gives(by: str, changes: dict[str, Any]) -> None:
    base = fitted(**changes)
    base.forget("eel")
    y = NAMES[np.arange(100) % 5]
    curve = excise.forgetting_curve(base, TEST, y, ["cat"], by=by, random_state=3)
    kept = np.isin(y, ["ant", "bee", "dog"])
    assert (curve.retain_examples, curve.forget_examples) == (60, 20)
    step = max(1, curve.sizes[-1] // 20)
    for size in [*curve.sizes[::step], curve.sizes[-1]]:
        model = twin(base)
        if size and by == "activations":
            model.forget("cat", pairs=int(size))
        elif size:
            model.forget("cat", by="examples", examples=int(size), random_state=3)
        assert curve.masked[size] == (model.mask & ~base.mask).sum()
        right = model.predict(TEST) == y
        assert curve.retain_accuracy[size] == right[kept].mean()
        assert curve.forget_accuracy[size] == right[y == "cat"].mean()
        assert curve.forget_loss[size] == pytest.approx(
            excise.evaluation.evaluate(model, TEST[y == "cat"], y[y == "cat"]).loss
        )


def test_a_curve_is_thinned_to_points(model: KeyValueClassifier) -> None:
    curve = model.forgetting_curve(TEST, NAMES[np.arange(100) % 5], "cat")
    few = curve.to_dict(points=5)
    assert few["points"]["size"][0] == 0
    assert few["points"]["size"][-1] == curve.sizes[-1]
    assert len(few["points"]["size"]) <= 5
    assert json.loads(json.dumps(curve.to_dict()))["points"]["forget_accuracy"] == curve.forget_accuracy.tolist()


# -- exactly ----------------------------------------------------------------------------------------------------------


def test_exact_is_what_training_without_it_gives(base: KeyValueClassifier) -> None:
    model = twin(base)
    record = model.forget("cat", by="exact")
    kept = LABELS != "cat"
    recipe = base.recipe_
    assert recipe is not None
    values, history = recipe.train(
        recipe.start(base.bottleneck_.values.shape),
        base.training_codes_[kept],
        np.searchsorted(base.classes_, LABELS[kept]),
    )
    assert np.array_equal(model.bottleneck_.values, values)
    assert model.history_ == history
    assert record.examples_read == kept.sum()
    assert record.state == "exact"
    assert model.mask.sum() == 0


def test_exact_forgets_single_examples_of_any_class(base: KeyValueClassifier) -> None:
    model, again = twin(base), twin(base)
    model.forget(by="exact", rows=[3, 17, 60])
    again.forget(by="exact", rows=[3])
    again.forget(by="exact", rows=[17, 60])
    assert np.array_equal(model.bottleneck_.values, again.bottleneck_.values)
    assert not np.array_equal(model.bottleneck_.values, base.bottleneck_.values)
    assert model.requests_[0].rows == [3, 17, 60]


def test_exact_from_features_is_exact_from_codes(base: KeyValueClassifier) -> None:
    model, other = twin(base), pickle.loads(pickle.dumps(base))
    model.forget("cat", by="exact")
    other.forget("cat", X, LABELS, by="exact")
    assert np.array_equal(model.bottleneck_.values, other.bottleneck_.values)


def test_new_keys_are_a_model_that_never_saw_the_class(base: KeyValueClassifier) -> None:
    model = twin(base)
    model.forget("cat", X, LABELS, by="exact", reinitialize_keys=True)
    kept = LABELS != "cat"
    never = KeyValueClassifier(**model.get_params()).fit(X[kept], LABELS[kept])
    assert np.array_equal(model.bottleneck_.keys, never.bottleneck_.keys)
    assert model.classes_.tolist() == NAMES.tolist()
    assert not (model.predict(X) == "cat").any()
    with pytest.raises(InputError, match=r"^request 1 was erased"):
        model.restore(1)


# -- undo, and finish -------------------------------------------------------------------------------------------------

moves = st.lists(
    st.one_of(
        st.tuples(
            st.just("forget"),
            st.sampled_from([*NAMES]),
            st.sampled_from(["auto", 5, 40]),
            st.sampled_from(["log", "examples", "exact", "features"]),
        ),
        st.tuples(st.just("restore"), st.integers(1, 6)),
        st.tuples(st.just("erase")),
    ),
    min_size=1,
    max_size=9,
)


def carry_out(model: KeyValueClassifier, move: Any) -> None:
    if move[0] == "restore":
        model.restore(move[1])
    elif move[0] == "erase":
        model.erase()
    elif move[3] == "exact":
        model.forget(move[1], by="exact")
    elif move[3] == "features":
        model.forget(move[1], X[move[1] == LABELS], pairs=move[2], random_state=0)
    elif move[3] == "examples":
        model.forget(move[1], by="examples", examples=4, random_state=0)
    else:
        model.forget(move[1], pairs=move[2])


@pytest.mark.filterwarnings("ignore:.*live pairs left|.*of the retained classes:UserWarning")
@given(moves)
@settings(max_examples=60)
def test_any_sequence_of_requests_is_undone_in_any_order(base: KeyValueClassifier, sequence: Any) -> None:
    """After every move the model is the base under the masks of what is in force; a refused move changes nothing."""
    model = twin(base)
    for move in sequence:
        before = (model.logits(TEST), model.requests_, model.mask)
        try:
            carry_out(model, move)
        except InputError:
            assert np.array_equal(model.logits(TEST), before[0])
            assert model.requests_ is before[1]
            continue
        if move[0] == "erase":
            assert np.array_equal(model.logits(TEST), before[0])
            assert np.array_equal(model.mask, before[2])
            assert not model.bottleneck_.keys[model.mask].any()
            assert not model.bottleneck_.values[model.mask].any()
        in_force = [unpack(r.mask, masks_of(model)) for r in model.requests_ if r.state == "masked"]
        gone = model.erased_ if model.erased_ is not None else np.zeros(masks_of(model), bool)
        assert np.array_equal(model.mask, np.logical_or.reduce([gone, *in_force]))
        exact = [r for r in model.requests_ if r.by == "exact" and r.state in ("exact", "erased")]
        if model.erased_ is None:
            kept = ~np.isin(LABELS, [name for r in exact for name in r.classes])
            values = base.bottleneck_.values
            if exact:
                assert base.recipe_ is not None
                start = base.recipe_.start(values.shape)
                labels = np.searchsorted(base.classes_, LABELS)
                values = base.recipe_.train(start, base.training_codes_, labels, kept.nonzero()[0])[0]
            assert np.array_equal(model.bottleneck_.values, values)
    left = [r.id for r in model.requests_ if r.state in ("masked", "exact")]
    for id in sorted(left, key=lambda i: (i * 7) % 5) if model.erased_ is None else []:
        model.restore(id)
    if model.erased_ is None:
        assert np.array_equal(model.logits(TEST), base.logits(TEST))
        assert model.history_ == base.history_


def test_erasing_leaves_nothing_of_the_class(base: KeyValueClassifier) -> None:
    model = twin(base)
    model.forget("cat")
    mask, logits = model.mask, model.logits(TEST)
    (record,) = model.erase()
    assert record.state == "erased"
    assert np.array_equal(model.logits(TEST), logits)
    assert not model.bottleneck_.keys[mask].any()
    assert not model.bottleneck_.values[mask].any()
    assert model.activations_ is not None
    assert len(model.activations_.of(2)[0]) == 0
    assert len(model.activations_.of(1)[0]) > 0
    assert "cat" not in model.training_labels_
    assert len(model.training_codes_) == len(model.training_rows_) == (LABELS != "cat").sum()
    assert model.requests_[0].mask is None
    assert base.bottleneck_.values[mask].any()


def test_erasing_single_examples_takes_them_out_of_log_and_codes(base: KeyValueClassifier) -> None:
    model, rows = twin(base), [3, 17, 60]
    model.forget(by="exact", rows=rows)
    model.erase()
    kept = np.delete(np.arange(300), rows)
    assert model.training_rows_.tolist() == kept.tolist()
    assert model.activations_ is not None
    for label, name in enumerate(NAMES):
        counts = activation_counts(base.training_codes_[kept][LABELS[kept] == name], 48).reshape(-1)
        pairs, logged = model.activations_.of(label)
        assert np.array_equal(pairs, counts.nonzero()[0])
        assert np.array_equal(logged, counts[pairs])
    again = copy.copy(model)
    again.forget("ant", X, LABELS, by="exact")
    assert not np.isin(again.training_rows_, rows).any() if hasattr(again, "training_rows_") else True


def test_erased_pairs_stay_masked_whatever_mask_is_set(model: KeyValueClassifier) -> None:
    model.forget("cat")
    model.erase()
    gone = model.mask
    assert np.array_equal(model.with_mask(None).mask, gone)
    model.forget("ant")
    model.restore(2)
    assert np.array_equal(model.mask, gone)


def test_training_goes_on_after_forgetting_but_not_on_what_was_forgotten(model: KeyValueClassifier) -> None:
    model.forget("cat")
    with pytest.raises(InputError, match=r"^y has class 'cat', which request 1 made the model forget: leave its rows"):
        model.partial_fit(X, LABELS)
    kept = LABELS != "cat"
    model.partial_fit(X[kept], LABELS[kept])
    assert not (model.predict(X[~kept]) == "cat").mean() > 0.5
    with pytest.raises(InputError, match=r"^by='exact' repeats what fit did, which this model does not know"):
        model.forget("ant", by="exact")


def test_partial_fit_keeps_a_log(base: KeyValueClassifier) -> None:
    model = KeyValueClassifier(**SMALL | {"pairs": 48}).partial_fit(X, LABELS, classes=NAMES)
    once = model.activations_
    model.partial_fit(X, LABELS)
    assert once is not None
    assert model.activations_ is not None
    assert np.array_equal(model.activations_.of(1)[0], once.of(1)[0])
    assert np.array_equal(model.activations_.of(1)[1], 2 * once.of(1)[1])
    model.forget("cat")


def test_copies_and_pickles_keep_requests_and_drop_codes(model: KeyValueClassifier) -> None:
    model.forget("cat")
    for other in (copy.copy(model), pickle.loads(pickle.dumps(model))):
        assert np.array_equal(other.logits(TEST), model.logits(TEST))
        assert not hasattr(other, "training_codes_")
        other.restore(1)
        assert not other.mask.any()
    assert model.mask.any()


# -- what a privacy engineer tries -------------------------------------------------------------------------------------


def test_new_keys_learn_nothing_again_and_keep_row_numbers(base: KeyValueClassifier) -> None:
    model = twin(base)
    model.forget(by="exact", rows=[3])
    model.erase()
    record = model.forget("cat", X, LABELS, by="exact", reinitialize_keys=True)
    assert record.examples_read == (LABELS != "cat").sum() - (LABELS[3] != "cat")
    assert 3 not in model.training_rows_
    assert (LABELS[model.training_rows_] == model.training_labels_).all()
    assert record.multiply_adds > 0


def test_rows_are_erased_from_a_log_that_cannot_tell_them(base: KeyValueClassifier) -> None:
    model = twin(base)
    model.forget(by="exact", rows=[3, 17])
    loaded = copy.copy(model)
    with pytest.warns(UserWarning, match=r"^the log of activations was erased whole, because without training codes"):
        loaded.erase()
    assert loaded.activations_ is None


def test_features_are_ranked_by_what_the_log_says_of_the_others(base: KeyValueClassifier) -> None:
    """Copies of the forget set, or codes under the masks of others, change neither what others select nor the size."""
    cats = X[LABELS == "cat"]
    once, thrice, log = twin(base), twin(base), twin(base)
    log.forget("cat")
    once.forget("cat", cats)
    thrice.forget("cat", np.concatenate([cats] * 3))
    assert np.array_equal(once.mask, log.mask)
    assert np.array_equal(thrice.mask, log.mask)


def test_unused_pairs_are_erased_when_asked(model: KeyValueClassifier) -> None:
    """Many of their keys are copies of single examples, of the forgotten class too."""
    model.forget("cat")
    model.erase(unused=True)
    kept = activation_counts(model.training_codes_, 48)
    assert model.erased_ is not None
    assert model.erased_[kept == 0].all()
    assert not model.bottleneck_.keys[kept == 0].any()


def test_records_share_nothing_with_the_model(model: KeyValueClassifier) -> None:
    record = model.forget("cat", by="exact")
    assert record.before is None
    record.classes.clear()
    record.to_dict()["budget"].clear()
    assert model.requests_[0].classes == ["cat"]
    (erased,) = model.erase()
    assert erased.before is erased.mask is None


def test_a_mask_set_by_hand_keeps_the_requests_that_it_holds(model: KeyValueClassifier) -> None:
    model.forget("cat")
    same = model.with_mask(model.mask)
    assert [r.state for r in same.requests_] == ["masked"]
    assert not model.with_mask(None).requests_


def test_a_log_that_misses_examples_is_dropped() -> None:
    model = KeyValueClassifier(**SMALL | {"pairs": 48}).partial_fit(X, LABELS, classes=NAMES)
    model.set_params(keep_activations=False).partial_fit(X, LABELS)
    assert model.activations_ is None


def test_a_warning_that_is_an_error_changes_nothing(model: KeyValueClassifier) -> None:
    before = dict(model.__dict__)
    with pytest.raises(UserWarning):  # as all warnings are errors here
        model.forget(["ant", "bee", "cat", "dog"])
    assert model.__dict__ == before


def test_a_class_without_examples_has_nothing_to_forget() -> None:
    model = KeyValueClassifier(**SMALL).partial_fit(X, LABELS, classes=[*NAMES, "fox"])
    with pytest.raises(
        InputError, match=r"^no training example of class 'fox' is in the log: pass examples of it as X$"
    ):
        model.forget("fox")


# -- what is refused, in one sentence ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"classes": "kat"}, r"^the model knows no class 'kat': did you mean 'cat'\? its classes are 'ant', 'bee', "),
        ({"classes": 7}, r"^the model knows no class 7: its classes are 'ant', "),
        ({}, r"^name what to forget: classes=\.\.\., one label or a list of them$"),
        ({"classes": []}, r"^the list of classes is empty: name at least one to forget$"),
        ({"classes": "dog"}, r"^class 'dog' is already forgotten, by request 1: restore\(1\) brings it back$"),
        (
            {"classes": ["ant", "bee", "cat", "eel"]},
            r"^that would forget all 5 classes: leave at least one, or delete the model$",
        ),
        ({"classes": "cat", "pairs": 10**6}, r"^pairs is 1,000,000, and only \d+ are live: ask for at most so many$"),
        ({"classes": "cat", "pairs": 0}, r"^pairs is 0: it must be 'auto' or a whole number of at least 1$"),
        ({"classes": "cat", "pairs": True}, r"^pairs is True: it must be 'auto' or"),
        ({"classes": "cat", "examples": 3}, r"^examples is for by='examples'; for by='activations' set pairs$"),
        ({"classes": "cat", "by": "examples", "pairs": 3}, r"^pairs is for by='activations'; for by='examples' set"),
        (
            {"classes": "cat", "by": "examples", "examples": 61, "X": X[LABELS == "cat"]},
            r"^examples is 61, and the forget set has 60: ask for at most so many$",
        ),
        ({"classes": "cat", "held_out": X}, r"^held_out must be a pair \(X, y\): features that the model was not"),
        ({"classes": "cat", "by": "magic"}, r"^by is 'magic': use one of 'activations', 'examples', 'exact'$"),
        (
            {"classes": "cat", "X": X[LABELS == "ant"], "y": LABELS[LABELS == "ant"]},
            r"^there is no example of class 'cat' among those given: pass some, or leave them out$",
        ),
        ({"classes": ["cat", "ant"], "X": X}, r"^X has examples of several classes: say of which class each row is"),
        ({"classes": "cat", "X": X, "y": LABELS[:5]}, r"^there are 300 examples and 5 labels: pass as many of one"),
        ({"classes": "cat", "X": X[:5], "y": ["x"] * 5}, r"^the model knows no class 'x': its classes are"),
        ({"classes": "cat", "target_loss": 1.0}, r"^a target of loss 1 shows only on examples that training has"),
        ({"classes": "cat", "target_accuracy": 2}, r"^target_accuracy is 2: it must be a number from 0 to 1$"),
        ({"classes": "cat", "target_accuracy": 0.1, "pairs": 5}, r"^target_accuracy and target_loss choose a size: "),
        ({"classes": "cat", "rows": [1]}, r"^masking cannot forget single examples: .* by='exact', which trains the"),
        ({"classes": "cat", "y": LABELS}, r"^y are labels of X: pass both, or neither$"),
        (
            {"classes": "cat", "reinitialize_keys": True},
            r"^reinitialize_keys is for by='exact'; a mask leaves the keys",
        ),
        (
            {"classes": "cat", "by": "exact", "pairs": 3},
            r"^pairs is about masks, and by='exact' masks nothing: leave it",
        ),
        ({"classes": "cat", "by": "exact", "held_out": 7}, r"^held_out is about masks, and by='exact' masks nothing"),
        ({"classes": "cat", "by": "exact", "X": X, "y": LABELS}, r"^the model holds the codes of its training data: l"),
        ({"classes": np.array([[1, 2]])}, r"^classes must be one label or a flat list of them$"),
        (
            {"classes": "cat", "X": X, "y": LABELS[:, None]},
            r"^features must be rows \(n, f\) and labels \(n,\): X has 2",
        ),
        ({"by": "exact", "rows": [[1], [2, 3]]}, r"^rows must be numbers of training examples, from 0 to 299$"),
        ({"by": "exact", "rows": [300]}, r"^rows must be numbers of training examples, from 0 to 299$"),
        ({"by": "exact", "rows": []}, r"^rows must be numbers of training examples, from 0 to 299$"),
        ({"by": "exact", "rows": list(range(300))}, r"^nothing would be retained: leave some of the training data"),
        ({"classes": "cat", "by": "exact", "reinitialize_keys": True}, r"^reinitialize_keys needs the training data"),
        (
            {"classes": "cat", "by": "exact", "reinitialize_keys": True, "X": X, "y": LABELS},
            r"^new keys end what earlier requests masked: restore or erase those first$",
        ),
    ],
)
def test_misuse_is_one_sentence_and_changes_nothing(
    model: KeyValueClassifier, arguments: dict[str, Any], sentence: str
) -> None:
    model.forget("dog")
    before = dict(model.__dict__)
    with pytest.raises(InputError, match=sentence):
        model.forget(**arguments)
    assert model.__dict__ == before


def test_labels_of_another_kind_are_one_sentence(model: KeyValueClassifier) -> None:
    numbered = KeyValueClassifier(**SMALL).fit(X, Y)
    with pytest.raises(InputError, match="y has '0', and the model's labels are as 0: pass labels of that kind"):
        numbered.forgetting_curve(X, Y.astype(str), "3")
    with pytest.raises(InputError, match="the model knows no class 'caat': did you mean 'cat'"):
        model.forgetting_curve(X, np.full(len(X), "caat"), "cat")


def test_without_a_log_or_codes_data_is_asked_for(model: KeyValueClassifier) -> None:
    bare = copy.copy(fitted(keep_activations=False))
    for by, sentence in (
        (
            "activations",
            r"^this model has no log of activations \(keep_activations=False, erased, or a file of an older",
        ),
        ("examples", r"^by='examples' needs examples: pass the forget set as X, or features from near it"),
        ("exact", r"^by='exact' needs the codes of the training data, which stay in memory"),
    ):
        with pytest.raises(InputError, match=sentence):
            bare.forget("cat", by=by)


def test_restoring_what_cannot_be_is_one_sentence(model: KeyValueClassifier) -> None:
    with pytest.raises(InputError, match=r"^there is no request 1: the model's requests are none$"):
        model.restore(1)
    with pytest.raises(
        InputError, match=r"^there is nothing to erase: no request is in force; forget something first$"
    ):
        model.erase()
    model.forget("cat")
    model.restore(1)
    with pytest.raises(InputError, match=r"^request 1 is restored already$"):
        model.restore(1)
    model.forget("cat")
    model.erase()
    with pytest.raises(
        InputError, match=r"^request 2 was erased: what it forgot is no longer in the model, so nothing"
    ):
        model.restore(2)
    with pytest.raises(InputError, match=r"^class 'cat' is already forgotten, by request 2: for good$"):
        model.forget("cat")
