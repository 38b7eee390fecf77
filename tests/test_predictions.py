"""Predictions chunk by chunk are those of the estimator; every format gives them back."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from excise import KeyValueClassifier
from excise.predictions import FORMATS, predict, write_predictions


@pytest.mark.parametrize("proba", [True, False])
def test_predictions_are_those_of_the_estimator(model: KeyValueClassifier, data: Any, proba: bool) -> None:
    labels, probabilities = predict(model, data[0], proba)
    assert np.array_equal(labels, model.predict(data[0]))
    assert (probabilities is not None) == proba
    if probabilities is not None:
        np.testing.assert_allclose(probabilities, model.predict_proba(data[0]), atol=1e-6)


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_gives_the_labels_back(model: KeyValueClassifier, data: Any, suffix: str, tmp_path: Path) -> None:
    labels, probabilities = predict(model, data[0], True)
    path = tmp_path / f"p{suffix}"
    write_predictions(str(path), model.classes_, labels, probabilities)
    if suffix == ".csv":
        rows = [line.split(",") for line in path.read_text().splitlines()]
        assert rows[0] == ["label", *map(str, model.classes_)]
        assert np.array_equal(np.array(rows[1:])[:, 0].astype(int), labels)
        assert np.array_equal(np.array(rows[1:])[:, 1:].astype(np.float32), probabilities)
        return
    found = np.load(path, allow_pickle=False)
    assert np.array_equal(found if suffix == ".npy" else found["probabilities"], probabilities)
    assert suffix == ".npy" or np.array_equal(found["labels"], labels)


def test_python_strings_are_written_without_pickle(tmp_path: Path) -> None:
    classes = np.array(["a", "bc"], dtype=object)
    write_predictions(str(tmp_path / "p.npy"), classes, classes[[1, 0]], None)
    assert np.load(tmp_path / "p.npy", allow_pickle=False).tolist() == ["bc", "a"]
