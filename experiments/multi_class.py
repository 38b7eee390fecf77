"""Up to ten classes of CIFAR-100 forgotten, at once and one after another, beside the exact re-fit.

paper     Appendix 'Multi Class Unlearning': retain accuracy against 1 to 10 forgotten classes
command   python -m experiments.multi_class
minutes   about 12 on two cores with AVX-512, for three seeds
expected  retain accuracy falls with every class under masks, and not under the exact re-fit

All from logs, sizes chosen by `pairs="auto"`. Retain accuracy is over the 90 classes that are never forgotten.
"""

import argparse
import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from excise import KeyValueClassifier
from experiments.features import SHARED, Split, load
from experiments.record import ROOT, provenance, say, write_run

RESULTS = ROOT / "experiments" / "results" / "multi_class.json"
PRESET, MOST = "cifar100-resnet50", 10
EXACT_AT = (1, 2, 5, 10)


def main(arguments: list[str] | None = None) -> None:
    """Measure every seed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, help="result file (default %(default)s)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder that holds data/ (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="few examples and a small layout: numbers mean nothing")
    options = parser.parse_args(arguments)
    if options.quick and options.output == RESULTS:
        parser.error("--quick needs -o FILE: its numbers do not belong in the result file")
    data = load(PRESET, options.shared)
    if options.quick:
        data = data.head(2000, 1000)
    for seed in options.seeds:
        run = {"preset": PRESET, "seed": seed, **provenance()}
        write_run(options.output, "multi_class", run, measure(seed, data, options.quick))


def measure(seed: int, data: Split, quick: bool) -> list[dict[str, Any]]:
    """A row for every method and number of classes."""
    small = {"codebooks": 16, "pairs": 64, "key_epochs": 1, "epochs": 2} if quick else {}
    model = KeyValueClassifier.from_preset(PRESET, random_state=seed, **small).fit(data.x_train, data.y_train)
    order = np.random.default_rng(seed).permutation(model.classes_)[:MOST].tolist()
    rows = [measure_one("before", model, order, [], data)]
    in_sequence = copy.copy(model)
    warnings.filterwarnings("ignore", message=".*of the retained classes' activations")
    for count in range(1, MOST + 1):
        some = order[:count]
        in_sequence.forget(order[count - 1])
        at_once = copy.copy(model)
        at_once.forget(some)
        if not np.array_equal(at_once.mask, in_sequence.mask):
            raise RuntimeError(f"forgetting {some} at once and in sequence gave other masks")
        rows.append(measure_one("activations, at once or in sequence", in_sequence, order, some, data))
        if count in (EXACT_AT[:1] if quick else EXACT_AT):
            exact = with_codes(model)
            exact.forget(some, by="exact")
            rows.append(measure_one("exact", exact, order, some, data))
    return rows


def with_codes(model: KeyValueClassifier) -> KeyValueClassifier:
    """A copy that can forget without changing the model, and keeps the training codes."""
    other = copy.copy(model)
    other.__dict__.update(model.__dict__)
    return other


def measure_one(
    method: str, model: KeyValueClassifier, order: list[int], some: list[int], data: Split
) -> dict[str, Any]:
    """Accuracy on the classes that are never forgotten, and on those forgotten by now."""
    right, budget = model.predict(data.x_test) == data.y_test, model.budget()
    gone, never = np.isin(data.y_test, some), ~np.isin(data.y_test, order)
    row = {
        "method": method,
        "classes": len(some),
        "retain_accuracy": float(right[never].mean()),
        "recognised": int(right[gone].sum()),
        "examples": int(gone.sum()),
        "live_share": budget["live_share"],
        "fewest_live": budget["fewest_live"],
        "displaced": budget["displaced"],
        "warned": any(request.warning for request in model.requests_),
    }
    say(f"  {row['method']}, {row['classes']}: retain {row['retain_accuracy']:.2%}, {row['recognised']} recognised")
    return row


if __name__ == "__main__":
    main()
