"""Predicted labels and probabilities in bounded memory, and on disk as .npy, .csv or .npz."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from excise.atomic import written_whole
from excise.estimator import KeyValueClassifier
from excise.evaluation import iterate_logits, softmax
from excise.features.arrays import Array

FORMATS = (".npy", ".csv", ".npz")


def predict(model: KeyValueClassifier, x: Array, proba: bool, verbose: int = 0) -> tuple[Array, Array | None]:
    """The most likely label of each row (n,), and where asked for the probabilities (n, v) float32."""
    best = np.empty(len(x), np.int64)
    probabilities = np.empty((len(x), len(model.classes_)), np.float32) if proba else None
    for start, logits in iterate_logits(model, x, "predict", verbose):
        best[start : start + len(logits)] = logits.argmax(axis=1)
        if probabilities is not None:
            probabilities[start : start + len(logits)] = softmax(logits)
    return model.classes_[best], probabilities


def write_predictions(path: str, classes: Array, labels: Array, probabilities: Array | None) -> None:
    """Write labels (n,), and probabilities (n, v) if there are any, whole or not at all."""
    kind = Path(path).suffix.lower()
    labels, classes = (a.astype(str) if a.dtype == object else a for a in (labels, classes))  # no pickle
    with written_whole(path) as file:
        if kind == ".csv":
            text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
            write_csv(text, classes.tolist(), labels.tolist(), probabilities, str)
            text.flush()
            text.detach()
        elif kind == ".npz":
            if probabilities is None:
                np.savez(file, labels=labels, classes=classes)
            else:
                np.savez(file, labels=labels, classes=classes, probabilities=probabilities)
        else:
            array = np.ascontiguousarray(labels if probabilities is None else probabilities)
            np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
            file.write(array.reshape(-1).view(np.uint8).data)  # np.save hides why a disk refuses


def write_csv(
    text: TextIO, classes: list[Any], labels: list[Any], probabilities: Any, form: Callable[[float], str]
) -> None:
    """A line for each label, its probabilities behind it, under a line of names."""
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["label", *([] if probabilities is None else classes)])
    for i, label in enumerate(labels):
        writer.writerow([label, *([] if probabilities is None else map(form, probabilities[i]))])
