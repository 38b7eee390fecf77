"""A result as one JSON file: rows beside the configuration, commit, versions and hardware that gave them."""

import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from excise import __version__
from excise.atomic import written_whole
from excise.bottleneck import kernels

ROOT = Path(__file__).resolve().parent.parent
CODE = ("src", "experiments", "benchmarks")
PACKAGES = (
    "numpy",
    "scikit-learn",
    "scipy",
    "safetensors",
    "torch",
    "faiss-cpu",
    "discrete-key-value-bottleneck-pytorch",
    "vector-quantize-pytorch",
)


def provenance() -> dict[str, Any]:
    """What a number depends on beside its configuration; to be taken before it is measured."""
    return {"commit": commit(), "versions": versions(), "hardware": hardware(), "kernels": kernels.BACKEND}


def commit() -> str:
    """The commit of the code, with `+` where the code has changed since; `unknown` outside a repository."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD").strip()
        changed = _git("status", "--porcelain", "--", *CODE).splitlines()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if any(line.endswith((".py", ".cpp", ".hpp", ".h")) for line in changed) else "")


def versions() -> dict[str, str]:
    """Versions of Python, of the code that runs (a checkout need not be installed), and of installed packages."""
    found = {"python": platform.python_version(), "excise": __version__}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    """The kind of machine, not which one."""
    return {
        "cpu": _cpu_model(),
        "cores": kernels.available_threads(None),
        "memory_gib": _memory_gib(),
        "system": platform.system(),
        "machine": platform.machine(),
    }


def read_json(path: Path) -> dict[str, Any]:
    """What was recorded so far; empty where there is no file."""
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def write_json(path: Path, result: dict[str, Any]) -> None:
    """The file whole, or as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        file.write((json.dumps(result, indent=1, sort_keys=False) + "\n").encode())


def write_run(path: Path, experiment: str, run: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Add the rows of one run of an experiment, in the place of those of the same preset, seed and part."""

    def key(one: dict[str, Any]) -> tuple[str, str, int]:
        return one["preset"], one.get("part", ""), one["seed"]

    runs: list[dict[str, Any]] = read_json(path).get("runs", [])
    kept = [old for old in runs if key(old) != key(run)]
    found = sorted([*kept, {**run, "rows": rows}], key=key)
    write_json(path, {"experiment": experiment, "runs": found})


def say(text: str) -> None:
    """One line of progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_gib() -> int:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (ValueError, OSError):
        return 0
