"""Envs by their ids in Gymnasium's registry; Atari games are found even if ale-py was not imported."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import gymnasium
from gymnasium.envs import registration
from gymnasium.envs.registration import EnvSpec

from vecenv.errors import DependencyError, require
from vecenv.gymnasium_api.registrations import ids_kept

__all__ = ["find_spec", "make_env", "register_atari"]


def make_env(env_id: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Make a Gymnasium env by its id, without Gymnasium's env checker; raises as `find_spec`."""
    return gymnasium.make(find_spec(env_id), disable_env_checker=True, **kwargs)


def find_spec(env_id: str, *, is_quiet: bool = False) -> EnvSpec:
    """Return the spec that an id was registered with; in 'module:id' the module is imported first.

    With `is_quiet` there is no warning about newer versions.

    Raises:
        DependencyError: the id is an Atari game, and ale-py is missing.
        gymnasium.error.UnregisteredEnv: the id is not registered; the message suggests others.
    """
    find = _find_quietly if is_quiet else registration._find_spec
    try:
        return find(env_id)
    except gymnasium.error.UnregisteredEnv:
        if not register_atari(is_needed=env_id.startswith("ALE/")):
            raise
    return find(env_id)


def _find_quietly(env_id: str) -> EnvSpec:
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    return gymnasium.spec(name)


def register_atari(is_needed: bool) -> bool:
    """Register ale-py's games, except under ids that are registered already.

    False is returned if ale-py was imported before, or is missing and not needed. DependencyError is raised if it is
    missing and `is_needed`.
    """
    if sys.modules.get("ale_py") is not None:
        return False
    try:
        with ids_kept():
            require("ale_py", "atari")
    except DependencyError:
        if is_needed:
            raise
        return False
    return True
