"""Front ends: every way to step envs, behind one interface that records the answers of each env."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from vecenv import AsyncSubprocessEnvManager, SubprocessEnvManagerV2, SyncSubprocessEnvManager, VectorEnv

Rows = list[list[tuple[bytes, float, bool]]]


class FrontEnd:
    """One front end: `play` records the answers of envs and calls each env once in between.

    Args:
        start: start method.
        limits: `..._timeout` of any operation, in seconds.
        before: called with (worker pids, round) before each round.
    """

    def __init__(
        self,
        env_fns: list[Callable[[], Any]],
        start: str,
        limits: dict[str, float] | None = None,
        *,
        num_workers: int = 2,
        rounds: int = 9,
        call_after: int | None = 5,
        seed: int = 10,
        before: Callable[[tuple[int, ...], int], object] | None = None,
    ) -> None:
        self.rows: Rows = [[] for _ in env_fns]
        self.called: Any = None
        self.env_fns, self.num_envs = env_fns, len(env_fns)
        self.options = {"num_workers": num_workers, "context": start, **(limits or {})}
        self.rounds, self.call_after, self.seed = rounds, call_after, seed
        self.before = before or (lambda pids, number: None)

    def note(self, env_id: int, obs: Any, reward: Any, done: Any) -> None:
        self.rows[env_id].append((np.asarray(obs).tobytes(), float(np.asarray(reward).reshape(())), bool(done)))


class Gymnasium(FrontEnd):
    def open(self) -> None:
        self.env = VectorEnv(self.env_fns, **self.options)

    def play(self) -> None:
        obs, _ = self.env.reset(seed=self.seed)
        for env_id in range(self.num_envs):
            self.note(env_id, obs[env_id], 0.0, False)
        for number in range(self.rounds):
            self.before(self.env.worker_pids, number)
            if number == self.call_after:
                self.called = list(self.env.call("poke", 7))
            actions = np.full(self.env.action_space.shape or (), number % 2, self.env.action_space.dtype)
            obs, rewards, terminated, truncated, _ = self.env.step(actions)
            for env_id in range(self.num_envs):
                self.note(env_id, obs[env_id], rewards[env_id], terminated[env_id] or truncated[env_id])

    def num_restarts(self) -> int:
        return int(self.env.statistics()["restarts"])

    def close(self) -> None:
        self.env.close()


class Manager(FrontEnd):
    cls: Any = SyncSubprocessEnvManager

    def open(self) -> None:
        self.manager = self.cls(self.env_fns, self.options)
        self.manager.seed(self.seed)
        self.manager.launch()

    def play(self) -> None:
        counts = [0] * self.num_envs
        turn = 0
        while min(counts) < self.rounds:
            self.before(self.manager.worker_pids, turn)
            turn += 1
            if self.called is None and self.call_after is not None and min(counts) >= self.call_after:
                self.called = self.call()
            ready = [int(env_id) for env_id in self.manager.ready_obs_id if counts[env_id] < self.rounds]
            space = self.manager.action_space
            actions = {env_id: np.full(space.shape, counts[env_id] % 2, space.dtype) for env_id in ready}
            for env_id, obs, reward, done in self.step(actions):
                counts[env_id] += 1
                self.note(env_id, obs, reward, done)

    def call(self) -> Any:
        pool = self.manager._launch.pool
        return pool.call(lambda env: getattr(env.env, "poke", lambda value: value)(7))

    def step(self, actions: dict[int, Any]) -> Iterator[tuple[int, Any, Any, Any]]:
        for env_id, timestep in self.manager.step(actions).items():
            yield env_id, timestep.obs, timestep.reward, timestep.done

    def num_restarts(self) -> int:
        return int(self.manager._launch.pool.statistics()["restarts"])

    def close(self) -> None:
        self.manager.close()


class Async(Manager):
    cls = AsyncSubprocessEnvManager


class V2(Manager):
    cls = SubprocessEnvManagerV2

    def step(self, actions: dict[int, Any]) -> Iterator[tuple[int, Any, Any, Any]]:
        for timestep in self.manager.step(actions):
            yield int(timestep.env_id.item()), timestep.obs, timestep.reward, timestep.done


FRONT_END_CLASSES = {"sync": Manager, "async": Async, "V2": V2, "VectorEnv": Gymnasium}
