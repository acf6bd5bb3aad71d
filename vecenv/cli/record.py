"""`vecenv record`: play episodes of an env with random actions or a policy, and write a video of each."""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path
from typing import Any

from vecenv.cli.display import draw_without_display
from vecenv.cli.evaluate import play
from vecenv.envs.check.episodes import sample_action
from vecenv.errors import ConfigError, DependencyError, EnvError, require
from vecenv.evaluation.seeds import MOST_SEED
from vecenv.managers import BaseEnvManager
from vecenv.measurement import report
from vecenv.measurement.env_names import find_env_fn
from vecenv.measurement.target import build_env

__all__ = ["run"]

#: Envs that are recorded at the same time.
_POLICY_ENVS = 4


def run(options: argparse.Namespace) -> int:
    """Record, print the files; return exit code 0."""
    require("rich", "video")
    draw_without_display()
    if options.policy is not None:
        first = secrets.randbelow(MOST_SEED - options.episodes) if options.seed is None else options.seed
        seeds = range(first, first + options.episodes)
        play(
            options,
            seeds,
            lambda result, _seconds: sys.stdout.writelines(f"{path}\n" for path in result.videos),
            num_envs=_POLICY_ENVS,
            videos=options.episodes,
        )
        return 0
    if options.max_steps is not None or options.overwrite:
        raise ConfigError(f"--{'overwrite' if options.overwrite else 'max-steps'}: needs --policy")
    return _record_random(options)


def _record_random(options: argparse.Namespace) -> int:
    env_fn = find_env_fn(options.env, options.env_kwargs, {"render_mode": "rgb_array"})
    envs: list[Any] = []

    def build() -> Any:
        envs.append(build_env(env_fn, options.env))
        return envs[-1]

    before = _files(options.out)
    with BaseEnvManager([build], {"episode_num": options.episodes}) as manager:
        if options.seed is not None:
            manager.seed(options.seed)
        manager.enable_save_replay(options.out)
        try:
            manager.launch()
        except EnvError as error:
            if isinstance(error.__cause__, (ConfigError, DependencyError)):
                raise error.__cause__ from None
            raise
        env = envs[-1]
        if options.seed is not None and getattr(env, "action_space", None) is not None:
            env.action_space.seed(options.seed)  # few envs seed this space, from which most draw their random actions
        with report.progress(options.episodes) as advance:
            for episode in range(options.episodes):
                _play_episode(manager, env)
                advance(f"episode {episode + 1}")
    found = sorted(_files(options.out) - before, key=lambda path: (path.stat().st_mtime_ns, path.name))
    if not found:
        raise ConfigError(f"{options.env}: no file was written to {options.out}", key="out")
    print(*found, sep="\n")
    return 0


def _play_episode(manager: Any, env: Any) -> None:
    space = manager.action_space
    ended = manager.env_episode_count[0] + 1
    while manager.env_episode_count[0] < ended:
        manager.step({0: _draw_action(env, space, manager.ready_obs[0])})


def _draw_action(env: Any, space: Any, obs: Any) -> Any:
    """Ask the env for an action if it offers any, as not all of its space need be legal now; else sample one."""
    offer = getattr(env, "random_action", None)
    try:
        action = offer() if callable(offer) else None
    except TypeError:  # DingEnvWrapper's, of a Tuple of actions, which has no form as one array
        action = None
    return sample_action(env, space, obs) if action is None else action


def _files(folder: Path) -> set[Path]:
    """Return the files of a folder, of whatever format: some envs write their own."""
    return {path for path in folder.glob("*") if path.is_file() and not path.name.startswith(".")}
