"""The shell's door, as a user types it: results on standard output, the rest on standard error, never a traceback."""

import csv
import importlib.util
import inspect
import io
import json
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import excise
from conftest import SMALL, blobs
from excise import KeyValueClassifier, cli
from excise.bottleneck import kernels
from excise.progress import Progress

ROOT = Path(__file__).resolve().parents[1]
TINY = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder with features, labels and a model, in which every command runs."""
    path = tmp_path_factory.mktemp("shell")
    here = Path.cwd()
    os.chdir(path)
    X, y = blobs()
    np.savez("data.npz", X=X, y=y)
    np.save("x.npy", X)
    np.save("y.npy", y)
    Path("words.txt").write_text("\n".join(np.array(["ant", "bee", "cow"])[y]))
    KeyValueClassifier(**SMALL).fit(X, y).save("model")
    Path("link.npy").symlink_to("model")
    yield path
    os.chdir(here)


def shell(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "excise", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line on standard error of a command that fails."""
    before = sorted(Path.cwd().iterdir())
    assert cli.main([*words, "--quiet"]) == 2
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert len(lines) == 1
    assert lines[0].startswith("excise: error: ")
    assert sorted(Path.cwd().iterdir()) == before
    return lines[0].removeprefix("excise: error: ")


# -- the way through --------------------------------------------------------------------------------------------------


def test_train_evaluate_predict_info_as_typed(folder: Path) -> None:
    done = shell("train", "x.npy", "--labels", "words.txt", "-o", "typed.safetensors", *TINY)
    assert done.returncode == 0, done.stderr
    assert "training accuracy" in done.stdout
    assert "keys     100%" in done.stderr
    assert "values   100%" in done.stderr
    done = shell("predict", "typed.safetensors", "x.npy", "-q")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:3] == ["ant", "bee", "cow"]
    Path("typed.safetensors").unlink()


def test_the_shell_trains_the_same_model_as_python(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "data.npz", "-o", "same", "-q", *TINY]) == 0
    assert Path("same").read_bytes() == Path("model").read_bytes()
    Path("same").unlink()
    out, err = capsys.readouterr()
    assert [line.split("  ")[0] for line in out.splitlines()] == [
        "examples", "classes", "time", "training accuracy", "model"]  # fmt: skip
    assert err == ""


COMMANDS = {
    "demo": ["demo", "--json", "-q", "--report", "none"],
    "train": ["train", "data.npz", "-o", "json-model", "--validation", "data.npz", "--json", *TINY],
    "evaluate": ["evaluate", "model", "data.npz", "--json"],
    "predict": ["predict", "model", "x.npy", "--proba", "--json"],
    "info": ["info", "model", "--json"],
}


@pytest.mark.parametrize("verb", COMMANDS)
def test_json_is_one_object_on_standard_output(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli.demo, "PARAMETERS", {"codebooks": 16, "pairs": 64, "key_epochs": 2})
    assert cli.main(COMMANDS[verb]) == 0
    result = json.loads(capsys.readouterr().out)
    Path("json-model").unlink(missing_ok=True)
    if verb == "train":
        assert result["training_accuracy"] == result["validation_accuracy"] > 0.9
        assert {"keys", "values", "total"} <= set(result["seconds"])
        assert result["parameters"]["random_state"] == 0
    if verb == "evaluate":
        assert [row["class"] for row in result["per_class"]] == [0, 1, 2]
        assert result["accuracy"] > 0.9
    if verb == "predict":
        assert np.allclose(np.sum(result["probabilities"], axis=1), 1)
    if verb == "info":
        assert result["masked"] == {"pairs": 0, "share": 0.0}
        assert result["axes"]["classes"] == 3


@pytest.mark.parametrize("name", ["out.npy", "out.csv", "out.npz"])
@pytest.mark.parametrize("proba", [False, True])
def test_predictions_go_to_files(name: str, proba: bool, capsys: pytest.CaptureFixture[str]) -> None:
    X, _ = blobs()
    model = excise.load("model")
    assert cli.main(["predict", "model", "x.npy", "-o", name, "-q", *["--proba"] * proba]) == 0
    assert capsys.readouterr().out == f"90 predictions written to {name}\n"
    labels, chances = model.predict(X), model.predict_proba(X).astype(np.float32)
    if name == "out.npy":
        assert np.array_equal(np.load(name, allow_pickle=False), chances if proba else labels)
    elif name == "out.npz":
        with np.load(name, allow_pickle=False) as found:
            assert np.array_equal(found["labels"], labels)
            assert np.array_equal(found["classes"], model.classes_)
            assert not proba or np.array_equal(found["probabilities"], chances)
    else:
        rows = [line.split(",") for line in Path(name).read_text().splitlines()]
        assert rows[0] == (["label", "0", "1", "2"] if proba else ["label"])
        assert [int(row[0]) for row in rows[1:]] == labels.tolist()
        assert np.array_equal(np.array(rows[1:])[:, 1:].astype(np.float32), chances[:, : 3 * proba])
    Path(name).unlink()


def test_what_a_person_reads(capsys: pytest.CaptureFixture[str]) -> None:
    mask = np.zeros((8, 16), bool)
    mask[0, :4] = True
    excise.load("model").with_mask(mask).save("masked")
    assert cli.main(["info", "masked"]) == 0
    lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    Path("masked").unlink()
    assert lines["masked"] == "4 pairs (3.1%)"
    assert lines["labels"] == "0, 1, 2"
    assert lines["excise"] == f"version {excise.__version__}"
    assert cli.main(["evaluate", "model", "x.npy", "--labels", "y.npy", "--threads", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("class 2   ")
    assert cli.main(["predict", "model", "x.npy", "--proba", "-q"]) == 0
    assert capsys.readouterr().out.startswith("label,0,1,2\n0,0.9")


AWKWARD = np.array(["a,b", 'say "c"', "\u00e9\u4e2d"])


@pytest.fixture
def awkward(folder: Path) -> Any:
    """A model whose labels need quotes, or more than ASCII."""
    X, y = blobs()
    KeyValueClassifier(**SMALL).fit(X, AWKWARD[y]).save("awkward")
    yield "awkward"
    Path("awkward").unlink()


def test_probabilities_are_the_same_columns_on_screen_and_in_a_file(awkward: str, capsys: Any) -> None:
    assert cli.main(["predict", awkward, "x.npy", "--proba", "-q"]) == 0
    printed = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert cli.main(["predict", awkward, "x.npy", "--proba", "-q", "-o", "p.csv"]) == 0
    with Path("p.csv").open(encoding="utf-8", newline="") as file:
        written = list(csv.reader(file))
    Path("p.csv").unlink()
    assert printed[0] == written[0] == ["label", *sorted(AWKWARD)]
    assert [row[0] for row in printed[1:]] == [row[0] for row in written[1:]] == AWKWARD[blobs()[1]].tolist()
    chances = [np.array(table[1:])[:, 1:].astype(float) for table in (printed, written)]
    assert np.allclose(*chances, rtol=1e-5)


@pytest.mark.parametrize("words", [["info"], ["predict", "x.npy"], ["evaluate", "x.npy", "--labels", "a.npy"]])
def test_labels_that_the_terminal_cannot_show_are_escaped(awkward: str, words: list[str]) -> None:
    np.save("a.npy", AWKWARD[blobs()[1]])
    done = shell(words[0], awkward, *words[1:], env={**os.environ, "PYTHONIOENCODING": "ascii"})
    Path("a.npy").unlink()
    assert done.returncode == 0, done.stderr
    assert r"\xe9\u4e2d" in done.stdout


def write_parquet(path: str, X: Any, names: Sequence[str], **others: Any) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table({**{name: X[:, "abcdef".index(name)] for name in names}, **others}), path)


@pytest.fixture
def named(folder: Path) -> Any:
    """A model trained on columns with names, and files with these columns in order, in another, and in part."""
    X, y = blobs()
    write_parquet("train.parquet", X, "abcdef", label=y)
    write_parquet("other.parquet", X, "fbdcea", __index_level_0__=y, label=y)
    write_parquet("part.parquet", X, "abcde", label=y)
    assert cli.main(["train", "train.parquet", "-o", "named", "-q", *TINY]) == 0
    yield "named"
    for path in ("train.parquet", "other.parquet", "part.parquet", "named"):
        Path(path).unlink()


def test_columns_are_matched_by_their_names(named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "train.parquet", "--validation", "other.parquet", "-o", named, "-q", *TINY]) == 0
    assert "validation accuracy  100.00%" in capsys.readouterr().out
    assert excise.load(named).feature_names_in_.tolist() == list("abcdef")
    for path, labels in (("train.parquet", []), ("other.parquet", []), ("x.npy", ["--labels", "y.npy"])):
        assert cli.main(["evaluate", named, path, *labels, "-q"]) == 0
        assert "accuracy  100.00%" in capsys.readouterr().out
        assert cli.main(["predict", named, path, "-q"]) == 0
        assert capsys.readouterr().out.split() == list(map(str, blobs()[1]))
    assert cli.main(["info", named]) == 0
    assert re.search("^feature names +a, b, c, d, e, f$", capsys.readouterr().out, flags=re.MULTILINE)


def test_columns_that_a_model_misses_are_named(named: str, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "part.parquet lacks the features 'f', which the model was trained on, and holds nothing instead: use"
    assert refused(capsys, "predict", named, "part.parquet").startswith(sentence)
    assert refused(capsys, "evaluate", named, "part.parquet").startswith(sentence)
    words = ["train", "train.parquet", "--validation", "part.parquet", "-o", "new", *TINY]
    assert refused(capsys, *words).startswith(sentence)


def test_a_name_may_concern_only_one_of_two_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X, y = blobs()
    np.savez("named.npz", first=X, second=y)
    words = ["--x-name", "first", "--y-name", "second", "--validation", "x.npy", "--validation-labels", "y.npy"]
    assert cli.main(["train", "named.npz", "-o", "new", "-q", *words, *TINY]) == 0
    assert Path("new").read_bytes() == Path("model").read_bytes()
    Path("named.npz").unlink()
    Path("new").unlink()


def test_the_demo_forgets_and_writes_its_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--forget", "3", "--quiet", "--report", "demo.html"]) == 0
    out = capsys.readouterr().out
    table = {line[:36].strip(): line[36:].split() for line in out.splitlines()[2:8]}
    assert float(table["before"][1].rstrip("%")) > 90
    assert float(table["after masking"][1].rstrip("%")) < 5
    assert float(table["after masking"][0].rstrip("%")) > 90
    assert table["control: the logit set to -inf"][1] == "0.0%"
    assert table["exact re-fit without the digit"][1] == "0.0%"
    assert "demo.html" in out
    page = Path("demo.html").read_text()
    assert "Class 3 forgotten" in page
    assert f">{table['after masking'][0]}<" in page
    Path("demo.html").unlink()


def test_the_demo_needs_no_file(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.demo, "PARAMETERS", {"codebooks": 16, "pairs": 64, "key_epochs": 2})
    before = sorted(Path.cwd().iterdir())
    assert cli.main(["demo", "--quiet", "--report", "None"]) == 0
    assert "report" not in capsys.readouterr().out
    assert sorted(Path.cwd().iterdir()) == before
    assert cli.build_parser().parse_args(["demo"]).report == "excise-demo-report.html"


# -- flags ------------------------------------------------------------------------------------------------------------


def test_every_parameter_is_a_flag_with_help() -> None:
    parameters = inspect.signature(KeyValueClassifier.__init__).parameters
    described = [name for group in cli.PARAMETER_HELP.values() for name in group]
    assert sorted(described) == sorted(set(parameters) - {"self"})


def parsed(*words: str) -> dict[str, Any]:
    return cli._parameters(cli.build_parser().parse_args(["train", "x.npy", "-o", "m", *words]))


def test_flags_become_parameters() -> None:
    assert parsed() == {"verbose": 1}
    assert parsed("-q") == {"verbose": 0}
    assert parsed("-q", "--verbose", "1") == {"verbose": 1}
    words = "--pairs 7 --learning-rate 1e-3 --gate-unused --n-jobs none --gradient-clip .5 --seed 3 --decoder sum"
    numbers = {"pairs": 7, "learning_rate": 1e-3, "n_jobs": None, "gradient_clip": 0.5, "random_state": 3}
    assert parsed(*words.split()) == {"verbose": 1, "gate_unused": True, "decoder": "sum", **numbers}
    assert parsed("--gradient-clip", "none", "--threads", "-1", "--no-gate-unused") == {
        "verbose": 1, "gradient_clip": None, "n_jobs": -1, "gate_unused": False}  # fmt: skip


def test_the_whole_range_of_seeds_is_allowed() -> None:
    for text, seed in (("0", 0), ("4294967295", 2**32 - 1), ("none", None), ("None", None)):
        assert parsed("--seed", text)["random_state"] == seed
        assert cli.build_parser().parse_args(["demo", "--seed", text]).seed == seed


def test_flags_win_over_the_preset() -> None:
    preset = excise.PRESETS["cifar100-resnet50"]
    assert parsed("--preset", "cifar100-resnet50") == {"verbose": 1, **preset}
    assert parsed("--preset", "cifar100-resnet50", "--top-k", "5") == {"verbose": 1, **preset, "top_k": 5}
    assert parsed("--preset", "cifar100-resnet50", "--epochs", "10")["epochs"] == 10  # the default, but asked for


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["train", "x.npy"], "the following arguments are required: -o/--out"),
        (["train", "x.npy", "-o", "m", "--pairs", "many"], "argument --pairs: 'many' is not a whole number"),
        (
            ["train", "x.npy", "-o", "m", "--gradient-clip", "x"],
            "argument --gradient-clip: 'x' is not a number or none",
        ),
        (["train", "x.npy", "-o", "m", "--solver", "lbfgs"], "invalid choice: 'lbfgs'"),
        (["unlearn"], "invalid choice: 'unlearn'"),
        (["forget", "m", "--by", "magic"], "invalid choice: 'magic'"),
        (["forget", "m", "--class", "a", "--pairs", "0"], "'0' is not a whole number of at least 1"),
        (["forget", "m", "--rows", "1,x"], "'1,x' is no list of rows: use numbers from 0, with commas, as 3,17"),
        (["restore", "m", "one"], "'one' is not a whole number of at least 1"),
        (["train", "x.npy", "-o", "m", "--seed", "-1"], "--seed: '-1' is no seed: use a whole number from 0 to 4,294,"),
        (["train", "x.npy", "-o", "m", "--seed", "4294967296"], "'4294967296' is no seed"),
        (["train", "x.npy", "-o", "m", "--random-state", "1_0"], "'1_0' is no seed"),
        (["demo", "--threads", "0"], "argument --threads: '0' is no number of threads: use 1 or more, or -1"),
        (["demo", "--seed", "-4"], "argument --seed: '-4' is no seed"),
        (["demo", "--seed", "9" * 5000], "is no seed"),
    ],
)
def test_misused_flags_exit_with_2(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.startswith("excise: error: ")
    assert error.count("\n") == 1


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words, text in ((["--version"], f"excise {excise.__version__} "), (["train", "--help"], "Examples:\n  excise")):
        with pytest.raises(SystemExit) as caught:
            cli.main(words)
        assert caught.value.code == 0
        assert text in capsys.readouterr().out


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="argparse lays out help differently since Python 3.13")
def test_the_help_pages_are_current() -> None:
    spec = importlib.util.spec_from_file_location("render_cli", ROOT / "docs" / "render_cli.py")
    assert spec is not None
    assert spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    assert page.PAGE.read_text() == page.render(), "run: python docs/render_cli.py"


# -- errors -----------------------------------------------------------------------------------------------------------

TRAIN = ["train", "x.npy", "--labels", "y.npy", "-o", "new", *TINY]


def changed(array: Any, place: Any, value: Any) -> Any:
    array = array.copy()
    array[place] = value
    return array


X, Y = blobs()
BAD_INPUT = {
    "Input X contains NaN": (["train", "bad.npy", *TRAIN[2:]], changed(X, (50, 2), np.nan)),
    "Input X contains infinity": (["train", "bad.npy", *TRAIN[2:]], changed(X, (50, 2), np.inf)),
    "Input X contains NaN, as in row 50, column 2": (["predict", "model", "bad.npy"], changed(X, (50, 2), np.nan)),
    "bad.npy has features of size 5 and model was trained on size 6": (["predict", "model", "bad.npy"], X[:, :5]),
    "bad.npy has features of size 5 and": (["evaluate", "model", "bad.npy", "--labels", "y.npy"], X[:, :5]),
    "there is only one class, 0": (["train", "x.npy", "--labels", "bad.npy", "-o", "new", *TINY], 0 * Y),
    "label 3 was never seen in training: the 3 known classes are 0, 1, 2": (
        ["evaluate", "model", "x.npy", "--labels", "bad.npy"], Y + 1),
    "bad.npy has 9 examples, fewer than a batch of 16: set --batch-size to at most 9": (
        ["train", "bad.npy", *TRAIN[2:]], X[:9]),
    "label 3 was never seen": ([*TRAIN, "--validation", "x.npy", "--validation-labels", "bad.npy"], Y + 1),
    "bad.npy has features of size 5 and x.npy of 6": (
        [*TRAIN, "--validation", "bad.npy", "--validation-labels", "y.npy"], X[:, :5]),
    "bad.npy cannot be used: Input X contains NaN": (
        [*TRAIN, "--validation", "bad.npy", "--validation-labels", "y.npy"], changed(X, (50, 2), np.nan)),
}  # fmt: skip


@pytest.mark.parametrize(("sentence", "case"), BAD_INPUT.items(), ids=list(BAD_INPUT))
def test_bad_arrays(sentence: str, case: Any, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    words, array = case
    np.save("bad.npy", array)
    if "--validation" in words:
        monkeypatch.setattr(KeyValueClassifier, "fit", lambda *_: pytest.fail("trained in vain"))
    if "fewer" in sentence:
        np.save("y9.npy", Y[:9])
        words = ["y9.npy" if word == "y.npy" else word for word in words]
    assert sentence in refused(capsys, *words)


BAD_WORDS = {
    "pairs is 70000: it must be a whole number from 1 to 65,535": [*TRAIN, "--pairs", "70000"],
    "learning_rate is -1.0": [*TRAIN, "--learning-rate", "-1"],
    "n_jobs is 0": [*TRAIN, "--threads", "0"],
    "there is no preset 'mnist': use one of cifar10-vit-b32": [*TRAIN, "--preset", "mnist"],
    "no.npy does not exist: check the path": ["train", "no.npy", "-o", "new"],
    "no does not exist: check the path": ["predict", "no", "x.npy"],
    "data.npz is not a safetensors file (it looks like a zip archive": ["info", "data.npz"],
    "x.npy holds no labels: give a file of them with --labels": ["train", "x.npy", "-o", "new"],
    "cannot write no/new: the folder": [*TRAIN, "-o", "no/new"],
    "it is a folder; name a file in it": [*TRAIN, "-o", "."],
    "x.npy is both read and written": [*TRAIN, "-o", "x.npy"],
    "link.npy is both read and written": ["predict", "model", "x.npy", "-o", "link.npy"],
    "its name must end in one of .npy, .csv, .npz": ["predict", "model", "x.npy", "-o", "new.txt"],
    "there is no digit 10": ["demo", "--forget", "10"],
    "cannot write a report to a.pdf: its name must end in one of .json, .html, .md": ["demo", "--report", "a.pdf"],
    "cannot write no/a.html: the folder": ["demo", "--report", "no/a.html"],
    "x.npy holds no labels: give a file of them with --validation-labels": [*TRAIN, "--validation", "x.npy"],
    "--validation-labels needs --validation": [*TRAIN, "--validation-labels", "y.npy"],
    "--x-name is 'a', and there are no named arrays in x.npy: leave --x-name out": [*TRAIN, "--x-name", "a"],
    "--y-name is 'b', and there are no named arrays in y.npy: leave --y-name": [*TRAIN, "--y-name", "b"],
    "--y-name is 'b', and there are no named arrays in words.txt: leave": [
        "evaluate", "model", "data.npz", "--labels", "words.txt", "--y-name", "b"],
    "are no named arrays in x.npy: leave --x-name out": ["predict", "model", "x.npy", "--x-name", "a"],
    "--x-name is 'a', and there are no named arrays in x.npy, x.npy": [
        *TRAIN, "--x-name", "a", "--validation", "x.npy", "--validation-labels", "y.npy"],
    "cannot write to a file without a name: give it one": [*TRAIN, "-o", ""],
    "cannot write to a file without a name": ["predict", "model", "x.npy", "-o", ""],
    "MiB are free; free some space": [*TRAIN, "--codebooks", "65536", "--pairs", "65535", "--key-dim", "64"],
}  # fmt: skip


@pytest.mark.parametrize(("sentence", "words"), BAD_WORDS.items(), ids=list(BAD_WORDS))
def test_bad_words(sentence: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert sentence in refused(capsys, *words)


def test_the_output_is_checked_before_training(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(KeyValueClassifier, "fit", lambda *_: pytest.fail("trained in vain"))
    assert "does not exist; create it first" in refused(capsys, *TRAIN, "-o", "no/new")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            MemoryError("Unable to allocate 9 GiB"),
            "out of memory (Unable to allocate 9 GiB); use fewer codebooks or pairs",
        ),
        (OSError(28, "No space left on device", "/tmp/codes"), "/tmp/codes: No space left on device; check the path"),
    ],
)
def test_what_the_machine_refuses(error: Exception, sentence: str, monkeypatch: Any, capsys: Any) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(KeyValueClassifier, "fit", fail)
    assert sentence in refused(capsys, *TRAIN)


def test_warnings_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def warn(args: Any) -> dict[str, Any]:
        warnings.simplefilter("always")
        warnings.warn("this\n  and that", stacklevel=1)
        return {"digit": float("nan")}

    monkeypatch.setattr(cli, "run_demo", warn)
    assert cli.main(["demo", "--json"]) == 0
    assert capsys.readouterr() == ('{"digit": null}\n', "excise: warning: this and that\n")


def test_slow_kernels_say_so_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("EXCISE_KERNELS", raising=False)
    monkeypatch.setattr(kernels, "WHY_SLOW", "no compiler")
    monkeypatch.setattr(kernels, "_told", False)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert cli.main([*TRAIN, "-q", "-o", "slow"]) == 0
    Path("slow").unlink()
    assert capsys.readouterr().err == "excise: warning: no compiler\n"


def test_a_full_disk_leaves_the_old_model(folder: Path) -> None:
    def limit() -> None:  # Python ignores the signal, so that writing fails as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    Path("full").write_bytes(b"old")
    done = shell(*TRAIN[:-2], "-q", "-o", "full", preexec_fn=limit)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "excise: error: cannot write full: no room is left (File too large); free some space" in done.stderr
    assert "Traceback" not in done.stderr
    assert Path("full").read_bytes() == b"old"
    Path("full").unlink()
    assert not list(folder.glob(".excise-*"))


def test_ctrl_c_during_training_on_a_terminal(folder: Path) -> None:
    Path("stopped").write_bytes(b"old")
    terminal, side = pty.openpty()
    command = [sys.executable, "-m", "excise", *TRAIN, "-o", "stopped", "--epochs", "1000000"]
    reset = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    training = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=side, **reset)
    os.close(side)
    seen = b""
    while b"values" not in seen:
        seen += os.read(terminal, 4096)
    time.sleep(0.2)
    training.send_signal(signal.SIGINT)
    out, _ = training.communicate(timeout=60)
    seen += read_all(terminal)
    assert training.returncode == 130
    assert out == b""
    assert b" left" in seen
    assert b"Traceback" not in seen
    assert seen.endswith(b"\r\nexcise: interrupted; no file was left half-written\r\n")
    assert Path("stopped").read_bytes() == b"old"
    Path("stopped").unlink()
    assert not list(folder.glob(".excise-*"))


def read_all(terminal: int) -> bytes:
    """What is left to read once the other side has closed, which Linux reports as an error."""
    seen = b""
    try:
        while part := os.read(terminal, 4096):
            seen += part
    except OSError:
        pass
    os.close(terminal)
    return seen


@pytest.mark.parametrize("stdout", ["closed pipe", "/dev/full"])
def test_output_that_nobody_takes(stdout: str) -> None:
    if stdout == "closed pipe":
        reader, writer = os.pipe()
        os.close(reader)
    else:
        writer = os.open(stdout, os.O_WRONLY)
    command = [sys.executable, "-m", "excise", "info", "model"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    expected = (141, "") if stdout == "closed pipe" else (2, "excise: error: No space left on device; check the path")
    assert done.returncode == expected[0]
    assert done.stderr.startswith(expected[1])
    assert done.stderr.count("\n") == (0 if stdout == "closed pipe" else 1)


def with_streams(command: str, streams: str) -> Any:
    """The command run in a shell, its streams led away as `>&-` does."""
    line = f"{sys.executable} -m excise {command} {streams}"
    return subprocess.run(line, shell=True, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", ["info model --json", "info model", "predict model x.npy -q"])
def test_a_closed_standard_output_is_wanted_so(command: str) -> None:
    done = with_streams(command, ">&-")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("streams", ["2>/dev/full", "2>&-", ">/dev/full 2>/dev/full", ">&- 2>&-"])
def test_an_error_that_cannot_be_told_still_exits_with_2(streams: str) -> None:
    done = with_streams("info no-such-model", streams)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


@pytest.mark.parametrize("streams", ["2>/dev/full", "2>&-"])
def test_progress_that_cannot_be_shown_stops_no_work(streams: str) -> None:
    done = with_streams("evaluate model data.npz", streams)
    assert done.returncode == 0
    assert "accuracy" in done.stdout


def test_kernels_that_this_machine_lacks_are_one_sentence(folder: Path) -> None:
    done = shell("info", "model", env={**os.environ, "EXCISE_KERNELS": "foo"})
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(
        "excise: error: EXCISE_KERNELS is 'foo', which this machine does not have: use one of"
    )


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "run_info", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["info", "model"])


def test_the_package_says_that_it_is_typed() -> None:
    assert Path(cli.__file__).with_name("py.typed").exists()


def test_progress_is_silent_where_there_is_no_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with Progress("keys", 1, "examples", 1) as shown:
        shown.advance(1)
