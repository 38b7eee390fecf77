"""How cost grows with examples, codebooks, pairs, key size, pairs retrieved, classes and threads; random features."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from experiments.record import say

from benchmarks.inputs import Settings
from benchmarks.peers.torch_search import TorchSearch
from benchmarks.peers.torch_training import TorchTrainer
from benchmarks.timing import Contender, Row, measure
from excise.bottleneck import kernels
from excise.bottleneck.reference import Optimiser

SEARCH, TRAINING = "search", "training"
LAYOUTS = ((256, 4096), (1024, 64), (4096, 32))  # (codebooks, pairs)


@dataclass(frozen=True)
class Point:
    """One setting: examples, codebooks, pairs, key size, pairs retrieved, classes, threads."""

    n: int = 2048
    c: int = 64
    m: int = 1024
    d: int = 8
    k: int = 1
    v: int = 10
    threads: int = 1


SWEEPS: dict[tuple[str, str], tuple[int, ...]] = {
    (SEARCH, "n"): (256, 1024, 4096, 16_384),
    (SEARCH, "c"): (16, 64, 256, 1024),
    (SEARCH, "m"): (32, 128, 512, 2048, 8192, 32_768),
    (SEARCH, "d"): (1, 2, 4, 8, 14, 32, 64),
    (SEARCH, "k"): (1, 2, 4, 8, 16, 32),
    (TRAINING, "n"): (2048, 8192, 32_768),
    (TRAINING, "m"): (64, 256, 1024, 4096),
    (TRAINING, "k"): (1, 2, 4, 8, 16, 32),
    (TRAINING, "v"): (2, 10, 100, 1000),
}


def run(settings: Settings) -> Iterator[Row]:
    """Every sweep, then threads, then the layouts."""
    start = Point(threads=settings.threads)
    for (what, axis), values in SWEEPS.items():
        for value in values[:2] if settings.quick else values:
            yield from at(what, axis, value, small(replace(start, **{axis: value}), settings), settings)
    for what in (SEARCH, TRAINING):
        for threads in range(1, settings.threads + 1):
            yield from at(what, "threads", threads, small(replace(start, threads=threads), settings), settings)
        for codebooks, pairs in LAYOUTS[:1] if settings.quick else LAYOUTS:
            point = small(replace(start, c=codebooks, m=pairs), settings)
            yield from at(what, "layout", f"{codebooks} x {pairs}", point, settings)


def small(point: Point, settings: Settings) -> Point:
    """The point itself, or a tiny one in a quick run."""
    return replace(point, n=256, c=4, m=64, v=min(point.v, 10)) if settings.quick else point


def at(what: str, axis: str, value: int | str, point: Point, settings: Settings) -> Iterator[Row]:
    """Ours and torch's at one point."""
    contenders = (search if what == SEARCH else training)(point, settings)
    for row in measure(f"scaling, {what}, {axis}", contenders, settings.size(3, 1), budget=5):
        say(f"  {row['case']} = {value}: {row['subject']}: {row['seconds']:.4f} s")
        yield {**row, "what": what, "axis": axis, "value": value, "point": vars(point), "unit": "examples/s"}


def search(point: Point, settings: Settings) -> list[Contender]:
    """Codes of random heads: torch's two-stage form and its plain one."""
    rng = np.random.default_rng(settings.seed)
    z = rng.standard_normal((point.n, point.c, point.d), dtype=np.float32)
    keys = rng.standard_normal((point.c, point.m, point.d), dtype=np.float32)
    prepared = kernels.PreparedKeys(keys, None)
    contenders = [Contender("excise", lambda: prepared.nearest(z, point.k, point.threads), point.n)]
    few = z[:1024]
    for name, form in torch_forms(TorchSearch(keys, point.k), len(few)).items():
        contenders.append(Contender(name, lambda form=form: form(few), len(few)))
    return contenders if point.threads == settings.threads else contenders[:1]


def torch_forms(peer: TorchSearch, queries: int) -> dict:
    """The plain form, and the two-stage one that is mostly the fastest."""
    forms = list(peer.forms(queries))
    plain = next(form for form in forms if form.name.startswith("addmm"))
    two_stage = [form for form in forms if "rows, 32" in form.name]  # none where k exceeds the groups
    found = {"torch, plain": plain.search}
    if two_stage:
        found["torch, two stages"] = two_stage[0].search
    return found


def training(point: Point, settings: Settings) -> list[Contender]:
    """Epochs over random codes, after a first; torch's steps cost the same each, so 8 of them are timed."""
    rng = np.random.default_rng(settings.seed)
    codes = rng.integers(point.m, size=(point.n, point.c, point.k), dtype=np.uint16)
    labels = rng.integers(point.v, size=point.n)
    ours = kernels.ValueTrainer(np.zeros((point.c, point.m, point.v), np.float32), Optimiser())
    peer = TorchTrainer(codes, labels, point.m, point.v, 0.3, by_hand=False)
    order = np.arange(point.n)
    few = order[: 8 * 256]

    def epoch() -> None:
        ours.train(codes, labels, order, 256, point.threads)
        ours.values(point.threads)

    contenders = [
        Contender("excise", epoch, point.n),
        Contender("torch embedding_bag + Adam", lambda: peer.train(few, 256), len(few)),
    ]
    return contenders if point.threads == settings.threads else contenders[:1]
