"""The documentation is true: its code runs and prints what it says, its tree and its numbers are current."""

import contextlib
import importlib.util
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from excise import KeyValueClassifier

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md"))),
]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_code_runs_and_prints_what_it_says(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks(page, "python"):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block, page, "exec"), names)
        said = re.findall(r"^print\(.*\)  # (.*)$", block, flags=re.MULTILINE)
        assert not said or out.getvalue().splitlines() == said
    if page != "README.md":
        return
    for line in "\n".join(blocks(page, "bash")).splitlines():
        if line.startswith("excise "):
            words = shlex.split(line, comments=True)
            done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            assert done.stdout


def load_script() -> Any:
    spec = importlib.util.spec_from_file_location("render_readme", ROOT / "docs/render_readme.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_the_readme_is_current() -> None:
    script = load_script()
    page = (ROOT / "README.md").read_text()
    assert script.render(page) == page, "run `make docs`"
    for module in (ROOT / "src/excise").rglob("*.py"):
        sentence = script.first_line(module)
        assert sentence.endswith("."), f"{module} must open with one sentence"
        assert module == ROOT / "src/excise/__init__.py" or sentence in page


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / page).read_text()):
        assert (ROOT / page).parent.joinpath(target).exists(), target


@pytest.mark.parametrize("page", PAGES)
def test_every_make_target_exists(page: str) -> None:
    known = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert set(re.findall(r"(?:^|`)make (\w+)", (ROOT / page).read_text(), flags=re.MULTILINE)) <= set(known)


def test_every_extra_exists() -> None:
    settings = (ROOT / "pyproject.toml").read_text()
    for extra in re.findall(r"pip install '\.\[(\w+)\]'", (ROOT / "README.md").read_text()):
        assert re.search(rf"^{extra} = \[", settings, flags=re.MULTILINE)


@pytest.mark.parametrize("name", KeyValueClassifier().get_params())
def test_every_parameter_is_documented(name: str) -> None:
    parameters = (KeyValueClassifier.__doc__ or "").split("Attributes")[0].split("Parameters")[1]
    assert re.search(rf"^    (\w+, )*{name}(, \w+)*( :|$)", parameters, flags=re.MULTILINE)


def test_contributing_fits_a_page() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 60


@pytest.mark.skipif(os.name == "nt", reason="make is not everywhere there")
def test_make_tells_what_it_can() -> None:
    out = subprocess.run(["make", "-s"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "make demo" in out
    assert "make test" in out


def test_results_become_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_script()
    row = {"preset": "a", "seconds": {"fit": 9.6}}
    rows = [{**row, "seed": 0, "accuracy": 0.80}, {**row, "seed": 1, "accuracy": 0.82}]
    case = {"case": "nearest", "unit": "examples/s"}
    speed = [
        {**case, "subject": "excise", "rate": 3000.0},
        {**case, "subject": "slow", "rate": 10.0},
        {**case, "subject": "fast", "rate": 1500.0},
        {**case, "subject": "peak", "rate": 9.0, "unit": "GFLOP/s"},
    ]
    for name, result in (
        ("BASE_MODELS", {"paper": {"a": 82.94}, "rows": rows}),
        ("PROBE", {"rows": [{"preset": "a", "accuracy": 0.89}]}),
        ("SPEED", {"parts": {"nearest": {"rows": speed}}}),
    ):
        monkeypatch.setattr(script, name, tmp_path / name)
        (tmp_path / name).write_text(json.dumps(result))
    assert script.base_models().endswith("\n| `a` | 81.00 ± 1.41 | 82.94 | 89.00 | 2 | 10 |")
    assert script.speed().endswith("\n| nearest | 3,000 /s | fast | 1,500 /s | 2 |")
