"""A tour in seconds: train on scikit-learn's digits, forget one of them, and report what happened to the others."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.errors import InputError
from excise.estimator import KeyValueClassifier
from excise.features.arrays import Array
from excise.report import Report, make_report

# Chosen among a few layouts by accuracy on a held-out part of the training data: the smallest of the best.
PARAMETERS: dict[str, Any] = {"codebooks": 64, "pairs": 64, "key_dim": 8, "key_epochs": 5, "batch_size": 64}


@dataclass(frozen=True)
class Split:
    """Digits in two disjoint parts, each of all ten classes."""

    train: tuple[Array, Array]  # features (n, f), labels (n,)
    test: tuple[Array, Array]


@dataclass(frozen=True)
class DemoReport:
    """What the demo did, and with what effect."""

    forgotten: int
    parameters: dict[str, Any]
    examples: dict[str, int]
    training_seconds: float
    forgetting_milliseconds: float
    report: Report  # as `make_report` gives it


def run(
    forget: int = 8, random_state: int = 0, n_jobs: int | None = None, verbose: int = 0, **parameters: Any
) -> DemoReport:
    """Train on digits, forget one from the log of activations that training kept, and measure on test data."""
    if forget not in range(10):
        raise InputError(f"there is no digit {forget}: choose one from 0 to 9")
    split = split_digits(random_state)
    model = KeyValueClassifier(
        **{**PARAMETERS, **parameters}, random_state=random_state, n_jobs=n_jobs, verbose=verbose
    )
    began = time.perf_counter()
    model.fit(*split.train)
    trained = time.perf_counter()
    request = model.forget(forget)
    took = request.milliseconds or 0.0
    measured = make_report(
        model, *split.test, train=split.train, milliseconds={request.id: took}, random_state=random_state
    )
    return DemoReport(
        forgotten=forget,
        parameters=model.get_params(),
        examples={"train": len(split.train[1]), "test": len(split.test[1])},
        training_seconds=trained - began,
        forgetting_milliseconds=took,
        report=measured,
    )


def split_digits(seed: int) -> Split:
    """80% to train, 20% to test."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(x.astype(np.float32), y, test_size=0.2, stratify=y, random_state=seed)
    return Split((x, y), (x_test, y_test))
