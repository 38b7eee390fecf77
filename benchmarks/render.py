"""docs/benchmarks.md and its figure, rendered from the results; no number in them is typed by hand."""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments.record import ROOT, read_json, say

from benchmarks.run import PARTS, RESULTS
from benchmarks.targets import TARGETS, Target
from benchmarks.timing import Row

PAGE = ROOT / "docs" / "benchmarks.md"
FIGURE = ROOT / "docs" / "images" / "scaling.png"
MISSING = "not measured"
HEAD = """# Benchmarks

Speed and memory, measured against named peers in one run: `make bench` (rendered by `python -m benchmarks.render`; no
number here is typed by hand). Contenders are timed in turns, after a warm-up, with the same number of threads; ratios
are of medians. Peers get their best settings, and before a peer is timed its answers are compared with ours.

256 codebooks x 4096 pairs, float32, unless a row says otherwise. *torch, plain* is the fastest form of one product and
one reduction (`addmm`, `baddbmm` or `cdist`, then `min`, `argmin` or `topk`); *torch, fastest form* may also reduce in
two stages or be compiled. The multiply-add peak bounds all: no search that computes every distance can be faster.
"""
NOTES = {
    "nearest": "Codes agree where *agreement* is 1; elsewhere a near tie was decided by rounding.",
    "keys": "The keys agree where a key coordinate is the same to a thousandth, after the same draws for dead keys.",
    "values": "Seconds of one epoch. *difference* is the largest between a value of ours and torch's after 40 steps.",
    "gradient": "Seconds of one gradient of all examples. scikit-learn's evaluations are counted and timed one by one.",
    "prediction": "From features to labels. For a batch of one, seconds are the median of single calls.",
    "memory": "Peak anonymous memory above inputs and table, `working_memory` at its default.",
}


def main(arguments: list[str] | None = None) -> None:
    """Write the page, and the figure where there is something to draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-i", "--input", type=Path, default=RESULTS)
    parser.add_argument("-o", "--output", type=Path, default=PAGE)
    parser.add_argument("--figure", type=Path, default=FIGURE)
    options = parser.parse_args(arguments)
    result = read_json(options.input)
    rows = all_rows(result, "scaling")
    if rows:
        draw(rows, options.figure)
    options.output.write_text(page(result))
    say(f"wrote {options.output}")


def page(result: dict[str, Any]) -> str:
    """The whole document."""
    sections = [HEAD, setting(result), "## Asked and measured\n\n" + targets(result)]
    sections += [part(result, name) for name in NOTES]
    sections.append(figure(result))
    return "\n".join(sections)


def setting(result: dict[str, Any]) -> str:
    """Hardware, versions, commit and features of every part; parts that agree share a line."""
    groups: dict[str, list[str]] = {}
    for name, found in result.get("parts", {}).items():
        groups.setdefault(describe(found), []).append(name)
    if not groups:
        return f"Machine: {MISSING}.\n"
    return "\n".join(f"- {', '.join(names)}: {text}" for text, names in groups.items()) + "\n"


def describe(found: dict[str, Any]) -> str:
    """One part's provenance in a line."""
    hardware, own = found["hardware"], found["configuration"]
    libraries = ", ".join(f"{name} {version}" for name, version in found["versions"].items() if name != "excise")
    quick = "**a quick run, whose numbers mean nothing**; " if own["quick"] else ""
    return (
        f"{quick}{hardware['cpu']}, {hardware['cores']} cores, {hardware['memory_gib']} GiB, {hardware['system']}; "
        f"{own['threads']} threads, {found['kernels']} kernels, seed {own['seed']}, "
        f"commit {found['commit']}; {libraries}"
    )


def all_rows(result: dict[str, Any], *names: str) -> list[Row]:
    """Rows of some parts, or of all."""
    parts = result.get("parts", {})
    return [row for name in names or parts for row in parts.get(name, {}).get("rows", [])]


def targets(result: dict[str, Any]) -> str:
    """Asked, measured, peer, ratio, met."""
    rows = all_rows(result)
    lines = [target_line(target, rows) for target in TARGETS]
    return table(("what", "peer", "ours", "peer's", "asked", "measured", "met"), lines)


def target_line(target: Target, rows: list[Row]) -> list[str]:
    """One line of the table."""
    asked = f"{multiple(target.asked)}" if target.peer else f"{target.asked:.0f} MiB"
    peer = {"excise": "excise, top-1"}.get(target.peer or "", target.peer or "at most")
    found = target.measured(rows)
    if found is None:
        return [target.what, peer, MISSING, MISSING, asked, MISSING, MISSING]
    ours, theirs = found
    value = target.value(ours, theirs)
    if theirs and "form" in theirs:
        peer += f" ({theirs['form']})"
    shown = multiple(value) if target.peer else f"{value:.0f} MiB"
    numbers = [amount(ours, target.quantity), amount(theirs, target.quantity) if theirs else ""]
    return [target.what, peer, *numbers, asked, shown, "yes" if target.met(value) else "**no**"]


def multiple(value: float) -> str:
    """A ratio: shares of one in percent."""
    return f"{value:.0%}" if value < 1 else f"{value:.3g}x"


def amount(row: Row, quantity: str = "rate") -> str:
    """A quantity with its unit."""
    if quantity == "flops":
        return f"{row['flops'] / 1e9:,.0f} GFLOP/s"
    if quantity == "mib":
        return f"{row['mib']:,.0f} MiB"
    return f"{row['rate']:,.0f}/s" if row["rate"] >= 100 else f"{row['rate']:.3g}/s"


def part(result: dict[str, Any], name: str) -> str:
    """All rows of a part, one table for each case."""
    rows = all_rows(result, name)
    title = (PARTS[name].__module__.rsplit(".", 1)[-1]).replace("_", " ").capitalize()
    text = f"## {title}\n\n{NOTES[name]}\n"
    if not rows:
        return text + f"\n{MISSING.capitalize()}.\n"
    for case in dict.fromkeys(row["case"] for row in rows):
        own = [row for row in rows if row["case"] == case]
        text += f"\n### {case.capitalize()}\n\nFeatures: {own[0].get('features', 'as above')}.\n\n" + case_table(own)
    return text


def case_table(rows: list[Row]) -> str:
    """Median, best, rate, and whatever a row has to say."""
    lines = [[row["subject"], *cells(row), remarks(row)] for row in rows]
    return table(("who", "median", "best", "rate", "remarks"), lines)


def cells(row: Row) -> list[str]:
    """Times and rate, or memory."""
    if "mib" in row:
        return [seconds(row["seconds"]), "", amount(row, "mib")]
    if row["unit"] == "FLOP/s":
        return ["", "", amount(row, "flops")]
    return [seconds(row["seconds"]), seconds(row["best_seconds"]), amount(row)]


def remarks(row: Row) -> str:
    """Agreement, form, notes, counts."""
    found = [f"{row[key]}" for key in ("form", "note") if key in row and not row["subject"].endswith(row[key])]
    if "p99_seconds" in row:
        found.append(f"p99 {seconds(row['p99_seconds'])}")
    if "evaluations" in row:
        found.append(f"{row['evaluations']} evaluations in {row['iterations']} iterations")
    if "agreement" in row:
        found.append(f"agreement {row['agreement']:.6g}")
    if "largest_difference" in row:
        found.append(f"difference {row['largest_difference']:.1e}")
    if "repeats" in row:
        found.append(f"{row['repeats']} repeats")
    return "; ".join(found)


def seconds(value: float) -> str:
    """A time with a unit that suits it."""
    for limit, scale, unit in ((1e-3, 1e6, "µs"), (1, 1e3, "ms")):
        if value < limit:
            return f"{value * scale:.3g} {unit}"
    return f"{value:.3g} s"


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    rows = ["| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines]]
    return "\n".join(rows) + "\n"


def figure(result: dict[str, Any]) -> str:
    """The figure, and the numbers of the layouts that differ most from the paper's."""
    rows = all_rows(result, "scaling")
    text = "## How cost grows\n\n"
    if not rows:
        return text + f"{MISSING.capitalize()}.\n"
    text += f"![Seconds against size]({FIGURE.parent.name}/{FIGURE.name})\n\n"
    text += "Random features; 64 codebooks x 1024 pairs, key size 8, top-1, 10 classes where nothing else is said.\n\n"
    lines = [[row["what"], row["value"], row["subject"], amount(row)] for row in rows if row["axis"] == "layout"]
    return text + table(("what", "codebooks x pairs", "who", "examples a second"), lines)


def draw(rows: list[Row], path: Path) -> None:
    """Small multiples: microseconds an example against size, one panel for each sweep."""
    import matplotlib.pyplot as plt

    panels = list(dict.fromkeys((row["what"], row["axis"]) for row in rows if row["axis"] != "layout"))
    columns = 4
    height = -(-len(panels) // columns)
    grid, axes = plt.subplots(height, columns, figsize=(3.1 * columns, 2.6 * height), squeeze=False, sharey=False)
    for panel, axis in zip(panels, axes.flat, strict=False):
        draw_panel(axis, [row for row in rows if (row["what"], row["axis"]) == panel], *panel)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    handles = {label: h for axis in axes.flat for h, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    grid.legend(handles.values(), handles.keys(), loc="lower right", frameon=False)
    grid.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    grid.savefig(path, dpi=110)
    plt.close(grid)


AXES = {
    "n": "examples",
    "c": "codebooks",
    "m": "pairs per codebook",
    "d": "key size",
    "k": "pairs retrieved",
    "v": "classes",
    "threads": "threads",
}
COLOURS = {"excise": "#0b6e4f", "torch, two stages": "#c8553d", "torch, plain": "#e8a33d"}


def draw_panel(axis: Any, rows: list[Row], what: str, size: str) -> None:
    """One sweep; total seconds against the number of examples, microseconds an example against the rest."""
    for subject in dict.fromkeys(row["subject"] for row in rows):
        own = [row for row in rows if row["subject"] == subject]
        cost = [row["value"] / row["rate"] if size == "n" else 1e6 / row["rate"] for row in own]
        colour = COLOURS.get(subject, "#5b6c8f")
        axis.plot([row["value"] for row in own], cost, "o-", ms=3, lw=1.4, label=subject, color=colour)
    from matplotlib.ticker import LogLocator

    sizes = sorted({row["value"] for row in rows})
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [f"{value:,}" for value in sizes], fontsize=7, rotation=30)
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()
    low, high = axis.get_ylim()
    axis.set_ylim(low if high > 12 * low else high / 12, high)  # at least a decade, so that small steps look small
    axis.set_xlabel(AXES[size])
    axis.set_ylabel("seconds" if size == "n" else "µs an example")
    axis.set_title(what, loc="left", fontsize=9)
    axis.grid(alpha=0.25, which="major")
    axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
