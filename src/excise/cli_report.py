"""The shell's verb of measuring what was forgotten: `excise report`."""

import argparse
from typing import Any

from excise.cli_parts import (
    FEATURES_HELP,
    Result,
    add_labels,
    add_model,
    add_threads,
    aligned,
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
from excise.errors import InputError
from excise.estimator import KeyValueClassifier
from excise.features.arrays import Array
from excise.features.files import read_features
from excise.report import make_report
from excise.report_page import check_report_path, write_report
from excise.storage import load


def run_report(args: argparse.Namespace) -> Result:
    """Measure what the requests in force did, and write the report where it was asked for."""
    inputs = (args.features, args.labels, args.before, args.codes, args.train, args.train_labels, args.forget_set)
    if args.out is not None:
        check_report_path(args.out)
        check_output(args.out, args.model, *inputs)
    if args.train is None and args.train_labels is not None:
        raise InputError("--train-labels needs --train, the features that these labels belong to")
    check_names(args, (args.features, args.labels), (args.train, args.train_labels), (args.forget_set, None))
    model = load_model(args).set_params(verbose=0 if args.quiet else 1)
    before = None if args.before is None else load(args.before, verify=not args.no_verify)
    if args.codes is not None:
        model.load_training_codes(args.codes)
    x, y = _labelled(args, model, args.features, args.labels, "--labels")
    train = forget_set = None
    if args.train is not None:
        train = _labelled(args, model, args.train, args.train_labels, "--train-labels")
    if args.forget_set is not None:
        forget_set = read_features(args.forget_set, None, args.x_name, columns=feature_names(model)).x
        check_width(args, model, forget_set, args.forget_set)
    report = make_report(
        model,
        x,
        y,
        before,
        train=train,
        forget_set=forget_set,
        backbone_macs=args.backbone_macs,
        random_state=args.seed,
        verbose=model.verbose,
    )
    if args.out is not None:
        write_report(report, args.out)
    return report if args.json else {**report, "out": args.out}  # JSON is the report alone, as in a file of it


def render_report(result: Result) -> str:
    """Every model that was compared, and the numbers that go with them."""
    done, summary, cost = result["asked_and_done"], result["summary"], result["cost"]
    examples = done["test_examples"]
    lines = [f"{'test accuracy':<36}{'retain':>8}{'forget':>8}"]
    for row in filter(None, result["accuracy"].values()):
        seen = (row["retain"], row["forget"])
        lines.append(
            f"{row['name']:<36}" + "".join(f"{'' if s is None else format(s['accuracy'], '.1%'):>8}" for s in seen)
        )
    rows = [
        ("forgotten", ", ".join(map(str, done["forgotten"])) or "single training examples"),
        ("test examples", f"{examples['retain']:,} retained, {examples['forget']:,} forgotten"),
        ("masked", _masked(done["totals"])),
    ]
    if summary["distance"] is not None:
        rows.append(("from an exact re-fit", _distances(summary)))
    for row in cost["rows"]:
        known = [cell for cell in row["cells"] if cell["multiply_adds"] is not None]
        if known:
            rows.append((row["name"], f"{known[-1]['multiply_adds']:,} multiply-adds, {cost['columns'][-1]}"))
    rows.append(("what was forgotten is", result["remaining"]["state"]))
    rows += [("warning", warning) for warning in result["warnings"]]
    missing: dict[str, list[str]] = {}
    for part in result["skipped"]:
        missing.setdefault(part["why"], []).append(part["what"])
    rows += [("not measured", f"{', '.join(what)}: {why}") for why, what in missing.items()]
    rows.append(("report", result["out"] or "-o FILE writes all of it, as .html, .md or .json"))
    return "\n".join([*lines, "", *aligned(rows)])


def _masked(totals: dict[str, Any]) -> str:
    by_requests, pairs = totals["masked_by_requests"], totals["pairs"]
    if by_requests is None:
        return f"{totals['masked']:,} of {pairs:,} pairs ({totals['masked'] / pairs:.1%})"
    return f"{by_requests:,} of {pairs:,} pairs ({by_requests / pairs:.1%})"


def _distances(summary: dict[str, Any]) -> str:
    """How far the model is from the re-fit on forgotten examples, beside what the control is and another re-fit."""
    group, name = ("forget", "forgotten") if summary["distance"]["forget"] else ("retain", "retained")
    said = [f"{summary['distance'][group]['divergence']:.2g} nats on {name} examples"]
    for key, words in (("knock_out_distance", "logit knock-out"), ("noise_floor", "another re-fit")):
        if summary[key] is not None:
            said.append(f"{words} {summary[key][group]['divergence']:.2g}")
    return "; ".join(said)


def add_report(commands: Any) -> None:
    """`excise report`."""
    command = new_command(
        commands,
        "report",
        run_report,
        render_report,
        "what the requests to forget did, beside trivial controls and exact re-fits",
        "excise report model.safetensors test.npz -o report.html\n"
        "  excise report model.safetensors test.npz --codes codes.safetensors --train train.npz -o report.html\n"
        "  excise report erased.safetensors test.npz --before model.safetensors --json | jq .accuracy.after",
    )
    add_model(command)
    command.add_argument("features", metavar="FEATURES", help=FEATURES_HELP + "; test data of all classes")
    add_labels(command)
    command.add_argument("-o", "--out", metavar="FILE", help="file for the whole report, .html, .md or .json")
    beside = command.add_argument_group("what to compare with (what is not given is not measured, and named)")
    beside.add_argument(
        "--before", metavar="MODEL", help="the model before the requests; needed where something was erased"
    )
    beside.add_argument("--codes", metavar="FILE", help="training codes, for exact re-fits")
    beside.add_argument("--train", metavar="FEATURES", help="training data, for exact re-fits, also with new keys")
    beside.add_argument("--train-labels", metavar="FILE", help="labels of --train, where it has none")
    beside.add_argument(
        "--forget-set", metavar="FEATURES", help="examples of the class, to rank pairs by where there is no log"
    )
    beside.add_argument(
        "--backbone-macs", type=count, metavar="N", help="multiply-adds of the backbone for one example"
    )
    command.add_argument(
        "--seed", type=seed_or_none, default=0, metavar="N", help="seed of controls and re-fits (default: 0)"
    )
    add_threads(command)


def _labelled(
    args: argparse.Namespace, model: KeyValueClassifier, features: str, labels: str | None, flag: str
) -> tuple[Array, Array]:
    x, y, _ = labelled(features, labels, args, feature_names(model), flag)
    check_width(args, model, x, features)
    return x, y
