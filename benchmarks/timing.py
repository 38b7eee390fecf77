"""Contenders timed in turns, so that a slow minute of the machine falls on all of them."""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
REST = 0.02  # seconds in which the threads of the last contender, who wait for more work by spinning, fall asleep
SHORT = 0.1  # seconds; a shorter call would be timed with the caches and threads that others left


@dataclass(frozen=True)
class Contender:
    """Something to time: `run` handles `work` units (examples, mostly) a call; seconds are scaled to `whole`."""

    name: str
    run: Callable[[], Any]
    work: float = 1
    whole: float | None = None
    details: Row = field(default_factory=dict)


def interleave(contenders: Iterable[Contender], repeats: int, budget: float = 30) -> dict[str, list[float]]:
    """Seconds of every call: a warm-up each, then rounds of one call each.

    Who has used its `budget` of seconds is left out of later rounds, but never before its second call.
    """
    contenders = list(contenders)
    short = {contender.name: seconds_of(contender.run) < SHORT for contender in contenders}
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for _ in range(repeats):
        for contender in contenders:
            spent = seconds[contender.name]
            if len(spent) < 2 or sum(spent) < budget:
                time.sleep(REST)
                if short[contender.name]:
                    contender.run()
                spent.append(seconds_of(contender.run))
    return seconds


def seconds_of(act: Callable[[], Any]) -> float:
    """How long one call takes."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def measure(case: str, contenders: Iterable[Contender], repeats: int, budget: float = 30) -> list[Row]:
    """One row for each contender; `rate` is work a second by the median call."""
    contenders = list(contenders)
    seconds = interleave(contenders, repeats, budget)
    return [row(case, contender, seconds[contender.name]) for contender in contenders]


def row(case: str, contender: Contender, seconds: list[float]) -> Row:
    """Median and best of the calls; a note where less than the whole was timed."""
    median, whole = statistics.median(seconds), contender.whole or contender.work
    scale = whole / contender.work
    found = {
        "case": case,
        "subject": contender.name,
        "seconds": median * scale,
        "best_seconds": min(seconds) * scale,
        "repeats": len(seconds),
        "work": whole,
        "rate": contender.work / median,
    }
    if scale > 1:
        found["timed"] = contender.work
        found["note"] = f"timed on {contender.work:,} of {whole:,} examples, scaled"
    return {**found, **contender.details}


def fastest(rows: Iterable[Row], name: str, **details: Any) -> Row:
    """The row with the best rate, under another name; `form` keeps its own."""
    best = max(rows, key=lambda r: r["rate"])
    return {**best, "subject": name, "form": best["subject"], **details}
