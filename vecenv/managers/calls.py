"""What managers have done to an env where it lives, beside steps and resets: reading, calling, rendering.

manager -> one of these (a payload with a call) -> ManagedEnv -> the env, or a layer under it
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import gymnasium

from ..envs.adapt import find_attr, original
from ..envs.base import BaseEnv
from ..envs.own_attributes import get_own_attr
from ..errors import StateError
from .env_driver import ManagedEnv

__all__ = ["CallMethod", "ReadAttribute", "Render", "ShapeRewards", "leave_resets", "renew_env"]


@dataclass(frozen=True)
class ReadAttribute:
    """Read a name of the env or of the layers under it: ('value', v), ('method', None) or ('missing', None)."""

    name: str

    def __call__(self, managed: ManagedEnv) -> tuple[str, Any]:
        """Read it, where the env lives."""
        missing = object()
        value = find_attr(managed.env, self.name, missing)
        if value is missing:
            return "missing", None
        return ("method", None) if inspect.ismethod(value) else ("value", value)


@dataclass(frozen=True)
class CallMethod:
    """Call a method of the env, or of a layer under it."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()

    def __call__(self, managed: ManagedEnv) -> Any:
        """Call it, where the env lives."""
        method = find_attr(managed.env, self.name)
        if not callable(method):
            raise AttributeError(f"{original(managed.env)!r} has no method {self.name!r}")
        return method(*self.args, **dict(self.kwargs))


@dataclass(frozen=True)
class ShapeRewards(CallMethod):
    """Call `reward_shaping`; gives what it returns and what became of the transitions themselves."""

    def __call__(self, managed: ManagedEnv) -> tuple[Any, Any]:
        """Call it, where the env lives."""
        return super().__call__(managed), self.args[0]


@dataclass(frozen=True)
class Render:
    """Render one frame in a mode, whichever way the env takes it."""

    mode: str

    def __call__(self, managed: ManagedEnv) -> Any:
        """Render, where the env lives."""
        env = managed.env
        fixed = env.render_mode
        if fixed == self.mode:
            return env.render()
        render = find_attr(env.unwrapped, "render")
        if callable(render) and "mode" in inspect.signature(render).parameters:
            return render(mode=self.mode)
        own = original(env)
        held = get_own_attr(own, "_env")  # where DI-engine's envs keep what they are made of
        if fixed is None and getattr(held, "render_mode", None) == self.mode:
            return held.render()
        own_render = getattr(type(own), "render", None)
        speaks_old = isinstance(own, BaseEnv) or not isinstance(own, gymnasium.Env)
        if fixed is None and speaks_old and own_render not in (None, gymnasium.Env.render, BaseEnv.render):
            return own.render()
        raise StateError(
            f"{original(env)!r} renders in mode {fixed!r}, not {self.mode!r}; make the env with "
            f"render_mode={self.mode!r}"
        )


def leave_resets(managed: ManagedEnv) -> None:
    """Have the manager begin all later episodes."""
    managed.leave_resets()


def renew_env(managed: ManagedEnv) -> None:
    """Replace the env."""
    managed.renew()
