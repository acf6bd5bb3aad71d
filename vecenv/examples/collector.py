"""Collect episodes with a random policy: `python -m vecenv.examples.collector --env CartPole-v1 --envs 8`.

The loop is the one that every collector has: observations in, actions out, rewards summed until an episode ends.
Replace `random_policy` and keep the transitions, and it feeds a learner.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from vecenv.vector import VectorEnv

__all__ = ["Collected", "collect", "main"]


class Collected(NamedTuple):
    """What `collect` brings home: one return per episode, and the env steps that it took."""

    returns: list[float]
    steps: int


def collect(envs: VectorEnv, policy: Callable[[Any], Any], num_episodes: int, seed: int | None = None) -> Collected:
    """Run `policy` until `num_episodes` episodes have ended.

    Every env contributes its share of the episodes. Taking simply the first that end would prefer short ones, and
    the mean return would depend on the number of envs.

    Args:
        envs: as made, with NEXT_STEP autoreset.
        policy: from observations with N rows to actions with N rows.
        num_episodes: at least 1; the first envs run one more if it does not divide evenly.
        seed: env i starts from `seed + i`; None for a different run every time.
    """
    to_go = np.full(envs.num_envs, num_episodes // envs.num_envs)
    to_go[: num_episodes % envs.num_envs] += 1
    returns: list[float] = []
    running = np.zeros(envs.num_envs)  # return so far of each env's episode
    was_done = np.zeros(envs.num_envs, dtype=np.bool_)
    steps = 0

    obs, _ = envs.reset(seed=seed)
    while to_go.any():
        obs, rewards, terminated, truncated, _ = envs.step(policy(obs))
        # After an episode's end the next step only resets: its action is ignored, its reward is 0.
        steps += int(np.count_nonzero(~was_done))
        running += rewards
        done = terminated | truncated
        for env_id in np.flatnonzero(done & (to_go > 0)):
            returns.append(float(running[env_id]))
            to_go[env_id] -= 1
        running[done] = 0.0
        was_done = done
    return Collected(returns, steps)


def main(argv: Sequence[str] | None = None) -> None:
    """Collect, then print the returns and the speed."""
    options = _parse(argv)
    env_fns = [functools.partial(gymnasium.make, options.env)] * options.envs
    with contextlib.closing(VectorEnv(env_fns)) as envs:
        envs.action_space.seed(options.seed)

        def random_policy(obs: Any) -> Any:
            return envs.action_space.sample()

        start = time.perf_counter()
        returns, steps = collect(envs, random_policy, options.episodes, options.seed)
        seconds = time.perf_counter() - start
    print(f"{options.env}: {len(returns)} episodes of a random policy in {options.envs} envs")
    print(f"return: mean {np.mean(returns):.2f}, standard deviation {np.std(returns):.2f}", end=", ")
    print(f"from {min(returns):.2f} to {max(returns):.2f}")
    print(f"speed: {steps} env steps in {seconds:.2f} s, {steps / seconds:,.0f} per second")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Collect episodes with a random policy and print their returns.")
    parser.add_argument("--env", default="CartPole-v1", help="registered env (default: %(default)s)")
    parser.add_argument("--envs", type=int, default=8, help="envs that run at once (default: %(default)s)")
    parser.add_argument("--episodes", type=int, default=32, help="episodes to collect (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="repeat a run exactly (default: a new one every time)")
    options = parser.parse_args(argv)
    if options.envs < 1 or options.episodes < 1:
        parser.error("--envs and --episodes must be at least 1")
    return options


if __name__ == "__main__":
    main()
