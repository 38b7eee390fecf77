"""Every error that a user can cause: each says what is wrong, what is allowed and what to do.

    ExciseError
    ├── InputError          a value, an array or a file of features that cannot be used (a ValueError)
    ├── ModelFileError      a model file that cannot be written, or is foreign, truncated, corrupted or newer
    └── MissingExtraError   an optional dependency that is not installed, or does not load (an ImportError)

The shell prints the sentence alone and exits with 2.
"""

import importlib
from types import ModuleType


class ExciseError(Exception):
    """Base of all errors that excise raises on purpose; the shell prints its one line and exits 2."""


class InputError(ExciseError, ValueError):
    """A value, an array or a file of features cannot be used."""


class ModelFileError(ExciseError):
    """A model file cannot be written, or cannot be read: foreign, truncated, corrupted or from a newer excise."""


class MissingExtraError(ExciseError, ImportError):
    """An optional dependency is not installed, or does not load."""


def import_extra(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional dependency, or say in one sentence which pip command brings it, or why it does not load."""
    package = module.split(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            problem = f"which is not installed: pip install 'excise[{extra}]'"
        else:
            problem = f"which is installed but does not load ({' '.join(str(error).split())}): mend or reinstall it"
        raise MissingExtraError(f"{purpose} needs {package}, {problem}") from error
