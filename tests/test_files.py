"""Features and labels from files: every format gives the same arrays, every bad file one sentence."""

import contextlib
import importlib
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from excise import InputError, MissingExtraError
from excise.features.files import read_features, read_labels

X = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)
Y = np.array([3, 1, 2, 3, 1, 2, 3])


def write_parquet(path: Path, **columns: Any) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table(columns), path)


def write_npz(path: Path, **arrays: Any) -> None:
    with path.open("wb") as file:
        np.savez(file, **arrays)


def write_npy(path: Path, array: Any) -> None:
    with path.open("wb") as file:
        np.save(file, array)


WRITERS = {
    ".npz": write_npz,
    ".safetensors": lambda path, **arrays: save_file(arrays, path),
    ".parquet": lambda path, **arrays: write_parquet(path, **{n: list(a) for n, a in arrays.items()}),
}


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize(
    ("x_name", "y_name"), [("X", "y"), ("x", "labels"), ("features", "targets"), ("embeddings", "y")]
)
def test_arrays_are_found_under_their_usual_names(tmp_path: Path, suffix: str, x_name: str, y_name: str) -> None:
    path = tmp_path / f"data{suffix}"
    WRITERS[suffix](path, **{x_name: X, y_name: Y})
    x, y, _ = read_features(path)
    assert x.dtype == np.float32
    assert np.array_equal(x, X)
    assert np.array_equal(y, Y)


@pytest.mark.parametrize("suffix", WRITERS)
def test_arrays_are_found_under_any_name(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"data{suffix}"
    WRITERS[suffix](path, a=X, b=Y, y=-Y)
    x, y, _ = read_features(path, x_name="a", y_name="b")
    assert np.array_equal(x, X)
    assert np.array_equal(y, Y)
    with pytest.raises(InputError, match=f"{suffix} has no 'c': it holds '[aby]', '[aby]'"):
        read_features(path, x_name="c")


@pytest.mark.parametrize("suffix", WRITERS)
def test_labels_of_a_second_file_win(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"data{suffix}"
    WRITERS[suffix](path, X=X, y=Y)
    write_npy(tmp_path / "y.npy", -Y)
    _, y, _ = read_features(path, tmp_path / "y.npy")
    assert np.array_equal(y, -Y)


def test_npy_and_safetensors_are_mapped(tmp_path: Path) -> None:
    write_npy(tmp_path / "x.npy", X)
    save_file({"x": X}, tmp_path / "x.safetensors")
    for name in ("x.npy", "x.safetensors"):
        x, y, _ = read_features(tmp_path / name)
        assert y is None
        assert not x.flags.owndata
        assert not x.flags.writeable
        assert np.array_equal(x, X)


def test_bfloat16_is_widened(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    x = torch.tensor(X).bfloat16()
    save_torch({"x": x}, tmp_path / "x.safetensors")
    assert np.array_equal(read_features(tmp_path / "x.safetensors")[0], x.float().numpy())


def test_parquet_of_columns_and_of_fixed_lists(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / "data.parquet"
    write_parquet(path, a=X[:, 0], label=[f"d{i}" for i in Y], b=X[:, 1].astype(np.float64))
    x, y, _ = read_features(path)
    assert np.array_equal(x, X[:, :2])
    assert y is not None
    assert y.tolist() == [f"d{i}" for i in Y]
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(X.reshape(-1)), 3)
    write_parquet(path, embedding=fixed, file=[f"{i}.jpg" for i in Y], y=Y)
    assert np.array_equal(read_features(path)[0], X)
    write_parquet(path, embedding=fixed, file=[f"{i}.jpg" for i in Y], id=Y)
    with pytest.raises(InputError, match=r"column 'embedding' of fixed_size_list.* which is no feature: name"):
        read_features(path)
    assert np.array_equal(read_features(path, x_name="embedding")[0], X)


def test_parquet_keeps_the_names_of_its_columns(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / "data.parquet"
    write_parquet(path, b=X[:, 1], y=Y, a=X[:, 0])
    assert read_features(path).names == ["b", "a"]
    assert read_features(path, x_name="a").names == ["a"]
    write_parquet(path, X=pa.FixedSizeListArray.from_arrays(pa.array(X.reshape(-1)), 3))
    assert read_features(path).names is None


@pytest.mark.parametrize("order", [["a", "b", "c"], ["c", "a", "b"]])
def test_parquet_gives_the_columns_that_a_model_knows(tmp_path: Path, order: list[str]) -> None:
    path = tmp_path / "data.parquet"
    columns = {name: X[:, "abc".index(name)] for name in order}
    write_parquet(path, **columns, x=Y, file=[f"{i}.jpg" for i in Y], label=Y)
    x, y, names = read_features(path, columns=["a", "b", "c"])
    assert np.array_equal(x, X)
    assert np.array_equal(y, Y)
    assert names == ["a", "b", "c"]
    write_parquet(path, **columns)
    for wanted in (["a", "d", "c"], ["a", "b", "c", "d"]):
        with pytest.raises(
            InputError,
            match=r"lacks the features 'd', which the model was trained on, and holds ('b'|nothing) instead:",
        ):
            read_features(path, columns=wanted)
    with pytest.raises(InputError, match=r"lacks the features 'b', 'c', which"):
        read_features(path, x_name="a", columns=["a", "b", "c"])


def test_a_feature_may_have_a_usual_name_of_labels(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    write_parquet(path, y=X[:, 1], x=X[:, 0], z=X[:, 2])
    write_npy(tmp_path / "labels.npy", Y)
    x, y, _ = read_features(path, tmp_path / "labels.npy", columns=["x", "y", "z"])
    assert np.array_equal(x, X)
    assert np.array_equal(y, Y)
    assert read_features(path, columns=["x", "y", "z"]).y is None
    with pytest.raises(InputError, match="lacks the features 'y', which the model was trained on"):
        read_features(path, y_name="y", columns=["x", "y", "z"])


def test_files_without_names_suit_a_model_with_names(tmp_path: Path) -> None:
    for suffix, write in WRITERS.items():
        write(tmp_path / f"x{suffix}", X=X)
        x, _, names = read_features(tmp_path / f"x{suffix}", columns=["a", "b", "c"])
        assert np.array_equal(x, X)
        assert names is None


@pytest.mark.parametrize("name", [None, "id"])
def test_the_index_of_a_data_frame_is_no_feature(tmp_path: Path, name: str | None) -> None:
    pd = pytest.importorskip("pandas")
    path = tmp_path / "data.parquet"
    frame = pd.DataFrame(X, columns=list("abc"), index=pd.Index(Y, name=name))
    frame.to_parquet(path)
    x, _, names = read_features(path)
    assert names == ["a", "b", "c"]
    assert np.array_equal(x, X)
    write_parquet(path, a=X[:, 0], __index_level_0__=Y)  # written again by a tool that drops pandas' notes
    assert read_features(path).names == ["a"]


def test_labels_may_be_the_index_of_a_data_frame(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    pd.DataFrame(X, index=pd.Index(Y, name="label")).to_parquet(tmp_path / "data.parquet")
    x, y, _ = read_features(tmp_path / "data.parquet")
    assert np.array_equal(x, X)
    assert np.array_equal(y, Y)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_lines_of_integers_are_integers(numbers: list[int]) -> None:
    assert read_text("\n".join(map(str, numbers)) + "\n").tolist() == numbers


@given(st.lists(st.from_regex(r"[-+]?[01]([01]|_[01]|\u0661)?", fullmatch=True), min_size=2, max_size=5))
def test_different_words_are_different_labels(words: list[str]) -> None:
    labels = read_text("\n".join(words)).tolist()
    assert [a == b for a in labels for b in labels] == [a == b for a in words for b in words]


@pytest.mark.parametrize("word", ["1_0", "007", "+7", "-0", "-07", "\u0667", "7.0", "0x7", "9" * 20, "9" * 5000])
def test_words_that_only_look_like_integers_are_text(word: str) -> None:
    assert read_text(f"{word}\n10\n7").tolist() == [word, "10", "7"]


@given(st.lists(st.text("abc \u00e9\u4e2d", min_size=1).map(lambda s: f"x{s}y"), min_size=1))
def test_lines_of_text_are_text(words: list[str]) -> None:
    assert read_text("\r\n".join(words)).tolist() == words


def read_text(text: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "y.txt"
        path.write_bytes(text.encode())
        return read_labels(path)


def test_text_with_quotes_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "y.csv"
    path.write_text('\ufeff"a, b"\nc\n', encoding="utf-8")
    assert read_labels(path).tolist() == ["a, b", "c"]


@pytest.mark.parametrize("labels", [Y, np.array(list("abcabca"))])
def test_a_header_as_predictions_have_it_is_no_label(tmp_path: Path, labels: Any) -> None:
    write_npy(tmp_path / "x.npy", X)
    (tmp_path / "y.csv").write_text("\n".join(["label", *map(str, labels)]))
    y = read_features(tmp_path / "x.npy", tmp_path / "y.csv").y
    assert y is not None
    assert y.tolist() == labels.tolist()
    (tmp_path / "y.csv").write_text("\n".join(["y", *"abcabc"]))  # as many lines as examples: none is a header
    y = read_features(tmp_path / "x.npy", tmp_path / "y.csv").y
    assert y is not None
    assert y.tolist() == ["y", *"abcabc"]


def test_whole_numbers_of_any_float_type_are_labels(tmp_path: Path) -> None:
    for dtype in (np.float16, np.float64, np.longdouble):
        write_npz(tmp_path / "x.npz", X=X, y=Y.astype(dtype))
        y = read_features(tmp_path / "x.npz").y
        assert y is not None
        assert y.tolist() == Y.tolist()
        assert y.dtype.itemsize <= 8  # which a model on disk can hold


BAD = {
    "does not exist: check the path": ("x.npy", lambda p: None),
    "is a folder: name a file": ("x.npy", lambda p: p.mkdir()),
    "is empty": ("x.npy", lambda p: p.touch()),
    "use one of .npy, .npz, .safetensors, .parquet": ("x.jpg", lambda p: p.touch()),
    "it holds Python objects": ("x.npy", lambda p: write_npy(p, np.array([[{}]], dtype=object))),
    "Python objects or is no array": ("x.npy", lambda p: p.write_bytes(pickle.dumps([1.0] * 99))),
    "cannot be read as .npy": ("x.npy", lambda p: p.write_bytes(b"\x93NUMPY\x01\x00v\x00{")),
    "rename it to end in .npz": ("x.npy", lambda p: write_npz(p, X=X)),
    "rename it to end in .npy": ("x.npz", lambda p: write_npy(p, X)),
    "cannot be read as .npz": ("x.npz", lambda p: p.write_bytes(b"PK\x03\x04 no zip")),
    "cannot be read as parquet": ("x.parquet", lambda p: p.write_bytes(b"PAR1 no parquet")),
    "is not a safetensors file": ("x.safetensors", lambda p: p.write_bytes(b"nothing of the kind")),
    "has several features, 'X' and 'x': choose with --x-name": ("x.npz", lambda p: write_npz(p, X=X, x=X)),
    "has no features under a usual name": ("x.npz", lambda p: write_npz(p, other=X)),
    "cannot be read at 'X': it holds Python objects": ("x.npz", lambda p: write_npz(p, X=np.array([{}]))),
    "of shape (7,): one row per example": ("x.npy", lambda p: write_npy(p, X[:, 0])),
    "no features: its shape is (0, 3)": ("x.npy", lambda p: write_npy(p, X[:0])),
    "type complex64: they must be numbers": ("x.npy", lambda p: write_npy(p, X.astype(np.complex64))),
    "type <U32: they must be numbers": ("x.npy", lambda p: write_npy(p, X.astype("U"))),
    "holds 6 labels for 7 examples": ("x.npz", lambda p: write_npz(p, X=X, y=Y[1:])),
    "holds labels of shape (7, 2)": ("x.npz", lambda p: write_npz(p, X=X, y=np.zeros((7, 2)))),
    "holds the label 0.5: labels are text or whole numbers": ("x.npz", lambda p: write_npz(p, X=X, y=Y + 0.5 - Y)),
    "holds the label nan": ("x.npz", lambda p: write_npz(p, X=X, y=np.full(7, np.nan))),
    "holds the label 9.223372036854776e+18": ("x.npz", lambda p: write_npz(p, X=X, y=np.where(Y == 1, 2.0**63, Y))),
    "holds the label 1e+300": ("x.npz", lambda p: write_npz(p, X=X, y=np.where(Y == 1, 1e300, Y))),
    "holds labels of type complex128": ("x.npz", lambda p: write_npz(p, X=X, y=Y * 1j)),
    "lists of different lengths in column 'X'": ("x.parquet", lambda p: write_parquet(p, X=[[1.0], [1.0, 2.0]])),
    "has labels of type list<": ("x.parquet", lambda p: write_parquet(p, X=[[1.0]] * 2, y=[[1], [1, 1]])),
    "2 missing labels": ("x.parquet", lambda p: write_parquet(p, X=[[1.0]] * 3, y=[None, 1, None])),
    "no columns of features": ("x.parquet", lambda p: write_parquet(p, y=[1, 2])),
}


@pytest.mark.parametrize(("sentence", "case"), BAD.items(), ids=list(BAD))
def test_a_bad_file_is_one_sentence_that_names_it(tmp_path: Path, sentence: str, case: Any) -> None:
    name, write = case
    write(tmp_path / name)
    with pytest.raises(InputError) as caught:
        read_features(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


BAD_LABELS = {
    "a line with 2 values": ("y.csv", b"1,2\n"),
    "cannot be read as text": ("y.txt", b"\xff\xfe\x00"),
    "no file of labels by its name": ("y.jpg", b"1"),
    "cannot be read as .npy": ("y.npy", b"1\n2\n"),
    "holds 2 labels for 7 examples": ("y.txt", b"1\n2\n"),
}


@pytest.mark.parametrize(("sentence", "case"), BAD_LABELS.items(), ids=list(BAD_LABELS))
def test_bad_labels_are_one_sentence(tmp_path: Path, sentence: str, case: Any) -> None:
    name, content = case
    write_npy(tmp_path / "x.npy", X)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=sentence) as caught:
        read_features(tmp_path / "x.npy", tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name))


@pytest.mark.parametrize("suffix", [*WRITERS, ".npy"])
@given(st.data())
def test_damage_is_never_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / f"damaged{suffix}"
    write_npy(path, X) if suffix == ".npy" else WRITERS[suffix](path, X=X, y=Y)
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with contextlib.suppress(InputError):
        read_features(path)


def test_a_missing_extra_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    real = importlib.import_module

    def without(name: str, *args: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ModuleNotFoundError(f"No module named {name!r}", name="pyarrow")
        return real(name, *args)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(MissingExtraError, match=r"pip install 'excise\[parquet\]'"):
        read_features(tmp_path / "x.parquet")
