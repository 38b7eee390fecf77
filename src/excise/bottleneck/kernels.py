"""The speed: picks the compiled kernels where they were built, else their numpy reference, once at import.

`EXCISE_KERNELS` chooses by hand: `reference`, or an instruction set that this machine has
(`avx512vnni`, `avx512`, `avx2`, `neon`, `plain`).
"""

import importlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from excise.bottleneck import reference
from excise.bottleneck.reference import NEVER, NO_PAIR, Optimiser
from excise.errors import InputError

__all__ = [
    "BACKEND",
    "NEVER",
    "NO_PAIR",
    "WHY_SLOW",
    "KeyInitializer",
    "Optimiser",
    "PreparedKeys",
    "PreparedStairs",
    "ValueTrainer",
    "available_threads",
    "cross_entropy",
    "gradient",
    "logits",
    "project",
    "walk",
    "warn_if_slow",
]

WHY_SLOW: str | None = None
"""Why the numpy reference is in use though nobody chose it, in one sentence; else None."""
BACKEND: str
"""Name of the instruction set in use, or `reference`."""


def _load() -> Any:
    """The compiled module under the instruction set that was asked for, or None for the reference."""
    wanted = os.environ.get("EXCISE_KERNELS", "auto")
    if wanted == "reference":
        return None
    with _passive_waiting():
        native = importlib.import_module("excise._native")
    if wanted != "auto" and not native.use(wanted):
        allowed = ", ".join(["auto", "reference", *native.available()])
        raise InputError(f"EXCISE_KERNELS is {wanted!r}, which this machine does not have: use one of {allowed}")
    return native


@contextmanager
def _passive_waiting() -> Iterator[None]:
    """Let the threads of the kernels sleep while they wait, unless the user said otherwise.

    OpenMP reads the variable once, when it is loaded. Threads that spin at the end of every step of training bring a
    shared machine almost to a halt; sleeping costs microseconds.
    """
    if "OMP_WAIT_POLICY" in os.environ:
        yield
        return
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    try:
        yield
    finally:
        del os.environ["OMP_WAIT_POLICY"]


_chosen: Any
try:
    _chosen = _load()
except ImportError as error:
    _chosen = None
    WHY_SLOW = (
        "excise runs on its numpy kernels, which are hundreds of times slower, because no compiled ones were built "
        f"({error}): install a C++17 compiler (GCC or Clang), then reinstall excise"
    )
BACKEND = "reference" if _chosen is None else _chosen.backend()
_source = reference if _chosen is None else _chosen

PreparedKeys: Any = _source.PreparedKeys
PreparedStairs: Any = _source.PreparedStairs
KeyInitializer: Any = _source.KeyInitializer
ValueTrainer: Any = _source.ValueTrainer
project: Any = _source.project
logits: Any = _source.logits
gradient: Any = _source.gradient
cross_entropy: Any = _source.cross_entropy
walk: Any = _source.walk


_told = False


def warn_if_slow() -> None:
    """Say once that no compiled kernels were found; where the slow ones were asked for there is nothing to say."""
    global _told
    if WHY_SLOW and not _told:
        _told = True
        warnings.warn(WHY_SLOW, stacklevel=3)


def available_threads(n_jobs: int | None) -> int:
    """Threads for `n_jobs` as scikit-learn counts: None is all this process may use, -1 all, -2 all but one.

    OMP_NUM_THREADS bounds what "all" means; more than the cores are never used.
    """
    cores = most = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    if limit.isdigit() and int(limit) > 0:
        cores = min(cores, int(limit))
    if n_jobs is None:
        return cores
    if n_jobs == 0:
        raise InputError("n_jobs is 0: use a positive number of threads, -1 for all cores, or None")
    return min(n_jobs, most) if n_jobs > 0 else max(1, cores + 1 + n_jobs)
