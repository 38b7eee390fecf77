"""Small seeded data and the small models trained on it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from excise import KeyValueClassifier

SMALL: dict[str, Any] = {
    "codebooks": 8,
    "pairs": 16,
    "key_dim": 4,
    "key_epochs": 2,
    "epochs": 5,
    "batch_size": 16,
    "random_state": 0,
}

settings.register_profile("excise", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("excise")


def blobs(examples: int = 90, features: int = 6, classes: int = 3, seed: int = 0) -> tuple[Any, Any]:
    """Features (n, f) float32 around one centre per class, and labels (n,)."""
    generator = np.random.default_rng(seed)
    y = np.arange(examples) % classes
    centres = 3 * generator.standard_normal((classes, features))
    return (centres[y] + generator.standard_normal((examples, features))).astype(np.float32), y


@pytest.fixture(scope="session")
def data() -> tuple[Any, Any]:
    X, y = blobs()
    X.setflags(write=False)
    return X, y


@pytest.fixture(scope="session")
def model(data: tuple[Any, Any]) -> KeyValueClassifier:
    """A fitted classifier with two pairs retrieved per codebook, not to be changed."""
    return KeyValueClassifier(**SMALL | {"top_k": 2}).fit(*data)
