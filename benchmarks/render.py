"""docs/benchmarks.md and its figure, rendered from the results; no number in them is typed by hand."""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments.record import ROOT, read_json, say

from benchmarks import forgetting, full_gradient, nearest, prediction, scaling, value_training
from benchmarks.run import PARTS, RESULTS
from benchmarks.targets import TARGETS, Target
from benchmarks.timing import Row

PAGE = ROOT / "docs" / "benchmarks.md"
FIGURE = ROOT / "docs" / "images" / "scaling.png"
MISSING = "not measured"
HEAD = """# Benchmarks

Speed and memory, measured against named peers in one run: `make bench` (rendered by `python -m benchmarks.render`; no
number here is typed by hand). Contenders are timed in turns, after a warm-up, with the same number of threads; ratios
are of medians. Peers get their best settings, and before a peer is timed its answers are compared with ours. Who is
much slower is timed on fewer examples and scaled, which the row says.

256 codebooks x 4096 pairs, float32, unless a row says otherwise. *torch, plain* is the fastest form of one product and
one reduction (`addmm`, `baddbmm` or `cdist`, then `min`, `argmin` or `topk`); *torch, fastest form* may also reduce in
two stages or be compiled.
"""
PEAK_NOTE = """
The multiply-add peak is that of floats: it bounds every search that computes all distances in floats. Ours may exceed
it: where the machine has `avx512vnni` it searches in 16-bit whole numbers and settles near ties in floats, and it
searches a key that many pairs have once. Answers are those of the plain search to the bit; its GFLOP/s are those that
the plain search would need. How close the float loop itself comes is the row *in floats, no key repeated*.
"""
NOTES = {
    "nearest": f"""
*Agreement* is the share of equal codes. Dead keys are overwritten by examples of a batch, several by the same one, so
keys repeat; of equal keys ours takes the lowest pair and others take any, which counts most where many keys are
retrieved. *Up to equal keys* is the share of codes that name equal keys; the rest are near ties that rounding decided:
where a squared distance differs from ours by more than {nearest.TOLERANCE:g} of |z|^2 + |key|^2, the run stops.
""",
    "keys": """
*Agreement* is the share of key coordinates that are equal to a thousandth, after the same draws for dead keys.
""",
    "values": f"""
Seconds of one epoch. *Difference* is the largest between a value of ours and of that trainer, after the same random
values and {value_training.STEPS} steps; if it exceeds {value_training.TOLERANCE:g}, the run stops.
""",
    "gradient": f"""
Seconds of one gradient of all examples. *Difference* is the largest from ours, relative to the largest coordinate; if
it exceeds {full_gradient.TOLERANCE:g}, the run stops. scikit-learn's evaluations are counted and timed one by one.
""",
    "prediction": f"""
From features to labels. For a batch of one, seconds are the median of single calls. The keys that torch finds are
compared with ours as above, its logits with those that its codes stand for: *difference*, relative to the largest; if
it exceeds {prediction.TOLERANCE:g}, the run stops.
""",
    "forgetting": f"""
The models are trained for two epochs only: how well they predict changes no speed. One class of all is forgotten; rates
are of requests. *From logs* is `forget(label)` on a model with its log of activations. The peers forget exactly, as
`forget(label, by="exact")` or by torch, whose steps all cost the same; or approximately, by one epoch of a linear head
on the cached features of what is retained. An exact re-fit takes {forgetting.EPOCHS[10]} epochs with 10 classes, where
the preset has more, and the preset's {forgetting.EPOCHS[100]} with 100.

The curve's peers predict all test examples under a mask, keys prepared anew for each; the {forgetting.SIZES} sizes are
evenly spaced. Right answers at {forgetting.CHECKED} random sizes are compared on {forgetting.EXAMPLES} examples,
retained and forgotten ones apart: where they differ, the run stops.

Predictions with a share of the pairs masked or erased have their keys prepared. Their ratios above, which are near one,
are of the best calls.
""",
    "memory": """
Peak anonymous memory above inputs and table, `working_memory` at its default. The table is what coding is given, keys
and values, and what key initialisation gives back, keys. Laying keys out for search is part of coding; the codes that
`fit` keeps count.
""",
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
    sections = [HEAD, setting(result), f"## Asked and measured\n{PEAK_NOTE}\n{targets(result)}"]
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
    libraries = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
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
    asked = multiple(target.asked) if target.peer else in_words(target.asked, target.quantity)
    peer = {"excise": "excise, top-1"}.get(target.peer or "", target.peer or "at most")
    found = target.measured(rows)
    if found is None:
        return [target.what, peer, MISSING, MISSING, asked, MISSING, MISSING]
    ours, theirs = found
    value = target.value(ours, theirs)
    if theirs and "form" in theirs:
        peer += f" ({theirs['form']})"
    shown = multiple(value) if target.peer else in_words(value, target.quantity)
    numbers = [amount(ours, target.quantity), amount(theirs, target.quantity) if theirs else ""]
    return [target.what, peer, *numbers, asked, shown, "yes" if target.met(value) else "**no**"]


def multiple(value: float) -> str:
    """A ratio: shares of one in percent."""
    return f"{value:.0%}" if value < 1 else f"{value:.3g}x"


def amount(row: Row, quantity: str = "rate") -> str:
    """A quantity of a row."""
    return in_words(row[quantity], quantity)


def in_words(value: float, quantity: str) -> str:
    """A quantity with its unit."""
    if quantity == "flops":
        return f"{value / 1e9:,.0f} GFLOP/s"
    if quantity == "mib":
        return f"{value:,.0f} MiB"
    if quantity == "seconds":
        return seconds(value)
    if quantity == "multiply_adds":
        return f"{value:,.0f}"
    return f"{value:,.0f}/s" if value >= 100 else f"{value:.3g}/s"


def part(result: dict[str, Any], name: str) -> str:
    """All rows of a part, one table for each case."""
    rows = all_rows(result, name)
    title = (PARTS[name].__module__.rsplit(".", 1)[-1]).replace("_", " ").capitalize()
    text = f"## {title}\n{NOTES[name]}"
    if not rows:
        return text + f"\n{MISSING.capitalize()}.\n"
    for case in dict.fromkeys(row["case"] for row in rows):
        own = [row for row in rows if row["case"] == case]
        text += f"\n### {case.capitalize()}\n\n{inputs(own[0])}\n\n{case_table(own)}"
    return text


def inputs(row: Row) -> str:
    """Features, and how many of the keys repeat others."""
    text = f"Features: {row['features']}."
    if "repeated_keys" in row:
        text += f" {row['repeated_keys']:.1%} of the keys equal that of a lower pair of their codebook."
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
    if row.get("keys_agreement", 1) < 1:
        found[-1] += f" ({row['keys_agreement']:.6g} up to equal keys)"
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
    text += f"![Cost of an example against every size]({FIGURE.parent.name}/{FIGURE.name})\n{caption(rows)}\n"
    head = ("what", "codebooks x pairs", "who", "examples a second", "remarks")
    own = [row for row in rows if row["axis"] == "layout"]
    lines = [[row["what"], row["value"], row["subject"], amount(row), remarks(row)] for row in own]
    return text + table(head, lines)


def caption(rows: list[Row]) -> str:
    """What is drawn, and whose points are scaled."""
    base, timed = scaling.Point(), {}
    for row in rows:
        if "timed" in row:
            timed[row["subject"]] = max(row["timed"], timed.get(row["subject"], 0))
    scaled = ", ".join(f"{subject} (at most {most:,})" for subject, most in timed.items())
    return f"""
Random inputs. The panels of a column share their vertical axis and one base point, measured once: {base.n:,} examples,
{base.c} codebooks x {base.m} pairs, key size {base.d}, top-{base.k}, {base.v} classes, all threads. A level line
against *examples* means that the whole cost grows in proportion to them. Training is one epoch, its table read at the
end.
Timed on fewer examples and scaled: {scaled or "nobody"}.
"""


def draw(rows: list[Row], path: Path) -> None:
    """Microseconds an example against size: a column for each kind of work, a row for each axis."""
    import matplotlib.pyplot as plt

    kinds = list(dict.fromkeys(row["what"] for row in rows))
    grid, panels = plt.subplots(len(AXES), len(kinds), figsize=(13, 15), squeeze=False, sharey="col")
    for column, what in zip(panels.T, kinds, strict=True):
        own = [row for row in rows if row["what"] == what]
        colours = dict(zip(dict.fromkeys(row["subject"] for row in own), COLOURS, strict=False))
        column[0].set_title(what, loc="left", fontsize=13)
        for panel, size in zip(column, AXES, strict=True):
            draw_panel(panel, [row for row in own if row["axis"] == size], size, colours)
        legend(column, colours)
    for panel in panels[:, 0]:
        panel.set_ylabel("µs an example")
    grid.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    grid.savefig(path, dpi=100)
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
COLOURS = ("#0b6e4f", "#e8a33d", "#c8553d", "#5b6c8f")


def draw_panel(panel: Any, rows: list[Row], size: str, colours: dict[str, str]) -> None:
    """One sweep; nothing where the kind of work knows no such size."""
    if not rows:
        panel.set_axis_off()
        return
    for subject, colour in colours.items():
        own = [row for row in rows if row["subject"] == subject]
        panel.plot([row["value"] for row in own], [1e6 / row["rate"] for row in own], "o-", ms=3, lw=1.4, color=colour)
    sizes = sorted({row["value"] for row in rows})
    panel.set_xscale("log", base=2)
    panel.set_xticks(sizes, [f"{value:,}" for value in sizes], fontsize=9)
    panel.set_yscale("log")
    panel.yaxis.set_major_formatter("{x:g}")
    panel.minorticks_off()
    panel.set_xlabel(AXES[size])
    panel.grid(alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)


def legend(column: Any, colours: dict[str, str]) -> None:
    """Who is who, in the first place of the column that has no panel; else over its first."""
    from matplotlib.lines import Line2D

    free = next((panel for panel in column if not panel.axison), column[0])
    lines = [Line2D([], [], color=colour, marker="o", ms=4) for colour in colours.values()]
    free.legend(lines, colours, loc="center", frameon=False, fontsize=10)


if __name__ == "__main__":
    main()
