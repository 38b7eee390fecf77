"""The report as a page for people: self-contained HTML or Markdown, rendered from its plain data alone."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from excise.atomic import written_whole
from excise.errors import InputError
from excise.report_figures import destinations, draw_destinations, draw_plane, draw_sizes, percent

Part = dict[str, Any]

SUFFIXES = (".json", ".html", ".md")
MOST_PICTURES = 12  # of forgotten classes; the data has all
MOST_CLASSES = 20  # retained ones in the table
STYLE = Path(__file__).with_name("report.css")


def write_report(report: Part, path: str | PathLike[str]) -> None:
    """Write the report to a .json, .html or .md file, whole or not at all."""
    kind = check_report_path(path)
    if kind == ".json":
        words = json.dumps(report, indent=1, allow_nan=False) + "\n"
    else:
        words = render_html(report) if kind == ".html" else render_markdown(report)
    with written_whole(path) as file:
        file.write(words.encode("utf-8", "backslashreplace"))


def check_report_path(path: str | PathLike[str]) -> str:
    """The suffix that says what to write; another is refused."""
    kind = Path(fspath(path)).suffix.lower()
    if kind not in SUFFIXES:
        raise InputError(f"cannot write a report to {fspath(path)}: its name must end in one of {', '.join(SUFFIXES)}")
    return kind


# -- the document: what both renderers are given ----------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """What stands in a table: a word or number, and in smaller type what goes with it."""

    text: str
    sub: str = ""


@dataclass(frozen=True)
class Table:
    """Rows under a head; the first column names the row, on a line of its own where a stacked table is narrow."""

    head: list[str]
    rows: list[list[Cell]]
    stacked: bool = False
    strong: set[int] = field(default_factory=set)  # rows that the eye should find first


@dataclass(frozen=True)
class Text:
    """A paragraph; a small one explains what stands above it."""

    text: str
    small: bool = False


@dataclass(frozen=True)
class Bullets:
    """A list of sentences."""

    items: list[str]


@dataclass(frozen=True)
class Figure:
    """A picture with its caption, and what stands for it where there are no pictures."""

    title: str
    svg: str
    caption: str
    instead: Table


Block = Table | Text | Bullets | Figure


@dataclass(frozen=True)
class Section:
    """A heading and what is under it."""

    title: str
    blocks: list[Block]


def _sections(report: Part) -> Iterator[Section]:
    yield Section("Asked and done", [*_asked(report)])
    yield Section("Accuracy", [_accuracy(report), Text(_ACCURACY_NOTE, small=True)])
    yield Section("Distance to an exact re-fit", [*_distance(report)])
    yield Section("Every size of the mask", [*_curve(report)])
    yield Section("Where the forgotten examples go", [*_redirection(report)])
    yield Section("Retained classes", [*_collateral(report)])
    yield Section("Cost", [*_cost(report)])
    yield Section("What is left", [*_remaining(report)])
    yield Section("Limits", [Bullets(report["limits"])])
    missing = [f"{part['what']}: {part['why']}." for part in report["skipped"]]
    yield Section("Not measured", [Bullets(missing) if missing else Text("Nothing was left out.")])


# -- what is said: numbers to words -----------------------------------------------------------------------------------

_NONE = "\u2013"  # where there is nothing to show
_ACCURACY_NOTE = (
    "Small figures: the 95% interval (Wilson's); for masks drawn at random, which show a mean, from the lowest draw to "
    "the highest. Change is relative to the accuracy before. A loss of infinity is that of a logit at minus infinity."
)


def _share(value: float | None) -> str:
    return _NONE if value is None else percent(value)


def _signed(value: float | None, form: str) -> str:
    if value is None:
        return _NONE
    words = format(value, form)
    return words.replace("-", "\u2212") if any(digit in words for digit in "123456789") else words[1:]


def _number(value: float | None) -> str:
    """A whole number with its thousands, or three digits of another."""
    if value is None:
        return _NONE
    return f"{value:,}" if isinstance(value, int) else f"{value:.2g}"


def _interval(row: Part) -> str:
    low, high = row["spread"] or row["interval"]
    return f"{100 * low:.1f} to {percent(high)}"


def _title(report: Part) -> str:
    forgotten = [str(label) for label in report["asked_and_done"]["forgotten"]]
    if not forgotten:
        return "Training examples forgotten"
    some = ", ".join(forgotten[:5]) + (f" and {len(forgotten) - 5} more" if len(forgotten) > 5 else "")
    return f"Class{'es' if len(forgotten) > 1 else ''} {some} forgotten"


def _tiles(report: Part) -> list[tuple[str, str, str]]:
    """The key numbers: what each is, the number, and what goes with it."""
    summary, after = report["summary"], report["accuracy"]["after"]
    before, control = summary["before"] or {}, summary["knock_out"]
    found = []
    for group, title in (("forget", "Forgotten, still recognised"), ("retain", "Retained, recognised")):
        now = after[group]
        if now is None:
            continue
        was = "" if before.get(group) is None else f"{percent(before[group])} \u2192 "
        beside = f"95%: {_interval(now)}"
        if group == "retain" and summary["retain_change"] is not None:
            beside = f"{_signed(summary['retain_change'], '+.1%')} relative"
        found.append((title, f"{was}{percent(now['accuracy'])}", f"{beside}, {now['examples']:,} examples"))
    distance, floor = summary["distance"], summary["noise_floor"]
    if distance and floor:
        group = "forget" if distance["forget"] else "retain"
        least = _number(floor[group]["divergence"])
        title = f"From an exact re-fit, {'forgotten' if group == 'forget' else 'retained'}"
        found.append((title, f"{_number(distance[group]['divergence'])} nats", f"noise floor {least}"))
    if control:
        value = f"{percent(control['forget'])} \u00b7 {percent(control['retain'])}"
        found.append(("Trivial control, logit at \u2212\u221e", value, "forgotten \u00b7 retained"))
    return found


def _asked(report: Part) -> Iterator[Block]:
    done = report["asked_and_done"]
    times = {row["request"]: row["milliseconds"] for row in report["times"]["forget_milliseconds"]}
    for request in done["requests"]:
        yield Table([f"Request {request['id']}", ""], [[Cell(a), b] for a, b in _record(request, times)])
    totals, layout = done["totals"], done["layout"]
    rows = [
        ("pairs", Cell(f"{totals['pairs']:,}", f"{layout['codebooks']:,} codebooks of {layout['pairs']:,}")),
        ("masked", Cell(f"{totals['masked']:,}", f"by these requests {_number(totals['masked_by_requests'])}")),
        ("live", Cell(f"{totals['live']:,}", f"fewest in a codebook {totals['fewest_live_in_a_codebook']:,}")),
        ("retained activations moved", Cell(_share(totals["displaced"]), "of those logged, to other pairs")),
        ("erased pairs", Cell(f"{totals['erased']:,}")),
        ("classes", Cell(f"{done['classes']:,}", f"{len(done['forgotten']):,} of them forgotten")),
        ("test examples", Cell(*_both(done["test_examples"]))),
        (
            "versions",
            Cell(", ".join(f"{k} {v}" for k, v in done["versions"].items()), f"kernels: {done['kernels']}"),
        ),
    ]
    yield Table(["In all", ""], [[Cell(a), b] for a, b in rows])


def _both(examples: Part) -> tuple[str, str]:
    return f"{sum(examples.values()):,}", f"{examples['forget']:,} of forgotten classes"


def _record(request: Part, times: dict[int, float | None]) -> Iterator[tuple[str, Cell]]:
    """What a request says of itself, in the order that it happened."""
    classes = ", ".join(map(str, request["classes"][:10])) or "single training examples"
    more = f"and {len(request['classes']) - 10} more" if len(request["classes"]) > 10 else ""
    yield "forget", Cell(classes, more)
    yield "by", Cell(request["by"], f"now {request['state']}")
    if request["by"] != "exact":
        unit = "pairs" if request["by"] == "activations" else "examples"
        yield "size", Cell(f"{request['size']:,} {unit}", request["why"])
        overlap = f"{request['overlapping']:,} more were masked already" if request["overlapping"] else ""
        yield "newly masked", Cell(f"{request['masked']:,} pairs, {percent(request['share'])}", overlap)
        if request["covered"] is not None:
            yield "covered", Cell(percent(request["covered"]), "of the class's activations fall on masked pairs")
        if request["tie"]:
            tie = request["tie"]
            said = f"{tie['masked']:,} of {tie['pairs']:,} pairs"
            yield "tie at the cut", Cell(said, f"that were selected {tie['activations']:,} times")
    else:
        yield "how", Cell(request["why"])
        yield "left out", Cell(f"{request['size']:,} training examples")
    sure = request["sure"]
    if "accuracy_at_most" in sure:
        told = f"{sure['recognised']:,} of {sure['held_out_examples']:,} held-out examples recognised"
        yield "expected", Cell(f"at most {percent(sure['accuracy_at_most'])}", f"{told}, {sure['confidence']:.0%} sure")
    reading = f"{request['multiply_adds']:,} multiply-adds"
    yield "examples read", Cell(f"{request['examples_read']:,}", reading if request["multiply_adds"] else "")
    if times.get(request["id"]) is not None:
        yield "time", Cell(f"{times[request['id']]:,.3g} ms")


def _accuracy(report: Part) -> Table:
    rows = []
    for name, row in report["accuracy"].items():
        if row is None:
            continue
        draws = f" Mean of {row['draws']} draws." if row["draws"] > 1 else ""
        cells = [Cell(row["name"], row["what"] + draws)]
        for group in ("retain", "forget"):
            seen = row[group]
            cells.append(Cell(_NONE) if seen is None else Cell(percent(seen["accuracy"]), _interval(seen)))
        cells.append(Cell(_signed(row["retain_change"], "+.1%") if name != "before" else _NONE))
        for group in ("retain", "forget"):
            seen = row[group]
            endless = name == "knock_out" and seen is not None and seen["loss"] is None
            loss = "\u221e" if endless else _NONE if seen is None or seen["loss"] is None else f"{seen['loss']:.3f}"
            cells.append(Cell(loss))
        rows.append(cells)
    head = ["Model", "Retain accuracy", "Forget accuracy", "Change of retain", "Loss, retain", "Loss, forget"]
    return Table(head, rows, stacked=True, strong=_place(report["accuracy"], "after"))


def _place(rows: Part, name: str) -> set[int]:
    return {i for i, key in enumerate(key for key, row in rows.items() if row is not None) if key == name}


def _distance(report: Part) -> Iterator[Block]:
    if report["distance"] is None:
        yield Text("There is no exact re-fit to measure the distance to.")
        return
    named = {name: row["name"] for name, row in report["accuracy"].items() if row is not None}
    rows = []
    for name, row in report["distance"]["rows"].items():
        if row is None:
            continue
        cells = [Cell(named[name], "noise floor" if name == "oracle_other_order" else "")]
        for group in ("retain", "forget"):
            seen = row[group] or {"divergence": None, "agreement": None}
            cells += [Cell(_number(seen["divergence"])), Cell(_share(seen["agreement"]))]
        rows.append(cells)
    head = ["Model", "Divergence, retain", "Agreement, retain", "Divergence, forget", "Agreement, forget"]
    yield Table(head, rows, stacked=True, strong=_place(report["distance"]["rows"], "after"))
    yield Text(
        "Divergence is the mean Jensen-Shannon divergence between predicted probabilities, in nats: 0 where they are "
        "equal, 0.69 where they share nothing. Agreement is the share of examples with the same predicted class. The "
        "knock-out's probabilities are those of the other classes, made to sum to one.",
        small=True,
    )


def _curve(report: Part) -> Iterator[Block]:
    curve = report["curve"]
    if curve is None:
        yield Text("No curve was measured: the reason is under Not measured.")
        return
    chosen = curve["chosen"]
    sizes = list(range(0, len(curve["pairs"]), max(1, len(curve["pairs"]) // 10)))
    at = curve["pairs"].index(chosen["shown_at"])
    rows = []
    for i in sorted({*sizes, at, len(curve["pairs"]) - 1}):
        numbers = [Cell(percent(curve[f"{group}_accuracy"][i])) for group in ("retain", "forget")]
        numbers += [Cell(f"{curve[f'{group}_loss'][i]:.3f}") for group in ("retain", "forget")]
        rows.append([Cell(f"{curve['pairs'][i]:,}", "chosen" if i == at else ""), *numbers])
    table = Table(["Pairs masked", "Retain accuracy", "Forget accuracy", "Loss, retain", "Loss, forget"], rows)
    yield Figure(
        "Retain against forget accuracy",
        draw_plane(report),
        "One dot for each size shown; its colour is the size. Marks: the chosen size and the references.",
        table,
    )
    yield Figure(
        "Accuracy against size",
        draw_sizes(report),
        "Thick: retain (solid), forget (dashed). Thin: levels of the exact re-fit (dotted) and the knock-out (dashed).",
        Table([], []),
    )
    zero, shown = curve["zero_from"], len(curve["pairs"])
    said = f"All {curve['sizes']:,} sizes were measured, ranked by {curve['ranked_by']}; {shown:,} are shown."
    if zero is None:
        said += " No size brings forget accuracy to 0%."
    else:
        said += (
            f" Forget accuracy is 0% from {zero:,} pairs on, as the test examples show; they had no part in the choice."
        )
    if len(curve["classes"]) < len(report["asked_and_done"]["forgotten"]):
        said += (
            f" This is the mask of request {curve['request']}: the other requests in force hold at every size, and the"
        )
        said += " references forget all classes."
    yield Text(f"{said} {chosen['note'] or ''}".strip(), small=True)


def _redirection(report: Part) -> Iterator[Block]:
    if report["redirection"] is None:
        yield Text("No class was forgotten, only single examples.")
        return
    for row in report["redirection"][:MOST_PICTURES]:
        table = Table(
            [f"Class {row['class']} taken for", "now", "exact re-fit", "knock-out"],
            [[Cell(title), *(Cell(_number(n)) for n in counts.values())] for title, counts in destinations(row)],
        )
        apart = row["distance"]
        said = [
            f"{words} {percent(apart[key])}"
            for key, words in (
                ("after_to_oracle", "now to the re-fit"),
                ("knock_out_to_oracle", "knock-out to the re-fit"),
                ("oracle_other_order_to_oracle", "two re-fits"),
            )
            if apart[key] is not None
        ]
        caption = f"Share that would have to move: {', '.join(said)}." if said else ""
        title = f"{row['examples']:,} test examples of class {row['class']} are taken for"
        yield Figure(title, draw_destinations(row), caption, table)
    more = len(report["redirection"]) - MOST_PICTURES
    if more > 0:
        yield Text(f"The data of this report has {more:,} forgotten classes more.", small=True)


def _collateral(report: Part) -> Iterator[Block]:
    classes, limit = report["collateral"]["classes"], report["collateral"]["flagged_below_points"]
    rows = [
        [
            Cell(str(row["class"]), f"fell by more than {-limit:g} points" if row["flagged"] else ""),
            Cell(f"{row['examples']:,}"),
            Cell(_share(row["before"])),
            Cell(percent(row["after"])),
            Cell(_signed(row["change_points"], "+.1f")),
            Cell(_share(row["oracle"])),
        ]
        for row in classes[:MOST_CLASSES]
    ]
    flagged = {i for i, row in enumerate(classes[:MOST_CLASSES]) if row["flagged"]}
    yield Table(["Class", "Examples", "Before", "After", "Points", "Re-fit"], rows, strong=flagged)
    rest = [row["change_points"] for row in classes[MOST_CLASSES:] if row["change_points"] is not None]
    if rest:
        least, most = _signed(min(rest), "+.1f"), _signed(max(rest), "+.1f")
        yield Text(f"The other {len(rest):,} classes changed by {least} to {most} points.", small=True)


def _cost(report: Part) -> Iterator[Block]:
    cost, times = report["cost"], report["times"]
    rows = []
    for row in cost["rows"]:
        cells = [Cell(row["name"])]
        for cell in row["cells"]:
            number, formula = cell["multiply_adds"], cell["formula"]
            if number is None:
                cells.append(Cell(_times(formula)))
            else:
                cells.append(Cell(_operations(number), _times(formula) if str(number) != formula else ""))
        rows.append(cells)
    yield Table(["Multiply-adds", *cost["columns"]], rows, stacked=True)
    measured = [
        f"request {row['request']} took {row['milliseconds']:,.3g} ms"
        for row in times["forget_milliseconds"]
        if row["milliseconds"] is not None
    ]
    for key, words in (
        ("oracle_seconds", "the exact re-fit from codes"),
        ("oracle_new_keys_seconds", "the one with new keys"),
        ("report_seconds", "this report"),
    ):
        if times[key] is not None:
            measured.append(f"{words} {times[key]:,.2g} s")
    text = ", ".join(measured)
    yield Text(f"Measured: {text}.")
    yield Text(cost["convention"], small=True)


def _times(formula: str | None) -> str:
    return _NONE if formula is None else formula.replace(" x ", " \u00d7 ")


def _operations(number: int) -> str:
    """A count as the paper's tables have it: 4.38 G."""
    for size, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M")):
        if number >= size:
            return f"{number / size:,.2f} {unit}"
    return f"{number:,}"


def _remaining(report: Part) -> Iterator[Block]:
    rest = report["remaining"]
    rows = []
    for row in rest["classes"][:MOST_CLASSES]:
        cells = [Cell(f"class {row['class']}")]
        for side in ("before", "after", "oracle"):
            seen = row[side]
            if seen is None:
                cells.append(Cell(_NONE))
                continue
            share = f"{percent(seen['share'])} of {seen['live']:,}; mean share {seen['softmax']:.3f}"
            cells.append(Cell(f"{seen['largest']:,}", share))
        rows.append(cells)
    if rows:
        yield Table(["Live pairs that speak for it", "before", "after", "exact re-fit"], rows, stacked=True)
        yield Text(
            "A live pair speaks for the class of its largest value; ties, and pairs never trained, speak for "
            "none. Mean share: what the softmax of a pair's values gives to the class, over the pairs that speak.",
            small=True,
        )
    yield Text(f"State: {rest['state']}.")
    yield Bullets(rest["statements"])


# -- HTML -------------------------------------------------------------------------------------------------------------


def render_html(report: Part) -> str:
    """One page with nothing outside it: no script, no font, no address."""
    title = _title(report)
    tiles = "".join(
        f'<div class="tile"><dt>{escape(name)}</dt><dd><b>{escape(value)}</b><span>{escape(beside)}</span></dd></div>'
        for name, value, beside in _tiles(report)
    )
    warnings = ""
    if report["warnings"]:
        items = "".join(f"<li>{escape(warning)}</li>" for warning in report["warnings"])
        warnings = f'<aside><h2>Warnings</h2><ul class="warnings">{items}</ul></aside>'
    body = "".join(map(_html_section, _sections(report)))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)} - excise</title>\n<style>\n{STYLE.read_text()}</style>\n</head>\n<body>\n<main>\n"
        f'<header><p class="kicker">Report of a request to forget</p><h1>{escape(title)}</h1>'
        f'<p class="summary">{escape(report["summary"]["text"])}</p><dl class="tiles">{tiles}</dl>{warnings}</header>\n'
        f"{body}\n<footer>{escape(_footer(report))}</footer>\n</main>\n</body>\n</html>\n"
    )


def _footer(report: Part) -> str:
    done = report["asked_and_done"]
    return f"Made {report['times']['made']} by excise {done['versions']['excise']}, kernels {done['kernels']}."


def _html_section(section: Section) -> str:
    blocks = "".join(map(_html, section.blocks))
    return f'<section><h2>{escape(section.title)}</h2><div class="blocks">{blocks}</div></section>'


def _html(block: Block) -> str:
    if isinstance(block, Text):
        return f"<p{' class=small' if block.small else ''}>{escape(block.text)}</p>"
    if isinstance(block, Bullets):
        return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in block.items) + "</ul>"
    if isinstance(block, Figure):
        caption = f"<p>{escape(block.caption)}</p>" if block.caption else ""
        return f"<figure><figcaption>{escape(block.title)}</figcaption>{block.svg}{caption}</figure>"
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in block.head)
    rows = "".join(_html_row(block, i, row) for i, row in enumerate(block.rows))
    kind = "record" if block.head[-1] == "" else f"stacked of-{len(block.head) - 1}" if block.stacked else "plain"
    return f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _html_row(table: Table, i: int, row: list[Cell]) -> str:
    cells = [f'<th scope="row">{_html_cell(row[0])}</th>']
    for name, cell in zip(table.head[1:], row[1:], strict=True):
        cells.append(f'<td data-label="{escape(name)}">{_html_cell(cell)}</td>')
    return f"<tr{' class=strong' if i in table.strong else ''}>{''.join(cells)}</tr>"


def _html_cell(cell: Cell) -> str:
    return escape(cell.text) + (f"<small>{escape(cell.sub)}</small>" if cell.sub else "")


# -- Markdown ---------------------------------------------------------------------------------------------------------


def render_markdown(report: Part) -> str:
    """The same in plain text, tables in the place of pictures."""
    parts = [f"# {_escaped(_title(report))}", _escaped(report["summary"]["text"])]
    parts.append("\n".join(f"- {_escaped(name)}: **{value}** ({beside})" for name, value, beside in _tiles(report)))
    if report["warnings"]:
        parts += ["## Warnings", _markdown(Bullets(report["warnings"]))]
    for section in _sections(report):
        parts += [f"## {section.title}", *filter(None, map(_markdown, section.blocks))]
    return "\n\n".join([*parts, _escaped(_footer(report))]) + "\n"


def _markdown(block: Block) -> str:
    if isinstance(block, Text):
        return _escaped(block.text)
    if isinstance(block, Bullets):
        return "\n".join(f"- {_escaped(item)}" for item in block.items)
    if isinstance(block, Figure):
        if not block.instead.rows:
            return ""
        return "\n\n".join(
            filter(None, [f"**{_escaped(block.title)}**", _markdown(block.instead), _escaped(block.caption)])
        )
    lines = [block.head, ["---", *["---:" if block.head[-1] else "---"] * (len(block.head) - 1)]]
    lines += [[cell.text + (f" ({cell.sub})" if cell.sub else "") for cell in row] for row in block.rows]
    return "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in lines)


def _escaped(words: str) -> str:
    """Text that Markdown shows as it is: no tag, no column, no line of its own."""
    words = escape(" ".join(words.splitlines()), quote=False)
    for mark in "\\`*_[]|":
        words = words.replace(mark, f"\\{mark}")
    return words
