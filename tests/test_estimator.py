"""The classifier: what holds for every model first, then every kind of input, then every sentence of an error."""

import copy
import errno
import os
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from conftest import SMALL, blobs
from excise import ExciseError, InputError, KeyValueClassifier
from excise import estimator as module
from excise.bottleneck import kernels, reference
from excise.bottleneck.reference import NO_PAIR
from excise.forgetting import exact

VARIANTS = [
    {},
    {"top_k": 3, "decoder": "sum", "value_init": "uniform"},
    {"solver": "sgd", "learning_rate": 20.0, "value_init": "normal"},
    {"gate_unused": True, "label_smoothing": 0.1, "gradient_clip": 1.0},
    {"l2": 1e-4, "key_epochs": 0},
]


TOO_LARGE = (
    "Input X contains infinity or a value too large for float32 distances, as in row 70, column 2: "
    "features must lie within +-1e+15; scale them"
)


def small(**changes: Any) -> KeyValueClassifier:
    return KeyValueClassifier(**SMALL | changes)


def same(a: KeyValueClassifier, b: KeyValueClassifier) -> bool:
    """Whether two models hold the same bytes."""
    left, right = a.bottleneck_, b.bottleneck_
    return all(
        x is y or x.tobytes() == y.tobytes()
        for x, y in zip(
            (left.projection, left.keys, left.values, left.mask),
            (right.projection, right.keys, right.values, right.mask),
            strict=True,
        )
    )


# -- what always holds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_same_seed_gives_same_bytes_for_any_number_of_threads(data: Any, changes: dict[str, Any]) -> None:
    one, two = (small(n_jobs=n_jobs, **changes).fit(*data) for n_jobs in (1, 2))
    assert same(one, two)
    assert one.history_ == two.history_
    assert one.logits(data[0]).tobytes() == two.logits(data[0]).tobytes()


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_threads_that_share_the_work_give_the_same_bytes(changes: dict[str, Any]) -> None:
    """Large enough that every kernel wakes a second thread, which small work does not."""
    X, y = blobs(400, features=40, classes=13)
    changes = {"codebooks": 64, "pairs": 80, "batch_size": 200, "epochs": 3, **changes}
    one, two = (small(n_jobs=n_jobs, **changes).fit(X, y) for n_jobs in (1, 2))
    assert same(one, two)
    assert one.logits(X).tobytes() == two.logits(X).tobytes()


def by_the_reference(X: Any, y: Any, model: KeyValueClassifier) -> tuple[Any, ...]:
    """Projection, keys, codes, values and losses of the method, step by step, in readable numpy."""
    seeds = module._draw_seeds(model.random_state)
    generators = module._Seeds(*map(np.random.default_rng, seeds))
    c, m, d, classes = model.codebooks, model.pairs, model.key_dim, len(np.unique(y))
    projection = generators.projection.standard_normal((c, X.shape[1], d), dtype=np.float32)
    projection = (projection / np.linalg.norm(projection.astype(np.float64), axis=1, keepdims=True)).transpose(1, 0, 2)
    z = reference.project(X, projection.astype(np.float32).reshape(len(projection), c * d)).reshape(len(X), c, d)
    keys = generators.keys.standard_normal((c, m, d), dtype=np.float32)
    initializer = reference.KeyInitializer(keys, int(generators.keys.integers(2**63)), model.batch_size)
    for _ in range(model.key_epochs):
        initializer.update(z[generators.keys.permutation(len(X))])
    codes = reference.PreparedKeys(initializer.keys()).nearest(z, model.top_k)
    draw = {
        "zeros": np.zeros,
        "uniform": lambda shape, dtype: generators.values.random(shape, dtype=dtype),
        "normal": lambda shape, dtype: generators.values.standard_normal(shape, dtype=dtype),
    }[model.value_init]
    names = ("solver", "learning_rate", "label_smoothing", "gradient_clip", "l2", "decoder")
    options = reference.Optimiser(**{name: getattr(model, name) for name in names})
    trainer = reference.ValueTrainer(draw((c, m, classes), np.float32), options)
    losses = [
        trainer.train(codes, y, generators.order.permutation(len(X)), model.batch_size) / len(X)
        for _ in range(model.epochs)
    ]
    return projection, initializer.keys(), codes, trainer.values(), losses


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"top_k": 3},
        {"top_k": 2, "decoder": "sum"},
        {"key_epochs": 0},
        {"key_epochs": 3},
        {"batch_size": 40},
        {"epochs": 2},
        {"value_init": "uniform"},
        {"value_init": "normal"},
        {"solver": "sgd", "learning_rate": 5.0},
        {"learning_rate": 0.01},
        {"label_smoothing": 0.2},
        {"gradient_clip": 0.01},
        {"l2": 0.05},
        {"random_state": 3},
    ],
    ids=str,
)
def test_fit_is_the_method_step_by_step(data: Any, changes: dict[str, Any]) -> None:
    """Every parameter has the effect that the reference gives it."""
    model = small(**changes).fit(*data)
    projection, keys, codes, values, losses = by_the_reference(*data, model)
    assert np.allclose(model.bottleneck_.projection, projection, rtol=1e-6)
    assert np.allclose(np.linalg.norm(model.bottleneck_.projection, axis=0), 1)
    assert np.allclose(model.bottleneck_.keys, keys, rtol=1e-5, atol=1e-5)
    assert np.array_equal(model.training_codes_, codes)
    assert np.allclose(model.bottleneck_.values, values, atol=0.02)  # Adam magnifies gradients that cancel
    assert model.history_ == pytest.approx(losses, rel=1e-3)


@pytest.mark.parametrize("dtype", ["u1", ">f4", "f2"])
def test_a_memory_map_of_any_type_is_never_read_whole(dtype: str, tmp_path: Path) -> None:
    """10 MiB of features, coded and fitted within a quarter of it, as numpy counts its own memory."""
    rng = np.random.default_rng(0)
    X = np.lib.format.open_memmap(
        tmp_path / "X.npy", "w+", dtype, (40_000, 10 * 2**20 // 40_000 // np.dtype(dtype).itemsize)
    )
    X[:] = rng.integers(0, 255, X.shape)
    X.flush()
    mapped, y = np.load(tmp_path / "X.npy", mmap_mode="r"), np.arange(len(X)) % 3
    tracemalloc.start()
    try:
        tight = {"codebooks": 4, "pairs": 4, "key_epochs": 1, "epochs": 1, "batch_size": 256, "working_memory": 1}
        small(**tight).fit(mapped, y).codes(
            mapped, out=np.memmap(tmp_path / "c", np.uint16, "w+", shape=(40_000, 4, 1))
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2.5 * 2**20 + 3 * y.nbytes  # labels, their indices and the order of examples are held whole


def test_working_memory_bounds_every_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = blobs(3000, features=200)
    sizes = []
    project = kernels.project
    monkeypatch.setattr(kernels, "project", lambda x, *rest: sizes.append(x.nbytes) or project(x, *rest))
    for memory, most in ((1, 2**20), (64, X.nbytes)):
        sizes.clear()
        small(working_memory=memory, key_epochs=1, batch_size=64).fit(X, y).codes(X)
        assert max(sizes) <= most
    assert max(sizes) == X.nbytes  # where there is room, all at once


def test_another_seed_gives_another_model(data: Any) -> None:
    assert not same(small(random_state=0).fit(*data), small(random_state=1).fit(*data))


def test_fitting_twice_starts_anew(data: Any) -> None:
    model = small().fit(*data)
    assert same(copy.deepcopy(model).fit(*blobs(seed=1)).fit(*data), model)


def test_a_random_state_object_is_consumed(data: Any) -> None:
    state = np.random.RandomState(0)
    first, second = (small(random_state=state).fit(*data) for _ in range(2))
    assert same(first, small(random_state=0).fit(*data))
    assert not same(first, second)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_memory_changes_no_byte(changes: dict[str, Any]) -> None:
    """1,400 examples: many chunks, and codes beyond 1 MiB, which go to a temporary file."""
    X, y = blobs(1400, features=4)
    changes = {"key_epochs": 1, "epochs": 1, "batch_size": 256, **changes}
    changes |= {"codebooks": 128, "pairs": 4, "key_dim": 1, "top_k": 3}
    large, tiny = (small(**changes, working_memory=memory).fit(X, y) for memory in (256, 1))
    assert isinstance(tiny.training_codes_, np.memmap)
    assert not isinstance(large.training_codes_, np.memmap)
    assert same(large, tiny)
    assert np.array_equal(large.training_codes_, tiny.training_codes_)


def test_an_empty_mask_changes_no_bit(model: KeyValueClassifier, data: Any) -> None:
    empty = model.with_mask(np.zeros((8, 16), bool))
    assert model.logits(data[0]).tobytes() == empty.logits(data[0]).tobytes()


@given(st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_a_masked_pair_is_never_selected(model: KeyValueClassifier, data: Any, seed: int, share: float) -> None:
    mask = np.random.default_rng(seed).random((8, 16)) < share
    codes = model.with_mask(mask).codes(data[0])
    for i in range(8):
        selected = np.unique(codes[:, i])
        assert not mask[i, selected[selected != NO_PAIR]].any()
        live = np.count_nonzero(~mask[i])
        assert (np.count_nonzero(codes[:, i] != NO_PAIR, axis=1) == min(live, 2)).all()


@given(st.integers(0, 2**32 - 1))
def test_examples_that_share_no_masked_pair_keep_their_logits(model: KeyValueClassifier, data: Any, seed: int) -> None:
    X = data[0]
    mask = np.random.default_rng(seed).random((8, 16)) < 0.02
    touched = mask[np.arange(8)[:, None], model.codes(X)].any(axis=(1, 2))
    assert np.array_equal(model.with_mask(mask).logits(X)[~touched], model.logits(X)[~touched])


@given(st.integers(0, 2**32 - 1))
def test_masks_are_idempotent_and_free_of_order(model: KeyValueClassifier, data: Any, seed: int) -> None:
    a, b = np.random.default_rng(seed).random((2, 8, 16)) < 0.2
    logits = model.with_mask(a | b).logits(data[0])
    assert np.array_equal(logits, model.with_mask(b | a | a).logits(data[0]))
    assert np.array_equal(model.with_mask(a | b).with_mask(None).logits(data[0]), model.logits(data[0]))


def test_codes_are_nearest_first(model: KeyValueClassifier, data: Any) -> None:
    X, codes = data[0], model.codes(data[0])
    assert codes.dtype == np.uint16
    assert codes.shape == (90, 8, 2)
    b = model.bottleneck_
    z = np.einsum("nf,fcd->ncd", X.astype(np.float64), b.projection)
    distance = ((z[:, :, None] - b.keys) ** 2).sum(axis=-1)  # (n, c, m)
    found = np.take_along_axis(distance, codes.astype(np.int64), axis=2)
    assert np.allclose(found, np.sort(distance, axis=2)[:, :, :2])


def test_logits_are_the_mean_of_the_selected_values(model: KeyValueClassifier, data: Any) -> None:
    codes = model.codes(data[0])
    expected = model.bottleneck_.values[np.arange(8)[:, None], codes].astype(np.float64).mean(axis=(1, 2))
    assert np.allclose(model.logits(data[0]), expected, atol=1e-5)


def test_fewer_live_pairs_than_retrieved_are_averaged(model: KeyValueClassifier, data: Any) -> None:
    mask = np.ones((8, 16), bool)
    mask[:, 5] = False
    alone = model.with_mask(mask)
    assert (alone.codes(data[0]) == [5, NO_PAIR]).all()
    assert np.allclose(alone.logits(data[0]), model.bottleneck_.values[:, 5].mean(axis=0), atol=1e-6)


def test_no_live_pair_contributes_nothing(model: KeyValueClassifier, data: Any) -> None:
    nothing = model.with_mask(np.ones((8, 16), bool))
    assert (nothing.codes(data[0]) == NO_PAIR).all()
    assert not nothing.logits(data[0]).any()
    assert np.allclose(nothing.predict_proba(data[0]), 1 / 3)


def test_it_learns(data: Any) -> None:
    assert small().fit(*data).score(*data) > 0.95


def test_training_codes_are_the_codes_of_the_training_data(model: KeyValueClassifier, data: Any) -> None:
    assert np.array_equal(model.training_codes_, model.codes(data[0]))
    assert np.array_equal(model.training_labels_, data[1])


def test_training_labels_are_those_that_the_user_gave(data: Any) -> None:
    names = np.array(["dog", "ant", "cat"])[data[1]]
    model = small().fit(data[0], names)
    assert np.array_equal(model.training_labels_, names)


def test_a_mask_is_taken_as_it_is_now(model: KeyValueClassifier, data: Any) -> None:
    assert not model.mask.any()
    mask = np.random.default_rng(0).random((8, 16)) < 0.3
    masked = model.with_mask(model.mask | mask)
    logits, before = masked.logits(data[0]), mask.copy()
    mask[:] = True
    assert np.array_equal(masked.mask, before)
    assert np.array_equal(masked.logits(data[0]), logits)
    for array in (masked.mask, masked.bottleneck_.keys, masked.bottleneck_.values, masked.bottleneck_.projection):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_the_usage_gate_masks_what_no_example_selected(data: Any) -> None:
    gated, open_ = (small(gate_unused=gate).fit(*data) for gate in (True, False))
    used = np.zeros((8, 16), bool)
    used[np.arange(8)[:, None], open_.training_codes_] = True
    assert np.array_equal(gated.bottleneck_.mask, ~used)
    assert open_.bottleneck_.mask is None
    assert np.array_equal(gated.logits(data[0]), open_.logits(data[0]))


def test_codes_fill_a_memory_map(model: KeyValueClassifier, data: Any, tmp_path: Path) -> None:
    out = np.memmap(tmp_path / "codes", np.uint16, "w+", shape=(90, 8, 2))
    assert model.codes(data[0], out=out) is out
    assert np.array_equal(out, model.training_codes_)


# -- personal data ----------------------------------------------------------------------------------------------------


def test_training_codes_stay_behind(model: KeyValueClassifier) -> None:
    others = (
        pickle.loads(pickle.dumps(model)),
        copy.copy(model),
        copy.deepcopy(model),
        model.with_mask(np.zeros((8, 16), bool)),
    )
    for other in others:
        assert not any(name in vars(other) for name in ("training_codes_", "training_labels_", "_training"))


# -- partial_fit ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [VARIANTS[0], VARIANTS[1], VARIANTS[2], VARIANTS[4]], ids=str)
def test_partial_fit_over_the_same_data_is_fit(data: Any, changes: dict[str, Any]) -> None:
    model = small(**changes).partial_fit(*data, classes=[0, 1, 2])
    assert same(model, small(**changes | {"epochs": 1}).fit(*data))
    for _ in range(4):
        model.partial_fit(*data)
    whole = small(**changes).fit(*data)
    # A row that catches up after every epoch is rounded more often than one that catches up when it is touched.
    assert np.allclose(model.bottleneck_.values, whole.bottleneck_.values, rtol=1e-5, atol=1e-5)
    assert model.history_ == pytest.approx(whole.history_, rel=1e-5)


def test_partial_fit_keeps_the_keys(data: Any) -> None:
    model = small().partial_fit(*data, classes=range(3))
    keys = model.bottleneck_.keys
    model.partial_fit(*blobs(seed=1))
    assert model.bottleneck_.keys is keys


def test_partial_fit_goes_on_after_fit_without_the_old_training_codes(data: Any) -> None:
    model = small().fit(*data)
    before = model.bottleneck_.values.copy()
    model.partial_fit(*data)
    assert not np.array_equal(model.bottleneck_.values, before)
    assert not hasattr(model, "training_codes_")
    assert len(model.history_) == 6


def test_partial_fit_of_a_masked_copy_leaves_the_original_alone(data: Any) -> None:
    model, twin = (small().partial_fit(*data, classes=range(3)) for _ in range(2))
    mask = np.zeros((8, 16), bool)
    mask[:, :8] = True
    masked = model.with_mask(mask).partial_fit(*data)
    assert np.array_equal(masked.bottleneck_.mask, mask)
    assert np.array_equal(masked.bottleneck_.values[mask], twin.bottleneck_.values[mask])
    assert same(model, twin)
    assert same(model.partial_fit(*data), twin.partial_fit(*data))


def test_partial_fit_takes_up_changed_training_parameters(data: Any) -> None:
    model = small().partial_fit(*data, classes=range(3))
    before = model.bottleneck_.values
    model.set_params(learning_rate=0.0).partial_fit(*data)
    assert np.array_equal(model.bottleneck_.values, before)


def test_partial_fit_trains_the_values_that_the_model_holds(data: Any) -> None:
    model = small(learning_rate=0.0).partial_fit(*data, classes=range(3))
    model.bottleneck_ = small(random_state=1).fit(*data).bottleneck_
    held = model.bottleneck_.values
    assert np.array_equal(model.partial_fit(*data).bottleneck_.values, held)


def test_partial_fit_is_not_offered_where_unused_pairs_are_gated() -> None:
    assert hasattr(small(), "partial_fit")
    assert not hasattr(small(gate_unused=True), "partial_fit")


# -- Ctrl-C, a full disk ----------------------------------------------------------------------------------------------


def interrupt(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize("stage", ["initialize_keys", "train_values", "unused_pairs", "record_activations"])
def test_ctrl_c_leaves_the_model_as_it_was(data: Any, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    fresh, fitted = small(gate_unused=True), small(gate_unused=True).fit(*data)
    before = [dict(vars(model)) for model in (fresh, fitted)]
    monkeypatch.setattr(exact if stage == "train_values" else module, stage, interrupt)
    for model in (fresh, fitted):
        with pytest.raises(KeyboardInterrupt):
            model.fit(*blobs(features=7, classes=4))
    assert [vars(model) for model in (fresh, fitted)] == before


def test_ctrl_c_in_partial_fit_leaves_the_model_as_it_was(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small().partial_fit(*data, classes=range(3))
    bottleneck, history = model.bottleneck_, model.history_
    with monkeypatch.context() as patched:
        patched.setattr(module._Training, "epoch", interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.partial_fit(*data)
    assert model.bottleneck_ is bottleneck
    assert model.history_ == history
    model.partial_fit(*data)


def test_a_full_disk_is_one_sentence(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    X, y = blobs(1400, features=1)
    model = small(codebooks=128, pairs=4, key_dim=1, top_k=3, key_epochs=0, working_memory=1)
    with pytest.raises(ExciseError, match=r"no room for a temporary file of 1 MiB in .* \(No space left on device\): "):
        model.fit(X, y)
    assert not hasattr(model, "bottleneck_")


def test_a_refused_fit_leaves_the_model_as_it_was(data: Any) -> None:
    X, y = blobs(features=7)
    X[50, 3] = np.nan
    model = small().fit(*data)
    before = dict(vars(model))
    for refused in ((X, y), (X[:20], np.zeros(20))):
        with pytest.raises(InputError):
            model.fit(*refused)
    assert vars(model) == before


# -- kinds of input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32, np.uint8])
def test_features_of_any_type(data: Any, dtype: Any) -> None:
    X = np.abs(data[0]).astype(dtype)
    model = small().fit(X, data[1])
    assert same(model, small().fit(X.astype(np.float32), data[1]))
    assert model.logits(X).dtype == np.float32


def test_features_of_any_layout(data: Any, tmp_path: Path) -> None:
    X, y = data
    expected = small().fit(X, y)
    np.save(tmp_path / "X.npy", X)
    wide = np.repeat(X, 2, axis=1)
    for other in (np.load(tmp_path / "X.npy", mmap_mode="r"), np.asfortranarray(X), wide[:, ::2], X.tolist()):
        model = small().fit(other, y)
        assert same(model, expected)
        assert np.array_equal(model.logits(other), expected.logits(X))


@pytest.mark.parametrize(
    "names",
    [
        ["cat", "dog", "a rather longer name"],
        np.array(["cat", "dog", "eel"], object),
        [-5, 0, 7],
        [1.0, 2.0, 4.0],
        np.array([2**40, 1, 0]),
    ],
    ids=str,
)
def test_labels_of_any_kind(data: Any, names: Any) -> None:
    X, y = data
    labels = np.asarray(names)[y]
    model = small().fit(X, labels)
    assert np.array_equal(model.classes_, np.unique(labels))
    assert (model.predict(X) == labels).mean() > 0.95
    assert model.predict(X).dtype == labels.dtype
    assert same(small().partial_fit(X, labels, classes=names), small(epochs=1).fit(X, labels))


def test_two_classes() -> None:
    X, y = blobs(60, classes=2)
    model = small().fit(X, y.astype(bool))
    assert model.classes_.tolist() == [False, True]
    assert model.decision_function(X).shape == (60,)
    assert model.logits(X).shape == (60, 2)
    assert np.array_equal(model.decision_function(X) > 0, model.predict(X))
    assert np.allclose(model.predict_proba(X).sum(axis=1), 1)


def test_a_pipeline_of_data_frames(data: Any) -> None:
    frame = pd.DataFrame(data[0], columns=list("abcdef"))
    labels = pd.Series(data[1]).map({0: "x", 1: "y", 2: "z"})
    pipeline = make_pipeline(StandardScaler(), small()).set_output(transform="pandas").fit(frame, labels)
    assert pipeline[-1].feature_names_in_.tolist() == list("abcdef")
    assert pipeline.score(frame, labels) > 0.9
    with pytest.raises(ValueError, match="feature names should match"):
        pipeline.predict(frame.rename(columns={"a": "other"}))


def test_grid_search(data: Any) -> None:
    search = GridSearchCV(small(epochs=1), {"top_k": [1, 2], "decoder": ["mean", "sum"]}, cv=2, n_jobs=None)
    assert search.fit(*data).best_score_ > 0.8
    assert same(search.best_estimator_, small(epochs=1, **search.best_params_).fit(*data))


def test_clone_keeps_parameters_and_nothing_else(model: KeyValueClassifier) -> None:
    other = clone(model)
    assert other.get_params() == model.get_params()
    assert not hasattr(other, "bottleneck_")


def test_pickling_keeps_every_bit(model: KeyValueClassifier, data: Any) -> None:
    other = pickle.loads(pickle.dumps(model))
    assert same(other, model)
    assert np.array_equal(other.logits(data[0]), model.logits(data[0]))


def test_progress_is_told_on_standard_error(data: Any, capsys: pytest.CaptureFixture[str]) -> None:
    small(verbose=1).fit(*data)
    out, err = capsys.readouterr()
    assert out == ""
    assert "keys" in err
    assert "epoch 5/5, loss" in err


def test_from_preset() -> None:
    model = KeyValueClassifier.from_preset("cifar100-resnet50", epochs=1)
    assert (model.top_k, model.key_dim, model.epochs) == (2, 14, 1)


# -- sentences --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"pairs": 65_536}, "pairs is 65536: it must be a whole number from 1 to 65,535"),
        ({"pairs": 4, "top_k": 5}, "top_k is 5: it cannot exceed pairs, which is 4"),
        ({"top_k": 33}, "top_k is 33: it must be a whole number from 1 to 32"),
        ({"top_k": True}, "top_k is True: it must be a whole number from 1 to 32"),
        ({"key_dim": 65}, "key_dim is 65: it must be a whole number from 1 to 64"),
        ({"key_dim": 8.0}, "key_dim is 8.0: it must be a whole number from 1 to 64"),
        ({"codebooks": 0}, "codebooks is 0: it must be a whole number from 1 to 65,536"),
        ({"epochs": -1}, "epochs is -1: it must be a whole number from 0 to 1,000,000"),
        ({"batch_size": 0}, "batch_size is 0: it must be a whole number from 1 to 1,048,576"),
        ({"learning_rate": -0.1}, "learning_rate is -0.1: it must be a number of at least 0 and below inf"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast': it must be a number of at least 0 and below inf"),
        ({"learning_rate": float("nan")}, "learning_rate is nan: it must be a number of at least 0 and below inf"),
        ({"label_smoothing": 1}, "label_smoothing is 1: it must be a number of at least 0 and below 1"),
        ({"working_memory": 0.5}, "working_memory is 0.5: it must be a number of at least 1 and below inf"),
        ({"gradient_clip": 0}, "gradient_clip is 0: it must be None or a positive number"),
        ({"value_init": "random"}, "value_init is 'random': use one of 'zeros', 'uniform', 'normal'"),
        ({"decoder": "max"}, "decoder is 'max': use one of 'mean', 'sum'"),
        ({"solver": "lbfgs"}, "solver is 'lbfgs': use one of 'adam', 'sgd'"),
        ({"gate_unused": "no"}, "gate_unused is 'no': it must be True or False"),
        ({"random_state": -1}, "random_state is -1: it must be a whole number from 0 to 4,294,967,295, or None"),
        (
            {"random_state": 2**32},
            "random_state is 4294967296: it must be a whole number from 0 to 4,294,967,295, or None",
        ),
        ({"n_jobs": 0}, "n_jobs is 0: use a positive number of threads, -1 for all cores, or None"),
    ],
    ids=str,
)
def test_a_bad_parameter_is_one_sentence(data: Any, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        small(**changes).fit(*data)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (np.nan, "Input X contains NaN, as in row 70, column 2: drop such rows or fill the missing values"),
        (np.inf, TOO_LARGE),
        (1e39, TOO_LARGE),
        (-1e16, TOO_LARGE),
    ],
)
def test_a_bad_feature_is_one_sentence(model: KeyValueClassifier, data: Any, value: float, sentence: str) -> None:
    X = data[0].astype(np.float64)
    X[70, 2] = value
    for refuse in (
        lambda: small().fit(X, data[1]),
        lambda: small(key_epochs=0).fit(X, data[1]),
        lambda: small().partial_fit(X, data[1], classes=range(3)),
        lambda: model.predict(X),
        lambda: model.codes(X),
    ):
        with pytest.raises(InputError) as caught:
            refuse()
        assert str(caught.value) == sentence


@pytest.mark.parametrize("step", ["fit", "partial_fit"])
def test_training_that_runs_away_is_refused(data: Any, step: str) -> None:
    model = small().fit(*data)
    before = copy.deepcopy(model)
    model.set_params(learning_rate=3e38)
    sentence = (
        r"^training diverged: (the loss of an epoch is (nan|inf)|a value is no longer finite); lower learning_rate"
    )
    with pytest.raises(InputError, match=sentence):
        getattr(model, step)(*data)
    assert same(model, before)
    assert np.isfinite(model.predict_proba(data[0])).all()


def test_a_last_step_that_runs_away_is_refused(data: Any) -> None:
    one_step = {"learning_rate": 3e38, "epochs": 1, "batch_size": len(data[0]), "value_init": "normal"}
    with pytest.raises(InputError, match=r"^training diverged: a value is no longer finite; lower learning_rate"):
        small(**one_step).fit(*data)


@pytest.mark.parametrize("changes", [{"codebooks": 9}, {"pairs": 8}, {"key_dim": 3}, {"top_k": 2}, {"decoder": "sum"}])
def test_partial_fit_refuses_another_layout(data: Any, changes: dict[str, Any]) -> None:
    model = small().partial_fit(*data, classes=range(3))
    (name, value), built = next(iter(changes.items())), model.get_params()[next(iter(changes))]
    sentence = f"{name} was changed to {value!r} after the keys were drawn with {built!r}"
    with pytest.raises(InputError, match=sentence):
        model.set_params(**changes).partial_fit(*data)


def test_slow_kernels_are_said_once(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "WHY_SLOW", "excise runs on its numpy kernels, because of a test")
    monkeypatch.setattr(kernels, "_told", False)
    monkeypatch.delenv("EXCISE_KERNELS", raising=False)
    with pytest.warns(UserWarning, match="because of a test"):
        model = small().fit(*data)
    model.predict(data[0])


def test_refused_features_do_not_stop_the_moments(data: Any) -> None:
    model, twin = (small().partial_fit(*data, classes=range(3)) for _ in range(2))
    with pytest.raises(InputError):
        model.partial_fit(np.full_like(data[0], np.nan), data[1])
    assert same(model.partial_fit(*data), twin.partial_fit(*data))


def test_a_wrong_feature_size_is_named(model: KeyValueClassifier) -> None:
    with pytest.raises(ValueError, match="X has 7 features, but KeyValueClassifier is expecting 6 features as input"):
        model.predict(np.zeros((3, 7)))


def test_one_class_only(data: Any) -> None:
    with pytest.raises(InputError, match="there is only one class, 1: a classifier needs at least two"):
        small().fit(data[0], np.ones(90, int))


def test_a_label_never_declared(data: Any) -> None:
    sentence = r"label 2 was never declared: the classes are 0, 1$"
    with pytest.raises(InputError, match=sentence):
        small().partial_fit(*data, classes=[0, 1])
    model = small().partial_fit(data[0][:60], data[1][:60] % 2, classes=[0, 1])
    with pytest.raises(InputError, match=sentence):
        model.partial_fit(*data)
    with pytest.raises(InputError, match=r"label 'cat' was never declared: the classes are 0, 1, .*, 9 and 90 more"):
        small().partial_fit(data[0], ["cat"] * 90, classes=range(100))


def test_labels_that_cannot_be_compared(data: Any) -> None:
    labels = np.array(["cat", None, 3], object)[data[1]]
    with pytest.raises(InputError, match="labels of y are of kinds that cannot be compared"):
        small().fit(data[0], labels)


def test_numbers_that_are_no_classes(data: Any) -> None:
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        small().fit(data[0], data[1] + 0.5)


def test_partial_fit_needs_the_classes_once(data: Any) -> None:
    with pytest.raises(InputError, match="the first call of partial_fit needs classes"):
        small().partial_fit(*data)
    model = small().partial_fit(*data, classes=range(3))
    with pytest.raises(InputError, match=r"classes changed between calls of partial_fit: they were 0, 1, 2$"):
        model.partial_fit(*data, classes=range(4))


def test_fewer_examples_than_a_batch_warns_and_uses_all(data: Any) -> None:
    with pytest.warns(UserWarning, match=r"fewer examples \(90\) than batch_size \(256\): .* at most 90"):
        model = small(batch_size=256).fit(*data)
    assert same(model, small(batch_size=90).fit(*data))


def test_a_mask_of_another_shape(model: KeyValueClassifier) -> None:
    for mask in (np.zeros((8, 15), bool), np.zeros((8, 16), int)):
        with pytest.raises(InputError, match=r"it must be bool \(8, 16\), True = masked"):
            model.with_mask(mask)


def test_out_of_another_shape(model: KeyValueClassifier, data: Any) -> None:
    with pytest.raises(InputError, match=r"out is int64 \(90, 8, 2\): it must be uint16 \(90, 8, 2\)"):
        model.codes(data[0], out=np.zeros((90, 8, 2), np.int64))


def test_an_unknown_preset_names_the_others() -> None:
    with pytest.raises(ExciseError, match="there is no preset 'mnist': use one of cifar10-vit-b32, "):
        KeyValueClassifier.from_preset("mnist")
