"""PPO that continues after `kill -9`, in one file: `python -m vecenv.examples.resume --state run.pt`.

The program saves the agent, the optimizer, torch's generator and the envs after some iterations, in one file. Started
again with that file, it continues, and its weights are those of a run that was never killed. `resume_kills` shows that.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from vecenv.cli.options import count, natural
from vecenv.errors import require
from vecenv.vector import VectorEnv

__all__ = ["main", "train"]

torch: Any = require("torch", "torch")

NUM_ENVS, NUM_STEPS, NUM_EPOCHS, NUM_MINIBATCHES = 8, 64, 8, 4
GAMMA, GAE_LAMBDA, CLIP, LEARNING_RATE = 0.98, 0.9, 0.2, 1e-3


def make_env() -> Any:
    """Return one env."""
    return gymnasium.make("CartPole-v1")


class Agent(torch.nn.Module):  # type: ignore[misc]
    """Two networks: logits of the actions, and the value of an observation."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = (
            torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, size)) for size in (2, 1)
        )

    def forward(self, obs: Any) -> tuple[Any, Any]:
        """Return the distribution of actions, and values (B,)."""
        return torch.distributions.Categorical(logits=self.actor(obs)), self.critic(obs).flatten()


def collect(envs: VectorEnv, agent: Agent, obs: Any, returns: list[float]) -> tuple[Any, ...]:
    """Step the envs; return tensors (T, N, ...) of a batch and the next observations. Ended returns are appended."""
    rows = []
    for _ in range(NUM_STEPS):
        with torch.no_grad():
            distribution, values = agent(torch.from_numpy(obs))
            actions = distribution.sample()
        next_obs, rewards, terminations, truncations, infos = envs.step(actions.numpy())
        ended = terminations | truncations
        if ended.any():
            returns += infos["episode"]["r"][ended].tolist()
        columns = obs, actions, distribution.log_prob(actions), values, rewards.astype(np.float32), ended
        rows.append([torch.as_tensor(column) for column in columns])
        obs = next_obs
    return (*map(torch.stack, zip(*rows)), obs)


def improve(agent: Agent, optimizer: Any, batch: Sequence[Any], last_obs: Any) -> None:
    """Improve the agent by the clipped objective of PPO on one batch."""
    obs, actions, old_log_probs, values, rewards, ended = batch
    with torch.no_grad():
        following, later = agent(torch.from_numpy(last_obs))[1], torch.zeros(NUM_ENVS)
    advantages = torch.zeros_like(values)
    for t in reversed(range(NUM_STEPS)):
        goes_on = (~ended[t]).float()
        later = rewards[t] + GAMMA * following * goes_on - values[t] + GAMMA * GAE_LAMBDA * goes_on * later
        advantages[t], following = later, values[t]
    columns = obs, actions, old_log_probs, advantages, advantages + values
    obs, actions, old_log_probs, advantages, targets = (column.flatten(0, 1) for column in columns)
    for _ in range(NUM_EPOCHS):
        for rows in torch.randperm(len(obs)).chunk(NUM_MINIBATCHES):
            distribution, values = agent(obs[rows])
            ratio = (distribution.log_prob(actions[rows]) - old_log_probs[rows]).exp()
            gain = (advantages[rows] - advantages[rows].mean()) / (advantages[rows].std() + 1e-8)
            policy_loss = -torch.min(gain * ratio, gain * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
            loss = policy_loss + 0.5 * (targets[rows] - values).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def train(path: Path, num_iterations: int, seed: int, save_seconds: float) -> list[float]:
    """Train, and continue from the file if it exists; return the mean return of each iteration."""
    torch.manual_seed(seed)
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), LEARNING_RATE)
    state = torch.load(path, weights_only=False) if path.exists() else None
    options: dict[str, Any] = {"autoreset_mode": "SameStep", "episode_statistics": True, "infos": "none"}
    means: list[float] = []
    with VectorEnv([make_env] * NUM_ENVS, resume=None if state is None else state["envs"], **options) as envs:
        obs = envs.reset(seed=seed)[0] if state is None else envs.observations
        if state is not None:
            agent.load_state_dict(state["agent"])
            optimizer.load_state_dict(state["optimizer"])
            torch.set_rng_state(state["generator"])
            means = state["means"]
        saved_at = time.monotonic()
        while len(means) < num_iterations:
            returns: list[float] = []
            *batch, obs = collect(envs, agent, obs, returns)
            improve(agent, optimizer, batch, obs)
            means.append(float(np.mean(returns)) if returns else means[-1])
            if time.monotonic() - saved_at >= save_seconds or len(means) == num_iterations:
                state = {"agent": agent.state_dict(), "optimizer": optimizer.state_dict(), "means": means}
                state |= {"generator": torch.get_rng_state(), "envs": envs.state_dict()}
                torch.save(state, path.with_suffix(".part"))
                os.replace(path.with_suffix(".part"), path)  # a kill leaves the old file or the new one
                saved_at = time.monotonic()
    return means


def main(argv: Sequence[str] | None = None) -> None:
    """Train, or continue a training."""
    parser = argparse.ArgumentParser(description="Train by PPO, and continue after a kill.")
    parser.add_argument("--state", type=Path, default=Path("run.pt"), help="file of the run (default: %(default)s)")
    parser.add_argument("--iterations", type=count, default=200, help="batches to train on (default: %(default)s)")
    parser.add_argument("--save", type=float, default=60.0, help="seconds between two saves (default: %(default)s)")
    parser.add_argument("--seed", type=natural, default=0, help="of the envs and of torch (default: %(default)s)")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    means = train(options.state, options.iterations, options.seed, options.save)
    print(f"mean return {means[-1]:.1f} after {len(means)} iterations")


if __name__ == "__main__":
    main()
