"""What a model was asked to forget, as tensors and text, and back: the log of activations, the requests, the recipe."""

import math
import numbers
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import numpy as np

from excise.bottleneck.reference import Optimiser
from excise.errors import InputError
from excise.estimator import KeyValueClassifier, check_parameters
from excise.features.arrays import Array
from excise.forgetting.activations import Activations
from excise.forgetting.exact import Recipe
from excise.forgetting.requests import STATES, Request, unpack
from excise.signed import SignedFile
from excise.unlearning import METHODS

LOG = ("activation_first", "activation_pairs", "activation_counts", "activation_totals")
BEFORE = "before_"  # and the id of a request: the values that it replaced

# -- the log ----------------------------------------------------------------------------------------------------------


def log_tensors(log: Activations) -> dict[str, Array]:
    """The log as tensors."""
    kinds = ("<i8", "<u4", "<u4" if log.counts.itemsize == 4 else "<u2", "<u4")
    arrays = (log.first, log.pairs, log.counts, log.totals)
    return {name: np.ascontiguousarray(a, kind) for name, a, kind in zip(LOG, arrays, kinds, strict=True)}


def read_log(file: SignedFile, thorough: bool) -> Activations | None:
    """The log, if the file has one; `thorough` reads all of it to see that it adds up."""
    if LOG[0] not in file.tensors:
        return None
    log = Activations(*(file.tensors[name] for name in LOG))
    if log.first[0] != 0 or log.first[-1] != len(log.pairs) or (log.first[1:] < log.first[:-1]).any():
        raise file.damaged("its log of activations is not cut into classes")
    if thorough:
        _check_log(file, log)
    return log


def _check_log(file: SignedFile, log: Activations) -> None:
    totals = np.zeros(len(log.totals), np.int64)
    for label in range(len(log.first) - 1):
        pairs, counts = log.of(label)
        if not len(pairs):
            continue
        if not (pairs[1:] > pairs[:-1]).all() or pairs[-1] >= len(totals) or not counts.all():
            raise file.damaged("its log of activations holds pairs that are not there, or not in order, or not counted")
        totals[pairs] += counts
    if not np.array_equal(totals, log.totals):
        raise file.damaged("its log of activations does not add up")


# -- requests ---------------------------------------------------------------------------------------------------------


def describe_requests(requests: tuple[Request, ...]) -> list[dict[str, Any]]:
    """The requests without their arrays, as JSON has it."""
    return [request.to_dict(timed=False) for request in requests]


def request_masks(requests: tuple[Request, ...]) -> dict[str, Array]:
    """The masks of the requests that have one, packed, as one tensor."""
    masks = [request.mask for request in requests if request.mask is not None]
    return {"request_masks": np.stack(masks)} if masks else {}


def read_requests(
    file: SignedFile, classes: Array, shape: tuple[int, int], values: Callable[[str], Array]
) -> tuple[Request, ...]:
    """The requests with their arrays; `values` gives a table (c, m, v) of the file by its name."""
    known = {(type(label), label) for label in classes.tolist()}
    entries = file.read("requests", list)
    requests = [_read_request(file, entry, known, shape[0]) for entry in entries]
    ids = [request.id for request in requests]
    if any(later <= earlier for earlier, later in pairwise(ids)):
        raise file.damaged("the ids of its requests do not rise")
    masked = sum(request.state == "masked" for request in requests)
    masks = file.tensors.get("request_masks", ())
    if len(masks) != masked:
        raise file.damaged(f"it holds masks of {len(masks)} requests, and {masked} are in force")
    tables = {name for name in file.tensors if name.startswith(BEFORE)}
    if not tables <= {f"{BEFORE}{request.id}" for request in requests if request.state == "exact"}:
        raise file.damaged("it holds values of requests that are not exact, or not in force")
    rest = iter(masks)
    found = []
    for request in requests:
        bits = next(rest) if request.state == "masked" else None
        if bits is not None and read_mask(file, bits, shape).sum() != request.masked + request.overlapping:
            raise file.damaged(f"the mask of request {request.id} is not of the size that it says")
        name = f"{BEFORE}{request.id}"
        found.append(replace(request, mask=bits, before=values(name) if name in tables else None))
    return tuple(found)


def read_mask(file: SignedFile, bits: Array, shape: tuple[int, int]) -> Array:
    """The mask (c, m) of packed bits, of which those behind its end are zero."""
    mask = unpack(bits, shape)
    if not np.array_equal(np.packbits(mask), bits):
        raise file.damaged("a mask in it is longer than the model")
    return mask


def _read_request(file: SignedFile, entry: Any, known: set[tuple[type, Any]], codebooks: int) -> Request:
    if not isinstance(entry, dict):
        raise file.damaged("its requests are no records")
    unknown = sorted(set(entry) - set(_FIELDS))
    if unknown:
        raise file.newer(f"a request has {unknown[0]!r}")
    missing = sorted(_NEEDED - set(entry))
    if missing:
        raise file.damaged(f"a request has no {missing[0]!r}")
    for name, value in entry.items():
        if not _FIELDS[name](value):
            raise file.damaged(f"a request has {name!r} of {value!r}")
    request = Request(**entry)
    labels = [(type(label), label) for label in request.classes]
    if not set(labels) <= known or len(set(labels)) < len(labels) or (not labels and request.rows is None):
        raise file.damaged(f"request {request.id} is of classes {request.classes!r}, which are not all the model's")
    exact = request.by == "exact"
    if (request.asked is None) != exact or (request.rows is not None and not exact):
        raise file.damaged(f"request {request.id} does not say what was asked")
    if request.state == ("masked" if exact else "exact"):
        raise file.damaged(f"request {request.id} is by {request.by!r} and {request.state!r}")
    if len(request.per_codebook) not in (0, codebooks) or sum(request.per_codebook) != request.masked:
        raise file.damaged(f"request {request.id} does not say which codebooks it masked")
    return request


def _is_whole(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _is_share(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= 1


def _are_whole(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_whole, value))


def _is_table(value: Any) -> bool:
    """A flat record of numbers, words and lists of whole numbers."""
    return isinstance(value, dict) and all(
        part is None or isinstance(part, str | bool) or _is_number(part) or _are_whole(part) for part in value.values()
    )


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "id": lambda value: _is_whole(value) and value > 0,
    "by": lambda value: isinstance(value, str) and value in METHODS,
    "classes": lambda value: isinstance(value, list) and all(type(x) in (bool, int, float, str) for x in value),
    "state": lambda value: isinstance(value, str) and value in STATES,
    "asked": lambda value: value is None or value == "auto" or (_is_whole(value) and value > 0),
    "size": _is_whole,
    "why": lambda value: isinstance(value, str),
    "masked": _is_whole,
    "overlapping": _is_whole,
    "share": _is_share,
    "per_codebook": _are_whole,
    "tie": lambda value: (
        value is None
        or (
            isinstance(value, dict)
            and set(value) == {"activations", "pairs", "masked"}
            and _are_whole([*value.values()])
        )
    ),
    "covered": lambda value: value is None or _is_share(value),
    "sure": _is_table,
    "examples_read": _is_whole,
    "multiply_adds": _is_whole,
    "rows": lambda value: value is None or (_are_whole(value) and value == sorted(set(value))),
    "budget": _is_table,
    "losses": lambda value: value is None or (isinstance(value, list) and all(map(_is_number, value))),
    "warning": lambda value: value is None or isinstance(value, str),
}
_NEEDED = {field.name for field in fields(Request)[:5]}  # those without a default

# -- the recipe -------------------------------------------------------------------------------------------------------


def describe_recipe(recipe: Recipe | None) -> dict[str, Any] | None:
    """How the values were trained, as JSON has it."""
    if recipe is None:
        return None
    data = recipe.to_dict()
    return {**_plain(data), "optimiser": _plain(data["optimiser"])}


def read_recipe(file: SignedFile, decoder: str) -> Recipe | None:
    """How the values were trained, where that can be repeated."""
    data = file.read("recipe", dict, type(None))
    if data is None:
        return None
    optimiser = data.get("optimiser")
    names = {field.name for field in fields(Recipe)}, {field.name for field in fields(Optimiser)}
    if not isinstance(optimiser, dict) or (set(data), set(optimiser)) != names:
        raise file.damaged("its recipe is incomplete")
    parts = {**data, **optimiser}
    numeric = {name: value for name, value in parts.items() if name not in ("optimiser", "value_init", *_WORDS)}
    if not all(_is_number(value) or (value is None and name == "gradient_clip") for name, value in numeric.items()):
        raise file.damaged("its recipe is not made of numbers")
    if not all(_is_whole(data[name]) and data[name] < 2**32 for name in ("values_seed", "order_seed")):
        raise file.damaged("its recipe has no seeds")
    if optimiser["decoder"] != decoder:
        raise file.damaged(f"its recipe is for decoder {optimiser['decoder']!r}")
    parameters = KeyValueClassifier().get_params(deep=False)
    try:
        check_parameters({name: parts.get(name, value) for name, value in parameters.items()})
        for name, high in (("beta1", 1), ("beta2", 1), ("epsilon", math.inf)):
            if not 0 <= float(optimiser[name]) < high:
                raise InputError(f"{name} is {optimiser[name]!r}")
    except (InputError, TypeError, OverflowError) as error:
        raise file.damaged(f"in its recipe, {error}") from error
    return Recipe.from_dict(data)


_WORDS = ("solver", "decoder")


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    """Numbers of other libraries as Python's own."""
    return {
        name: int(x) if isinstance(x, numbers.Integral) else float(x) if isinstance(x, numbers.Real) else x
        for name, x in data.items()
    }
