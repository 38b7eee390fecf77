"""The shell's door: `excise demo | train | evaluate | predict | info`, and the verbs of forgetting and reporting."""

import argparse
import inspect
import io
import json
import math
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from excise import __version__, demo
from excise.atomic import check_writable, readable_size
from excise.bottleneck import kernels
from excise.bottleneck.model import DECODERS
from excise.cli_forgetting import add_curve, add_erase, add_forget, add_restore, budget_line
from excise.cli_parts import (
    FEATURES_HELP,
    OneLineParser,
    Result,
    add_labels,
    add_model,
    add_threads,
    aligned,
    check_name,
    check_names,
    check_output,
    check_width,
    feature_names,
    first_ten,
    labelled,
    load_model,
    new_command,
    new_parser,
    number_or_none,
    one_line,
    seed_or_none,
)
from excise.cli_report import add_report
from excise.errors import ExciseError, InputError, ModelFileError
from excise.estimator import SOLVERS, VALUE_INITS, KeyValueClassifier, check_parameters
from excise.evaluation import evaluate, label_indices, training_accuracy
from excise.features.arrays import Array, check_finite
from excise.features.files import read_features
from excise.predictions import FORMATS, predict, write_csv, write_predictions
from excise.presets import PRESETS, preset
from excise.progress import duration, say, timed_stages
from excise.report_page import check_report_path, write_report
from excise.storage import OF_THE_MACHINE, load, model_bytes, save, versions_of

# What `excise train --help` says about each parameter of KeyValueClassifier, by group.
PARAMETER_HELP = {
    "layout of the model": {
        "codebooks": "independent tables of pairs that vote on each example",
        "pairs": "key-value pairs per codebook, at most 65,535",
        "key_dim": "size of a key, 1 to 64; features are projected to it",
        "top_k": "nearest pairs that answer per codebook, 1 to 32",
        "decoder": "how the answers of one codebook are combined",
    },
    "training": {
        "key_epochs": "passes over the features that place the keys; no labels are used",
        "value_init": "values before training",
        "solver": "optimiser of the values",
        "epochs": "passes over the examples that train the values",
        "learning_rate": "step size of the optimiser",
        "batch_size": "examples per step; at most as many as there are",
        "label_smoothing": "share of every target that is spread over all classes",
        "gradient_clip": "bound on the gradient's L2 norm, or none",
        "l2": "weight of the penalty l2/2 * |values|^2; slower when set",
        "gate_unused": "forbid pairs that no training example selected",
        "keep_activations": "store with the model which pairs each class selects (personal data)",
        "random_state": "seed; the same number gives the same model, byte for byte",
    },
    "running": {
        "n_jobs": "threads; none for all cores this process may use",
        "verbose": "0 hides progress, 1 shows it on standard error",
        "working_memory": "MiB that training may take beyond features and model",
    },
}
ALIASES = {"random_state": ["--seed"], "n_jobs": ["--threads"]}
CHOICES = {"value_init": VALUE_INITS, "decoder": DECODERS, "solver": SOLVERS}
DEMO_ROWS = {
    "before": "before",
    "after masking": "after",
    "control: the logit set to -inf": "knock_out",
    "control: a random mask as large": "random_mask",
    "exact re-fit without the digit": "oracle",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code, one of those that `excise --help` lists."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error has it: no label stops the output
    try:
        args = build_parser().parse_args(argv)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            # Here arrays are nameless once they are read: whatever names a file has were matched by `read_features`.
            warnings.filterwarnings("ignore", "X does not have valid feature names")
            result: Result = args.run(args)
        _print(json.dumps(_plain(result), allow_nan=False) if args.json else args.render(result))
        return 0
    except KeyboardInterrupt:
        return _fail("interrupted; no file was left half-written", 130)
    except BrokenPipeError:  # whoever read the output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except ExciseError as error:
        return _fail(f"error: {error}")
    except MemoryError as error:
        detail = f" ({error})" if str(error) else ""
        return _fail(f"error: out of memory{detail}; use fewer codebooks or pairs, or a smaller --working-memory")
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        return _fail(
            f"error: {name}{error.strerror or error}; check the path, its permissions and the room on the disk"
        )


# -- commands: each takes the arguments and returns what `--json` prints ----------------------------------------------


def run_demo(args: argparse.Namespace) -> Result:
    """Train on scikit-learn's digits, forget one, compare, and write the report."""
    if args.report is not None:
        check_report_path(args.report)
        check_writable(args.report)
    result = asdict(demo.run(args.forget, args.seed, args.threads, 0 if args.quiet else 1))
    if args.report is not None:
        write_report(result["report"], args.report)
    return {**result, "report_file": args.report}


def run_train(args: argparse.Namespace) -> Result:
    """Train a model on a file of features and write it."""
    model = KeyValueClassifier(**_parameters(args))
    check_parameters(model.get_params(deep=False))
    inputs = (args.features, args.labels, args.validation, args.validation_labels)
    check_output(args.out, *inputs)
    if args.codes_out is not None:
        check_output(args.codes_out, *inputs)
        if Path(args.codes_out).resolve() == Path(args.out).resolve():
            raise InputError(f"{args.out} cannot be both the model and its codes: choose another name for --codes-out")
    check_names(args, (args.features, args.labels), (args.validation, args.validation_labels))
    x, y, names = labelled(args.features, args.labels, args)
    _check_batch(args.features, len(x), model.batch_size)
    validation = _validation(args, model, x, y, names)
    check_writable(args.out, model_bytes(_axes(model, x, y)), ModelFileError)
    with timed_stages() as seconds:
        model.fit(x, y)
    if names is not None:
        model.feature_names_in_ = np.array(names, dtype=object)  # as `fit` does for a data frame
    save(model, args.out)
    if args.codes_out is not None:
        model.save_training_codes(args.codes_out)
    return {
        "model": args.out,
        "bytes": os.path.getsize(args.out),
        "codes": args.codes_out,
        "examples": len(x),
        "classes": len(model.classes_),
        "axes": model.bottleneck_.axes,
        "seconds": seconds,
        "loss": model.history_[-1] if model.history_ else None,
        "training_accuracy": training_accuracy(model),
        "validation_accuracy": evaluate(model, *validation, model.verbose).accuracy if validation else None,
        "parameters": model.get_params(deep=False),
        "kernels": kernels.BACKEND,
    }


def run_evaluate(args: argparse.Namespace) -> Result:
    """Measure a model on labelled features."""
    check_names(args, (args.features, args.labels))
    model = load_model(args)
    x, y, _ = labelled(args.features, args.labels, args, feature_names(model))
    check_width(args, model, x)
    found = evaluate(model, x, y, 0 if args.quiet else 1)
    classes = [{"class": name, "accuracy": accuracy} for name, accuracy in found.per_class.items()]
    return {"model": args.model, **asdict(found), "per_class": classes}


def run_predict(args: argparse.Namespace) -> Result:
    """Predict the label of every row."""
    check_name("--x-name", args.x_name, args.features)
    model = load_model(args)
    if args.out is not None:
        check_output(args.out, args.features, args.model)
        if Path(args.out).suffix.lower() not in FORMATS:
            raise InputError(f"cannot write {args.out}: its name must end in one of {', '.join(FORMATS)}")
    x = read_features(args.features, None, args.x_name, columns=feature_names(model)).x
    check_width(args, model, x)
    labels, probabilities = predict(model, x, args.proba, 0 if args.quiet else 1)
    if args.out is not None:
        write_predictions(args.out, model.classes_, labels, probabilities)
    result: Result = {"model": args.model, "examples": len(x), "classes": model.classes_.tolist(), "out": args.out}
    if args.out is None:
        result["labels"] = labels.tolist()
        result["probabilities"] = None if probabilities is None else probabilities.tolist()
    return result


def run_info(args: argparse.Namespace) -> Result:
    """Describe a model file."""
    model = load(args.model, verify=not args.no_verify)
    parameters = model.get_params(deep=False)
    mask = model.bottleneck_.mask
    masked, pairs = (0, 1) if mask is None else (int(mask.sum()), mask.size)
    return {
        "model": args.model,
        "bytes": os.path.getsize(args.model),
        "digests": "not checked" if args.no_verify else "match",
        "axes": model.bottleneck_.axes,
        "classes": model.classes_.tolist(),
        "feature_names": feature_names(model),
        "masked": {"pairs": masked, "share": masked / pairs},
        "requests": [request.to_dict(timed=False) for request in model.requests_],
        "budget": model.budget(),
        "activations_logged": model.activations_ is not None,
        "epochs_trained": len(model.history_),
        "loss": model.history_[-1] if model.history_ else None,
        "parameters": {name: value for name, value in parameters.items() if name not in OF_THE_MACHINE},
        "versions": versions_of(args.model),
    }


# -- what a person reads ----------------------------------------------------------------------------------------------


def render_demo(result: Result) -> str:
    """The table of the demo."""
    digit, examples, report = result["forgotten"], result["examples"], result["report"]
    lines = [f"{sum(examples.values()):,} handwritten digits; every {digit} is to be forgotten.", ""]
    lines.append(f"{'test accuracy':<36}{'retain':>8}{'forget':>8}")
    for name, key in DEMO_ROWS.items():
        row = report["accuracy"][key]
        lines.append(f"{name:<36}{row['retain']['accuracy']:>8.1%}{row['forget']['accuracy']:>8.1%}")
    masked, pairs = report["summary"]["pairs_masked"], report["summary"]["pairs"]
    rows = [
        ("pairs masked", f"{masked:,} of {pairs:,} ({masked / pairs:.1%}), chosen and ranked from the log of training"),
        ("time to forget", f"{result['forgetting_milliseconds']:.2f} ms, no data read"),
        ("time to train", f"{duration(result['training_seconds'])} on {examples['train']:,} examples"),
    ]
    if result["report_file"] is not None:
        rows.append(("report", result["report_file"]))
    return "\n".join(
        [
            *lines,
            "",
            *aligned(rows),
            "",
            f"The {examples['test']} test examples had no part in training or in choosing the mask.",
            "The control costs nothing and leaves the model untouched: 0% alone proves little.",
            "A mask hides what was learned; it does not erase it from the file.",
            "",
            "Your own embeddings: excise train --help. The rest: README.md and docs/.",
        ]
    )


def render_train(result: Result) -> str:
    """A table of what was trained."""
    seconds = dict(result["seconds"])
    total = seconds.pop("total")
    stages = [f"{name} {duration(spent)}" for name, spent in seconds.items()]
    stages.append(f"rest {duration(max(0.0, total - sum(seconds.values())))}")
    rows = [
        ("examples", f"{result['examples']:,}"),
        ("classes", f"{result['classes']:,}"),
        ("time", f"{duration(total)} ({', '.join(stages)})"),
        ("training accuracy", f"{result['training_accuracy']:.2%}"),
    ]
    if result["validation_accuracy"] is not None:
        rows.append(("validation accuracy", f"{result['validation_accuracy']:.2%}"))
    rows.append(("model", f"{result['model']} ({readable_size(result['bytes'])})"))
    if result["codes"] is not None:
        rows.append(("training codes", f"{result['codes']} (personal data)"))
    return "\n".join(aligned(rows))


def render_evaluate(result: Result) -> str:
    """Accuracy as a whole, then by class."""
    rows = [
        ("examples", f"{result['examples']:,}"),
        ("accuracy", f"{result['accuracy']:.2%}"),
        ("loss", f"{result['loss']:.4f}"),
    ]
    for row in result["per_class"]:
        rows.append((f"class {row['class']}", "no examples" if row["accuracy"] is None else f"{row['accuracy']:.2%}"))
    return "\n".join(aligned(rows))


def render_predict(result: Result) -> str:
    """One prediction a line, or where they were written."""
    if result["out"] is not None:
        return f"{result['examples']:,} predictions written to {result['out']}"
    if result["probabilities"] is None:
        return "\n".join(map(str, result["labels"]))
    text = io.StringIO()
    write_csv(text, result["classes"], result["labels"], result["probabilities"], "{:.6g}".format)
    return text.getvalue().removesuffix("\n")


def render_info(result: Result) -> str:
    """A table of what is in a model file."""
    masked, names = result["masked"], result["feature_names"]
    rows = [("model", f"{result['model']} ({readable_size(result['bytes'])}, digests {result['digests']})")]
    rows += [(name, f"{size:,}") for name, size in result["axes"].items()]
    rows += [
        ("labels", first_ten(result["classes"])),
        ("masked", f"{masked['pairs']:,} pairs ({masked['share']:.1%})"),
        ("left to forget with", budget_line(result["budget"])),
        ("log of activations", "kept (personal data)" if result["activations_logged"] else "none"),
        ("trained", f"{result['epochs_trained']} epochs"),
    ]
    for request in result["requests"]:
        what = ", ".join(map(str, request["classes"])) or "rows of the training data"
        done = f"{request['state']}, by {request['by']}"
        rows.append((f"request {request['id']}", f"{what} ({done}, {request['masked']:,} pairs)"))
    if names is not None:
        rows.append(("feature names", first_ten(names)))
    rows += [(name, str(value)) for name, value in result["parameters"].items() if name not in result["axes"]]
    rows += [(name, f"version {version}") for name, version in result["versions"].items()]
    return "\n".join(aligned(rows))


# -- the parser -------------------------------------------------------------------------------------------------------


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command `excise`, its help included."""
    parser = new_parser(
        OneLineParser,
        prog="excise",
        description="Train a classifier on the features of a frozen backbone that can later forget a class.",
        epilog="""Start here:
  excise demo                                         a tour on handwritten digits, in seconds
  excise train features.npy --labels labels.npy -o model.safetensors
  excise evaluate model.safetensors test.npz
  excise predict model.safetensors new.npy -o labels.csv
  excise forget model.safetensors --class cat         undo: excise restore; final: excise erase
  excise report model.safetensors test.npz -o report.html

Results go to standard output, progress and errors to standard error.
Exit codes: 0 done, 2 something to correct (one line says what), 130 interrupted,
141 nobody reads the output (a broken pipe).""",
    )
    version = f"excise {__version__} (kernels: {kernels.BACKEND})"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    forgetting = (add_forget, add_restore, add_erase, add_curve, add_report)
    for add in (_add_demo, _add_train, _add_evaluate, _add_predict, _add_info, *forgetting):
        add(commands)
    return parser


def _add_demo(commands: Any) -> None:
    command = new_command(
        commands,
        "demo",
        run_demo,
        render_demo,
        "train on handwritten digits, forget one, show what is left",
        "excise demo --forget 3",
    )
    command.add_argument("--forget", type=int, default=8, metavar="DIGIT", help="the digit to forget (default: 8)")
    command.add_argument("--seed", type=seed_or_none, default=0, help="seed of the split and of the model (default: 0)")
    command.add_argument(
        "--report",
        type=lambda path: None if path.lower() == "none" else path,
        default="excise-demo-report.html",
        metavar="PATH",
        help="where the whole report goes: .html, .md or .json, or none (default: %(default)s)",
    )
    add_threads(command)


def _add_train(commands: Any) -> None:
    command = new_command(
        commands,
        "train",
        run_train,
        render_train,
        "train a model on features and labels",
        "excise train features.npy --labels labels.npy -o model.safetensors\n"
        "  excise train train.npz -o model.safetensors --preset cifar10-resnet50 --epochs 20 --seed 0",
    )
    command.add_argument("features", metavar="FEATURES", help=FEATURES_HELP)
    command.add_argument("-o", "--out", required=True, metavar="MODEL", help="file to write, as model.safetensors")
    add_labels(command)
    command.add_argument(
        "--codes-out",
        metavar="FILE",
        help="file for the codes of the training data (personal data): exact forgetting reads it",
    )
    command.add_argument("--validation", metavar="FEATURES", help="labelled features to measure the model on")
    command.add_argument("--validation-labels", metavar="FILE", help="labels of --validation, where it has none")
    command.add_argument(
        "--preset",
        metavar="NAME",
        help=f"the paper's parameters for a data set and a backbone; flags given beside it win: {', '.join(PRESETS)}",
    )
    signature = inspect.signature(KeyValueClassifier.__init__).parameters
    for title, flags in PARAMETER_HELP.items():
        group = command.add_argument_group(title)
        for name, text in flags.items():
            _add_parameter(group, name, signature[name], text)


def _add_parameter(group: Any, name: str, parameter: inspect.Parameter, text: str) -> None:
    """A flag for one parameter of the classifier; left out of the arguments unless it is given."""
    flags = [f"--{name.replace('_', '-')}", *ALIASES.get(name, [])]
    default = 1 if name == "verbose" else parameter.default
    text = f"{text} (default: {str(default).lower() if default is None else default})"
    options: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS}
    if parameter.annotation is bool:
        text = text.replace("False", "no").replace("True", "yes")
        group.add_argument(*flags, action=argparse.BooleanOptionalAction, help=text, **options)
    elif name in CHOICES:
        group.add_argument(*flags, choices=CHOICES[name], help=text, **options)
    else:
        metavar = "X" if "float" in str(parameter.annotation) else "N"
        kind = seed_or_none if name == "random_state" else number_or_none(parameter.annotation)
        group.add_argument(*flags, type=kind, metavar=metavar, help=text, **options)


def _add_evaluate(commands: Any) -> None:
    command = new_command(
        commands,
        "evaluate",
        run_evaluate,
        render_evaluate,
        "accuracy and loss of a model, as a whole and by class",
        "excise evaluate model.safetensors test.npy --labels test-labels.txt",
    )
    add_model(command)
    command.add_argument("features", metavar="FEATURES", help=FEATURES_HELP)
    add_labels(command)
    add_threads(command)


def _add_predict(commands: Any) -> None:
    command = new_command(
        commands,
        "predict",
        run_predict,
        render_predict,
        "labels or probabilities for new features",
        "excise predict model.safetensors new.npy\n"
        "  excise predict model.safetensors new.npy --proba -o probabilities.csv",
    )
    add_model(command)
    command.add_argument("features", metavar="FEATURES", help=FEATURES_HELP)
    command.add_argument("--x-name", metavar="NAME", help="name of the features within the file")
    command.add_argument("-o", "--out", metavar="FILE", help="file to write, .npy, .csv or .npz (default: print them)")
    command.add_argument(
        "--proba",
        action="store_true",
        help="probabilities of all classes beside the label; a .npy file takes them alone",
    )
    add_threads(command)


def _add_info(commands: Any) -> None:
    command = new_command(
        commands,
        "info",
        run_info,
        render_info,
        "what is in a model file",
        "excise info model.safetensors\n  excise info model.safetensors --json | jq .masked",
    )
    add_model(command)


# -- parts ------------------------------------------------------------------------------------------------------------


def _parameters(args: argparse.Namespace) -> dict[str, Any]:
    """The preset's parameters, then the flags that were given."""
    given = {name: value for name, value in vars(args).items() if name in KeyValueClassifier().get_params(deep=False)}
    start = preset(args.preset) if args.preset is not None else {}
    return {"verbose": 0 if args.quiet else 1, **start, **given}


def _validation(
    args: argparse.Namespace, model: KeyValueClassifier, x: Array, y: Array, names: list[str] | None
) -> tuple[Array, Array] | None:
    """The validation data, refused before training where the model could not be measured on it."""
    if args.validation is None:
        if args.validation_labels is not None:
            raise InputError("--validation-labels needs --validation, the features that these labels belong to")
        return None
    x_held, y_held, _ = labelled(args.validation, args.validation_labels, args, names, "--validation-labels")
    if x_held.shape[1] != x.shape[1]:
        raise InputError(
            f"{args.validation} has features of size {x_held.shape[1]} and {args.features} of {x.shape[1]}"
        )
    label_indices(np.unique(y), y_held)
    _check_finite(args.validation, x_held, model.working_memory)
    return x_held, y_held


def _axes(model: KeyValueClassifier, x: Array, y: Array) -> dict[str, int]:
    return {**model.get_params(deep=False), "features": x.shape[1], "classes": len(np.unique(y)), "examples": len(x)}


def _check_batch(path: str, examples: int, batch_size: int) -> None:
    if examples < batch_size:
        raise InputError(
            f"{path} has {examples:,} examples, fewer than a batch of {batch_size:,}: "
            f"set --batch-size to at most {examples}"
        )


def _check_finite(path: str, x: Array, working_memory: float) -> None:
    try:
        check_finite(x, working_memory)
    except InputError as error:
        raise InputError(f"{path} cannot be used: {error}") from error


def _plain(value: Any) -> Any:
    """The value in JSON's own types; a loss that is not finite becomes null."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    say(f"excise: warning: {one_line(message)}")


def _print(text: str) -> None:
    if sys.stdout is not None:  # closed by someone who wants no output
        print(text, flush=True)  # now, while a reader that has gone or a full disk can still be told


def _fail(message: str, code: int = 2) -> int:
    say(f"excise: {one_line(message)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
