"""Native: says which implementation of the rows runs, C or its Python twin.

`VECENV_IMPLEMENTATION=python` chooses the twin also where the extension is built; a worker
always uses what its parent uses.
"""

from __future__ import annotations

import importlib
import os
import select
import sys
from typing import Any

from ...errors import ConfigError
from . import arena

__all__ = ["IMPLEMENTATIONS", "implementation", "load", "suppress_missing_warning"]

IMPLEMENTATIONS = ("native", "python")
_VARIABLE = "VECENV_IMPLEMENTATION"
_has_warned = False  # that the extension is missing; said once in a process


def load() -> Any:
    """Return the extension module (`vecenv._native`), or None where it was not built.

    Raises:
        ConfigError: it was built from other sources than these.
    """
    try:
        module = importlib.import_module("vecenv._native")
    except ImportError:
        return None
    if module.ABI != arena.ABI or len(arena.HEADER_WORDS) != module.HEADER_WORDS:
        raise ConfigError(
            f"vecenv._native has ABI {module.ABI}, these sources have {arena.ABI}; build it again (pip install .)"
        )
    return module


def implementation() -> str:
    """Name what new pools of this process use: 'native' or 'python'.

    The first time that it is the twin only because the extension is missing, the log says so.

    Raises:
        ConfigError: the environment variable names none of them, or C that was not built.
    """
    wanted = os.environ.get(_VARIABLE, "")
    if wanted and wanted not in IMPLEMENTATIONS:
        raise ConfigError(f"{_VARIABLE}: expected one of {IMPLEMENTATIONS}, got {wanted!r}")
    if not sys.platform.startswith("linux") or not hasattr(select, "epoll"):  # which gevent takes away
        return "python"
    built = load() is not None
    if wanted == "native" and not built:
        raise ConfigError(f"{_VARIABLE}=native, but the extension was not built; install with a C compiler")
    if not wanted and not built:
        _warn_missing()
    return wanted or ("native" if built else "python")


def suppress_missing_warning() -> None:
    """Log nothing about a missing extension in this process: it is a worker, and its caller has been told."""
    global _has_warned
    _has_warned = True


def _warn_missing() -> None:
    import logging  # which few workers need

    if not _has_warned:
        suppress_missing_warning()
        logging.getLogger("vecenv").warning(
            "the extension vecenv._native was not built, so the work of a step is done in Python, which is slower; "
            f"install vecenv again with a C compiler, or ask for this with {_VARIABLE}=python"
        )
