"""Signed safetensors files: digests of the header and of every tensor, and one sentence for whatever is wrong."""

import hashlib
import json
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

from excise.atomic import written_whole
from excise.errors import ModelFileError
from excise.features.arrays import Array
from excise.tensorfile import MalformedError, open_tensors, render_header

_NO_DIGEST = "0" * 64


@dataclass(frozen=True)
class Format:
    """What the metadata calls a kind of file, the newest version that is read and written, and its name in words."""

    name: str
    version: int
    words: str


@dataclass(frozen=True, eq=False)
class SignedFile:
    """An open file whose header is intact: its version, the text in its metadata, and its mapped tensors."""

    path: str
    version: int
    metadata: dict[str, str]
    dtypes: dict[str, str]
    tensors: dict[str, Array]

    def read(self, name: str, *kinds: type) -> Any:
        """What the JSON of one entry of the metadata says, of one of these types."""
        try:
            content = json.loads(self.metadata[name])
        except (KeyError, ValueError, RecursionError) as error:
            raise self.damaged(f"its header has no readable {name!r}") from error
        if not isinstance(content, kinds):
            raise self.damaged(f"its header has no readable {name!r}")
        return content

    def verify(self) -> None:
        """Read every tensor and compare its digest."""
        digests = self.read("sha256", dict)
        for name, tensor in self.tensors.items():
            if hashlib.sha256(tensor_bytes(tensor)).hexdigest() != digests.get(name):
                raise self.damaged(f"its {name} do not match their digest")

    def damaged(self, what: str) -> ModelFileError:
        """The error that says so."""
        return ModelFileError(f"{self.path} is damaged: {what}; copy it again or restore a backup")

    def newer(self, why: str) -> ModelFileError:
        """The error that says to upgrade."""
        return ModelFileError(
            f"{self.path} was written by a newer excise ({why}): upgrade it with pip install --upgrade excise"
        )


def write_signed(path: str | PathLike[str], kind: Format, metadata: dict[str, str], tensors: dict[str, Array]) -> None:
    """Write tensors and text to `path`, whole or not at all; a file already there stays until this one is on disk.

    Tensors of larger elements come first, so that each begins at a multiple of its own.
    """
    tensors = dict(sorted(tensors.items(), key=lambda item: -item[1].itemsize))
    digests = {name: hashlib.sha256(tensor_bytes(tensor)).hexdigest() for name, tensor in tensors.items()}
    names = {"format": kind.name, "format_version": str(kind.version)}
    header = signed_header({**names, **metadata, "sha256": json.dumps(digests)}, tensors)
    with written_whole(path, ModelFileError) as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for tensor in tensors.values():
            file.write(tensor_bytes(tensor))


def open_signed(path: str | PathLike[str], kind: Format) -> SignedFile:
    """The file, known to be of this kind, of a version that can be read, and with an intact header."""
    try:
        file = open_tensors(path)
    except MalformedError as error:
        raise ModelFileError(f"{fspath(path)} {error}") from error
    metadata = file.metadata
    if metadata.get("format") != kind.name:
        raise ModelFileError(f"{fspath(path)} is a safetensors file, but no {kind.words}: it was not written by it")
    text = metadata.get("format_version", "")
    version = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    opened = SignedFile(fspath(path), version, metadata, file.dtypes, file.tensors)
    digest = metadata.get("header_sha256")
    if digest is not None:
        blank = file.header.replace(digest.encode("utf-8", "replace"), _NO_DIGEST.encode(), 1)
        if hashlib.sha256(blank).hexdigest() != digest:
            raise opened.damaged("its header does not match its digest")
    if version > kind.version:
        raise opened.newer(f"format {version}, this one reads {kind.version}")
    if version < 1 or text != str(version) or digest is None:
        raise opened.damaged("its header is incomplete")
    return opened


def signed_header(metadata: dict[str, str], tensors: dict[str, Array]) -> bytes:
    """The header with its own digest in it, taken while the digest's place held zeros."""
    blank = render_header({"header_sha256": _NO_DIGEST, **metadata}, tensors)  # first: nothing of a user precedes it
    return blank.replace(_NO_DIGEST.encode(), hashlib.sha256(blank).hexdigest().encode(), 1)


def tensor_bytes(tensor: Array) -> Any:
    """The bytes of an array without gaps, not copied."""
    return tensor.reshape(-1).view("u1").data
