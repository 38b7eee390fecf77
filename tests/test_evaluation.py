"""Evaluation agrees with scikit-learn, whatever the chunks, and refuses labels that the model has never seen."""

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import log_loss

from conftest import SMALL, blobs
from excise import InputError, KeyValueClassifier, evaluation
from excise.evaluation import evaluate, label_indices, softmax, training_accuracy


@pytest.mark.parametrize("rows", [7, 8192])
def test_evaluation_agrees_with_scikit_learn(
    rows: int, model: KeyValueClassifier, data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("excise.bottleneck.model.chunk_rows", lambda *_, **__: rows)
    X, y = data
    y = np.where(np.arange(len(y)) % 9, y, 2)  # some are wrong
    found = evaluate(model, X, y)
    assert found.examples == len(y)
    assert found.accuracy == model.score(X, y)
    assert found.loss == pytest.approx(log_loss(y, model.predict_proba(X)))
    assert found.per_class == {name: model.score(X[y == name], y[y == name]) for name in (0, 1, 2)}


def test_a_class_without_examples_has_no_accuracy(model: KeyValueClassifier, data: Any) -> None:
    X, y = data
    found = evaluate(model, X[y != 1], y[y != 1])
    assert found.per_class[1] is None
    assert 0 <= found.accuracy <= 1


@pytest.mark.parametrize("rows", [7, 8192])
@pytest.mark.parametrize("gate_unused", [False, True])
def test_training_accuracy_is_looked_up(
    data: Any, gate_unused: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "ROWS", rows)
    model = KeyValueClassifier(**SMALL, top_k=2, gate_unused=gate_unused).fit(*data)
    assert training_accuracy(model) == model.score(*data)


def test_examples_and_labels_must_be_as_many(model: KeyValueClassifier, data: Any) -> None:
    X, y = data
    assert evaluate(model, X, y.tolist()).accuracy == model.score(X, y)
    for rows, labels in ((X, y[:-1]), (X[:0], y[:0])):
        with pytest.raises(InputError, match="pass as many of one as of the other, at least one"):
            evaluate(model, rows, labels)


def test_labels_are_found_by_value() -> None:
    classes = np.array(["ant", "bee"], dtype=object)
    assert label_indices(classes, np.array(["bee", "ant"])).tolist() == [1, 0]
    assert label_indices(np.array([0.0, 1.0]), np.array([True, False])).tolist() == [1, 0]
    with pytest.raises(InputError, match=r"label 1 was never seen in training: the 2 known classes are 'ant', 'bee'$"):
        label_indices(classes, np.array([1]))
    with pytest.raises(InputError, match=r"the 99 known classes are 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, \.\.\.$"):
        label_indices(np.arange(99), np.array([99]))


def test_probabilities_survive_huge_logits() -> None:
    assert softmax(np.array([[1e30, 0], [0, 0]], np.float32)).tolist() == [[1, 0], [0.5, 0.5]]


def test_blobs_are_learned() -> None:
    X, y = blobs()
    assert training_accuracy(KeyValueClassifier(**SMALL).fit(X, y)) > 0.9
