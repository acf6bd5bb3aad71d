"""Envs by their ids in Gymnasium's registry, Atari's games among them whether ale-py was imported or not."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import gymnasium
from gymnasium.envs import registration
from gymnasium.envs.registration import EnvSpec

from vecenv.errors import DependencyError, require

__all__ = ["find_spec", "make_env"]


def make_env(env_id: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Make a Gymnasium env by its id.

    Raises:
        DependencyError: one of Atari's games, and ale-py is missing.
        gymnasium.error.UnregisteredEnv: no such id.
    """
    return gymnasium.make(find_spec(env_id), disable_env_checker=True, **kwargs)


def find_spec(env_id: str, *, is_quiet: bool = False) -> EnvSpec:
    """Return what an id was registered with; a module before its colon is imported first.

    Args:
        env_id: the id.
        is_quiet: say nothing of newer versions.

    Raises:
        DependencyError: one of Atari's games, and ale-py is missing.
        gymnasium.error.UnregisteredEnv: no such id; the message suggests others.
    """
    find = _find_quietly if is_quiet else registration._find_spec
    try:
        return find(env_id)
    except gymnasium.error.UnregisteredEnv:
        if not _register_atari(is_needed=env_id.startswith("ALE/")):
            raise
    return find(env_id)


def _find_quietly(env_id: str) -> EnvSpec:
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    return gymnasium.spec(name)


def _register_atari(is_needed: bool) -> bool:
    """Register ale-py's games; False if they are registered already, or ale-py is missing and not needed."""
    if sys.modules.get("ale_py") is not None:
        return False
    try:
        gymnasium.register_envs(require("ale_py", "atari"))
    except DependencyError:
        if is_needed:
            raise
        return False
    return True
