"""The code that builds a vector env, to be pasted into a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from vecenv.envs.factory import EnvFactory
from vecenv.envs.gym_registry import find_spec
from vecenv.errors import ConfigError
from vecenv.measurement.env_names import find_env_fn
from vecenv.values.checks import describe_wrong_env_fn

__all__ = ["EnvCode"]


@dataclass(frozen=True)
class EnvCode:
    """An env as a user named it: its constructor, and the text of a program that uses it.

    Attributes:
        imports: lines of Python that `expression`, the constructor, needs.
        env_id: id of a registered env; None if there is none.
    """

    name: str
    env_fn: Callable[[], Any]
    imports: tuple[str, ...]
    expression: str
    env_id: str | None = None
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, env: Any, env_kwargs: Mapping[str, Any]) -> EnvCode:
        """Find the env, given as to `tune`; it is not built.

        Raises:
            ConfigError: there is no such env.
            DependencyError: the env needs a package that is not installed.
        """
        if callable(env):
            name = getattr(env, "__name__", "")
            name = name if name.isidentifier() else "env_fn"
            return cls._of_factory(name, EnvFactory(env, kwargs=dict(env_kwargs)), name)
        if not isinstance(env, str):
            got = describe_wrong_env_fn(env, is_one=True)
            raise ConfigError(f"env: expected an id or a function that builds an env, {got}", key="env")
        found = find_env_fn(env, env_kwargs, checks_results=True)
        module, colon, path = env.partition(":")
        if not colon or path in gymnasium.registry:
            try:
                find_spec(env, is_quiet=True)
            except gymnasium.error.Error as error:
                raise ConfigError(str(error)) from error
            arguments = "".join(f", {key}={value!r}" for key, value in env_kwargs.items())
            make = f"lambda: gymnasium.make({env!r}{arguments})"
            return cls(env, found, ("import gymnasium",), make, env, env_kwargs)
        assert isinstance(found, EnvFactory)
        return cls._of_factory(env, found, path, f"from {module} import {path.partition('.')[0]}")

    @classmethod
    def _of_factory(cls, name: str, factory: EnvFactory, path: str, *imports: str) -> EnvCode:
        arguments = [*map(repr, factory.args), *([_keywords(factory.kwargs)] if factory.kwargs else [])]
        if not arguments:
            return cls(name, factory, imports, path)
        expression = f"functools.partial({', '.join([path, *arguments])})"
        return cls(name, factory, ("import functools", *imports), expression)

    def vector_env(self, num_envs: int, options: Mapping[str, Any]) -> str:
        """Return a program that builds a `VectorEnv` as `envs`."""
        if self.env_id is not None:
            arguments = {"num_envs": num_envs, **self.env_kwargs, **options}
            return f"import vecenv\nenvs = vecenv.make_vec({self.env_id!r}, {_keywords(arguments)})"
        keywords = _keywords(options)
        call = f"vecenv.VectorEnv([{self.expression}] * {num_envs}{', ' * bool(keywords)}{keywords})"
        return "\n".join([*self.imports, "import vecenv", f"envs = {call}"])

    def plain_loop(self, num_envs: int) -> str:
        """Return a program that builds Gymnasium's `SyncVectorEnv` as `envs`."""
        imports = dict.fromkeys([*self.imports, "import gymnasium"])
        return "\n".join([*imports, f"envs = gymnasium.vector.SyncVectorEnv([{self.expression}] * {num_envs})"])


def _keywords(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in options.items())
