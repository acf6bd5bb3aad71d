"""Entry points for Gymnasium's registry: `vecenv.vector.by_id:<id>` makes a `VectorEnv` of the env of that id.

    gymnasium.register("My-v0", entry_point="my:Env", vector_entry_point="vecenv.vector.by_id:My-v0")
    gymnasium.make_vec("My-v0", num_envs=8)

Gymnasium resolves such a string to an attribute of this module and calls that without the id. So the name of the
attribute is the id. This module stands between Gymnasium's registry and `make_vec`.
"""

from __future__ import annotations

import functools
from typing import Any

import gymnasium

from .make import make_vec

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    if name not in gymnasium.registry:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: no env of this id is registered")
    return functools.partial(make_vec, name)
