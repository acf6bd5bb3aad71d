"""Choose the implementation of the rows: the C extension or the pure-Python fallback.

`VECENV_IMPLEMENTATION=python` selects the fallback even if the extension was built. A worker always uses the
implementation of its parent.
"""

from __future__ import annotations

import importlib
import os
import select
import shlex
import sys
from typing import Any

from ...errors import ConfigError
from ...own_log import own_logger
from . import arena

__all__ = ["IMPLEMENTATIONS", "implementation", "install_command", "load", "suppress_missing_warning"]

IMPLEMENTATIONS = ("native", "python")
_VARIABLE = "VECENV_IMPLEMENTATION"
_has_warned = False  # whether this process has logged that the extension is missing
_fault = ""  # why the extension is missing


def load() -> Any:
    """Return the extension module (`vecenv._native`), or None if it was not built or cannot be loaded.

    Raises:
        ConfigError: it was built from other sources than these.
    """
    global _fault
    try:
        module = importlib.import_module("vecenv._native")
    except ImportError as error:
        _fault = "was not built" if isinstance(error, ModuleNotFoundError) else f"cannot be loaded ({error})"
        return None
    if module.ABI != arena.ABI or len(arena.HEADER_WORDS) != module.HEADER_WORDS:
        raise ConfigError(
            f"vecenv._native has ABI {module.ABI}, these sources have {arena.ABI}; build it again: {install_command()}"
        )
    return module


def implementation() -> str:
    """Return the implementation that new pools of this process use: 'native' or 'python'.

    Logs a warning the first time that the fallback is used only because the extension is missing.

    Raises:
        ConfigError: the environment variable has an unknown value, or requires an extension that is missing.
    """
    wanted = os.environ.get(_VARIABLE, "")
    if wanted and wanted not in IMPLEMENTATIONS:
        raise ConfigError(f"{_VARIABLE}: expected one of {IMPLEMENTATIONS}, got {wanted!r}")
    has_calls = hasattr(select, "epoll") and hasattr(os, "eventfd") and hasattr(os, "pidfd_open")
    if not sys.platform.startswith("linux") or not has_calls:  # gevent removes `select.epoll`
        return "python"
    built = load() is not None
    if wanted == "native" and not built:
        raise ConfigError(
            f"{_VARIABLE}=native, but the extension {_fault}; install a C compiler, then run: {install_command()}"
        )
    if not wanted and not built:
        _warn_missing()
    return wanted or ("native" if built else "python")


def install_command() -> str:
    """Return a command that builds the extension: of the checkout that this package is part of, or of the release."""
    folder = os.path.abspath(__file__)
    for _ in __name__.split("."):
        folder = os.path.dirname(folder)
    if os.path.exists(os.path.join(folder, "pyproject.toml")):
        return f"pip install -e {shlex.quote(folder)}"
    # Without these options, pip takes the same wheel, or the one that it has built without a compiler.
    return "pip install --force-reinstall --no-deps --no-cache-dir --no-binary vecenv vecenv"


def suppress_missing_warning() -> None:
    """Do not log a missing extension in this process: it is a worker, and the parent has already logged it."""
    global _has_warned
    _has_warned = True


def _warn_missing() -> None:
    if not _has_warned:
        suppress_missing_warning()
        own_logger().warning(
            f"the extension vecenv._native {_fault}, so the work of a step is done in Python, which is slower; install"
            f" a C compiler, then run: {install_command()}; {_VARIABLE}=python turns this warning off"
        )
