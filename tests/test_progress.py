"""Progress: a bar on a terminal, plain lines elsewhere, nothing on request, and the seconds of each stage."""

import contextlib
import io
import re
from typing import Any

import pytest

from excise import progress
from excise.progress import Progress, duration, timed_stages, track


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Time that passes only when it is told to."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    return wait


def test_plain_lines_are_few(clock: Any) -> None:
    out = io.StringIO()
    with Progress("keys", 100, "examples", 1, out) as shown:
        for _ in range(100):
            clock(1)
            shown.advance(1)
    lines = out.getvalue().splitlines()
    assert len(lines) == 11
    assert lines[1] == "keys      20%  1 examples/s  1 min 20 s left"
    assert lines[-1] == "keys     100%  1 examples/s  1 min 40 s"


def test_a_bar_stays_on_its_line(clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    out = Terminal()
    with Progress("values", 4, "examples", 1, out) as shown:
        for epoch in range(4):
            clock(1)
            shown.note(f"epoch {epoch + 1}/4, and a note that does not fit")
            shown.advance(1)
    text = out.getvalue()
    assert text.count("\n") == 1
    assert text.endswith("\n")
    parts = [part.removesuffix(progress.CLEAR) for part in text.rstrip("\n").split("\r")[1:]]
    assert parts[0].startswith("values   [######..................]  25%  1 examples/s  3.0 s")
    assert all(len(part) < 70 for part in parts)


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_silence_on_request(stream: io.StringIO) -> None:
    with Progress("keys", 10, "examples", 0, stream) as shown:
        shown.advance(10)
    assert stream.getvalue() == ""


def test_an_interrupted_stage_does_not_claim_to_be_done(clock: Any) -> None:
    out = Terminal()
    with contextlib.suppress(KeyboardInterrupt), Progress("keys", 10, "examples", 1, out) as shown:
        clock(1)
        shown.advance(3)
        raise KeyboardInterrupt
    last = out.getvalue().rstrip("\n").split("\r")[-1]
    assert re.search(r" 30%  3 examples/s  2\.3 s left", last)
    assert out.getvalue().endswith("\n")


def test_nothing_to_do_and_nothing_done_yet() -> None:
    out = io.StringIO()
    with Progress("keys", 0, "examples", 1, out):
        pass
    assert out.getvalue().startswith("keys     100%")
    with Progress("keys", 5, "examples", 1, out):
        pass
    assert "time left unknown" in out.getvalue()


def test_seconds_of_stages(clock: Any) -> None:
    with timed_stages() as seconds:
        for label, spent in (("keys", 2), ("values", 3), ("keys", 4)):
            with track(label, 1, "examples", 0):
                clock(spent)
        clock(1)
    with track("keys", 1, "examples", 0):
        clock(9)
    assert seconds == {"keys": 6, "values": 3, "total": 10}


@pytest.mark.parametrize(("seconds", "said"), [(0.04, "0.0 s"), (9.94, "9.9 s"), (59.4, "59 s"), (59.6, "1 min 0 s"),
                                                (3600, "1 h 0 min"), (7500, "2 h 5 min")])  # fmt: skip
def test_durations_as_a_person_says_them(seconds: float, said: str) -> None:
    assert duration(seconds) == said
