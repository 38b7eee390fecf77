"""What every compared model gets right, how far it is from the exact re-fit, and where the forgotten examples go."""

from typing import Any

import numpy as np

from excise.audit.subject import Subject
from excise.features.arrays import Array
from excise.metrics import ROWS, cross_entropies, divergences, total_variation, wilson_interval

Part = dict[str, Any]

FALL = 3.0  # points of accuracy that a retained class may lose before it is named
NAMES = {
    "before": ("before", "The model as it was before the requests."),
    "after": ("after", "The model as it is now."),
    "knock_out": ("logit knock-out", "The trivial control: before, with the logits of forgotten classes at -infinity."),
    "random_mask": ("random mask", "Before, under as many masked pairs, drawn from all live ones."),
    "matched_mask": (
        "frequency-matched mask",
        "Before, under as many masked pairs that training examples select as often, drawn without regard to class.",
    ),
    "oracle": ("exact re-fit", "Values trained again without what was forgotten; same keys, same start, same order."),
    "oracle_other_order": (
        "exact re-fit, another order",
        "The same from another seed: how far two honest re-fits differ, the noise floor.",
    ),
    "oracle_new_keys": ("exact re-fit, new keys", "Keys and values drawn and trained anew without what was forgotten."),
}
COMPARED = ("before", "after", "knock_out", "oracle_other_order", "oracle_new_keys")  # with the oracle
REDIRECTED = ("after", "oracle", "knock_out")
APART = (
    ("after", "oracle"),
    ("after", "knock_out"),
    ("knock_out", "oracle"),
    ("oracle_other_order", "oracle"),
)


def measure_accuracy(subject: Subject) -> Part:
    """A row for the model before and after, for every control and for every re-fit."""
    rows = {name: _row(subject, name) if name in subject.logits else None for name in NAMES}
    before = rows["before"]
    for row in rows.values():
        if row is not None and before is not None and before["retain"]["accuracy"] > 0:
            row["retain_change"] = row["retain"]["accuracy"] / before["retain"]["accuracy"] - 1
    return rows


def _row(subject: Subject, name: str) -> Part:
    draws = [_measured(subject, logits) for logits in subject.logits[name]]
    row: Part = {"name": NAMES[name][0], "what": NAMES[name][1], "draws": len(draws)}
    for group in subject.groups:
        parts = [draw[group] for draw in draws]
        row[group] = None if parts[0] is None else _mean(parts)
    return {**row, "retain_change": None}


def _measured(subject: Subject, logits: Array) -> Part:
    """What one table of logits (n, v) gets right, and its mean loss."""
    right, loss = np.empty(len(logits), bool), np.empty(len(logits))
    for start in range(0, len(logits), ROWS):
        part = slice(start, start + ROWS)
        right[part] = logits[part].argmax(axis=1) == subject.labels[part]
        loss[part] = cross_entropies(logits[part], subject.labels[part])
    return {
        group: _seen(int(right[own].sum()), int(own.sum()), float(loss[own].mean())) if own.any() else None
        for group, own in subject.groups.items()
    }


def _seen(right: float, examples: int, loss: float) -> Part:
    return {
        "examples": examples,
        "right": right,
        "accuracy": right / examples,
        "interval": list(wilson_interval(right, examples) or ()),
        "loss": loss if np.isfinite(loss) else None,
    }


def _mean(draws: list[Part]) -> Part:
    """One draw as it is; several as their mean, the lowest and the highest accuracy beside it."""
    if len(draws) == 1:
        return {**draws[0], "spread": None}
    right = sum(draw["right"] for draw in draws) / len(draws)
    seen = [draw["accuracy"] for draw in draws]
    loss = float(np.mean([draw["loss"] for draw in draws]))
    return {**_seen(right, draws[0]["examples"], loss), "spread": [min(seen), max(seen)]}


def measure_distance(subject: Subject) -> Part | None:
    """How far the predictions of each model are from those of the exact re-fit."""
    if "oracle" not in subject.logits:
        subject.skip("distance", "there is no exact re-fit to measure it to")
        return None
    oracle = subject.logits["oracle"][0]
    rows: Part = {}
    for name in COMPARED:
        rows[name] = None
        if name in subject.logits:
            rows[name] = _distance(subject, subject.logits[name][0], oracle)
        else:
            subject.skip(f"distance.{name}", "that model was not measured")
    return {"to": "oracle", "unit": "nats", "rows": rows}


def _distance(subject: Subject, a: Array, b: Array) -> Part:
    apart, agrees = divergences(a, b), a.argmax(axis=1) == b.argmax(axis=1)
    return {
        group: {"divergence": float(apart[own].mean()), "agreement": float(agrees[own].mean())} if own.any() else None
        for group, own in subject.groups.items()
    }


def measure_redirection(subject: Subject) -> list[Part] | None:
    """For every forgotten class, what its test examples are taken for."""
    if not subject.forgotten:
        subject.skip("redirection", "no class was forgotten, only single examples")
        return None
    best, found = subject.best, []
    for label in subject.forgotten:
        own = subject.labels == label
        counts = {name: np.bincount(b[own], minlength=len(subject.classes)) for name, b in best.items()}
        row = {"class": subject.classes[label], "examples": int(own.sum())}
        row |= {name: _destinations(subject, counts[name]) if name in counts else None for name in REDIRECTED}
        row["distance"] = {
            f"{a}_to_{b}": total_variation(counts[a], counts[b]) if {a, b} <= set(counts) else None for a, b in APART
        }
        found.append(row)
    for name in REDIRECTED:
        if name not in best:
            subject.skip(f"redirection.{name}", "that model was not measured")
    return found


def _destinations(subject: Subject, counts: Array) -> list[Part]:
    order = np.argsort(-counts, kind="stable").tolist()
    return [{"class": subject.classes[i], "count": int(counts[i])} for i in order if counts[i]]


def measure_collateral(subject: Subject) -> Part:
    """Accuracy of every retained class before and after, the worst change first."""
    v = len(subject.classes)
    examples = np.bincount(subject.labels, minlength=v)
    right = {
        name: np.bincount(subject.labels[best == subject.labels], minlength=v)
        for name, best in subject.best.items()
        if name in ("before", "after", "oracle")
    }
    rows = []
    for label in np.setdiff1d(examples.nonzero()[0], subject.forgotten).tolist():
        seen = {name: float(hits[label] / examples[label]) for name, hits in right.items()}
        change = 100 * (seen["after"] - seen["before"]) if "before" in seen else None
        rows.append(
            {
                "class": subject.classes[label],
                "examples": int(examples[label]),
                "before": seen.get("before"),
                "after": seen["after"],
                "oracle": seen.get("oracle"),
                "change_points": change,
                "flagged": change is not None and change < -FALL,
            }
        )
    rows.sort(key=lambda row: row["change_points"] or 0.0)
    return {"flagged_below_points": -FALL, "classes": rows}
