"""Value training: one epoch over cached codes, against torch's fused Adam on the dense table."""

from collections.abc import Iterator

import numpy as np
from experiments.record import say

from benchmarks.inputs import Settings, codes, dataset, source
from benchmarks.peers.torch_training import TorchTrainer
from benchmarks.timing import Contender, Row, measure
from excise.bottleneck import kernels
from excise.bottleneck.reference import Optimiser

BATCH, RATE = 256, 0.3
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
    shape = (own.shape[1], settings.pairs, classes)
    rng = np.random.default_rng(settings.seed)
    ours = kernels.ValueTrainer(np.zeros(shape, np.float32), Optimiser(learning_rate=RATE))
    timed = len(own) if classes == 10 else min(len(own), 24 * BATCH)
    checked = agreement(own, labels, classes, settings)

    def epoch() -> None:
        ours.train(own, labels, rng.permutation(len(own)), BATCH, settings.threads)
        ours.values(settings.threads)

    contenders = [Contender("excise", epoch, len(own), {"note": "epochs after the first, which is faster"})]
    for name, by_hand in (("torch embedding_bag + Adam(fused=True)", False), ("torch, gradient by hand", True)):
        peer = TorchTrainer(own[:timed], labels[:timed], settings.pairs, classes, RATE, by_hand)
        note = {} if timed == len(own) else {"note": f"{timed // BATCH} of {-(-len(own) // BATCH)} steps timed, scaled"}
        contenders.append(Contender(name, lambda peer=peer: peer.train(rng.permutation(timed), BATCH), timed, note))
    for row in measure(case, contenders, settings.size(5, 1), budget=40):
        scale = len(own) / row["work"]
        row |= {"seconds": row["seconds"] * scale, "best_seconds": row["best_seconds"] * scale, "work": len(own)}
        yield {**row, **checked}


def agreement(own: np.ndarray, labels: np.ndarray, classes: int, settings: Settings) -> dict[str, float]:
    """Largest difference of a value after the same batches of the first codebooks, in learning rates."""
    part = np.ascontiguousarray(own[: 40 * BATCH, :16])
    known, order = labels[: len(part)], np.random.default_rng(settings.seed).permutation(len(part))
    table = np.zeros((part.shape[1], settings.pairs, classes), np.float32)
    ours = kernels.ValueTrainer(table, Optimiser(learning_rate=RATE))
    ours.train(part, known, order, BATCH, settings.threads)
    peer = TorchTrainer(part, known, settings.pairs, classes, RATE, by_hand=False)
    peer.train(order, BATCH)
    gap = np.abs(ours.values(settings.threads) - peer.table(part.shape[1]))
    return {"largest_difference": float(gap.max()), "mean_difference": float(gap.mean())}
