"""Pictures as inline SVG, by hand: elements whose text is escaped, scales with round ticks, labels kept apart."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

RAMP = ((242, 193, 78), (224, 122, 95), (158, 75, 143), (92, 86, 200))  # from the least to the most, on light and dark


def element(name: str, *inside: str, **attributes: object) -> str:
    """One element around others; `class_` is `class`, `stroke_width` is `stroke-width`, None is left out."""
    words = [
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    ]
    return f"<{name}{''.join(words)}>{''.join(inside)}</{name}>"


def text(x: float, y: float, words: object, anchor: str = "start", class_: str = "tick") -> str:
    """A line of text; `anchor` is start, middle or end."""
    return element("text", escape(str(words)), x=x, y=y, text_anchor=anchor, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def path(points: Sequence[tuple[float, float]], class_: str) -> str:
    """A line through points."""
    return element("path", d="M" + "L".join(f"{_plain(x)} {_plain(y)}" for x, y in points), class_=class_)


def picture(width: float, height: float, label: str, *inside: str) -> str:
    """The whole picture, as wide as its place allows; `label` says in words what it shows."""
    return element("svg", *inside, viewBox=f"0 0 {_plain(width)} {_plain(height)}", role="img", aria_label=label)


def color(share: float) -> str:
    """The colour of a share from 0 to 1."""
    place = min(max(share, 0.0), 1.0) * (len(RAMP) - 1)
    i = min(int(place), len(RAMP) - 2)
    mixed = [round(a + (b - a) * (place - i)) for a, b in zip(RAMP[i], RAMP[i + 1], strict=True)]
    return "#" + "".join(f"{part:02x}" for part in mixed)


@dataclass(frozen=True)
class Scale:
    """Numbers from `low` to `high` as places from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The place of a number."""
        return self.start + (value - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers from `low` to `high`, about so many: steps of 1, 2, 2.5 or 5 times a power of ten."""
    if high <= low:
        return [low]
    raw = (high - low) / max(1, count)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(m * size for m in (1, 2, 2.5, 5, 10) if m * size >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """The places moved as little as keeps them `gap` apart and from `low` to `high`, in the same order."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    pools: list[list[float]] = []  # where the first of neighbours that touch would lie, each averaged with the others
    for rank, i in enumerate(order):
        pools.append([places[i] - rank * gap])
        while len(pools) > 1 and _mean(pools[-2]) >= _mean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    firsts = [min(max(_mean(pool), low), high - (len(places) - 1) * gap) for pool in pools for _ in pool]
    moved = [0.0] * len(places)
    for rank, i in enumerate(order):
        moved[i] = firsts[rank] + rank * gap
    return moved


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


def _plain(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
