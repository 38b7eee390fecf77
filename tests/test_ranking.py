"""The order of masking: nested masks, ties, and the two kinds of size."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from excise.bottleneck.kernels import NEVER
from excise.bottleneck.reference import NO_PAIR
from excise.forgetting.masks import activation_counts
from excise.forgetting.ranking import rank_by_activations, rank_codes_by_activations, rank_codes_by_examples

shapes = st.fixed_dictionaries(
    {"n": st.integers(0, 30), "c": st.integers(1, 4), "m": st.integers(1, 9), "k": st.integers(1, 3)}
)


def drawn(n: int, c: int, m: int, k: int, seed: int) -> Any:
    codes = np.random.default_rng(seed).integers(0, m + 1, (n, c, k)).astype(np.uint16)
    codes[codes == m] = NO_PAIR
    return codes


@given(shapes, st.integers(0, 99))
def test_by_activations_the_most_selected_come_first(shape: Any, seed: int) -> None:
    codes, m = drawn(**shape, seed=seed), shape["m"]
    counts = activation_counts(codes, m).reshape(-1)
    usage = counts + np.random.default_rng(seed).integers(0, 3, counts.size)
    for others in (None, usage - counts):
        ranking = rank_codes_by_activations(codes, m, None if others is None else usage)
        expected = sorted(counts.nonzero()[0], key=lambda p: (-counts[p], 0 if others is None else others[p], p))
        assert ranking.pairs.tolist() == expected
        assert ranking.counts.tolist() == counts[expected].tolist()
        assert ranking.largest == len(expected)
        for size in range(len(expected) + 1):
            assert ranking.first(size).tolist() == expected[:size]


@given(st.sampled_from([1, 255, 256, 2**16 - 1, 2**16, 2**20]), st.sampled_from([1, 256, 2**16 - 1, 2**16, 2**20]))
def test_ties_are_broken_alike_for_counts_of_any_length(most: int, most_of_others: int) -> None:
    rng = np.random.default_rng(most + most_of_others)
    counts, others = rng.integers(1, most + 1, 300), rng.integers(0, most_of_others + 1, 300)
    counts[:9], others[::2] = most, most_of_others
    pairs = np.sort(rng.permutation(1000)[:300])
    ranking = rank_by_activations(pairs, counts, 0, others)
    expected = np.lexsort((pairs, others, -counts))
    assert ranking.pairs.tolist() == pairs[expected].tolist()
    assert ranking.others is not None
    assert ranking.others.tolist() == others[expected].tolist()


@given(shapes, st.integers(0, 99))
def test_by_examples_a_size_masks_what_so_many_select(shape: Any, seed: int) -> None:
    codes, m = drawn(**shape, seed=seed), shape["m"]
    ranking = rank_codes_by_examples(codes, m)
    assert ranking.largest == len(codes)
    for size in range(len(codes) + 1):
        selected = activation_counts(codes[:size], m).reshape(-1).nonzero()[0]
        assert sorted(ranking.first(size)) == selected.tolist()
        assert len(ranking.first(ranking.size_of(len(selected)))) >= len(selected)


@given(shapes, st.integers(0, 99))
def test_ranks_say_the_same_as_sizes(shape: Any, seed: int) -> None:
    codes, m, c = drawn(**shape, seed=seed), shape["m"], shape["c"]
    for ranking in (rank_codes_by_activations(codes, m), rank_codes_by_examples(codes, m)):
        ranks = ranking.ranks((c, m)).reshape(-1)
        assert (ranks == NEVER).sum() == c * m - len(ranking.pairs)
        for size in range(ranking.largest + 1):
            assert (ranks < size).nonzero()[0].tolist() == sorted(ranking.first(size))


def test_many_selections_are_ranked_beyond_16_bits() -> None:
    ranking = rank_by_activations(np.array([3, 5, 9]), np.array([70_000, 1, 140_000]), 0, np.array([0, 0, 90_000]))
    assert ranking.pairs.tolist() == [9, 3, 5]
