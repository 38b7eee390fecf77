"""Prediction from features, one example and a thousand: ours, torch's, and a plain logistic regression's."""

import time
from collections.abc import Callable, Iterator

import numpy as np
from sklearn.linear_model import LogisticRegression

from benchmarks import nearest
from benchmarks.inputs import Settings, dataset, source
from benchmarks.peers.torch_prediction import TorchPrediction
from benchmarks.peers.torch_search import TorchSearch
from benchmarks.timing import REST, Contender, Row, fastest, measure
from excise import KeyValueClassifier
from excise.bottleneck import kernels

SKLEARN, TORCH = "scikit-learn LogisticRegression", "torch, fastest form"
TOLERANCE = 1e-5  # of a logit, relative to the largest, for the same codes
Predict = Callable[[np.ndarray], np.ndarray]


def run(settings: Settings) -> Iterator[Row]:
    """Latency of single examples, then throughput of a thousand at once."""
    model, linear = fitted(settings)
    x = np.ascontiguousarray(dataset(settings, 10).x_test[: settings.size(1000, 200)])
    for row in [*latency(model, linear, x, settings), *throughput(model, linear, x, settings)]:
        yield {**row, "unit": "examples/s", "features": source(settings, 10)}


def fitted(settings: Settings) -> tuple[KeyValueClassifier, LogisticRegression]:
    """Both trained briefly: neither's speed depends on how well."""
    data = dataset(settings, 10)
    model = KeyValueClassifier(
        settings.codebooks,
        settings.pairs,
        key_epochs=1,
        epochs=1,
        random_state=settings.seed,
        n_jobs=settings.threads,
    ).fit(data.x_train, data.y_train)
    linear = LogisticRegression(max_iter=1000, tol=1e-2).fit(data.x_train[:2000], data.y_train[:2000])
    return model, linear


def finalists(
    model: KeyValueClassifier, linear: LogisticRegression, torch: TorchPrediction, settings: Settings
) -> dict[str, Predict]:
    """The estimator with all its checks, the bottleneck without, torch's best form, and the other model."""
    return {
        "excise, predict": model.predict,
        "excise, bare bottleneck": lambda x: model.bottleneck_.logits(x, settings.threads).argmax(1),
        TORCH: torch.predict,
        SKLEARN: linear.predict,
    }


def torch_forms(model: KeyValueClassifier, queries: int) -> dict[str, TorchPrediction]:
    """A prediction for each form of search."""
    search = TorchSearch(np.array(model.bottleneck_.keys), 1)
    return {form.name: TorchPrediction(model.bottleneck_, form.search) for form in search.prediction_forms(queries)}


def latency(model: KeyValueClassifier, linear: LogisticRegression, x: np.ndarray, settings: Settings) -> Iterator[Row]:
    """Half and 99 of a hundred single examples are answered within p50 and p99."""
    calls = settings.size(600, 20)
    forms = torch_forms(model, 1)
    checked = {name: verify(model, form, [x[i : i + 1] for i in range(20)], settings) for name, form in forms.items()}
    trial = time_calls({name: form.predict for name, form in forms.items()}, x, calls // 10)
    best = min(trial, key=lambda name: float(np.median(trial[name])))
    for name, seconds in time_calls(finalists(model, linear, forms[best], settings), x, calls).items():
        p50, p99 = (float(np.percentile(seconds, q)) for q in (50, 99))
        row = {"case": "prediction, batch of 1", "subject": name, "seconds": p50, "p99_seconds": p99}
        row |= {"best_seconds": min(seconds), "repeats": len(seconds), "work": 1, "rate": 1 / p50}
        yield {**row, "form": best, **checked[best]} if name == TORCH else row


def time_calls(contenders: dict[str, Predict], x: np.ndarray, calls: int, run_length: int = 20) -> dict[str, list]:
    """Seconds of single predictions, in turns of a few after one that is not timed."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for start in range(0, calls + run_length, run_length):  # the first turn warms up
        for name, predict in contenders.items():
            time.sleep(REST)
            predict(x[:1])
            for i in range(start, start + run_length):
                one = x[i % len(x)][None]
                began = time.perf_counter()
                predict(one)
                if start:
                    seconds[name].append(time.perf_counter() - began)
    return seconds


def throughput(
    model: KeyValueClassifier, linear: LogisticRegression, x: np.ndarray, settings: Settings
) -> Iterator[Row]:
    """Examples a second, a thousand at once: torch's forms among themselves, then the best of them with the rest."""
    case, repeats = f"prediction, batch of {len(x):,}", settings.size(9, 2)
    forms = torch_forms(model, len(x))
    checked = {name: verify(model, form, [x], settings) for name, form in forms.items()}
    trials = [Contender(name, lambda p=form.predict: p(x), len(x)) for name, form in forms.items()]
    rows = measure(case, trials, repeats, budget=5)
    yield from ({**row, **checked[row["subject"]], "subject": f"torch form: {row['subject']}"} for row in rows)
    best = fastest(rows, TORCH)["form"]
    predictions = finalists(model, linear, forms[best], settings)
    contenders = [Contender(name, lambda p=predict: p(x), len(x)) for name, predict in predictions.items()]
    for row in measure(case, contenders, repeats, budget=10):
        yield {**row, "form": best, **checked[best]} if row["subject"] == TORCH else row


def verify(
    model: KeyValueClassifier, peer: TorchPrediction, batches: list[np.ndarray], settings: Settings
) -> dict[str, float]:
    """Raises unless torch finds keys as near as ours, and the logits that its codes stand for, but for rounding."""
    b, x = model.bottleneck_, np.concatenate(batches)
    f, c, d = b.projection.shape
    z = kernels.project(x, b.projection.reshape(f, c * d), settings.threads).reshape(-1, c, d)
    theirs = np.concatenate([peer.codes(batch) for batch in batches])
    found = nearest.agreement(z, b.keys, b.codes(x, None, settings.threads), theirs)
    expected = kernels.logits(theirs.astype(np.uint16), b.values, b.decoder, settings.threads)
    gap = float(np.abs(peer.logits(theirs) - expected).max() / np.abs(expected).max())
    if gap > TOLERANCE:
        raise RuntimeError(f"a form of torch gives other logits for its codes: relative difference {gap:g}")
    if (model.predict(x) != model.classes_[b.logits(x, settings.threads).argmax(1)]).any():
        raise RuntimeError("the estimator and the bare bottleneck predict different classes")
    return {**found, "largest_difference": gap}
