"""The shell's verbs of forgetting: `excise forget | restore | erase | curve`."""

import argparse
import csv
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from excise.atomic import check_writable, readable_size, written_whole
from excise.cli_parts import (
    FEATURES_HELP,
    Result,
    add_labels,
    add_model,
    add_threads,
    aligned,
    check_name,
    check_names,
    check_output,
    check_width,
    count,
    feature_names,
    labelled,
    load_model,
    new_command,
    seed_or_none,
)
from excise.errors import InputError, ModelFileError
from excise.estimator import KeyValueClassifier
from excise.features.files import read_features
from excise.storage import model_bytes, save
from excise.unlearning import METHODS

CURVE_FORMATS = (".csv", ".json", ".npz")
INPUTS = ("codes", "features", "labels", "held_out", "held_out_labels")  # that no model may be written over
CURVE_ROWS = 16  # that are printed; a file has every size


# -- commands: each takes the arguments and returns what `--json` prints ----------------------------------------------


def run_forget(args: argparse.Namespace) -> Result:
    """Forget classes, or single examples exactly, and write the model."""
    model, out = _opened(args)
    x, y = _request_features(args, model)
    held_out = None
    if args.held_out is not None:
        held_out = labelled(args.held_out, args.held_out_labels, args, feature_names(model), "--held-out-labels")[:2]
        check_width(args, model, held_out[0], args.held_out)
    elif args.held_out_labels is not None:
        raise InputError("--held-out-labels needs --held-out, the features that these labels belong to")
    record = model.forget(
        args.classes,
        x,
        y,
        by=args.by,
        pairs=args.pairs,
        examples=args.examples,
        rows=args.rows,
        held_out=held_out,
        target_accuracy=args.target_accuracy,
        target_loss=args.target_loss,
        retain_budget=args.retain_budget,
        reinitialize_keys=args.new_keys,
        random_state=args.seed,
    )
    save(model, out)
    return {"model": out, "bytes": os.path.getsize(out), **record.to_dict()}


def run_restore(args: argparse.Namespace) -> Result:
    """Undo one request and write the model."""
    model, out = _opened(args)
    record = model.restore(args.id)
    save(model, out)
    left = [request.id for request in model.requests_ if request.in_force]
    return {"model": out, "restored": record.to_dict(), "still_in_force": left, "budget": model.budget()}


def run_erase(args: argparse.Namespace) -> Result:
    """Make all requests final and write the model, and the file of codes without what was forgotten."""
    model, out = _opened(args)
    before = os.path.getsize(args.model)
    if args.codes is not None:
        check_writable(args.codes)
    in_force = any(request.in_force and request.state != "erased" for request in model.requests_)
    only_codes = args.codes is not None and model.erased_ is not None and not in_force and not args.unused
    records = [] if only_codes else model.erase(unused=args.unused)  # codes of before may be brought later
    save(model, out)
    if args.codes is not None:
        model.save_training_codes(args.codes)
    return {
        "model": out,
        "codes": args.codes,
        "erased": [record.to_dict() for record in records],
        "bytes_before": before,
        "bytes": os.path.getsize(out),
        "budget": model.budget(),
    }


def run_curve(args: argparse.Namespace) -> Result:
    """Retain and forget accuracy for every size of a mask, in one pass."""
    check_names(args, (args.features, args.labels))
    model = load_model(args)
    if args.codes is not None:
        model.load_training_codes(args.codes)
    if args.out is not None:
        check_output(args.out, args.features, args.labels, args.model, args.codes, args.forget_set)
        if Path(args.out).suffix.lower() not in CURVE_FORMATS:
            raise InputError(f"cannot write {args.out}: its name must end in one of {', '.join(CURVE_FORMATS)}")
    x, y, _ = labelled(args.features, args.labels, args, feature_names(model))
    check_width(args, model, x)
    forget_set = None
    if args.forget_set is not None:
        forget_set = read_features(args.forget_set, None, args.x_name, columns=feature_names(model)).x
    curve = model.forgetting_curve(x, y, args.classes, by=args.by, forget_set=forget_set, random_state=args.seed)
    if args.out is not None:
        _write_curve(args.out, curve.to_dict())
    shown = curve.to_dict(None if args.json and args.out is None else CURVE_ROWS)
    return {"model": args.model, "out": args.out, "sizes": len(curve.sizes), **shown}


# -- what a person reads ----------------------------------------------------------------------------------------------


def render_forget(result: Result) -> str:
    """The record of a request."""
    what = ", ".join(map(str, result["classes"])) or f"{len(result['rows']):,} rows of the training data"
    rows = [("forgot", f"{what} (request {result['id']}, by {result['by']})")]
    budget, sure = result["budget"], result["sure"]
    if result["by"] != "exact":
        books = result["per_codebook"]
        masked = f"{result['masked']:,} of {budget['pairs']:,} pairs ({result['share']:.1%})"
        rows.append(("masked", f"{masked}, {min(books):,} to {max(books):,} per codebook"))
        if result["overlapping"]:
            rows.append(("", f"and {result['overlapping']:,} that earlier requests mask already"))
        rows.append(("size", f"{result['size']:,}: {result['why']}"))
        if result["tie"]:
            tie = result["tie"]
            times = "once" if tie["activations"] == 1 else f"{tie['activations']:,} times"
            rows.append(("tie at the cut", f"{tie['masked']:,} of {tie['pairs']:,} pairs selected {times}"))
        rows.append(("covered", f"{result['covered']:.1%} of the forget set's activations"))
    else:
        rows.append(("values", f"{result['why']} ({result['examples_read']:,} examples)"))
    if "held_out_examples" in sure:
        seen = f"{sure['recognised']:,} of {sure['held_out_examples']:,} examples still recognised"
        bound = f"accuracy at most {sure['accuracy_at_most']:.2%} with {sure['confidence']:.0%} confidence"
        rows.append(("held out", f"{seen}: {bound}"))
    if "retain_before" in sure:
        change = f"accuracy {sure['retain_before']:.2%} -> {sure['retain_after']:.2%}"
        rows.append(("retained", f"{change} on {sure['retained_examples']:,} examples"))
    read, work = f"{result['examples_read']:,} examples read", f"{result['multiply_adds']:,} multiply-adds"
    rows.append(("cost", f"{read}, {work}, {result['milliseconds']:.1f} ms"))
    rows.append(("budget", budget_line(budget)))
    rows.append(("model", f"{result['model']} ({readable_size(result['bytes'])})"))
    model = result["model"]
    end = f"undo with: excise restore {model} {result['id']}; make it final with: excise erase {model}"
    if result["state"] == "erased":
        end = "this cannot be undone: older copies of the file are all that still knows"
    return "\n".join([*aligned(rows), "", end])


def render_restore(result: Result) -> str:
    """What is forgotten still."""
    left = ", ".join(map(str, result["still_in_force"])) or "none"
    rows = [
        ("restored", f"request {result['restored']['id']}: {', '.join(map(str, result['restored']['classes']))}"),
        ("still in force", left),
        ("budget", budget_line(result["budget"])),
        ("model", result["model"]),
    ]
    return "\n".join(aligned(rows))


def render_erase(result: Result) -> str:
    """What is gone for good."""
    rows = [
        (
            "erased",
            "; ".join(f"request {r['id']}: {', '.join(map(str, r['classes'])) or 'rows'}" for r in result["erased"]),
        ),
        ("model", f"{result['model']} ({readable_size(result['bytes_before'])} -> {readable_size(result['bytes'])})"),
    ]
    if result["codes"]:
        rows.append(("codes", f"{result['codes']}, without the rows that were forgotten"))
    rows.append(("budget", budget_line(result["budget"])))
    return "\n".join(
        [*aligned(rows), "", "older copies and backups of the file still hold what was erased: delete them"]
    )


def render_curve(result: Result) -> str:
    """Some of the sizes, one a line."""
    unit = "pairs" if result["by"] == "activations" else "examples"
    lines = [f"{unit:>10}{'masked':>12}{'retain':>9}{'forget':>9}{'retain loss':>13}{'forget loss':>13}"]
    columns = ("size", "masked", "retain_accuracy", "forget_accuracy", "retain_loss", "forget_loss")
    for size, masked, *numbers in zip(*(result["points"][name] for name in columns), strict=True):
        retain, forget, retain_loss, forget_loss = numbers
        shares = "".join(f"{'-' if x is None else f'{x:.2%}':>9}" for x in (retain, forget))
        losses = "".join(f"{'-' if x is None else f'{x:.4f}':>13}" for x in (retain_loss, forget_loss))
        lines.append(f"{size:>10,}{masked:>12,}{shares}{losses}")
    where = f"; all of them are in {result['out']}" if result["out"] else "; -o FILE writes all of them"
    shown = len(result["points"]["size"])
    lines += ["", f"{shown} of {result['sizes']:,} sizes, of {result['retain_examples']:,} retained and "
              f"{result['forget_examples']:,} forgotten examples{where}"]  # fmt: skip
    return "\n".join(lines)


def budget_line(budget: dict[str, Any]) -> str:
    """What is left to forget with, on one line."""
    line = (
        f"{budget['live']:,} live pairs ({budget['live_share']:.1%}), at least {budget['fewest_live']:,} per codebook"
    )
    if budget["displaced"] is not None:
        line += f"; {budget['displaced']:.1%} of retained activations moved"
    return line


# -- the parsers ------------------------------------------------------------------------------------------------------


def add_forget(commands: Any) -> None:
    """`excise forget`."""
    command = new_command(
        commands,
        "forget",
        run_forget,
        render_forget,
        "make a model forget one or several classes",
        "excise forget model.safetensors --class cat\n"
        "  excise forget model.safetensors --class cat --class dog --pairs 150000 -o forgetful.safetensors\n"
        "  excise forget model.safetensors --class cat --features train.npz --by examples\n"
        "  excise forget model.safetensors --class cat --by exact --codes codes.safetensors",
    )
    add_model(command)
    _add_classes(command, required=False)
    command.add_argument(
        "--by", choices=METHODS, default="activations",
        help="mask the pairs that the class activates most, or all pairs that some examples select, or train the "
        "values again without it (default: activations)",
    )  # fmt: skip
    command.add_argument(
        "--pairs", type=_auto_or_count, default="auto", metavar="N",
        help="pairs to mask, for --by activations (default: auto)",
    )  # fmt: skip
    command.add_argument(
        "--examples", type=_auto_or_count, metavar="N", help="examples to draw, for --by examples (default: auto)"
    )
    command.add_argument(
        "--rows", type=_rows, metavar="I,J,...", help="rows of the training data to forget, for --by exact"
    )
    reading = command.add_argument_group("reading examples (else the log of activations in the model is used)")
    reading.add_argument("--features", metavar="FEATURES", help=FEATURES_HELP + "; for --by exact the training data")
    add_labels(reading)
    reading.add_argument("--codes", metavar="FILE", help="training codes, as `excise train --codes-out` writes them")
    goal = command.add_argument_group("where auto stops")
    goal.add_argument(
        "--held-out",
        metavar="FEATURES",
        help="labelled examples that the model was not trained on, and no test data: they choose the size",
    )
    goal.add_argument("--held-out-labels", metavar="FILE", help="labels of --held-out, where it has none")
    goal.add_argument(
        "--target-accuracy", type=float, default=0.0, metavar="X",
        help="share of the held-out examples that may still be recognised (default: 0)",
    )  # fmt: skip
    goal.add_argument("--target-loss", type=float, metavar="X", help="mean loss of held-out examples to reach instead")
    goal.add_argument(
        "--retain-budget", type=float, default=0.01, metavar="X",
        help="largest relative drop of accuracy on held-out rows of other classes (default: 0.01)",
    )  # fmt: skip
    command.add_argument("--new-keys", action="store_true", help="for --by exact: draw the keys anew, too; final")
    command.add_argument("--seed", type=seed_or_none, metavar="N", help="seed of what is drawn (default: none)")
    _add_out(command)
    add_threads(command)


def add_restore(commands: Any) -> None:
    """`excise restore`."""
    command = new_command(
        commands,
        "restore",
        run_restore,
        render_restore,
        "undo a request to forget",
        "excise restore model.safetensors 1",
    )
    add_model(command)
    command.add_argument("id", type=count, metavar="REQUEST", help="its number, which `excise info` shows")
    command.add_argument("--codes", metavar="FILE", help="training codes, needed where exact requests came after it")
    _add_out(command)
    add_threads(command)


def add_erase(commands: Any) -> None:
    """`excise erase`."""
    command = new_command(
        commands,
        "erase",
        run_erase,
        render_erase,
        "make all requests in force final: what they mask is removed from the file",
        "excise erase model.safetensors",
    )
    add_model(command)
    command.add_argument("--codes", metavar="FILE", help="training codes to rewrite without what was forgotten")
    command.add_argument(
        "--unused",
        action="store_true",
        help="erase live pairs too that no retained training example selects: their keys may be copies of examples",
    )
    _add_out(command)
    add_threads(command)


def add_curve(commands: Any) -> None:
    """`excise curve`."""
    command = new_command(
        commands,
        "curve",
        run_curve,
        render_curve,
        "retain and forget accuracy for every size of a mask, in one pass",
        "excise curve model.safetensors test.npz --class cat -o curve.csv",
    )
    add_model(command)
    command.add_argument("features", metavar="FEATURES", help=FEATURES_HELP)
    add_labels(command)
    _add_classes(command)
    command.add_argument(
        "--by", choices=METHODS[:2], default="activations", help="what a size counts (default: activations)"
    )
    command.add_argument("--forget-set", metavar="FEATURES", help="examples to rank pairs by, instead of the log")
    command.add_argument("--codes", metavar="FILE", help="training codes to rank pairs by, instead of the log")
    command.add_argument("-o", "--out", metavar="FILE", help="file for every size, .csv, .json or .npz")
    command.add_argument("--seed", type=seed_or_none, metavar="N", help="seed of the examples' order (default: none)")
    add_threads(command)


def _add_classes(command: argparse.ArgumentParser, required: bool = True) -> None:
    command.add_argument(
        "--class",
        dest="classes",
        action="append",
        required=required,
        metavar="NAME",
        help="class to forget; repeatable",
    )


def _add_out(command: argparse.ArgumentParser) -> None:
    command.add_argument("-o", "--out", metavar="FILE", help="model file to write (default: MODEL itself)")


def _auto_or_count(text: str) -> Any:
    return text if text == "auto" else count(text)


def _rows(text: str) -> list[int]:
    if not re.fullmatch("[0-9]{1,12}(,[0-9]{1,12})*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of rows: use numbers from 0, with commas, as 3,17")
    return [int(row) for row in text.split(",")]


# -- parts ------------------------------------------------------------------------------------------------------------


def _opened(args: argparse.Namespace) -> tuple[KeyValueClassifier, str]:
    """The model, with its codes if they were named, and where it will be written; refused where that cannot be."""
    out = args.model if args.out is None else args.out
    if args.out is not None:
        check_output(out, *(vars(args).get(name) for name in INPUTS))
    model = load_model(args)
    check_writable(out, model_bytes(model.bottleneck_.axes), ModelFileError)
    if args.codes is not None:
        model.load_training_codes(args.codes)
    return model.set_params(verbose=0 if args.quiet else 1), out


def _request_features(args: argparse.Namespace, model: KeyValueClassifier) -> tuple[Any, Any]:
    """Features and labels that a request reads, if any; of a file without labels all rows are of the class."""
    if args.features is None:
        for flag, value in (("--labels", args.labels), ("--x-name", args.x_name), ("--y-name", args.y_name)):
            if value is not None:
                raise InputError(f"{flag} needs --features, the file that it is about")
        return None, None
    check_name("--x-name", args.x_name, args.features)
    x, y, _ = read_features(args.features, args.labels, args.x_name, args.y_name, feature_names(model))
    check_width(args, model, x)
    return x, y


def _write_curve(path: str, curve: dict[str, Any]) -> None:
    kind = Path(path).suffix.lower()
    points = curve["points"]
    with written_whole(path) as file:
        if kind == ".json":
            file.write((json.dumps(curve) + "\n").encode())
        elif kind == ".npz":
            columns: dict[str, Any] = {name: np.asarray(column) for name, column in points.items()}
            np.savez(file, **columns)
        else:
            text = io.TextIOWrapper(file, encoding="utf-8", newline="")
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(points)
            writer.writerows(zip(*points.values(), strict=True))
            text.flush()
            text.detach()
