"""Requests to forget as plain data: what was asked, what was masked for it, and whether it is still in force."""

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from excise.features.arrays import Array

IN_FORCE = ("masked", "exact")
STATES = (*IN_FORCE, "restored", "erased")


@dataclass(frozen=True, eq=False)
class Request:
    """One request and what it did. All but its arrays is plain data, fit for JSON."""

    id: int
    by: str  # "activations" | "examples" | "exact"
    classes: list[Any]  # labels; empty where single examples were asked for
    state: str  # masked | exact | restored | erased
    asked: Any  # pairs="auto" or a number; None for exact
    size: int = 0  # that was chosen: pairs of the ranking for activations, examples for examples
    why: str = ""  # this size, in words
    masked: int = 0  # pairs that were live until then
    overlapping: int = 0  # pairs of it that earlier requests had masked already
    share: float = 0.0  # of all pairs, newly masked
    per_codebook: list[int] = field(default_factory=list)  # newly masked
    tie: dict[str, int] | None = None  # pairs selected as often as the last one masked: how often, how many, masked
    covered: float | None = None  # share of the forget set's activations that fall on pairs masked now
    sure: dict[str, Any] = field(default_factory=dict)  # what is known of the forget accuracy, and from how much
    examples_read: int = 0
    multiply_adds: int = 0
    rows: list[int] | None = None  # of the training data, for single examples
    budget: dict[str, Any] = field(default_factory=dict)  # what is left, after it
    warning: str | None = None
    milliseconds: float | None = None  # of this run; not kept with the model
    losses: list[float] | None = None  # of each epoch that gave the values `before`
    mask: Array | None = field(default=None, repr=False)  # packed bits (c*m / 8,), overlapping pairs included
    before: Array | None = field(default=None, repr=False)  # values (c, m, v) that an exact request replaced

    @property
    def in_force(self) -> bool:
        """Whether the model still forgets because of it."""
        return self.state in IN_FORCE or self.state == "erased"

    def to_dict(self, timed: bool = True) -> dict[str, Any]:
        """All but the arrays, and without the time where the same bytes must come again."""
        left_out = {"mask", "before"} if timed else {"mask", "before", "milliseconds"}
        return {f.name: _copied(getattr(self, f.name)) for f in fields(self) if f.name not in left_out}

    def record(self, milliseconds: float | None = None) -> "Request":
        """A copy for the user's hands: without what may be erased, and nothing of it shared with the model."""
        return Request(**{**self.to_dict(), "milliseconds": milliseconds})


def _copied(value: Any) -> Any:
    """Plain data, its lists and tables anew."""
    if isinstance(value, dict):
        return {name: _copied(part) for name, part in value.items()}
    return list(value) if isinstance(value, list) else value


def pack(pairs: Array, size: int) -> Array:
    """A mask of these flat pairs among `size`, eight to a byte."""
    mask = np.zeros(size, bool)
    mask[pairs] = True
    return np.packbits(mask)


def unpack(bits: Array, shape: tuple[int, int]) -> Array:
    """The mask (c, m) again."""
    size = shape[0] * shape[1]
    return np.unpackbits(bits, count=size).view(bool).reshape(shape)


def mask_in_force(base: Array | None, requests: tuple[Request, ...], shape: tuple[int, int]) -> Array | None:
    """The mask (c, m) of all requests that are masked, over `base`; None where nothing is masked."""
    bits = [request.mask for request in requests if request.state == "masked" and request.mask is not None]
    if not bits:
        return base
    union = unpack(np.bitwise_or.reduce(bits), shape)
    return union if base is None else union | base
