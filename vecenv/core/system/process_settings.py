"""Settings that Python and numeric libraries keep per process or thread, for workers to take over from the program.

    sys.setrecursionlimit           of the process
    numpy.seterr                    of a thread
    decimal.setcontext              of a thread
    torch.set_default_dtype         of the process

A worker that is forked from a fork server has the defaults of all these.
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["ProcessSettings", "working_directory"]


@dataclass(frozen=True)
class ProcessSettings:
    """Settings of a process and of its present thread.

    Attributes:
        recursion_limit: see `sys.setrecursionlimit`.
        float_errors: see `numpy.seterr`.
        decimal_context: None if `decimal` is not loaded.
        torch_dtype: the name of torch's default dtype, if the program has changed it; else ''.
    """

    recursion_limit: int
    float_errors: dict[str, Any]
    decimal_context: Any
    torch_dtype: str

    @classmethod
    def now(cls) -> ProcessSettings:
        """Return the present settings."""
        decimal, torch = sys.modules.get("decimal"), sys.modules.get("torch")
        dtype = "" if torch is None else str(torch.get_default_dtype()).rpartition(".")[2]
        return cls(
            sys.getrecursionlimit(),
            dict(np.geterr()),
            None if decimal is None else decimal.getcontext().copy(),
            "" if dtype == "float32" else dtype,
        )

    def apply(self) -> None:
        """Make these the settings of this process and of the calling thread.

        torch is imported only if the program has changed its default dtype.
        """
        sys.setrecursionlimit(self.recursion_limit)
        if self.torch_dtype:
            torch = importlib.import_module("torch")
            torch.set_default_dtype(getattr(torch, self.torch_dtype))
        self.apply_to_thread()

    def apply_to_thread(self) -> None:
        """Make those settings that each thread has the settings of the calling thread."""
        np.seterr(**self.float_errors)
        if self.decimal_context is not None:
            importlib.import_module("decimal").setcontext(self.decimal_context.copy())


def working_directory() -> str | None:
    """Return the working directory; None if it has been removed: most envs do not need it."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None
