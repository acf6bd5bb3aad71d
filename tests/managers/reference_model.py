"""Envs for random programs, and a model of the results that a manager returns for each env; see `test_fuzz`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv.ding import BaseEnv, BaseEnvTimestep, EnvState, TreeArray
from vecenv.envs.seeding import episode_seed
from vecenv.envs.toys import ToyEnv

RAISE, BE_ABNORMAL = 8, 9  # actions


class Optional(ToyEnv):
    """The reset option `length` sets the number of steps; observations have several parts, one without a layout."""

    def __init__(self, length: int) -> None:
        super().__init__(length, num_actions=10)
        self.usual_length = length
        parts = {"x": self.observation_space, "n": spaces.Discrete(9), "text": spaces.Text(9)}
        self.observation_space = spaces.Dict(parts)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.length = (options or {}).get("length", self.usual_length)
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        if action == RAISE:
            raise LookupError("this step was to raise")
        return super().step(action)

    def observe(self) -> Any:
        numbers = self.elapsed_steps, self.action_sum, self.episode_draw, self.np_random.random()
        return {"x": np.array(numbers, np.float32), "n": np.int64(self.elapsed_steps), "text": "x" * self.elapsed_steps}

    def make_info(self) -> dict[str, Any]:
        return {"left": self.length - self.elapsed_steps} if self.action_sum % 2 else {"name": f"{self.action_sum}"}


class Old(BaseEnv):
    """The same env with DI-engine's API; it seeds its episodes itself."""

    def __init__(self, length: int) -> None:
        self.inner = Optional(length)
        self.observation_space, self.action_space = self.inner.observation_space, self.inner.action_space
        self.seeds: tuple[Any, ...] = ()

    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        self.seeds = (seed, 0, dynamic_seed)

    def reset(self, options: dict[str, Any] | None = None) -> Any:
        obs, _ = self.inner.reset(seed=episode_seed(*self.seeds), options=options)
        self.seeds = (self.seeds[0], self.seeds[1] + 1, self.seeds[2])
        return obs

    def step(self, action: Any) -> BaseEnvTimestep:
        obs, reward, done, _, info = self.inner.step(action)
        if action == BE_ABNORMAL and not done:
            return BaseEnvTimestep(None, None, False, {"abnormal": True})
        return BaseEnvTimestep(obs, np.array([reward], np.float32), done, info)

    def close(self) -> None:
        pass

    def get_state(self) -> Any:
        return self.seeds

    def set_state(self, state: Any) -> None:
        self.seeds = state


class ReferenceEnv:
    """A model: one env in this process, and its state in a manager; `due` is the expected answer to its last step."""

    def __init__(self, env_fn: Callable[[], Any], cfg: dict[str, Any]) -> None:
        self.env, self.cfg = env_fn(), cfg
        self.pending: Any = None
        self.params: dict[str, Any] = {}
        self.count, self.due = 0, None

    def reset(self, params: dict[str, Any] | None) -> None:
        """Reset as the caller requests: parameters apply to later resets, and a seed that was given is used."""
        self.params = params or {}
        if self.pending is not None:
            (seed, dynamic), self.pending = self.pending, None
            self.seeds = (seed, 0, dynamic)
            if isinstance(self.env, Old):
                self.env.seed(seed, dynamic)
        self.begin()

    def begin(self) -> None:
        if isinstance(self.env, Old):
            self.obs = self.env.reset(**self.params)
        else:
            self.obs, _ = self.env.reset(seed=episode_seed(*self.seeds), **self.params)
            self.seeds = (self.seeds[0], self.seeds[1] + 1, self.seeds[2])
        self.state = EnvState.RUN

    def step(self, action: int) -> None:
        """Compute the expected answer and the following state."""
        try:
            obs, reward, *ends, info = self.env.step(action)
        except LookupError:
            self.due, self.state = RAISE, EnvState.ERROR
            return
        done = any(ends)
        self.due = (obs, None if reward is None else np.array(reward, np.float32).reshape(1), done, info)
        if info.get("abnormal"):
            self.state = EnvState.ERROR if self.cfg["has_workers"] else EnvState.RUN
            return
        self.obs = obs
        self.count += done
        if not done:
            return
        if self.count >= self.cfg["episode_num"]:
            self.state = EnvState.DONE
        elif not self.cfg["auto_reset"]:
            self.state = EnvState.NEED_RESET
        else:
            self.begin()
        if self.cfg["reset_inplace"] and self.cfg["has_workers"]:
            self.due = (self.obs, *self.due[1:3], {**info, "final_obs": obs})


def plain(value: Any) -> Any:
    """Return arrays, and dicts or trees of arrays, as lists and dicts."""
    if isinstance(value, dict | TreeArray):
        return {key: plain(part) for key, part in value.items()}
    return None if value is None else np.asarray(value).tolist()


def plain_answer(timestep: Any) -> Any:
    """Return a timestep, a tuple or a tree, as lists and dicts; without the items that managers add to its info."""
    names = "obs", "reward", "done", "info"
    obs, reward, done, info = [timestep[name] for name in names] if isinstance(timestep, TreeArray) else timestep
    added = ("recovered", "terminated", "truncated", "TimeLimit.truncated", "TimeLimit_truncated")
    return plain({"obs": obs, "reward": reward, "done": done, **{k: v for k, v in info.items() if k not in added}})
