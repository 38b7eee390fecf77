"""The full gradient over cached codes, a convex solver's step, against scikit-learn's L-BFGS on a sparse matrix."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.inputs import Settings, codes, dataset, source
from benchmarks.peers import sklearn_gradient, torch_training
from benchmarks.timing import Contender, Row, measure
from excise.bottleneck import kernels

CASE = "full gradient, 10 classes, top-1"


def run(settings: Settings) -> Iterator[Row]:
    """Gradients in turns; scikit-learn's own fit afterwards, its evaluations counted and timed one by one."""
    own, labels = codes(settings, 10, 1), dataset(settings, 10).y_train
    shape = (own.shape[1], settings.pairs, 10)
    values = np.random.default_rng(settings.seed).standard_normal(shape, dtype=np.float32)
    x = sklearn_gradient.one_hot(own, settings.pairs)
    bag = torch_training.bags(own, settings.pairs)
    tensor_labels = torch_training.torch.from_numpy(labels)
    contenders = [
        Contender("excise", lambda: ours(own, labels, values, settings), len(own)),
        Contender("scipy sparse products", lambda: sklearn_gradient.gradient(x, labels, values), len(own)),
        Contender("torch embedding_bag", lambda: torch_training.full_gradient(bag, tensor_labels, values), len(own)),
    ]
    checked = agreement([contender.run() for contender in contenders])
    for row in measure(CASE, contenders, settings.size(5, 2), budget=30):
        yield {**row, **checked, "unit": "examples/s", "features": source(settings, 10)}
    yield from sklearn_rows(sklearn_gradient.time_iterations(x, labels, settings.size(8, 2)), len(own))


def ours(own: np.ndarray, labels: np.ndarray, values: np.ndarray, settings: Settings) -> np.ndarray:
    """Gradient (c, m, v) of the mean cross-entropy."""
    logits = kernels.logits(own, values, "mean", settings.threads)
    residuals, _ = kernels.cross_entropy(logits, labels, 0.0)
    residuals /= np.float32(len(own))
    return kernels.gradient(own, residuals, values.shape[1], "mean", settings.threads)


def agreement(gradients: list[Any]) -> dict[str, float]:
    """Largest difference from ours, relative to the largest coordinate."""
    first, *rest = (np.asarray(g).reshape(-1) for g in gradients)
    worst = max(float(np.abs(first - other).max()) for other in rest) / float(np.abs(first).max())
    if worst > 1e-3:
        raise RuntimeError(f"a peer gives another gradient: relative difference {worst:g}")
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
