"""Collect episodes with a random policy: `python -m vecenv.examples.collector --env CartPole-v1 --envs 8`.

Replace the policy, and the transitions that `vecenv.collect` returns feed a learner: `batch.obs`, `batch.actions`,
`batch.rewards`, `batch.next_obs`, `batch.terminated`.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector.utils import concatenate, create_empty_array

from vecenv.cli.options import count, natural
from vecenv.collection import collect
from vecenv.envs.gym_registry import make_env
from vecenv.vector import VectorEnv

__all__ = ["RandomPolicy", "main"]


class RandomPolicy:
    """Draws actions from the action space of one env.

    Args:
        space: the action space.
        seed: of the draws; None: they differ in each run.
    """

    def __init__(self, space: Space[Any], seed: int | None) -> None:
        self._space = space
        space.seed(seed)

    def __call__(self, obs: Any, env_id: Any) -> Any:
        """Return one action for each row."""
        actions = [self._space.sample() for _ in env_id]
        empty: Any = create_empty_array(self._space, len(actions))
        return concatenate(self._space, actions, empty)


def main(argv: Sequence[str] | None = None) -> None:
    """Collect, then print the returns and the speed."""
    options = _parse(argv)
    with VectorEnv([functools.partial(make_env, options.env)] * options.envs) as envs:
        policy = RandomPolicy(envs.single_action_space, options.seed)
        start = time.perf_counter()
        batch = collect(envs, policy, episodes=options.episodes, seed=options.seed)
        seconds = time.perf_counter() - start
    returns, steps = batch.episode_returns, len(batch)
    print(f"{options.env}: {len(returns)} episodes of a random policy in {options.envs} envs")
    print(f"return: mean {np.mean(returns):.2f}, standard deviation {np.std(returns):.2f}", end=", ")
    print(f"from {min(returns):.2f} to {max(returns):.2f}")
    print(f"speed: {steps} env steps in {seconds:.2f} s, {steps / seconds:,.0f} per second")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Collect episodes with a random policy and print their returns.")
    parser.add_argument("--env", default="CartPole-v1", help="registered env (default: %(default)s)")
    parser.add_argument("--envs", type=count, default=8, help="envs that run at once (default: %(default)s)")
    parser.add_argument("--episodes", type=count, default=32, help="episodes to collect (default: %(default)s)")
    parser.add_argument("--seed", type=natural, help="repeat a run exactly (default: a new one every time)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
