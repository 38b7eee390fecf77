"""The verbs of forgetting as a user types them; what is refused leaves every file alone."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import excise
from conftest import SMALL, blobs
from excise import KeyValueClassifier, cli, make_report, write_report

NAMES = np.array(["ant", "bee", "cow", "dog"])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, its training codes, and data."""
    path = tmp_path_factory.mktemp("source")
    X, y = blobs(240, classes=4)
    np.savez(path / "train.npz", X=X, y=NAMES[y])
    np.savez(path / "test.npz", X=blobs(80, classes=4, seed=1)[0], y=NAMES[np.arange(80) % 4])
    np.save(path / "cows.npy", X[y == 2])
    model = KeyValueClassifier(**SMALL | {"pairs": 40}).fit(X, NAMES[y])
    model.save(path / "model")
    model.save_training_codes(path / "codes")
    return path


@pytest.fixture
def folder(source: Path, tmp_path: Path) -> Any:
    """A copy of it, in which every command runs."""
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    here = Path.cwd()
    os.chdir(tmp_path)
    yield tmp_path
    os.chdir(here)


def shell(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "excise", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert cli.main([*words, "--json", "--quiet"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    before = {path: path.read_bytes() for path in Path.cwd().iterdir()}
    assert cli.main([*words, "--quiet"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert {path: path.read_bytes() for path in Path.cwd().iterdir()} == before
    return err.strip().removeprefix("excise: error: ")


def test_forget_restore_erase_as_typed(folder: Path) -> None:
    test = np.load("test.npz")["X"]
    before = excise.load("model").logits(test)
    said = shell("forget", "model", "--class", "cow", "-q")
    assert "cow (request 1, by activations)" in said
    assert "0 examples read, 0 multiply-adds" in said
    assert "undo with: excise restore model 1; make it final with: excise erase model" in said
    forgetful = excise.load("model").logits(test)
    assert not np.array_equal(forgetful, before)
    assert "request 1" in shell("info", "model")
    assert "still in force  none" in shell("restore", "model", "1", "-q")
    assert np.array_equal(excise.load("model").logits(test), before)
    shell("forget", "model", "--class", "cow", "-q")
    size = Path("model").stat().st_size
    said = shell("erase", "model", "--codes", "codes", "-q")
    assert "erased  request 2: cow" in said
    assert "older copies and backups of the file still hold what was erased: delete them" in said
    assert Path("model").stat().st_size < size
    assert np.array_equal(excise.load("model").logits(test), forgetful)
    other = excise.load("model")
    other.load_training_codes("codes")
    assert "cow" not in other.training_labels_


def test_the_command_does_what_the_library_does(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, test, cows = np.load("train.npz"), np.load("test.npz"), np.load("cows.npy")
    for words, arguments in (
        (["--class", "cow", "--class", "ant"], {"classes": ["cow", "ant"]}),
        (["--class", "cow", "--pairs", "20"], {"classes": "cow", "pairs": 20}),
        (["--class", "cow", "--features", "cows.npy"], {"classes": "cow", "X": cows, "random_state": 0}),
        (
            ["--class", "cow", "--features", "cows.npy", "--by", "examples", "--examples", "5"],
            {"classes": "cow", "X": cows, "by": "examples", "examples": 5, "random_state": 0},
        ),
        (
            ["--class", "cow", "--held-out", "test.npz", "--retain-budget", "1", "--target-accuracy", ".5"],
            {"classes": "cow", "held_out": (test["X"], test["y"]), "retain_budget": 1, "target_accuracy": 0.5},
        ),
        (
            ["--class", "cow", "--by", "exact", "--features", "train.npz"],
            {"classes": "cow", "by": "exact", "X": data["X"], "y": data["y"]},
        ),
        (
            ["--class", "cow", "--by", "exact", "--features", "train.npz", "--new-keys"],
            {"classes": "cow", "by": "exact", "X": data["X"], "y": data["y"], "reinitialize_keys": True},
        ),
    ):
        model = excise.load("model")
        record = model.forget(**arguments)
        result = told(capsys, "forget", "model", *words, "--seed", "0", "-o", "out")
        model.save("expected")
        assert Path("out").read_bytes() == Path("expected").read_bytes()
        assert {**result, "milliseconds": 0} == {
            "model": "out",
            "bytes": Path("out").stat().st_size,
            **record.to_dict(),
            "milliseconds": 0,
        }
    assert "cow" not in excise.load("out").predict(data["X"])


def test_exactly_from_a_file_of_codes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = told(capsys, "forget", "model", "--rows", "3,17", "--by", "exact", "--codes", "codes")
    assert (result["rows"], result["state"], result["examples_read"]) == ([3, 17], "exact", 238)
    test = np.load("test.npz")["X"]
    told(capsys, "restore", "model", "1")
    assert excise.load("model").requests_[0].state == "restored"
    assert np.array_equal(excise.load("model").logits(test), excise.load("model").with_mask(None).logits(test))


def test_train_writes_codes_when_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    result = told(capsys, "train", "train.npz", "-o", "new", "--codes-out", "new-codes", *flags)
    assert result["codes"] == "new-codes"
    told(capsys, "forget", "new", "--class", "cow", "--by", "exact", "--codes", "new-codes")
    told(capsys, "train", "train.npz", "-o", "bare", "--no-keep-activations", *flags)
    sentence = refused(capsys, "forget", "bare", "--class", "cow")
    assert sentence.startswith("this model has no log of activations")


@pytest.mark.parametrize("kind", ["csv", "json", "npz"])
def test_a_curve_is_printed_and_written(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = np.load("test.npz")
    curve = excise.load("model").forgetting_curve(data["X"], data["y"], "cow")
    said = shell("curve", "model", "test.npz", "--class", "cow", "-o", f"curve.{kind}", "-q")
    assert said.splitlines()[0].split() == ["pairs", "masked", "retain", "forget", "retain", "loss", "forget", "loss"]
    assert f"16 of {len(curve.sizes):,} sizes, of 60 retained and 20 forgotten examples" in said
    if kind == "csv":
        rows = list(csv.DictReader(Path("curve.csv").read_text().splitlines()))
        columns = {name: [float(row[name]) for row in rows] for name in rows[0]}
    elif kind == "json":
        columns = json.loads(Path("curve.json").read_text())["points"]
    else:
        columns = dict(np.load("curve.npz"))
    for name in ("retain_accuracy", "forget_accuracy", "retain_loss", "forget_loss"):
        assert np.array_equal(columns[name], getattr(curve, name))
    assert np.array_equal(columns["masked"], curve.masked)


def test_a_curve_of_examples(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("curve", "model", "test.npz", "--class", "cow", "--by", "examples", "--seed", "0")
    result = told(capsys, *words, "--forget-set", "cows.npy")
    assert result["sizes"] == 61 == len(result["points"]["size"])
    assert told(capsys, *words, "--codes", "codes")["points"]["masked"][-1] == result["points"]["masked"][-1]


# -- the report -------------------------------------------------------------------------------------------------------


def without_times(report: Any) -> Any:
    return json.loads(json.dumps({**report, "times": None}))


def test_report_as_typed(folder: Path) -> None:
    shutil.copy("model", "before")
    shell("forget", "model", "--class", "cow", "--pairs", "20", "-q")
    said = shell("report", "model", "test.npz", "--codes", "codes", "-o", "report.html", "-q")
    lines = said.splitlines()
    assert lines[0].split() == ["test", "accuracy", "retain", "forget"]
    assert [line[:36].strip() for line in lines[1:8]] == [
        *("before", "after", "logit knock-out", "random mask", "frequency-matched mask"),
        *("exact re-fit", "exact re-fit, another order"),
    ]
    assert "forgotten                  cow" in said
    assert "test examples              60 retained, 20 forgotten" in said
    assert "masked                     20 of 320 pairs (6.2%)" in said
    assert "request 1, by activations  0 multiply-adds, codes or activations kept" in said
    assert "what was forgotten is      hidden" in said
    assert "not measured               accuracy.oracle_new_keys: new keys need the training data: pass it as" in said
    assert lines[-1] == "report                     report.html"
    assert "Class cow forgotten" in Path("report.html").read_text()
    shell("erase", "model", "-q")
    said = shell("report", "model", "test.npz", "-q")
    assert "what was forgotten is      erased" in said
    assert "accuracy.knock_out" in said
    assert "pass the model before as before" in said
    assert "report                     -o FILE writes all of it" in said
    said = shell("report", "model", "test.npz", "--before", "before", "-o", "report.md", "-q")
    assert "logit knock-out" in said
    assert Path("report.md").read_text().startswith("# Class cow forgotten")


def test_a_report_is_the_librarys(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, test, cows = np.load("train.npz"), np.load("test.npz"), np.load("cows.npy")
    np.save("train-x.npy", train["X"])
    Path("train-y.txt").write_text("\n".join(train["y"]))
    shutil.copy("model", "before")
    told(capsys, "forget", "model", "--class", "cow", "--pairs", "20")
    model, before = excise.load("model"), excise.load("before")
    coded = excise.load("model")
    coded.load_training_codes("codes")
    fitted = {"train": (train["X"], train["y"])}
    for words, subject, options in (
        ([], model, {}),
        (["--before", "before", "--seed", "3"], model, {"before": before, "random_state": 3}),
        (["--codes", "codes", "--backbone-macs", "4,000"], coded, {"backbone_macs": 4000}),
        (["--train", "train.npz"], model, fitted),
        (["--train", "train-x.npy", "--train-labels", "train-y.txt"], model, fitted),
        (["--forget-set", "cows.npy"], model, {"forget_set": cows}),
    ):
        expected = make_report(subject, test["X"], test["y"], **options)
        report = told(capsys, "report", "model", "test.npz", "-o", "report.json", *words)
        assert report == json.loads(Path("report.json").read_text())
        assert without_times(report) == without_times(expected)
    write_report(report, "again.json")
    assert Path("again.json").read_bytes() == Path("report.json").read_bytes()
    assert not list(folder.glob("*.html"))


def test_a_report_of_a_model_without_a_log_ranks_a_forget_set(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X, y = blobs(240, classes=4)
    KeyValueClassifier(**SMALL | {"pairs": 40, "keep_activations": False}).fit(X, NAMES[y]).save("bare")
    told(capsys, "forget", "bare", "--class", "cow", "--features", "cows.npy")
    assert told(capsys, "report", "bare", "test.npz")["curve"] is None
    curve = told(capsys, "report", "bare", "test.npz", "--forget-set", "cows.npy")["curve"]
    assert curve["ranked_by"] == "the forget set given"


def test_reports_of_forgotten_rows_name_no_class(folder: Path) -> None:
    shell("forget", "model", "--rows", "3,17", "--by", "exact", "--codes", "codes", "-q")
    said = shell("report", "model", "test.npz", "--codes", "codes", "-q")
    assert "forgotten              single training examples" in said
    assert "test examples          80 retained, 0 forgotten" in said


def test_progress_of_a_report_goes_to_standard_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "forget", "model", "--class", "cow")
    assert cli.main(["report", "model", "test.npz", "--codes", "codes", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["format"] == "excise-report"
    assert "report" in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["test.npz", "-o", "report.txt"], "cannot write a report to report.txt: its name must end in one of .json, "),
        (["test.npz", "-o", "nowhere/report.html"], "cannot write nowhere/report.html: the folder"),
        (["cows.npy"], "cows.npy holds no labels: give a file of them with --labels"),
        (["test.npz", "--train", "cows.npy"], "cows.npy holds no labels: give a file of them with --train-labels"),
        (["test.npz", "--train-labels", "y.txt"], "--train-labels needs --train, the features that these labels"),
        (["wide.npz"], "wide.npz has features of size 7 and forgetful was trained on size 6"),
        (["test.npz", "--train", "wide.npz"], "wide.npz has features of size 7 and forgetful was trained on size 6"),
        (["test.npz", "--forget-set", "wide.npz"], "wide.npz has features of size 7 and forgetful was trained on"),
        (["ants.npz"], "X has no example of class 'cow', which was forgotten: a report needs test examples of all"),
        (["test.npz", "--before", "other"], "before is another model: it must have the classes and the layout of the"),
        (["test.npz", "--before", "test.npz"], "test.npz is "),
        (["test.npz", "--codes", "other-codes"], "other-codes holds the training codes of another model"),
        (["test.npz", "--backbone-macs", "0"], ""),
        (["test.json", "-o", "test.json"], "test.json is both read and written: choose another name for the output"),
        (["test.npz", "--x-name", "X", "--y-name", "z"], "test.npz has no "),
    ],
)
def test_a_report_that_cannot_be_is_one_line(
    words: list[str], sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told(capsys, "forget", "model", "--class", "cow", "-o", "forgetful")
    X, y = blobs(240, classes=4)
    np.savez("wide.npz", X=np.zeros((8, 7), np.float32), y=NAMES[np.arange(8) % 4])
    np.savez("ants.npz", X=X[y == 0], y=NAMES[y[y == 0]])
    shutil.copy("test.npz", "test.json")
    other = KeyValueClassifier(**SMALL | {"pairs": 39, "random_state": 5}).fit(X, NAMES[y])
    other.save("other")
    other.save_training_codes("other-codes")
    if "0" in words:
        with pytest.raises(SystemExit) as stopped:
            cli.main(["report", "forgetful", *words])
        assert stopped.value.code == 2
        assert "'0' is not a whole number of at least 1" in capsys.readouterr().err
        return
    assert refused(capsys, "report", "forgetful", *words).startswith(sentence)


def test_without_a_request_there_is_no_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "report", "model", "test.npz", "-o", "report.html")
    assert said == "there is nothing to report: no request is in force; forget something first"


# -- misuse -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["forget", "model", "--class", "caw"], "the model knows no class 'caw': did you mean 'cow'? its classes are"),
        (["forget", "model"], "name what to forget: classes=..., one label or a list of them"),
        (["forget", "model", "--class", "cow", "--pairs", "9999"], "pairs is 9,999, and only 320 are live: ask for at"),
        (["forget", "model", *(w for n in NAMES for w in ("--class", n))], "that would forget all 4 classes: leave at"),
        (["forget", "model", "--class", "cow", "--labels", "y.npy"], "--labels needs --features, the file that it is"),
        (
            ["forget", "model", "--class", "cow", "--rows", "3"],
            "masking cannot forget single examples: others of their",
        ),
        (["forget", "model", "--class", "cow", "--by", "exact"], "by='exact' needs the codes of the training data, wh"),
        (["forget", "model", "--class", "cow", "--codes", "model"], "model is a model of excise"),
        (["forget", "model", "--class", "cow", "-o", "nowhere/m"], "cannot write nowhere/m: the folder"),
        (
            ["forget", "model", "--class", "cow", "--held-out-labels", "y.npy"],
            "--held-out-labels needs --held-out, the",
        ),
        (
            ["forget", "model", "--class", "cow", "--features", "train.npz", "-o", "train.npz"],
            "train.npz is both read and written: choose another name for the output",
        ),
        (
            ["forget", "model", "--class", "cow", "--held-out", "test.npz", "-o", "test.npz"],
            "test.npz is both read and written",
        ),
        (
            ["curve", "model", "cows.npy", "--class", "cow", "--labels", "y.csv", "-o", "y.csv"],
            "y.csv is both read and written",
        ),
        (["train", "train.npz", "-o", "new", "--codes-out", "train.npz"], "train.npz is both read and written"),
        (["train", "train.npz", "-o", "new", "--codes-out", "nowhere/codes"], "cannot write nowhere/codes: the folder"),
        (["train", "train.npz", "-o", "new", "--codes-out", "./new"], "new cannot be both the model and its codes"),
        (["restore", "model", "1"], "there is no request 1: the model's requests are none"),
        (["erase", "model"], "there is nothing to erase: no request is in force; forget something first"),
        (["curve", "model", "test.npz", "--class", "cow", "-o", "curve.txt"], "cannot write curve.txt: its name must"),
        (["curve", "model", "test.npz", "--class", "cow", "--by", "examples"], "by='examples' needs examples to rank"),
        (["curve", "model", "cows.npy", "--class", "cow"], "cows.npy holds no labels: give a file of them with"),
    ],
)
def test_misuse_is_one_line_and_no_file_changes(
    words: list[str], sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("y.csv").write_text("cow\n" * 60)
    said = refused(capsys, *words)
    if "model is a model" not in sentence:
        assert said.startswith(sentence)
    else:
        assert "model" in said


def test_a_forget_set_without_the_class_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = np.load("train.npz")
    np.savez("ants.npz", X=data["X"][data["y"] == "ant"], y=data["y"][data["y"] == "ant"])
    assert refused(capsys, "forget", "model", "--class", "cow", "--features", "ants.npz") == (
        "there is no example of class 'cow' among those given: pass some, or leave them out"
    )


def test_codes_of_another_model_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X, y = blobs(240, classes=4)
    other = KeyValueClassifier(**SMALL | {"pairs": 40, "random_state": 5}).fit(X, NAMES[y])
    other.save_training_codes("other-codes")
    said = refused(capsys, "forget", "model", "--class", "cow", "--by", "exact", "--codes", "other-codes")
    assert said == "other-codes holds the training codes of another model: load those that were saved with this one"
