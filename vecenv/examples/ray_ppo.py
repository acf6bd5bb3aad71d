"""Train by PPO with collectors in the shards of a Ray cluster: `python -m vecenv.examples.ray_ppo`.

    weights -> an agent in every shard, which steps the envs there -> transitions (T, N) -> minibatches here -> weights

Every shard has a copy of the agent, and one request makes it step its envs T times. The agent and its training are
those of `vecenv.examples.ppo`. `ray.init()` starts Ray on this machine, or joins the cluster of a job. The program
needs ray and torch, `--plot FILE.png` needs matplotlib, the progress bar needs rich.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vecenv.cli.options import count, natural
from vecenv.collection import Collector
from vecenv.envs.gym_registry import make_env
from vecenv.errors import require
from vecenv.examples.ppo import SETTINGS, Agent, Record, Settings, Trained, learn, progress_bar, save_plot
from vecenv.ray_options import RayOptions
from vecenv.vector import VectorEnv

__all__ = ["SIZES", "ShardAgent", "main", "parse", "run", "train"]

torch: Any = require("torch", "torch")

SIZES = (4,), 2  # shape of CartPole's observations, and number of its actions


class ShardAgent(torch.nn.Module):  # type: ignore[misc]
    """The policy in a shard. It draws actions by a generator of its own, which a successor of the shard restores."""

    def __init__(self, agent: Agent, seed: int) -> None:
        super().__init__()
        self.agent = agent
        self.seed = seed
        self.generator: Any = None

    def forward(self, obs: Any, env_ids: Any) -> Any:
        """Draw actions; every shard has other envs, and so another seed."""
        if self.generator is None:
            self.generator = torch.Generator().manual_seed(self.seed + int(env_ids[0]))
        distribution, value = self.agent.distribution_and_value(obs)
        actions = torch.multinomial(distribution.probs, 1, generator=self.generator).flatten()
        return actions, {"log_prob": distribution.log_prob(actions), "value": value}

    def bootstrap(self, obs: Any) -> Any:
        """Return values (B,) for `Transitions.bootstrap`."""
        return self.agent.bootstrap(obs)

    def set_weights(self, weights: Any) -> None:
        """Use the weights of `Collector.set_weights`."""
        self.agent.load_state_dict(weights)

    def get_state(self) -> Any:
        """Return the state of the generator, so that a rollout of a lost shard is repeated exactly."""
        return None if self.generator is None else self.generator.get_state()

    def set_state(self, state: Any) -> None:
        """Continue with a state that `get_state` returned."""
        self.generator = None if state is None else torch.Generator().set_state(state)


def make_policy(seed: int) -> ShardAgent:
    """Return the agent of a shard, whose networks are small: one thread computes them soonest."""
    torch.set_num_threads(1)
    return ShardAgent(Agent(*SIZES), seed)


def train(settings: Settings, seed: int, backend: Any, learn: Callable[..., None] = learn, **options: Any) -> Trained:
    """Train until the mean return of the last 100 episodes is the target, or for `max_steps` env steps.

    Args:
        settings: of the algorithm.
        seed: of the envs, of torch, and of the agents in the shards.
        backend: of the vector env; its envs live in shards.
        learn: improves the agent by one batch.
        options: of the collector.
    """
    torch.manual_seed(seed)
    env_fns = [functools.partial(make_env, "CartPole-v1")] * settings.num_envs
    with VectorEnv(env_fns, infos="none", backend=backend) as envs, progress_bar(settings.max_steps, True) as bar:
        print(envs.shards())
        agent = Agent(*SIZES)
        optimizer = torch.optim.Adam(agent.parameters(), settings.learning_rate, eps=1e-5)
        options |= {"batch_steps": settings.num_envs * settings.rollout_steps, "time_major": True, "seed": seed}
        policies = functools.partial(make_policy, seed)
        collector = Collector(envs, where="shards", make_policy=policies, **options)
        collector.set_weights(agent.state_dict())
        record = Record(settings, bar)
        for batch in collector:
            if record.add(batch):
                break
            learn(agent, optimizer, batch, settings)
            collector.set_weights(agent.state_dict())
        return record.finish(agent)


def run(name: str, settings: Settings, options: argparse.Namespace, **more: Any) -> None:
    """Train on a Ray cluster, print the result and draw the returns; `more` are arguments of `train`."""
    torch.set_num_threads(1)
    settings = dataclasses.replace(settings, target=options.target, max_steps=options.steps, num_envs=options.envs)
    require("ray", "ray").init(ignore_reinit_error=True)
    backend = RayOptions(num_shards=options.shards, cpus_per_shard=options.cpus)
    trained = train(settings, options.seed, backend, **more)
    last = [episode_return for _, episode_return in trained.history[-100:]]
    print(f"{name}: mean return {np.mean(last):.1f} after {trained.steps} steps, {trained.seconds:.1f} s")
    if options.plot is not None:
        save_plot(trained.history, "CartPole-v1", options.plot)


def parse(argv: Sequence[str] | None, description: str) -> argparse.Namespace:
    """Return the options of a training over Ray."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--envs", type=count, default=16, help="envs in all shards (default: %(default)s)")
    parser.add_argument("--shards", type=count, help="actors of Ray with envs (default: one per node)")
    parser.add_argument("--cpus", type=count, help="CPUs of each shard (default: those of a node)")
    parser.add_argument("--steps", type=count, default=400_000, help="env steps at most (default: %(default)s)")
    parser.add_argument("--target", type=float, default=400.0, help="mean return to stop at (default: %(default)s)")
    parser.add_argument("--seed", type=natural, default=0, help="of envs and agents (default: %(default)s)")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the returns of the training episodes")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Train, and print the result."""
    run("PPO", SETTINGS["vector"], parse(argv, "Train by PPO with collectors in the shards of a Ray cluster."))


if __name__ == "__main__":
    main()
