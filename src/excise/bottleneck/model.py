"""The bottleneck itself: projection, keys and values as plain arrays, and the way from features to logits."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from excise.bottleneck import kernels
from excise.bottleneck.kernels import NEVER
from excise.errors import InputError
from excise.features.arrays import Array, chunk_rows, read_chunks
from excise.progress import track

DECODERS = ("mean", "sum")
MOST_PAIRS, MOST_RETRIEVED, LONGEST_KEY = 65_535, 32, 64
STEP_BYTES = 80  # of a step from one size of a mask to the next: found, sorted, walked and counted


@dataclass(frozen=True, eq=False)
class Bottleneck:
    """Frozen projection and keys, trained values, and a mask of pairs that may not be selected; all made read-only."""

    projection: Array  # (f, c, d) float32
    keys: Array  # (c, m, d) float32
    values: Array  # (c, m, v) float32
    top_k: int = 1
    decoder: str = "mean"
    mask: Array | None = None  # (c, m) bool, True = masked
    _prepared: list[Any] = field(default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        for array in (self.projection, self.keys, self.values, self.mask):
            if array is not None:
                array.flags.writeable = False  # what was prepared for search would not follow a change

    @property
    def axes(self) -> dict[str, int]:
        """Sizes by their names: features, codebooks, pairs, key_dim, classes."""
        f, c, d = self.projection.shape
        return {
            "features": f,
            "codebooks": c,
            "pairs": self.keys.shape[1],
            "key_dim": d,
            "classes": self.values.shape[2],
        }

    @property
    def layout(self) -> dict[str, Any]:
        """The parameters of a classifier that shaped it, by name."""
        c, m, d = self.keys.shape
        return {"codebooks": c, "pairs": m, "key_dim": d, "top_k": self.top_k, "decoder": self.decoder}

    def with_mask(self, mask: Array | None) -> "Bottleneck":
        """The same bottleneck, its arrays shared, under a copy of another mask."""
        if mask is not None:
            mask = np.array(mask)
            if mask.shape != self.keys.shape[:2] or mask.dtype != np.bool_:
                raise InputError(
                    f"the mask is {mask.dtype} {mask.shape}: it must be bool {self.keys.shape[:2]}, True = masked"
                )
        return Bottleneck(self.projection, self.keys, self.values, self.top_k, self.decoder, mask)

    def iterate_codes(
        self, features: Array, threads: int = 1, working_memory: float = 256
    ) -> Iterator[tuple[int, Array]]:
        """Pairs (first row, codes (b, c, k) uint16), nearest pair first, in bounded memory."""
        row = 2 * self.keys.shape[0] * self.top_k
        for start, z in self._iterate_heads(features, row, threads, working_memory):
            codes = self._keys(threads).nearest(z, self.top_k, threads)
            del z
            yield start, codes

    def iterate_steps(
        self, features: Array, ranks: Array, threads: int = 1, working_memory: float = 256
    ) -> Iterator[tuple[int, Any]]:
        """Pairs (first row, `PreparedStairs.steps`) under every mask `ranks < size` beside its own, in bounded memory.

        How many steps a chunk has shows when it is done: memory is planned for what pairs in random order would take.
        """
        if self.mask is not None:
            ranks = np.where(self.mask, np.int32(-1), ranks)
        stairs = kernels.PreparedStairs(self.keys, ranks, threads)
        never, live = (ranks == NEVER).sum(axis=1), (ranks >= 0).sum(axis=1)  # (c,)
        k = self.top_k
        steps = k * float(np.log(np.maximum(live, k) / np.maximum(never, k)).sum() + len(live))
        row = (2 * k + 8) * len(live) + STEP_BYTES * int(steps)
        for start, z in self._iterate_heads(features, row, threads, working_memory):
            found = stairs.steps(z, k, threads)
            del z
            yield start, found

    def _iterate_heads(
        self, features: Array, row: int, threads: int, working_memory: float
    ) -> Iterator[tuple[int, Array]]:
        """Pairs (first row, projected features (b, c, d)), where what is made of a row takes `row` bytes."""
        f, c, d = self.projection.shape
        flat = self.projection.reshape(f, c * d)
        pairs = self.keys.shape[1]
        tables = 4 * c * (2 * pairs * (d + 1) + f * d)  # keys laid out for search, the projection for products
        rows = chunk_rows(8 * f + 4 * c * d + row, working_memory, multiply_adds=c * pairs * d, tables=tables)
        for start, x in read_chunks(features, rows):
            z = [kernels.project(x, flat, threads).reshape(len(x), c, d)]
            del x  # before the next chunk is read
            yield start, z.pop()  # so that who takes it can let it go

    def codes(
        self,
        features: Array,
        out: Array | None = None,
        threads: int = 1,
        working_memory: float = 256,
        verbose: int = 0,
    ) -> Array:
        """Codes (n, c, k) uint16 of features (n, f); `out` may be a memory map."""
        shape = (len(features), self.keys.shape[0], self.top_k)
        if out is None:
            out = np.empty(shape, np.uint16)
        elif out.shape != shape or out.dtype != np.uint16:
            raise InputError(f"out is {out.dtype} {out.shape}: it must be uint16 {shape}")
        with track("codes", len(features), "examples", verbose) as progress:
            for start, part in self.iterate_codes(features, threads, working_memory):
                out[start : start + len(part)] = part
                progress.advance(len(part))
        return out

    def logits(self, features: Array, threads: int = 1, working_memory: float = 256) -> Array:
        """Logits (n, v) float32 of features (n, f)."""
        out = np.empty((len(features), self.values.shape[2]), np.float32)
        for start, part in self.iterate_logits(features, threads, working_memory):
            out[start : start + len(part)] = part
        return out

    def iterate_logits(
        self, features: Array, threads: int = 1, working_memory: float = 256
    ) -> Iterator[tuple[int, Array]]:
        """Pairs (first row, logits (b, v) float32), in bounded memory."""
        for start, codes in self.iterate_codes(features, threads, working_memory):
            yield start, kernels.logits(codes, self.values, self.decoder, threads)

    def _keys(self, threads: int) -> Any:
        if not self._prepared:
            self._prepared.append(kernels.PreparedKeys(self.keys, None if self.mask is None else ~self.mask, threads))
        return self._prepared[0]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_prepared": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()
