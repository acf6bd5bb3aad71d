"""Rows of episodes that could not be restored after a failure are marked as lost; all other rows are transitions."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.collection.sharded import ShardedVectorEnv
from vecenv import Collector, Transitions, VectorEnv, collect
from vecenv.collection import collector
from vecenv.envs.toys import ToyEnv

MODES = pytest.mark.parametrize("mode", list(AutoresetMode))
NUM_ENVS, LENGTH, CRASH_STEP = 3, 6, 3


class CrashingEnv(ToyEnv):
    """Ends the process at a step of the episode with this seed, each time that the step is made."""

    def __init__(self, seed: int | None = None, infos: bool = True) -> None:
        super().__init__(LENGTH)
        self.fatal_seed, self.has_infos, self.is_fatal = seed, infos, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.is_fatal = seed is not None and seed == self.fatal_seed
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        if self.is_fatal and self.elapsed_steps == CRASH_STEP:
            os._exit(3)
        *result, info = super().step(action)
        return *result, {**info, "text": "so that infos are pickled"} if self.has_infos else {}


def env_fns(infos: bool = True) -> list[Any]:
    """Return envs of which number 1 crashes if the seed of the first reset is 0."""
    return [functools.partial(CrashingEnv, 1 if i == 1 else None, infos) for i in range(NUM_ENVS)]


@pytest.fixture
def failures(tmp_path: Path) -> dict[str, Any]:
    return {"reproducer_dir": str(tmp_path)}


def zeros(obs: Any, env_id: np.ndarray) -> Any:
    return np.zeros(len(env_id), np.int64)


class Policy:
    """Has estimates for the ends of rollouts."""

    __call__ = staticmethod(zeros)

    def bootstrap(self, obs: Any, env_id: np.ndarray) -> Any:
        return obs[:, 0]


def check_lost(batch: Transitions, num_lost: int = 1) -> None:
    """Fail unless `num_lost` rows are lost, each in step CRASH_STEP of env 1, and the other rows are transitions."""
    lost, ends = batch.lost, batch.terminated | batch.truncated
    assert lost.shape == batch.truncated.shape and lost.dtype == np.bool_ and lost.sum() == num_lost
    found = batch.env_id[lost], batch.episode[lost], batch.step[lost]
    assert [column.tolist() for column in found] == [[1] * num_lost, [0] * num_lost, [CRASH_STEP] * num_lost]
    assert batch.truncated[lost].all() and not batch.terminated[lost].any() and not batch.rewards[lost].any()
    np.testing.assert_array_equal(batch.next_obs[lost], batch.obs[lost])
    np.testing.assert_array_equal(batch.next_obs[~lost][:, 0], batch.obs[~lost][:, 0] + 1)
    assert (batch.episode_lengths[lost[ends]] == CRASH_STEP + 1).all()
    assert (batch.episode_lengths[~lost[ends]] == LENGTH).all() and (~lost[ends]).any()
    if batch.bootstrap is not None:
        assert batch.bootstrap[lost].tolist() == [CRASH_STEP] * num_lost


@pytest.mark.parametrize(
    "mode, time_major",
    [
        (AutoresetMode.SAME_STEP, True),
        *(
            pytest.param(mode, time_major, marks=pytest.mark.extended)
            for mode in AutoresetMode
            for time_major in (False, True)
            if (mode, time_major) != (AutoresetMode.SAME_STEP, True)
        ),
    ],
)
def test_lost_episode_is_marked_in_each_mode(mode: AutoresetMode, time_major: bool, failures: Any) -> None:
    with VectorEnv(env_fns(), autoreset_mode=mode, num_workers=1, context="fork", failures=failures) as envs:
        batches = Collector(envs, Policy(), batch_steps=12 * NUM_ENVS, time_major=time_major, seed=0)
        check_lost(next(batches))
        check_lost(next(batches), 0)


@pytest.mark.extended
@pytest.mark.parametrize(
    "how, infos",
    [
        ({"steps": 36}, "none"),
        ({"steps": 36, "overlap": True}, "done"),
        ({"steps": 200, "min_count": 1}, "none"),
        ({"episodes": 8}, "done"),
    ],
    ids=["lockstep", "overlap", "finish", "episodes"],
)
@MODES
def test_lost_episode_is_marked_in_each_order(
    mode: AutoresetMode, how: dict[str, Any], infos: str, failures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "_ROWS_PER_EPISODE", 1)  # the columns grow
    options = {"num_workers": 2, "context": "fork", "infos": infos, "failures": failures}
    with VectorEnv(env_fns(), autoreset_mode=mode, **options) as envs:
        check_lost(collect(envs, zeros, seed=0, **how))


@pytest.mark.extended
def test_lost_episode_is_marked_with_infos_in_the_form_of_gymnasium_0_29(failures: Any) -> None:
    """Every batch with the end of an episode raised KeyError."""
    options = {"num_workers": 2, "context": "fork", "infos": "legacy", "failures": failures}
    with VectorEnv(env_fns(), autoreset_mode=AutoresetMode.SAME_STEP, **options) as envs:
        check_lost(collect(envs, zeros, steps=36, seed=0))


@pytest.mark.extended
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@MODES
def test_lost_episode_is_marked_in_shards(mode: AutoresetMode, sync: bool, failures: Any) -> None:
    with ShardedVectorEnv(env_fns(infos=sync), autoreset_mode=mode, failures=failures) as envs:
        options = {"where": "shards", "make_policy": Policy, "sync": sync, "time_major": True}
        batches = Collector(envs, batch_steps=12 * NUM_ENVS, seed=0, **options)
        check_lost(next(batch for batch in batches if 1 in batch.env_id))
        check_lost(next(batches), 0)


@pytest.mark.parametrize("mark", [3.0, np.ones(2), {"truncated": True}], ids=["number", "array", "dict"])
def test_info_of_the_same_name_is_tolerated(mark: Any) -> None:
    class Marked(ToyEnv):
        def step(self, action: Any) -> Any:
            *result, info = super().step(action)
            return *result, {**info, "recovered": mark}

    with VectorEnv([functools.partial(Marked, LENGTH)] * 2, backend="serial") as envs:
        batch = collect(envs, zeros, steps=24)
    assert not batch.lost.any() and len(batch.episode_returns) == 4
