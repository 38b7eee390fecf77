"""How many pairs `pairs="auto"` masks: its constants, compared on held-out training data.

paper     'Unlearning via the Discrete Key-Value Bottleneck' reads N_a and N_e off test data; no number here is,
          but the form of the rule was found with test data of other seeds in sight (docs/method.md)
command   python -m experiments.mask_size
minutes   about 6 on two cores with AVX-512
expected  docs/results.md; the constants of excise/forgetting/sizes.py are one of these rules

A model is trained on 80% of the TRAINING data; its seed is that of no other experiment. One half of the rest chooses a
size where held-out examples do, the other half says what it gives. For every class that is forgotten, one curve holds
all sizes.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from excise import KeyValueClassifier
from excise.bottleneck import kernels
from excise.features.arrays import Array
from excise.forgetting.curve import Curve, trace
from excise.forgetting.ranking import Ranking, rank_codes_by_activations
from excise.forgetting.sizes import Goal, smallest
from experiments.features import SHARED, load
from experiments.record import ROOT, provenance, say, write_run

RESULTS = ROOT / "experiments" / "results" / "mask_size.json"
PRESETS = {"cifar10-resnet50": 10, "cifar100-resnet50": 50}  # classes that are forgotten in turn
COVERED = [0.6, 0.7, 0.75, 0.8, 0.85]
DISPLACED = [0.6, 0.7, 0.8, 0.9]
FLOOR = 0.6  # of the class's activations, whatever others lose
MORE = [0.0, 0.2, 0.5, 0.75]
HELD_OUT = 5  # every fifth training example
RETAIN, CHOOSE, CHECK = 0, 1, 2  # groups of held-out examples


def main(arguments: list[str] | None = None) -> None:
    """Measure every preset with every seed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, help="result file (default %(default)s)")
    parser.add_argument("--presets", nargs="+", choices=list(PRESETS), default=list(PRESETS), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[10], metavar="SEED")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder that holds data/ (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="few examples and a small layout: numbers mean nothing")
    options = parser.parse_args(arguments)
    if options.quick and options.output == RESULTS:
        parser.error("--quick needs -o FILE: its numbers do not belong in the result file")
    for name in options.presets:
        data = load(name, options.shared)
        if options.quick:
            data = data.head(1500, 100)
        for seed in options.seeds:
            run = {"preset": name, "seed": seed, **provenance()}
            write_run(options.output, "mask_size", run, measure(name, seed, data.x_train, data.y_train, options.quick))


def measure(name: str, seed: int, x: Array, y: Array, quick: bool) -> list[dict[str, Any]]:
    """A row for every class that is forgotten."""
    held = np.arange(len(x)) % HELD_OUT == 0
    small = {"codebooks": 16, "pairs": 64, "key_epochs": 1, "epochs": 2} if quick else {}
    model = KeyValueClassifier.from_preset(name, random_state=seed, **small).fit(x[~held], y[~held])
    say(f"{name}, seed {seed}: {model.score(x[held], y[held]):.2%} on held-out training data")
    classes = drawn(model.classes_, 2 if quick else PRESETS[name])
    return [measure_class(model, label, x, y, held) for label in classes]


def drawn(classes: Array, count: int) -> list[int]:
    """The classes that are forgotten in turn, the same every time."""
    found: list[int] = np.sort(np.random.default_rng(0).permutation(classes)[:count]).tolist()
    return found


def measure_class(model: KeyValueClassifier, label: int, x: Array, y: Array, held: Array) -> dict[str, Any]:
    """What each rule gives for one class, read off its curve."""
    m = model.bottleneck_.keys.shape[1]
    assert model.activations_ is not None
    usage = model.activations_.totals
    codes = model.training_codes_[model.training_labels_ == label]
    ranking = rank_codes_by_activations(codes, m, usage)
    assert ranking.others is not None
    own, total = int(ranking.counts.sum(dtype=np.int64)), int(usage.sum(dtype=np.int64))
    covered = np.cumsum(ranking.counts, dtype=np.int64) / own
    displaced = np.cumsum(ranking.others) / (total - own)

    half = np.arange(held.sum()) // 2 % 2
    groups = np.where(y[held] == label, 1 + half, RETAIN)
    curve = curve_of(model, ranking, x[held], y[held], groups)
    sizes = {"none": 0, "every pair it used": ranking.largest, "smallest that forgets": zero(curve, CHECK)}
    sizes |= {f"covered {share:g}": reach(covered, share) for share in COVERED}
    for factor in DISPLACED:
        size = int(np.searchsorted(displaced, factor * np.sqrt(own / total), side="right"))
        sizes[f"displaced {factor:g}"] = max(size, reach(covered, FLOOR))
    chosen = zero(curve, CHOOSE)
    for more in MORE:
        size = int(np.ceil(chosen * (1 + more)))
        sizes[f"held out, {more:g} more"] = size
        sizes[f"held out, {more:g} more, displaced 0.8"] = max(size, sizes["displaced 0.8"])
    # What examples that the model was trained on ask for, though they had no part in the ranking.
    fold = np.arange(len(codes)) % HELD_OUT == 0
    features = x[~held][y[~held] == label][fold]
    partial = rank_codes_by_activations(codes[~fold], m, usage)
    trained = curve_of(model, partial, features, np.full(len(features), label), np.full(len(features), CHOOSE))
    sizes["trained on, held out of the ranking"] = zero(trained, CHOOSE)
    rules = {name: at(curve, min(size, ranking.largest), covered, displaced) for name, size in sizes.items()}
    say(f"  class {label}: {rules['smallest that forgets']['covered']:.2f}, {rules['displaced 0.8']}")
    return {"class": label, "examples": int(curve.examples[CHECK]), "rules": rules}


def curve_of(model: KeyValueClassifier, ranking: Ranking, x: Array, y: Array, groups: Array) -> Curve:
    """What the model gets right at every size, by group."""
    ranks, threads = ranking.ranks(model.bottleneck_.keys.shape[:2]), kernels.available_threads(None)
    return trace(model.bottleneck_, x, y, groups, ranks, ranking.largest, group_count=3, threads=threads)


def zero(curve: Curve, group: int) -> int:
    """The smallest size from which on nobody of a group is recognised; the largest where there is none."""
    found = smallest(curve.accuracy[group], curve.loss[group], Goal())
    return curve.hits.shape[1] - 1 if found is None else found


def reach(shares: Array, share: float) -> int:
    """How many come first until their shares add up to one."""
    return int(np.searchsorted(shares, share)) + 1


def at(curve: Curve, size: int, covered: Array, displaced: Array) -> dict[str, float]:
    """One size of a curve."""
    retain = curve.accuracy[RETAIN]
    return {
        "size": size,
        "covered": float(covered[size - 1]) if size else 0.0,
        "displaced": float(displaced[size - 1]) if size else 0.0,
        "recognised": int(curve.hits[CHECK, size]),
        "retain_change": float(retain[size] / retain[0] - 1),
    }


if __name__ == "__main__":
    main()
