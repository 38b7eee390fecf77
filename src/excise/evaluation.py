"""Accuracy and loss of a model on labelled features, whole and per class, in bounded memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.bottleneck import kernels
from excise.errors import InputError
from excise.estimator import KeyValueClassifier
from excise.features.arrays import Array
from excise.progress import track

ROWS = 8192  # training examples whose logits are held at once


@dataclass(frozen=True)
class Evaluation:
    """What a model gets right."""

    examples: int
    accuracy: float
    loss: float  # mean cross-entropy
    per_class: dict[Any, float | None]  # accuracy by class; None where the class has no examples


def evaluate(model: KeyValueClassifier, X: Array, y: Array, verbose: int = 0) -> Evaluation:
    """Accuracy, accuracy per class and mean cross-entropy of the model on X (n, f), y (n,)."""
    if len(X) != len(y) or not len(y):
        raise InputError(
            f"there are {len(X)} examples and {len(y)} labels: pass as many of one as of the other, at least one"
        )
    labels = label_indices(model.classes_, np.asarray(y))
    right, loss = np.empty(len(labels), bool), 0.0
    for start, logits in iterate_logits(model, X, "evaluate", verbose):
        part = labels[start : start + len(logits)]
        right[start : start + len(logits)] = logits.argmax(axis=1) == part
        loss += cross_entropy(logits, part)
    hits = np.bincount(labels[right], minlength=len(model.classes_))
    of = np.bincount(labels, minlength=len(model.classes_))
    per_class = {
        name: (int(hit) / int(count) if count else None)
        for name, hit, count in zip(model.classes_.tolist(), hits, of, strict=True)
    }
    return Evaluation(len(labels), float(right.mean()), loss / len(labels), per_class)


def training_accuracy(model: KeyValueClassifier) -> float:
    """Accuracy on the training data, looked up from the codes that `fit` left."""
    codes, labels, b = model.training_codes_, model.training_labels_, model.bottleneck_
    threads = kernels.available_threads(model.n_jobs)
    right = 0
    for start in range(0, len(codes), ROWS):
        logits = kernels.logits(codes[start : start + ROWS], b.values, b.decoder, threads)
        right += int((model.classes_[logits.argmax(axis=1)] == labels[start : start + ROWS]).sum())
    return right / len(codes)


def iterate_logits(
    model: KeyValueClassifier, X: Array, label: str = "predict", verbose: int = 0
) -> Iterator[tuple[int, Array]]:
    """Pairs (first row, logits (b, v)) of X (n, f), in bounded memory."""
    with track(label, len(X), "examples", verbose) as progress:
        for start, logits in model.iterate_logits(X):
            progress.advance(len(logits))
            yield start, logits


def label_indices(classes: Array, y: Array) -> Array:
    """Indices (n,) of the labels y into `classes`; a label that is not among them is refused."""
    index = {label: i for i, label in enumerate(classes.tolist())}
    try:
        return np.array([index[label] for label in y.tolist()], dtype=np.int64)
    except KeyError as error:
        shown = ", ".join(map(repr, list(index)[:10])) + (", ..." if len(index) > 10 else "")
        raise InputError(
            f"label {error.args[0]!r} was never seen in training: the {len(index)} known classes are {shown}"
        ) from None


def cross_entropy(logits: Array, labels: Array) -> float:
    """Sum of the cross-entropies of logits (n, v) at the labels (n,)."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return float((np.log(np.exp(wide).sum(axis=1)) - wide[np.arange(len(labels)), labels]).sum())


def softmax(logits: Array) -> Array:
    """Class probabilities (n, v) float32."""
    wide = logits.astype(np.float64)
    e = np.exp(wide - wide.max(axis=1, keepdims=True))
    p: Array = (e / e.sum(axis=1, keepdims=True)).astype(np.float32)
    return p
