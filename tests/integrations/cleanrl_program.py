"""PPO in one file, with the parts of CleanRL's `ppo.py`, which saves itself: `FILE [ITERATION]`.

With an iteration, the program kills itself in the middle of it. The parts: envs with statistics and the infos of
Gymnasium 0.29, storage of (T, N), an annealed learning rate, and rows that NumPy's global generator shuffles.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from typing import Any

import gymnasium
import numpy as np
import torch

import vecenv
from vecenv.examples.resume import Agent

NUM_ENVS, NUM_STEPS, NUM_ITERATIONS = 4, 64, 6


def make_env() -> Any:
    return gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))


def main(path: str, killed_at: int | None) -> None:
    torch.set_num_threads(1)
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    state = torch.load(path, weights_only=False) if os.path.exists(path) else None
    envs = vecenv.VectorEnv(
        [make_env] * NUM_ENVS, infos="legacy", autoreset_mode="SameStep", resume=state and state["envs"]
    )
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), eps=1e-5)
    obs = torch.zeros(NUM_STEPS, NUM_ENVS, *envs.single_observation_space.shape)
    actions, log_probs, rewards, dones, values = torch.zeros(5, NUM_STEPS, NUM_ENVS)
    if state is None:
        next_obs, next_done, first, returns = torch.Tensor(envs.reset(seed=1)[0]), torch.zeros(NUM_ENVS), 0, []
    else:
        agent.load_state_dict(state["agent"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["torch"])
        np.random.set_state(state["numpy"])
        random.setstate(state["random"])
        next_obs, next_done = torch.Tensor(envs.observations), state["next_done"]
        first, returns = state["iteration"] + 1, state["returns"]
    for iteration in range(first, NUM_ITERATIONS):
        optimizer.param_groups[0]["lr"] = 2.5e-4 * (1 - iteration / NUM_ITERATIONS)
        for step in range(NUM_STEPS):
            if (iteration, step) == (killed_at, NUM_STEPS // 2):
                os.kill(os.getpid(), signal.SIGKILL)
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                distribution, values[step] = agent(next_obs)
                actions[step] = action = distribution.sample()
                log_probs[step] = distribution.log_prob(action)
            found, reward, terminations, truncations, infos = envs.step(action.numpy())
            rewards[step] = torch.tensor(reward)
            next_obs, next_done = torch.Tensor(found), torch.Tensor(terminations | truncations)
            returns += [float(info["episode"]["r"]) for info in infos.get("final_info", ()) if info is not None]
        improve(agent, optimizer, (obs, actions, log_probs), advantages_of(agent, rewards, dones, values, next_obs))
        torch.save(
            {
                "agent": agent.state_dict(),
                "optimizer": optimizer.state_dict(),
                "envs": envs.state_dict(),
                "next_done": next_done,
                "iteration": iteration,
                "returns": returns,
                "torch": torch.get_rng_state(),
                "numpy": np.random.get_state(),
                "random": random.getstate(),
            },
            f"{path}.part",
        )
        os.replace(f"{path}.part", path)
    envs.close()


def advantages_of(agent: Any, rewards: Any, dones: Any, values: Any, next_obs: Any) -> Any:
    """Return advantages (T, N), with a discount of 0.99; `dones` ends the last episode one step early."""
    with torch.no_grad():
        following, later = agent(next_obs)[1], torch.zeros(NUM_ENVS)
    advantages = torch.zeros_like(rewards)
    for t in reversed(range(NUM_STEPS)):
        goes_on = 1.0 - dones[t + 1] if t + 1 < NUM_STEPS else torch.ones(NUM_ENVS)
        later = rewards[t] + 0.99 * following * goes_on - values[t] + 0.94 * goes_on * later
        advantages[t], following = later, values[t]
    return advantages


def improve(agent: Any, optimizer: Any, batch: tuple[Any, ...], advantages: Any) -> None:
    obs, actions, log_probs, gains = (column.flatten(0, 1) for column in (*batch, advantages))
    rows = np.arange(len(obs))
    for _ in range(2):
        np.random.shuffle(rows)
        for mine in np.split(rows, 4):
            distribution, values = agent(obs[mine])
            ratio = (distribution.log_prob(actions[mine]) - log_probs[mine]).exp()
            loss = -torch.min(gains[mine] * ratio, gains[mine] * ratio.clamp(0.8, 1.2)).mean()
            loss = loss + (values - gains[mine]).square().mean() - 0.01 * distribution.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else None)
