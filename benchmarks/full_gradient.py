"""The full gradient over cached codes, a convex solver's step, against scikit-learn's L-BFGS on a sparse matrix."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.inputs import Settings, codes, dataset, source
from benchmarks.peers import sklearn_gradient, torch_training
from benchmarks.timing import Contender, Row, measure
from excise.bottleneck import kernels

CASE = "full gradient, 10 classes, top-1"
TOLERANCE = 1e-4  # of a coordinate, relative to the largest


def run(settings: Settings) -> Iterator[Row]:
    """Gradients in turns; scikit-learn's own fit afterwards, its evaluations counted and timed one by one."""
    own, labels = codes(settings, 10, 1), dataset(settings, 10).y_train
    shape = (own.shape[1], settings.pairs, 10)
    values = np.random.default_rng(settings.seed).standard_normal(shape, dtype=np.float32)
    for row in measure(CASE, contenders(own, labels, values, settings.threads), settings.size(5, 2), budget=30):
        yield {**row, "unit": "examples/s", "features": source(settings, 10)}
    x = sklearn_gradient.one_hot(own, settings.pairs)
    yield from sklearn_rows(sklearn_gradient.time_iterations(x, labels, settings.size(8, 2)), len(own))


def contenders(own: np.ndarray, labels: np.ndarray, values: np.ndarray, threads: int) -> list[Contender]:
    """Ours and two peers, whose gradients are compared with ours first."""
    x = sklearn_gradient.one_hot(own, values.shape[1])
    bag, tensor_labels = torch_training.bags(own, values.shape[1]), torch_training.torch.from_numpy(labels)
    peers = {
        "scipy sparse products": lambda: sklearn_gradient.gradient(x, labels, values),
        "torch embedding_bag": lambda: torch_training.full_gradient(bag, tensor_labels, values),
    }
    expected = ours(own, labels, values, threads)
    return [
        Contender("excise", lambda: ours(own, labels, values, threads), len(own)),
        *(Contender(name, peer, len(own), None, agreement(name, peer(), expected)) for name, peer in peers.items()),
    ]


def ours(own: np.ndarray, labels: np.ndarray, values: np.ndarray, threads: int) -> np.ndarray:
    """Gradient (c, m, v) of the mean cross-entropy."""
    logits = kernels.logits(own, values, "mean", threads)
    residuals, _ = kernels.cross_entropy(logits, labels, 0.0)
    residuals /= np.float32(len(own))
    return kernels.gradient(own, residuals, values.shape[1], "mean", threads)


def agreement(name: str, gradient: Any, expected: np.ndarray) -> dict[str, float]:
    """Largest difference from ours, relative to the largest coordinate."""
    gap = np.abs(np.asarray(gradient).reshape(expected.shape) - expected)
    worst = float(gap.max() / np.abs(expected).max())
    if worst > TOLERANCE:
        raise RuntimeError(f"{name} gives another gradient: relative difference {worst:g}")
    return {"largest_difference": worst}


def sklearn_rows(found: dict[str, float], examples: int) -> Iterator[Row]:
    """An evaluation alone, and an iteration with all that the solver does around it."""
    counted = {"iterations": found["iterations"], "evaluations": found["evaluations"]}
    for what in ("evaluation", "iteration"):
        seconds = found[f"seconds_an_{what}"]
        yield {
            "case": CASE,
            "subject": f"scikit-learn L-BFGS, one {what}",
            "seconds": seconds,
            "best_seconds": found.get(f"best_seconds_an_{what}", seconds),
            "repeats": counted[f"{what}s"],
            "work": examples,
            "rate": examples / seconds,
            "unit": "examples/s",
            **counted,
        }
