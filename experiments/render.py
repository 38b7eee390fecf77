"""docs/results.md, rendered from the results of the experiments; no number in it is typed by hand."""

import argparse
import statistics
from pathlib import Path
from typing import Any

from experiments import render_forgetting
from experiments.base_models import PAPER
from experiments.base_models import RESULTS as BASE_MODELS
from experiments.linear_probe import RESULTS as LINEAR_PROBE
from experiments.record import ROOT, read_json, say

PAGE = ROOT / "docs" / "results.md"
MISSING = "not measured"
HEAD = """# Results

Rendered from `experiments/results/*.json` by `python -m experiments.render`; no number here is typed by hand.

## Base models

Presets of the paper, trained end to end on real ResNet-50 features (`python -m experiments.base_models`). The paper's
features come from other weights of the same network. *Gated* forbids at test time the pairs that no training example
selected. The linear probe is a converged logistic regression on the same features, standardised
(`python -m experiments.linear_probe`). Test accuracy, mean and standard deviation over seeds.
"""


def main(arguments: list[str] | None = None) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    options.output.write_text(page(read_json(BASE_MODELS), read_json(LINEAR_PROBE)))
    multi = read_json(render_forgetting.FOLDER / "multi_class.json").get("runs", [])
    if multi and options.output == PAGE:
        render_forgetting.draw_multi_class(multi)
    say(f"wrote {options.output}")


def page(base: dict[str, Any], probe: dict[str, Any]) -> str:
    """The whole document."""
    rows = {name: [row for row in base.get("rows", []) if row["preset"] == name] for name in PAPER}
    probes = {row["preset"]: row for row in probe.get("rows", [])}
    accuracy = ["| preset | seeds | accuracy | gated | paper | linear probe |", "|---|---|---|---|---|---|"]
    accuracy += [accuracy_line(name, own, probes.get(name)) for name, own in rows.items()]
    times = ["| preset | epochs | keys | values | codes and the rest | fit |", "|---|---|---|---|---|---|"]
    times += [time_line(name, own) for name, own in rows.items()]
    parts = [HEAD, lines(accuracy), "Seconds of training, median over seeds:\n", lines(times), *settings(rows, probes)]
    return "\n".join([*parts, *render_forgetting.sections()])


def lines(rows: list[str]) -> str:
    """Rows as a block of text."""
    return "\n".join(rows) + "\n"


def accuracy_line(name: str, rows: list[dict[str, Any]], probe: dict[str, Any] | None) -> str:
    """Ours, gated, the paper's, the probe's."""
    own = [spread([row[key] for row in rows]) for key in ("accuracy", "accuracy_gate_unused")]
    seeds = ", ".join(str(row["seed"]) for row in rows) or MISSING
    probed = f"{probe['accuracy']:.2%}{'' if probe['converged'] else ' (not converged)'}" if probe else MISSING
    return f"| {name} | {seeds} | {own[0]} | {own[1]} | {PAPER[name]:.2f}% | {probed} |"


def spread(values: list[float]) -> str:
    """Mean and standard deviation, in percent."""
    if not values:
        return MISSING
    deviation = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.2f}{deviation}%"


def time_line(name: str, rows: list[dict[str, Any]]) -> str:
    """Median seconds of the stages."""
    if not rows:
        return f"| {name} |" + f" {MISSING} |" * 5
    stages = ("keys", "values", "codes and the rest", "fit")
    medians = [f"{statistics.median(row['seconds'][stage] for row in rows):.1f}" for stage in stages]
    return f"| {name} | {rows[0]['epochs']} | {' | '.join(medians)} |"


def settings(rows: dict[str, list[dict[str, Any]]], probes: dict[str, dict[str, Any]]) -> list[str]:
    """Machines, commits and versions behind the rows."""
    found = [row for own in rows.values() for row in own] + list(probes.values())
    texts = dict.fromkeys(
        f"- {row['hardware']['cpu']}, {row['hardware']['cores']} cores, {row['kernels']} kernels, "
        f"commit {row['commit']}, "
        f"numpy {row['versions']['numpy']}, scikit-learn {row['versions']['scikit-learn']}"
        for row in found
    )
    return ["Measured on:\n", lines(list(texts))] if texts else []


if __name__ == "__main__":
    main()
