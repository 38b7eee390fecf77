"""Nearest keys by torch operations: every form that was worth trying, from one product and one reduction to two stages.

A plain form writes the distances of a block and reduces them. A two-stage form reduces groups of keys by `amin`, which
is vectorised where `min` with indices is not, then looks into the winning groups only; it is exact: the k nearest keys
lie in the k groups with the smallest minima. A compiled form leaves fusing to torch.compile.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Search = Callable[[np.ndarray], np.ndarray]
PLAIN, TUNED = "plain", "tuned"
GROUP = 64


@dataclass(frozen=True)
class Form:
    """One way to search: z (n, c, d) to codes (n, c, k)."""

    name: str
    family: str
    search: Search


class TorchSearch:
    """Keys (c, m, d) ready for all forms; the score is |key|^2 / 2 - z.key, as |z|^2 chooses nothing."""

    def __init__(self, keys: np.ndarray, top_k: int):
        tensor = torch.from_numpy(keys)
        self.shape, self.k = tensor.shape, top_k
        self.keys, self.negative = tensor, -tensor
        self.columns_of_keys = self.negative.transpose(1, 2).contiguous()  # (c, d, m)
        self.half = tensor.square().sum(2) / 2  # (c, m)
        self.group = math.gcd(GROUP, self.shape[1])

    def forms(self, queries: int, compiled: bool = False) -> Iterator[Form]:
        """All forms whose blocks divide `queries`."""
        for block in (128, 256, 512, 1024):
            if queries % block == 0:
                yield self._form(f"addmm, {self._last}, {block} queries", PLAIN, self.products(block))
        block = math.gcd(queries, 256)
        if self.k == 1:
            yield self._form(f"addmm, argmin, {block} queries", PLAIN, self.products(block, argmin=True))
            yield self._form(f"cdist, argmin, {block} queries", PLAIN, self.distances(block))
        for few, books in ((32, 16), (128, 4)):
            if queries % few == 0:
                name = f"baddbmm, {self._last}, {few} queries x {books} codebooks"
                yield self._form(name, PLAIN, self.batched(few, books))
        if self.k <= self.shape[1] // self.group:
            yield from self._two_stage_forms(queries)
        if compiled and self.k == 1:
            yield self._form(f"torch.compile, {block} queries", TUNED, self.compiled(block))

    def _two_stage_forms(self, queries: int) -> Iterator[Form]:
        for block, books in ((16, 16), (64, 1), (8, 256)):
            if queries % block == 0:
                name = f"two stages, keys in columns, {block} queries x {books} codebooks"
                yield self._form(name, TUNED, self.two_stages_columns(block, books))
        for block, books in ((32, 16), (64, 16), (128, 2)):
            if queries % block == 0:
                name = f"two stages, keys in rows, {block} queries x {books} codebooks"
                yield self._form(name, TUNED, self.two_stages_rows(block, books))

    def prediction_forms(self, queries: int) -> Iterator[Form]:
        """Forms for a small or odd number of queries."""
        block = max(b for b in range(1, 65) if queries % b == 0)
        for books in (1, 16, self.shape[0]):
            size = f"{block} queries x {books} codebooks"
            yield self._form(f"baddbmm, min, {size}", PLAIN, self.batched(block, books))
            yield self._form(f"two stages, keys in columns, {size}", TUNED, self.two_stages_columns(block, books))
            yield self._form(f"two stages, keys in rows, {size}", TUNED, self.two_stages_rows(block, books))

    @property
    def _last(self) -> str:
        return "min" if self.k == 1 else f"topk({self.k})"

    def _form(self, name: str, family: str, search: Callable[[Tensor, Tensor], None]) -> Form:
        def run(z: np.ndarray) -> np.ndarray:
            out = torch.empty(len(z), self.shape[0], self.k, dtype=torch.int64)
            with torch.inference_mode():
                search(torch.from_numpy(z), out)
            return out.numpy()

        return Form(name, family, run)

    def _reduce(self, scores: Tensor) -> Tensor:
        """The k smallest of the last axis."""
        if self.k == 1:
            return scores.min(-1, keepdim=True).indices
        return scores.topk(self.k, -1, largest=False).indices

    def _pick(self, small: Tensor) -> Tensor:
        """The k smallest of a short last axis, where argmin beats min."""
        return small.argmin(-1, keepdim=True) if self.k == 1 else small.topk(self.k, -1, largest=False).indices

    def products(self, block: int, argmin: bool = False) -> Callable[[Tensor, Tensor], None]:
        """One codebook at a time: a product into a buffer, then a reduction."""
        buffer = torch.empty(block, self.shape[1])

        def search(z: Tensor, out: Tensor) -> None:
            for i in range(self.shape[0]):
                for s in range(0, len(z), block):
                    torch.addmm(self.half[i], z[s : s + block, i], self.columns_of_keys[i], out=buffer)
                    out[s : s + block, i] = buffer.argmin(1, keepdim=True) if argmin else self._reduce(buffer)

        return search

    def distances(self, block: int) -> Callable[[Tensor, Tensor], None]:
        """torch.cdist, then argmin."""

        def search(z: Tensor, out: Tensor) -> None:
            for i in range(self.shape[0]):
                for s in range(0, len(z), block):
                    out[s : s + block, i] = torch.cdist(z[s : s + block, i], self.keys[i]).argmin(1, keepdim=True)

        return search

    def batched(self, block: int, books: int) -> Callable[[Tensor, Tensor], None]:
        """Several codebooks at a time: a batched product, then a reduction."""

        def search(z: Tensor, out: Tensor) -> None:
            for i in range(0, self.shape[0], books):
                for s in range(0, len(z), block):
                    q = z[s : s + block, i : i + books].transpose(0, 1)
                    scores = torch.baddbmm(self.half[i : i + books, None], q, self.columns_of_keys[i : i + books])
                    out[s : s + block, i : i + books] = self._reduce(scores).transpose(0, 1)

        return search

    def two_stages_columns(self, block: int, books: int) -> Callable[[Tensor, Tensor], None]:
        """Scores (books, block, m) with keys in columns; a group is every (m / group)-th key."""
        c, m, _ = self.shape
        books, width = min(books, c), m // self.group
        buffer = torch.empty(books, block, m)

        def search(z: Tensor, out: Tensor) -> None:
            for i in range(0, c, books):
                for s in range(0, len(z), block):
                    q = z[s : s + block, i : i + books].transpose(0, 1)
                    scores = buffer[: q.shape[0]]
                    torch.baddbmm(self.half[i : i + books, None], q, self.columns_of_keys[i : i + books], out=scores)
                    grouped = scores.view(-1, self.group, width)
                    groups = self._pick(grouped.amin(1))  # (books*block, k)
                    wide = groups[:, None].expand(-1, self.group, -1)
                    inside = self._pick(grouped.gather(2, wide).reshape(len(grouped), -1))
                    found = inside // self.k * width + groups.gather(1, inside % self.k)
                    out[s : s + block, i : i + books] = found.view(-1, block, self.k).transpose(0, 1)

        return search

    def two_stages_rows(self, block: int, books: int) -> Callable[[Tensor, Tensor], None]:
        """Scores (books, m, block) with keys in rows; a group is a run of neighbouring keys."""
        c, m, _ = self.shape
        books = min(books, c)
        buffer = torch.empty(books, m, block)
        columns = torch.arange(block)[None, :, None]

        def search(z: Tensor, out: Tensor) -> None:
            for i in range(0, c, books):
                for s in range(0, len(z), block):
                    q = z[s : s + block, i : i + books].permute(1, 2, 0).contiguous()
                    scores = buffer[: q.shape[0]]
                    torch.baddbmm(self.half[i : i + books, :, None], self.negative[i : i + books], q, out=scores)
                    grouped = scores.view(q.shape[0], -1, self.group, block)
                    groups = self._pick(grouped.amin(2).transpose(1, 2).contiguous())  # (books, block, k)
                    book = torch.arange(q.shape[0])[:, None, None]
                    candidates = grouped[book, groups, :, columns].flatten(2)  # (books, block, k*group)
                    inside = self._pick(candidates)
                    found = groups.gather(2, inside // self.group) * self.group + inside % self.group
                    out[s : s + block, i : i + books] = found.transpose(0, 1)

        return search

    def compiled(self, block: int) -> Callable[[Tensor, Tensor], None]:
        """Multiply-adds written out, fused with argmin by torch.compile."""

        def scores(q: Tensor, keys: Tensor, half: Tensor) -> Tensor:
            total = half[None].expand(len(q), -1)
            for j in range(keys.shape[0]):
                total = total + q[:, j, None] * keys[j][None]
            return total.argmin(1, keepdim=True)

        nearest = torch.compile(scores, dynamic=False)

        def search(z: Tensor, out: Tensor) -> None:
            for i in range(self.shape[0]):
                for s in range(0, len(z), block):
                    q = z[s : s + block, i].contiguous()
                    out[s : s + block, i] = nearest(q, self.columns_of_keys[i], self.half[i])

        return search
