"""Fills what lies between the README's markers, from docstrings and results: python docs/render_readme.py [--check]."""

import ast
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FLOW = ("features", "bottleneck", "forgetting")  # the way of the data; what is not on it follows by name
BESIDE = {
    "native/": "The kernels in C++17, one file for each instruction set.",
    "tests/": "One file per module, of the same name: properties first.",
    "experiments/": "One file per table or figure of the paper; results as JSON.",
    "benchmarks/": "Speed and memory against other libraries; results as JSON.",
    "docs/": "The method exactly as implemented, and the script that fills this page.",
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
    """Test accuracy of the presets on real features, beside the paper's."""
    return results("experiments/results/base_models.json", "make experiments")


def speed() -> str:
    """Every operation against the fastest of its peers."""
    return results("benchmarks/results.json", "make bench")


def results(name: str, command: str) -> str:
    """The rows of a result as a table, and where they were measured."""
    path = ROOT / name
    if not path.exists():
        return f"Not measured yet: `{command}` writes `{name}`."
    result = json.loads(path.read_text())
    return table(result["rows"])


def table(rows: list[dict[str, Any]]) -> str:
    """A table of Markdown; its columns are the keys of the rows."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[show(row.get(name)) for name in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in [columns, ["---"] * len(columns), *cells])


def show(cell: Any) -> str:
    """A cell of a table."""
    if cell is None:
        return ""
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


BLOCKS: dict[str, Callable[[], str]] = {"tree": tree, "base_models": base_models, "speed": speed}


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
