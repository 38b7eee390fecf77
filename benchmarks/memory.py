"""Peak anonymous memory above inputs and table, at the size of ImageNet: a child works, its parent watches.

Memory-mapped inputs and outputs are pages of files, which the system may drop at any time, so they do not count
(`RssAnon` in /proc, Linux). A child makes its inputs and table ready, says so, waits, does one task, and says so again.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from experiments.record import ROOT, say

from benchmarks.inputs import Settings
from benchmarks.timing import Row
from excise import KeyValueClassifier
from excise.bottleneck.keys import initialize_keys
from excise.bottleneck.model import Bottleneck
from excise.bottleneck.projection import draw_projection

FEATURES, KEY_DIM, CLASSES = 64, 8, 10
IMAGENET = 1_281_167
SMALL, PAPER = (16, 256), (256, 4096)  # (codebooks, pairs)
LIMIT = 256  # MiB, what `working_memory` is set to
CODING, KEYS, FIT = "coding", "key initialisation", "fit"


def run(settings: Settings) -> Iterator[Row]:
    """All tasks with all examples and a small layout; coding and keys again with the paper's layout and fewer."""
    if not Path("/proc/self/status").exists():
        say("  memory is measured on Linux only")
        return
    n, few = settings.size(IMAGENET, 4000), settings.size(32_768, 1024)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_features(folder, n, settings.seed)
        tasks = [(task, n, SMALL) for task in (CODING, KEYS, FIT)]
        if not settings.quick:
            tasks += [(task, few, PAPER) for task in (CODING, KEYS)]
        for task, examples, layout in tasks:
            row = watch(task, folder, n, examples, layout, settings.threads)
            say(f"  {row['case']}: {row['mib']:.0f} MiB")
            yield row


def case_name(task: str, examples: int, layout: tuple[int, int]) -> str:
    """How rows and targets call a case."""
    return f"memory of {task}, {examples:,} examples, {layout[0]} x {layout[1]}"


def write_features(folder: Path, n: int, seed: int) -> None:
    """Features (n, 64) float32 and labels, in chunks."""
    rng = np.random.default_rng(seed)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (n, FEATURES))
    for start in range(0, n, 65_536):
        x[start : start + 65_536] = rng.standard_normal((min(65_536, n - start), FEATURES), dtype=np.float32)
    x.flush()
    np.save(folder / "y.npy", rng.integers(CLASSES, size=n))


def watch(task: str, folder: Path, n: int, examples: int, layout: tuple[int, int], threads: int) -> Row:
    """Run a task in a child and note the peak of its anonymous memory above where it was before."""
    command = [sys.executable, "-m", "benchmarks.memory", task, str(folder), *map(str, (examples, *layout, threads))]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    assert child.stdin is not None
    assert child.stdout is not None
    with child:
        if child.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{task} ended before it was ready, with exit code {child.wait()}")
        before = peak = anonymous_mib(child.pid)
        began = time.perf_counter()
        child.stdin.write(b"\n")
        child.stdin.flush()
        readings = 0
        while child.poll() is None:
            peak, readings = max(peak, anonymous_mib(child.pid)), readings + 1
            time.sleep(0.002)
    if child.returncode:
        raise RuntimeError(f"{task} failed with exit code {child.returncode}")
    return {
        "case": case_name(task, examples, layout),
        "subject": "excise",
        "mib": peak - before,
        "before_mib": before,
        "seconds": time.perf_counter() - began,
        "readings": readings,
        "unit": "MiB",
        "features": "random, memory-mapped",
    }


def anonymous_mib(pid: int) -> float:
    """Resident memory that no file backs; 0 once the process has gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    found = [line.split()[1] for line in lines if line.startswith("RssAnon")]
    return int(found[0]) / 1024 if found else 0.0


def work(task: str, folder: Path, examples: int, codebooks: int, pairs: int, threads: int) -> None:
    """The child: make ready, wait for the parent, do the task."""
    x = np.load(folder / "x.npy", mmap_mode="r")[:examples]
    prepare = {CODING: prepare_coding, KEYS: prepare_keys, FIT: prepare_fit}[task]
    do = prepare(x, folder, codebooks, pairs, threads)
    print("ready", flush=True)
    sys.stdin.readline()
    do()


def prepare_coding(x: np.ndarray, folder: Path, codebooks: int, pairs: int, threads: int) -> Callable[[], object]:
    """Codes of all examples into a memory map."""
    rng = np.random.default_rng(0)
    projection = draw_projection(FEATURES, codebooks, KEY_DIM, rng)
    keys = rng.standard_normal((codebooks, pairs, KEY_DIM), dtype=np.float32)
    bottleneck = Bottleneck(projection, keys, np.zeros((codebooks, pairs, 1), np.float32))
    bottleneck.codes(x[:1])  # the keys are laid out for search once; that is the table
    out = np.lib.format.open_memmap(folder / "codes.npy", "w+", np.uint16, (len(x), codebooks, 1))
    return lambda: bottleneck.codes(x, out, threads, LIMIT)


def prepare_keys(x: np.ndarray, folder: Path, codebooks: int, pairs: int, threads: int) -> Callable[[], object]:
    """One pass over all examples."""
    rng = np.random.default_rng(0)
    projection = draw_projection(FEATURES, codebooks, KEY_DIM, rng)

    def do() -> object:
        return initialize_keys(
            x, projection, pairs, passes=1, batch_size=256, generator=rng, threads=threads, working_memory=LIMIT
        )

    return do


def prepare_fit(x: np.ndarray, folder: Path, codebooks: int, pairs: int, threads: int) -> Callable[[], object]:
    """Keys, codes and values; the codes of all examples are a result."""
    y = np.load(folder / "y.npy")[: len(x)]
    model = KeyValueClassifier(
        codebooks, pairs, KEY_DIM, key_epochs=1, epochs=1, random_state=0, n_jobs=threads, working_memory=LIMIT
    )
    return lambda: model.fit(x, y)


if __name__ == "__main__":
    work(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
