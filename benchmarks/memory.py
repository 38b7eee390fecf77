"""Peak anonymous memory above inputs and table, at the size of ImageNet: a child works, its parent watches.

Memory-mapped inputs and outputs are pages of files, which the system may drop at any time, so they do not count
(`RssAnon` in /proc, Linux). A child holds its inputs and says so, waits, does one task, and ends. The table is what the
task is given (coding: keys and values) or gives back (key initialisation: keys; fit: keys and values); laying the keys
out for search is part of the task.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from experiments.record import ROOT, say

from benchmarks.inputs import Settings
from benchmarks.timing import Row
from excise import KeyValueClassifier
from excise.bottleneck.keys import initialize_keys
from excise.bottleneck.model import Bottleneck
from excise.bottleneck.projection import draw_projection

CLASSES = 10
LIMIT = 256  # MiB, what `working_memory` is set to
CODING, KEYS, FIT = "coding", "key initialisation", "fit"


@dataclass(frozen=True)
class Job:
    """A task, its data and its layout."""

    task: str
    examples: int
    features: int
    dtype: str
    codebooks: int
    pairs: int
    key_dim: int

    @property
    def case(self) -> str:
        """How rows and targets call it."""
        return f"memory of {self.task}, {self.examples:,} examples, {self.layout}"

    @property
    def layout(self) -> str:
        """Codebooks, pairs and key size in words."""
        return f"{self.codebooks} x {self.pairs}, key size {self.key_dim}"

    @property
    def returned_mib(self) -> float:
        """The table that the task makes: it does not count."""
        width = {CODING: 0, KEYS: self.key_dim, FIT: self.key_dim + CLASSES}[self.task]
        return 4 * self.codebooks * self.pairs * width / 2**20


IMAGENET = tuple(Job(task, 1_281_167, 64, "float32", 16, 256, 8) for task in (CODING, KEYS, FIT))
PAPER = tuple(Job(task, 32_768, 1024, "float16", 256, 4096, 14) for task in (CODING, KEYS))
QUICK = tuple(Job(task, 4000, 64, "float16", 16, 256, 8) for task in (CODING, KEYS, FIT))


def run(settings: Settings) -> Iterator[Row]:
    """Many examples and a small layout, then the paper's layout."""
    if not Path("/proc/self/status").exists():
        say("  memory is measured on Linux only")
        return
    for jobs in (QUICK,) if settings.quick else (IMAGENET, PAPER):
        with tempfile.TemporaryDirectory() as name:
            write_features(Path(name), jobs[0], settings.seed)
            for job in jobs:
                row = watch(job, Path(name), settings.threads)
                say(f"  {row['case']}: {row['mib']:.0f} MiB")
                yield row


def write_features(folder: Path, job: Job, seed: int) -> None:
    """Features (n, f) and labels, in chunks."""
    rng, n = np.random.default_rng(seed), job.examples
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", job.dtype, (n, job.features))
    for start in range(0, n, 16_384):
        x[start : start + 16_384] = rng.standard_normal((min(16_384, n - start), job.features), dtype=np.float32)
    x.flush()
    np.save(folder / "y.npy", rng.integers(CLASSES, size=n))


def watch(job: Job, folder: Path, threads: int) -> Row:
    """Run a task in a child and note the peak of its anonymous memory above where it was before."""
    command = [sys.executable, "-m", "benchmarks.memory", json.dumps(asdict(job)), str(folder), str(threads)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    assert child.stdin is not None
    assert child.stdout is not None
    with child:
        if child.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{job.task} ended before it was ready, with exit code {child.wait()}")
        before = peak = anonymous_mib(child.pid)
        began = time.perf_counter()
        child.stdin.write(b"\n")
        child.stdin.flush()
        readings = 0
        while child.poll() is None:
            peak, readings = max(peak, anonymous_mib(child.pid)), readings + 1
            time.sleep(0.002)
    if child.returncode:
        raise RuntimeError(f"{job.task} failed with exit code {child.returncode}")
    return {
        "case": job.case,
        "subject": "excise",
        "mib": max(0.0, peak - before - job.returned_mib),
        "before_mib": before,
        "returned_mib": job.returned_mib,
        "seconds": time.perf_counter() - began,
        "readings": readings,
        "unit": "MiB",
        "features": f"random, memory-mapped, {job.examples:,} x {job.features} {job.dtype}",
    }


def anonymous_mib(pid: int) -> float:
    """Resident memory that no file backs; 0 once the process has gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    found = [line.split()[1] for line in lines if line.startswith("RssAnon")]
    return int(found[0]) / 1024 if found else 0.0


def work(job: Job, folder: Path, threads: int) -> None:
    """The child: make ready, wait for the parent, do the task."""
    x = np.load(folder / "x.npy", mmap_mode="r")
    do = {CODING: prepare_coding, KEYS: prepare_keys, FIT: prepare_fit}[job.task](job, x, folder, threads)
    print("ready", flush=True)
    sys.stdin.readline()
    do()


def prepare_coding(job: Job, x: np.ndarray, folder: Path, threads: int) -> Callable[[], object]:
    """Codes of all examples into a memory map."""
    rng = np.random.default_rng(0)
    projection = draw_projection(job.features, job.codebooks, job.key_dim, rng)
    keys = rng.standard_normal((job.codebooks, job.pairs, job.key_dim), dtype=np.float32)
    values = np.zeros((job.codebooks, job.pairs, CLASSES), np.float32)
    bottleneck = Bottleneck(projection, keys, values)
    out = np.lib.format.open_memmap(folder / "codes.npy", "w+", np.uint16, (len(x), job.codebooks, 1))
    return lambda: bottleneck.codes(x, out, threads, LIMIT)


def prepare_keys(job: Job, x: np.ndarray, folder: Path, threads: int) -> Callable[[], object]:
    """One pass over all examples."""
    rng = np.random.default_rng(0)
    projection = draw_projection(job.features, job.codebooks, job.key_dim, rng)
    options = {"passes": 1, "batch_size": 256, "generator": rng, "threads": threads, "working_memory": LIMIT}
    return lambda: initialize_keys(x, projection, job.pairs, **options)


def prepare_fit(job: Job, x: np.ndarray, folder: Path, threads: int) -> Callable[[], object]:
    """Keys, codes and values; the codes of all examples, which fit keeps, count."""
    y = np.load(folder / "y.npy")
    layout = {"codebooks": job.codebooks, "pairs": job.pairs, "key_dim": job.key_dim}
    options = {"key_epochs": 1, "epochs": 1, "random_state": 0, "n_jobs": threads, "working_memory": LIMIT}
    return lambda: KeyValueClassifier(**layout, **options).fit(x, y)


if __name__ == "__main__":
    work(Job(**json.loads(sys.argv[1])), Path(sys.argv[2]), int(sys.argv[3]))
