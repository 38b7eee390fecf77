"""Class unlearning that costs next to nothing: a classifier on frozen features that can forget."""

from excise.errors import ExciseError, InputError, MissingExtraError, ModelFileError
from excise.estimator import KeyValueClassifier
from excise.presets import PRESETS
from excise.storage import load

__version__ = "0.1.0"

__all__ = [
    "PRESETS",
    "ExciseError",
    "InputError",
    "KeyValueClassifier",
    "MissingExtraError",
    "ModelFileError",
    "load",
]
