"""Envs of an evaluation: the caller's vector env, or one that is built for the evaluation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode

from ..envs.factory import EnvFactory
from ..envs.gym_registry import find_spec, make_env
from ..errors import ConfigError, StateError
from ..options import given_fields, read_timeouts
from ..values.checks import describe_wrong_env_fn
from ..vector.env import VectorEnv, describe_wrong_vector_env
from ..vector.errors import ClosedVectorEnvError
from ..vector.options import move_options
from .videos import Videos

__all__ = ["open_envs"]

#: The attribute of a vector env with its `_position` after the last evaluation. Envs may owe results then: where a
#: timeout has cut the last episode, and after an exception. The next evaluation drops these.
_ATTRIBUTE = "_position_after_evaluation"

#: Seconds that workers have to write the video of an episode that was cut, when they are closed.
_CLOSE_SECONDS = 60.0


@contextlib.contextmanager
def open_envs(
    env: Any, num_envs: int, *, timeout: float | None, has_limit: bool, videos: Videos, options: Mapping[str, Any]
) -> Iterator[VectorEnv]:
    """Yield a vector env, and close it if it was built here.

    Args:
        timeout: seconds that an episode may take, or None.
        has_limit: whether episodes may be cut.

    Raises:
        ConfigError: the env is none, or the caller's vector env would have to be built differently.
        StateError: the caller's vector env is closed, or owes results.
        Exception: no env of this id is registered, or a constructor raised it.
    """
    if isinstance(env, VectorEnv):
        given = [*options, *(["videos"] if videos.seeds else [])]
        if given:
            raise ConfigError(
                f"{', '.join(given)}: the vector env has been built; give the id of an env, or a function that builds "
                "one",
                key=given[0],
            )
        if env.closed:
            raise ClosedVectorEnvError("evaluate: the vector env is closed")
        if count := env.num_outstanding:
            if vars(env).get(_ATTRIBUTE) != _position(env):
                raise StateError(f"evaluate: {count} envs owe the results of earlier calls; receive them first")
            env.pool.cancel()
        try:
            yield env
        finally:
            setattr(env, _ATTRIBUTE, _position(env))
        return
    env_fn = _read_env(env, {"render_mode": "rgb_array"} if videos.seeds else {})
    options = move_options(options)
    limits: dict[str, Any] = {"close": _CLOSE_SECONDS} if videos.seeds else {"step": timeout}  # steps write the videos
    settings: dict[str, Any] = {
        "autoreset_mode": AutoresetMode.DISABLED,
        "infos": "all" if has_limit else "done",  # an episode that is cut has its last info from an ordinary step
        **options,
        "timeouts": {**limits, **given_fields(read_timeouts(options.get("timeouts")))},
    }
    with VectorEnv([videos.record(env_fn) if videos.seeds else env_fn] * num_envs, **settings) as envs:
        videos.find_paths(envs)
        yield envs


def _position(envs: VectorEnv) -> tuple[int, int]:
    """Return numbers that change with every receive, and with every step or reset that is begun."""
    return envs.num_batches, envs.num_outstanding


def _read_env(env: Any, kwargs: dict[str, Any]) -> Callable[[], Any]:
    """Return a constructor of an env, given as an id, which takes `kwargs`, or as a constructor."""
    if isinstance(env, str):
        find_spec(env)
        return EnvFactory(make_env, (env,), kwargs)
    is_built = hasattr(env, "step") and not isinstance(env, type)
    if is_built or not callable(env):
        is_several = isinstance(env, gymnasium.vector.VectorEnv)
        got = describe_wrong_vector_env(env) if is_several else describe_wrong_env_fn(env, is_one=True)
        raise ConfigError(
            f"env: expected the id of an env, a function that builds an env, or a vecenv.VectorEnv, {got}", key="env"
        )
    found: Callable[[], Any] = env
    return found
