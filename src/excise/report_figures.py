"""The pictures of a report, drawn from its data alone: accuracies against each other and against size, destinations."""

from html import escape
from typing import Any

from excise import svg

Part = dict[str, Any]

WIDTH = 440
MOST_DESTINATIONS = 10  # rows of one picture; what is rarer is added up
LONGEST_NAME = 13


def percent(share: float) -> str:
    """A share as a person says it."""
    return f"{share:.1%}"


def short(number: float) -> str:
    """A count for an axis: 800, 20k, 1.5M."""
    for size, unit in ((10**6, "M"), (10**3, "k")):
        if number >= 10 * size or (number >= size and size > 10**3):
            return f"{number / size:g}{unit}"
    return f"{number:,g}"


def draw_plane(report: Part) -> str:
    """Retain against forget accuracy, a dot for each size, its colour the size; as the paper's figures 2 and 3."""
    curve, rows = report["curve"], report["accuracy"]
    height, left, right, top, bottom = 366, 62, 14, 12, 262
    marks = {name: rows[name] for name in ("oracle", "knock_out") if rows[name]}
    retain = [*curve["retain_accuracy"], *(row["retain"]["accuracy"] for row in marks.values())]
    forget = [*curve["forget_accuracy"], *(row["forget"]["accuracy"] for row in marks.values())]
    margin = max(0.01, 0.08 * (max(retain) - min(retain)))
    reach = max(0.1, max(forget))
    x = svg.Scale(-0.04 * reach, 1.05 * reach, left, WIDTH - right)
    y = svg.Scale(min(retain) - margin, max(retain) + margin, bottom, top)
    parts = [
        *_grid_y(y, left, WIDTH - right, 5),
        *_grid_x(x, svg.ticks(0, reach, 5), bottom, percent_tick),
    ]
    parts += [svg.text((left + WIDTH - right) / 2, bottom + 34, "forget accuracy", "middle", "name")]
    parts += [_turned(13, (top + bottom) / 2, "retain accuracy")]
    largest = max(1, curve["pairs"][-1])
    spots = list(zip(curve["forget_accuracy"], curve["retain_accuracy"], curve["pairs"], strict=True))
    for a, b, pairs in spots:
        parts.append(svg.element("circle", cx=x(a), cy=y(b), r=3.4, fill=svg.color(pairs / largest), class_="dot"))
    at = curve["pairs"].index(curve["chosen"]["shown_at"])
    for name, row in marks.items():
        parts.append(_mark(name, x(row["forget"]["accuracy"]), y(row["retain"]["accuracy"])))
    parts.append(_mark("chosen", x(spots[at][0]), y(spots[at][1])))
    parts += _color_bar(left, WIDTH - right, bottom + 52, largest, curve["chosen"]["shown_at"])
    names = {"chosen": "chosen size", "oracle": "exact re-fit", "knock_out": "logit knock-out"}
    at_x = left + 8.0
    for name in ("chosen", *marks):
        parts += [_mark(name, at_x, height - 11), svg.text(at_x + 12, height - 7, names[name])]
        at_x += 30 + 6.4 * len(names[name])
    label = f"Retain accuracy against forget accuracy for {curve['sizes']:,} mask sizes, from 0 to {largest:,} pairs."
    return svg.picture(WIDTH, height, label, *parts)


def percent_tick(share: float) -> str:
    """A share on an axis, with no more digits than it has."""
    return f"{100 * share:.6g}%"


def draw_sizes(report: Part) -> str:
    """Both accuracies against the size of the mask, the chosen size and the levels of the references marked."""
    curve, rows = report["curve"], report["accuracy"]
    height, left, right, top, bottom = 366, 54, 122, 30, 316
    end = WIDTH - right
    largest = max(1, curve["pairs"][-1])
    x, y = svg.Scale(0, largest, left, end), svg.Scale(0, 1, bottom, top)
    parts = [*_grid_y(y, left, end, 5), *_grid_x(x, svg.ticks(0, largest, 4), bottom, short)]
    parts.append(svg.text((left + end) / 2, bottom + 34, "pairs masked", "middle", "name"))
    parts.append(_turned(13, (top + bottom) / 2, "accuracy"))
    labels: list[tuple[float, str, str]] = []
    for name, title in (("oracle", "exact re-fit"), ("knock_out", "knock-out")):
        if rows[name] is None:
            continue
        for group in ("retain", "forget"):
            level = rows[name][group]["accuracy"]
            parts.append(svg.line(left, y(level), end, y(level), f"level {name.replace('_', '-')}"))
            labels.append((y(level), f"{title} {percent(level)}", "tick"))
    for group in ("retain", "forget"):
        series = curve[f"{group}_accuracy"]
        places = [(x(a), y(b)) for a, b in zip(curve["pairs"], series, strict=True)]
        parts.append(svg.path(places, f"curve {group}"))
        labels.append((places[-1][1], group, f"name {group}-name"))
    at = curve["chosen"]["shown_at"]
    i = curve["pairs"].index(at)
    parts.append(svg.line(x(at), top - 8, x(at), bottom, "chosen-line"))
    anchor = "start" if at < 0.2 * largest else "end" if at > 0.8 * largest else "middle"
    parts.append(svg.text(x(at), top - 13, f"chosen: {curve['chosen']['pairs']:,} pairs", anchor, "name"))
    for group in ("retain", "forget"):
        parts.append(svg.element("circle", cx=x(at), cy=y(curve[f"{group}_accuracy"][i]), r=3.6, class_="chosen-dot"))
    for (place, words, kind), moved in zip(
        labels, svg.spread([at for at, _, _ in labels], 14, top, bottom), strict=True
    ):
        parts.append(svg.path([(end + 2, place), (end + 7, place), (end + 13, moved), (end + 17, moved)], "leader"))
        parts.append(svg.text(end + 20, moved + 3.5, words, "start", kind))
    label = f"Retain and forget accuracy as the mask grows from 0 to {largest:,} pairs."
    return svg.picture(WIDTH, height, label, *parts)


def destinations(row: Part) -> list[tuple[str, dict[str, int | None]]]:
    """Classes that a forgotten class's examples are taken for, most often now first, the rare ones added up."""
    sides = ("after", "oracle", "knock_out")
    counts = {
        side: {str(d["class"]): d["count"] for d in row[side]} if row[side] is not None else None for side in sides
    }
    names = {name for of in counts.values() for name in of or {}}

    def rank(name: str) -> tuple[float, ...]:
        return tuple(-(counts[side] or {}).get(name, 0) for side in sides)

    order = sorted(names, key=lambda name: (rank(name), name))
    shown, rest = (
        (order, [])
        if len(order) <= MOST_DESTINATIONS
        else (order[: MOST_DESTINATIONS - 1], order[MOST_DESTINATIONS - 1 :])
    )
    found: list[tuple[str, dict[str, int | None]]] = []
    for title, members in [*((name, [name]) for name in shown), *([(f"{len(rest)} others", rest)] if rest else [])]:
        of = {side: None if c is None else sum(c.get(name, 0) for name in members) for side, c in counts.items()}
        found.append((title, of))
    return found


def draw_destinations(row: Part) -> str:
    """Three columns of bars: where the examples go now, by an exact re-fit, and by the knock-out."""
    found, step, top, names = destinations(row), 19, 30, 92
    height, panel = top + step * len(found) + 6, (WIDTH - names) / 3
    most = max((count for _, of in found for count in of.values() if count), default=1)
    parts = []
    for i, (side, title) in enumerate((("after", "now"), ("oracle", "exact re-fit"), ("knock_out", "knock-out"))):
        start = names + i * panel + 8
        parts.append(svg.text(start, 14, title, "start", "name"))
        parts.append(svg.line(start - 0.5, top - 6, start - 0.5, height - 4, "axis"))
        if row[side] is None:
            parts.append(svg.text(start + 6, top + 9, "not measured"))
            continue
        for j, (_, of) in enumerate(found):
            wide = (panel - 44) * (of[side] or 0) / most
            middle = top + step * j + 6
            if of[side]:
                kind = f"bar {side.replace('_', '-')}"
                parts.append(svg.element("rect", x=start, y=middle - 6, width=wide, height=12, class_=kind))
            parts.append(
                svg.text(start + wide + 5, middle + 4, f"{of[side]:,}", "start", "tick" if of[side] else "none")
            )
    for j, (title, _) in enumerate(found):
        shown = title if len(title) <= LONGEST_NAME else title[: LONGEST_NAME - 1] + "\u2026"
        whole = svg.element("title", escape(title)) if shown != title else ""
        place = {"x": names, "y": top + step * j + 10, "text_anchor": "end", "class_": "tick"}
        parts.append(svg.element("text", whole, escape(shown), **place))
    label = (
        f"Predicted classes of {row['examples']:,} test examples of class {row['class']}: now, re-fitted, knocked out."
    )
    return svg.picture(WIDTH, height, label, *parts)


# -- parts ------------------------------------------------------------------------------------------------------------


def _grid_y(y: svg.Scale, left: float, right: float, count: int) -> list[str]:
    parts = []
    for tick in svg.ticks(y.low, y.high, count):
        parts.append(svg.line(left, y(tick), right, y(tick), "grid"))
        parts.append(svg.text(left - 6, y(tick) + 3.5, percent_tick(tick), "end"))
    return parts


def _grid_x(x: svg.Scale, places: list[float], bottom: float, words: Any) -> list[str]:
    parts = [svg.line(x.start, bottom, x.end, bottom, "axis")]
    for tick in places:
        parts.append(svg.line(x(tick), bottom, x(tick), bottom + 4, "axis"))
        parts.append(svg.text(x(tick), bottom + 17, words(tick), "middle"))
    return parts


def _turned(x: float, y: float, words: str) -> str:
    turn = f"rotate(-90 {x:g} {y:g})"
    return svg.element("text", escape(words), x=x, y=y, text_anchor="middle", class_="name", transform=turn)


def _mark(name: str, x: float, y: float) -> str:
    if name == "chosen":
        return svg.element("circle", cx=x, cy=y, r=7, class_="mark")
    if name == "oracle":
        points = " ".join(f"{a:.2f},{b:.2f}" for a, b in ((x, y - 6), (x + 6, y), (x, y + 6), (x - 6, y)))
        return svg.element("polygon", points=points, class_="mark")
    return svg.element("path", d=f"M{x - 5:.2f} {y - 5:.2f}l10 10m0 -10l-10 10", class_="mark")


def _color_bar(left: float, right: float, y: float, largest: int, chosen: int) -> list[str]:
    """The colours from no pair to all that the ranking has, the chosen size marked."""
    start = left + 84
    x, steps = svg.Scale(0, largest, start, right), 40
    wide = (right - start) / steps
    parts = [svg.text(left, y + 9, "pairs masked", "start", "name")]
    parts += [
        svg.element(
            "rect",
            x=start + i * wide,
            y=y,
            width=wide + 0.4,
            height=9,
            fill=svg.color((i + 0.5) / steps),
            class_="step",
        )
        for i in range(steps)
    ]
    parts.append(svg.line(x(chosen), y - 3, x(chosen), y + 12, "chosen-line"))
    for tick in svg.ticks(0, largest, 4):
        anchor = "end" if x(tick) > right - 12 else "middle"
        parts.append(svg.text(x(tick), y + 23, short(tick), anchor))
    return parts
