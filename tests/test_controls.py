"""Control masks: of the right size, of live pairs only, in use as often, and blind to the class."""

import numpy as np

from excise.forgetting.controls import matched_mask, random_mask

SHAPE = (8, 50)
LIVE = np.random.default_rng(0).random(SHAPE) < 0.8
TOTALS = np.random.default_rng(1).poisson(np.random.default_rng(2).gamma(0.5, 20, SHAPE)).reshape(-1)
MASK = LIVE & (np.random.default_rng(3).random(SHAPE) < 0.3)


def test_random_masks_are_of_live_pairs() -> None:
    mask = random_mask(LIVE, 90, np.random.default_rng(0))
    assert mask.sum() == 90
    assert not (mask & ~LIVE).any()
    assert np.array_equal(mask, random_mask(LIVE, 90, np.random.default_rng(0)))
    assert np.array_equal(random_mask(LIVE, int(LIVE.sum()), np.random.default_rng(0)), LIVE)


def test_matched_masks_are_in_use_as_often() -> None:
    found = matched_mask(MASK, LIVE, TOTALS, np.random.default_rng(0))
    assert not (found & ~LIVE).any()
    edges = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    for mask in (MASK, found):
        assert np.histogram(TOTALS[mask.reshape(-1)], edges)[0].tolist() == np.histogram(
            TOTALS[MASK.reshape(-1)], edges)[0].tolist()  # fmt: skip
    assert not np.array_equal(found, MASK)


def test_matched_masks_neither_seek_nor_shun_the_mask() -> None:
    flat = np.ones(MASK.size)
    draws = [matched_mask(MASK, LIVE, flat, np.random.default_rng(seed)) for seed in range(200)]
    shared = np.mean([(draw & MASK).sum() for draw in draws]) / MASK.sum()
    assert abs(shared - MASK.sum() / LIVE.sum()) < 0.02
