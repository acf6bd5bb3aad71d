"""Envs of PettingZoo for tests, and a loop that gives the rows of their agents without any vector env."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from pettingzoo import AECEnv, ParallelEnv

SPACES = {
    "box": Box(-np.inf, np.inf, (3,), np.float32),
    "dict": Dict(image=Box(0, 255, (2, 2), np.uint8), number=Discrete(5)),
}


class Walk(ParallelEnv):
    """Each agent observes its sum of actions beside random numbers, and leaves when its number of steps is its length.

    Agents with an even number are truncated then, the others terminated.
    """

    metadata = {"name": "walk_v0", "render_modes": ["rgb_array"]}

    def __init__(self, lengths=(4, 4, 4), form="box", actions=None, has_infos=False, first=0):
        self.lengths, self.form, self.has_infos, self.first = lengths, form, has_infos, first
        self.possible_agents = [f"walker_{i}" for i in range(len(lengths))]
        self._action_space = Discrete(3) if actions is None else actions
        self.render_mode = "rgb_array"
        self.gravity = 1.0
        self.generator = np.random.default_rng()

    def observation_space(self, agent):
        return SPACES[self.form]

    def action_space(self, agent):
        return self._action_space

    def _observe(self, agent):
        place, chance = self.places[agent], self.generator.random(2, np.float32)
        if self.form == "dict":
            return {"image": np.full((2, 2), place % 256, np.uint8), "number": int(chance[0] * 5)}
        return np.array([place, *chance], np.float32)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.generator = np.random.default_rng(seed)
        self.agents = self.possible_agents[self.first :]
        self.steps, self.places = 0, dict.fromkeys(self.possible_agents, 0.0)
        self.options = options
        infos = {agent: {"start": True} if self.has_infos else {} for agent in self.agents}
        return {agent: self._observe(agent) for agent in self.agents}, infos

    def step(self, actions):
        assert set(actions) == set(self.agents), "agents that are absent have no action"
        self.steps += 1
        for agent, action in actions.items():
            self.places[agent] += float(np.sum(action))
        acting = self.agents
        ended = {agent: self.steps >= self.lengths[self.possible_agents.index(agent)] for agent in acting}
        is_even = {agent: self.possible_agents.index(agent) % 2 == 0 for agent in acting}
        self.agents = [agent for agent in acting if not ended[agent]]
        observations = {agent: self._observe(agent) for agent in acting}
        rewards = {agent: self.generator.normal() for agent in acting}
        terminations = {agent: ended[agent] and not is_even[agent] for agent in acting}
        truncations = {agent: ended[agent] and is_even[agent] for agent in acting}
        infos = {agent: {"steps": self.steps, "name": agent} if self.has_infos else {} for agent in acting}
        return observations, rewards, terminations, truncations, infos

    def place_of(self, agent):
        return self.places[agent]

    def render(self):
        return np.full((2, 2, 3), self.steps, np.uint8)

    def close(self):
        pass


class Count(AECEnv):
    """The agents count up alternately, by 1 or 2; each leaves after its own number of moves.

    A move has its number as reward, and all others get -1. The mask of legal actions is in the infos.
    """

    metadata = {"name": "count_v0", "render_modes": []}

    def __init__(self, moves=(2, 3), masked=True):
        self.moves, self.masked = moves, masked
        self.possible_agents = [f"counter_{i}" for i in range(len(moves))]
        self.render_mode = None

    def observation_space(self, agent):
        return Box(0, np.inf, (1,), np.float32)

    def action_space(self, agent):
        return Discrete(2)

    def observe(self, agent):
        return np.array([self.total], np.float32)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.generator = np.random.default_rng(seed)
        self.total = int(self.generator.integers(10))
        self.agents = self.possible_agents[:]
        self.agent_selection = self.agents[0]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.counts = dict.fromkeys(self.agents, 0)
        self.infos = {agent: {} for agent in self.agents}
        self._mask()

    def _mask(self):
        if self.masked:
            legal = np.array([1, self.total % 2], np.int8)
            self.infos = {agent: {"action_mask": legal, "total": self.total} for agent in self.agents}

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            order = self.possible_agents
            self._was_dead_step(action)
            living = [one for one in self.agents if not self.terminations[one]]
            later = [one for one in living if order.index(one) > order.index(agent)]
            if living:
                self.agent_selection = (later or living)[0]
            return
        self.total += 1 + int(action)
        self.counts[agent] += 1
        self.rewards = {one: float(self.total) if one == agent else -1.0 for one in self.agents}
        number = self.possible_agents.index(agent)
        self.terminations[agent] = self.counts[agent] >= self.moves[number]
        self._mask()
        place = self.agents.index(agent)
        self.agent_selection = self.agents[(place + 1) % len(self.agents)]

    def close(self):
        pass


def rows(envs, seeds, actions, black_death=False):
    """Step envs of PettingZoo with these actions, one row per agent; return the observations of the reset and steps.

    Args:
        envs: ParallelEnvs; their observations are arrays.
        seeds: one per env.
        actions: (T, N * A, ...).

    Returns:
        A list of (obs, rewards, terminations, truncations, alive, last observations by row); the first is the reset.
    """
    agents = envs[0].possible_agents
    size = len(agents)
    absent = np.zeros(3, np.float32)

    def stack(found: list[dict[str, Any]], dtype: Any, default: Any) -> Any:
        return np.array([of_env.get(agent, default) for of_env in found for agent in agents], dtype)

    def alive() -> Any:
        return np.array([agent in env.agents for env in envs for agent in agents])

    firsts = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds)]
    nothing = [{} for _ in envs]
    results = [(stack(firsts, np.float32, absent), *(stack(nothing, bool, False) for _ in range(3)), alive(), {})]
    for row in actions:
        found: list[list[Any]] = [[], [], [], []]
        finals = {}
        for w, env in enumerate(envs):
            own = dict(zip(agents, row[w * size : (w + 1) * size]))
            obs, *rest, _ = env.step({agent: own[agent] for agent in env.agents})
            if not env.agents:
                finals.update({w * size + agents.index(agent): one for agent, one in obs.items()})
                obs, _ = env.reset()
            for part, value in zip(found, (obs, *rest)):
                part.append(value)
        results.append(
            (
                stack(found[0], np.float32, absent),
                stack(found[1], np.float32, 0),
                stack(found[2], bool, False),
                stack(found[3], bool, False),
                alive(),
                finals,
            )
        )
    return results
