"""What the commands of the shell have in common: their parser, the files they read, the tables they print."""

import argparse
import os
import re
import types
import typing
from collections.abc import Callable
from typing import Any, NoReturn

from excise.atomic import check_writable
from excise.errors import InputError
from excise.estimator import KeyValueClassifier
from excise.features.arrays import Array
from excise.features.files import has_names, read_features
from excise.storage import load

Result = dict[str, Any]

FEATURES_HELP = "features, one row per example: .npy, .npz, .safetensors or .parquet"


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line, as all others of the command are."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the words given and where to read what is allowed."""
        self.exit(2, f"excise: error: {one_line(message)}; see {self.prog} --help\n")


def new_command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], Result],
    render: Callable[[Result], str],
    text: str,
    example: str,
) -> argparse.ArgumentParser:
    """A sub-command that runs `run` and shows what it returns with `render`."""
    description = f"{text[0].upper()}{text[1:]}."
    plural = "Examples" if "\n" in example else "Example"
    command = new_parser(
        commands.add_parser, name, help=text, description=description, epilog=f"{plural}:\n  {example}"
    )
    command.set_defaults(run=run, render=render)
    command.add_argument("--json", action="store_true", help="print the result as one JSON object")
    command.add_argument("-q", "--quiet", action="store_true", help="show no progress")
    return command


def new_parser(make: Callable[..., argparse.ArgumentParser], *args: Any, **options: Any) -> argparse.ArgumentParser:
    """A parser that takes whole flags only and leaves its texts as they are."""
    return make(*args, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)


def add_model(command: argparse.ArgumentParser) -> None:
    """The model file, and how it is read."""
    command.add_argument("model", metavar="MODEL", help="model file written by `excise train`")
    command.add_argument("--no-verify", action="store_true", help="skip the digests: faster on large files")


def add_labels(command: Any) -> None:
    """Where the labels of FEATURES are."""
    command.add_argument(
        "--labels",
        metavar="FILE",
        help="labels, where FEATURES has none: .npy, .npz, .safetensors, or .txt and .csv with one a line",
    )
    command.add_argument("--x-name", metavar="NAME", help="name of the features within the file (default: X, x, ...)")
    command.add_argument(
        "--y-name", metavar="NAME", help="name of the labels within the file (default: y, labels, ...)"
    )


def add_threads(command: argparse.ArgumentParser) -> None:
    """How many threads work."""
    command.add_argument(
        "--threads", type=thread_count, metavar="N", help="threads (default: all cores this process may use)"
    )


def thread_count(text: str) -> int:
    """What --threads takes."""
    threads = int(text) if re.fullmatch("-?[0-9]{1,9}", text) else 0
    if not threads:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of threads: use 1 or more, or -1 for all cores")
    return threads


def count(text: str) -> int:
    """A whole number of at least 1; commas between its digits are welcome."""
    digits = text.replace(",", "").replace("_", "")
    if not re.fullmatch("[0-9]{1,15}", digits) or not int(digits):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(digits)


def number_or_none(annotation: Any) -> Callable[[str], Any]:
    """What turns a flag's text into the annotated number, or into None where that is allowed."""
    kinds = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    optional = type(None) in kinds
    kind, name = (float, "a number") if float in kinds else (int, "a whole number")

    def convert(text: str) -> Any:
        if optional and text.lower() == "none":
            return None
        try:
            return kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {name}{' or none' * optional}") from None

    return convert


def seed_or_none(text: str) -> int | None:
    """A seed as numpy takes it, or None for one that differs every time."""
    if text.lower() == "none":
        return None
    if not re.fullmatch("[0-9]{1,10}", text) or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"{text!r} is no seed: use a whole number from 0 to {2**32 - 1:,}, or none")
    return int(text)


def load_model(args: argparse.Namespace) -> KeyValueClassifier:
    """The model named on the command line."""
    return load(args.model, verify=not args.no_verify).set_params(n_jobs=args.threads)  # type: ignore[no-any-return]


def feature_names(model: KeyValueClassifier) -> list[str] | None:
    """Names of the features the model was trained on, if they had any."""
    return model.feature_names_in_.tolist() if hasattr(model, "feature_names_in_") else None


def labelled(
    features: str,
    labels: str | None,
    args: argparse.Namespace,
    columns: list[str] | None = None,
    flag: str = "--labels",
) -> tuple[Array, Array, list[str] | None]:
    """Features, labels and names of columns, of a file that must have labels, in itself or beside it."""
    x, y, names = read_features(features, labels, args.x_name, args.y_name, columns)
    if y is None:
        otherwise = ", or their name with --y-name" if has_names(features) else ""
        raise InputError(f"{features} holds no labels: give a file of them with {flag}{otherwise}")
    return x, y, names


def check_names(args: argparse.Namespace, *files: tuple[str | None, str | None]) -> None:
    """Refuse a name that no file of features, or of labels where they are apart, has a use for."""
    parquet = [x for x, _ in files if x is not None and x.lower().endswith(".parquet")]  # without the column of labels
    check_name("--x-name", args.x_name, *(x for x, _ in files))
    check_name("--y-name", args.y_name, *(y or x for x, y in files), *parquet)


def check_name(flag: str, name: str | None, *files: str | None) -> None:
    """Refuse a name where no file has named arrays."""
    given = [path for path in files if path is not None]
    if name is not None and not any(map(has_names, given)):
        raise InputError(f"{flag} is {name!r}, and there are no named arrays in {', '.join(given)}: leave {flag} out")


def check_width(args: argparse.Namespace, model: KeyValueClassifier, x: Array, path: str | None = None) -> None:
    """Refuse features of another size than the model's."""
    if x.shape[1] != model.n_features_in_:
        raise InputError(
            f"{path or args.features} has features of size {x.shape[1]} and {args.model} was trained on size "
            f"{model.n_features_in_}: use features of the same backbone"
        )


def check_output(out: str, *inputs: str | None) -> None:
    """Refuse an output that cannot be written, or that would replace what is read."""
    for path in inputs:
        if path is not None and os.path.exists(path) and os.path.exists(out) and os.path.samefile(path, out):
            raise InputError(f"{out} is both read and written: choose another name for the output")
    check_writable(out)


def aligned(rows: list[tuple[str, str]]) -> list[str]:
    """Rows of a name and a text, the texts below each other."""
    width = max(len(name) for name, _ in rows) + 2
    return [f"{name:<{width}}{text}" for name, text in rows]


def first_ten(items: list[Any]) -> str:
    """Up to ten items, and how many there are."""
    return ", ".join(map(str, items[:10])) + (f", ... ({len(items):,} in all)" if len(items) > 10 else "")


def one_line(message: Any) -> str:
    """The text without its line breaks."""
    return " ".join(str(message).split())
