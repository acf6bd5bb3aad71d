"""`vecenv record`: play episodes of an env with random actions or a policy, and write a video of each."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vecenv.cli.options import AddArgument, add_shared, count, natural
from vecenv.errors import ConfigError, DependencyError, EnvError, require

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "run"]

#: Envs that are recorded at the same time.
_POLICY_ENVS = 4

HELP = "videos of an env's episodes"
DESCRIPTION = (
    "Play episodes of an env with random actions or a policy, write a video of each, and print the "
    "files. With a policy they are named by env and seed."
)


def add_arguments(add: AddArgument) -> None:
    add_shared(add, "env")
    add("--episodes", type=count, default=1, metavar="K", help="how many (default: %(default)s)")
    add("--out", type=Path, default=Path("video"), metavar="DIR", help="folder, made if missing (default: %(default)s)")
    add("--seed", type=natural, metavar="S", help="repeat a run exactly (default: a new one every time)")
    add("--policy", metavar="MODULE:FUNCTION", help="policy(obs, env_id) (default: random actions)")
    add_shared(add, "--max-steps", help="with --policy: cut episodes after N steps")
    add_shared(add, "--overwrite", help="with --policy: replace videos that exist")
    add_shared(add, "--env-kwarg")


def run(options: argparse.Namespace) -> int:
    """Record, print the files; return exit code 0."""
    require("rich", "video")
    from vecenv.cli.display import draw_without_display

    draw_without_display()
    if options.policy is not None:
        return _record_policy(options)
    if options.max_steps is not None or options.overwrite:
        raise ConfigError(f"--{'overwrite' if options.overwrite else 'max-steps'}: needs --policy")
    return _record_random(options)


def _record_policy(options: argparse.Namespace) -> int:
    from vecenv.cli.evaluate import play
    from vecenv.cli.policy_names import find_policy
    from vecenv.evaluation.seeds import MOST_SEED
    from vecenv.measurement.env_names import find_env_fn
    from vecenv.measurement.target import check_env

    policy = find_policy(options.policy)
    first = secrets.randbelow(MOST_SEED - options.episodes) if options.seed is None else options.seed
    seeds = range(first, first + options.episodes)
    env_fn = check_env(find_env_fn(options.env, dict(options.env_kwarg), {"render_mode": "rgb_array"}), options.env)
    play(
        env_fn,
        options.policy,
        policy,
        seeds,
        lambda result: _print_files(result.videos),
        num_envs=_POLICY_ENVS,
        max_steps=options.max_steps,
        videos=options.episodes,
        out=options.out,
        overwrite=options.overwrite,
    )
    return 0


def _print_files(paths: Iterable[Path]) -> None:
    for path in paths:
        print(path)


def _record_random(options: argparse.Namespace) -> int:
    from vecenv.managers import BaseEnvManager
    from vecenv.measurement import report
    from vecenv.measurement.env_names import find_env_fn
    from vecenv.measurement.target import build_env

    env_fn = find_env_fn(options.env, dict(options.env_kwarg), {"render_mode": "rgb_array"})
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
        if options.seed is not None:
            _seed_actions(env, options.seed)
        with report.progress(options.episodes) as advance:
            for episode in range(options.episodes):
                _play_episode(manager, env)
                advance(f"episode {episode + 1}")
    found = sorted(_files(options.out) - before, key=lambda path: (path.stat().st_mtime_ns, path.name))
    _print_files(found)
    if not found:
        raise ConfigError(f"{options.env}: no file was written to {options.out}", key="out")
    return 0


def _play_episode(manager: Any, env: Any) -> None:
    space = manager.action_space
    ended = manager.env_episode_count[0] + 1
    while manager.env_episode_count[0] < ended:
        manager.step({0: _draw_action(env, space, manager.ready_obs[0])})


def _draw_action(env: Any, space: Any, obs: Any) -> Any:
    """Ask the env for an action if it offers any, as not all of its space need be legal now; else sample one."""
    from vecenv.envs.check.episodes import sample_action

    offer = getattr(env, "random_action", None)
    try:
        action = offer() if callable(offer) else None
    except TypeError:  # DingEnvWrapper's, of a Tuple of actions, which has no form as one array
        action = None
    return sample_action(env, space, obs) if action is None else action


def _seed_actions(env: Any, seed: int) -> None:
    """Seed the space that `random_action` most likely draws from: few envs do when they are seeded."""
    space = getattr(env, "action_space", None)
    if space is not None:
        space.seed(seed)


def _files(folder: Path) -> set[Path]:
    """Return the files of a folder, of whatever format: some envs write their own."""
    return {path for path in folder.glob("*") if path.is_file() and not path.name.startswith(".")}
