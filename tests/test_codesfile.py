"""Training codes on disk: for one model only, checked as kernels need it, and gone where they were erased."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import excise
from conftest import NAMES, SMALL, blobs, forged
from excise import InputError, KeyValueClassifier, ModelFileError
from excise.tensorfile import open_tensors

X, Y = blobs(140, classes=len(NAMES))
HELD = ("training_codes_", "training_labels_", "training_rows_")


def fitted(**changes: Any) -> KeyValueClassifier:
    return KeyValueClassifier(**SMALL | {"top_k": 2} | changes).fit(X, NAMES[Y])


@pytest.fixture(scope="module")
def original() -> KeyValueClassifier:
    return fitted()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, original: KeyValueClassifier) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("codes")
    original.save(folder / "model")
    original.save_training_codes(folder / "codes")
    return folder / "model", folder / "codes"


@pytest.fixture
def loaded(files: tuple[Path, Path]) -> KeyValueClassifier:
    return excise.load(files[0])


def test_a_loaded_model_forgets_exactly_with_them(
    files: tuple[Path, Path], loaded: KeyValueClassifier, original: KeyValueClassifier
) -> None:
    with pytest.raises(InputError, match="or load a file of codes with load_training_codes"):
        loaded.forget("ant", by="exact")
    loaded.load_training_codes(files[1])
    for name in HELD:
        assert np.array_equal(getattr(loaded, name), getattr(original, name))
    assert not loaded.training_codes_.flags.writeable
    stays = fitted()
    for model in (loaded, stays):
        model.forget("ant", by="exact")
    assert loaded.logits(X).tobytes() == stays.logits(X).tobytes()


def test_the_same_codes_give_the_same_file_which_says_what_it_is(
    files: tuple[Path, Path], loaded: KeyValueClassifier, tmp_path: Path
) -> None:
    loaded.load_training_codes(files[1])
    loaded.save_training_codes(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == files[1].read_bytes()
    metadata = open_tensors(files[1]).metadata
    assert metadata["personal_data"] == "codes of training examples"
    assert (metadata["format"], metadata["format_version"]) == ("excise-codes", "1")


@pytest.mark.parametrize("change", [{"pairs": 15}, {"top_k": 1}, {"random_state": 1}, {"key_epochs": 1}], ids=str)
def test_codes_of_another_model_are_refused(files: tuple[Path, Path], change: dict[str, Any]) -> None:
    other = fitted(**change)
    with pytest.raises(ModelFileError, match="holds the training codes of another model: load those that were saved"):
        other.load_training_codes(files[1])


def test_codes_of_other_data_or_classes_are_refused(files: tuple[Path, Path]) -> None:
    for x, y in ((blobs(140, classes=7, seed=1)[0], NAMES[Y]), (X, Y)):
        with pytest.raises(ModelFileError, match="of another model"):
            KeyValueClassifier(**SMALL | {"top_k": 2}).fit(x, y).load_training_codes(files[1])


def test_a_model_and_codes_are_not_mistaken_for_each_other(files: tuple[Path, Path]) -> None:
    with pytest.raises(ModelFileError, match="is a safetensors file, but no model of excise"):
        excise.load(files[1])
    with pytest.raises(ModelFileError, match="but no file of training codes of excise: it was not written by it"):
        excise.load(files[0]).load_training_codes(files[0])


def test_without_codes_there_is_nothing_to_save(loaded: KeyValueClassifier, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not hold the codes of its training data: save them after fit"):
        loaded.save_training_codes(tmp_path / "codes")
    assert not list(tmp_path.iterdir())


def test_rows_of_erased_classes_are_left_out(files: tuple[Path, Path], loaded: KeyValueClassifier) -> None:
    loaded.forget("bee", pairs=9)
    loaded.erase()
    loaded.load_training_codes(files[1])  # written before, and of keys that are partly gone
    assert set(loaded.training_labels_) == {*NAMES.tolist()} - {"bee"}
    assert np.array_equal(loaded.training_rows_, (NAMES[Y] != "bee").nonzero()[0])
    stays = fitted()
    stays.forget("bee", pairs=9)
    stays.erase()
    assert np.array_equal(stays.training_codes_, loaded.training_codes_)


@pytest.mark.parametrize("by", ["activations", "exact"])
def test_nothing_of_erased_rows_is_left_in_the_file(by: str, tmp_path: Path) -> None:
    model, path = fitted(), tmp_path / "codes"
    model.save_training_codes(path)
    gone = [code.tobytes() for code in model.training_codes_[model.training_labels_ == "cat"]]
    gone += [code.tobytes() for code in model.training_codes_[[0, 3]]]
    before = path.read_bytes()
    assert all(code in before for code in gone)
    if by == "activations":
        model.forget("cat", pairs=9)
    else:
        model.forget("cat", by="exact")
    model.forget(rows=[0, 3], by="exact")
    model.erase()
    model.save_training_codes(path)
    left = {code.tobytes() for code in model.training_codes_}
    after = path.read_bytes()
    assert len(after) < len(before)
    assert not any(code in after for code in gone if code not in left)
    assert sum(code not in left for code in gone) > 15  # few share their code with an example that is kept
    again = excise.load(saved(model, tmp_path / "model"))
    again.load_training_codes(path)
    assert len(again.training_rows_) == len(Y) - (NAMES[Y] == "cat").sum() - 2


def saved(model: KeyValueClassifier, path: Path) -> Path:
    model.save(path)
    return path


def test_codes_larger_than_the_working_memory_are_copied_to_disk(
    files: tuple[Path, Path], loaded: KeyValueClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("excise.codesfile.ROWS", 16)
    loaded.forget("bee", pairs=9)
    loaded.erase()
    loaded.set_params(working_memory=1e-3).load_training_codes(files[1])
    assert isinstance(loaded.training_codes_, np.memmap)
    assert np.array_equal(loaded.training_codes_, fitted().training_codes_[NAMES[Y] != "bee"])


# -- damage -----------------------------------------------------------------------------------------------------------

TENSORS = {
    "its codes name pairs that are not there": lambda t: {"codes": t["codes"] + 15},
    "its codes are of shape (140, 4, 4)": lambda t: {"codes": t["codes"].reshape(140, 4, 4)},
    "its labels name classes that are not there": lambda t: {"labels": t["labels"] + 1},
    "its rows are not in order": lambda t: {"rows": t["rows"][::-1].copy()},
    "its rows are not in order; copy": lambda t: {"rows": t["rows"] - 1},
    "not codes, labels and rows that agree": lambda t: {"rows": t["rows"][1:]},
    "it holds codes, key_checks, labels, rows, not": lambda t: {"labels": t["labels"].astype("<i8")},
    "it holds codes, key_checks, labels, rows, spin, not": lambda t: {"spin": t["labels"]},
}


@pytest.mark.parametrize(("sentence", "change"), TENSORS.items(), ids=list(TENSORS))
def test_contents_that_disagree_are_one_sentence(
    files: tuple[Path, Path], loaded: KeyValueClassifier, sentence: str, change: Any
) -> None:
    path = forged(files[1], **change(open_tensors(files[1]).tensors))
    with pytest.raises(ModelFileError, match=f"is damaged: .*{re.escape(sentence)}"):
        loaded.load_training_codes(path)
    assert not hasattr(loaded, "training_codes_")


def test_no_pair_is_a_code_too(files: tuple[Path, Path], loaded: KeyValueClassifier) -> None:
    codes = open_tensors(files[1]).tensors["codes"].copy()
    codes[0, 0] = 65_535
    loaded.load_training_codes(forged(files[1], codes=codes))
    loaded.forget("ant", by="exact")


@given(st.data())
def test_one_changed_byte_anywhere_is_noticed(files: tuple[Path, Path], data: st.DataObject) -> None:
    content = bytearray(files[1].read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path = files[1].with_name("changed")
    path.write_bytes(content)
    with pytest.raises(ModelFileError):
        excise.load(files[0]).load_training_codes(path)
