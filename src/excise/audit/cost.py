"""Multiply-adds of the requests and of the exact re-fit, from wherever they have to start."""

from typing import Any

import numpy as np

from excise.audit.subject import Skip, Subject
from excise.forgetting.requests import Request

Part = dict[str, Any]

COLUMNS = ("backbone recomputed", "features cached", "codes or activations kept")
CONVENTION = (
    "As the paper counts: one multiply-add is one operation, and an example that passes costs the backbone and the "
    "bottleneck, which is its projection and its distances to all live keys. Backbone recomputed: every pass starts "
    "from the input, as in the paper, in every epoch of a re-fit too. Features cached: the backbone was run once "
    "before, for everyone. Codes or activations kept: what fit leaves in memory or in the log. Training counts "
    "look-ups and their gradients; the arithmetic of Adam, 18 for each weight in the paper, is left out."
)
UNKNOWN: Part = {"multiply_adds": None, "formula": None}


def count_cost(subject: Subject, backbone: int | None) -> Part:
    """Three columns for every request in force, and for the exact re-fit; `backbone` is multiply-adds of an example."""
    f, c, d = subject.model.bottleneck_.projection.shape
    mask = subject.model.base_mask_ if subject.before is None else subject.before.mask
    pairs = int(np.prod(subject.model.bottleneck_.keys.shape[:2]))
    one = d * (f * c + pairs - (0 if mask is None else int(mask.sum())))
    forget, retained = _known_examples(subject)
    exact = _exact_cells(subject, retained, one, backbone)
    rows: list[Part] = []
    for request in subject.requests:
        n = _examples_of(subject, request, forget)
        kept = {"multiply_adds": 0, "formula": "0"}
        cells = exact if request.by == "exact" else [_cell(n, one, backbone), _cell(n, one, 0), kept]
        recorded = {"examples_read": request.examples_read, "multiply_adds": request.multiply_adds}
        rows.append({"name": f"request {request.id}, by {request.by}", "cells": cells, "as_recorded": recorded})
    rows.append({"name": "exact re-fit", "cells": exact, "as_recorded": None})
    return {
        "convention": CONVENTION,
        "columns": list(COLUMNS),
        "bottleneck_per_example": one,
        "backbone_per_example": backbone,
        "forget_examples": None if forget is None else sum(forget.values()),
        "retained_examples": retained,
        "rows": rows,
    }


def _known_examples(subject: Subject) -> tuple[dict[int, int] | None, int | None]:
    """Training examples of each forgotten class, and all retained ones, where codes or the log tell."""
    try:
        training = subject.training()
        counts = np.bincount(training.labels, minlength=len(subject.classes))
        of_class = {j: int(counts[j]) for j in subject.forgotten}
        kept = int(subject.retained(training.labels, training.rows).sum())
    except Skip:
        log, b = subject.model.activations_, subject.model.bottleneck_
        if log is None:
            return None, None
        slots = len(b.keys) * b.top_k  # pairs that an example selects
        of_class = {j: round(int(log.of(j)[1].sum(dtype=np.int64)) / slots) for j in subject.forgotten}
        kept = round(int(log.totals.sum(dtype=np.int64)) / slots) - sum(of_class.values())
    return of_class if all(of_class.values()) else None, kept


def _examples_of(subject: Subject, request: Request, forget: dict[int, int] | None) -> int | None:
    """How many examples pass for a request that masks."""
    if request.by == "examples":
        return request.size
    if forget is not None:
        return sum(forget[subject.model._label(label)] for label in request.classes)
    return request.examples_read or None


def _exact_cells(subject: Subject, n: int | None, one: int, backbone: int | None) -> list[Part]:
    """The re-fit codes each retained example once; the paper, which keeps nothing, passes them in every epoch."""
    b = subject.model.bottleneck_
    try:
        recipe = subject.recipe()
    except Skip:
        return [UNKNOWN] * len(COLUMNS)
    if n is None:
        return [UNKNOWN] * len(COLUMNS)
    trained = recipe.multiply_adds(n, len(b.keys), b.top_k, len(subject.classes))
    kept = {"multiply_adds": trained, "formula": f"{trained:,}"}
    return [_cell(recipe.epochs * n, one, backbone, trained), _cell(n, one, 0, trained), kept]


def _cell(n: int | None, one: int, backbone: int | None, more: int = 0) -> Part:
    """n passes and `more`; the backbone is 0 where it was run before, and None where its cost is not known."""
    if n is None:
        return UNKNOWN
    passing = f"{one:,}" if backbone == 0 else f"({'backbone' if backbone is None else f'{backbone:,}'} + {one:,})"
    formula = f"{n:,} x {passing}" + (f" + {more:,}" if more else "")
    return {"multiply_adds": None if backbone is None else n * (backbone + one) + more, "formula": formula}
