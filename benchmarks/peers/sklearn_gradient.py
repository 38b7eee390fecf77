"""The full gradient as scikit-learn computes it: L-BFGS steps of logistic regression on a scipy sparse matrix."""

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
from scipy.sparse import csr_array
from scipy.special import softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model._linear_loss import LinearModelLoss


def one_hot(codes: np.ndarray, pairs: int) -> csr_array:
    """Codes (n, c, k) as a sparse matrix (n, c*m), so that its product with the values is the mean decoder."""
    n, c, k = codes.shape
    columns = (codes + np.arange(c, dtype=np.int32)[:, None] * pairs).reshape(-1).astype(np.int32)
    data = np.full(n * c * k, 1 / (c * k), np.float32)
    return csr_array((data, columns, np.arange(0, n * c * k + 1, c * k, dtype=np.int32)), shape=(n, c * pairs))


def gradient(x: csr_array, labels: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Gradient (c*m, v) of the mean cross-entropy, by two sparse products: what scikit-learn's must equal."""
    residuals = softmax(x @ values.reshape(-1, values.shape[2]), axis=1)
    residuals[np.arange(len(labels)), labels] -= 1
    return x.T @ (residuals / np.float32(len(labels)))


def time_iterations(x: csr_array, labels: np.ndarray, iterations: int) -> dict[str, float]:
    """Seconds an iteration, and seconds and number of the gradient evaluations inside."""
    model = LogisticRegression(C=1e6, max_iter=iterations, tol=1e-12, fit_intercept=False)
    with evaluations() as seconds, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        began = time.perf_counter()
        model.fit(x, labels)
        whole = time.perf_counter() - began
    return {
        "iterations": int(np.max(model.n_iter_)),
        "evaluations": len(seconds),
        "seconds_an_iteration": whole / int(np.max(model.n_iter_)),
        "seconds_an_evaluation": float(np.median(seconds)),
        "best_seconds_an_evaluation": min(seconds),
    }


@contextmanager
def evaluations() -> Iterator[list[float]]:
    """Seconds of every call that scikit-learn makes for a loss and its gradient."""
    seconds: list[float] = []
    original = LinearModelLoss.loss_gradient

    def timed(*positional: object, **named: object) -> object:
        began = time.perf_counter()
        found = original(*positional, **named)
        seconds.append(time.perf_counter() - began)
        return found

    with mock.patch.object(LinearModelLoss, "loss_gradient", timed):
        yield seconds
