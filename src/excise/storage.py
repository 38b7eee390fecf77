"""Models on disk: one safetensors file, written whole or not at all, memory-mapped on load."""

import json
import math
import numbers
from os import PathLike
from typing import Any

import numpy as np
import sklearn
from sklearn.utils.validation import check_is_fitted

from excise.bottleneck.model import DECODERS, LONGEST_KEY, MOST_PAIRS, MOST_RETRIEVED, Bottleneck
from excise.errors import InputError
from excise.estimator import KeyValueClassifier, check_parameters
from excise.features.arrays import Array
from excise.forgetting.requests import mask_in_force, pack
from excise.records import (
    BEFORE,
    LOG,
    describe_recipe,
    describe_requests,
    log_tensors,
    read_log,
    read_mask,
    read_recipe,
    read_requests,
    request_masks,
)
from excise.signed import Format, SignedFile, open_signed, write_signed

FORMAT_VERSION = 2  # of version 1 are models without requests, logs and recipes
MODEL = Format("excise-model", FORMAT_VERSION, "model of excise")
OF_THE_MACHINE = ("n_jobs", "verbose", "working_memory")  # parameters that say how to run, not what the model is
_CLASS_TYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
                "float16", "float32", "float64")  # fmt: skip


def save(model: KeyValueClassifier, path: str | PathLike[str]) -> None:
    """Write the model to `path`, whole or not at all; a model already there stays until the new one is on disk.

    With it go the log of activations, which is personal data, and all requests; training codes never do. Of erased
    pairs nothing is written. The same model gives the same bytes.
    """
    check_is_fitted(model)
    shape: Any = model.bottleneck_.keys.shape[:2]
    in_force = mask_in_force(model.base_mask_, model.requests_, shape)
    if not np.array_equal(model.mask, np.zeros(shape, bool) if in_force is None else in_force):
        raise InputError("the mask of bottleneck_ is not that of its requests: set one with with_mask, and save that")
    write_signed(path, MODEL, _metadata(model), _tensors(model))


def load(path: str | PathLike[str], verify: bool = True) -> KeyValueClassifier:
    """The model in `path`, its arrays read-only and memory-mapped: nothing is read before it is used.

    `verify` reads the file once to compare its digests, and the log of activations to see that it adds up; without it,
    damage in the tensors goes unnoticed. Keys and values of an erased model are read, not mapped.
    """
    file = open_signed(path, MODEL)
    sizes = _check_shapes(file)
    if verify:
        file.verify()
    return _restore(file, sizes, verify)


def model_bytes(axes: dict[str, int]) -> int:
    """About how many bytes a model with these axes takes on disk, at most.

    With `keep_activations` and `gate_unused` among them, and `examples`, a log and a mask are included.
    """
    c, m, d, v = (axes[name] for name in ("codebooks", "pairs", "key_dim", "classes"))
    size = 4 * (axes["features"] * c * d + c * m * (d + v))
    if axes.get("gate_unused"):
        size += c * m
    if axes.get("keep_activations"):
        entries, examples = v * c * m, axes.get("examples")
        if examples is not None:
            entries = min(entries, examples * c * axes["top_k"])
        count = 4 if examples is None or examples >= 2**16 else 2
        size += 8 * (v + 1) + 4 * c * m + (4 + count) * entries
    return size


def versions_of(path: str | PathLike[str]) -> dict[str, str]:
    """Versions that wrote the model in `path`: format, excise, numpy, scikit-learn."""
    file = open_signed(path, MODEL)
    return {"format": file.metadata["format_version"], **file.read("versions", dict)}


# -- writing ----------------------------------------------------------------------------------------------------------


def _tensors(model: KeyValueClassifier) -> dict[str, Array]:
    b, erased = model.bottleneck_, model.erased_
    tables = {"keys": b.keys, "values": b.values}
    tables |= {f"{BEFORE}{request.id}": request.before for request in model.requests_ if request.before is not None}
    if erased is not None:
        tables = {name: table[~erased] for name, table in tables.items()}  # (p, d) and (p, v)
    floats = {"projection": b.projection, **tables}
    tensors = {name: np.ascontiguousarray(array, dtype="<f4") for name, array in floats.items()}
    if model.activations_ is not None:
        tensors |= log_tensors(model.activations_)
    if model.base_mask_ is not None:
        tensors["mask"] = np.ascontiguousarray(model.base_mask_, dtype=bool)
    if erased is not None:
        tensors["erased"] = pack(erased.reshape(-1), erased.size)
    return tensors | request_masks(model.requests_)


def _metadata(model: KeyValueClassifier) -> dict[str, str]:
    content: dict[str, Any] = {
        "parameters": _parameters(model),
        "bottleneck": {"top_k": int(model.bottleneck_.top_k), "decoder": model.bottleneck_.decoder},
        "classes": describe_classes(model.classes_),
        "history": [float(loss) if math.isfinite(loss) else None for loss in model.history_],
        "requests": describe_requests(model.requests_),
        "recipe": describe_recipe(model.recipe_),
        "versions": versions(),
    }
    if hasattr(model, "feature_names_in_"):
        content["feature_names"] = [str(name) for name in model.feature_names_in_]
    return {name: json.dumps(value, allow_nan=False) for name, value in content.items()}


def versions() -> dict[str, str]:
    """Of what is at work here."""
    from excise import __version__

    return {"excise": __version__, "numpy": np.__version__, "scikit-learn": sklearn.__version__}


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


def describe_classes(classes: Array) -> dict[str, Any]:
    """The labels as JSON, with their type."""
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


# -- reading ----------------------------------------------------------------------------------------------------------


def _restore(file: SignedFile, sizes: dict[str, int], thorough: bool) -> KeyValueClassifier:
    parameters = _read_parameters(file)
    layout = file.read("bottleneck", dict)
    top_k, decoder = layout.get("top_k"), layout.get("decoder")
    if type(top_k) is not int or not 1 <= top_k <= min(MOST_RETRIEVED, sizes["m"]) or decoder not in DECODERS:
        raise file.damaged(f"it cannot retrieve {top_k!r} pairs with decoder {decoder!r}")
    classes = _read_classes(file, sizes["v"])
    mask, erased = file.tensors.get("mask"), _read_erased(file, sizes)
    keys, values = _table(file, "keys", erased), _table(file, "values", erased)
    bottleneck = Bottleneck(file.tensors["projection"], keys, values, top_k, decoder, mask)
    model = KeyValueClassifier(**{**parameters, **bottleneck.layout})
    model.bottleneck_, model.classes_, model.n_features_in_ = bottleneck, classes, sizes["f"]
    if "feature_names" in file.metadata:
        names = file.read("feature_names", list)
        if len(names) != sizes["f"] or not all(isinstance(name, str) for name in names):
            raise file.damaged(f"it names {len(names)} features and has {sizes['f']}")
        model.feature_names_in_ = np.array(names, dtype=object)
    history = file.read("history", list)
    if not all(loss is None or type(loss) is float for loss in history):
        raise file.damaged("its history is not a list of losses")
    model.history_ = [math.nan if loss is None else loss for loss in history]
    model._begin_anew(mask)
    if file.version > 1:
        model.erased_, model.recipe_, model.activations_ = erased, read_recipe(file, decoder), read_log(file, thorough)
        shape = (sizes["c"], sizes["m"])
        model._set_requests(read_requests(file, classes, shape, lambda name: _table(file, name, erased)))
    return model


_REQUIRED = ("projection", "keys", "values")
_OPTIONAL = {"mask", "erased", "request_masks", *LOG}


def _check_shapes(file: SignedFile) -> dict[str, int]:
    """Sizes of the axes on which all tensors agree: f, c, d, m, v, and those of the log and of erased models."""
    names = set(file.tensors)
    known = _OPTIONAL if file.version > 1 else {"mask"}
    unknown = {name for name in names - known - {*_REQUIRED} if file.version == 1 or not name.startswith(BEFORE)}
    if unknown or not names.issuperset(_REQUIRED):
        raise file.damaged(f"it holds {', '.join(sorted(names)) or 'nothing'}, not projection, keys, values")
    if len(names & {*LOG}) not in (0, len(LOG)):
        raise file.damaged("its log of activations is incomplete")
    erased = "erased" in names
    if erased and "mask" not in names:
        raise file.damaged("it has erased pairs and no mask")
    pairs = "p" if erased else "cm"  # erased pairs are left out
    sizes: dict[str, int] = {}
    _agree(file, {"projection": ("fcd", "F32"), "mask": ("cm", "BOOL"), "keys": (f"{pairs}d", "F32")}, sizes)
    _agree(file, {"values": (f"{pairs}v", "F32")}, sizes)
    c, m, v = (sizes[axis] for axis in "cmv")
    if m > MOST_PAIRS or sizes["d"] > LONGEST_KEY:
        raise file.damaged(f"{m:,} pairs with keys of size {sizes['d']} are more than any model has")
    if "mask" in names and file.tensors["mask"].view(np.uint8).max() > 1:
        raise file.damaged("its mask holds values other than 0 and 1")
    sizes |= {"t": c * m, "b": -(-c * m // 8), "w": v + 1}
    counts = file.dtypes.get("activation_counts")
    first, selected, often, totals = LOG
    log = {first: ("w", "I64"), selected: ("e", "U32"), totals: ("t", "U32")}
    log[often] = ("e", "U16" if counts == "U16" else "U32")
    before = {name: (f"{pairs}v", "F32") for name in names if name.startswith(BEFORE)}
    _agree(file, {**log, **before, "erased": ("b", "U8"), "request_masks": ("rb", "U8")}, sizes)
    return sizes


def _agree(file: SignedFile, wanted: dict[str, tuple[str, str]], sizes: dict[str, int]) -> None:
    """Refuse tensors of another type or shape; axes that were not seen before take their size from them."""
    for name, (axes, dtype) in wanted.items():
        if name not in file.tensors:
            continue
        tensor = file.tensors[name]
        if file.dtypes[name] != dtype or tensor.ndim != len(axes):
            raise file.damaged(f"its {name} are {file.dtypes[name]} of shape {tensor.shape}")
        for axis, size in zip(axes, tensor.shape, strict=True):
            if sizes.setdefault(axis, size) != size or (size < 1 and axis not in "ep"):
                raise file.damaged(f"the shapes of its tensors disagree ({name} {tensor.shape})")


def _read_erased(file: SignedFile, sizes: dict[str, int]) -> Array | None:
    """The erased pairs (c, m), all of them masked."""
    if "erased" not in file.tensors:
        return None
    erased = read_mask(file, file.tensors["erased"], (sizes["c"], sizes["m"]))
    if (erased & ~file.tensors["mask"]).any():
        raise file.damaged("pairs are erased that its mask leaves live")
    if sizes["p"] != erased.size - erased.sum():
        raise file.damaged(f"it holds {sizes['p']:,} pairs, and {erased.size - erased.sum():,} are not erased")
    return erased


def _table(file: SignedFile, name: str, erased: Array | None) -> Array:
    """Keys or values (c, m, ...); of an erased model its rows spread out, with zeros between them."""
    rows = file.tensors[name]
    if erased is None:
        return rows
    shape = (*erased.shape, rows.shape[1])
    if len(rows) == erased.size:
        return rows.reshape(shape)
    try:
        table = np.zeros(shape, np.float32)
    except (MemoryError, ValueError) as error:
        raise file.damaged(f"its {name} would take more memory than there is") from error
    table[~erased] = rows
    table.flags.writeable = False
    return table


def _read_parameters(file: SignedFile) -> dict[str, Any]:
    parameters: dict[str, Any] = file.read("parameters", dict)
    known = KeyValueClassifier().get_params(deep=False)
    unknown = sorted(set(parameters) - (set(known) - set(OF_THE_MACHINE)))
    if unknown:
        raise file.newer(f"it has a parameter {unknown[0]!r}")
    try:
        check_parameters({**known, **parameters})
    except (InputError, TypeError, OverflowError) as error:
        raise file.damaged(str(error)) from error
    seed = parameters.get("random_state")
    if seed is not None and type(seed) is not int:
        raise file.damaged(f"random_state is {seed!r}, neither a whole number nor null")
    return parameters


def _read_classes(file: SignedFile, count: int) -> Array:
    stored = file.read("classes", dict)
    kind, values = stored.get("dtype"), stored.get("values")
    text = kind == "object" or (isinstance(kind, str) and kind[:1] == "U" and kind[1:].isdigit())
    if not isinstance(values, list) or not (text or kind in _CLASS_TYPES):
        raise file.damaged(f"its classes are of an unknown type, {kind!r}")
    wanted = str if text else type(np.zeros((), kind).item())
    try:
        with np.errstate(over="ignore"):
            classes = np.array(values, dtype=kind)
    except (ValueError, OverflowError, TypeError, MemoryError) as error:
        raise file.damaged(f"its classes are not all {kind}") from error
    if not all(type(value) is wanted for value in values) or classes.tolist() != values:  # else 1.7 is read as 1
        raise file.damaged(f"its classes are not all {kind}")
    if len(classes) != count or count < 2 or not (classes[1:] > classes[:-1]).all():
        raise file.damaged(f"it has values for {count} classes and lists {len(classes)}, in order and without equals")
    return classes
