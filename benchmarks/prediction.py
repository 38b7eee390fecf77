"""Prediction from features, one example and a thousand: ours, torch's, and a plain logistic regression's."""

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn import functional

from benchmarks.inputs import Settings, dataset, source
from benchmarks.peers.torch_search import TorchSearch
from benchmarks.timing import Contender, Row, fastest, measure
from excise import KeyValueClassifier

SKLEARN = "scikit-learn LogisticRegression"
Predict = Callable[[np.ndarray], np.ndarray]


def run(settings: Settings) -> Iterator[Row]:
    """Latency of single examples, then throughput of a thousand at once."""
    model, linear = fitted(settings)
    x = np.ascontiguousarray(dataset(settings, 10).x_test[: settings.size(1000, 200)])
    expected = model.bottleneck_.logits(x, settings.threads).argmax(1)
    for row in [*latency(model, linear, x, expected, settings), *throughput(model, linear, x, expected, settings)]:
        yield {**row, "features": source(settings, 10)}


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


def ours(model: KeyValueClassifier, settings: Settings) -> dict[str, Predict]:
    """The estimator with all its checks, and the bottleneck without."""
    return {
        "excise, predict": model.predict,
        "excise, bare bottleneck": lambda x: model.bottleneck_.logits(x, settings.threads).argmax(1),
    }


def torch_predictions(model: KeyValueClassifier, queries: int) -> dict[str, Predict]:
    """Projection, each form of search, embedding_bag."""
    b = model.bottleneck_
    f, c, d = b.projection.shape
    projection = torch.from_numpy(b.projection.reshape(f, c * d))
    values = torch.from_numpy(np.array(b.values)).reshape(-1, b.values.shape[2])
    offsets = torch.arange(c) * b.keys.shape[1]

    def predict(x: np.ndarray, search: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        with torch.inference_mode():
            z = (torch.from_numpy(x) @ projection).view(len(x), c, d)
            bag = torch.from_numpy(search(z.numpy()))[:, :, 0] + offsets
            return functional.embedding_bag(bag, values, mode="mean").argmax(1).numpy()

    search = TorchSearch(np.array(b.keys), 1)
    return {
        f"torch form: {form.name}": lambda x, s=form.search: predict(x, s) for form in search.prediction_forms(queries)
    }


def latency(
    model: KeyValueClassifier, linear: LogisticRegression, x: np.ndarray, expected: np.ndarray, settings: Settings
) -> Iterator[Row]:
    """Half and 99 of a hundred single examples are answered within p50 and p99."""
    case, calls = "prediction, batch of 1", settings.size(600, 20)
    torch_forms = torch_predictions(model, 1)
    verify({**ours(model, settings), **torch_forms}, x[:1], expected[:1])
    trial = time_calls(torch_forms, x, calls // 10)
    best = min(trial, key=lambda name: float(np.median(trial[name])))
    contenders = {**ours(model, settings), "torch, fastest form": torch_forms[best], SKLEARN: linear.predict}
    for name, seconds in time_calls(contenders, x, calls).items():
        p50, p99 = (float(np.percentile(seconds, q)) for q in (50, 99))
        row = {"case": case, "subject": name, "seconds": p50, "p99_seconds": p99, "best_seconds": min(seconds)}
        form = {"form": best.removeprefix("torch form: ")} if name.startswith("torch") else {}
        yield {**row, "repeats": len(seconds), "work": 1, "rate": 1 / p50, "unit": "examples/s", **form}


def time_calls(contenders: dict[str, Predict], x: np.ndarray, calls: int, run_length: int = 20) -> dict[str, list]:
    """Seconds of single predictions, in turns of a few."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for start in range(0, calls + run_length, run_length):  # the first turn warms up
        for name, predict in contenders.items():
            for i in range(start, start + run_length):
                one = x[i % len(x)][None]
                began = time.perf_counter()
                predict(one)
                if start:
                    seconds[name].append(time.perf_counter() - began)
    return seconds


def throughput(
    model: KeyValueClassifier, linear: LogisticRegression, x: np.ndarray, expected: np.ndarray, settings: Settings
) -> Iterator[Row]:
    """Examples a second, a thousand at once."""
    case = f"prediction, batch of {len(x):,}"
    peers = torch_predictions(model, len(x))
    verify({**ours(model, settings), **peers}, x, expected)
    predictions = {**ours(model, settings), **peers, SKLEARN: linear.predict}
    contenders = [Contender(name, lambda p=predict: p(x), len(x)) for name, predict in predictions.items()]
    rows = [{**row, "unit": "examples/s"} for row in measure(case, contenders, settings.size(9, 2), budget=10)]
    yield from rows
    yield fastest((row for row in rows if row["subject"].startswith("torch")), "torch, fastest form")


def verify(predictions: dict[str, Predict], x: np.ndarray, expected: np.ndarray) -> None:
    """All predict nearly the same; of keys that are copies of one example, each takes another."""
    for name, predict in predictions.items():
        share = float((np.asarray(predict(x)) == expected).mean())
        if share < (0.9 if len(x) > 1 else 0):
            raise RuntimeError(f"{name} gives other predictions: {share:.2%} equal")
