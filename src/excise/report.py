"""The report of a request to forget, as plain data: what was done, beside trivial controls and exact re-fits."""

import platform
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import numpy as np
import sklearn

from excise.audit.accuracy import measure_accuracy, measure_collateral, measure_distance, measure_redirection
from excise.audit.cost import count_cost
from excise.audit.remaining import measure_remaining
from excise.audit.sizes import measure_curve
from excise.audit.subject import Subject
from excise.audit.words import limits_of, summarise, warnings_of
from excise.bottleneck import kernels
from excise.estimator import KeyValueClassifier

FORMAT, FORMAT_VERSION = "excise-report", 1

Report = dict[str, Any]


def make_report(
    model: KeyValueClassifier,
    X: Any,
    y: Any,
    before: KeyValueClassifier | None = None,
    *,
    train: tuple[Any, Any] | None = None,
    forget_set: Any = None,
    backbone_macs: int | None = None,
    milliseconds: Mapping[int, float] | None = None,
    random_state: Any = 0,
    verbose: int = 0,
) -> Report:
    """Measure what the requests in force did; returns plain data, fit for JSON. docs/report.md says how to read it.

    Parameters
    ----------
    model : KeyValueClassifier
        With at least one request in force.
    X, y : array-likes (n, f) and (n,)
        Labelled test examples, of every forgotten class and of retained ones.
    before : KeyValueClassifier, optional
        The model before the requests. Without it the masks in force are dropped, and the values that an exact request
        replaced are taken; where something was erased there is then nothing to compare with.
    train : pair of array-likes, optional
        The training data, (X, y): read where the model holds no codes of it, and to draw new keys without what was
        forgotten (which takes as long as training did).
    forget_set : array-like (n, f), optional
        Training examples of the class, to rank pairs for the curve where the model holds neither log nor codes.
    backbone_macs : int, optional
        Multiply-adds of the backbone for one example; without it, costs that include it are given as formulae.
    milliseconds : mapping, optional
        How long `forget` said that it took, by the number of the request; the model does not keep that.
    random_state : int, RandomState or None
        Draws the controls and the seeds of the second re-fit.

    Returns
    -------
    dict
        `format`, `format_version`, `summary`, `asked_and_done`, `accuracy`, `distance`, `curve`, `redirection`,
        `collateral`, `cost`, `remaining`, `limits`, `warnings`, `skipped` and `times`. A part that could not be
        measured is None, and `skipped` says why. All but `times` is the same whenever the same is measured again.
    """
    began = time.perf_counter()
    subject = Subject(model, X, y, before, train, random_state, verbose)
    parts: Report = {
        "asked_and_done": _asked_and_done(subject),
        "accuracy": measure_accuracy(subject),
        "distance": measure_distance(subject),
        "curve": measure_curve(subject, forget_set),
        "redirection": measure_redirection(subject),
        "collateral": measure_collateral(subject),
        "cost": count_cost(subject, backbone_macs),
        "remaining": measure_remaining(subject),
        "limits": limits_of(subject.requests),
    }
    parts["warnings"] = warnings_of(parts, subject.requests)
    parts["skipped"] = subject.skipped
    times = {
        "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "report_seconds": time.perf_counter() - began,
        "oracle_seconds": subject.seconds.get("oracle"),
        "oracle_new_keys_seconds": subject.seconds.get("oracle_new_keys"),
        "forget_milliseconds": [
            {"request": r.id, "milliseconds": (milliseconds or {}).get(r.id, r.milliseconds)} for r in subject.requests
        ],
    }
    return {"format": FORMAT, "format_version": FORMAT_VERSION, "summary": summarise(parts), **parts, "times": times}


def _asked_and_done(subject: Subject) -> Report:
    """The records of all requests, what they come to, and what measured them."""
    from excise import __version__

    model, b = subject.model, subject.model.bottleneck_
    budget = model.budget()
    return {
        "requests": [request.to_dict(timed=False) for request in model.requests_],
        "forgotten": [subject.classes[label] for label in subject.forgotten],
        "classes": len(subject.classes),
        "totals": {
            "pairs": budget["pairs"],
            "masked": budget["pairs"] - budget["live"],
            "masked_by_requests": None if subject.before is None else int(subject.newly_masked().sum()),
            "erased": 0 if model.erased_ is None else int(model.erased_.sum()),
            "live": budget["live"],
            "fewest_live_in_a_codebook": budget["fewest_live"],
            "displaced": budget["displaced"],
        },
        "test_examples": {group: int(own.sum()) for group, own in subject.groups.items()},
        "versions": {
            "excise": __version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scikit-learn": sklearn.__version__,
        },
        "kernels": kernels.BACKEND,
        "layout": {**b.axes, "top_k": b.top_k, "decoder": b.decoder},
    }
