"""Train by PPO with one process per GPU, each of which has a pool of envs.

    torchrun --nproc-per-node 2 -m vecenv.examples.ddp_ppo

    every rank: its own envs -> Collector -> transitions -> gradients -- mean over all ranks --> equal agents

`torch.distributed` starts the ranks and exchanges the gradients, also over several nodes. Rank r uses GPU r, or the
CPU where there is none. The agent and its training are those of `vecenv.examples.ppo`. The program needs torch, the
progress bar needs rich, `--plot FILE.png` needs matplotlib.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from vecenv.cli.options import count, natural
from vecenv.collection import Collector
from vecenv.envs.gym_registry import make_env
from vecenv.errors import require
from vecenv.examples.ppo import SETTINGS, Agent, Settings, Trained, learn, progress_bar, save_plot
from vecenv.vector import VectorEnv

__all__ = ["RankAgent", "main", "train"]

torch: Any = require("torch", "torch")


class _Outputs(torch.nn.Module):  # type: ignore[misc]
    """The agent as a module whose call returns distributions and values, as `DistributedDataParallel` needs."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.agent = agent

    def forward(self, obs: Any) -> Any:
        return self.agent.distribution_and_value(obs)


class RankAgent(torch.nn.parallel.DistributedDataParallel):  # type: ignore[misc]
    """An agent whose gradients are the mean over all ranks."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(_Outputs(agent))

    def distribution_and_value(self, obs: Any) -> Any:
        """Return the distribution of actions, and values (B,)."""
        return self(obs)


def total(values: Sequence[float]) -> list[float]:
    """Return the sums of these numbers over all ranks."""
    numbers = torch.tensor(values, dtype=torch.float64)
    if torch.distributed.get_backend() == "nccl":
        numbers = numbers.cuda()
    torch.distributed.all_reduce(numbers)
    sums: list[float] = numbers.tolist()
    return sums


def train(settings: Settings, seed: int, device: Any) -> Trained:
    """Train until the mean return of a batch of all ranks is the target, or for `max_steps` env steps of all ranks.

    Args:
        settings: of the algorithm; `num_envs` is the number of envs of each rank.
        seed: of the envs and of torch. Ranks have different envs and draw different actions.
        device: of the agent.
    """
    rank, num_ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(seed + rank)  # the weights are those of rank 0: they are sent to all ranks
    history: list[tuple[int, float]] = []
    steps, mean = 0, 0.0
    env_fns = [functools.partial(make_env, "CartPole-v1")] * settings.num_envs
    num_workers = max(1, (os.cpu_count() or 1) // int(os.environ["LOCAL_WORLD_SIZE"]))  # ranks share the cores
    with (
        VectorEnv(env_fns, num_workers=num_workers, infos="none") as envs,
        progress_bar(settings.max_steps, rank == 0) as bar,
    ):
        observations, actions = envs.single_observation_space, envs.single_action_space
        assert observations.shape is not None and isinstance(actions, gymnasium.spaces.Discrete)
        agent = Agent(observations.shape, int(actions.n)).to(device)
        shared = RankAgent(agent)
        optimizer = torch.optim.Adam(agent.parameters(), settings.learning_rate, eps=1e-5)
        batch_steps = settings.num_envs * settings.rollout_steps
        start = time.perf_counter()
        seeds = seed + rank * settings.num_envs
        for batch in Collector(envs, agent, batch_steps=batch_steps, time_major=True, seed=seeds):
            returns = batch.episode_returns
            num_steps, num_episodes, sum_returns = total([len(batch), len(returns), float(returns.sum())])
            steps += int(num_steps)
            if num_episodes:
                mean += 0.2 * (sum_returns / num_episodes - mean)  # all ranks stop together
                history.append((steps, sum_returns / num_episodes))
            bar.update(0, completed=steps, description=f"mean return {mean:7.1f}, {num_ranks} ranks")
            if steps >= settings.max_steps or mean >= settings.target:
                break
            learn(shared, optimizer, batch, settings)
        return Trained(agent, steps, time.perf_counter() - start, history)


def main(argv: Sequence[str] | None = None) -> None:
    """Train as one rank; rank 0 prints the result."""
    parser = argparse.ArgumentParser(description="Train by PPO with one process per GPU; start it by torchrun.")
    parser.add_argument("--envs", type=count, default=8, help="envs of each rank (default: %(default)s)")
    parser.add_argument("--steps", type=count, default=400_000, help="env steps at most (default: %(default)s)")
    parser.add_argument("--target", type=float, default=400.0, help="mean return to stop at (default: %(default)s)")
    parser.add_argument("--seed", type=natural, default=0, help="of the envs and of torch (default: %(default)s)")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the mean return of each batch")
    options = parser.parse_args(argv)
    if "LOCAL_RANK" not in os.environ:
        parser.error("start it by torchrun: torchrun --nproc-per-node 2 -m vecenv.examples.ddp_ppo")
    has_gpus = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpus else torch.device("cpu")
    if has_gpus:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    torch.distributed.init_process_group("nccl" if has_gpus else "gloo")
    try:
        settings = dataclasses.replace(
            SETTINGS["vector"], target=options.target, max_steps=options.steps, num_envs=options.envs
        )
        trained = train(settings, options.seed, device)
        weights = sum(float(part.detach().double().abs().sum()) for part in trained.agent.parameters())
        mean_weights = total([weights])[0] / torch.distributed.get_world_size()
        if torch.distributed.get_rank() == 0:
            are_equal = "equal" if weights == mean_weights else "different"
            print(
                f"mean return {np.mean([value for _, value in trained.history[-5:]]):.1f} after {trained.steps} steps, "
                f"{trained.seconds:.1f} s; weights of all ranks: {are_equal}"
            )
            if options.plot is not None:
                save_plot(trained.history, "CartPole-v1", options.plot)
    finally:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
