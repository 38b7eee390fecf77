"""A tour in seconds: train on scikit-learn's digits, forget one of them, and report what happened to the others."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.errors import InputError
from excise.estimator import KeyValueClassifier
from excise.features.arrays import Array
from excise.forgetting.masks import activation_counts, most_activated

# Chosen among a few layouts by accuracy on the held-out part of the training data: the smallest of the best.
PARAMETERS: dict[str, Any] = {"codebooks": 64, "pairs": 64, "key_dim": 8, "key_epochs": 5, "batch_size": 64}
MASK_SIZES = 32  # of the geometric grid from which the mask's size is chosen


@dataclass(frozen=True)
class Split:
    """Digits in three disjoint parts, each of all ten classes."""

    train: tuple[Array, Array]  # features (n, f), labels (n,)
    held_out: tuple[Array, Array]  # a part of the training data, to choose the mask's size with
    test: tuple[Array, Array]


@dataclass(frozen=True)
class Accuracies:
    """Test accuracy on the classes that stay and on the one to forget."""

    retain: float
    forget: float


@dataclass(frozen=True)
class DemoReport:
    """What the demo did, and with what effect."""

    forgotten: int
    parameters: dict[str, Any]
    examples: dict[str, int]
    training_seconds: float
    before: Accuracies
    after: Accuracies
    control: Accuracies  # the same model with the class's logit set to minus infinity
    pairs_masked: int
    pairs: int
    reached_zero: bool  # on held-out training data
    choosing_milliseconds: float
    forgetting_milliseconds: float


def run(
    forget: int = 8, random_state: int = 0, n_jobs: int | None = None, verbose: int = 0, **parameters: Any
) -> DemoReport:
    """Train on digits, mask the pairs that digit `forget` activates most, and measure on test data."""
    if forget not in range(10):
        raise InputError(f"there is no digit {forget}: choose one from 0 to 9")
    split = split_digits(random_state)
    model = KeyValueClassifier(
        **{**PARAMETERS, **parameters}, random_state=random_state, n_jobs=n_jobs, verbose=verbose
    )
    began = time.perf_counter()
    model.fit(*split.train)
    trained = time.perf_counter()
    size, reached_zero = choose_size(model, split.held_out, forget)
    chosen = time.perf_counter()
    forgetful = model.with_mask(forget_mask(model, forget, size))
    forgotten = time.perf_counter()
    return DemoReport(
        forgotten=forget,
        parameters=model.get_params(),
        examples={"train": len(split.train[1]), "held_out": len(split.held_out[1]), "test": len(split.test[1])},
        training_seconds=trained - began,
        before=measure(model, split.test, forget),
        after=measure(forgetful, split.test, forget),
        control=measure(model, split.test, forget, knock_out=True),
        pairs_masked=size,
        pairs=model.codebooks * model.pairs,
        reached_zero=reached_zero,
        choosing_milliseconds=1000 * (chosen - trained),
        forgetting_milliseconds=1000 * (forgotten - chosen),
    )


def split_digits(seed: int) -> Split:
    """60% to train, 20% of the training data held out, 20% to test."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(x.astype(np.float32), y, test_size=0.2, stratify=y, random_state=seed)
    x, x_held, y, y_held = train_test_split(x, y, test_size=0.25, stratify=y, random_state=seed)
    return Split((x, y), (x_held, y_held), (x_test, y_test))


def forget_counts(model: KeyValueClassifier, label: int) -> Array:
    """How often the training examples of one class selected each pair: (c, m)."""
    return activation_counts(model.training_codes_[model.training_labels_ == label], model.pairs)


def forget_mask(model: KeyValueClassifier, label: int, size: int) -> Array:
    """The mask (c, m) of the `size` pairs that the class activates most."""
    return most_activated(forget_counts(model, label), size)


def choose_size(model: KeyValueClassifier, held_out: tuple[Array, Array], label: int) -> tuple[int, bool]:
    """The smallest size of a grid that leaves no held-out example of the class recognised, and whether one did."""
    x, y = held_out
    counts = forget_counts(model, label)
    most = int((counts > 0).sum())
    for size in np.unique(np.geomspace(1, most, MASK_SIZES).astype(int)).tolist():
        forgetful = model.with_mask(most_activated(counts, size))
        if not (forgetful.predict(x[y == label]) == label).any():
            return size, True
    return most, False


def measure(model: KeyValueClassifier, data: tuple[Array, Array], label: int, knock_out: bool = False) -> Accuracies:
    """Accuracy on all other classes and on `label`; `knock_out` forbids the label as a prediction."""
    x, y = data
    logits = model.logits(x)
    if knock_out:
        logits[:, model.classes_ == label] = -np.inf
    right = model.classes_[logits.argmax(axis=1)] == y
    return Accuracies(float(right[y != label].mean()), float(right[y == label].mean()))
