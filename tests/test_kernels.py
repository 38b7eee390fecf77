"""Compiled kernels against their numpy references, on every instruction set of this machine: equal to the bit."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise.bottleneck import kernels, reference
from excise.bottleneck.reference import NEVER, NO_PAIR, Optimiser
from excise.errors import InputError

native = pytest.importorskip("excise._native", reason="no compiled kernels were built")

sizes = st.fixed_dictionaries(
    {
        "n": st.integers(0, 80),
        "c": st.integers(1, 5),
        "m": st.integers(1, 300),
        "d": st.integers(1, 17),
        "seed": st.integers(0, 2**16),
    }
)


@pytest.fixture(params=native.available(), autouse=True)
def instruction_set(request):
    before = native.backend()
    assert native.use(request.param)
    yield request.param
    native.use(before)


def keys_and_queries(n, c, m, d, seed, round_to=1):
    """Normal keys and queries, rounded so that ties are many, some keys twice."""
    rng = np.random.default_rng(seed)
    keys = rng.standard_normal((c, m, d)).astype(np.float32).round(round_to)
    keys[:, rng.integers(0, m, 3)] = keys[:, rng.integers(0, m, 3)]
    return keys, rng.standard_normal((n, c, d)).astype(np.float32).round(round_to), rng


def test_the_list_of_backends_ends_with_plain_code():
    assert native.available()[-1] == "plain"
    assert not native.use("no such set")


@given(sizes, st.integers(1, 32), st.sampled_from([1.0, 0.6, 0.05, 0.0]))
def test_nearest_pairs(size, k, live_share):
    keys, z, rng = keys_and_queries(**size)
    live = None if live_share == 1 else rng.random(keys.shape[:2]) < live_share
    k = min(k, size["m"])
    codes = native.PreparedKeys(keys, live).nearest(z, k, 2)
    np.testing.assert_array_equal(codes, reference.PreparedKeys(keys, live).nearest(z, k))


@pytest.mark.parametrize("k", [1, 5, 20])
def test_all_keys_equal(k):
    keys = np.ones((2, 700, 3), np.float32)
    z = np.zeros((5, 2, 3), np.float32)
    np.testing.assert_array_equal(
        native.PreparedKeys(keys, None).nearest(z, k, 1), np.broadcast_to(np.arange(k), (5, 2, k))
    )


@given(
    st.integers(1, 1500),
    st.integers(1, 60),
    st.integers(1, 3),
    st.integers(1, 32),
    st.sampled_from([1.0, 0.5, 0.02]),
    st.integers(0, 2**16),
)
def test_keys_that_repeat(m, distinct, d, k, live_share, seed):
    """A key that many pairs have is searched once and gives them in order; of keys equally near the lower pair wins."""
    rng = np.random.default_rng(seed)
    some = rng.standard_normal((distinct, d)).astype(np.float32)
    some = np.concatenate([some, -some, some[:, ::-1]])  # from the origin each is as far as its mirror images
    keys = some[rng.integers(0, len(some), (2, m))]
    live = None if live_share == 1 else rng.random((2, m)) < live_share
    z = rng.standard_normal((70, 2, d)).astype(np.float32)
    z[::2] = 0
    codes = native.PreparedKeys(keys, live).nearest(z, min(k, m), 2)
    np.testing.assert_array_equal(codes, reference.PreparedKeys(keys, live).nearest(z, min(k, m)))


@given(
    st.integers(513, 900),
    st.integers(1, 17),
    st.sampled_from([1, 2, 10]),
    st.sampled_from([1e-25, 1e-9, 1.0, 1e9, 1e12]),
    st.sampled_from([0.0, 3.0, 1e3]),
    st.sampled_from(["none", "long keys", "long queries", "near ties", "most keys far"]),
    st.integers(0, 99),
)
def test_nearest_pairs_of_any_scale_and_place(m, d, k, scale, offset, what, seed):
    """Where whole numbers are too coarse, too small or leave the choice open, floats must still decide."""
    rng = np.random.default_rng(seed)
    keys, z = rng.standard_normal((2, m, d)) + offset, rng.standard_normal((40, 2, d)) + offset
    if what == "long keys":
        keys[:, rng.integers(0, m, 3)] *= 1e3
    if what == "long queries":
        z[::3] *= 1e3
    if what == "most keys far":
        far = rng.random(m) < 0.9
        keys[:, far] *= 10 ** rng.uniform(0.5, 2.5, (far.sum(), 1))
        z[::3] *= 10 ** rng.uniform(0, 2.5, (14, 1, 1))
    if what == "near ties":
        keys = keys[:, rng.integers(0, m // 20, m)] + 1e-6 * rng.standard_normal(keys.shape)
    keys, z = (scale * keys).astype(np.float32), (scale * z).astype(np.float32)
    np.testing.assert_array_equal(
        native.PreparedKeys(keys, None).nearest(z, k, 2), reference.PreparedKeys(keys, None).nearest(z, k)
    )


@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.parametrize("m", [64, 700])
@pytest.mark.parametrize("overflowing", [1, 60])
def test_a_key_whose_norm_overflows_hides_no_other(m, k, overflowing):
    keys, z, rng = keys_and_queries(64, 1, m, 4, 0)
    keys[0, rng.permutation(m)[:overflowing]] = 1e20
    codes = native.PreparedKeys(keys, None).nearest(z, k, 1)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(codes, reference.PreparedKeys(keys, None).nearest(z, k))
    np.testing.assert_array_equal(codes[:1], native.PreparedKeys(keys, None).nearest(z[:1], k, 1))


@pytest.mark.parametrize("k", [1, 5, 32])
def test_few_near_keys_among_far_ones(k):
    """Fewer lanes hold a near key than keys are looked for; some zeros have a sign."""
    rng = np.random.default_rng(0)
    keys = (1e4 * rng.standard_normal((1, 2000, 8))).astype(np.float32)
    keys[0, :: 1 << 6] /= 1e4
    keys[0, 100:400:10] = 0.0
    keys[0, 105:400:10] = -0.0
    z = rng.standard_normal((70, 1, 8)).astype(np.float32)
    z[::9] *= 1e4
    np.testing.assert_array_equal(
        native.PreparedKeys(keys, None).nearest(z, k, 2), reference.PreparedKeys(keys, None).nearest(z, k)
    )


@pytest.mark.parametrize("d", [4, 6, 8, 14, 64])
@pytest.mark.parametrize("k", [1, 2, 10, 32])
def test_nearest_pairs_of_a_full_codebook(d, k):
    keys, z, _ = keys_and_queries(37, 2, 4096, d, 0, round_to=2)
    np.testing.assert_array_equal(
        native.PreparedKeys(keys, None).nearest(z, k, 2), reference.PreparedKeys(keys, None).nearest(z, k)
    )


def test_the_last_pair_that_a_code_can_name():
    keys, z, _ = keys_and_queries(3, 1, 65_535, 2, 0, round_to=4)
    keys[0, -1] = z[0, 0]
    codes = native.PreparedKeys(keys, None).nearest(z, 2, 1)
    assert codes[0, 0, 0] == 65_534
    np.testing.assert_array_equal(codes, reference.PreparedKeys(keys, None).nearest(z, 2))


@given(st.integers(0, 90), st.integers(1, 40), st.integers(1, 140), st.integers(0, 99))
def test_projection(n, f, columns, seed):
    rng = np.random.default_rng(seed)
    x, projection = rng.standard_normal((n, f)).astype(np.float32), rng.standard_normal((f, columns)).astype(np.float32)
    np.testing.assert_array_equal(native.project(x, projection, 2), reference.project(x, projection))


@given(sizes, st.integers(1, 40))
def test_key_initialisation(size, batch_size):
    keys, z, rng = keys_and_queries(**size)
    ours, oracle = native.KeyInitializer(keys, 7, batch_size), reference.KeyInitializer(keys, 7, batch_size)
    for _ in range(3):
        part = z[rng.permutation(len(z))]
        ours.update(part, 2)
        oracle.update(part)
    np.testing.assert_array_equal(ours.keys(), oracle.keys())


@pytest.mark.parametrize("d", [1, 3, 8, 64])
@pytest.mark.parametrize(("scale", "batch_size"), [(1e-20, 64), (1e-3, 64), (1.0, 64), (1.0, 1000), (1e12, 64)])
def test_key_initialisation_of_a_wide_codebook(d, scale, batch_size):
    """Most keys are far from all examples for a while, and dead ones take the same example: neither changes a bit."""
    rng = np.random.default_rng(d)
    keys = rng.standard_normal((2, 700, d)).astype(np.float32)
    z = (scale * (rng.standard_normal((640, 2, d)) + 0.3)).astype(np.float32)
    ours, oracle = native.KeyInitializer(keys, 7, batch_size), reference.KeyInitializer(keys, 7, batch_size)
    for _ in range(4):
        part = z[rng.permutation(len(z))]
        ours.update(part, 2)
        oracle.update(part)
        np.testing.assert_array_equal(ours.keys(), oracle.keys())


def some_codes(rng, n, c, m, k, missing):
    codes = rng.integers(0, m, (n, c, k)).astype(np.uint16)
    codes[rng.random(codes.shape) < missing] = NO_PAIR
    return codes


@given(sizes, st.integers(1, 4), st.integers(2, 40), st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from(["mean", "sum"]))
def test_logits_and_their_gradient(size, k, v, missing, decoder):
    rng = np.random.default_rng(size["seed"])
    n, c, m = size["n"], size["c"], size["m"]
    codes = some_codes(rng, n, c, m, k, missing)
    values = rng.standard_normal((c, m, v)).astype(np.float32)
    logits = native.logits(codes, values, decoder, 2)
    np.testing.assert_array_equal(logits, reference.logits(codes, values, decoder))
    residuals = rng.standard_normal((n, v)).astype(np.float32)
    table = native.gradient(codes, residuals, m, decoder, 2)
    np.testing.assert_array_equal(table, reference.gradient(codes, residuals, m, decoder))
    assert np.vdot(logits, residuals) == pytest.approx(np.vdot(values, table), abs=1e-3)  # one is the other's transpose


@given(st.integers(1, 50), st.integers(2, 30), st.floats(0, 0.9), st.floats(0.01, 200), st.integers(0, 99))
def test_cross_entropy(n, v, smoothing, spread, seed):
    rng = np.random.default_rng(seed)
    logits, labels = (spread * rng.standard_normal((n, v))).astype(np.float32), rng.integers(0, v, n)
    residuals, losses = native.cross_entropy(logits, labels, smoothing)
    expected, expected_losses = reference.cross_entropy(logits, labels, smoothing)
    np.testing.assert_array_equal(residuals, expected)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-12)
    exact = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    p = np.exp(exact) / np.exp(exact).sum(axis=1, keepdims=True)
    target = np.full((n, v), smoothing / v)
    target[np.arange(n), labels] += 1 - smoothing
    np.testing.assert_allclose(residuals, p - target, atol=1e-6)


def some_ranks(rng, shape, finite, dead, most):
    """Ranks of which some are NEVER and some negative; the fewer there are, the more are equal."""
    ranks = rng.integers(0, most, shape)
    ranks[rng.random(shape) >= finite] = NEVER
    ranks[rng.random(shape) < dead] = -1
    return ranks.astype(np.int32)


def equal_steps(steps, expected):
    for name, one, other in zip(
        ("codes", "offsets", "sizes", "books", "pairs", "places"), steps, expected, strict=True
    ):
        assert one.dtype == other.dtype, name
        np.testing.assert_array_equal(one, other, name)


@given(
    sizes,
    st.integers(1, 32),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from([0.0, 0.1, 1.0]),
    st.sampled_from([3, 1000]),
)
def test_steps(size, k, finite, dead, most):
    keys, z, rng = keys_and_queries(**size)
    ranks = some_ranks(rng, keys.shape[:2], finite, dead, most)
    steps = native.PreparedStairs(keys, ranks).steps(z, k)
    equal_steps(steps, reference.PreparedStairs(keys, ranks).steps(z, k))
    equal_steps(native.PreparedStairs(keys, ranks, 2).steps(z, k, 3), steps)


@given(
    st.integers(1, 1500),
    st.integers(1, 60),
    st.sampled_from([1, 2, 9]),
    st.sampled_from([3, 10_000]),
    st.integers(0, 99),
)
def test_steps_among_keys_that_repeat(m, distinct, k, most, seed):
    """Copies of a masked key, and keys as near as it, take its place; the lower pair takes it back."""
    rng = np.random.default_rng(seed)
    some = rng.standard_normal((distinct, 3)).astype(np.float32)
    some = np.concatenate([some, -some])  # from the origin each is as far as its mirror image
    keys = some[rng.integers(0, len(some), (2, m))]
    ranks = some_ranks(rng, (2, m), 0.4, 0.1, most)
    z = rng.standard_normal((40, 2, 3)).astype(np.float32)
    z[::2] = 0
    steps = native.PreparedStairs(keys, ranks, 2).steps(z, k, 2)
    equal_steps(steps, reference.PreparedStairs(keys, ranks).steps(z, k))


@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.parametrize("what", ["no number", "huge queries", "huge keys", "far keys"])
def test_steps_of_any_scale(k, what):
    keys, z, rng = keys_and_queries(70, 2, 700, 8, 0)
    if what == "no number":
        z[::3, 0] = np.nan
    if what == "huge queries":
        z[::3] *= np.float32(1e15)
    if what == "huge keys":
        keys[:, rng.permutation(700)[:300]] = 1e20
    if what == "far keys":
        keys[:, rng.permutation(700)[:600]] *= np.float32(1e4)
    ranks = some_ranks(rng, keys.shape[:2], 0.5, 0.1, 500)
    steps = native.PreparedStairs(keys, ranks).steps(z, k, 2)
    with np.errstate(over="ignore", invalid="ignore"):
        equal_steps(steps, reference.PreparedStairs(keys, ranks).steps(z, k))


@given(sizes, st.integers(1, 4), st.sampled_from([0.2, 1.0]), st.sampled_from([0.0, 0.5]), st.sampled_from([4, 1000]))
def test_steps_lead_to_what_a_search_under_the_mask_finds(size, k, finite, dead, most):
    keys, z, rng = keys_and_queries(**size)
    ranks = some_ranks(rng, keys.shape[:2], finite, dead, most)
    codes, offsets, at, books, pairs, places = native.PreparedStairs(keys, ranks).steps(z, k)
    for mask_size in (most, most // 2, 2, 1, 0):
        state = codes.copy()
        for q in range(len(z)):
            for e in range(offsets[q], offsets[q + 1]):
                if at[e] >= mask_size:
                    slots = state[q, books[e]]
                    slots[places[e] + 1 :] = slots[places[e] : -1].copy()
                    slots[places[e]] = pairs[e]
        np.testing.assert_array_equal(state, native.PreparedKeys(keys, ranks >= mask_size).nearest(z, k))


@given(
    sizes,
    st.integers(1, 4),
    st.integers(2, 40),
    st.sampled_from(["mean", "sum"]),
    st.sampled_from([3, 1000]),
    st.sampled_from([0.1, 30.0]),
)
def test_walk(size, k, v, decoder, most, spread):
    size["n"] //= 8
    keys, z, rng = keys_and_queries(**size)
    ranks = some_ranks(rng, keys.shape[:2], 0.6, 0.1, most)
    values = (spread * rng.standard_normal((*keys.shape[:2], v))).astype(np.float32).round(1)
    labels = rng.integers(0, v, len(z))
    steps = native.PreparedStairs(keys, ranks).steps(z, k)
    walked = native.walk(*steps, values, labels, decoder, 2)
    expected = reference.walk(*steps, values, labels, decoder)
    for one, other in zip(walked[::2], expected[::2], strict=True):
        assert one.dtype == other.dtype == np.int32
        np.testing.assert_array_equal(one, other)
    for one, other in zip(walked[1::2], expected[1::2], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    _, losses = native.cross_entropy(native.logits(steps[0], values, decoder), labels, 0.0)
    np.testing.assert_array_equal(walked[1], losses)


def test_a_walk_over_many_codebooks_and_classes():
    """Groups of several codebooks, rows of several vectors, more steps than are settled together."""
    rng = np.random.default_rng(0)
    n, c, m, k, v = 20, 100, 30, 2, 100
    keys, z = rng.standard_normal((c, m, 3)).astype(np.float32), rng.standard_normal((n, c, 3)).astype(np.float32)
    steps = native.PreparedStairs(keys, some_ranks(rng, (c, m), 0.7, 0.1, 500)).steps(z, k)
    values, labels = rng.standard_normal((c, m, v)).astype(np.float32), rng.integers(0, v, n)
    walked, expected = native.walk(*steps, values, labels, "mean", 1), reference.walk(*steps, values, labels, "mean")
    for one, other in zip(walked, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13)
    for one, other in zip(walked, native.walk(*steps, values, labels, "mean", 3), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_walk_over_values_that_are_no_numbers(bad):
    rng = np.random.default_rng(0)
    keys, z, _ = keys_and_queries(30, 3, 20, 2, 0)
    values = rng.standard_normal((3, 20, 11)).astype(np.float32)
    values[rng.random(values.shape) < 0.02] = bad
    steps = native.PreparedStairs(keys, some_ranks(rng, (3, 20), 0.8, 0.1, 9)).steps(z, 1)
    labels = rng.integers(0, 11, 30)
    walked = native.walk(*steps, values, labels, "mean")
    with np.errstate(invalid="ignore"):
        expected = reference.walk(*steps, values, labels, "mean")
    for one, other in zip(walked, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


OPTIONS = {
    "adam": Optimiser(),
    "slow-adam": Optimiser(beta1=0.99, learning_rate=0.01),
    "smoothed-sum": Optimiser(label_smoothing=0.1, decoder="sum"),
    "clipped": Optimiser(gradient_clip=0.01),
    "penalised": Optimiser(l2=0.01),
    "penalised-clipped": Optimiser(l2=0.01, gradient_clip=0.02),
    "sgd": Optimiser(solver="sgd", learning_rate=3.0),
    "sgd-penalised-clipped": Optimiser(solver="sgd", learning_rate=3.0, l2=0.1, gradient_clip=0.1),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("k", [1, 3])
def test_training_with_long_rests_agrees_with_the_dense_optimiser(options, k):
    rng = np.random.default_rng(k)
    n, c, m, v = 90, 3, 60, 19
    codes, labels = some_codes(rng, n, c, m, k, 0.05), rng.integers(0, v, n)
    values = 0.1 * rng.standard_normal((c, m, v)).astype(np.float32)
    few = [rng.permutation(20) for _ in range(120)]  # 300 steps during which most rows rest
    order = np.concatenate([rng.permutation(n), rng.permutation(n), *few, rng.permutation(n)])
    ours, oracle = native.ValueTrainer(values, options), reference.ValueTrainer(values, options)
    loss = sum(ours.train(codes, labels, part, 8, 2) for part in (order[:400], order[400:]))
    expected = sum(oracle.train(codes, labels, part, 8) for part in (order[:400], order[400:]))
    np.testing.assert_allclose(ours.values(2), oracle.values(), rtol=1e-5, atol=2e-5)
    assert loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_training_gives_the_same_bits_on_every_instruction_set(options, instruction_set):
    rng = np.random.default_rng(0)
    codes, labels = some_codes(rng, 200, 4, 50, 2, 0.05), rng.integers(0, 19, 200)
    values, order = rng.standard_normal((4, 50, 19)).astype(np.float32), rng.integers(0, 200, 4000)

    def trained(name):
        assert native.use(name)
        trainer = native.ValueTrainer(values, options)
        return trainer.train(codes, labels, order, 8, 1), trainer.values(1).tobytes()

    assert trained(instruction_set) == trained("plain")


def test_a_row_that_no_example_touches_keeps_its_bits():
    rng = np.random.default_rng(0)
    codes, labels = rng.integers(0, 30, (50, 2, 1)).astype(np.uint16), rng.integers(0, 3, 50)
    values = rng.standard_normal((2, 40, 3)).astype(np.float32)
    trainer = native.ValueTrainer(values, Optimiser())
    trainer.train(codes, labels, np.arange(50), 8, 1)
    after = trainer.values(1)
    np.testing.assert_array_equal(after[:, 30:], values[:, 30:])
    assert (after[:, :30] != values[:, :30]).any()


@pytest.mark.parametrize("options", [Optimiser(), replace(OPTIONS["penalised-clipped"], decoder="sum")])
def test_any_number_of_threads_gives_the_same_bytes(options):
    rng = np.random.default_rng(0)
    c, m, d, v, k = 37, 600, 8, 12, 3
    x, projection = (
        rng.standard_normal((300, 20)).astype(np.float32),
        rng.standard_normal((20, c * d)).astype(np.float32),
    )

    def run(threads):
        z = native.project(x, projection, threads).reshape(len(x), c, d)
        initializer = native.KeyInitializer(rng_keys, 1, 64)
        initializer.update(z, threads)
        keys = initializer.keys()
        codes = native.PreparedKeys(keys, None).nearest(z, k, threads)
        trainer = native.ValueTrainer(np.zeros((c, m, v), np.float32), options)
        trainer.train(codes, labels, np.arange(300), 100, threads)
        values = trainer.values(threads)
        logits = native.logits(codes, values, "mean", threads)
        return keys, codes, values, logits, native.gradient(codes, logits, m, "mean", threads)

    rng_keys, labels = rng.standard_normal((c, m, d)).astype(np.float32), rng.integers(0, v, 300)
    for one, other in zip(run(1), run(3), strict=True):
        np.testing.assert_array_equal(one, other)


def test_training_looks_up_what_prediction_looks_up():
    """The loss of the next step, from inside training, is the loss of the logits that prediction gives, to the bit."""
    rng = np.random.default_rng(0)
    codes, labels = rng.integers(0, 9, (64, 20, 2)).astype(np.uint16), rng.integers(0, 5, 64)
    trainer = native.ValueTrainer(np.zeros((20, 9, 5), np.float32), Optimiser(solver="sgd", learning_rate=9.0))
    for _ in range(3):
        trainer.train(codes, labels, np.arange(64), 16, 2)
    _, losses = native.cross_entropy(native.logits(codes, trainer.values(1), "mean", 1), labels, 0.0)
    assert trainer.train(codes, labels, np.arange(64), 64, 2) == pytest.approx(losses.sum(), rel=1e-14)


def test_a_forked_child_works_alone():
    """The threads of a parent do not exist in its forked child, which must not wait for them."""
    program = """
import os, numpy as np
from excise import _native
rng = np.random.default_rng(0)
keys, z = (rng.standard_normal(s).astype(np.float32) for s in ((8, 600, 8), (2000, 8, 8)))
prepared = _native.PreparedKeys(keys, None)
codes = prepared.nearest(z, 1, 2)
child = os.fork()
if not child:
    os._exit(0 if np.array_equal(prepared.nearest(z, 1, 2), codes) else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", program], timeout=60).returncode == 0


def test_wrong_arguments_are_refused_not_read():
    codes = np.zeros((4, 2, 1), np.uint16)
    values = np.zeros((2, 5, 3), np.float32)
    trainer = native.ValueTrainer(values, Optimiser())
    beyond, labels = codes + np.uint16(5), np.zeros(4, np.int64)
    stairs = native.PreparedStairs(values, np.arange(10, dtype=np.int32).reshape(2, 5))
    steps = stairs.steps(np.zeros((4, 2, 3), np.float32), 1)
    assert len(steps[2])
    for call in (
        lambda: native.logits(beyond, values, "mean", 1),
        lambda: native.gradient(beyond, np.zeros((4, 3), np.float32), 5, "mean", 1),
        lambda: native.logits(codes, values, "median", 1),
        lambda: native.logits(codes[:, :1], values, "mean", 1),
        lambda: trainer.train(beyond, labels, np.arange(4), 2, 1),
        lambda: trainer.train(codes, labels + 3, np.arange(4), 2, 1),
        lambda: trainer.train(codes, labels, np.arange(5), 2, 1),
        lambda: native.PreparedKeys(np.zeros((2, 5, 4), np.float32), None).nearest(np.zeros((1, 2, 3), np.float32), 1),
        lambda: native.project(np.zeros((2, 3), np.float32), np.zeros((4, 2), np.float32), 1),
        lambda: native.logits(codes, values[:, :, :0], "mean", 1),
        lambda: native.logits(codes[:, :0], values[:0], "mean", 1),
        lambda: native.PreparedKeys(values[:, :0], None),
        lambda: native.KeyInitializer(values[:0], 0, 4),
        lambda: native.ValueTrainer(values[:, :, :0], Optimiser()),
        lambda: native.PreparedStairs(values, np.zeros((2, 4), np.int32)),
        lambda: stairs.steps(np.zeros((1, 2, 4), np.float32), 1),
        lambda: stairs.steps(np.zeros((1, 2, 3), np.float32), 33),
        lambda: native.walk(beyond, *steps[1:], values, labels, "mean"),
        lambda: native.walk(*steps[:4], steps[4] + np.uint16(5), steps[5], values, labels, "mean"),
        lambda: native.walk(*steps[:5], steps[5] + np.uint8(1), values, labels, "mean"),
        lambda: native.walk(*steps[:3], steps[3] + np.int32(2), *steps[4:], values, labels, "mean"),
        lambda: native.walk(codes, steps[1][:-1], *steps[2:], values, labels, "mean"),
        lambda: native.walk(codes, steps[1][::-1].copy(), *steps[2:], values, labels, "mean"),
        lambda: native.walk(*steps, values, labels + 3, "mean"),
    ):
        with pytest.raises(ValueError, match=r"\w"):
            call()


@pytest.mark.parametrize(
    ("chosen", "says"), [("reference", "reference"), ("plain", "plain"), ("mmx", "EXCISE_KERNELS is 'mmx'")]
)
def test_kernels_chosen_by_hand(chosen, says):
    done = subprocess.run(
        [sys.executable, "-c", "from excise.bottleneck import kernels; print(kernels.BACKEND)"],
        env={**os.environ, "EXCISE_KERNELS": chosen},
        capture_output=True,
        text=True,
    )
    assert says in done.stdout + done.stderr


def test_threads_are_counted_as_scikit_learn_counts(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [kernels.available_threads(n) for n in (None, 3, -1, -2, -99, 50_000)] == [8, 3, 8, 7, 1, 8]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert kernels.available_threads(None) == 2
    with pytest.raises(InputError, match="n_jobs is 0"):
        kernels.available_threads(0)
