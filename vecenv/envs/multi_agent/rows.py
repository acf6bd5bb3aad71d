"""AgentRowsEnv: a ParallelEnv of PettingZoo as a vector env with one row per agent.

    ParallelEnv, dicts by agent    ->    arrays with one row per agent, in the order of `possible_agents`

`integrations.pettingzoo` hosts it in workers and completes the infos; their form here is made for that.
"""

from __future__ import annotations

import copy
import os
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from ...errors import ConfigError, StateError
from ..batched import add_infos
from .parallel import alive_agents, as_parallel, common_space, has_ended, own_seed, rewards_of, zero_of

__all__ = ["ROWS", "AgentRowsEnv"]

#: The key of the infos of all rows, if they are passed on as dicts.
ROWS = "rows"


class AgentRowsEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A ParallelEnv of PettingZoo as a vector env; row j is agent number j of `possible_agents`.

    When all agents have ended, the env is reset in the same step, without a seed. The row of an agent that is not in
    the env has an observation of zeros, reward 0 and False for both ends, and its action is ignored.

    Infos are a dict in the form of Gymnasium's SAME_STEP mode, or with `as_lists` a dict with the key `ROWS`, an object
    array of one dict per agent, if one of them is not empty. Both have `alive`, bool (A,), True for the agents that act
    in the next step; steps after which all of them do have none.

    Attributes:
        agent_env: the ParallelEnv.
        has_begun: whether it has been reset.
    """

    def __init__(
        self, env: Any, *, black_death: bool = False, as_lists: bool = False, has_statistics: bool = False
    ) -> None:
        """Adapt an env as `as_parallel` does, with its errors; SpaceError if the spaces of the agents differ."""
        self.agent_env = as_parallel(env)
        self._agents = list(self.agent_env.possible_agents)
        self.num_envs = len(self._agents)
        self.single_observation_space = common_space(self.agent_env, "observation_space")
        self.single_action_space = common_space(self.agent_env, "action_space")
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {**self.agent_env.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.render_mode = getattr(self.agent_env.unwrapped, "render_mode", None)
        self.has_begun = False
        self._black_death, self._as_lists, self._has_statistics = black_death, as_lists, has_statistics
        self._rows: Any = create_empty_array(self.single_observation_space, self.num_envs)
        self._absent = zero_of(self.single_observation_space)
        self._alive = np.zeros(self.num_envs, np.bool_)
        self._returns, self._lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, np.int64)
        self._started = 0.0

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the ParallelEnv."""
        if name.startswith("_") or "agent_env" not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.agent_env, name)

    @property
    def identity(self) -> tuple[int, int]:
        """The process and the address of the innermost env; two rows have equal pairs only if they share it."""
        return os.getpid(), id(self.agent_env.unwrapped)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of the innermost env; of a list with one value per row, the first is used."""
        setattr(self.agent_env.unwrapped, name, values[0] if isinstance(values, list | tuple) else values)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of all agents.

        Args:
            seed: an int, or a list with the same int, or None, for each agent. None: generators continue.
            options: passed to the env.

        Raises:
            ConfigError: a mask selects some of the agents.
            StateError: an agent is missing, and `black_death` is False.
        """
        if options and "reset_mask" in options:
            raise ConfigError("reset: the agents of one env begin together; select all rows of an env, or none")
        return self._reset(own_seed(self, seed[0] if isinstance(seed, list) else seed), options)

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        observations, infos = self.agent_env.reset(seed=seed, options=options)
        self.has_begun = True
        self._returns[:], self._lengths[:], self._started = 0, 0, time.perf_counter()
        rows = [infos.get(agent, {}) for agent in self._agents]
        found = {ROWS: np.array(rows, object)} if self._as_lists and any(rows) else {}
        if not self._as_lists:
            found = add_infos(self, rows)
        self._alive = self._find_alive()
        return self._stack(observations), {**found, "alive": self._alive}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the agents that are alive; StateError if some have left before others without `black_death`."""
        env, agents = self.agent_env, self._agents
        acting = set(env.agents)
        given = {agent: action for agent, action in zip(agents, iterate(self.action_space, actions)) if agent in acting}
        observations, reward_of, terminated, truncated, infos = env.step(given)
        rewards = rewards_of(agents, reward_of)
        terminations = np.array([terminated.get(agent, False) for agent in agents], np.bool_)
        truncations = np.array([truncated.get(agent, False) for agent in agents], np.bool_)
        rows = [infos.get(agent, {}) for agent in agents]
        is_over = has_ended(env, terminated, truncated)
        episodes = self._count(rewards, terminations | truncations) if self._has_statistics else {}
        finals: dict[int, Any] = {}
        if is_over:
            found = [(i, observations[agent]) for i, agent in enumerate(agents) if agent in observations]
            finals = copy.deepcopy(dict(found))  # the env may reuse its arrays in the reset
            obs, begun = self._reset(None, None)
        else:
            obs, begun = self._stack(observations), {}
            self._alive = self._find_alive()
            if not self._alive.all():
                begun["alive"] = self._alive
        make_infos = self._list_infos if self._as_lists else self._column_infos
        return obs, rewards, terminations, truncations, make_infos(rows, finals, begun, episodes)

    def _list_infos(
        self, rows: list[Any], finals: dict[int, Any], begun: dict[str, Any], episodes: dict[int, Any]
    ) -> dict[str, Any]:
        """Return infos with one dict per row: that of the step, then that of the reset, as SuperSuit does."""
        firsts = begun.pop(ROWS, None)
        if not (any(rows) or finals or episodes or firsts is not None):
            return begun
        merged = np.full(self.num_envs, None, object)
        for i, row in enumerate(rows):
            merged[i] = dict(row)
            if i in finals:
                merged[i]["terminal_observation"] = finals[i]
            if i in episodes:
                merged[i]["episode"] = episodes[i]
            if firsts is not None:
                merged[i].update(firsts[i])
        return {ROWS: merged, **begun}

    def _column_infos(
        self, rows: list[Any], finals: dict[int, Any], begun: dict[str, Any], episodes: dict[int, Any]
    ) -> dict[str, Any]:
        """Return infos in Gymnasium's form: at an end, those of the step are in `final_info`."""
        if finals:
            rows = [{"final_obs": finals[i], "final_info": row} if i in finals else row for i, row in enumerate(rows)]
        if episodes:
            rows = [{**row, "episode": episodes[i]} if i in episodes else row for i, row in enumerate(rows)]
        return {**add_infos(self, rows), **begun}

    def _count(self, rewards: Any, ended: Any) -> dict[int, dict[str, Any]]:
        """Count a step; return the return, length and seconds of the agents whose episode has ended."""
        self._returns += rewards
        self._lengths += self._alive
        seconds = time.perf_counter() - self._started
        return {
            i: {"r": float(self._returns[i]), "l": int(self._lengths[i]), "t": seconds}
            for i in np.flatnonzero(ended).tolist()
        }

    def _find_alive(self) -> Any:
        alive = alive_agents(self.agent_env, self._agents)
        if not (self._black_death or alive.all()):
            missing = [agent for agent, lives in zip(self._agents, alive) if not lives]
            raise StateError(
                f"agents {missing} are not in the env while others are; black_death=True gives them rows of zeros"
            )
        return alive

    def _stack(self, observations: dict[Any, Any]) -> Any:
        """Return the observations of all agents; the arrays are used again by the next call."""
        items = [observations.get(agent, self._absent) for agent in self._agents]
        return concatenate(self.single_observation_space, items, self._rows)

    def render(self) -> Any:
        """Return the env's frame, once per agent; None without a frame."""
        frame = self.agent_env.render()
        return None if frame is None else (frame,) * self.num_envs

    def close(self, **kwargs: Any) -> None:
        self.agent_env.close()
