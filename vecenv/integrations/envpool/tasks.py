"""`make`: an env pool by task id, with EnvPool's options; above the interfaces."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from ...envs.gym_registry import register_atari
from ...errors import ConfigError
from ...values.checks import check_choice, check_whole
from ...vector.arguments import read_seeds
from ...vector.env import OPTION_NAMES
from ...vector.make import build_vec
from ...vector.options import suggest
from .atari import AtariTask
from .gymnasium_pool import GymnasiumEnvPool
from .pool import EnvPool

__all__ = ["make"]

#: Options of Atari games, with EnvPool's defaults. -1 is the game's own mode or difficulty.
_ATARI_OPTIONS: dict[str, Any] = {
    "stack_num": 4,
    "frame_skip": 4,
    "noop_max": 30,
    "episodic_life": False,
    "reward_clip": False,
    "use_fire_reset": True,
    "img_height": 84,
    "img_width": 84,
    "mode": -1,
    "difficulty": -1,
    "full_action_space": False,
    "repeat_action_probability": 0.0,
}
_ATARI_STEPS = 27_000
#: Options of EnvPool that have one value here.
_FIXED: dict[str, Any] = {"max_num_players": 1, "gym_reset_return_info": True}
#: The same for Atari games.
_ATARI_FIXED: dict[str, Any] = {
    "zero_discount_on_life_loss": False,
    "use_inter_area_resize": True,
    "gray_scale": True,
}


class _Task(NamedTuple):
    """How to make the envs of a task.

    Attributes:
        id: a registered name or a spec.
        arguments: those of the env's constructor and of `gymnasium.make`.
        wrappers: innermost first.
        limit: the largest number of steps of an episode; None: that of the spec.
        options: the options of this task, for `config`.
    """

    id: str | EnvSpec
    arguments: dict[str, Any]
    wrappers: list[Callable[[Any], Any]]
    limit: int | None
    options: Mapping[str, Any]


def make(
    task_id: str,
    env_type: str = "gymnasium",
    *,
    num_envs: int = 1,
    batch_size: int | None = None,
    num_threads: int | None = None,
    seed: int | Sequence[int] = 42,
    env_seed: Sequence[int] | None = None,
    max_episode_steps: int | None = None,
    thread_affinity_offset: int = -1,
    reward_threshold: float | None = None,
    **options: Any,
) -> Any:
    """Make N envs with EnvPool's interface; EnvPool itself is not needed.

    The envs are Gymnasium's and ALE's, with their spaces and infos, so the random numbers of a seed are not those of
    EnvPool. `docs/envpool.md` lists the differences.

    Args:
        task_id: an id of Gymnasium's registry; or EnvPool's id of an Atari game, such as 'Pong-v5'. That is
            'ALE/Pong-v5' with EnvPool's preprocessing: up to 30 NOOPs, FIRE, frames skipped and pooled in fours, gray
            images of 84 x 84, four of them stacked. Observations are uint8 (4, 84, 84).
        env_type: 'gymnasium' (default) or 'gym', which EnvPool treats as equal: five values per step. 'dm': time steps
            of dm_env. 'old_gym': four values per step, no infos from `reset`, and gym's spaces, as env_type 'gym' of
            EnvPool before 0.7.
        num_envs: N, 1 by default.
        batch_size: the number of rows of a batch. None (default) or 0: N. If it is below N, `recv` returns the envs
            that finish first.
        num_threads: the number of worker processes. None (default) or 0: one per usable core, at most one per env.
        seed: env i gets `seed + i`, or `seed[i]`, in its first reset; 42 by default.
        env_seed: a list of N seeds, in place of `seed`.
        max_episode_steps: an episode is truncated after this number of steps. None (default): the limit that the env
            is registered with; 27,000 for Atari games.
        thread_affinity_offset: for callers of EnvPool, and without effect.
        reward_threshold: as EnvPool, only stored in `config` and in `spec`. None (default): that which the env is
            registered with.
        **options: options of `VectorEnv` by their names. For EnvPool's Atari ids also `stack_num`, `frame_skip`,
            `noop_max`, `episodic_life` (a lost life ends the episode), `reward_clip` (to its sign), `use_fire_reset`,
            `img_height`, `img_width`, `mode`, `difficulty`, `full_action_space` and `repeat_action_probability` (0 by
            default); `zero_discount_on_life_loss`, `use_inter_area_resize` and `gray_scale` have one value, False, True
            and True. For other envs they are arguments of the env.

    Returns:
        A `GymnasiumEnvPool`, a `DMEnvPool` or a `GymEnvPool`.

    Example:
        >>> envs = make("CartPole-v1", "gymnasium", num_envs=4, batch_size=2, backend="serial")
        >>> envs.async_reset()
        >>> obs, reward, terminated, truncated, info = envs.recv()
        >>> envs.send(info["env_id"] % 2, info["env_id"])
        >>> obs.shape, reward.dtype, info["env_id"].tolist(), info["elapsed_step"].tolist()
        ((2, 4), dtype('float32'), [0, 1], [0, 0])
        >>> envs.close()

    Raises:
        gymnasium.error.Error: there is no such env.
        ConfigError: an option is wrong.
        DependencyError: ale-py is missing for an Atari game, dm_env for 'dm', or gym for 'old_gym'.
        Exception: any error of the constructor of `VectorEnv`.
    """
    check_choice("env_type", env_type, ("gymnasium", "gym", "dm", "old_gym"))
    make_pool = _pool_class(env_type)
    num_envs = check_whole("num_envs", num_envs, 1)
    batch_size = check_whole("batch_size", batch_size or num_envs, 1)
    if "autoreset_mode" in options:
        raise ConfigError("autoreset_mode: EnvPool's mode is NEXT_STEP", key="autoreset_mode")
    threshold: Any = reward_threshold
    if threshold is not None and not isinstance(threshold, numbers.Real):
        raise ConfigError(f"reward_threshold: expected a number, got {threshold!r}", key="reward_threshold")
    game = _find_game(task_id)
    for name, value in {**_FIXED, **({} if game is None else _ATARI_FIXED)}.items():
        if options.pop(name, value) != value:
            raise ConfigError(f"{name}: only {value!r} is supported", key=name)
    seeds = read_seeds(seed if env_seed is None else env_seed, num_envs)
    vector_options = {name: options.pop(name) for name in OPTION_NAMES & options.keys()}
    if num_threads:
        vector_options.setdefault("num_workers", min(check_whole("num_threads", num_threads, 1), num_envs))
    if game is not None:
        task = _atari(game, max_episode_steps, options)
    else:
        limit = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps}
        task = _Task(task_id, {**options, **limit}, [], max_episode_steps, options)
    arguments = {"batch_size": batch_size, **vector_options, **task.arguments}
    envs = build_vec(make, task.id, num_envs, None, None, task.wrappers, arguments)
    assert envs.spec is not None
    if threshold is not None:
        envs.spec.reward_threshold = float(threshold)
    has_list, threshold = np.ndim(seed) > 0, envs.spec.reward_threshold
    config = {
        "num_envs": num_envs,
        "batch_size": batch_size,
        "num_threads": num_threads or 0,
        "max_num_players": 1,
        "thread_affinity_offset": thread_affinity_offset,
        "seed": 0 if has_list else seed,
        "env_seed": list(seeds) if has_list or env_seed is not None else [],
        "gym_reset_return_info": True,
        "max_episode_steps": envs.spec.max_episode_steps if task.limit is None else task.limit,
        **({} if threshold is None else {"reward_threshold": threshold}),
        **task.options,
    }
    found = make_pool(envs, config, seeds)
    found._continue_own(vector_options.get("resume"))
    return found


def _pool_class(env_type: str) -> type[EnvPool]:
    if env_type == "dm":
        from .dm_pool import DMEnvPool

        return DMEnvPool
    if env_type == "old_gym":
        from .gym_pool import GymEnvPool

        return GymEnvPool
    return GymnasiumEnvPool


def _find_game(task_id: str) -> EnvSpec | None:
    """Return the spec of a game if `task_id` is EnvPool's id of it; None if it is an id of Gymnasium, or unknown.

    The spec is without Gymnasium's checks of the order of calls: a game continues after a lost life, also in an env
    that was restored to this point and never reset.
    """
    if "/" in task_id or ":" in task_id or not task_id.endswith("-v5") or task_id in gymnasium.registry:
        return None
    game = f"ALE/{task_id}"
    register_atari(is_needed=True)
    if game not in gymnasium.registry:
        return None
    return dataclasses.replace(gymnasium.registry[game], order_enforce=False, disable_env_checker=True)


def _atari(game: EnvSpec, max_episode_steps: int | None, given: Mapping[str, Any]) -> _Task:
    for name in given:
        if name not in _ATARI_OPTIONS:
            hint = suggest(name, {*_ATARI_OPTIONS, *OPTION_NAMES, *inspect.signature(make).parameters} - {"options"})
            raise ConfigError(f"{game.name}-v5 has no option {name!r}{hint}", key=name)
    limit = check_whole("max_episode_steps", _ATARI_STEPS if max_episode_steps is None else max_episode_steps, 1)
    options = {**_ATARI_FIXED, **_ATARI_OPTIONS, **given}
    arguments = {
        "frameskip": 1,
        "max_num_frames_per_episode": None,
        "full_action_space": options["full_action_space"],
        "repeat_action_probability": options["repeat_action_probability"],
        **{name: options[name] for name in ("mode", "difficulty") if options[name] != -1},
    }
    preprocess = functools.partial(
        AtariPreprocessing,
        noop_max=options["noop_max"],
        frame_skip=options["frame_skip"],
        screen_size=(options["img_width"], options["img_height"]),
    )
    add_lives = functools.partial(
        AtariTask,
        max_episode_steps=limit,
        episodic_life=options["episodic_life"],
        reward_clip=options["reward_clip"],
        use_fire_reset=options["use_fire_reset"],
    )
    stack = functools.partial(FrameStackObservation, stack_size=options["stack_num"])
    return _Task(game, arguments, [preprocess, add_lives, stack], limit, options)
