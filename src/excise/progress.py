"""Progress on standard error: a bar with the time left on a terminal, plain lines elsewhere."""

import sys
import time
from types import TracebackType
from typing import TextIO

PLAIN_EVERY = 10.0  # seconds between two plain lines


class Progress:
    """Counts towards a known total; shows nothing where `verbose` is 0."""

    def __init__(self, label: str, total: int, unit: str, verbose: int, stream: TextIO | None = None):
        self._label, self._total, self._unit, self._verbose = label, total, unit, verbose
        self._stream = stream if stream is not None else sys.stderr
        self._bar = self._stream.isatty()
        self._done = 0
        self._note = ""
        self._began = self._shown = time.monotonic()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._verbose:
            self._show(end="\n")

    def advance(self, count: int) -> None:
        self._done += count
        due = 0.1 if self._bar else PLAIN_EVERY
        if self._verbose and time.monotonic() - self._shown >= due:
            self._show(end="" if self._bar else "\n")

    def note(self, text: str) -> None:
        """What the latest stage ended with; part of the line from now on."""
        self._note = text

    def _show(self, end: str) -> None:
        self._shown = time.monotonic()
        elapsed = self._shown - self._began
        rate = self._done / elapsed if elapsed > 0 else 0.0
        share = self._done / self._total if self._total else 1.0
        left = elapsed * (1 - share) / share if share else 0.0
        when = f"{elapsed:.1f} s" if share >= 1 else f"{left:.0f} s left"
        line = f"{self._label:<8}{share:5.0%}  {rate:,.0f} {self._unit}/s  {when}"
        if self._bar:
            filled = int(24 * share)
            line = f"\r{self._label:<8}[{'#' * filled}{'.' * (24 - filled)}] {line[8:]}"
        print(line + (f"  {self._note}" if self._note else "") + ("\x1b[K" if self._bar else ""), end=end,
              file=self._stream, flush=True)  # fmt: skip


def track(label: str, total: int, unit: str, verbose: int) -> Progress:
    """Progress towards `total`, to be used as a context."""
    return Progress(label, total, unit, verbose)
