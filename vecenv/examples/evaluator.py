"""Evaluate a random policy: `python -m vecenv.examples.evaluator --env CartPole-v1 --envs 4 --episodes 5 --seed 0`.

The evaluation is repeatable. Every env is reset by force, also during an episode. It has its own seed, with which
each of its episodes begins. Every env plays exactly its number of episodes, however long they are.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vecenv.managers import create_env_manager
from vecenv.wrappers.ding import DingEnvWrapper

__all__ = ["Evaluated", "evaluate", "main"]

MANAGERS = ("base", "subprocess", "async_subprocess")


class Evaluated(NamedTuple):
    """The returns of each env's episodes, in the order they ended: {env_id: returns}."""

    returns: dict[int, list[float]]

    @property
    def all_returns(self) -> list[float]:
        """Those of all envs, env 0's first."""
        return [value for env_id in sorted(self.returns) for value in self.returns[env_id]]

    @property
    def mean(self) -> float:
        """Mean return of an episode."""
        return float(np.mean(self.all_returns))

    @property
    def spread(self) -> float:
        """Standard deviation of the returns."""
        return float(np.std(self.all_returns))


def evaluate(
    manager: Any,
    policy: Callable[[dict[int, Any]], Mapping[int, Any]],
    num_episodes: int,
    seed: int | None = None,
    static: bool = True,
) -> Evaluated:
    """Play `num_episodes` episodes in every env of a manager, and gather their `info['eval_episode_return']`.

    Args:
        manager: with dicts of actions, synchronous or not; launched here if it is not yet. Its `episode_num` should
            be infinite, so that it can evaluate any number of times.
        policy: from {env_id: observation} of envs that are ready to an action for each of them.
        num_episodes: of each env, at least 1.
        seed: env i gets `seed + i`; None leaves the generators as they are.
        static: each episode of an env begins from its seed; False gives each a seed of its own, the same ones at
            every evaluation.
    """
    if seed is not None:
        manager.seed(seed, dynamic_seed=not static)
    if manager.closed:
        manager.launch()
    else:
        manager.reset()  # by force: answers that are still out are dropped
    returns: dict[int, list[float]] = {env_id: [] for env_id in range(manager.env_num)}
    while any(len(found) < num_episodes for found in returns.values()):
        # An env that has played its share waits: one more of its short episodes would count for too much.
        ready = {env_id: obs for env_id, obs in manager.ready_obs.items() if len(returns[env_id]) < num_episodes}
        for env_id, timestep in manager.step(policy(ready)).items():
            if timestep.done:
                returns[env_id].append(float(timestep.info["eval_episode_return"]))
    return Evaluated(returns)


def main(argv: Sequence[str] | None = None) -> None:
    """Evaluate, then print each env's returns, their mean and their spread."""
    options = _parse(argv)
    cfg = {"env_id": options.env, "env_wrapper": options.wrappers}
    env_fn = functools.partial(DingEnvWrapper, None, cfg, caller="evaluator")
    with create_env_manager({"type": options.manager}, [env_fn] * options.envs) as manager:
        # The manager's own copy: `manager.seed` seeds it too, so that the policy is the same at each evaluation.
        actions = manager.action_space

        def random_policy(obs: dict[int, Any]) -> dict[int, Any]:
            return {env_id: actions.sample() for env_id in obs}

        evaluated = evaluate(manager, random_policy, options.episodes, options.seed, static=not options.dynamic_seed)
    for env_id, returns in evaluated.returns.items():
        print(f"env {env_id}, seed {options.seed + env_id}: " + " ".join(f"{value:g}" for value in returns))
    print(f"{options.env}: {len(evaluated.all_returns)} episodes, {options.episodes} in each of {options.envs} envs")
    print(f"return: mean {evaluated.mean:.2f}, standard deviation {evaluated.spread:.2f}")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Evaluate a random policy: so many episodes in each env, from seeds.")
    add = parser.add_argument
    add("--env", default="CartPole-v1", help="registered env (default: %(default)s)")
    add("--envs", type=int, default=4, help="envs that run at once (default: %(default)s)")
    add("--episodes", type=int, default=5, help="episodes of each env (default: %(default)s)")
    add("--seed", type=int, default=0, help="env i gets this plus i (default: %(default)s)")
    add("--dynamic-seed", action="store_true", help="a seed of its own for each episode, instead of one for all")
    add("--wrappers", default="default", help="list of default wrappers, such as atari_default (default: %(default)s)")
    add("--manager", choices=MANAGERS, default="subprocess", help="(default: %(default)s)")
    options = parser.parse_args(argv)
    if options.envs < 1 or options.episodes < 1 or options.seed < 0:
        parser.error("--envs and --episodes must be at least 1, --seed at least 0")
    return options


if __name__ == "__main__":
    main()
