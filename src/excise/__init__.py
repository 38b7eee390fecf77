"""Class unlearning that costs next to nothing: a classifier on frozen features that can forget."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from excise.errors import ExciseError, InputError, MissingExtraError, ModelFileError
    from excise.estimator import KeyValueClassifier
    from excise.presets import PRESETS
    from excise.report import make_report
    from excise.report_page import write_report
    from excise.storage import load
    from excise.unlearning import forgetting_curve

__version__ = "0.1.0"

# Loaded when first asked for, so that importing a part does not load scikit-learn.
_HOMES = {
    "PRESETS": "presets",
    "ExciseError": "errors",
    "InputError": "errors",
    "KeyValueClassifier": "estimator",
    "MissingExtraError": "errors",
    "ModelFileError": "errors",
    "forgetting_curve": "unlearning",
    "load": "storage",
    "make_report": "report",
    "write_report": "report_page",
}

__all__ = [
    "PRESETS",
    "ExciseError",
    "InputError",
    "KeyValueClassifier",
    "MissingExtraError",
    "ModelFileError",
    "forgetting_curve",
    "load",
    "make_report",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"excise.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'excise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
