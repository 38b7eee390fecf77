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
    assert lines[1] == "keys      20%  1 min 20 s left  1 examples/s"
    assert lines[-1] == "keys     100%  1 min 40 s  1 examples/s"


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
    assert parts[0].startswith("values   [##........]  25%  3.0 s left  1 examples/s")
    assert all(len(part) < 70 for part in parts)


def test_the_loss_fits_on_80_columns(clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = Terminal()
    with Progress("values", 10**7, "examples", 1, out) as shown:
        clock(1000)
        shown.note("epoch 12/99, loss 12.3456")
        shown.advance(4 * 10**6)
    line = out.getvalue().split("\r")[1].removesuffix(progress.CLEAR)
    assert line == "values   [####......]  40%  25 min 0 s left  epoch 12/99, loss 12.3456"


@pytest.mark.parametrize("columns", range(20, 120, 7))
def test_what_does_not_fit_is_left_out_whole(columns: int, clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    out = Terminal()
    with Progress("keys", 4, "examples", 1, out) as shown:
        clock(3)
        shown.note("loss 0.1234")
        shown.advance(1)
    line = out.getvalue().split("\r")[1].removesuffix(progress.CLEAR)
    assert len(line) < columns
    assert set(line.partition("%")[2].split("  ")[1:]) <= {"9.0 s left", "loss 0.1234", "0 examples/s"}


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_full_standard_error_stops_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.sys, "stderr", Full())
    progress.say("nobody reads this")
    with Progress("keys", 1, "examples", 1) as shown:
        shown.advance(1)


def test_without_standard_error_nothing_is_said_elsewhere(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.sys, "stderr", None)
    progress.say("nobody reads this")
    assert capsys.readouterr().out == ""


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
    assert re.search(r" 30%  2\.3 s left  3 examples/s", last)
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
