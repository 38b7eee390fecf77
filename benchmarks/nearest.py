"""Nearest keys: examples a second, ours against torch, faiss, the PyPI package and the ICML-2023 formulation."""

from collections.abc import Iterable, Iterator
from shutil import which

import numpy as np
from experiments.record import say

from benchmarks.inputs import Codebook, Settings, codebook, dataset, repeated, source
from benchmarks.peers import faiss_search, icml_reference, pypi_package
from benchmarks.peers.torch_search import PLAIN, TUNED, Form, TorchSearch
from benchmarks.timing import Contender, Row, fastest, measure
from excise.bottleneck import kernels

CASES = ((1, 8), (1, 14), (10, 8))  # (top_k, key_dim)
PEAK = "multiply-add peak"
DISTINCT, DISTINCT_FLOATS = "excise, no key repeated", "excise, no key repeated, floats only (avx512)"
TOLERANCE = 1e-5  # between two squared distances, relative to |z|^2 + |key|^2


def run(settings: Settings) -> Iterator[Row]:
    """Rows of every case."""
    for top_k, key_dim in CASES:
        book = codebook(settings, 10, key_dim)
        data = dataset(settings, 10)
        z = book.project(data.x_train[: settings.size(8192, 256)], settings.threads)
        shown = {"features": source(settings, 10), "repeated_keys": float(repeated(book.keys).mean())}
        for found in compare(case_name(top_k, key_dim), book, z, top_k, settings):
            say(f"  {found['case']}: {found['subject']}: {found['rate']:,.0f} {found['unit']}")
            yield {**shown, **found}


def case_name(top_k: int, key_dim: int) -> str:
    """How rows and targets call a case."""
    return f"nearest, top-{top_k}, key size {key_dim}"


def compare(case: str, book: Codebook, z: np.ndarray, top_k: int, settings: Settings) -> Iterator[Row]:
    """All torch forms among themselves first; then ours, the machine's peak, and the best of the peers in turns."""
    prepared = kernels.PreparedKeys(book.keys, None)
    ours = prepared.nearest(z, top_k, settings.threads)
    few = z[: settings.size(2048, 256)]
    forms = torch_forms(book.keys, top_k, len(few), settings)
    trials = list(time_torch(case, forms, book.keys, few, ours, len(z), settings))
    yield from trials
    peaks: list[float] = []
    contenders = [
        Contender("excise", lambda: prepared.nearest(z, top_k, settings.threads), len(z)),
        *floats_only("excise, floats only (avx512)", book.keys, z, top_k, settings),
        *without_repeats(book.keys, z, top_k, settings),
        *peak(settings, peaks),
        *best_torch(forms, trials, few, len(z)),
        *others(book.keys, z, top_k, settings),
    ]
    checked = verify((c for c in contenders if c.name not in (PEAK, DISTINCT, DISTINCT_FLOATS)), book.keys, z, ours)
    rows = measure(case, contenders, settings.size(7, 2), budget=15)
    for row in rows:
        if row["subject"] == PEAK:
            yield peak_row(case, peaks)
        else:
            found = checked.get(row["subject"], {})
            yield {**row, **found, "unit": "examples/s", "flops": flops(row["rate"], book.keys)}
    yield from summaries(rows)


def summaries(rows: list[Row]) -> Iterator[Row]:
    """The best of each library."""
    for prefix, name in (
        ("torch, ", "torch, fastest form"),
        ("faiss-cpu, ", "faiss-cpu, best setting"),
        ("PyPI package, ", "PyPI package, best block"),
    ):
        own = [row for row in rows if row["subject"].startswith(prefix)]
        if own:
            yield fastest(own, name, unit="examples/s")


def floats_only(name: str, keys: np.ndarray, z: np.ndarray, top_k: int, settings: Settings) -> Iterator[Contender]:
    """The search without whole numbers where the one in use has them; keys keep the set they were prepared for."""
    if kernels.BACKEND != "avx512vnni":
        return
    from excise import _native

    _native.use("avx512")
    prepared = kernels.PreparedKeys(keys, None)
    _native.use(kernels.BACKEND)
    yield Contender(name, lambda: prepared.nearest(z, top_k, settings.threads), len(z))


def without_repeats(keys: np.ndarray, z: np.ndarray, top_k: int, settings: Settings) -> Iterator[Contender]:
    """Ours where every pair has a key of its own, so that nothing is saved by searching a key once.

    Repeated keys become those of some query, moved a little: where a dead key would lie had it taken an example of its
    own.
    """
    rng, again = np.random.default_rng(settings.seed), repeated(keys)
    own, (codebooks, _) = keys.copy(), np.nonzero(again)
    near = z[rng.integers(len(z), size=len(codebooks)), codebooks]
    own[again] = near * rng.uniform(0.99, 1.01, near.shape).astype(np.float32)
    prepared = kernels.PreparedKeys(own, None)
    yield Contender(DISTINCT, lambda: prepared.nearest(z, top_k, settings.threads), len(z))
    yield from floats_only(DISTINCT_FLOATS, own, z, top_k, settings)


def best_torch(forms: list[Form], trials: list[Row], z: np.ndarray, whole: int) -> Iterator[Contender]:
    """The fastest form of each family."""
    searches = {form.name: form.search for form in forms}
    for family in (PLAIN, TUNED):
        own = [row for row in trials if row["family"] == family]
        if own:
            form = max(own, key=lambda row: row["rate"])["form"]
            search = searches[form]
            yield Contender(f"torch, {family}", lambda search=search: search(z), len(z), whole, {"form": form})


def torch_forms(keys: np.ndarray, top_k: int, queries: int, settings: Settings) -> list[Form]:
    """All forms; compiled ones only where a compiler is at hand and the run is not a quick one."""
    compiler = not settings.quick and which("g++") is not None
    return list(TorchSearch(keys, top_k).forms(queries, compiled=compiler))


def time_torch(
    case: str, forms: list[Form], keys: np.ndarray, z: np.ndarray, ours: np.ndarray, whole: int, settings: Settings
) -> Iterator[Row]:
    """Every torch form, verified, then timed in turns."""
    contenders = [Contender(form.name, lambda form=form: form.search(z), len(z), whole) for form in forms]
    families = {form.name: form.family for form in forms}
    checked = verify(contenders, keys, z, ours)
    for row in measure(case, contenders, settings.size(3, 1), budget=10):
        name = row.pop("subject")
        extra = {"subject": f"torch form: {name}", "form": name, "family": families[name], "unit": "examples/s"}
        yield {**row, **checked[name], **extra}


def others(keys: np.ndarray, z: np.ndarray, top_k: int, settings: Settings) -> Iterator[Contender]:
    """faiss, and for a single nearest key the two formulations that materialise all distances."""
    if faiss_search.AVAILABLE:
        for name, search in faiss_search.searches(keys, top_k, settings.threads).items():
            yield Contender(f"faiss-cpu, {name}", lambda search=search: search(z), len(z))
    if top_k > 1:
        return
    few = z[: settings.size(256, 64)]
    if pypi_package.AVAILABLE:
        for block, search in pypi_package.searches(keys).items():
            part = few if block > 16 else few[:64]
            yield Contender(f"PyPI package, {block} queries a call", lambda s=search, p=part: s(p), len(part), len(z))
    yield Contender("ICML-2023 formulation", lambda: icml_reference.search(few, keys), len(few), len(z))


def verify(
    contenders: Iterable[Contender], keys: np.ndarray, z: np.ndarray, ours: np.ndarray
) -> dict[str, dict[str, float]]:
    """How far each contender's answers are ours; raises where they differ by more than rounding, or ours at all."""
    found = {}
    for contender in contenders:
        theirs = np.asarray(contender.run())
        found[contender.name] = agreement(z[: len(theirs)], keys, ours[: len(theirs)], theirs)
        if contender.name.startswith("excise") and found[contender.name]["agreement"] < 1:
            raise RuntimeError(f"{contender.name} gives other codes than excise")
    return found


def agreement(z: np.ndarray, keys: np.ndarray, ours: np.ndarray, theirs: np.ndarray) -> dict[str, float]:
    """Share of equal codes, of equal keys, and the worst gap between two distances, relative to |z|^2 + |key|^2."""
    n, c, k = np.nonzero(ours != theirs)
    query = z[n, c].astype(np.float64)
    mine, other = (keys[c, codes[n, c, k]].astype(np.float64) for codes in (ours, theirs))
    gap = ((query - mine) ** 2).sum(1) - ((query - other) ** 2).sum(1)
    worst = float((np.abs(gap) / ((query**2).sum(1) + (mine**2).sum(1))).max(initial=0))
    codes_equal, keys_equal = (1 - int(count) / ours.size for count in (len(n), (mine != other).any(1).sum()))
    if worst > TOLERANCE:
        raise RuntimeError(f"a peer gives other answers: relative distance {worst:g}, {codes_equal:.4%} of codes equal")
    return {"agreement": codes_equal, "keys_agreement": keys_equal, "worst_excess": worst}


def flops(rate: float, keys: np.ndarray) -> float:
    """Multiplications and additions a second that the distances take: two for each pair and dimension."""
    return 2 * rate * keys.size


def peak(settings: Settings, readings: list[float]) -> Iterator[Contender]:
    """The multiply-add micro-benchmark, read in turns with the rest, where there are compiled kernels to run it."""
    try:
        from excise._native import fma_peak
    except ImportError:
        return
    yield Contender(PEAK, lambda: readings.append(fma_peak(settings.threads)))


def peak_row(case: str, readings: list[float]) -> Row:
    """Median and best of the readings after the warm-up."""
    middle = float(np.median(readings[1:]))
    row = {"case": case, "subject": PEAK, "rate": middle, "flops": middle, "best_flops": max(readings)}
    return row | {"unit": "FLOP/s", "repeats": len(readings) - 1}
