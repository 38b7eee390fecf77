"""What was asked of the engine, row by row, and how a measured ratio is read from the results."""

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks import forgetting, full_gradient, key_initialisation, memory, nearest, value_training
from benchmarks.timing import Row

TORCH, FAISS, PYPI = "torch, fastest form", "faiss-cpu, best setting", "PyPI package, best block"
ICML, ADAM = "ICML-2023 formulation", "torch embedding_bag + Adam(fused=True)"


@dataclass(frozen=True)
class Target:
    """`quantity` of ours over the peer's must be at least `asked`; without a peer it must be at most `asked`."""

    what: str
    case: str
    peer: str | None
    asked: float
    quantity: str = "rate"
    peer_case: str | None = None
    subject: str = "excise"

    def measured(self, rows: Iterable[Row]) -> tuple[Row, Row | None] | None:
        """Our row and the peer's; nothing where one of them was not measured."""
        rows = list(rows)
        ours = find(rows, self.case, self.subject)
        theirs = find(rows, self.peer_case or self.case, self.peer) if self.peer else None
        return None if ours is None or (self.peer and theirs is None) else (ours, theirs)

    def value(self, ours: Row, theirs: Row | None) -> float:
        """The ratio, or the quantity itself."""
        return float(ours[self.quantity] / theirs[self.quantity] if theirs else ours[self.quantity])

    def met(self, value: float) -> bool:
        """Whether that is what was asked."""
        return value >= self.asked if self.peer else value <= self.asked


def find(rows: Iterable[Row], case: str, subject: str | None) -> Row | None:
    """The row of a case and subject."""
    return next((row for row in rows if row["case"] == case and row["subject"] == subject), None)


def _nearest(key_dim: int, torch: float, faiss: float, peak: float) -> tuple[Target, ...]:
    case = nearest.case_name(1, key_dim)
    return (
        Target(f"nearest key, size {key_dim}", case, TORCH, torch),
        Target(f"nearest key, size {key_dim}", case, "torch, plain", torch),
        Target(f"nearest key, size {key_dim}", case, FAISS, faiss),
        Target(f"nearest key, size {key_dim}", case, "faiss-cpu, default setting", faiss),
        Target(f"nearest key, size {key_dim}", case, nearest.PEAK, peak, "flops"),
        Target(
            f"nearest key, size {key_dim}, in floats, no key repeated",
            case,
            nearest.PEAK,
            peak,
            "flops",
            subject=nearest.DISTINCT_FLOATS,
        ),
    )


def _forgetting(classes: int) -> tuple[Target, ...]:
    request, refit = forgetting.request_case(classes), forgetting.refit_name(classes)
    curve, prediction = forgetting.curve_case(classes), forgetting.prediction_case(classes)
    sizes = f"curve of all sizes, {classes} classes"
    return (
        Target(request, request, None, 0.02, "seconds"),
        Target(f"{request}: multiply-adds", request, None, 0, "multiply_adds"),
        Target(request, request, refit, 300),
        Target(request, request, forgetting.HEAD, 10),
        Target(sizes, curve, forgetting.ONE, 1 / 2),
        Target(sizes, curve, forgetting.MANY, 20),
        Target(prediction, prediction, forgetting.BEFORE, 1, "best_rate", subject=forgetting.MASKED),
        Target(
            prediction.replace("masked", "erased"),
            prediction,
            forgetting.BEFORE,
            1,
            "best_rate",
            None,
            forgetting.ERASED,
        ),
    )


_TOP_1, _TOP_10 = nearest.case_name(1, 8), nearest.case_name(10, 8)
_KEYS = key_initialisation.CASE

TARGETS: tuple[Target, ...] = (
    *_nearest(8, 16, 30, 0.75),
    Target("nearest key, size 8", _TOP_1, PYPI, 600),
    Target("nearest key, size 8", _TOP_1, "PyPI package, 256 queries a call", 600),
    *_nearest(14, 9, 18, 0.70),
    Target("nearest keys, top-10", _TOP_10, TORCH, 8),
    Target("nearest keys, top-10", _TOP_10, "torch, plain", 8),
    Target("top-10 beside top-1", _TOP_10, "excise", 1 / 3, peer_case=_TOP_1),
    Target("key initialisation, one pass", _KEYS, ICML, 300),
    Target("key initialisation beside coding", _KEYS, "excise, coding the same", 1 / 2),
    Target("one epoch of values, 10 classes, top-1", value_training.case_name(10, 1), ADAM, 10),
    Target("one epoch of values, 100 classes, top-2", value_training.case_name(100, 2), ADAM, 5),
    Target("one epoch of values, 100 classes, top-10", value_training.case_name(100, 10), ADAM, 5),
    Target("full gradient", full_gradient.CASE, "scikit-learn L-BFGS, one evaluation", 10),
    Target("full gradient", full_gradient.CASE, "scikit-learn L-BFGS, one iteration", 10),
    *_forgetting(10),
    *(
        Target("exact re-fit, 10 classes", forgetting.request_case(10), peer, 10, subject=forgetting.refit_name(10))
        for peer in forgetting.TORCH_REFITS
    ),
    *_forgetting(100),
    *(
        Target(f"peak memory of {job.task}, {job.layout}, n = {job.examples:,}", job.case, None, memory.LIMIT, "mib")
        for job in (*memory.IMAGENET, *memory.PAPER)
        if job.task != memory.FIT
    ),
)
