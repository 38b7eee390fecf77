"""Safetensors files as named memory maps, opened only after every length in them has been checked."""

import json
import mmap
import os
import stat
from dataclasses import dataclass
from math import prod
from os import PathLike
from typing import Any

import numpy as np

from excise.features.arrays import Array

LONGEST_HEADER = 100_000_000  # bytes; the limit of the safetensors format
ALIGNMENT = 64  # the tensors begin at a multiple of so many bytes

DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "<u2",
}  # fmt: skip
_OTHERS = {b"\x93NUMPY": "a .npy array", b"PK\x03\x04": "a zip archive, as .npz and .pt are", b"\x80": "a pickle",
           b"PAR1": "a parquet file", b"\x89HDF": "an HDF5 file"}  # fmt: skip


class MalformedError(ValueError):
    """What is wrong with a file, as the rest of a sentence that begins with its name."""


@dataclass(frozen=True, eq=False)
class TensorFile:
    """An open file: read-only arrays that stay on disk until they are touched, and the text beside them."""

    header: bytes
    metadata: dict[str, str]
    dtypes: dict[str, str]  # as safetensors names them; BF16 has no numpy type and is mapped as its 16 bits
    tensors: dict[str, Array]


def open_tensors(path: str | PathLike[str]) -> TensorFile:
    """Map the file, or raise `MalformedError`."""
    data, size = _map(path)
    header = _header(data, size)
    entries = _parse(header)
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise MalformedError("has a damaged header: its metadata is not text")
    _check_layout(entries, size - 8 - len(header))
    tensors = {name: _tensor(name, entry, data, 8 + len(header)) for name, entry in entries.items()}
    return TensorFile(header, metadata, {name: entry["dtype"] for name, entry in entries.items()}, tensors)


def render_header(metadata: dict[str, str], tensors: dict[str, Array]) -> bytes:
    """The JSON header of tensors written one after the other, padded so that they begin aligned."""
    entries: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        dtype = next(key for key, value in DTYPES.items() if np.dtype(value) == tensor.dtype)
        entries[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    header = json.dumps(entries, separators=(",", ":")).encode("ascii")
    return header + b" " * (-(8 + len(header)) % ALIGNMENT)


def _map(path: str | PathLike[str]) -> tuple[Any, int]:
    try:
        kind = os.stat(path).st_mode
        if stat.S_ISDIR(kind):
            raise MalformedError("is a folder: name a file")
        if not stat.S_ISREG(kind):
            raise MalformedError("is not a regular file: name a file on disk")
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise MalformedError("is empty: copy or write it again")
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), size
    except FileNotFoundError:
        raise MalformedError("does not exist: check the path") from None
    except OSError as error:
        raise MalformedError(f"cannot be read: {error.strerror or error}") from error


def _header(data: Any, size: int) -> bytes:
    if size <= 8:
        raise MalformedError(
            f"is too short for a safetensors file ({size} bytes): it was cut off, or is something else"
        )
    length = int.from_bytes(data[:8], "little")
    if length > LONGEST_HEADER or data[8:9] != b"{":
        start = data[:8]
        guess = next((f" (it looks like {name})" for magic, name in _OTHERS.items() if start.startswith(magic)), "")
        raise MalformedError(f"is not a safetensors file{guess}")
    if 8 + length > size:
        raise MalformedError(f"is truncated: it ends within its header, after {size:,} bytes; copy it again")
    header: bytes = data[8 : 8 + length]
    return header


def _parse(header: bytes) -> dict[str, Any]:
    try:
        entries = json.loads(header.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise MalformedError("has a damaged header: it is not JSON; copy the file again") from error
    if not isinstance(entries, dict):
        raise MalformedError("has a damaged header: it is not a JSON object")
    return entries


def _check_layout(entries: dict[str, Any], size: int) -> None:
    """Every tensor described in full, and all of them side by side from the first byte to the last."""
    for name, entry in entries.items():
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise MalformedError(
                f"has a damaged header: tensor {name!r} is not described by dtype, shape and data_offsets"
            )
        if not _whole(entry["shape"]) or not _whole(entry["data_offsets"]) or len(entry["data_offsets"]) != 2:
            raise MalformedError(f"has a damaged header: tensor {name!r} has no valid shape and offsets")
        if not isinstance(entry["dtype"], str) or entry["dtype"] not in DTYPES:
            raise MalformedError(f"holds tensor {name!r} of type {entry['dtype']}: excise reads {', '.join(DTYPES)}")
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = entry["data_offsets"]
        if begin != end or stop - begin != prod(entry["shape"]) * np.dtype(DTYPES[entry["dtype"]]).itemsize:
            raise MalformedError(f"has a damaged header: shape and offsets of tensor {name!r} disagree")
        end = stop
    if end > size:
        raise MalformedError(f"is truncated: {end - size:,} bytes are missing at its end; copy it again")
    if end < size:
        raise MalformedError(f"has {size - end:,} bytes too many at its end: copy it again")


def _whole(numbers: Any) -> bool:
    return isinstance(numbers, list) and all(type(number) is int and number >= 0 for number in numbers)


def _tensor(name: str, entry: dict[str, Any], data: Any, start: int) -> Array:
    offset = start + entry["data_offsets"][0]
    try:
        return np.ndarray(tuple(entry["shape"]), np.dtype(DTYPES[entry["dtype"]]), buffer=data, offset=offset)
    except (ValueError, OverflowError, TypeError) as error:
        raise MalformedError(f"has a damaged header: the shape of tensor {name!r} is impossible") from error
