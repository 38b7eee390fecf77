"""Value training: one epoch over cached codes, against torch's fused Adam on the dense table."""

from collections.abc import Iterator
from functools import partial

import numpy as np
from experiments.record import say

from benchmarks.inputs import Settings, codes, dataset, source
from benchmarks.peers.torch_training import TorchTrainer
from benchmarks.timing import Contender, Row, measure
from excise.bottleneck import kernels
from excise.bottleneck.reference import Optimiser

BATCH, RATE = 256, 0.3
OPTIMISER = Optimiser(learning_rate=RATE)
STEPS, TOLERANCE = 40, 1e-3  # of values after so many steps, each of which moves one by up to RATE or so
TRAINERS = {"torch embedding_bag + Adam(fused=True)": False, "torch, gradient by hand": True}  # name: by hand
CASES = ((10, 1), (100, 2), (100, 10))  # (classes, top_k)


def run(settings: Settings) -> Iterator[Row]:
    """Rows of every case."""
    for classes, top_k in CASES:
        wanted = 10 if classes == 100 else 1  # the nearest come first, so fewer are a prefix
        own = np.ascontiguousarray(codes(settings, classes, wanted)[:, :, :top_k])
        labels = dataset(settings, classes).y_train
        for row in compare(case_name(classes, top_k), own, labels, classes, settings):
            say(f"  {row['case']}: {row['subject']}: {row['seconds']:.3f} s an epoch")
            yield {**row, "unit": "examples/s", "features": source(settings, classes)}


def case_name(classes: int, top_k: int) -> str:
    """How rows and targets call a case."""
    return f"one epoch of values, {classes} classes, top-{top_k}"


def compare(case: str, own: np.ndarray, labels: np.ndarray, classes: int, settings: Settings) -> Iterator[Row]:
    """Whole epochs of ours, its table read at the end of each; torch's steps all cost the same, so some are timed."""
    checked = {name: agreement(name, own, labels, settings.pairs, classes, settings) for name in TRAINERS}
    rng = np.random.default_rng(settings.seed)
    ours = kernels.ValueTrainer(np.zeros((own.shape[1], settings.pairs, classes), np.float32), OPTIMISER)
    timed = len(own) if classes == 10 else min(len(own), 24 * BATCH)

    def epoch() -> None:
        ours.train(own, labels, rng.permutation(len(own)), BATCH, settings.threads)
        ours.values(settings.threads)

    contenders = [Contender("excise", epoch, len(own), None, {"note": "epochs after the first, which is faster"})]
    for name, by_hand in TRAINERS.items():
        peer = TorchTrainer(own[:timed], labels[:timed], settings.pairs, classes, RATE, by_hand)
        train = partial(peer.train, batch=BATCH)
        contenders.append(Contender(name, lambda f=train: f(rng.permutation(timed)), timed, len(own)))
    for row in measure(case, contenders, settings.size(5, 1), budget=40):
        yield {**row, **checked.get(row["subject"], {})}


def agreement(
    name: str, own: np.ndarray, labels: np.ndarray, pairs: int, classes: int, settings: Settings
) -> dict[str, float]:
    """Differences between values of ours and of a trainer after the same batches of the first codebooks."""
    part = np.ascontiguousarray(own[: STEPS * BATCH, :16])
    rng = np.random.default_rng(settings.seed)
    known, order = labels[: len(part)], rng.permutation(len(part))
    # Not zeros: with all classes equally likely gradients cancel, and Adam would divide rounding by rounding.
    start = rng.standard_normal((part.shape[1], pairs, classes), dtype=np.float32)
    ours = kernels.ValueTrainer(start, OPTIMISER)
    ours.train(part, known, order, BATCH, settings.threads)
    peer = TorchTrainer(part, known, pairs, classes, RATE, TRAINERS[name])
    peer.start_at(start)
    peer.train(order, BATCH)
    gap = np.abs(ours.values(settings.threads) - peer.table(part.shape[1]))
    if gap.max() > TOLERANCE:
        raise RuntimeError(f"{name} gives other values: they differ by up to {gap.max():g} after {STEPS} steps")
    return {"largest_difference": float(gap.max()), "mean_difference": float(gap.mean())}
