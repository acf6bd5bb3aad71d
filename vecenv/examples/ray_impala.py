"""Train by IMPALA over a Ray cluster: `python -m vecenv.examples.ray_impala`.

    rollout of one shard, made with older weights -> V-trace -> newer weights -> the next rollouts of that shard

The shards collect while this process trains: with `sync=False` each one is a rollout ahead, and a slow node delays no
other one. Its actions come from older weights, and V-trace (Espeholt et al. 2018) corrects for that. All other
parts are those of `vecenv.examples.ray_ppo`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from vecenv.collection import Transitions
from vecenv.errors import require
from vecenv.examples.ppo import SETTINGS, Agent, Settings
from vecenv.examples.ray_ppo import parse, run

__all__ = ["learn", "main", "v_trace"]

torch: Any = require("torch", "torch")


def v_trace(ratios: Any, rewards: Any, values: Any, next_values: Any, has_end: Any, gamma: float) -> tuple[Any, Any]:
    """Return the targets of the values, and the advantages of the actions, each (T, N).

    Args:
        ratios: (T, N), the probability of each action now, divided by the one when it was drawn.
        rewards: (T, N).
        values: (T, N), of the observations.
        next_values: (T, N), of the observations after the steps; 0 where the env terminated.
        has_end: bool (T, N), steps that end an episode.
        gamma: discount factor.
    """
    weights = ratios.clamp(max=1.0)
    deltas = weights * (rewards + gamma * next_values - values)
    corrections, following = torch.empty_like(values), next_values.clone()  # v_s - V(x_s), and v_(s+1)
    later = torch.zeros_like(values[0])
    for t in reversed(range(len(values))):
        inside = torch.zeros_like(later) if t + 1 == len(values) else later * ~has_end[t]
        following[t] += inside
        corrections[t] = later = deltas[t] + gamma * weights[t] * inside
    return values + corrections, weights * (rewards + gamma * following - values)


def learn(agent: Agent, optimizer: Any, batch: Transitions, settings: Settings) -> None:
    """Improve the agent by one rollout of one shard."""
    obs, actions, next_obs = map(torch.from_numpy, (batch.obs, batch.actions, batch.next_obs))
    distribution, values = agent.distribution_and_value(obs.flatten(0, 1))
    shape = actions.shape
    log_probs, values = distribution.log_prob(actions.flatten()).reshape(shape), values.reshape(shape)
    terminated = torch.from_numpy(batch.terminated)
    with torch.no_grad():
        next_values = agent.bootstrap(next_obs.flatten(0, 1)).reshape(shape) * ~terminated
        targets, advantages = v_trace(
            (log_probs - torch.from_numpy(batch.extras["log_prob"])).exp(),
            torch.from_numpy(batch.rewards).float(),
            values,
            next_values,
            terminated | torch.from_numpy(batch.truncated),
            settings.gamma,
        )
    loss = -(advantages * log_probs).mean() + 0.5 * (targets - values).square().mean()
    loss = loss - 0.01 * distribution.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(agent.parameters(), settings.max_grad_norm)
    optimizer.step()


def main(argv: Sequence[str] | None = None) -> None:
    """Train, and print the result."""
    settings = dataclasses.replace(SETTINGS["vector"], rollout_steps=16)
    run("IMPALA", settings, parse(argv, "Train by IMPALA over a Ray cluster."), learn=learn, sync=False)


if __name__ == "__main__":
    main()
