"""How cost grows with examples, codebooks, pairs, key size, pairs retrieved, classes and threads; random inputs.

Every sweep of a kind goes through one base point, which is measured once. Peers whose cost an example does not depend
on how many there are, are timed on fewer and scaled; their rows say so. All are verified at every point.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from experiments.record import say

from benchmarks import full_gradient, key_initialisation, nearest, value_training
from benchmarks.inputs import Settings
from benchmarks.peers import faiss_search
from benchmarks.peers.icml_reference import KeyInitialisation
from benchmarks.peers.torch_search import Search, TorchSearch
from benchmarks.peers.torch_training import TorchTrainer
from benchmarks.threads import limited
from benchmarks.timing import Contender, Row, fastest, measure
from excise.bottleneck import kernels

SEARCH, KEYS, TRAINING, GRADIENT = "search", "key initialisation", "training, one epoch", "full gradient"
LAYOUTS = ((256, 4096), (1024, 64), (4096, 32))  # (codebooks, pairs)
BATCH = value_training.BATCH
QUERIES, STEPS = 1024, 16  # that torch and faiss search at most, and that torch trains
FAISS = "faiss-cpu, best setting"


@dataclass(frozen=True)
class Point:
    """One setting: examples, codebooks, pairs, key size, pairs retrieved, classes, threads. As it stands, the base."""

    n: int = 16_384
    c: int = 64
    m: int = 1024
    d: int = 8
    k: int = 1
    v: int = 10
    threads: int = 1


PAIRS = (64, 256, 1024, 4096, 16_384)
SWEEPS: dict[str, dict[str, tuple[int, ...]]] = {
    SEARCH: {
        "n": (256, 1024, 4096, 16_384, 65_536),
        "c": (16, 64, 256, 1024),
        "m": PAIRS,
        "d": (1, 2, 4, 8, 14, 32, 64),
        "k": (1, 2, 4, 8, 16, 32),
    },
    KEYS: {"n": (1024, 4096, 16_384, 65_536), "c": (16, 64, 256), "m": PAIRS[:4], "d": (2, 4, 8, 14, 64)},
    TRAINING: {
        "n": (16_384, 32_768, 65_536, 131_072),
        "c": (16, 64, 256, 1024),
        "m": PAIRS,
        "k": (1, 2, 4, 8, 16, 32),
        "v": (2, 10, 100, 1000),
    },
    GRADIENT: {
        "n": (1024, 4096, 16_384, 65_536),
        "c": (16, 64, 256, 1024),
        "m": PAIRS,
        "k": (1, 4, 16),
        "v": (2, 10, 100),
    },
}
LAYOUT_EXAMPLES = {SEARCH: 4096, TRAINING: 50_000}  # training on as many as the table above trains on


def run(settings: Settings) -> Iterator[Row]:
    """Every sweep and the threads, kind by kind; then the layouts."""
    base = Point(threads=settings.threads)
    threads = tuple(sorted({1, settings.threads, *(2**i for i in range(1, 12) if 2**i < settings.threads)}))
    for what, sweeps in SWEEPS.items():
        known: dict[Point, list[Row]] = {}
        for axis, values in {**sweeps, "threads": threads}.items():
            for value in values[:2] if settings.quick else values:
                point = small(replace(base, **{axis: value}), settings)
                if point not in known:
                    known[point] = list(at(what, point, settings))
                yield from (labelled(row, what, axis, value, point) for row in known[point])
    for what, examples in LAYOUT_EXAMPLES.items():
        for c, m in LAYOUTS[:1] if settings.quick else LAYOUTS:
            point = small(replace(base, n=examples, c=c, m=m), settings)
            yield from (labelled(row, what, "layout", f"{c} x {m}", point) for row in at(what, point, settings))


def small(point: Point, settings: Settings) -> Point:
    """The point itself, or a tiny one in a quick run."""
    if not settings.quick:
        return point
    return replace(point, n=max(point.n // 32, 64), c=max(point.c // 16, 2), m=max(point.m // 16, 32))


def labelled(row: Row, what: str, axis: str, value: int | str, point: Point) -> Row:
    """The row as one of a sweep."""
    place = {"what": what, "axis": axis, "value": value, "point": vars(point)}
    return {**row, "case": f"scaling, {what}, {axis}", **place, "unit": "examples/s"}


def at(what: str, point: Point, settings: Settings) -> Iterator[Row]:
    """Ours and the peers' at one point, with its number of threads; of the settings of faiss, the faster."""
    with limited(point.threads):
        rows = measure(what, CONTESTS[what](point, settings), settings.size(5, 1), budget=1.5)
    faiss = [row for row in rows if row["subject"].startswith("faiss")]
    rows = [row for row in rows if row not in faiss] + ([fastest(faiss, FAISS)] if faiss else [])
    say(f"  {what}, {point}: " + ", ".join(f"{row['subject']} {row['rate']:,.0f}/s" for row in rows))
    yield from rows


def search(point: Point, settings: Settings) -> list[Contender]:
    """Codes of random heads: two forms of torch, and faiss."""
    rng = np.random.default_rng(settings.seed)
    z = rng.standard_normal((point.n, point.c, point.d), dtype=np.float32)
    keys = rng.standard_normal((point.c, point.m, point.d), dtype=np.float32)
    prepared, few = kernels.PreparedKeys(keys, None), z[:QUERIES]
    peers = torch_forms(TorchSearch(keys, point.k), len(few))
    if faiss_search.AVAILABLE:
        found = faiss_search.searches(keys, point.k, point.threads)
        peers |= {f"faiss-cpu, {name}": search for name, search in found.items()}
    contenders = [Contender(name, partial(peer, few), len(few), point.n) for name, peer in peers.items()]
    nearest.verify(contenders, keys, few, prepared.nearest(few, point.k, point.threads))
    return [Contender("excise", lambda: prepared.nearest(z, point.k, point.threads), point.n), *contenders]


def torch_forms(peer: TorchSearch, queries: int) -> dict[str, Search]:
    """A plain form and a two-stage one that are mostly the fastest; the latter only where k is within the groups."""
    forms = {form.name: form.search for form in peer.forms(queries)}
    wanted = {"torch, plain": ("addmm", "baddbmm"), "torch, two stages": ("two stages, keys in rows, 32",)}
    first = {subject: next((n for n in forms if n.startswith(prefix)), None) for subject, prefix in wanted.items()}
    return {subject: forms[name] for subject, name in first.items() if name}


def keys(point: Point, settings: Settings) -> list[Contender]:
    """One pass over random heads; every batch costs the peer the same, so one is timed."""
    rng = np.random.default_rng(settings.seed)
    z = rng.standard_normal((point.n, point.c, point.d), dtype=np.float32)
    start = rng.standard_normal((point.c, point.m, point.d), dtype=np.float32)
    key_initialisation.agreement(start[:4], z[: 8 * BATCH, :4], settings)
    ours, peer = kernels.KeyInitializer(start, settings.seed, BATCH), KeyInitialisation(start, BATCH)
    few = z[:BATCH]
    return [
        Contender("excise", lambda: ours.update(z, point.threads), point.n),
        Contender("ICML-2023 formulation", lambda: peer.step(few), len(few), point.n),
    ]


def training(point: Point, settings: Settings) -> list[Contender]:
    """Epochs over random codes, after a first; torch's steps cost the same each, so some are timed."""
    codes, labels = random_codes(point, settings)
    order = np.arange(point.n)
    few = order[: STEPS * BATCH]
    contenders = []
    for name, by_hand in value_training.TRAINERS.items():
        value_training.agreement(name, codes, labels, point.m, point.v, settings)
        peer = TorchTrainer(codes[few], labels[few], point.m, point.v, value_training.RATE, by_hand)
        contenders.append(Contender(name, partial(peer.train, few, BATCH), len(few), point.n))
    ours = kernels.ValueTrainer(np.zeros((point.c, point.m, point.v), np.float32), value_training.OPTIMISER)

    def epoch() -> None:
        ours.train(codes, labels, order, BATCH, point.threads)
        ours.values(point.threads)

    return [Contender("excise", epoch, point.n), *contenders]


def gradient(point: Point, settings: Settings) -> list[Contender]:
    """The gradient of all examples over random codes."""
    codes, labels = random_codes(point, settings)
    shape = (point.c, point.m, point.v)
    values = np.random.default_rng(settings.seed).standard_normal(shape, dtype=np.float32)
    return full_gradient.contenders(codes, labels, values, point.threads)


def random_codes(point: Point, settings: Settings) -> tuple[np.ndarray, np.ndarray]:
    """Codes (n, c, k) and labels (n,)."""
    rng = np.random.default_rng(settings.seed)
    codes = rng.integers(point.m, size=(point.n, point.c, point.k), dtype=np.uint16)
    return codes, rng.integers(point.v, size=point.n)


CONTESTS: dict[str, Callable[[Point, Settings], list[Contender]]] = {
    SEARCH: search,
    KEYS: keys,
    TRAINING: training,
    GRADIENT: gradient,
}
