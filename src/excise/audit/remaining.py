"""What of the forgotten classes is left: in the live values, behind masks, in logs and codes, and outside the model."""

from typing import Any

import numpy as np

from excise.audit.subject import Subject
from excise.bottleneck.model import Bottleneck
from excise.forgetting.requests import Request

Part = dict[str, Any]


def measure_remaining(subject: Subject) -> Part:
    """The forgotten classes' columns of the live values before and after, and what else is still there."""
    sides = {"before": subject.before, "after": subject.model.bottleneck_, "oracle": subject.oracle}
    found = {name: None if b is None else _columns(b, subject.forgotten) for name, b in sides.items()}
    states = {request.state for request in subject.requests}
    return {
        "classes": [
            {"class": subject.classes[label], **{name: f and f[i] for name, f in found.items()}}
            for i, label in enumerate(subject.forgotten)
        ],
        "state": "erased" if states == {"erased"} else "partly erased" if "erased" in states else "hidden",
        "statements": [*_about_requests(subject), *_about_data(subject)],
    }


def _columns(bottleneck: Bottleneck, labels: list[int]) -> list[Part]:
    """For each class, how many live pairs speak for it before all others, and its mean share of those that speak.

    A pair whose largest value is not unique, as that of a pair which was never trained, speaks for none.
    """
    classes = bottleneck.values.shape[2]
    first, shares, speaking, pairs = np.zeros(classes, np.int64), np.zeros(classes), 0, 0
    for codebook, values in enumerate(bottleneck.values):
        live = values if bottleneck.mask is None else values[~bottleneck.mask[codebook]]
        highest = live.max(axis=1, keepdims=True)
        clear = (live == highest).sum(axis=1) == 1
        first += np.bincount(live[clear].argmax(axis=1), minlength=classes)
        e = np.exp(live[clear].astype(np.float64) - highest[clear])
        shares += (e / e.sum(axis=1, keepdims=True)).sum(axis=0)
        pairs, speaking = pairs + len(live), speaking + int(clear.sum())
    return [
        {
            "live": pairs,
            "speaking": speaking,
            "largest": int(first[label]),
            "share": float(first[label] / max(1, pairs)),
            "softmax": float(shares[label] / max(1, speaking)),
        }
        for label in labels
    ]


def _about_requests(subject: Subject) -> list[str]:
    by_state: dict[str, list[Request]] = {}
    for request in subject.requests:
        by_state.setdefault(request.state, []).append(request)
    said = []
    if "masked" in by_state:
        said.append(
            f"{_numbered(by_state['masked'])}: masked pairs are hidden, not gone. Their keys and values are still in "
            "the model, and one flip of the mask restores what was forgotten, until it is erased."
        )
    if "exact" in by_state:
        kept = any(request.before is not None for request in by_state["exact"])
        tail = "are kept with the model until it is erased, and can be restored" if kept else "are not kept"
        said.append(
            f"{_numbered(by_state['exact'])}: the values were trained again without what was forgotten; those before "
            f"{tail}."
        )
    if "erased" in by_state:
        said.append(f"{_numbered(by_state['erased'])}: erased; nothing in the model can bring back what was masked.")
    return said


def _about_data(subject: Subject) -> list[str]:
    model = subject.model
    log = model.activations_
    entries = 0 if log is None else sum(len(log.of(label)[0]) for label in subject.forgotten)
    codes = model._training_codes_of(subject.forgotten)
    examples = 0 if codes is None else len(codes)
    return [
        f"The log of activations holds {entries:,} entries of the forgotten classes: personal data, kept in the model."
        if entries
        else "No log of activations of the forgotten classes is kept.",
        f"Codes of {examples:,} forgotten training examples are in memory beside the model; their features can be "
        "reconstructed from them."
        if examples
        else "No codes of forgotten training examples are in memory beside the model.",
        "Live keys were placed with the help of all the data that drew them, and some are copies of a projected "
        "training example.",
        "The frozen backbone is unchanged: it still computes features that tell the forgotten classes apart.",
        "Copies of the model that were written before, and backups, still hold everything.",
    ]


def _numbered(requests: list[Request]) -> str:
    numbers = ", ".join(str(request.id) for request in requests)
    return f"Request{'s' if len(requests) > 1 else ''} {numbers}"
