"""Collect episodes with a random policy: `python -m vecenv.examples.collector --env CartPole-v1 --envs 8`.

The loop is the one that every collector has: observations in, actions out, rewards summed until an episode ends.
Replace `random_policy` and keep the transitions, and it feeds a learner. `--manager subprocess` collects through one
of the managers instead, whose observations and actions are dicts by env id.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vecenv.envs.gym_registry import make_env
from vecenv.managers import create_env_manager
from vecenv.vector import VectorEnv

__all__ = ["Collected", "collect", "collect_by_id", "main"]

MANAGERS = ("base", "subprocess", "async_subprocess")


class Collected(NamedTuple):
    """What `collect` brings home: one return per episode, and the env steps that it took."""

    returns: list[float]
    steps: int


def collect(envs: VectorEnv, policy: Callable[[Any], Any], num_episodes: int, seed: int | None = None) -> Collected:
    """Run `policy` until `num_episodes` episodes have ended.

    Every env contributes its share of the episodes. Taking simply the first that end would prefer short ones, and
    the mean return would depend on the number of envs.

    Args:
        envs: with NEXT_STEP autoreset; made with `mark_autoreset=True`, or by Gymnasium.
        policy: from observations with N rows to actions with N rows.
        num_episodes: at least 1; the first envs run one more if it does not divide evenly.
        seed: env i starts from `seed + i`; None for a different run every time.
    """
    to_go = np.full(envs.num_envs, num_episodes // envs.num_envs)
    to_go[: num_episodes % envs.num_envs] += 1
    returns: list[float] = []
    running = np.zeros(envs.num_envs)  # return so far of each env's episode
    was_done: NDArray[np.bool_] = np.zeros(envs.num_envs, dtype=np.bool_)
    steps = 0

    obs, _ = envs.reset(seed=seed)
    while to_go.any():
        obs, rewards, terminated, truncated, infos = envs.step(policy(obs))
        # After an episode's end the next step only resets: its action is ignored, its reward is 0. Such a row is no
        # transition, so a learner must not store it. Gymnasium's vector envs do not mark these rows.
        is_transition = ~infos.get("autoreset", was_done)
        steps += int(np.count_nonzero(is_transition))
        running += rewards
        done = terminated | truncated
        for env_id in np.flatnonzero(done & (to_go > 0)):
            returns.append(float(running[env_id]))
            to_go[env_id] -= 1
        running[done] = 0.0
        was_done = done
    return Collected(returns, steps)


def collect_by_id(
    manager: Any, policy: Callable[[dict[int, Any]], Mapping[int, Any]], num_episodes: int, seed: int | None = None
) -> Collected:
    """As `collect`, through a manager with dicts of actions, which is launched here.

    Args:
        manager: synchronous or not; resets by itself, without an `episode_num`.
        policy: from {env_id: observation} of envs that are ready to an action for each of them.
        num_episodes: at least 1; the first envs run one more if it does not divide evenly.
        seed: env i starts from `seed + i`; None for a different run every time.
    """
    share, more = divmod(num_episodes, manager.env_num)
    to_go = {env_id: share + (env_id < more) for env_id in range(manager.env_num)}
    returns: list[float] = []
    running = dict.fromkeys(to_go, 0.0)  # return so far of each env's episode
    steps = 0

    if seed is not None:
        manager.seed(seed)
    manager.launch()
    while any(to_go.values()):
        ready = {env_id: obs for env_id, obs in manager.ready_obs.items() if to_go[env_id]}
        for env_id, timestep in manager.step(policy(ready)).items():
            steps += 1
            running[env_id] += timestep.reward.item()
            if timestep.done:
                returns.append(running[env_id])
                running[env_id] = 0.0
                to_go[env_id] -= 1
    return Collected(returns, steps)


def main(argv: Sequence[str] | None = None) -> None:
    """Collect, then print the returns and the speed."""
    options = _parse(argv)
    env_fns = [functools.partial(make_env, options.env)] * options.envs
    run = _run_batches if options.manager is None else functools.partial(_run_manager, options.manager)
    (returns, steps), seconds = run(env_fns, options.episodes, options.seed)
    print(f"{options.env}: {len(returns)} episodes of a random policy in {options.envs} envs")
    print(f"return: mean {np.mean(returns):.2f}, standard deviation {np.std(returns):.2f}", end=", ")
    print(f"from {min(returns):.2f} to {max(returns):.2f}")
    print(f"speed: {steps} env steps in {seconds:.2f} s, {steps / seconds:,.0f} per second")


def _run_batches(env_fns: Sequence[Callable[[], Any]], num_episodes: int, seed: int | None) -> tuple[Collected, float]:
    """Collect with random actions from a VectorEnv; also return the seconds that it took."""
    with contextlib.closing(VectorEnv(env_fns, mark_autoreset=True)) as envs:
        envs.action_space.seed(seed)
        start = time.perf_counter()
        collected = collect(envs, lambda obs: envs.action_space.sample(), num_episodes, seed)
        return collected, time.perf_counter() - start


def _run_manager(
    name: str, env_fns: Sequence[Callable[[], Any]], num_episodes: int, seed: int | None
) -> tuple[Collected, float]:
    """As `_run_batches`, from a manager; its start counts."""
    with create_env_manager({"type": name}, env_fns) as manager:
        actions = [copy.deepcopy(manager.action_space) for _ in env_fns]
        for env_id, space in enumerate(actions):  # one generator each: the order of the answers varies
            space.seed(None if seed is None else seed + env_id)

        def random_policy(obs: dict[int, Any]) -> dict[int, Any]:
            return {env_id: actions[env_id].sample() for env_id in obs}

        start = time.perf_counter()
        collected = collect_by_id(manager, random_policy, num_episodes, seed)
        return collected, time.perf_counter() - start


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Collect episodes with a random policy and print their returns.")
    parser.add_argument("--env", default="CartPole-v1", help="registered env (default: %(default)s)")
    parser.add_argument("--envs", type=int, default=8, help="envs that run at once (default: %(default)s)")
    parser.add_argument("--episodes", type=int, default=32, help="episodes to collect (default: %(default)s)")
    parser.add_argument("--manager", choices=MANAGERS, help="collect through this manager (default: a VectorEnv)")
    parser.add_argument("--seed", type=int, help="repeat a run exactly (default: a new one every time)")
    options = parser.parse_args(argv)
    if options.seed is not None and options.seed < 0:
        parser.error("--seed must be at least 0")
    if options.envs < 1 or options.episodes < 1:
        parser.error("--envs and --episodes must be at least 1")
    return options


if __name__ == "__main__":
    main()
