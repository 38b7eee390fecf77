"""Erasing, proved on the file: predictions stay to the bit, and nothing that was erased is found in any byte of it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

import excise
from conftest import SMALL, blobs
from excise import KeyValueClassifier
from excise.tensorfile import open_tensors

THREE = 3


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    return X.astype(np.float32), y


@pytest.mark.parametrize("how", ["activations", "examples", "exact", "all"])
def test_nothing_erased_is_left_in_the_file(digits: tuple[np.ndarray, np.ndarray], how: str, tmp_path: Path) -> None:
    X, y = digits
    path = tmp_path / "model"
    model = KeyValueClassifier(
        codebooks=16, pairs=128, key_dim=6, key_epochs=2, value_init="normal", epochs=2, batch_size=64, random_state=0
    ).fit(X, y)
    if how in ("activations", "all"):
        model.forget(THREE)
    if how == "examples":
        model.forget(THREE, by="examples", examples=40)
    if how == "exact":
        model.forget(THREE, by="exact")
    if how == "all":
        model.forget(7, X[y == 7], pairs=200)
        model.forget(8, by="exact")
        model.restore(2)
    model.save(path)
    before, full = model.logits(X), path.read_bytes()
    log, gone = model.activations_, model.mask
    assert log is not None
    forgotten = [label for request in model.requests_ if request.in_force for label in request.classes]
    values = [row.tobytes() for row in model.bottleneck_.values[gone] if row.any()]
    kept = {row.tobytes() for row in model.bottleneck_.values[~gone]} | {bytes(4 * len(model.classes_))}
    tables = [r.before.reshape(-1, len(model.classes_)) for r in model.requests_ if r.before is not None]
    replaced = [row.tobytes() for table in tables for row in table if row.tobytes() not in kept]
    live = {key.tobytes() for key in model.bottleneck_.keys[~gone]}
    keys = [key.tobytes() for key in model.bottleneck_.keys[gone]]
    only = [key for key in keys if key not in live]  # copies of live keys stay: predictions depend on them
    logs = [part.tobytes() for label in forgotten for part in log.of(label)]
    assert len(only) >= 0.9 * len(keys)
    assert (len(only) > 100) == (how != "exact")  # which masks nothing
    assert (len(replaced) > 100) == (how in ("exact", "all"))
    for part in (*values, *replaced, *keys, *logs):
        assert part in full

    model.erase()
    model.save(path)
    after = path.read_bytes()
    assert len(after) < len(full)
    for part in (*values, *replaced, *only, *logs):
        assert part not in after
    assert "request_masks" not in open_tensors(path).tensors
    loaded = excise.load(path)
    assert model.logits(X).tobytes() == before.tobytes()
    assert loaded.logits(X).tobytes() == before.tobytes()
    assert not loaded.bottleneck_.values[gone].any()
    assert not loaded.bottleneck_.keys[gone].any()
    assert loaded.activations_ is not None
    assert not any(len(loaded.activations_.of(label)[0]) for label in forgotten)


def test_a_key_stays_where_a_live_pair_has_the_very_same(tmp_path: Path) -> None:
    """Keys that began as copies of one example: one is erased, another is what predictions now depend on."""
    X, y = blobs()
    model = KeyValueClassifier(**SMALL).fit(X, y)
    keys = np.array(model.bottleneck_.keys)
    keys[:, 1::2] = keys[:, ::2]
    model.bottleneck_ = replace(model.bottleneck_, keys=keys, _prepared=[])
    model.forget(0, X[y == 0], pairs=8)
    gone, before = model.mask, model.logits(X)
    assert not (gone[:, ::2] & gone[:, 1::2]).any()  # equal keys: the first is selected, so only it is masked
    model.erase()
    model.save(tmp_path / "model")
    content = (tmp_path / "model").read_bytes()
    assert gone.sum() == 8
    assert all(key.tobytes() in content for key in keys[gone])
    assert excise.load(tmp_path / "model").logits(X).tobytes() == before.tobytes()


@pytest.mark.parametrize("by", ["activations", "exact"])
def test_training_data_passed_later_does_not_teach_what_was_erased(by: str, tmp_path: Path) -> None:
    X, y = blobs(140, classes=7)
    model = KeyValueClassifier(**SMALL).fit(X, y)
    model.forget(0, by=by)
    model.erase()
    model.save(tmp_path / "model")
    loaded = excise.load(tmp_path / "model")
    request = loaded.forget(1, X, y, by="exact")
    assert (request.size, request.examples_read) == (20, 100)
    assert not np.isin(loaded.predict(X), [0, 1]).any()
