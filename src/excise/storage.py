"""Models on disk: one safetensors file, written whole or not at all, memory-mapped on load."""
from os import PathLike
from excise.estimator import KeyValueClassifier
def save(model: KeyValueClassifier, path: str | PathLike[str]) -> None: raise NotImplementedError
def load(path: str | PathLike[str], verify: bool = True) -> KeyValueClassifier: raise NotImplementedError
