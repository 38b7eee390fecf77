"""The forgetting curve: at every size, prediction by prediction, what the model under that mask gives."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise import InputError
from excise.bottleneck import kernels
from excise.bottleneck.model import Bottleneck
from excise.features.arrays import Array
from excise.forgetting.curve import NEVER, trace
from excise.forgetting.masks import activation_counts
from excise.forgetting.ranking import rank_codes_by_activations

N, F, C, M, D, V = 60, 9, 20, 40, 4, 7


def small(seed: int, top_k: int = 1, decoder: str = "mean", masked: float = 0.0) -> tuple[Bottleneck, Array, Array]:
    """A bottleneck of random parts, features, labels; some keys are copies of others."""
    rng = np.random.default_rng(seed)
    keys = rng.standard_normal((C, M, D)).astype(np.float32)
    keys[:, rng.integers(0, M, 8)] = keys[:, rng.integers(0, M, 8)]
    projection = rng.standard_normal((F, C, D)).astype(np.float32) / 3
    values = rng.standard_normal((C, M, V)).astype(np.float32)
    mask = rng.random((C, M)) < masked if masked else None
    bottleneck = Bottleneck(projection, keys, values, top_k, decoder, mask)
    return bottleneck, rng.standard_normal((N, F)).astype(np.float32), rng.integers(0, V, N)


def activation_ranks(codes: Array) -> tuple[Array, int]:
    """Pairs in the order of their activations, each of its own rank; never those that none activates."""
    counts = activation_counts(codes, M).reshape(-1)
    order = np.argsort(-counts, kind="stable")
    used = int((counts > 0).sum())
    ranks = np.full(counts.size, NEVER, np.int32)
    ranks[order[:used]] = np.arange(used)
    return ranks.reshape(C, M), used


def example_ranks(codes: Array) -> tuple[Array, int]:
    """The first example that selects a pair: those of one example have one rank."""
    ranks = np.full((C, M), NEVER, np.int32)
    for e in reversed(range(len(codes))):
        for slot in range(codes.shape[2]):
            ranks[np.arange(C), codes[e, :, slot]] = e
    return ranks, len(codes)


RANKS: dict[str, Callable[[Array], tuple[Array, int]]] = {"activations": activation_ranks, "examples": example_ranks}


@pytest.mark.parametrize("kind", RANKS)
@pytest.mark.parametrize("decoder", ["mean", "sum"])
@pytest.mark.parametrize("top_k", [1, 2, 5])
@pytest.mark.parametrize("masked", [0.0, 0.3])
def test_the_curve_is_that_of_masking_and_evaluating_at_every_size(
    top_k: int, decoder: str, masked: float, kind: str
) -> None:
    b, x, y = small(1, top_k, decoder, masked)
    ranks, largest = RANKS[kind](replace(b, mask=None, _prepared=[]).codes(x[y == 3]))
    ranks[:, ::7] = -1  # masked at every size
    groups = np.arange(N)  # each example its own, so that every prediction is compared
    curve = trace(b, x, y, groups, ranks, largest)
    own = np.zeros((C, M), bool) if b.mask is None else b.mask
    assert curve.hits.shape == curve.loss.shape == curve.accuracy.shape == (N, largest + 1)
    for size in range(0, largest + 1, max(1, largest // 60)):
        logits = b.with_mask(own | (ranks < size)).logits(x)
        assert np.array_equal(curve.hits[:, size], logits.argmax(axis=1) == y), size
        _, losses = kernels.cross_entropy(logits, y, 0.0)
        np.testing.assert_allclose(curve.loss[:, size], losses, rtol=1e-9, atol=1e-12)
    assert np.ptp(curve.hits, axis=1).any()


@given(st.integers(0, 2**16), st.sampled_from([1, 3]), st.integers(1, 60), st.sampled_from([0.0, 0.5, 1.0]))
def test_any_ranks(seed: int, top_k: int, largest: int, finite: float) -> None:
    b, x, y = small(seed, top_k, masked=0.1)
    rng = np.random.default_rng(seed)
    ranks = rng.integers(-1, largest, (C, M)).astype(np.int32)
    ranks[rng.random((C, M)) >= finite] = NEVER
    groups = rng.integers(0, 3, N)
    curve = trace(b, x, y, groups, ranks, largest, group_count=4, threads=2)
    assert curve.examples.tolist() == np.bincount(groups, minlength=4).tolist()
    assert b.mask is not None
    for size in (0, largest // 2, largest):
        logits = b.with_mask(b.mask | (ranks < size)).logits(x)
        right = logits.argmax(axis=1) == y
        _, losses = kernels.cross_entropy(logits, y, 0.0)
        for group in range(3):
            assert curve.hits[group, size] == right[groups == group].sum()
            if (groups == group).any():
                assert curve.loss[group, size] == pytest.approx(losses[groups == group].mean(), rel=1e-9)
                assert curve.accuracy[group, size] == right[groups == group].mean()


def test_the_curve_of_the_most_activated_pairs_is_that_of_their_masks() -> None:
    b, x, y = small(2)
    codes = b.codes(x[y == 1])
    ranks, largest = activation_ranks(codes)
    curve = trace(b, x, y, np.zeros(N, np.int64), ranks, largest)
    for size in (0, 1, 17, largest):
        masked = b.with_mask(rank_codes_by_activations(codes, M).mask(size, ranks.shape))
        assert curve.hits[0, size] == (masked.logits(x).argmax(axis=1) == y).sum()


def test_neither_threads_nor_chunks_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    b, x, y = small(3, 2)
    x, y = np.tile(x, (9, 1)), np.tile(y, 9)
    groups = np.arange(len(x)) % 5
    ranks, largest = activation_ranks(b.codes(x[:20]))
    whole = trace(b, x, y, groups, ranks, largest)
    for options in ({"threads": 3}, {"working_memory": 0.01}, {"threads": 2, "working_memory": 0.01}):
        other = trace(b, x, y, groups, ranks, largest, **options)  # type: ignore[arg-type]
        assert np.array_equal(other.hits, whole.hits)
        assert np.array_equal(other.loss, whole.loss)


def test_a_group_without_examples_has_no_accuracy() -> None:
    b, x, y = small(4)
    ranks = np.full((C, M), NEVER, np.int32)
    curve = trace(b, x[:2], y[:2], np.array([0, 2]), ranks, 3)
    assert curve.examples.tolist() == [1, 0, 1]
    assert np.isnan(curve.accuracy[1]).all()
    assert np.isnan(curve.loss[1]).all()
    assert (curve.hits[[0, 2]] == curve.hits[[0, 2], :1]).all()
    nothing = trace(b, x[:0], y[:0], y[:0], ranks, 0)
    assert nothing.hits.shape == (0, 1)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"labels": np.zeros(3, int)}, r"^there are 60 examples, 3 labels and 60 groups: pass as many"),
        ({"labels": np.full(N, V)}, r"^labels hold 7: the model knows 7 classes, counted from 0$"),
        ({"labels": np.full(N, -1)}, r"^labels hold -1: they are counted from 0$"),
        ({"labels": np.zeros(N)}, r"^labels are float64 \(60,\): they must be whole numbers, one for each example$"),
        ({"groups": np.full(N, 2), "group_count": 2}, r"^groups hold 2: there are 2 groups, counted from 0$"),
        ({"ranks": np.zeros((C, M))}, r"^ranks are float64 \(20, 40\): they must be int32 \(20, 40\)$"),
        ({"ranks": np.zeros((C, 3), np.int32)}, r"^ranks are int32 \(20, 3\): they must be int32 \(20, 40\)$"),
        (
            {"largest": 5},
            r"^the largest mask is 5, but a pair has rank 5: a pair is masked at the sizes above its rank",
        ),
        ({"ranks": np.full((C, M), NEVER, np.int32), "largest": -1}, r"^the largest mask is -1"),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], message: str) -> None:
    b, x, y = small(5)
    arguments: dict[str, Any] = {
        "features": x,
        "labels": y,
        "groups": np.zeros(N, np.int64),
        "ranks": np.arange(C * M, dtype=np.int32).reshape(C, M) % 6,
        "largest": 6,
    }
    trace(b, **arguments)
    with pytest.raises(InputError, match=message):
        trace(b, **{**arguments, **changed})
