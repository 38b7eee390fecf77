"""Training codes on disk, in a file of their own and only when asked: personal data, bound to one model."""

import hashlib
import json
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np

from excise.bottleneck.model import Bottleneck
from excise.bottleneck.reference import NO_PAIR
from excise.errors import InputError, ModelFileError
from excise.features.arrays import Array, empty_array
from excise.signed import Format, SignedFile, open_signed, tensor_bytes, write_signed
from excise.storage import describe_classes, versions

if TYPE_CHECKING:
    from excise.estimator import KeyValueClassifier

CODES = Format("excise-codes", 1, "file of training codes of excise")
PERSONAL = "codes of training examples"
ROWS = 65_536  # looked at, or copied, at once


def save_codes(model: "KeyValueClassifier", path: str | PathLike[str]) -> None:
    """Write the training codes that the model holds, with labels and row numbers, whole or not at all."""
    if not hasattr(model, "training_codes_"):
        raise InputError(
            "this model does not hold the codes of its training data: save them after fit, before the model is copied, "
            "saved and loaded, or trained further"
        )
    tensors = {
        "rows": np.ascontiguousarray(model.training_rows_, "<i8"),
        "labels": np.searchsorted(model.classes_, model.training_labels_).astype("<u4"),
        "codes": np.ascontiguousarray(model.training_codes_, "<u2"),
        "key_checks": _key_checks(model.bottleneck_, model.erased_),
    }
    metadata = {
        "personal_data": PERSONAL,
        "fingerprint": _fingerprint(model),
        "versions": json.dumps(versions()),
    }
    write_signed(path, CODES, metadata, tensors)


def load_codes(model: "KeyValueClassifier", path: str | PathLike[str]) -> tuple[Array, Array, Array]:
    """Codes (n, c, k), labels (n,) and row numbers (n,) from `path`, which was written for this very model.

    What was erased since, classes or single rows, is left out; the codes are mapped where none is.
    """
    file = open_signed(path, CODES)
    _check_shapes(file)
    file.verify()
    _check_model(file, model)
    codes, labels, rows = (file.tensors[name] for name in ("codes", "labels", "rows"))
    _check_contents(file, model)
    erased = {model._label(label) for r in model.requests_ if r.state == "erased" for label in r.classes}
    keep = ~np.isin(labels, sorted(erased))
    keep &= ~np.isin(rows, [row for r in model.requests_ if r.state == "erased" for row in r.rows or []])
    names = model.classes_[labels[keep]]
    return _chosen(codes, keep, model.working_memory), names, rows[keep]


def _fingerprint(model: "KeyValueClassifier") -> str:
    """Of what erasing leaves alone: projection, layout and classes."""
    b = model.bottleneck_
    digest = hashlib.sha256(json.dumps([b.layout, describe_classes(model.classes_)]).encode())
    digest.update(tensor_bytes(np.ascontiguousarray(b.projection, "<f4")))
    return digest.hexdigest()


def _key_checks(bottleneck: Bottleneck, erased: Array | None) -> Array:
    """A byte of each key (c*m,), from 1 to 255; 0 where it is erased.

    Keys that another fit drew differ in nearly all of them, and those of one model agree also after some are erased.
    """
    c, m, d = bottleneck.keys.shape
    weights = np.arange(1, 2 * d, 2, dtype=np.uint32) * np.uint32(2654435761)  # odd: every bit of a key counts
    checks = np.empty((c, m), np.uint8)
    for codebook, keys in enumerate(bottleneck.keys):
        bits = np.ascontiguousarray(keys, "<f4").view("<u4")
        checks[codebook] = (bits * weights).sum(axis=1, dtype=np.uint32) >> 24
    checks = np.maximum(checks, 1)
    if erased is not None:
        checks[erased] = 0
    return checks.reshape(-1)


def _check_shapes(file: SignedFile) -> None:
    kinds = {"rows": ("I64", 1), "labels": ("U32", 1), "codes": ("U16", 3), "key_checks": ("U8", 1)}
    found = {name: (file.dtypes[name], tensor.ndim) for name, tensor in file.tensors.items()}
    if found != kinds or len({len(file.tensors[name]) for name in ("rows", "labels", "codes")}) != 1:
        raise file.damaged(f"it holds {', '.join(sorted(found)) or 'nothing'}, not codes, labels and rows that agree")


def _check_model(file: SignedFile, model: "KeyValueClassifier") -> None:
    here, there = _key_checks(model.bottleneck_, model.erased_), file.tensors["key_checks"]
    alike = file.metadata.get("fingerprint") == _fingerprint(model) and len(here) == len(there)
    if not alike or ((here != there) & (here > 0) & (there > 0)).any():
        raise ModelFileError(
            f"{file.path} holds the training codes of another model: load those that were saved with this one"
        )


def _check_contents(file: SignedFile, model: "KeyValueClassifier") -> None:
    """Every number within the model's bounds: kernels use codes as they are."""
    codes, labels, rows = (file.tensors[name] for name in ("codes", "labels", "rows"))
    c, m = model.bottleneck_.keys.shape[:2]
    if codes.shape[1:] != (c, model.bottleneck_.top_k):
        raise file.damaged(f"its codes are of shape {codes.shape}")
    for start in range(0, len(codes), ROWS):
        part = codes[start : start + ROWS]
        if ((part >= m) & (part != NO_PAIR)).any():
            raise file.damaged("its codes name pairs that are not there")
    if (labels >= len(model.classes_)).any():
        raise file.damaged("its labels name classes that are not there")
    if (rows[1:] <= rows[:-1]).any() or (rows[:1] < 0).any():
        raise file.damaged("its rows are not in order")


def _chosen(codes: Array, keep: Array, working_memory: float) -> Array:
    """The codes to keep: all as they are, or copied, into a temporary file where they outgrow `working_memory`."""
    if keep.all():
        return codes
    chosen = empty_array((int(keep.sum()), *codes.shape[1:]), np.uint16, working_memory)
    end = 0
    for start in range(0, len(codes), ROWS):
        part = codes[start : start + ROWS][keep[start : start + ROWS]]
        chosen[end : end + len(part)] = part
        end += len(part)
    return chosen
