"""The documents are current with their results; every script's quick switch runs."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from experiments import base_models
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parent.parent


def run(*arguments: str) -> None:
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Toy features, stored as the real ones are."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "data").mkdir()
    rng = np.random.default_rng(0)
    y = np.arange(900) % 10
    q = np.clip(40 * y[:, None] % 251 + rng.integers(0, 90, (900, 12)), 0, 255).astype(np.uint8)
    tensors = {"x_train": q[:600], "y_train": y[:600], "x_test": q[600:], "y_test": y[600:]}
    save_file(
        {**tensors, "scale": np.ones(12, np.float32)},
        folder / "data" / "cifar10-resnet50-layer3.safetensors",
        {"classes": ",".join("abcdefghij")},
    )
    return folder


@pytest.mark.parametrize(
    ("module", "document"), [("benchmarks.render", "benchmarks.md"), ("experiments.render", "results.md")]
)
def test_documents_are_current(module: str, document: str, tmp_path: Path) -> None:
    extra = ["--figure", str(tmp_path / "figure.png")] if module == "benchmarks.render" else []
    run(module, "-o", str(tmp_path / document), *extra)
    assert (tmp_path / document).read_text() == (ROOT / "docs" / document).read_text(), "run `make docs`"


def test_quick_benchmarks_run_and_render(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    run("benchmarks.run", "--quick", "--threads", "1", "-o", str(results))
    parts = json.loads(results.read_text())["parts"]
    assert set(parts) >= {"nearest", "keys", "values", "gradient", "prediction", "forgetting", "scaling"}
    assert all(part["rows"] for name, part in parts.items() if name != "memory")
    page, figure = tmp_path / "page.md", tmp_path / "figure.png"
    run("benchmarks.render", "-i", str(results), "-o", str(page), "--figure", str(figure))
    assert "a quick run, whose numbers mean nothing" in page.read_text()
    assert figure.exists()


@pytest.mark.parametrize("script", ["base_models", "linear_probe"])
def test_quick_experiments_run(script: str, shared: Path, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    options = ["--quick", "--presets", "cifar10-resnet50", "--shared", str(shared), "-o", str(out)]
    run(f"experiments.{script}", *options, *(["--seeds", "0", "1"] if script == "base_models" else []))
    rows = json.loads(out.read_text())["rows"]
    assert all(row["accuracy"] > 0.5 for row in rows)
    assert len(rows) == (2 if script == "base_models" else 1)


def test_a_seed_is_measured_again_by_other_code(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result.json"
    for commit, kept in (("a1", False), ("a1", True), ("b2", False), ("b2+", False), ("b2+", False)):
        monkeypatch.setattr(base_models, "provenance", lambda commit=commit: {"commit": commit})
        base_models.main(
            ["--quick", "--presets", "cifar10-resnet50", "--seeds", "0", "--shared", str(shared), "-o", str(out)]
        )
        assert ("seed 0: kept" in capsys.readouterr().err) == kept
        (row,) = json.loads(out.read_text())["rows"]
        assert row["commit"] == commit


def test_missing_features_are_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments.linear_probe", "--shared", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there are no features at" in done.stderr
    assert "--shared FOLDER" in done.stderr
    assert "Traceback" not in done.stderr
