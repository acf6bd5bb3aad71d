"""Envs that share a worker with an env whose reset hangs: their episodes continue unchanged."""

from __future__ import annotations

import functools
import threading
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from vecenv.ding import (
    AsyncSubprocessEnvManager,
    DingEnvWrapper,
    EnvState,
    SubprocessEnvManagerV2,
    SyncSubprocessEnvManager,
)
from vecenv.errors import StateError

MANAGER_CLASSES = [SyncSubprocessEnvManager, AsyncSubprocessEnvManager, SubprocessEnvManagerV2]
LENGTHS = (2, 5, 3, 4)
EPISODES = 3


class HangsInReset(gymnasium.Env[Any, Any]):
    """Its observations depend on all of its episode's actions and draws. Some resets hang, each of them once."""

    observation_space = spaces.Box(-1e9, 1e9, (3,), np.float64)
    action_space = spaces.Discrete(5)
    reward_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, number: int, folder: Path | None, episodes: tuple[int, ...]) -> None:
        self._number, self._folder, self._episodes = number, folder, episodes
        self._episode = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if self._folder is not None and self._episode in self._episodes:
            mark = self._folder / f"{self._number}-{self._episode}"
            if not mark.exists():
                mark.touch()
                threading.Event().wait()
        self._episode, self._t, self._sum = self._episode + 1, 0, 0.0
        return self._observe(), {}

    def _observe(self) -> Any:
        return np.array([self._number, self._t, self._sum])

    def step(self, action: Any) -> Any:
        self._t += 1
        self._sum += float(action) + self.np_random.random()
        return self._observe(), self._sum % 1, self._t >= LENGTHS[self._number], False, {}


def make(cls: Any, folder: Path | None, hangs: dict[int, tuple[int, ...]], **cfg: Any) -> Any:
    """Return a launched manager of 4 envs; `hangs`: which resets of which envs hang, by index."""

    def build(number: int) -> Any:
        return DingEnvWrapper(HangsInReset(number, folder, hangs.get(number, ())))

    limits = {"episode_num": EPISODES, "max_retry": 3, "retry_waiting_time": 0.0, "reset_timeout": 1.0}
    factories = [functools.partial(build, number) for number in range(4)]
    manager = cls(factories, {**limits, "num_workers": 1, **cfg})
    manager.seed(5)
    manager.launch()
    return manager


def collect(manager: Any) -> dict[int, list[Any]]:
    """Step all envs until the manager is done; return the timesteps of each env without infos, and its returns."""
    found: dict[int, list[Any]] = {env_id: [] for env_id in range(4)}
    count = [0] * 4
    while not manager.done:
        manager.ready_obs  # noqa: B018
        ids = manager.ready_obs_id
        for env_id in ids:
            count[env_id] += 1
        timesteps = manager.step({env_id: np.array(count[env_id] % 5) for env_id in ids})
        pairs = timesteps.items() if isinstance(timesteps, dict) else ((int(one.env_id), one) for one in timesteps)
        for env_id, timestep in pairs:
            assert not timestep.info.get("abnormal")
            last = float(np.ravel(timestep.info["eval_episode_return"])[0]) if timestep.done else None
            values = np.asarray(timestep.obs).tolist(), np.ravel(timestep.reward).tolist()
            found[env_id].append((*values, bool(timestep.done), last))
    return found


def step_until_first_is_done(manager: Any) -> None:
    while manager.env_states[0] is not EnvState.DONE:
        manager.ready_obs  # noqa: B018
        manager.step(dict.fromkeys(manager.ready_obs_id, np.array(1)))


@functools.cache
def undisturbed() -> dict[int, list[Any]]:
    manager = make(SyncSubprocessEnvManager, None, {})
    with manager:
        return collect(manager)


def check(manager: Any, hung: set[int]) -> None:
    """Collect, and compare the envs that did not hang; the others have all of their episodes."""
    with manager:
        found = collect(manager)
        assert set(manager.env_states.values()) == {EnvState.DONE}
    for env_id in range(4):
        if env_id in hung:
            assert sum(one[2] for one in found[env_id]) == EPISODES
        else:
            assert found[env_id] == undisturbed()[env_id]


@pytest.mark.extended
@pytest.mark.parametrize("retry_type", ["reset", "renew"])
@pytest.mark.parametrize("cls", MANAGER_CLASSES)
def test_neighbours_of_a_hung_reset_go_on(cls: Any, retry_type: str, implementation: str, tmp_path: Path) -> None:
    """Regression: they were put into ERROR, and the loop of a collector did not end."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(make(cls, tmp_path, {0: (1,)}, retry_type=retry_type), {0})


@pytest.mark.parametrize("cls", MANAGER_CLASSES[:1])
def test_neighbours_of_a_hung_reset_go_on_in_one_case(cls: Any, tmp_path: Path) -> None:
    check(make(cls, tmp_path, {0: (1,)}, retry_type="renew"), {0})


@pytest.mark.extended
@pytest.mark.parametrize("cls", MANAGER_CLASSES)
@pytest.mark.parametrize(
    "cfg",
    [
        {"threads_per_worker": 2},
        {"num_workers": 2},
        {"context": "fork"},
        {"context": "spawn"},
        {"copy_on_get": False},
    ],
    ids=str,
)
def test_neighbours_go_on_with_other_options(cls: Any, cfg: dict[str, Any], tmp_path: Path) -> None:
    check(make(cls, tmp_path, {0: (1,), 2: (2,)}, **cfg), {0, 2})


@pytest.mark.extended
@pytest.mark.parametrize("cls", MANAGER_CLASSES)
@pytest.mark.parametrize("threads", [1, 2])
def test_several_resets_that_hang_at_once_are_all_repeated(cls: Any, threads: int, tmp_path: Path) -> None:
    with make(cls, tmp_path, {0: (1,), 1: (1,)}, threads_per_worker=threads) as manager:
        first = manager.ready_obs_id
        assert first == [0, 1, 2, 3]
        manager.step({env_id: np.array(1) for env_id in first})
        while len(manager.ready_obs_id) < 4:
            manager.step({})
        manager.reset({0: None, 1: None})
        assert set(manager.env_states.values()) == {EnvState.RUN}
        assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.extended
@pytest.mark.parametrize("cls", MANAGER_CLASSES)
def test_hung_reset_of_the_caller_leaves_neighbours_in_their_episodes(cls: Any, tmp_path: Path) -> None:
    with make(cls, tmp_path, {0: (1,)}) as manager:
        for count in range(2):
            manager.step({1: np.array(count)})
            while 1 not in manager.ready_obs_id:
                manager.step({})
        manager.reset({0: None})
        assert set(manager.env_states.values()) == {EnvState.RUN}
        manager.ready_obs  # noqa: B018
        assert manager._last_obs.rows[1][1] == 2


@pytest.mark.extended
@pytest.mark.parametrize("cls", MANAGER_CLASSES)
def test_step_raises_if_all_envs_left_are_in_error(cls: Any, tmp_path: Path) -> None:
    """Regression: a loop over `manager.done` made empty rounds without end."""
    with make(cls, tmp_path, {0: (1,)}, on_failure="raise", episode_num=2) as manager:
        with pytest.warns(RuntimeWarning, match="are in ERROR"):
            step_until_first_is_done(manager)
        with pytest.raises(StateError, match=r"\[1, 2, 3\] are in ERROR"):
            while not manager.done:
                manager.step({})
        manager.reset({1: None})
        assert manager.ready_obs_id == [1]


def test_step_without_actions_is_empty_if_envs_wait_for_a_reset() -> None:
    with make(SyncSubprocessEnvManager, None, {}, auto_reset=False) as manager:
        while EnvState.RUN in manager.env_states.values():
            manager.step(dict.fromkeys(manager.ready_obs_id, np.array(1)))
        assert manager.step({}) == {}
