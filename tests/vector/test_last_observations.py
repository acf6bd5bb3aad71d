"""Episode ends, and the last observations that rows outside a reset_mask repeat."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from vecenv import ConfigError, StateError, VectorEnv
from vecenv.envs.toys import CountEnv, RaiseAtStep, ToyEnv


class TruncatedAtTwo(ToyEnv):
    """Ends its episodes by truncation."""

    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, self.elapsed_steps == 2, info


class CannotBegin(CountEnv):
    """Raises at its first resets."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def reset(self, **kwargs: Any) -> Any:
        self.times -= 1
        if self.times >= 0:
            raise ValueError("no start")
        return super().reset(**kwargs)


@contextlib.contextmanager
def opened(*env_fns: Any, mode: AutoresetMode = AutoresetMode.DISABLED) -> Iterator[VectorEnv]:
    with contextlib.closing(VectorEnv(env_fns, backend="serial", autoreset_mode=mode)) as envs:
        yield envs


def test_truncated_episode_is_over() -> None:
    with opened(TruncatedAtTwo, functools.partial(ToyEnv, 9)) as envs:
        envs.reset(seed=1)
        envs.step(np.zeros(2, np.int64))
        assert envs.step(np.zeros(2, np.int64))[3].tolist() == [True, False]
        with pytest.raises(StateError, match=r"envs \[0\] are over"):
            envs.step(np.zeros(2, np.int64))
        with pytest.raises(ConfigError, match="env_id 7"):
            envs.step(np.zeros(1, np.int64), [7])


def test_mask_is_refused_after_a_partial_batch() -> None:
    with opened(CountEnv, CountEnv, mode=AutoresetMode.NEXT_STEP) as envs:
        envs.reset(seed=1)
        envs.send(np.zeros(1, np.int64), [1])
        envs.recv()
        with pytest.raises(StateError, match="the last batch was not of all"):
            envs.reset(options={"reset_mask": np.array([True, False])})


def test_mask_must_include_envs_without_an_observation() -> None:
    with opened(functools.partial(CannotBegin, 2), functools.partial(CannotBegin, 3), CountEnv) as envs:
        for _ in range(2):
            with pytest.raises(ValueError, match="no start"):
                envs.reset(seed=1)
        with pytest.raises(StateError, match="failed before their first one"):
            envs.reset(options={"reset_mask": np.array([True, False, True])})
        with pytest.raises(ValueError, match="no start"):
            envs.reset(seed=1)
        with pytest.raises(StateError, match="failed before their first one"):
            envs.reset(options={"reset_mask": np.array([True, False, True])})
        envs.reset(options={"reset_mask": np.array([False, True, False])})


def test_observations_modified_by_the_caller_are_not_repeated() -> None:
    with opened(CountEnv, CountEnv) as envs:
        envs.reset(seed=1)
        first, _ = envs.reset(options={"reset_mask": np.array([True, False])})
        expected = first.copy()
        first[:] = 7
        again, _ = envs.reset(options={"reset_mask": np.array([True, False])})
        assert again[1].tolist() == expected[1].tolist()


def test_views_are_unchanged_if_the_next_step_raises() -> None:
    env_fns = [functools.partial(RaiseAtStep, 2), CountEnv]
    with contextlib.closing(VectorEnv(env_fns, backend="serial", copy=False)) as envs:
        envs.reset(seed=1)
        shown = envs.step([0, 0])[0]
        expected = shown.copy()
        with pytest.raises(ZeroDivisionError):
            envs.step([0, 0])
        assert np.array_equal(shown, expected)


@pytest.mark.extended
@pytest.mark.parametrize("checks", [None, "debug"])
def test_lost_episode_ends_with_the_last_delivered_observation(implementation: str, checks: str | None) -> None:
    """The ring has reused its row many times since, and the episode ended with zeros.

    Debug mode overwrites the row, too.
    """
    env_fns = [functools.partial(ToyEnv, 99)] * 2
    envs = VectorEnv(env_fns, num_workers=2, failures={"max_log_bytes": 0}, checks=checks)
    with contextlib.closing(envs):
        envs.reset(seed=5)
        for _ in range(3):
            shown = envs.step(np.ones(2, np.int64))[0].copy()
        for _ in range(30):
            envs.send(np.ones(1, np.int64), [0])
            envs.recv()
        os.kill(envs.worker_pids[1], signal.SIGKILL)
        envs.send(np.ones(1, np.int64), [1])
        obs, rewards, terminations, truncations, infos = envs.recv()
        assert (rewards.tolist(), terminations.tolist(), truncations.tolist()) == ([0], [False], [True])
        assert infos["recovered"].tolist() == ["truncated"]
        assert obs[0].tolist() == shown[1].tolist() != [0, 0, 0, 0]


def test_saved_rows_ignore_env_ids_modified_by_the_caller() -> None:
    """In debug mode, env ids that the caller had overwritten made the next batch raise IndexError."""
    env_fns = [functools.partial(ToyEnv, 99)] * 2
    with contextlib.closing(VectorEnv(env_fns, num_workers=1, copy=False, checks="debug")) as envs:
        envs.reset(seed=5)
        for _ in range(8):
            envs.send(np.ones(1, np.int64), [1])
            infos = envs.recv()[4]
            assert infos["env_id"].tolist() == [1]
            infos["env_id"][:] = 7
