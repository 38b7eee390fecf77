"""Accuracy and loss against the size of the last request's mask, thinned for a picture."""

from typing import Any

import numpy as np

from excise.audit.subject import Skip, Subject
from excise.bottleneck.model import Bottleneck
from excise.features.arrays import Array
from excise.forgetting.curve import Curve, trace
from excise.forgetting.ranking import Ranking, rank_by_activations, rank_codes_by_activations
from excise.forgetting.requests import Request, mask_in_force, unpack
from excise.forgetting.sizes import Goal, smallest

POINTS = 300  # at most


def measure_curve(subject: Subject, forget_set: Any) -> dict[str, Any] | None:
    """Every size of the last mask, the other requests in force; None where the last request has no mask."""
    try:
        return _curve(subject, subject.requests[-1], forget_set)
    except Skip as reason:
        subject.skip("curve", str(reason))
        return None


def _curve(subject: Subject, last: Request, forget_set: Any) -> dict[str, Any]:
    if last.by == "exact":
        raise Skip("the last request was carried out exactly: it has no mask, and so no size")
    if last.mask is None:
        raise Skip("the last request was erased, and its mask with it")
    model, b = subject.model, subject.model.bottleneck_
    shape: Any = b.keys.shape[:2]
    base = b.with_mask(mask_in_force(model.base_mask_, tuple(subject.requests[:-1]), shape))
    live = np.ones(shape, bool) if base.mask is None else ~base.mask
    labels = [model._label(label) for label in last.classes]
    ranking, origin = _ranking(subject, labels, base, forget_set)
    free = live.reshape(-1)[ranking.pairs]
    ranking = Ranking(ranking.pairs[free], ranking.counts[free], "activations", ranking.examples)
    chosen = unpack(last.mask, shape) & live
    size = int(chosen.sum())
    nested = size <= ranking.largest and np.array_equal(ranking.mask(size, shape), chosen)
    groups = np.where(np.isin(subject.labels, labels), 1, np.where(subject.forget, 2, 0))
    found = trace(
        base,
        subject.X,
        subject.labels,
        groups,
        ranking.ranks(shape),
        ranking.largest,
        group_count=int(groups.max()) + 1,  # other forgotten classes are in neither accuracy
        threads=subject.threads,
        working_memory=subject.memory,
        verbose=subject.verbose,
    )
    shown = min(size, ranking.largest)
    points = _thinned(found, shown)
    columns = {
        f"{group}_{what}": getattr(found, what)[g][points].tolist()
        for g, group in enumerate(("retain", "forget"))
        for what in ("accuracy", "loss")
    }
    why = None if nested else "The chosen mask is no beginning of this ranking: it is marked by its number of pairs."
    return {
        "request": last.id,
        "classes": last.classes,
        "ranked_by": origin,
        "sizes": ranking.largest + 1,
        "pairs": points.tolist(),
        **columns,
        "chosen": {"pairs": size, "shown_at": shown, "on_the_curve": bool(nested), "note": why},
        "zero_from": smallest(found.accuracy[1], found.loss[1], Goal()),
    }


def _ranking(subject: Subject, labels: list[int], base: Bottleneck, forget_set: Any) -> tuple[Ranking, str]:
    """The pairs that training examples of the classes selected, most often first, and where that is known from."""
    model, m = subject.model, base.keys.shape[1]
    log = model.activations_
    if log is not None and all(len(log.of(label)[0]) for label in labels):
        counts = np.zeros(len(log.totals), np.int64)
        for label in labels:
            pairs, own = log.of(label)
            counts[pairs] += own
        selected = counts.nonzero()[0]
        others = np.maximum(log.totals[selected].astype(np.int64) - counts[selected], 0)
        return rank_by_activations(selected, counts[selected], 0, others), "the log of activations"
    codes = model._training_codes_of(labels)
    origin = "the codes of the training data"
    if codes is None or not len(codes):
        if forget_set is not None:
            X, origin = model._features(forget_set), "the forget set given"
        elif subject.train is not None:
            X, origin = subject.train[0][np.isin(subject.train[1], labels)], "the training data given"
        else:
            raise Skip("it ranks what training examples selected, and there is neither log nor code: pass forget_set")
        codes = base.codes(X, None, subject.threads, subject.memory)
    return rank_codes_by_activations(codes, m, model._others_by_pair(labels)), origin


def _thinned(curve: Curve, chosen: int) -> Array:
    """Sizes to show, the ends and the chosen among them: half evenly by size, half by how far accuracies moved."""
    largest = curve.hits.shape[1] - 1
    if largest < POINTS:
        return np.arange(largest + 1)
    moved = np.concatenate([[0.0], np.abs(np.diff(curve.accuracy[:2], axis=1)).sum(axis=0).cumsum()])
    half = POINTS // 2 - 1
    even = np.linspace(0, largest, half).round().astype(np.int64)
    steep = np.searchsorted(moved, np.linspace(0, moved[-1], half)).clip(max=largest)
    found: Array = np.unique(np.concatenate([even, steep, [chosen]]))
    return found
