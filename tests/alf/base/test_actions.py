"""Misfit actions: single and batched environments refuse them before any env is stepped."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from tests.alf.comparison import VectorReward, assert_same, counting, covered, toy
from vecenv.alf import (
    AlfGymWrapper,
    BatchedTensorWrapper,
    BatchEnvironmentWrapper,
    ParallelAlfEnvironment,
    ThreadEnvironment,
    load,
)
from vecenv.envs.toys import ToyEnv
from vecenv.errors import SpaceError

AHEAD = {
    "lockstep": {"reset_ahead": False},
    "ahead": {"reset_ahead": True},
    "spare": {"num_spare_envs_for_reload": 1},
}


class Bounded(ToyEnv):
    """Takes two numbers and records each action that it receives."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.given = []

    def step(self, action):
        self.given.append(action)
        return super().step(action)


def bounded(env_id=0):
    return AlfGymWrapper(Bounded(length=2 + env_id), env_id)


GOOD = {"discrete": np.ones(3, np.int64), "box": np.ones((3, 2), np.float32)}
BAD = {
    "discrete": [np.ones(4, np.int64), np.ones(2, np.int64), np.ones((3, 1), np.int64), np.int64(1), np.ones(3)],
    "box": [
        np.ones((4, 2)),
        np.ones((2, 2)),
        np.ones((3, 1)),
        np.ones(3),
        np.ones((3, 2, 1)),
        np.ones((3, 2), complex),
    ],
}
MAKE = {"discrete": counting, "box": bounded}


def opened(mode, kind):
    options = AHEAD[mode]
    count = 3 + options.get("num_spare_envs_for_reload", 0)
    return ParallelAlfEnvironment([MAKE[kind]] * count, tensors=False, backend="serial", **options)


@pytest.mark.parametrize("kind", ["discrete", "box"])
@pytest.mark.parametrize("mode", AHEAD)
def test_misfit_actions_change_nothing_in_any_env(mode, kind):
    """The error comes before every kind of step: inside episodes, after an end, and during a reset."""
    with opened(mode, kind) as env:
        env.seed(5)
        undisturbed = [env.reset(), *(env.step(GOOD[kind]) for _ in range(12))]
    assert {tuple(step.step_type) for step in undisturbed} >= {(1, 1, 1), (2, 1, 1), (0, 2, 1)}
    with opened(mode, kind) as env:
        env.seed(5)
        steps = [env.reset()]
        for _ in range(12):
            for bad in BAD[kind]:
                with pytest.raises(SpaceError, match="action: expected"):
                    env.step(bad)
            assert env.current_time_step() is steps[-1]
            steps.append(env.step(GOOD[kind]))
    for mine, theirs in zip(steps, undisturbed, strict=True):
        assert_same(mine, theirs)


@pytest.mark.parametrize("mode", ["lockstep", "ahead"])
def test_misfit_action_nest_changes_nothing(mode):
    good = {"move": np.ones(3, np.int64), "push": np.ones((3, 1), np.float32)}
    bad = [
        {**good, "push": np.ones(3, np.float32)},
        {**good, "move": np.ones(2, np.int64)},
        {"move": good["move"]},
        {**good, "more": good["move"]},
        good["move"],
    ]
    with ParallelAlfEnvironment([VectorReward] * 3, tensors=False, backend="serial", **AHEAD[mode]) as env:
        types = [env.reset().step_type.tolist()]
        for _ in range(8):
            for action in bad:
                with pytest.raises(SpaceError):
                    env.step(action)
            types.append(env.step(good).step_type.tolist())
    assert types == [[kind] * 3 for kind in (0, 1, 1, 1, 1, 2, 0, 1, 1)]


def test_action_error_describes_the_given_value():
    with opened("ahead", "box") as env:
        env.reset()
        with pytest.raises(SpaceError, match=r"expected 3 rows, got shape \(4, 2\)"):
            env.step(np.ones((4, 2), np.float32))
        with pytest.raises(SpaceError, match=r"expected float32 \(3, 2\), got float64 \(3, 1\)"):
            env.step(np.ones((3, 1)))


# ---- single environments ---------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: covered(make=lambda _: env)], ids=["bare", "covered"])
@pytest.mark.parametrize("action", [0.9, np.float64(1.0), np.zeros(1, np.int64), [0, 1], None, "1", {"a": 1}], ids=repr)
def test_single_env_refuses_misfit_actions(action, wrap):
    """0.9 was truncated to 0 silently."""
    env = wrap(toy())
    env.reset()
    with pytest.raises(SpaceError, match="action|expected"):
        env.step(action)
    assert env.step(1).observation[0] == 1.0, "nothing was stepped"


@pytest.mark.parametrize("action", [1, np.int32(1), np.uint8(1), np.array(1), True], ids=repr)
def test_single_env_accepts_integers_of_every_type(action):
    env = toy()
    env.reset()
    step = env.step(action)
    assert step.prev_action == 1 and step.prev_action.dtype == np.int64 and step.observation[1] == 1.0


def test_registered_env_refuses_fractional_actions():
    env = load("CartPole-v1")
    env.reset()
    with pytest.raises(SpaceError, match=r"action: expected int64 \(\), got float64 \(\)"):
        env.step(0.9)
    assert env.step(1).is_mid()
    env.close()


def test_actions_reach_the_env_in_its_dtype():
    env = bounded()
    env.reset()
    env.step([1, 0.5])
    (given,) = env.gym.unwrapped.given
    assert given.dtype == np.float32 and given.tolist() == [1.0, 0.5]
    with pytest.raises(SpaceError, match=r"got float64 \(3,\)"):
        env.step([1, 0.5, 0])


@pytest.mark.parametrize("make", [toy, bounded])
def test_prev_action_has_the_same_type_in_first_and_later_steps(make):
    env = make()
    first = env.reset()
    later = env.step(np.zeros(env.action_spec().shape, env.action_spec().dtype))
    for one in (first, later):
        assert type(one.prev_action) is (np.int64 if make is toy else np.ndarray)
    assert first.prev_action.dtype == later.prev_action.dtype and first.prev_action.shape == later.prev_action.shape


# ---- batches of one thread ---------------------------------------------------------------------------


def threaded():
    return ThreadEnvironment(toy, tensors=False), 1


def batch():
    return BatchEnvironmentWrapper([toy(), toy()]), 2


@pytest.mark.parametrize("make", [threaded, batch])
def test_batch_refuses_surplus_rows(make):
    """Surplus rows were dropped silently."""
    env, size = make()
    with env:
        env.reset()
        for rows in (size + 1, size + 3, 0):
            with pytest.raises(SpaceError, match=f"expected {size} rows, got shape"):
                env.step(np.ones(rows, np.int64))
        for bad in (np.ones((size, 1), np.int64), np.full(size, 0.5), np.int64(1)):
            with pytest.raises(SpaceError, match="action: expected"):
                env.step(bad)
        assert env.step(np.ones(size, np.int64)).observation[:, 0].tolist() == [1.0] * size, "nothing was stepped"


def test_batch_of_tensors_refuses_surplus_rows():
    torch = pytest.importorskip("torch")
    env = BatchedTensorWrapper(toy())
    env.reset()
    with pytest.raises(SpaceError, match=r"expected 1 rows, got shape \(2,\)"):
        env.step(torch.ones(2, dtype=torch.int64))
    assert env.step(torch.ones(1, dtype=torch.int64)).observation[0, 0] == 1.0


@pytest.mark.parametrize("num_envs", [1, 2])
def test_concatenated_batches_refuse_surplus_rows(num_envs):
    with ParallelAlfEnvironment([pair] * num_envs, tensors=False, backend="serial") as env:
        env.reset()
        for rows in (2 * num_envs + 2, 2 * num_envs - 1):
            with pytest.raises(SpaceError, match=f"expected {2 * num_envs} rows"):
                env.step(np.ones(rows, np.int64))
        assert env.step(np.ones(2 * num_envs, np.int64)).is_mid().all()


def pair(env_id=0):
    return BatchEnvironmentWrapper([toy(), toy()])
