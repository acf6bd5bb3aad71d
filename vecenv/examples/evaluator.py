"""Evaluate a policy: `python -m vecenv.examples.evaluator --env CartPole-v1 --envs 4 --episodes 20 --seed 0`.

`vecenv.evaluate` plays exactly one episode per seed, however long they are. The results are the same for every number
of envs. Replace `random_policy` by a policy: it gets a row of observations for each env that needs an action.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector.utils import concatenate, create_empty_array

import vecenv
from vecenv.cli.options import count, natural
from vecenv.envs.gym_registry import make_env

__all__ = ["main", "random_policy"]


def random_policy(space: Space[Any]) -> Callable[..., Any]:
    """Return a policy that draws each action from `space` with the generator of its episode."""

    def choose(obs: Any, env_id: Any, generators: Sequence[np.random.Generator]) -> Any:
        actions = []
        for generator in generators:
            space.seed(int(generator.integers(2**31)))
            actions.append(space.sample())
        empty: Any = create_empty_array(space, len(actions))
        return concatenate(space, actions, empty)

    return choose


def main(argv: Sequence[str] | None = None) -> None:
    """Evaluate, and print a table of the episodes."""
    options = _parse(argv)
    env_fn = functools.partial(make_env, options.env)
    env = env_fn()
    policy = random_policy(env.action_space)
    env.close()
    seeds = range(options.seed, options.seed + options.episodes)
    print(vecenv.evaluate(env_fn, policy, seeds=seeds, num_envs=options.envs, rng="per-episode"))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Evaluate a random policy: one episode per seed.")
    add = parser.add_argument
    add("--env", default="CartPole-v1", help="registered env (default: %(default)s)")
    add("--envs", type=count, default=8, help="envs that run at once (default: %(default)s)")
    add("--episodes", type=count, default=20, help="how many (default: %(default)s)")
    add("--seed", type=natural, default=0, help="of the first episode, then the next ones (default: %(default)s)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
