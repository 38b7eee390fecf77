"""Pictures: ticks are round and inside, labels are kept apart and in order, text is escaped."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise import svg

NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=False)


@given(low=NUMBERS, span=st.floats(1e-3, 1e6), count=st.integers(2, 10))
def test_ticks_are_inside_and_about_as_many(low: float, span: float, count: int) -> None:
    found = svg.ticks(low, low + span, count)
    slack = 1e-6 * span + 1e-9
    assert all(low - slack <= tick <= low + span + slack for tick in found)
    assert len(found) <= count + 1
    assert len(found) >= count / 3


def test_ticks_are_round() -> None:
    assert svg.ticks(0, 1, 5) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert svg.ticks(0.93, 0.987, 5) == [0.94, 0.96, 0.98]
    assert svg.ticks(0, 180_000, 4) == [0, 50_000, 100_000, 150_000]
    assert svg.ticks(3, 3, 4) == [3]


@given(st.lists(st.floats(0, 200), max_size=12))
def test_labels_are_kept_apart_and_in_order(places: list[float]) -> None:
    found = svg.spread(places, 12, 0, 200)
    inside = sorted(found)
    assert all(b - a >= 12 - 1e-6 for a, b in pairwise(inside))
    assert all(-1e-6 <= place <= 200 + 1e-6 for place in found)
    assert [i for _, i in sorted((p, i) for i, p in enumerate(found))] == [
        i for _, i in sorted((p, i) for i, p in enumerate(places))
    ]


def test_labels_that_are_apart_stay() -> None:
    assert svg.spread([50, 10, 90], 12, 0, 100) == [50, 10, 90]
    assert svg.spread([], 12, 0, 100) == []


def test_text_is_escaped() -> None:
    assert svg.text(1, 2.5, "<b>&") == '<text x="1" y="2.5" text-anchor="start" class="tick">&lt;b&gt;&amp;</text>'
    assert 'aria-label="a &quot;b&quot; &lt;c&gt;"' in svg.picture(1, 1, 'a "b" <c>')


@pytest.mark.parametrize(("share", "expected"), [(-1, "#f2c14e"), (0, "#f2c14e"), (1, "#5c56c8"), (2, "#5c56c8")])
def test_colours_run_from_end_to_end(share: float, expected: str) -> None:
    assert svg.color(share) == expected


def test_scales_are_linear() -> None:
    scale = svg.Scale(0, 10, 100, 0)
    assert [scale(0), scale(5), scale(10)] == [100, 50, 0]
    assert svg.Scale(2, 2, 5, 9)(2) == 5
