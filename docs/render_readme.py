"""Fills what lies between the README's markers, from docstrings and results: python docs/render_readme.py [--check]."""

import ast
import json
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BASE_MODELS = ROOT / "experiments/results/base_models.json"
PROBE = ROOT / "experiments/results/linear_probe.json"
FORGETTING = ROOT / "experiments/results/forget_class.json"
SPEED = ROOT / "benchmarks/results.json"
SPEED_PARTS = ("nearest", "keys", "values", "gradient", "prediction", "forgetting")
FLOW = ("features", "bottleneck", "forgetting")  # the way of the data; what is not on it follows by name
BESIDE = {
    "native/": "The kernels in C++17, one file for each instruction set.",
    "tests/": "Properties first; files are named after what they test.",
    "experiments/": "One file per table or figure of the paper; results as JSON.",
    "benchmarks/": "Speed and memory against other libraries; results as JSON.",
    "docs/": "The method exactly as implemented, the doors, the results, and the scripts that render them.",
}


def first_line(module: Path) -> str:
    """The sentence that a module opens with."""
    return (ast.get_docstring(ast.parse(module.read_text())) or "").split("\n")[0]


def tree() -> str:
    """The modules of the package, each with its first sentence."""
    lines = ["src/excise/"]

    def place(path: Path) -> tuple[int, str]:
        return (FLOW.index(path.name) if path.name in FLOW else len(FLOW), path.name)

    def walk(folder: Path, depth: int) -> None:
        modules = [p for p in folder.glob("*.py") if p.name != "__init__.py"]
        packages = [p for p in folder.iterdir() if (p / "__init__.py").exists()]
        for path in [*sorted(packages, key=place), *sorted(modules, key=place)]:
            name = "  " * depth + path.name + ("/" if path in packages else "")
            lines.append(f"{name:<24}{first_line(path / '__init__.py' if path in packages else path)}")
            if path in packages:
                walk(path, depth + 1)

    walk(ROOT / "src/excise", 1)
    lines.append(f"{'  native/':<24}{BESIDE['native/']}")
    lines += [f"{name:<24}{sentence}" for name, sentence in BESIDE.items() if name != "native/"]
    return "\n".join(["```", *lines, "```"])


def base_models() -> str:
    """Test accuracy of the presets on real features, beside the paper's and beside a linear probe."""
    if not BASE_MODELS.exists():
        return f"Not measured yet: `make experiments` writes `{BASE_MODELS.relative_to(ROOT)}`."
    result = json.loads(BASE_MODELS.read_text())
    probes = {row["preset"]: row for row in json.loads(PROBE.read_text())["rows"]} if PROBE.exists() else {}
    lines = [["preset", "test accuracy, %", "the paper's", "linear probe", "seeds", "training, s"]]
    for name, paper in result["paper"].items():
        rows = [row for row in result["rows"] if row["preset"] == name]
        if rows:
            accuracy = [100 * row["accuracy"] for row in rows]
            probe = f"{100 * probes[name]['accuracy']:.2f}" if name in probes else ""
            seconds = statistics.median(row["seconds"]["fit"] for row in rows)
            lines.append([f"`{name}`", spread(accuracy), f"{paper:.2f}", probe, str(len(rows)), f"{seconds:.0f}"])
    return table(lines)


def speed() -> str:
    """Every case beside the fastest of its peers."""
    if not SPEED.exists():
        return f"Not measured yet: `make bench` writes `{SPEED.relative_to(ROOT)}`."
    parts = json.loads(SPEED.read_text())["parts"]
    lines = [["case", "excise", "the fastest other", "", "times"]]
    for name in SPEED_PARTS:
        rows = parts[name]["rows"] if name in parts else []
        for ours in (row for row in rows if row["subject"].startswith("excise")):
            peers = [row for row in rows if row["case"] == ours["case"] and row.get("unit") == ours.get("unit")]
            peers = [row for row in peers if not row["subject"].startswith("excise")]
            if peers and ours["subject"] in ("excise", "excise, predict"):
                best = max(peers, key=lambda row: row["rate"])
                rates = [f"{ours['rate']:,.0f} /s", who(best), f"{best['rate']:,.0f} /s"]
                lines.append([ours["case"], *rates, factor(ours["rate"] / best["rate"])])
    return table(lines)


def factor(times: float) -> str:
    """Two digits, or all before the point."""
    return f"{times:,.0f}" if times >= 10 else f"{times:.2g}"


def who(row: dict[str, str]) -> str:
    """A peer by the form or setting that won."""
    return row["subject"].removesuffix(", fastest form").removesuffix(", best setting").removesuffix(", tuned")


def spread(numbers: list[float]) -> str:
    """Mean and standard deviation."""
    if len(numbers) == 1:
        return f"{numbers[0]:.2f}"
    return f"{statistics.mean(numbers):.2f} ± {statistics.stdev(numbers):.2f}"


def table(lines: list[list[str]]) -> str:
    """Lines of cells, the first of them the head, in Markdown."""
    head, *rest = lines
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rest])


def forgetting() -> str:
    """What forgetting one class did to test data, by preset and by where the size of the mask came from."""
    if not FORGETTING.exists():
        return f"Not measured yet: `make experiments` writes `{FORGETTING.relative_to(ROOT)}`."
    runs = json.loads(FORGETTING.read_text())["runs"]
    lines = [
        [
            "preset",
            "size from",
            "cases",
            "forget accuracy 0 in",
            "worst",
            "retain accuracy, relative, %",
            "pairs masked",
        ]
    ]
    for preset in dict.fromkeys(run["preset"] for run in runs):
        rows = [row for run in runs if run["preset"] == preset for row in run["rows"]]
        for method in dict.fromkeys(row["method"] for row in rows):
            own = [row for row in rows if row["method"] == method]
            zero = sum(row["recognised"] == 0 for row in own) / len(own)
            worst = max(row["recognised"] / row["examples"] for row in own)
            change = statistics.mean(100 * row["retain_change"] for row in own)
            masked = statistics.mean(row["share"] for row in own)
            cells = [
                f"`{preset}`",
                method,
                str(len(own)),
                f"{zero:.0%}",
                f"{worst:.1%}",
                f"{change:+.2f}",
                f"{masked:.0%}",
            ]
            lines.append(cells)
    return table(lines)


BLOCKS: dict[str, Callable[[], str]] = {
    "tree": tree,
    "base_models": base_models,
    "forgetting": forgetting,
    "speed": speed,
}


def render(text: str) -> str:
    """The page with every block between `<!-- results:NAME -->` and `<!-- /results -->` written anew."""

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}\n{BLOCKS[match[2]]()}\n{match[3]}"

    return re.sub(r"(<!-- results:(\w+) -->)\n.*?(<!-- /results -->)", fill, text, flags=re.DOTALL)


def main() -> int:
    """Write the README, or with --check only say whether it is current."""
    page = ROOT / "README.md"
    before = page.read_text()
    after = render(before)
    if "--check" not in sys.argv[1:]:
        page.write_text(after)
        return 0
    if before != after:
        print("README.md is not current: run `make docs`", file=sys.stderr)
    return int(before != after)


if __name__ == "__main__":
    sys.exit(main())
