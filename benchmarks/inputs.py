"""What is measured on: real features where they are at hand, else seeded random ones of the same shape."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from experiments.features import SHARED, Split, load, path_of
from numpy.typing import NDArray

from excise.bottleneck import kernels
from excise.bottleneck.keys import initialize_keys
from excise.bottleneck.projection import draw_projection

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Settings:
    """What a run was asked for."""

    quick: bool = False
    shared: Path = SHARED
    seed: int = 0
    threads: int = 1

    def size(self, full: int, quick: int) -> int:
        """A size, or the tiny one of a quick run."""
        return quick if self.quick else full

    @property
    def codebooks(self) -> int:
        """Codebooks of the paper's layout."""
        return self.size(256, 4)

    @property
    def pairs(self) -> int:
        """Pairs of the paper's layout."""
        return self.size(4096, 128)

    @property
    def examples(self) -> int:
        """Examples of CIFAR's training side."""
        return self.size(50_000, 512)

    @property
    def tested(self) -> int:
        """Examples of CIFAR's test side."""
        return self.size(10_000, 1000)


@dataclass(frozen=True)
class Codebook:
    """A projection (f, c, d) and the keys (c, m, d) that one pass over the features gave."""

    projection: Array
    keys: Array

    def project(self, features: Array, threads: int) -> Array:
        """Heads (n, c, d) of features (n, f)."""
        f, c, d = self.projection.shape
        return kernels.project(features, self.projection.reshape(f, c * d), threads).reshape(len(features), c, d)


def source(settings: Settings, classes: int) -> str:
    """Which features `dataset` gives, in words."""
    return f"CIFAR-{classes}, ResNet-50 layer3" if _has_real(settings, classes) else f"random, {classes} classes"


@lru_cache(maxsize=1)
def dataset(settings: Settings, classes: int) -> Split:
    """Features and labels of CIFAR-10 or CIFAR-100, or random ones of their shape."""
    if _has_real(settings, classes):
        return load(f"cifar{classes}-resnet50", settings.shared).head(settings.examples, settings.tested)
    rng = np.random.default_rng(settings.seed)
    n, tested = settings.examples, settings.tested
    x = np.abs(rng.standard_normal((n + tested, settings.size(1024, 32)), dtype=np.float32))
    y = rng.integers(classes, size=n + tested)
    return Split(x[:n], y[:n], x[n:], y[n:])


@lru_cache(maxsize=2)
def codebook(settings: Settings, classes: int, key_dim: int) -> Codebook:
    """The paper's layout with keys that one pass over the features initialised."""
    rng = np.random.default_rng(settings.seed)
    features = dataset(settings, classes).x_train
    projection = draw_projection(features.shape[1], settings.codebooks, key_dim, rng)
    keys = initialize_keys(
        features, projection, settings.pairs, passes=1, batch_size=256, generator=rng, threads=settings.threads
    )
    return Codebook(projection, keys)


@lru_cache(maxsize=2)
def codes(settings: Settings, classes: int, top_k: int) -> NDArray[np.uint16]:
    """Codes (n, c, k) of the training side, key size 8."""
    book = codebook(settings, classes, 8)
    prepared = kernels.PreparedKeys(book.keys, None)
    features = dataset(settings, classes).x_train
    parts = [features[i : i + 4096] for i in range(0, len(features), 4096)]
    return np.concatenate(
        [prepared.nearest(book.project(part, settings.threads), top_k, settings.threads) for part in parts]
    )


def repeated(keys: Array) -> NDArray[np.bool_]:
    """Pairs (c, m) whose key equals that of a lower pair of the codebook: dead keys may take the same example."""
    rows = np.ascontiguousarray(keys).view(f"V{keys.itemsize * keys.shape[2]}")[..., 0]  # (c, m), a key an item
    out = np.ones(rows.shape, np.bool_)
    for own, flags in zip(rows, out, strict=True):
        flags[np.unique(own, return_index=True)[1]] = False
    return out


def _has_real(settings: Settings, classes: int) -> bool:
    return not settings.quick and path_of(f"cifar{classes}-resnet50", settings.shared).exists()
