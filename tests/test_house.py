"""What the documents promise of the house itself: imports follow the data, the core is light, the version is one."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import excise

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "excise"
STAGES = ("features", "bottleneck", "forgetting")  # the way of the data; each may import those before it
NEUTRAL = {"excise.errors", "excise.progress", "excise.tensorfile", "excise.atomic"}  # know nothing of any stage


def imports(path: Path) -> set[str]:
    """Modules of the package that a file imports, wherever in it."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    found = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    found |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    packages = {f"excise.{path.name}" for path in PACKAGE.iterdir() if path.is_dir()}
    deep = {
        f"{node.module}.{alias.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module in packages
        for alias in node.names
    }
    return {name for name in (found - packages) | deep if name.split(".")[0] == "excise"}


@pytest.mark.parametrize("stage", STAGES)
def test_imports_follow_the_way_of_the_data(stage: str) -> None:
    allowed = tuple(f"excise.{name}." for name in STAGES[: STAGES.index(stage) + 1])
    for path in (PACKAGE / stage).glob("*.py"):
        wrong = {name for name in imports(path) - NEUTRAL if not name.startswith(allowed) and name != "excise._native"}
        assert not wrong, f"{path.name} imports {wrong}"


@pytest.mark.parametrize("name", sorted(NEUTRAL))
def test_what_every_stage_may_import_knows_none_of_them(name: str) -> None:
    assert imports(PACKAGE / f"{name.split('.')[1]}.py") <= NEUTRAL | {"excise.features.arrays"}


def test_the_core_imports_nothing_heavy() -> None:
    program = "import sys, excise, excise.cli; print(*{'torch', 'matplotlib', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_version_is_one() -> None:
    for name, pattern in (("pyproject.toml", r'^version = "(.*)"$'), ("CITATION.cff", r"^version: (.*)$")):
        found = re.search(pattern, (ROOT / name).read_text(), re.MULTILINE)
        assert found is not None
        assert found[1].strip('"') == excise.__version__
