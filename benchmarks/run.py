"""Measures speed and memory: `python -m benchmarks.run -o benchmarks/results.json`, about 35 minutes on two cores."""

import argparse
import os
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from experiments.features import SHARED
from experiments.record import ROOT, provenance, read_json, say, write_json

from benchmarks import (
    forgetting,
    full_gradient,
    key_initialisation,
    memory,
    nearest,
    prediction,
    scaling,
    value_training,
)
from benchmarks.inputs import Settings
from benchmarks.threads import limited
from benchmarks.timing import Row
from excise.bottleneck import kernels

RESULTS = ROOT / "benchmarks" / "results.json"
PARTS: dict[str, Callable[[Settings], Iterable[Row]]] = {
    "nearest": nearest.run,
    "keys": key_initialisation.run,
    "values": value_training.run,
    "gradient": full_gradient.run,
    "prediction": prediction.run,
    "forgetting": forgetting.run,
    "memory": memory.run,
    "scaling": scaling.run,
}


def main(arguments: list[str] | None = None) -> None:
    """Measure the parts asked for; each is written as soon as it is done and replaces its former self."""
    options = parse(arguments)
    settings = Settings(options.quick, options.shared, options.seed, options.threads)
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    with limited(options.threads):
        for name in options.only:
            say(f"{name} ...")
            began, found = time.perf_counter(), {**provenance(), "configuration": configuration(settings)}
            rows = list(PARTS[name](settings))
            say(f"{name}: {time.perf_counter() - began:.0f} s")
            record(options.output, name, {**found, "rows": rows})


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, help=f"result file (default {RESULTS.relative_to(ROOT)})")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART", help="parts")
    parser.add_argument("--quick", action="store_true", help="everything tiny: seconds, and numbers without meaning")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder that holds data/ (default %(default)s)")
    parser.add_argument("--threads", type=int, default=kernels.available_threads(None), help="of all contenders")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.output is None and options.quick:
        parser.error("--quick needs -o FILE: its numbers do not belong in the result file")
    options.output = options.output or RESULTS
    return options


def record(path: Path, name: str, part: dict[str, Any]) -> None:
    """Put the rows of one part into the file, beside what they depend on."""
    parts = read_json(path).get("parts", {}) | {name: part}
    write_json(path, {"benchmark": "excise", "parts": {key: parts[key] for key in PARTS if key in parts}})


def configuration(settings: Settings) -> dict[str, Any]:
    """Settings and threads as each library sees them."""
    found: dict[str, Any] = {
        "quick": settings.quick,
        "seed": settings.seed,
        "threads": settings.threads,
        "torch_threads": torch.get_num_threads(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
    }
    with suppress(ImportError):
        import faiss

        found["faiss_threads"] = faiss.omp_get_max_threads()
    return found


if __name__ == "__main__":
    main()
