"""Key initialisation: one pass over the training examples, against the ICML-2023 formulation and against coding."""

from collections.abc import Iterator

import numpy as np

from benchmarks.inputs import Settings, codebook, dataset, source
from benchmarks.peers.icml_reference import KeyInitialisation
from benchmarks.timing import Contender, Row, measure
from excise.bottleneck import kernels
from excise.bottleneck.reference import draws

BATCH = 256
CASE = "key initialisation, one pass, key size 8"


def run(settings: Settings) -> Iterator[Row]:
    """Ours on all examples, coding of the same, and some batches of the peer; its rate is per example as well."""
    book, data = codebook(settings, 10, 8), dataset(settings, 10)
    z = book.project(data.x_train, settings.threads)
    start = np.random.default_rng(settings.seed).standard_normal(book.keys.shape, dtype=np.float32)
    later = kernels.KeyInitializer(start, settings.seed, BATCH)
    prepared = kernels.PreparedKeys(book.keys, None)
    peer = KeyInitialisation(start, BATCH)
    few, threads = settings.size(2, 1) * BATCH, settings.threads
    contenders = [
        Contender("excise", lambda: kernels.KeyInitializer(start, settings.seed, BATCH).update(z, threads), len(z)),
        Contender("excise, a later pass", lambda: later.update(z, threads), len(z)),
        Contender("excise, coding the same", lambda: prepared.nearest(z, 1, threads), len(z)),
        Contender(
            "ICML-2023 formulation",
            lambda: [peer.step(z[s : s + BATCH]) for s in range(0, few, BATCH)],
            few,
            len(z),
        ),
    ]
    checked = agreement(start[:4], z[: 8 * BATCH, :4], settings)
    for row in measure(CASE, contenders, settings.size(3, 1), budget=60):
        yield {**row, **checked, "unit": "examples/s", "features": source(settings, 10)}


def agreement(start: np.ndarray, z: np.ndarray, settings: Settings) -> dict[str, float]:
    """Share of key coordinates that the peer gives too, after some batches with the same draws for dead keys."""
    ours = kernels.KeyInitializer(start, settings.seed, BATCH)
    peer = KeyInitialisation(start, BATCH)
    for step, s in enumerate(range(0, len(z) - BATCH + 1, BATCH)):
        batch = np.ascontiguousarray(z[s : s + BATCH])
        ours.update(batch, settings.threads)
        drawn = [draws(settings.seed, step, i, start.shape[1], BATCH) for i in range(len(start))]
        peer.step(batch, np.stack(drawn).astype(np.int64))
    share = float(np.isclose(ours.keys(), peer.keys.numpy(), rtol=1e-3, atol=1e-4).mean())
    if share < 0.99:
        raise RuntimeError(f"the ICML-2023 formulation gives other keys: {share:.2%} equal")
    return {"agreement": share}
