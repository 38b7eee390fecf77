"""Errors: one sentence that says what is true."""

import importlib
from typing import Any

import pytest

from excise import ExciseError, MissingExtraError
from excise.errors import import_extra


def fail_with(monkeypatch: pytest.MonkeyPatch, error: ImportError) -> None:
    def refuse(name: str) -> Any:
        raise error

    monkeypatch.setattr(importlib, "import_module", refuse)


def test_an_extra_that_is_not_installed_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, ModuleNotFoundError("No module named 'torch'", name="torch"))
    with pytest.raises(MissingExtraError) as caught:
        import_extra("torch.nn", "torch", "this")
    assert str(caught.value) == "this needs torch, which is not installed: pip install 'excise[torch]'"


@pytest.mark.parametrize(
    "error",
    [
        ImportError("libcudart.so.12:\n  cannot open shared object file", name="torch"),
        ModuleNotFoundError("No module named 'typing_extensions'", name="typing_extensions"),
        ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn"),
    ],
)
def test_an_extra_that_does_not_load_says_why(error: ImportError, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, error)
    with pytest.raises(MissingExtraError) as caught:
        import_extra("torch.nn", "torch", "this")
    assert "not installed" not in str(caught.value)
    assert f"does not load ({' '.join(str(error).split())}): " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_extra_is_also_an_import_error() -> None:
    assert issubclass(MissingExtraError, ExciseError)
    assert issubclass(MissingExtraError, ImportError)
