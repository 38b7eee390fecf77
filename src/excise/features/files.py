"""Features and labels from .npy, .npz, .safetensors, .parquet and text files, memory-mapped where the format allows."""

import csv
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from excise.errors import InputError, import_extra
from excise.features.arrays import Array
from excise.tensorfile import MalformedError, open_tensors

FEATURE_NAMES = ("X", "x", "features", "embeddings")
LABEL_NAMES = ("y", "labels", "targets", "label")
LARGEST_LABEL = 2.0**53  # among floats; beyond, they skip whole numbers
NAMED = (".npz", ".safetensors", ".parquet")  # kinds of files that hold arrays or columns under names
# One form for each number, so that no two words become one label: int() also takes 1_0, 007, +7 and other scripts.
_WHOLE_NUMBER = re.compile("0|-?[1-9][0-9]*")
Location = str | PathLike[str]


class Table(NamedTuple):
    """What was read."""

    x: Array  # features (n, f)
    y: Array | None = None  # labels (n,)
    names: list[str] | None = None  # of the columns of x, where each is a column of a .parquet file


def read_features(
    path: Location,
    labels: Location | None = None,
    x_name: str | None = None,
    y_name: str | None = None,
    columns: list[str] | None = None,
) -> Table:
    """Features of a file, and its labels or those of a second file, if there are any.

    Arrays in .npz and .safetensors files and columns in .parquet files are found under their usual names
    (X, x, features, embeddings; y, labels, targets, label), or under `x_name` and `y_name`. `columns` are the names of
    the features that a model was trained on: where a file names its own, these are taken, in this order.
    """
    path = Path(path)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path} is no file of features by its name: use one of {', '.join(_READERS)}")
    _check_exists(path)
    x, y, names = reader(path, x_name, y_name, labels is None, columns)
    if labels is not None:
        y = read_labels(labels, y_name)
    _check_features(path, x)
    if y is not None:
        y = _checked_labels(labels if labels is not None else path, y, len(x))
    return Table(x, y, names)


def read_labels(path: Location, name: str | None = None) -> Array:
    """Labels (n,) of a .npy, .npz or .safetensors file, or of a .txt or .csv file with one label a line.

    Lines are read as integers where all of them are written as Python writes them, else as text: 7 and 007 differ.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    _check_exists(path)
    if suffix == ".npy":
        return _load_npy(path)
    if suffix in (".txt", ".csv"):
        return _read_lines(path)
    if suffix in (".npz", ".safetensors"):
        with _Archive(path) as archive:
            return archive.array(name, LABEL_NAMES, "labels")
    raise InputError(f"{path} is no file of labels by its name: use .npy, .npz, .safetensors, .txt or .csv")


def has_names(path: Location) -> bool:
    """Whether a file holds arrays or columns under names, to choose from."""
    return Path(path).suffix.lower() in NAMED


# -- formats ----------------------------------------------------------------------------------------------------------


def _read_npy(path: Path, *_: Any) -> Table:
    return Table(_load_npy(path))


def _read_archive(path: Path, x_name: str | None, y_name: str | None, labelled: bool, _: list[str] | None) -> Table:
    with _Archive(path) as archive:
        x = archive.array(x_name, FEATURE_NAMES, "features")
        wanted = labelled and (y_name is not None or archive.has(LABEL_NAMES))
        return Table(x, archive.array(y_name, LABEL_NAMES, "labels") if wanted else None)


def _read_parquet(
    path: Path, x_name: str | None, y_name: str | None, labelled: bool, wanted: list[str] | None
) -> Table:
    parquet = import_extra("pyarrow.parquet", "parquet", f"reading {path}")
    try:
        table = parquet.read_table(path)
        index = _index_columns(table)
    except Exception as error:  # pyarrow's own errors derive from several built-in ones
        raise InputError(f"{path} cannot be read as parquet: {_first_line(error)}") from error
    others = [name for name in table.column_names if name == y_name or name not in (wanted or ())]
    y_column = _pick(path, others, y_name, LABEL_NAMES, "labels", required=y_name is not None)
    columns = [name for name in table.column_names if name not in index and name != y_column]
    x, names = _parquet_features(path, table, columns, x_name, wanted)
    y = _parquet_labels(path, table[y_column]) if labelled and y_column is not None else None
    return Table(x, y, names)


_READERS: dict[str, Callable[[Path, str | None, str | None, bool, list[str] | None], Table]] = {
    ".npy": _read_npy,
    ".npz": _read_archive,
    ".safetensors": _read_archive,
    ".parquet": _read_parquet,
}


def _load_npy(path: Path) -> Array:
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} cannot be read as .npy: {_npy_reason(error)}") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise InputError(f"{path} is an .npz archive by its content: rename it to end in .npz")
    return array


def _npy_reason(error: Exception) -> str:
    text = _first_line(error)
    if "Python objects" in text or "pickle" in text.lower() or "Object arrays" in text:
        return "it holds Python objects or is no array at all; save an array of numbers or strings"
    return text


class _Archive:
    """Named arrays of an .npz or .safetensors file."""

    def __init__(self, path: Path):
        self._path = path
        self._npz = path.suffix.lower() == ".npz"
        self._arrays: Mapping[str, Any]
        self._file = open(path, "rb")
        try:
            self._arrays = self._read_npz() if self._npz else self._map_tensors()
        except BaseException:
            self._file.close()
            raise

    def _read_npz(self) -> Mapping[str, Any]:
        try:
            arrays: Any = np.load(self._file, allow_pickle=False)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
            raise InputError(f"{self._path} cannot be read as .npz: {_npy_reason(error)}") from error
        if isinstance(arrays, np.ndarray):
            raise InputError(f"{self._path} is a single array by its content: rename it to end in .npy")
        return arrays  # type: ignore[no-any-return]

    def _map_tensors(self) -> Mapping[str, Any]:
        try:
            file = open_tensors(self._path)
        except MalformedError as error:
            raise InputError(f"{self._path} {error}") from error
        self._dtypes = file.dtypes
        return file.tensors

    def __enter__(self) -> "_Archive":
        return self

    def __exit__(self, *_: object) -> None:
        if isinstance(self._arrays, np.lib.npyio.NpzFile):
            self._arrays.close()
        self._file.close()

    def has(self, names: Iterable[str]) -> bool:
        return any(name in self._arrays for name in names)

    def array(self, name: str | None, usual: tuple[str, ...], what: str) -> Array:
        found = _pick(self._path, list(self._arrays), name, usual, what, required=True)
        assert found is not None
        try:
            array: Array = self._arrays[found]
        except Exception as error:  # zlib, zipfile and numpy each have their own
            raise InputError(f"{self._path} cannot be read at {found!r}: {_npy_reason(error)}") from error
        if not self._npz and self._dtypes[found] == "BF16":
            return (array.astype(np.uint32) << 16).view(np.float32)
        return array


def _index_columns(table: Any) -> set[str]:
    """Columns in which pandas wrote its index: they number the rows and are no features."""
    noted = (table.schema.pandas_metadata or {}).get("index_columns", [])
    return {name for name in table.column_names if name in noted or re.fullmatch(r"__index_level_\d+__", name)}


def _parquet_features(
    path: Path, table: Any, columns: list[str], x_name: str | None, wanted: list[str] | None
) -> tuple[Array, list[str] | None]:
    """Features (n, f) from the columns, and their names where each is a column of its own."""
    if wanted is not None and x_name is None and set(wanted) <= set(columns):
        return _parquet_columns(path, table, wanted), wanted
    chosen = _pick(path, columns, x_name, FEATURE_NAMES, "features", required=x_name is not None)
    names = columns if chosen is None else [chosen]
    vectors = _column_of_lists(table, names)
    if vectors is not None:
        return _parquet_lists(path, table[vectors], vectors), None
    if wanted is not None and names != wanted:
        raise _misses(path, columns if x_name is None else names, wanted)
    return _parquet_columns(path, table, names), names


def _misses(path: Path, columns: list[str], wanted: list[str]) -> InputError:
    missing = [name for name in wanted if name not in columns]
    extra = [name for name in columns if name not in wanted]
    return InputError(
        f"{path} lacks the features {_some(missing)}, which the model was trained on, and holds "
        f"{_some(extra) if extra else 'nothing'} instead: use the names of the training data"
    )


def _some(names: list[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")


def _column_of_lists(table: Any, columns: list[str]) -> str | None:
    """The one column whose rows are whole feature vectors; text beside it, as file names, is passed over."""
    kinds = {name: table.schema.field(name).type for name in columns}
    lists = [name for name in columns if _is_list(kinds[name])]
    return lists[0] if len(lists) == 1 and not any(map(_is_number, kinds.values())) else None


def _parquet_columns(path: Path, table: Any, columns: list[str]) -> Array:
    from pyarrow import types

    kinds = {name: table.schema.field(name).type for name in columns}
    wrong = next((name for name in columns if not _is_number(kinds[name])), None)
    if wrong is not None:
        raise InputError(
            f"{path} has a column {wrong!r} of {kinds[wrong]}, which is no feature: name the labels with --y-name, "
            "or the one column that holds lists of numbers with --x-name"
        )
    if not columns:
        raise InputError(f"{path} has no columns of features")
    dtype = np.float64 if any(types.is_float64(kind) for kind in kinds.values()) else np.float32
    out = np.empty((table.num_rows, len(columns)), dtype)
    for i, name in enumerate(columns):
        out[:, i] = table[name].to_numpy()
    return out


def _parquet_lists(path: Path, column: Any, name: str) -> Array:
    column = column.combine_chunks()
    flat = column.flatten().to_numpy(zero_copy_only=False)
    size = len(flat) // max(1, len(column))
    lengths = set(column.value_lengths().to_pylist()) if hasattr(column, "value_lengths") else {size}
    if column.null_count or lengths - {size}:
        raise InputError(f"{path} has lists of different lengths in column {name!r}: every example needs as many")
    return flat.reshape(len(column), size)  # type: ignore[no-any-return]


def _parquet_labels(path: Path, column: Any) -> Array:
    if column.null_count:
        raise InputError(f"{path} has {column.null_count} missing labels: drop those rows first")
    if _is_list(column.type):
        raise InputError(f"{path} has labels of type {column.type}: one number or word per example is needed")
    values = column.to_pylist()
    return np.array(values) if values else np.empty(0, np.int64)


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_floating(kind) or types.is_integer(kind))


def _read_lines(path: Path) -> Array:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as text: {_first_line(error)}") from error
    wide = next((row for row in rows if len(row) > 1), None)
    if wide is not None:
        raise InputError(f"{path} has a line with {len(wide)} values: it must hold one label a line and nothing else")
    return _from_words([row[0].strip() for row in rows])


def _from_words(words: list[str]) -> Array:
    if not all(map(_WHOLE_NUMBER.fullmatch, words)):
        return np.array(words)
    try:
        return np.array([int(word) for word in words], dtype=np.int64)
    except (ValueError, OverflowError):  # too long for int, or for 64 bits
        return np.array(words)


# -- checks -----------------------------------------------------------------------------------------------------------


def _pick(
    path: Path, names: list[str], name: str | None, usual: tuple[str, ...], what: str, required: bool
) -> str | None:
    """The one name asked for, or the only usual one that is there."""
    if name is not None:
        if name not in names:
            raise InputError(f"{path} has no {name!r}: it holds {', '.join(map(repr, names)) or 'nothing'}")
        return name
    found = [candidate for candidate in usual if candidate in names]
    flag = "x" if what == "features" else "y"
    if len(found) > 1:
        raise InputError(f"{path} has several {what}, {' and '.join(map(repr, found))}: choose with --{flag}-name")
    if not found and required:
        raise InputError(
            f"{path} has no {what} under a usual name ({', '.join(usual)}): it holds "
            f"{', '.join(map(repr, names)) or 'nothing'}; choose with --{flag}-name"
        )
    return found[0] if found else None


def _check_exists(path: Path) -> None:
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file")
    if not path.exists():
        raise InputError(f"{path} does not exist: check the path")
    if not path.is_file():
        raise InputError(f"{path} is not a regular file: name a file on disk")
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty")
    if not os.access(path, os.R_OK):
        raise InputError(f"{path} cannot be read: permission denied")


def _check_features(path: Path, x: Array) -> None:
    if x.dtype.kind not in "fiub":
        raise InputError(f"{path} holds features of type {x.dtype}: they must be numbers, best float32 or float16")
    if x.ndim != 2:
        raise InputError(f"{path} holds features of shape {x.shape}: one row per example and one column per feature")
    if x.shape[0] == 0 or x.shape[1] == 0:
        raise InputError(f"{path} holds no features: its shape is {x.shape}")


def _checked_labels(path: Location, y: Array, examples: int) -> Array:
    if y.ndim == 2 and 1 in y.shape:
        y = y.reshape(-1)
    if y.ndim != 1:
        raise InputError(f"{fspath(path)} holds labels of shape {y.shape}: one label per example is needed")
    if len(y) == examples + 1 and y.dtype.kind == "U" and y[0] in LABEL_NAMES:  # a header, as `excise predict` writes
        y = _from_words(y[1:].tolist())
    if len(y) != examples:
        raise InputError(f"{fspath(path)} holds {len(y):,} labels for {examples:,} examples: there must be one each")
    if y.dtype.kind not in "fiubU":
        raise InputError(f"{fspath(path)} holds labels of type {y.dtype}: use integers, booleans or strings")
    if y.dtype.kind == "f":
        wide = y.astype(np.longdouble)
        wrong = wide[~(np.abs(wide) <= LARGEST_LABEL) | (wide != np.round(wide))]
        if len(wrong):
            raise InputError(
                f"{fspath(path)} holds the label {float(wrong[0])!r}: labels are text or whole numbers, written as "
                "floats at most 2^53"
            )
        if y.dtype.itemsize > 8:
            return y.astype(np.float64)
    return y


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
