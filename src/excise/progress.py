"""Progress on standard error: a bar with the time left on a terminal, plain lines elsewhere."""

import math
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import TracebackType
from typing import TextIO

BAR_EVERY, PLAIN_EVERY = 0.1, 10.0  # seconds between two updates
BAR_WIDTH = 10  # leaves room for the loss on a terminal of 80 columns
CLEAR = "\x1b[K"  # from the cursor to the end of the line

_stages: ContextVar[dict[str, float] | None] = ContextVar("stages", default=None)


class Progress:
    """Counts towards a known total; shows nothing where `verbose` is 0."""

    def __init__(self, label: str, total: int, unit: str, verbose: int, stream: TextIO | None = None):
        self._label, self._total, self._unit = label, total, unit
        self._stream = stream if stream is not None else sys.stderr
        self._shows = bool(verbose) and self._stream is not None
        self._bar = self._shows and self._stream.isatty()
        self._done = 0
        self._note = ""
        self._began = self._shown = time.monotonic()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stages = _stages.get()
        if stages is not None:
            stages[self._label] = stages.get(self._label, 0.0) + time.monotonic() - self._began
        if self._shows:
            self._show(last=True)

    def advance(self, count: int) -> None:
        """`count` more units are done."""
        self._done += count
        due = BAR_EVERY if self._bar else PLAIN_EVERY
        if self._shows and time.monotonic() - self._shown >= due:
            self._show(last=False)

    def note(self, text: str) -> None:
        """What the latest stage ended with; part of the line from now on."""
        self._note = text

    def _show(self, last: bool) -> None:
        self._shown = time.monotonic()
        elapsed = self._shown - self._began
        if self._bar:
            columns = shutil.get_terminal_size().columns
            line = f"\r{self._line(elapsed, columns)[: columns - 1]}{CLEAR}"
        else:
            line = self._line(elapsed)
        _write(line, self._stream, end="\n" if last or not self._bar else "")

    def _line(self, elapsed: float, columns: float = math.inf) -> str:
        """What is shown, less the parts that do not fit into `columns`."""
        share = min(1.0, self._done / self._total) if self._total else 1.0
        rate = self._done / elapsed if elapsed > 0 else 0.0
        when = duration(elapsed)
        if share < 1:
            when = f"{duration(elapsed * (1 - share) / share)} left" if share else "time left unknown"
        filled = int(BAR_WIDTH * share)
        bar = f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] " if self._bar else ""
        line = f"{self._label:<9}{bar}{int(100 * share):3d}%"
        for part in (when, self._note, f"{rate:,.0f} {self._unit}/s"):
            if part and len(line) + 2 + len(part) < columns:
                line += f"  {part}"
        return line


def say(line: str) -> None:
    """One line on standard error."""
    if sys.stderr is not None:
        _write(line, sys.stderr)


def track(label: str, total: int, unit: str, verbose: int) -> Progress:
    """Progress towards `total`, to be used as a context."""
    return Progress(label, total, unit, verbose)


@contextmanager
def timed_stages() -> Iterator[dict[str, float]]:
    """Seconds that each stage tracked within this context took, by its label, and `total`."""
    stages: dict[str, float] = {}
    token = _stages.set(stages)
    began = time.monotonic()
    try:
        yield stages
    finally:
        _stages.reset(token)
        stages["total"] = time.monotonic() - began


def duration(seconds: float) -> str:
    """Seconds as a person says them: 4.2 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _write(text: str, stream: TextIO, end: str = "\n") -> None:
    """The text at once; a stream that is full or no longer read is no reason to stop the work."""
    with suppress(OSError):
        print(text, end=end, file=stream, flush=True)
