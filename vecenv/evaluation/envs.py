"""Envs of an evaluation: the caller's vector env, or one that is built for it; and the videos of its episodes."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode

from ..envs.adapt import adapt_and_build
from ..envs.factory import EnvFactory
from ..envs.gym_registry import find_spec, make_env
from ..envs.video import SeedRecorder, file_name
from ..errors import ConfigError, StateError
from ..options import given_fields, read_timeouts
from ..values.checks import check_flag, check_whole, describe_wrong_env_fn
from ..vector.base import ClosedVectorEnvError
from ..vector.env import VectorEnv, describe_wrong_vector_env
from ..vector.options import move_options
from .seeds import read_seeds

__all__ = ["Videos", "open_envs"]

#: The attribute of a vector env with its `_position` after the last evaluation. Envs may owe results then: where a
#: timeout has cut the last episode, and after an exception. The next evaluation drops these.
_ATTRIBUTE = "_position_after_evaluation"

#: Seconds that workers have to write the video of an episode that was cut, when they are closed.
_CLOSE_SECONDS = 60.0


class Videos:
    """The videos of some episodes; arguments are those of `evaluate`.

    Attributes:
        seeds: those that are recorded, in the order of all seeds.
        paths: path of the video of each seed; {} until `find_paths`.

    Raises:
        ConfigError: an argument is wrong, or a seed has no episode.
    """

    def __init__(
        self, videos: int | Iterable[int] | None, seeds: tuple[int, ...], out: str | os.PathLike[str], overwrite: bool
    ) -> None:
        self._overwrite = check_flag("overwrite", overwrite)
        if not isinstance(out, str | os.PathLike):
            raise ConfigError(f"out: expected a folder, got {out!r}", key="out")
        self._folder = Path(out)
        self.paths: dict[int, Path] = {}
        if videos is None:
            self.seeds: tuple[int, ...] = ()
            return
        if not isinstance(videos, Iterable):
            self.seeds = seeds[: check_whole("videos", videos, 0)]
            return
        chosen = set(read_seeds(videos, None, name="videos"))
        if missing := sorted(chosen - set(seeds)):
            raise ConfigError(f"videos: seed {missing[0]} has no episode; it is not among the seeds", key="videos")
        self.seeds = tuple(seed for seed in seeds if seed in chosen)

    def record(self, env_fn: Callable[[], Any]) -> EnvFactory:
        """Return a constructor of the same env that records the episodes of these seeds."""
        recorder = functools.partial(SeedRecorder, folder=str(self._folder), seeds=frozenset(self.seeds))
        return EnvFactory(env_fn, wrappers=(adapt_and_build, recorder))

    def find_paths(self, envs: VectorEnv) -> None:
        """Set `paths` from the constructors that `record` returned; ConfigError if one of the files exists."""
        if not self.seeds:
            return
        name = envs.get_attr("name_prefix")[0]
        self.paths = {seed: self._folder / f"{file_name(name, seed)}.mp4" for seed in self.seeds}
        existing = [path for path in self.paths.values() if path.exists()]
        if existing and not self._overwrite:
            more = f" and {len(existing) - 1} more" if len(existing) > 1 else ""
            raise ConfigError(
                f"videos: {existing[0]}{more} exists; choose another folder, or overwrite=True (--overwrite)",
                key="overwrite",
            )


@contextlib.contextmanager
def open_envs(
    env: Any, num_envs: int, *, timeout: Any, max_steps: Any, videos: Videos, options: Mapping[str, Any]
) -> Iterator[VectorEnv]:
    """Yield a vector env, and close it if it was built here.

    Args:
        timeout: seconds that an episode may take, or None.
        max_steps: steps that it may have, or None.

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
        # An episode that is cut has its last info from an ordinary step.
        "infos": "done" if timeout is None and max_steps is None else "all",
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
