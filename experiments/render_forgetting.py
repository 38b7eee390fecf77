"""The part of docs/results.md on forgetting, and its picture, rendered from the results of three experiments."""

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from experiments.record import ROOT, read_json

FOLDER = ROOT / "experiments" / "results"
FIGURE = ROOT / "docs" / "images" / "multi-class.png"
FORGET = """
## Forgetting one class

One class at a time, the size of the mask chosen by `pairs="auto"` without test data, measured on test data
(`python -m experiments.forget_class`). *log*: from the log of activations, no data read. *held out*: ranked by the
log, the size chosen on a tenth of the training data that the model was not trained on. *examples*: all pairs that a
draw of training examples selects, its size chosen likewise. A case is a class and a seed.
"""
MULTI = """
## Forgetting several classes

CIFAR-100, one to ten classes in random order, from logs, `pairs="auto"` (`python -m experiments.multi_class`). Masks
of classes forgotten at once and one after another are the same, bit for bit. Retain accuracy is over the 90 classes
that are never forgotten. *Displaced* is the share of retained training activations whose pairs are masked.
"""
SIZES = """
## How many pairs

What rules for the size of a mask give on training data that the model was not trained on, half of it to choose, half
to check (`python -m experiments.mask_size`). *displaced d*: the mask grows until others lose d times the square root
of the class's share of all activations, and covers 60% of the class at least; `pairs="auto"` takes d = .8. *held
out*: the smallest size that leaves no held-out example of the choosing half recognised, and more. *trained on*: the
size that examples ask for which the model was trained on, though they had no part in the ranking: they are remembered
by pairs of their own.
"""


def sections(folder: Path = FOLDER) -> list[str]:
    """What was measured, in the order of the page."""
    parts = []
    for name, head, render in (
        ("forget_class", FORGET, forget_class),
        ("multi_class", MULTI, multi_class),
        ("mask_size", SIZES, mask_size),
    ):
        runs = read_json(folder / f"{name}.json").get("runs", [])
        if runs:
            parts += [head, render(runs), origin(runs)]
    return parts


def forget_class(runs: list[dict[str, Any]]) -> str:
    """A line for every preset and method."""
    lines = [
        "| preset | from | cases | forget accuracy 0 | worst | before | retain change, mean (worst case) | "
        "cases where a retained class fell by over 3 points | pairs masked | time |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for preset, method, rows in by_method(runs):
        changes = [row["retain_change"] for row in rows]
        zero = sum(row["recognised"] == 0 for row in rows)
        worst = max(row["recognised"] / row["examples"] for row in rows)
        before = statistics.mean(row["recognised_before"] / row["examples"] for row in rows)
        fell = sum(row["classes_that_fell"] > 0 for row in rows)
        lines.append(
            f"| {preset} | {method} | {len(rows)} | {zero} ({zero / len(rows):.1%}) | {worst:.1%} | {before:.1%} | "
            f"{100 * statistics.mean(changes):+.2f}% ± {100 * statistics.stdev(changes):.2f} "
            f"({100 * min(changes):+.2f}%) | "
            f"{fell} | {statistics.mean(row['share'] for row in rows):.1%} | "
            f"{statistics.median(row['milliseconds'] for row in rows):.0f} ms |"
        )
    return "\n".join(lines) + "\n"


def by_method(runs: list[dict[str, Any]]) -> Iterable[tuple[str, str, list[dict[str, Any]]]]:
    """Preset, method, and the rows of all seeds."""
    for preset in dict.fromkeys(run["preset"] for run in runs):
        rows = [row for run in runs if run["preset"] == preset for row in run["rows"]]
        for method in dict.fromkeys(row["method"] for row in rows):
            yield preset, method, [row for row in rows if row["method"] == method]


def multi_class(runs: list[dict[str, Any]]) -> str:
    """A line for every number of classes, and the picture."""
    rows = [row for run in runs for row in run["rows"]]
    methods = [m for m in dict.fromkeys(row["method"] for row in rows) if m != "before"]
    lines = [
        f"![Retain accuracy against classes forgotten](images/{FIGURE.name})\n",
        "| classes | "
        + " | ".join(f"{m}: retain" for m in methods)
        + " | still recognised (activations) | displaced |",
        "|---|" + "---|" * (len(methods) + 2),
        "| 0 | " + " | ".join([percent(retained(rows, "before", 0))] * len(methods)) + " | | 0.0% |",
    ]
    for count in sorted({row["classes"] for row in rows} - {0}):
        own = [row for row in rows if (row["method"], row["classes"]) == (methods[0], count)]
        left = " | ".join(still(rows, method, count) for method in methods if method != "exact")
        cells = [percent(retained(rows, method, count)) for method in methods]
        displaced = statistics.mean(row["displaced"] for row in own)
        lines.append(f"| {count} | {' | '.join(cells)} | {left} | {displaced:.1%} |")
    return "\n".join(lines) + "\n"


def still(rows: list[dict[str, Any]], method: str, classes: int) -> str:
    """How many examples of the forgotten classes are recognised, over all seeds."""
    own = [row for row in rows if (row["method"], row["classes"]) == (method, classes)]
    return f"{sum(row['recognised'] for row in own)} of {sum(row['examples'] for row in own):,}"


def retained(rows: list[dict[str, Any]], method: str, classes: int) -> list[float]:
    """Retain accuracies of a method, by seed."""
    return [row["retain_accuracy"] for row in rows if (row["method"], row["classes"]) == (method, classes)]


def draw_multi_class(runs: list[dict[str, Any]], path: Path = FIGURE) -> None:
    """Retain accuracy against classes forgotten, mean and range over seeds."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rows = [row for run in runs for row in run["rows"]]
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    styles = {"activations, at once or in sequence": ("o", "-"), "exact": ("D", ":")}
    for shift, (method, (marker, line)) in zip((-0.08, 0.08), styles.items(), strict=True):
        counts = [0, *sorted({row["classes"] for row in rows if row["method"] == method})]
        found = [retained(rows, method if count else "before", count) for count in counts]
        means = [100 * statistics.mean(values) for values in found]
        reach = [[m - 100 * min(v) for m, v in zip(means, found, strict=True)],
                 [100 * max(v) - m for m, v in zip(means, found, strict=True)]]  # fmt: skip
        axes.errorbar(
            np.array(counts) + shift, means, reach, marker=marker, linestyle=line, capsize=3, markersize=5, label=method
        )
    axes.set(xlabel="classes of CIFAR-100 forgotten", ylabel="accuracy on the 90 others, %", xticks=range(11))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150, metadata={"Software": None})
    plt.close(figure)


def mask_size(runs: list[dict[str, Any]]) -> str:
    """A line for every rule."""
    presets = list(dict.fromkeys(run["preset"] for run in runs))
    rows = {preset: [row for run in runs if run["preset"] == preset for row in run["rows"]] for preset in presets}
    heads = " | ".join(f"{p}: forgotten | recognised | retain change | covered" for p in presets)
    lines = [f"| rule | {heads} |", "|---|" + "---|" * (4 * len(presets))]
    for rule in rows[presets[0]][0]["rules"]:
        cells = []
        for preset in presets:
            own = [row["rules"][rule] for row in rows[preset]]
            examples = sum(row["examples"] for row in rows[preset])
            zero = sum(row["recognised"] == 0 for row in own) / len(own)
            change = statistics.mean(row["retain_change"] for row in own)
            covered = statistics.mean(row["covered"] for row in own)
            recognised = sum(row["recognised"] for row in own) / examples
            cells.append(f"{zero:.0%} | {recognised:.2%} | {100 * change:+.2f}% | {covered:.0%}")
        lines.append(f"| {rule} | {' | '.join(cells)} |")
    counts = ", ".join(f"{len(rows[preset])} of {preset}" for preset in presets)
    return (
        "\n".join(lines)
        + f"\n\nClasses forgotten in turn: {counts}. *Forgotten*: no example of the checking half left.\n"
    )


def percent(values: list[float]) -> str:
    """Mean and standard deviation, or nothing."""
    if not values:
        return ""
    spread = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.2f}{spread}%"


def origin(runs: list[dict[str, Any]]) -> str:
    """Machines, commits and seeds behind the rows."""
    texts = dict.fromkeys(
        f"{run['hardware']['cpu']}, {run['hardware']['cores']} cores, {run['kernels']} kernels, commit {run['commit']}"
        for run in runs
    )
    seeds = ", ".join(map(str, sorted({run["seed"] for run in runs})))
    return f"Seeds {seeds}. Measured on: {'; '.join(texts)}.\n"
