"""Contenders timed in turns, so that a slow minute of the machine falls on all of them."""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Contender:
    """Something to time: `run` handles `work` units (examples, mostly) a call."""

    name: str
    run: Callable[[], Any]
    work: float = 1
    details: Row = field(default_factory=dict)


def interleave(contenders: Iterable[Contender], repeats: int, budget: float = 30) -> dict[str, list[float]]:
    """Seconds of every call: a warm-up each, then rounds of one call each.

    Who has used its `budget` of seconds is left out of later rounds, but never before its second call.
    """
    contenders = list(contenders)
    for contender in contenders:
        contender.run()
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for _ in range(repeats):
        for contender in contenders:
            spent = seconds[contender.name]
            if len(spent) < 2 or sum(spent) < budget:
                began = time.perf_counter()
                contender.run()
                spent.append(time.perf_counter() - began)
    return seconds


def measure(case: str, contenders: Iterable[Contender], repeats: int, budget: float = 30) -> list[Row]:
    """One row for each contender; `rate` is work a second by the median call."""
    contenders = list(contenders)
    seconds = interleave(contenders, repeats, budget)
    return [row(case, contender, seconds[contender.name]) for contender in contenders]


def row(case: str, contender: Contender, seconds: list[float]) -> Row:
    """Median and best of the calls."""
    median = statistics.median(seconds)
    return {
        "case": case,
        "subject": contender.name,
        "seconds": median,
        "best_seconds": min(seconds),
        "repeats": len(seconds),
        "work": contender.work,
        "rate": contender.work / median,
        **contender.details,
    }


def fastest(rows: Iterable[Row], name: str, **details: Any) -> Row:
    """The row with the best rate, under another name; `form` keeps its own."""
    best = max(rows, key=lambda r: r["rate"])
    return {**best, "subject": name, "form": best["subject"], **details}
