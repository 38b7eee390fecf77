"""Small seeded data and the small models trained on it."""

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from excise import KeyValueClassifier
from excise.signed import signed_header
from excise.tensorfile import open_tensors

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


NAMES = np.array(["ant", "bee", "cat", "dog", "eel", "fox", "gnu"], dtype=object)


def forgetful(erased: bool = False) -> KeyValueClassifier:
    """A classifier with requests of every state; their values distinctive, so that they can be searched for."""
    X, y = blobs(140, classes=len(NAMES))
    model = KeyValueClassifier(**SMALL | {"gate_unused": True, "value_init": "normal"}).fit(X, NAMES[y])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if erased:
            model.forget("gnu")
            model.forget("fox", by="exact")
            model.erase()
        model.forget("ant", pairs=9)
        model.restore(model.forget("bee").id)
        model.forget(["bee", "cat"], X[np.isin(y, [1, 2])], NAMES[y[np.isin(y, [1, 2])]], random_state=0)
        model.forget("dog", by="exact", rows=None)
        model.forget(rows=model.training_rows_[-9::4].tolist(), by="exact")
    return model


def forged(path: Path, drop: Any = (), **changes: Any) -> Path:
    """A file with other metadata, or tensors, and digests to match: what only a forger or a newer excise writes."""
    file = open_tensors(path)
    arrays = {name: changes.pop(name) for name in list(changes) if isinstance(changes[name], np.ndarray)}
    tensors = {name: tensor for name, tensor in (file.tensors | arrays).items() if name not in drop}
    digests = {name: hashlib.sha256(tensor.tobytes()).hexdigest() for name, tensor in tensors.items()}
    metadata = {**file.metadata, "sha256": json.dumps(digests), **changes}
    metadata = {name: text for name, text in metadata.items() if name not in ("header_sha256", *drop)}
    header = signed_header(metadata, tensors)
    other = path.with_name("forged.safetensors")
    other.write_bytes(len(header).to_bytes(8, "little") + header + b"".join(t.tobytes() for t in tensors.values()))
    return other
