"""AlfEnvironment: the members that a subclass may omit and those that it may define itself."""

from __future__ import annotations

import numpy as np
import pytest

from tests.alf.comparison import VectorReward, toy
from vecenv.alf import (
    AlfEnvironment,
    BatchEnvironmentWrapper,
    BoundedTensorSpec,
    MultitaskWrapper,
    ParallelAlfEnvironment,
    TensorSpec,
    ThreadEnvironment,
    restart,
    time_step_spec,
    transition,
)


class Plain(AlfEnvironment):
    """Defines the required members only."""

    def __init__(self, env_id=0):
        self.env_id = env_id

    def observation_spec(self):
        return TensorSpec(())

    def action_spec(self):
        return BoundedTensorSpec((), np.float32, -1, 1)

    def env_info_spec(self):
        return {}

    def _reset(self):
        return restart(np.float32(0), self.action_spec())

    def _step(self, action):
        return transition(np.float32(0), action, np.float32(1))


class OwnSpec(Plain):
    """Defines time_step_spec itself, without the specs of infos."""

    def __init__(self, env_id=0):
        self._specs = time_step_spec(super().observation_spec(), super().action_spec(), TensorSpec(()))

    def time_step_spec(self):
        return self._specs

    def env_info_spec(self):
        return {"x": TensorSpec(())}


class OtherInfo(OwnSpec):
    def env_info_spec(self):
        return {"y": TensorSpec(())}


@pytest.mark.parametrize(
    "make",
    [
        lambda: ParallelAlfEnvironment([OwnSpec] * 2, tensors=False, backend="serial"),
        lambda: BatchEnvironmentWrapper([OwnSpec(), OwnSpec()]),
        lambda: MultitaskWrapper([OwnSpec(), OwnSpec()], ["a", "b"]),
        lambda: ThreadEnvironment(OwnSpec, tensors=False),
    ],
)
def test_env_info_spec_does_not_depend_on_time_step_spec(make):
    with make() as env:
        assert env.env_info_spec() == {"x": TensorSpec(())}


def test_differing_infos_are_found_whatever_time_step_spec_returns():
    with pytest.raises(ValueError, match="differ"):
        BatchEnvironmentWrapper([OwnSpec(), OtherInfo()])
    with pytest.raises(ValueError, match="differ"):
        ParallelAlfEnvironment([lambda env_id: OwnSpec(), lambda env_id: OtherInfo()], backend="serial")


def test_specs_without_infos_equal_time_step_spec():
    for env in (Plain(), toy(), BatchEnvironmentWrapper([toy()])):
        assert time_step_spec(env.observation_spec(), env.action_spec(), env.reward_spec()) == env.time_step_spec()
    assert VectorReward().time_step_spec().env_info == {"half": TensorSpec(())}


def test_reward_spec_defaults_to_a_scalar():
    assert Plain().reward_spec() == TensorSpec(()) and Plain().reset().reward.shape == ()
    with ParallelAlfEnvironment([Plain] * 2, tensors=False, backend="serial") as env:
        env.reset()
        assert env.step(np.zeros(2, np.float32)).reward.tolist() == [1.0, 1.0]


class PrivateAttributes(Plain):
    """Has private attributes whose names the interface does not reserve."""

    _current = 7

    def _step(self, action):
        self._current += 1
        return super()._step(action)


def test_environment_may_define_its_own_current_time_step():
    env = PrivateAttributes()
    assert env.step(np.float32(0)).is_first() and env.step(np.float32(0)).is_mid() and env._current == 8


@pytest.mark.parametrize(
    "make",
    [
        Plain,
        lambda: ParallelAlfEnvironment([Plain] * 2, tensors=False, backend="serial"),
        lambda: BatchEnvironmentWrapper([Plain()]),
        lambda: ThreadEnvironment(Plain, tensors=False),
    ],
)
def test_current_time_step_is_none_before_the_first(make):
    with make() as env:
        assert env.current_time_step() is None and env.get_info() is None
        first = env.reset()
        assert env.current_time_step() is first and env.get_info() == {}


def test_single_environment_is_not_batched():
    assert not Plain().batched and Plain().batch_size == 1


class Remembers(Plain):
    state_names = ("kept",)

    def __init__(self):
        self.kept = []


def test_get_state_returns_a_copy():
    env, twin = Remembers(), Remembers()
    env.kept.append(1)
    state = env.get_state()
    env.kept.append(2)
    twin.set_state(state)
    twin.kept.append(3)
    assert state["kept"] == [1] and twin.kept == [1, 3]
