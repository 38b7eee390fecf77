"""Base models on real ResNet-50 features, end to end: the paper's 'original model' rows for CIFAR-10 and CIFAR-100.

paper     Table tab:init_perf, backbone + DKVB, ResNet-50: test accuracy 82.94% (CIFAR-10), 62.11% (CIFAR-100)
command   python -m experiments.base_models
minutes   about 10 on two cores with AVX-512, for five seeds of both
expected  CIFAR-10 about 80%, CIFAR-100 about 58% (other weights of the same network than the paper's)

Seeds that were already measured with the same parameters, by the same committed code on such a machine, are kept: a run
that was stopped goes on where it was.
"""

import argparse
from pathlib import Path
from typing import Any

from excise import KeyValueClassifier
from excise.forgetting.masks import unused_pairs
from excise.progress import timed_stages
from experiments.features import SHARED, Split, load
from experiments.record import ROOT, provenance, read_json, say, write_json

RESULTS = ROOT / "experiments" / "results" / "base_models.json"
PAPER = {"cifar10-resnet50": 82.94, "cifar100-resnet50": 62.11}
QUICK = {"codebooks": 16, "pairs": 128, "key_epochs": 1, "epochs": 2}  # accuracy means nothing then


def main(arguments: list[str] | None = None) -> None:
    """Train every preset with every seed that is not in the result file yet."""
    options = parse(arguments)
    overrides = QUICK if options.quick else {}
    for name in options.presets:
        data = load(name, options.shared)
        if options.quick:
            data = data.head(600, 300)
        for seed in options.seeds:
            parameters = KeyValueClassifier.from_preset(name, **overrides).get_params()
            run_once(options.output, name, seed, {**parameters, "random_state": seed, "verbose": 1}, data)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, help="result file (default %(default)s)")
    parser.add_argument("--presets", nargs="+", choices=list(PAPER), default=list(PAPER), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4], metavar="SEED")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder that holds data/ (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="few examples and a small layout: seconds, not minutes")
    options = parser.parse_args(arguments)
    if options.quick and options.output == RESULTS:
        parser.error("--quick needs -o FILE: its numbers do not belong in the result file")
    return options


def run_once(path: Path, name: str, seed: int, parameters: dict[str, Any], data: Split) -> None:
    """Measure one seed of one preset and add its row to the file, unless it is there."""
    result = read_json(path)
    rows = [row for row in result.get("rows", []) if (row["preset"], row["seed"]) != (name, seed)]
    known = [row for row in result.get("rows", []) if row not in rows]
    origin = provenance()
    asked = {"parameters": parameters, "examples": len(data.x_train), **origin}
    is_known_code = not origin["commit"].endswith("+") and origin["commit"] != "unknown"
    if known and is_known_code and asked.items() <= known[0].items():
        say(f"{name}, seed {seed}: kept, {known[0]['accuracy']:.2%}")
        return
    row = {"preset": name, "seed": seed, **measure(parameters, data), **origin, "parameters": parameters}
    say(f"{name}, seed {seed}: {row['accuracy']:.2%} in {row['seconds']['fit']:.1f} s")
    rows = sorted([*rows, row], key=lambda row: (list(PAPER).index(row["preset"]), row["seed"]))
    write_json(path, {"experiment": "base_models", "paper": PAPER, "rows": rows})


def measure(parameters: dict[str, Any], data: Split) -> dict[str, Any]:
    """Accuracy with and without the gate on pairs that no training example selected, and seconds by stage."""
    model = KeyValueClassifier(**parameters)
    with timed_stages() as stages:
        model.fit(data.x_train, data.y_train)
    seconds = {"keys": stages["keys"], "values": stages["values"], "fit": stages["total"]}
    seconds["codes and the rest"] = seconds["fit"] - seconds["keys"] - seconds["values"]
    unused = unused_pairs(model.training_codes_, model.pairs)
    return {
        "accuracy": float(model.score(data.x_test, data.y_test)),
        "accuracy_gate_unused": float(model.with_mask(unused).score(data.x_test, data.y_test)),
        "unused_pairs": float(unused.mean()),
        "training_loss": model.history_[-1],
        "epochs": model.epochs,
        "examples": len(data.x_train),
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
    }


if __name__ == "__main__":
    main()
