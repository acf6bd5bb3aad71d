"""The env that a benchmark steps: how to build it in any process, and actions that are made before the clock starts."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

from vecenv.core.system.descriptor import Descriptor
from vecenv.core.system.output_capture import silence
from vecenv.envs.factory import EnvFactory
from vecenv.envs.gym_registry import register_atari
from vecenv.envs.spaces import map_by_space
from vecenv.errors import ConfigError, VecenvError, require

__all__ = [
    "NUM_BATCHES",
    "EnvFn",
    "action_batches",
    "action_rows",
    "build_env",
    "check_env",
    "foreign_errors",
    "quietly",
    "registered_env",
    "take_rows",
]

EnvFn: TypeAlias = "Callable[[], gymnasium.Env[Any, Any]]"

# Batches of premade actions, used over and over: enough that no env sees a short pattern, few enough to stay in cache.
NUM_BATCHES = 64


def registered_env(
    env_name: str, kwargs: Mapping[str, Any] | None = None, *, atari: bool = False, quiet: bool = False
) -> EnvFactory:
    """Return a factory of a registered env: `atari` gives 84x84 grey frames in stacks of 4; `quiet`: see `quietly`."""
    factory = EnvFactory(_make, (env_name, dict(kwargs or {})), {"atari": atari})
    return quietly(factory) if quiet else factory


def quietly(env_fn: EnvFn) -> EnvFactory:
    """Return a factory of the same env that discards the output on stderr while it builds the env."""
    return EnvFactory(_build_quietly, (env_fn,))


def _build_quietly(env_fn: EnvFn) -> Any:
    # The descriptor is silenced, not sys.stderr: simulators print from C, once for each of hundreds of envs.
    try:
        saved = Descriptor(os.dup(2))
    except OSError:  # the program was started without it
        return env_fn()
    with contextlib.closing(saved):
        silence([2])
        try:
            return env_fn()
        finally:
            os.dup2(saved.number, 2)


def _make(env_name: str, kwargs: dict[str, Any], *, atari: bool) -> gymnasium.Env[Any, Any]:
    if atari or env_name.startswith("ALE/"):
        register_atari(is_needed=True)
    if not atari:
        return gymnasium.make(env_name, **kwargs)
    require("cv2", "atari")
    env = gymnasium.make(env_name, **{"frameskip": 1, **kwargs})  # AtariPreprocessing does the skipping
    return gymnasium.wrappers.FrameStackObservation(gymnasium.wrappers.AtariPreprocessing(env, screen_size=84), 4)


def check_env(env_fn: EnvFn, name: str) -> EnvFactory:
    """Build the env once and close it, to find mistakes before any process starts; return a quiet factory of it.

    Exceptions are those of `build_env`, and ConfigError if the env cannot be closed.
    """
    env = build_env(env_fn, name)
    with foreign_errors(f"cannot close {name!r}"):
        env.close()
    return quietly(env_fn)


@contextlib.contextmanager
def foreign_errors(failure: str, *raised: type[BaseException]) -> Iterator[None]:
    """Turn exceptions into a ConfigError that begins with `failure`, except KeyboardInterrupt and the classes `raised`.

    All classes are turned, SystemExit too: foreign code is run, and its reason is all that the user needs.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, *raised)):
            raise
        raise ConfigError(f"{failure}: {type(error).__name__}: {error}") from error


def build_env(env_fn: Callable[[], Any], name: str) -> Any:
    """Build an env that was asked for by name.

    Raises:
        ConfigError: it cannot be built, or is no env.
        DependencyError: it needs a package that is not installed.
    """
    with foreign_errors(f"cannot make {name!r}", VecenvError):
        try:
            env = env_fn()
        except gymnasium.error.Error as error:
            raise ConfigError(str(error)) from error
    is_env = all(callable(getattr(env, method, None)) for method in ("reset", "step"))
    if not is_env or isinstance(env, gymnasium.vector.VectorEnv):
        kind = "a vector env" if is_env else type(env).__name__
        raise ConfigError(f"{name!r} makes no single env but {kind}")
    if callable(getattr(env, "time_step_spec", None)):
        raise ConfigError(f"{name!r} makes an ALF environment, whose results are TimeSteps; name the env that it wraps")
    return env


def action_batches(space: gymnasium.Space[Any], num_envs: int, seed: int = 0) -> Iterator[Any]:
    """Return an endless iterator over random batches of actions, leaves `(N, *S)`, made before it returns."""
    batched = batch_space(space, num_envs)
    batched.seed(seed)
    return itertools.cycle([batched.sample() for _ in range(NUM_BATCHES)])


def action_rows(space: gymnasium.Space[Any], num_envs: int, seed: int = 0) -> Iterator[list[Any]]:
    """Return an endless iterator over lists of N single actions, of the types that a vector env hands to its envs."""
    batched = batch_space(space, num_envs)
    batches = itertools.islice(action_batches(space, num_envs, seed), NUM_BATCHES)
    return itertools.cycle([list(iterate(batched, batch)) for batch in batches])


def take_rows(space: gymnasium.Space[Any], batch: Any, env_ids: NDArray[np.int64]) -> Any:
    """Return the actions of `env_ids`, in that order, out of a batch for all envs."""

    def take(_space: gymnasium.Space[Any], values: Any) -> Any:
        return values[env_ids] if isinstance(values, np.ndarray) else tuple(values[env_id] for env_id in env_ids)

    return map_by_space(take, space, batch)
