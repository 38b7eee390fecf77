"""One class forgotten at a time, the size of the mask chosen without test data, measured on test data.

paper     Section 'Unlearning via the Discrete Key-Value Bottleneck', appendix 'Choosing the forget class randomly'
command   python -m experiments.forget_class
minutes   about 25 on two cores with AVX-512, for three seeds of both presets
expected  forget accuracy 0 in at least 95% of the cases, never above 2%; retain accuracy down by less than .3% (mean)

`log` forgets from the log of activations of a model trained on all training data. For the others every tenth
training example is held out of training, and chooses the size: `held out` ranks by the log, `examples` masks what a
draw of the class's training examples selects. CIFAR-100: 20 classes, always the same.
"""

import argparse
import copy
from pathlib import Path
from typing import Any

import numpy as np

from excise import KeyValueClassifier
from excise.features.arrays import Array
from experiments.features import SHARED, Split, load
from experiments.record import ROOT, provenance, say, write_run

RESULTS = ROOT / "experiments" / "results" / "forget_class.json"
PRESETS = {"cifar10-resnet50": 10, "cifar100-resnet50": 20}  # classes that are forgotten in turn
PARTS = {"all training data": ("log",), "nine tenths": ("held out", "examples")}  # trained on: methods
HELD_OUT = 10  # every tenth training example
FELL = 0.03  # of a retained class's accuracy: worth a warning


def main(arguments: list[str] | None = None) -> None:
    """Measure every preset with every seed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, help="result file (default %(default)s)")
    parser.add_argument("--presets", nargs="+", choices=list(PRESETS), default=list(PRESETS), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder that holds data/ (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="few examples and a small layout: numbers mean nothing")
    options = parser.parse_args(arguments)
    if options.quick and options.output == RESULTS:
        parser.error("--quick needs -o FILE: its numbers do not belong in the result file")
    for name in options.presets:
        data = load(name, options.shared)
        if options.quick:
            data = data.head(1500, 2000)
        for seed in options.seeds:
            for part in options.parts:
                run = {"preset": name, "part": part, "seed": seed, **provenance()}
                write_run(options.output, "forget_class", run, measure(name, part, seed, data, options.quick))


def measure(name: str, part: str, seed: int, data: Split, quick: bool) -> list[dict[str, Any]]:
    """A row for every class and method of a part."""
    small = {"codebooks": 16, "pairs": 64, "key_epochs": 1, "epochs": 2} if quick else {}
    x, y = data.x_train, data.y_train
    held = np.arange(len(x)) % HELD_OUT == 0
    held_out = (x[held], y[held])
    if part != "all training data":
        x, y = x[~held], y[~held]
    model = KeyValueClassifier.from_preset(name, random_state=seed, **small).fit(x, y)
    before = model.predict(data.x_test)
    say(f"{name}, seed {seed}, {part}: {(before == data.y_test).mean():.2%}")
    rows = []
    for label in drawn(model.classes_, 2 if quick else PRESETS[name]):
        for method in PARTS[part]:
            options = request(method, label, x, y, held_out)
            rows.append(measure_one(model, label, options, data, before) | {"method": method})
            say(f"  class {label}, {method}: {shown(rows[-1])}")
    return rows


def request(method: str, label: int, x: Array, y: Array, held_out: tuple[Array, Array]) -> dict[str, Any]:
    """What `forget` is called with."""
    if method == "log":
        return {}
    chosen: dict[str, Any] = {"held_out": held_out, "retain_budget": 1.0, "random_state": 0}
    return chosen if method == "held out" else {**chosen, "by": "examples", "X": x[y == label]}


def measure_one(
    model: KeyValueClassifier, label: int, options: dict[str, Any], data: Split, before: Array
) -> dict[str, Any]:
    """One request, and what it did to test data."""
    forgetful = copy.copy(model)
    record = forgetful.forget(label, **options)
    after, y = forgetful.predict(data.x_test), data.y_test
    retain = y != label
    classes = [c for c in model.classes_.tolist() if c != label]
    falls = {c: float((before == y)[y == c].mean() - (after == y)[y == c].mean()) for c in classes if (y == c).any()}
    worst = max(falls, key=lambda c: falls[c])
    accuracy = [float((found == y)[retain].mean()) for found in (before, after)]
    return {
        "class": label,
        "examples": int((~retain).sum()),
        "recognised_before": int((before == y)[~retain].sum()),
        "recognised": int((after == y)[~retain].sum()),
        "retain_before": accuracy[0],
        "retain_after": accuracy[1],
        "retain_change": accuracy[1] / accuracy[0] - 1,
        "size": record.size,
        "masked": record.masked,
        "share": record.share,
        "covered": record.covered,
        "displaced": record.budget["displaced"],
        "sure": record.sure,
        "multiply_adds": record.multiply_adds,
        "milliseconds": record.milliseconds,
        "worst_class": worst,
        "worst_fall": falls[worst],
        "classes_that_fell": sum(fall > FELL for fall in falls.values()),
    }


def drawn(classes: Array, count: int) -> list[int]:
    """The classes that are forgotten in turn, the same every time."""
    found: list[int] = np.sort(np.random.default_rng(1).permutation(classes)[:count]).tolist()
    return found


def shown(row: dict[str, Any]) -> str:
    """One line of progress."""
    left = f"{row['recognised']} of {row['examples']} recognised (were {row['recognised_before']})"
    return f"{left}, retain {row['retain_change']:+.2%}, {row['masked']:,} pairs, {row['milliseconds']:.1f} ms"


if __name__ == "__main__":
    main()
