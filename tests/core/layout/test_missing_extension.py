"""The C extension is missing: messages contain a command that builds it, in a checkout and in an installed package."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from vecenv import ConfigError
from vecenv.cli import main
from vecenv.core.layout import native


@pytest.fixture(params=["checkout", "installed"])
def command(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Put the package into another folder, without its extension; return the command for that folder."""
    monkeypatch.setitem(sys.modules, "vecenv._native", None)
    monkeypatch.setattr(native, "_has_warned", False)
    monkeypatch.setattr(native, "__file__", str(tmp_path / "vecenv" / "core" / "layout" / "native.py"))
    if request.param == "installed":
        return "pip install --force-reinstall --no-deps --no-cache-dir --no-binary vecenv vecenv"
    (tmp_path / "pyproject.toml").touch()
    return f"pip install -e {tmp_path}"


def test_warning_of_a_missing_extension_has_the_command(
    command: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("VECENV_IMPLEMENTATION", raising=False)
    assert [native.implementation() for _ in range(2)] == ["python"] * 2
    [record] = caplog.records
    assert f"install a C compiler, then run: {command};" in record.getMessage()


def test_warning_has_the_reason_why_an_extension_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was called not built when its C library was another one, or when no descriptor was left."""

    def fail(name: str) -> None:
        raise ImportError("_native.so: cannot open shared object file: Too many open files", name=name)

    monkeypatch.delenv("VECENV_IMPLEMENTATION", raising=False)
    monkeypatch.setattr(native, "_has_warned", False)
    monkeypatch.setattr(importlib, "import_module", fail)
    assert native.implementation() == "python"
    [record] = caplog.records
    assert "vecenv._native cannot be loaded (_native.so: cannot open shared object file: Too" in record.getMessage()


def test_error_of_a_required_extension_has_the_command(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VECENV_IMPLEMENTATION", "native")
    with pytest.raises(ConfigError) as caught:
        native.implementation()
    assert str(caught.value).endswith(f"install a C compiler, then run: {command}")


def test_doctor_has_the_command(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("VECENV_IMPLEMENTATION", raising=False)
    assert main(["doctor"]) == 0
    assert command.replace(" ", "") in "".join(capsys.readouterr().out.split())
