"""Snapshots within episodes: after a kill, an env behind any wrapper continues where it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.alf.comparison import assert_same
from tests.faults.traces import kill
from tests.inside import pool_of
from vecenv.alf import (
    AlfEnvironmentBaseWrapper,
    AlfGymWrapper,
    BatchEnvironmentWrapper,
    CurriculumWrapper,
    MultitaskWrapper,
    ParallelAlfEnvironment,
    RandomFirstEpisodeLength,
    TimeLimit,
    load,
)
from vecenv.core.host.snapshots import snapshot_now
from vecenv.envs.state.state import uncovered_layers
from vecenv.envs.toys import ToyEnv


class UnknownEnv(ToyEnv):
    """An env whose state within an episode is not known, so that its commands are repeated from the reset on."""


def toy(env_id: int = 0, cls: type = ToyEnv, length: int = 5) -> AlfGymWrapper:
    return AlfGymWrapper(cls(length + env_id), env_id)


def covered(env_id: int = 0) -> AlfEnvironmentBaseWrapper:
    return AlfEnvironmentBaseWrapper(toy(env_id))


def limited(env_id: int = 0, limit: int = 5) -> TimeLimit:
    return TimeLimit(toy(env_id, length=9), limit)


def limited_twice(env_id: int = 0) -> TimeLimit:
    return TimeLimit(TimeLimit(covered(env_id), 4), 3)


def cut(env_id: int = 0) -> RandomFirstEpisodeLength:
    return RandomFirstEpisodeLength(toy(env_id, length=9), 7, 3)


def cartpole(env_id: int = 0) -> AlfEnvironmentBaseWrapper:
    return AlfEnvironmentBaseWrapper(load("CartPole-v1", env_id=env_id))


def tasks(env_id: int = 0) -> MultitaskWrapper:
    return MultitaskWrapper([toy(env_id), covered(env_id)], ["a", "b"], env_id)


def batch(env_id: int = 0) -> BatchEnvironmentWrapper:
    return BatchEnvironmentWrapper([toy(2 * env_id), covered(2 * env_id + 1)])


def unknown_batch(env_id: int = 0) -> BatchEnvironmentWrapper:
    return BatchEnvironmentWrapper([toy(2 * env_id, UnknownEnv), toy(2 * env_id + 1, UnknownEnv)])


def limited_batch(env_id: int = 0) -> BatchEnvironmentWrapper:
    return BatchEnvironmentWrapper([limited(2 * env_id, 3), limited(2 * env_id + 1, 4)])


def curriculum(env_id: int = 0) -> CurriculumWrapper:
    return CurriculumWrapper(BatchEnvironmentWrapper([tasks(2 * env_id), tasks(2 * env_id + 1)]), seed=4)


MAKERS = [toy, covered, limited, limited_twice, cut, cartpole, tasks]
MAKERS += [batch, unknown_batch, limited_batch, curriculum]


def steps_of(make: Any, kill_at: int | None = None) -> list[Any]:
    """Return 13 time steps, without the infos about recoveries; a snapshot is taken one step before worker 1 dies."""
    rng, steps = np.random.default_rng(0), []
    with ParallelAlfEnvironment([make] * 2, tensors=False, num_workers=2) as env:
        env.seed(3)
        steps.append(env.reset())
        for number in range(12):
            if kill_at is not None and number == kill_at - 1:
                pool_of(env).call(snapshot_now, pure=True)
            if number == kill_at:
                kill(pool_of(env), 1)
            actions: Any = rng.integers(0, 2, env.batch_size)
            if isinstance(env.action_spec(), dict):
                actions = {"task_id": np.full(env.batch_size, number // 4 % 2), "action": actions}
            steps.append(env.step(actions))
            found = steps[-1].env_info.pop("recovered", np.array([None]))
            assert set(found) <= {None, "replayed"}
            assert ("replayed" in found) == (number == kill_at)
    return steps


@pytest.mark.parametrize("kill_at", [2, pytest.param(9, marks=pytest.mark.extended)])
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_killed_env_continues_from_a_snapshot_within_an_episode(make: Any, kill_at: int) -> None:
    """A time limit counted from 0 again; wrapped envs and batches lost their episodes."""
    for step, expected in zip(steps_of(make, kill_at), steps_of(make), strict=True):
        assert_same(step, expected)


def test_batch_of_unknown_envs_has_a_gap_in_its_state() -> None:
    assert uncovered_layers(batch()) == []
    (gap,) = uncovered_layers(unknown_batch())
    assert gap.endswith("BatchEnvironmentWrapper: the state of AlfGymWrapper within an episode is not known")
