"""The speed: picks the compiled kernels where they were built, else their numpy reference, once at import.

`EXCISE_KERNELS` chooses by hand: `reference`, or an instruction set that this machine has
(`avx512`, `avx2`, `neon`, `plain`).
"""

import os
from typing import Any

from excise.bottleneck import reference
from excise.bottleneck.reference import NO_PAIR, Optimiser
from excise.errors import InputError

__all__ = [
    "BACKEND",
    "NO_PAIR",
    "WHY_SLOW",
    "KeyInitializer",
    "Optimiser",
    "PreparedKeys",
    "ValueTrainer",
    "available_threads",
    "cross_entropy",
    "gradient",
    "logits",
    "project",
]

WHY_SLOW: str | None = None
BACKEND: str
"""Name of the instruction set in use, or `reference`."""

_native: Any
_wanted = os.environ.get("EXCISE_KERNELS", "auto")
try:
    if _wanted == "reference":
        raise ImportError("EXCISE_KERNELS=reference was set")
    from excise import _native  # type: ignore[attr-defined,no-redef]

    if _wanted != "auto" and not _native.use(_wanted):
        raise InputError(
            f"EXCISE_KERNELS={_wanted!r} is not available here: use 'auto', 'reference' or one of {_native.available()}"
        )
    BACKEND = _native.backend()
    PreparedKeys: Any = _native.PreparedKeys
    KeyInitializer: Any = _native.KeyInitializer
    ValueTrainer: Any = _native.ValueTrainer
    project: Any = _native.project
    logits: Any = _native.logits
    gradient: Any = _native.gradient
    cross_entropy: Any = _native.cross_entropy
except ImportError as error:
    BACKEND = "reference"
    WHY_SLOW = (
        f"excise runs on its pure Python kernels, which are hundreds of times slower than the compiled ones ({error}); "
        "install a C++17 compiler and reinstall: pip install --force-reinstall --no-binary excise excise"
    )
    PreparedKeys = reference.PreparedKeys
    KeyInitializer = reference.KeyInitializer
    ValueTrainer = reference.ValueTrainer
    project = reference.project
    logits = reference.logits
    gradient = reference.gradient
    cross_entropy = reference.cross_entropy


def available_threads(n_jobs: int | None) -> int:
    """Threads for `n_jobs` as scikit-learn counts: None is all this process may use, -1 all, -2 all but one."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    if limit.isdigit() and int(limit) > 0:
        cores = min(cores, int(limit))
    if n_jobs is None:
        return cores
    if n_jobs == 0:
        raise InputError("n_jobs is 0: use a positive number of threads, -1 for all cores, or None")
    return n_jobs if n_jobs > 0 else max(1, cores + 1 + n_jobs)
