"""The managers, and an env with DI-engine's API that fails as its actions and reset parameters say."""

from __future__ import annotations

import os
import threading
import uuid
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv.ding import (
    AsyncSubprocessEnvManager,
    BaseEnv,
    BaseEnvManager,
    BaseEnvManagerV2,
    BaseEnvTimestep,
    SubprocessEnvManagerV2,
    SyncSubprocessEnvManager,
)

#: The managers over a pool.
IN_PROCESS = [BaseEnvManager, BaseEnvManagerV2]
WITH_WORKERS = [SyncSubprocessEnvManager, AsyncSubprocessEnvManager, SubprocessEnvManagerV2]

# A hung env waits this long: longer than any time limit of a test.
HANG_SECONDS = 30.0


class ActorEnv(BaseEnv):
    """An env with episodes of `length` steps; the reset parameter `stat` and string actions select a failure.

    The observation is float32 (3,): number of the env, steps in this episode, episodes begun.
    """

    def __init__(self, cfg: dict[str, Any] | None = None) -> None:
        self._cfg = {"number": 0, "length": 5, **(cfg or {})}
        self._name = f"actor {self._cfg['number']}"
        self.time_id = uuid.uuid4().hex  # a new env has another one
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.reward_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.last_seed: int | None = None
        self.last_dynamic_seed: bool | None = None
        self.seed_calls: list[tuple[int, Any]] = []
        self.stat: str | None = None
        self.data_count = 0
        self._failed_once = False
        self.episodes = 0
        self.steps = 0
        self.kept: list[Any] = []
        self.figure_path: str | None = None

    @property
    def name(self) -> str:
        return self._name

    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        self.last_seed, self.last_dynamic_seed = seed, dynamic_seed
        self.seed_calls.append((seed, dynamic_seed))

    def reset(self, stat: str | None = None) -> Any:
        self.stat = stat
        if stat == "error":
            raise ZeroDivisionError(f"{self._name} cannot reset")
        if stat == "error_once" and not self._failed_once:
            self._failed_once = True
            raise ZeroDivisionError(f"{self._name} cannot reset this time")
        if stat == "block" or (stat == "block_later" and self.episodes):
            threading.Event().wait(HANG_SECONDS)
        if stat == "error_later" and self.episodes:
            raise ZeroDivisionError(f"{self._name} cannot reset again")
        self.episodes += 1
        self.steps = 0
        return self._obs()

    def step(self, action: Any) -> BaseEnvTimestep:
        self.kept.append(action)
        if isinstance(action, str):
            if action == "error":
                raise LookupError(f"{self._name} cannot step")
            if action == "block":
                threading.Event().wait(HANG_SECONDS)
            if action.startswith("/"):  # a FIFO: wait until the test opens the other end
                os.close(os.open(action, os.O_RDONLY))
            if action == "die":
                os._exit(3)
            if action == "abnormal":
                return BaseEnvTimestep(None, None, False, {"abnormal": True})
            if action == "abnormal_end":
                return BaseEnvTimestep(None, None, True, {"abnormal": True})
        self.steps += 1
        self.data_count += 1
        done = self.steps >= self._cfg["length"]
        info = {"name": self._name}
        if done:
            info["eval_episode_return"] = float(self.steps)
        return BaseEnvTimestep(self._obs(), np.ones(1, np.float32), done, info)

    def _obs(self) -> Any:
        return np.array([self._cfg["number"], self.steps, self.episodes], np.float32)

    def close(self) -> None:
        pass

    def user_defined(self) -> None:
        """A method that is not in method_name_list."""

    def enable_save_figure(self, figure_path: str) -> None:
        self.figure_path = figure_path

    def reward_shaping(self, transitions: list[float]) -> list[float]:
        return [2 * value for value in transitions]


def actors(count: int, **cfg: Any) -> list[Any]:
    """Return constructors of `count` envs, which are numbered."""
    return [_Maker({"number": number, **cfg}) for number in range(count)]


class _Maker:
    def __init__(self, cfg: dict[str, Any]) -> None:
        self.cfg = cfg

    def __call__(self) -> ActorEnv:
        return ActorEnv(self.cfg)
