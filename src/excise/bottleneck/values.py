"""Values trained on cached codes: the codes of an example never change, so an epoch is a walk over look-ups."""

import numpy as np

from excise.bottleneck import kernels
from excise.bottleneck.reference import Optimiser
from excise.errors import InputError
from excise.features.arrays import Array
from excise.progress import track

STEPS_PER_CALL = 16  # between two of them Ctrl-C is heard and progress is shown


def initial_values(shape: tuple[int, int, int], kind: str, generator: np.random.Generator) -> Array:
    """A value table (c, m, v): `zeros`, `uniform` on [0, 1) (the paper's 'Random'), or `normal`."""
    if kind == "zeros":
        return np.zeros(shape, np.float32)
    if kind == "uniform":
        return generator.random(shape, dtype=np.float32)
    if kind == "normal":
        return generator.standard_normal(shape, dtype=np.float32)
    raise InputError(f"value_init is {kind!r}: use 'zeros', 'uniform' or 'normal'")


def train_values(
    values: Array,
    codes: Array,
    labels: Array,
    optimiser: Optimiser,
    *,
    epochs: int,
    batch_size: int,
    generator: np.random.Generator,
    threads: int = 1,
    verbose: int = 0,
    rows: Array | None = None,
) -> tuple[Array, list[float]]:
    """The table (c, m, v) after `epochs` over codes (n, c, k) in random order, and the mean loss of each epoch.

    With `rows` only those are seen: the same bytes as if the codes held nothing else.
    """
    trainer = kernels.ValueTrainer(values, optimiser)
    history = []
    examples = len(codes) if rows is None else len(rows)
    with track("values", epochs * examples, "examples", verbose) as progress:
        for epoch in range(epochs):
            order = generator.permutation(examples)
            order = order if rows is None else rows[order]
            total = 0.0
            for start in range(0, len(order), STEPS_PER_CALL * batch_size):
                part = order[start : start + STEPS_PER_CALL * batch_size]
                total += trainer.train(codes, labels, part, batch_size, threads)
                progress.advance(len(part))
            history.append(finite_loss(total / examples, optimiser))
            progress.note(f"epoch {epoch + 1}/{epochs}, loss {history[-1]:.4f}")
    return finite_values(trainer.values(threads), optimiser), history


def finite_values(values: Array, optimiser: Optimiser) -> Array:
    """The table itself; refused where its last step ran away, which no loss has shown yet."""
    if not np.isfinite(values).all():
        raise InputError(
            f"training diverged: a value is no longer finite; "
            f"lower learning_rate, which is {optimiser.learning_rate:g}, or set gradient_clip"
        )
    return values


def finite_loss(loss: float, optimiser: Optimiser) -> float:
    """The loss itself; refused where training has run away."""
    if not np.isfinite(loss):
        raise InputError(
            f"training diverged: the loss of an epoch is {loss}; "
            f"lower learning_rate, which is {optimiser.learning_rate:g}, or set gradient_clip"
        )
    return loss
