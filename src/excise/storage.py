"""Models on disk: one safetensors file, written whole or not at all, memory-mapped on load."""

import hashlib
import json
import math
import numbers
from os import PathLike, fspath
from typing import Any

import numpy as np
import sklearn
from sklearn.utils.validation import check_is_fitted

from excise.atomic import written_whole
from excise.bottleneck.model import DECODERS, LONGEST_KEY, MOST_PAIRS, MOST_RETRIEVED, Bottleneck
from excise.errors import InputError, ModelFileError
from excise.estimator import KeyValueClassifier, check_parameters
from excise.features.arrays import Array
from excise.tensorfile import MalformedError, TensorFile, open_tensors, render_header

FORMAT, FORMAT_VERSION = "excise-model", 1
_NO_DIGEST = "0" * 64
OF_THE_MACHINE = ("n_jobs", "verbose", "working_memory")  # parameters that say how to run, not what the model is
_CLASS_TYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
                "float16", "float32", "float64")  # fmt: skip


def save(model: KeyValueClassifier, path: str | PathLike[str]) -> None:
    """Write the model to `path`, whole or not at all; a model already there stays until the new one is on disk.

    Training codes are personal data and never written. The same model gives the same bytes.
    """
    check_is_fitted(model)
    tensors = _tensors(model.bottleneck_)
    header = _signed_header(_metadata(model, tensors), tensors)
    with written_whole(path, ModelFileError) as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for tensor in tensors.values():
            file.write(_bytes(tensor))


def load(path: str | PathLike[str], verify: bool = True) -> KeyValueClassifier:
    """The model in `path`, its arrays read-only and memory-mapped: nothing is read before it is used.

    `verify` reads the file once to compare its digests; without it, damage in the tensors goes unnoticed.
    """
    file = _open(path)
    model = _restore(path, file)
    if verify:
        _verify(path, file)
    return model


def model_bytes(axes: dict[str, int]) -> int:
    """About how many bytes a model with these axes takes on disk."""
    table = axes["codebooks"] * axes["pairs"] * (axes["key_dim"] + axes["classes"])
    return 4 * (axes["features"] * axes["codebooks"] * axes["key_dim"] + table)


def versions_of(path: str | PathLike[str]) -> dict[str, str]:
    """Versions that wrote the model in `path`: format, excise, numpy, scikit-learn."""
    metadata = _open(path).metadata
    return {"format": metadata["format_version"], **_json(path, metadata, "versions", dict)}


# -- writing ----------------------------------------------------------------------------------------------------------


def _tensors(bottleneck: Bottleneck) -> dict[str, Array]:
    arrays = {"projection": bottleneck.projection, "keys": bottleneck.keys, "values": bottleneck.values}
    tensors = {name: np.ascontiguousarray(array, dtype="<f4") for name, array in arrays.items()}
    if bottleneck.mask is not None:
        tensors["mask"] = np.ascontiguousarray(bottleneck.mask, dtype=bool)
    return tensors


def _metadata(model: KeyValueClassifier, tensors: dict[str, Array]) -> dict[str, str]:
    from excise import __version__

    content: dict[str, Any] = {
        "parameters": _parameters(model),
        "bottleneck": {"top_k": int(model.bottleneck_.top_k), "decoder": model.bottleneck_.decoder},
        "classes": _describe_classes(model.classes_),
        "history": [float(loss) if math.isfinite(loss) else None for loss in model.history_],
        "versions": {"excise": __version__, "numpy": np.__version__, "scikit-learn": sklearn.__version__},
        "sha256": {name: hashlib.sha256(_bytes(tensor)).hexdigest() for name, tensor in tensors.items()},
    }
    if hasattr(model, "feature_names_in_"):
        content["feature_names"] = [str(name) for name in model.feature_names_in_]
    texts = {name: json.dumps(value, allow_nan=False) for name, value in content.items()}
    return {"format": FORMAT, "format_version": str(FORMAT_VERSION), **texts}


def _parameters(model: KeyValueClassifier) -> dict[str, Any]:
    """The parameters; those of the layout as the bottleneck was built, whatever they have been set to since."""
    parameters = {**model.get_params(deep=False), **model.bottleneck_.layout}
    seed = parameters["random_state"]
    # The state of a generator is not a parameter to repeat.
    parameters["random_state"] = int(seed) if isinstance(seed, numbers.Integral) else None
    check_parameters(parameters)
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in parameters.items()}
    for name in OF_THE_MACHINE:
        del plain[name]
    for name, value in plain.items():
        if not isinstance(value, (str, int, float, type(None))):
            raise InputError(f"{name} is {value!r}: a model on disk keeps only numbers, strings and None")
    return plain


def _describe_classes(classes: Array) -> dict[str, Any]:
    values = classes.tolist()
    if classes.dtype.kind == "U":
        kind = f"U{classes.dtype.itemsize // 4}"
    elif classes.dtype == object and all(type(label) is str for label in values):
        kind = "object"
    else:
        kind = classes.dtype.name
        if kind not in _CLASS_TYPES:
            raise InputError(
                f"classes of type {kind}, as {values[0]!r}, cannot be saved: use integers, strings, booleans or floats"
            )
    return {"dtype": kind, "values": values}


def _signed_header(metadata: dict[str, str], tensors: dict[str, Array]) -> bytes:
    """The header with its own digest in it, taken while the digest's place held zeros."""
    blank = render_header({"header_sha256": _NO_DIGEST, **metadata}, tensors)  # first: nothing of a user precedes it
    return blank.replace(_NO_DIGEST.encode(), hashlib.sha256(blank).hexdigest().encode(), 1)


def _bytes(tensor: Array) -> Any:
    return tensor.reshape(-1).view(np.uint8).data


# -- reading ----------------------------------------------------------------------------------------------------------


def _open(path: str | PathLike[str]) -> TensorFile:
    """The file, known to be a model of this format with an intact header."""
    try:
        file = open_tensors(path)
    except MalformedError as error:
        raise ModelFileError(f"{fspath(path)} {error}") from error
    metadata = file.metadata
    if metadata.get("format") != FORMAT:
        raise ModelFileError(f"{fspath(path)} is a safetensors file, but no model of excise: it was not written by it")
    digest = metadata.get("header_sha256")
    if digest is not None:
        blank = file.header.replace(digest.encode("utf-8", "replace"), _NO_DIGEST.encode(), 1)
        if hashlib.sha256(blank).hexdigest() != digest:
            raise _damaged(path, "its header does not match its digest")
    version = metadata.get("format_version", "")
    if version.isascii() and version.isdigit() and len(version) < 10 and int(version) > FORMAT_VERSION:
        raise ModelFileError(
            f"{fspath(path)} was written by a newer excise (format {version}, this one reads {FORMAT_VERSION}): "
            "upgrade it with pip install --upgrade excise"
        )
    if version != str(FORMAT_VERSION) or digest is None:
        raise _damaged(path, "its header is incomplete")
    return file


def _restore(path: str | PathLike[str], file: TensorFile) -> KeyValueClassifier:
    sizes = _check_shapes(path, file)
    metadata = file.metadata
    parameters = _read_parameters(path, metadata)
    layout = _json(path, metadata, "bottleneck", dict)
    top_k, decoder = layout.get("top_k"), layout.get("decoder")
    if type(top_k) is not int or not 1 <= top_k <= min(MOST_RETRIEVED, sizes["m"]) or decoder not in DECODERS:
        raise _damaged(path, f"it cannot retrieve {top_k!r} pairs with decoder {decoder!r}")
    tensors = file.tensors
    bottleneck = Bottleneck(
        tensors["projection"], tensors["keys"], tensors["values"], top_k, decoder, tensors.get("mask")
    )
    model = KeyValueClassifier(**{**parameters, **bottleneck.layout})
    model.bottleneck_ = bottleneck
    model.classes_ = _read_classes(path, metadata, sizes["v"])
    model.n_features_in_ = sizes["f"]
    if "feature_names" in metadata:
        names = _json(path, metadata, "feature_names", list)
        if len(names) != sizes["f"] or not all(isinstance(name, str) for name in names):
            raise _damaged(path, f"it names {len(names)} features and has {sizes['f']}")
        model.feature_names_in_ = np.array(names, dtype=object)
    history = _json(path, metadata, "history", list)
    if not all(loss is None or type(loss) is float for loss in history):
        raise _damaged(path, "its history is not a list of losses")
    model.history_ = [math.nan if loss is None else loss for loss in history]
    return model


def _check_shapes(path: str | PathLike[str], file: TensorFile) -> dict[str, int]:
    """Sizes of the axes f, c, d, m, v, on which all tensors agree."""
    wanted = {"projection": ("fcd", "F32"), "keys": ("cmd", "F32"), "values": ("cmv", "F32"), "mask": ("cm", "BOOL")}
    if not set(wanted) - {"mask"} <= set(file.tensors) <= set(wanted):
        raise _damaged(path, f"it holds {', '.join(sorted(file.tensors)) or 'nothing'}, not projection, keys, values")
    sizes: dict[str, int] = {}
    for name, tensor in file.tensors.items():
        axes, dtype = wanted[name]
        if file.dtypes[name] != dtype or tensor.ndim != len(axes):
            raise _damaged(path, f"its {name} are {file.dtypes[name]} of shape {tensor.shape}")
        for axis, size in zip(axes, tensor.shape, strict=True):
            if sizes.setdefault(axis, size) != size or size < 1:
                raise _damaged(path, f"the shapes of its tensors disagree ({name} {tensor.shape})")
    if sizes["m"] > MOST_PAIRS or sizes["d"] > LONGEST_KEY:
        raise _damaged(path, f"{sizes['m']:,} pairs with keys of size {sizes['d']} are more than any model has")
    if "mask" in file.tensors and file.tensors["mask"].view(np.uint8).max() > 1:
        raise _damaged(path, "its mask holds values other than 0 and 1")
    return sizes


def _read_parameters(path: str | PathLike[str], metadata: dict[str, str]) -> dict[str, Any]:
    parameters: dict[str, Any] = _json(path, metadata, "parameters", dict)
    known = KeyValueClassifier().get_params(deep=False)
    unknown = sorted(set(parameters) - (set(known) - set(OF_THE_MACHINE)))
    if unknown:
        raise ModelFileError(
            f"{fspath(path)} was written by a newer excise (it has a parameter {unknown[0]!r}): "
            "upgrade it with pip install --upgrade excise"
        )
    try:
        check_parameters({**known, **parameters})
    except (InputError, TypeError, OverflowError) as error:
        raise _damaged(path, str(error)) from error
    seed = parameters.get("random_state")
    if seed is not None and type(seed) is not int:
        raise _damaged(path, f"random_state is {seed!r}, neither a whole number nor null")
    return parameters


def _read_classes(path: str | PathLike[str], metadata: dict[str, str], count: int) -> Array:
    stored = _json(path, metadata, "classes", dict)
    kind, values = stored.get("dtype"), stored.get("values")
    text = kind == "object" or (isinstance(kind, str) and kind[:1] == "U" and kind[1:].isdigit())
    if not isinstance(values, list) or not (text or kind in _CLASS_TYPES):
        raise _damaged(path, f"its classes are of an unknown type, {kind!r}")
    wanted = str if text else type(np.zeros((), kind).item())
    try:
        with np.errstate(over="ignore"):
            classes = np.array(values, dtype=kind)
    except (ValueError, OverflowError, TypeError, MemoryError) as error:
        raise _damaged(path, f"its classes are not all {kind}") from error
    if not all(type(value) is wanted for value in values) or classes.tolist() != values:  # else 1.7 is read as 1
        raise _damaged(path, f"its classes are not all {kind}")
    if len(classes) != count or count < 2 or not (classes[1:] > classes[:-1]).all():
        raise _damaged(path, f"it has values for {count} classes and lists {len(classes)}, in order and without equals")
    return classes


def _json(path: str | PathLike[str], metadata: dict[str, str], name: str, kind: type) -> Any:
    try:
        content = json.loads(metadata[name])
    except (KeyError, ValueError, RecursionError) as error:
        raise _damaged(path, f"its header has no readable {name!r}") from error
    if not isinstance(content, kind):
        raise _damaged(path, f"its header has no readable {name!r}")
    return content


def _verify(path: str | PathLike[str], file: TensorFile) -> None:
    digests = _json(path, file.metadata, "sha256", dict)
    for name, tensor in file.tensors.items():
        if hashlib.sha256(_bytes(tensor)).hexdigest() != digests.get(name):
            raise _damaged(path, f"its {name} do not match their digest")


def _damaged(path: str | PathLike[str], what: str) -> ModelFileError:
    return ModelFileError(f"{fspath(path)} is damaged: {what}; copy it again or restore a backup")
