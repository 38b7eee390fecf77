"""All of a model's forgetting on disk: it goes on as if it had never left memory, or one sentence says why not."""

import json
import re
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import excise
from conftest import NAMES, SMALL, blobs, forged, forgetful
from excise import InputError, KeyValueClassifier, ModelFileError, records
from excise.forgetting.requests import Request
from excise.tensorfile import open_tensors

X, Y = blobs(140, classes=len(NAMES))


@pytest.fixture(scope="module")
def original() -> KeyValueClassifier:
    return forgetful()


@pytest.fixture(scope="module", params=[False, True], ids=["masked", "erased"])
def saved(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[Any, Path]:
    path = tmp_path_factory.mktemp("records") / "model.safetensors"
    model = forgetful(erased=request.param)
    model.save(path)
    return model, path


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("masked") / "model.safetensors"
    forgetful().save(path)
    return path


def told(model: KeyValueClassifier) -> list[dict[str, Any]]:
    return [request.to_dict(timed=False) for request in model.requests_]


def test_all_state_survives(saved: tuple[Any, Path], tmp_path: Path) -> None:
    model, path = saved
    loaded = excise.load(path)
    assert told(loaded) == told(model)
    assert loaded.recipe_ == model.recipe_
    for name in ("base_mask_", "erased_"):
        assert np.array_equal(getattr(loaded, name), getattr(model, name)), name
    for name in ("first", "pairs", "counts", "totals"):
        assert np.array_equal(getattr(loaded.activations_, name), getattr(model.activations_, name)), name
    for ours, theirs in zip(loaded.requests_, model.requests_, strict=True):
        for name in ("mask", "before"):
            a, b = getattr(ours, name), getattr(theirs, name)
            assert (a is None) == (b is None)
            assert a is None or a.tobytes() == b.tobytes()
    assert loaded.logits(X).tobytes() == model.logits(X).tobytes()
    assert loaded.budget() == model.budget()
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_arrays_stay_on_disk_where_nothing_was_erased(masked: Path) -> None:
    loaded = excise.load(masked, verify=False)
    log = loaded.activations_
    assert log is not None
    before = [request.before for request in loaded.requests_ if request.before is not None]
    assert len(before) == 2
    arrays = [loaded.bottleneck_.keys, loaded.bottleneck_.values, loaded.base_mask_, log.pairs, log.counts, *before]
    assert not any(array is None or array.flags.writeable or array.flags.owndata for array in arrays)


def test_a_model_with_nothing_but_erased_exact_requests_stays_mapped(tmp_path: Path) -> None:
    model = KeyValueClassifier(**SMALL).fit(X, NAMES[Y])
    model.forget("ant", by="exact")
    model.erase()
    model.save(tmp_path / "model")
    loaded = excise.load(tmp_path / "model")
    assert not loaded.bottleneck_.values.flags.owndata
    assert loaded.logits(X).tobytes() == model.logits(X).tobytes()


@pytest.mark.filterwarnings("ignore:a codebook has 0 live pairs left")
def test_a_model_of_which_all_pairs_are_erased_survives(tmp_path: Path) -> None:
    model = KeyValueClassifier(**SMALL).fit(X, NAMES[Y]).with_mask(np.ones((8, 16), bool))
    model.forget("ant")
    model.erase()
    model.save(tmp_path / "model")
    loaded = excise.load(tmp_path / "model")
    assert loaded.logits(X).tobytes() == model.logits(X).tobytes()
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "model").read_bytes()


@pytest.mark.parametrize("labels", [[3, 5, 9], [True, False], [0.5, 1.0, 2.0], ["a", "b", "c"]], ids=str)
def test_labels_of_requests_keep_their_type(labels: list[Any], tmp_path: Path) -> None:
    features, y = blobs(60, classes=len(labels))
    model = KeyValueClassifier(**SMALL)
    if type(labels[0]) is float:
        model.fit(features, np.array(["a", "b", "c"])[y])
        model.classes_ = np.array(labels)
    else:
        model.fit(features, np.array(labels)[y])
    first = model.classes_.tolist()[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.forget(first, pairs=5)
    model.save(tmp_path / "model")
    classes = excise.load(tmp_path / "model").requests_[0].classes
    assert classes == [first]
    assert type(classes[0]) is type(first)


def test_parameters_of_other_libraries_are_plain_in_the_recipe(tmp_path: Path) -> None:
    settings = SMALL | {"epochs": np.int64(2), "learning_rate": np.float32(0.5)}
    model = KeyValueClassifier(**settings).fit(X, NAMES[Y])
    model.save(tmp_path / "model")
    assert excise.load(tmp_path / "model").recipe_ == model.recipe_


def test_a_model_without_log_and_recipe_has_none_on_disk(tmp_path: Path) -> None:
    model = KeyValueClassifier(**SMALL, keep_activations=False).partial_fit(X, NAMES[Y], NAMES)
    model.save(tmp_path / "model")
    assert not set(records.LOG) & set(open_tensors(tmp_path / "model").tensors)
    loaded = excise.load(tmp_path / "model")
    assert (loaded.recipe_, loaded.activations_) == (None, None)


# -- in memory or on disk, it is the same -----------------------------------------------------------------------------

steps = st.one_of(
    st.tuples(st.just("forget"), st.sampled_from(NAMES.tolist()), st.sampled_from(["auto", 3, 20])),
    st.tuples(st.just("features"), st.sampled_from(NAMES.tolist())),
    st.tuples(st.just("exact"), st.sampled_from(NAMES.tolist())),
    st.tuples(st.just("rows"), st.lists(st.integers(0, 139), min_size=1, max_size=3)),
    st.tuples(st.just("restore"), st.integers(1, 5)),
    st.tuples(st.just("erase")),
    st.tuples(st.just("save")),
)


def act(model: KeyValueClassifier, step: Any) -> str | None:
    """Take a step, or say why it was refused."""
    what, *rest = step
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if what == "forget":
                model.forget(rest[0], pairs=rest[1])
            elif what == "features":
                model.forget(rest[0], X[NAMES[Y] == rest[0]], pairs=7)
            elif what == "exact":
                model.forget(rest[0], by="exact")
            elif what == "rows":
                model.forget(rows=rest[0], by="exact")
            elif what == "restore":
                model.restore(rest[0])
            elif what == "erase":
                model.erase()
    except InputError as error:
        return str(error)
    return None


@pytest.fixture(scope="module")
def fresh() -> KeyValueClassifier:
    return KeyValueClassifier(**SMALL | {"value_init": "uniform", "epochs": 2}).fit(X, NAMES[Y])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("steps")


@settings(max_examples=60)
@given(taken=st.lists(steps, min_size=2, max_size=9))
def test_whether_it_was_on_disk_in_between_makes_no_difference(
    fresh: KeyValueClassifier, folder: Path, taken: list[Any]
) -> None:
    stays, moves = (fresh.with_mask(None)._take_training(fresh) for _ in range(2))
    for step in taken:
        if step[0] == "save":
            moves.save(folder / "model")
            moves.save_training_codes(folder / "codes")
            moves = excise.load(folder / "model")
            moves.load_training_codes(folder / "codes")
        assert act(stays, step) == act(moves, step)
        assert told(stays) == told(moves)
        assert stays.logits(X).tobytes() == moves.logits(X).tobytes()
        assert stays.budget() == moves.budget()
    stays.save(folder / "a")
    moves.save(folder / "b")
    assert (folder / "a").read_bytes() == (folder / "b").read_bytes()


# -- contents that disagree -------------------------------------------------------------------------------------------


def test_every_field_of_a_request_is_checked() -> None:
    assert {field.name for field in fields(Request)} - {"mask", "before", "milliseconds"} == set(records._FIELDS)


REQUESTS = {
    "a request has 'id' of 0": {"id": 0},
    "a request has 'id' of True": {"id": True},
    "the ids of its requests do not rise": {"id": 7},
    "a request has 'by' of 'magic'": {"by": "magic"},
    "a request has 'by' of ['exact']": {"by": ["exact"]},
    "a request has 'state' of 'lost'": {"state": "lost"},
    "a request has 'classes' of 'ant'": {"classes": "ant"},
    "request 1 is of classes ['yak'], which are not all the model's": {"classes": ["yak"]},
    "request 1 is of classes [], which": {"classes": []},
    "request 1 is of classes ['ant', 'ant'], which": {"classes": ["ant", "ant"]},
    "a request has 'asked' of 0": {"asked": 0},
    "request 1 does not say what was asked": {"asked": None},
    "request 1 is by 'exact' and 'masked'": {"by": "exact", "asked": None},
    "request 1 is by 'activations' and 'exact'": {"state": "exact"},
    "it holds masks of 2 requests, and 1 are in force": {"state": "restored"},
    "the mask of request 1 is not of the size that it says": {"overlapping": 1},
    "request 1 does not say which codebooks it masked": {"masked": 8},
    "request 1 does not say which codebooks it masked; copy": {"per_codebook": [9]},
    "a request has 'size' of -1": {"size": -1},
    "a request has 'why' of 5": {"why": 5},
    "a request has 'share' of 1.5": {"share": 1.5},
    "a request has 'covered' of nan": {"covered": float("nan")},
    "a request has 'tie' of {'a': 1}": {"tie": {"a": 1}},
    "a request has 'sure' of {'a': {}}": {"sure": {"a": {}}},
    "a request has 'budget' of []": {"budget": []},
    "a request has 'rows' of [2, 1]": {"rows": [2, 1]},
    "a request has 'warning' of 1": {"warning": 1},
}


@pytest.mark.parametrize(("sentence", "changes"), REQUESTS.items(), ids=list(REQUESTS))
def test_requests_that_disagree_are_one_sentence(masked: Path, sentence: str, changes: dict[str, Any]) -> None:
    requests = json.loads(open_tensors(masked).metadata["requests"])
    requests[0] |= changes
    with pytest.raises(ModelFileError, match=f"is damaged: .*{re.escape(sentence)}"):
        excise.load(forged(masked, requests=json.dumps(requests)))


def test_a_request_of_a_newer_excise_says_to_upgrade(masked: Path) -> None:
    requests = json.loads(open_tensors(masked).metadata["requests"])
    requests[0]["mood"] = 1
    with pytest.raises(ModelFileError, match=r"by a newer excise \(a request has 'mood'\): upgrade it"):
        excise.load(forged(masked, requests=json.dumps(requests)))
    del requests[0]["mood"], requests[0]["by"]
    with pytest.raises(ModelFileError, match="is damaged: a request has no 'by'"):
        excise.load(forged(masked, requests=json.dumps(requests)))


RECIPES = {
    "no readable 'recipe'": [],
    "its recipe is incomplete": {"epochs": 1},
    "in its recipe, value_init is 'ones'": {"value_init": "ones"},
    "in its recipe, epochs is 0.5": {"epochs": 0.5},
    "its recipe is not made of numbers": {"batch_size": True},
    "its recipe has no seeds": {"order_seed": -1},
    "in its recipe, solver is 'lbfgs'": {"solver": "lbfgs"},
    "its recipe is for decoder 'sum'": {"decoder": "sum"},
    "in its recipe, learning_rate is -1": {"learning_rate": -1},
    "in its recipe, beta1 is 1": {"beta1": 1},
    "in its recipe, epsilon is -1": {"epsilon": -1},
    "in its recipe, gradient_clip is 0": {"gradient_clip": 0},
    "in its recipe, int too large": {"l2": 10**400},
}


@pytest.mark.parametrize(("sentence", "changes"), RECIPES.items(), ids=list(RECIPES))
def test_a_recipe_that_cannot_be_followed_is_one_sentence(masked: Path, sentence: str, changes: Any) -> None:
    recipe = json.loads(open_tensors(masked).metadata["recipe"])
    if changes == {"epochs": 1} or changes == []:
        recipe = changes
    else:
        for name, value in changes.items():
            (recipe if name in recipe else recipe["optimiser"])[name] = value
    with pytest.raises(ModelFileError, match=f"is damaged: .*{re.escape(sentence)}"):
        excise.load(forged(masked, recipe=json.dumps(recipe)))


TENSORS = {
    "its log of activations is incomplete": lambda t: {"activation_totals": None},
    "its activation_pairs are I64": lambda t: {"activation_pairs": t["activation_pairs"].astype("<i8")},
    "its activation_counts are F32": lambda t: {"activation_counts": t["activation_counts"].astype("<f4")},
    "disagree (activation_counts": lambda t: {"activation_counts": t["activation_counts"][1:]},
    "disagree (activation_first": lambda t: {"activation_first": t["activation_first"][1:]},
    "its log of activations is not cut into classes": lambda t: {"activation_first": t["activation_first"] + 1},
    "not cut into classes; copy": lambda t: {"activation_first": t["activation_first"][[0, 2, 1, 3, 4, 5, 6, 7]]},
    "pairs that are not there, or not in order": lambda t: {"activation_pairs": t["activation_pairs"] + 99},
    "or not in order": lambda t: {"activation_pairs": t["activation_pairs"][::-1].copy()},
    "or not counted": lambda t: {"activation_counts": t["activation_counts"] * 0},
    "its log of activations does not add up": lambda t: {"activation_counts": t["activation_counts"] + 1},
    "it holds masks of 0 requests, and 2 are in force": lambda t: {"request_masks": None},
    "it holds masks of 1 requests": lambda t: {"request_masks": t["request_masks"][1:]},
    "disagree (request_masks": lambda t: {"request_masks": t["request_masks"][:, 1:].copy()},
    "it holds values of requests that are not exact": lambda t: {"before_1": t["values"]},
    "it holds values of requests that are not exact, or": lambda t: {"before_05": t["values"]},
    "disagree (before_4": lambda t: {"before_4": t["values"][1:]},
    "not projection, keys, values": lambda t: {"codes": t["values"]},
    "it has erased pairs and no mask": lambda t: {"mask": None, "erased": np.zeros(16, "u1")},
    "its keys are F32 of shape (8, 16, 4)": lambda t: {"erased": np.zeros(16, "u1")},
}


@pytest.mark.parametrize(("sentence", "change"), TENSORS.items(), ids=list(TENSORS))
def test_tensors_that_disagree_are_one_sentence(masked: Path, sentence: str, change: Any) -> None:
    changes = change(open_tensors(masked).tensors)
    drop = [name for name, tensor in changes.items() if tensor is None]
    with pytest.raises(ModelFileError, match=f"is damaged: .*{re.escape(sentence)}"):
        excise.load(forged(masked, drop, **{name: t for name, t in changes.items() if t is not None}))


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An erased model whose masks do not fill their last byte."""
    path = tmp_path_factory.mktemp("odd") / "model.safetensors"
    model = KeyValueClassifier(**SMALL | {"codebooks": 3, "pairs": 15}).fit(X, NAMES[Y])
    for name in ("ant", "bee"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.forget(name, pairs=5)
        if name == "ant":
            model.erase()
    model.save(path)
    return path


def test_erased_pairs_that_disagree_are_one_sentence(odd: Path) -> None:
    tensors = open_tensors(odd).tensors
    bits = tensors["erased"].copy()
    bits[-1] |= 1
    mask = tensors["request_masks"].copy()
    mask[0, -1] |= 1
    for sentence, changes in (
        ("a mask in it is longer than the model", {"erased": bits}),
        ("a mask in it is longer than the model", {"request_masks": mask}),
        ("pairs are erased that its mask leaves live", {"mask": np.zeros((3, 15), bool)}),
        ("it holds 40 pairs, and 45 are not erased", {"erased": np.zeros(6, "u1")}),
    ):
        with pytest.raises(ModelFileError, match=f"is damaged: {sentence}"):
            excise.load(forged(odd, **changes))  # type: ignore[arg-type]


def test_without_verifying_the_log_is_not_read(masked: Path) -> None:
    counts = open_tensors(masked).tensors["activation_counts"] + 1
    excise.load(forged(masked, activation_counts=counts), verify=False)
