"""Entry points for Gymnasium's registry: `vecenv.vector.by_id:<id>` makes a `VectorEnv` of the env of that id.

    gymnasium.register("My-v0", entry_point="my:Env", vector_entry_point="vecenv.vector.by_id:My-v0")
    gymnasium.make_vec("My-v0", num_envs=8)

Gymnasium resolves such a string to an attribute of this module and calls that without the id. So the name of the
attribute is the id. This module stands between Gymnasium's registry and `make_vec`.

The same text is not an id. In `gymnasium.make_vec("vecenv.vector.by_id:My-v0")` Gymnasium would import this module, and
then make the vector env that My-v0 has without it. The first such call in a process is refused.
"""

from __future__ import annotations

import functools
import sys
from types import FrameType
from typing import Any

import gymnasium

from .make import make_vec

__all__: list[str] = []


def _refuse_import_for_an_id() -> None:
    """Raise an error if Gymnasium imports this module as the first part of an id."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and "importlib" in (frame.f_globals.get("__name__") or frame.f_code.co_filename):
        frame = frame.f_back
    if frame is not None and frame.f_code.co_name == "_find_spec":
        raise gymnasium.error.Error(
            f"{__name__!r} is an entry point, not a part of an id: make_vec would make another vector env. "
            "Use the name that vecenv.register_vec returns"
        )


def __getattr__(name: str) -> Any:
    if name not in gymnasium.registry:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: no env of this id is registered")
    return functools.partial(make_vec, name)


_refuse_import_for_an_id()
