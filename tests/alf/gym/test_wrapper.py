"""AlfGymWrapper: flags, infos, dtypes and seeds; it calls nothing before the first reset."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.alf.comparison import Alternating, toy
from tests.scripted import Ding, Plain, Scripted
from vecenv.alf import AlfEnvironmentBaseWrapper, AlfGymWrapper, FrameSkip, ParallelAlfEnvironment, TensorSpec
from vecenv.envs.toys import CountEnv, ToyEnv


def episode(env, action=0):
    steps = [env.reset()]
    while not steps[-1].is_last():
        steps.append(env.step(action))
    return steps


# ---- the table -----------------------------------------------------------------------------------


def test_time_out_signalled_by_the_env_is_not_a_termination():
    """W43: truncated and not terminated is LAST with discount 1."""
    last = episode(toy(truncate=True))[-1]
    assert last.is_last() and last.discount == 1.0
    last = episode(toy())[-1]
    assert last.is_last() and last.discount == 0.0


def test_truncated_and_terminated_together_is_a_termination():
    env = AlfGymWrapper(Alternating())
    ends = [episode(env, np.zeros(2))[-1] for _ in range(5)]
    assert [float(end.discount) for end in ends] == [0.0, 1.0, 0.0, 1.0, 0.0]


def test_old_env_time_limit_info_is_truncation():
    assert episode(AlfGymWrapper(Plain(timeout=True)))[-1].discount == 1.0
    last = episode(AlfGymWrapper(Plain()))[-1]
    assert last.discount == 0.0 and "TimeLimit.truncated" not in last.env_info


def test_episode_from_first_to_last():
    steps = episode(toy(length=3), 1)
    assert [int(step.step_type) for step in steps] == [0, 1, 1, 2]
    assert [float(step.reward) for step in steps] == [0.0, 1.0, 1.0, 1.0]
    assert [float(step.discount) for step in steps] == [1.0, 1.0, 1.0, 0.0]
    assert [int(step.prev_action) for step in steps] == [0, 1, 1, 1]


def test_own_discount_is_on_every_step_during_an_episode():
    env = AlfGymWrapper(ToyEnv(2, truncate=True), discount=0.9)
    assert [float(step.discount) for step in episode(env)] == pytest.approx([1.0, 0.9, 1.0])


def test_step_before_any_reset_and_after_the_end_resets():
    env = toy(length=1)
    assert env.step(1).is_first()
    assert env.step(1).is_last()
    assert env.done and env.step(1).is_first() and not env.done


def test_step_after_the_end_is_refused_without_auto_reset():
    env = AlfGymWrapper(ToyEnv(1), auto_reset=False)
    env.reset()
    env.step(0)
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(0)
    assert env.reset().is_first()


def test_current_time_step_before_the_first_is_none():
    env = toy()
    assert env.current_time_step() is None and env.get_info() is None
    first = env.reset()
    assert env.current_time_step() is first and env.get_info() == {}


class RewardsOfOne(ToyEnv):
    """Its rewards are arrays of one number without a reward_space."""

    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, np.array([reward]), *rest


@pytest.mark.parametrize("wrap", [False, True])
def test_reward_of_shape_one_does_not_make_a_batch(wrap):
    def make(env_id=0):
        env = AlfGymWrapper(RewardsOfOne(3), env_id)
        return AlfEnvironmentBaseWrapper(env) if wrap else env

    env = make()
    env.reset()
    step = env.step(1)
    assert step.reward.shape == step.step_type.shape == step.env_id.shape == () and step.reward == 1.0
    with ParallelAlfEnvironment([make] * 2, tensors=False, backend="serial") as both:
        both.reset()
        assert both.step(np.ones(2, np.int64)).reward.tolist() == [1.0, 1.0]


# ---- specs -----------------------------------------------------------------------------------------


class Untouchable(gymnasium.Env):
    """Fails at every call; zero is outside the bounds of its actions."""

    observation_space = spaces.Box(0.0, 1.0, (3,), np.float64)
    action_space = spaces.Box(1.0, 2.0, (2,), np.float64)
    reward_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, **kwargs):
        raise AssertionError("reset was called")

    def step(self, action):
        raise AssertionError("step was called")


def test_constructor_neither_resets_nor_steps_the_env():
    """W44: specs come from the spaces alone."""
    env = AlfGymWrapper(Untouchable())
    spec = env.time_step_spec()
    assert spec.observation == env.observation_spec() and spec.prev_action.minimum == 1.0
    assert env.reward_spec().shape == (2,) and env.env_info_spec() == {}


def test_declared_info_is_in_every_step_and_late_keys_are_kept():
    """W44: an info that comes late or never does not change the declared ones."""

    class Teller(ToyEnv):
        info_space = spaces.Dict(score=spaces.Box(0.0, 9.0, (), np.float64), lives=spaces.Discrete(4))

        def make_info(self):
            return {"score": 2.5, "late": "x"} if self.elapsed_steps == 2 else {}

    env = AlfGymWrapper(Teller(3))
    assert env.env_info_spec()["score"] == AlfGymWrapper(Teller(3)).env_info_spec()["score"]
    infos = [step.env_info for step in episode(env)]
    assert [float(info["score"]) for info in infos] == [0.0, 0.0, 2.5, 0.0]
    assert [int(info["lives"]) for info in infos] == [0] * 4
    assert [info.get("late") for info in infos] == [None, None, "x", None]


def test_info_numbers_become_arrays():
    env = AlfGymWrapper(CountEnv(2))
    env.seed(5)
    env.reset()
    info = env.step(0).env_info
    assert {key: value.dtype.name for key, value in info.items()} == dict.fromkeys(info, "int64")
    assert env.get_info() == {"steps": 1, "episode": 1, "seed": 5}


def test_wrapper_declares_its_infos():
    env = AlfGymWrapper(FrameSkip(FrameSkip(ToyEnv(9), 2), 2))
    assert env.env_info_spec().keys() == {"num_env_frames"}
    assert env.reset().env_info["num_env_frames"] == 0
    assert env.step(0).env_info["num_env_frames"] == 4


def test_observations_have_the_dtype_of_their_spec_and_own_memory():
    env = AlfGymWrapper(Alternating())
    first = env.reset()
    assert first.observation["a"].dtype == np.float32 and first.observation["z"].dtype == np.int64
    reused = np.zeros(2, np.float32)
    env = AlfGymWrapper(Scripted([reused] * 3))
    step = env.reset()
    reused[:] = 7
    assert not step.observation.any()


def test_ding_env_is_accepted():
    env = AlfGymWrapper(Ding({"length": 2}))
    assert env.reward_spec().shape == (1,)
    last = episode(env)[-1]
    assert last.reward.tolist() == [1.0] and last.reward.dtype == np.float32 and last.discount == 0.0


def test_float64_info_spec_becomes_float32():
    assert TensorSpec((), np.float32).dtype == np.float32
    env = AlfGymWrapper(Alternating())
    env.reset()
    assert env.step(np.zeros(2)).env_info["half"].dtype == np.float32


# ---- further -----------------------------------------------------------------------------------------


def test_pending_seed_reaches_the_next_reset_without_time_steps():
    env = AlfGymWrapper(CountEnv())
    gym_env = env.as_gym_env()
    env.seed(7)
    assert [gym_env.reset(seed=seed)[1]["seed"] for seed in (None, 8, None)] == [7, 8, 8]
    env.seed(7)
    assert gym_env.reset(seed=9)[1]["seed"] == 9 and gym_env.reset()[1]["seed"] == 9


def test_seed_applies_to_the_next_reset_only():
    inner = CountEnv(2)
    env = AlfGymWrapper(inner)
    env.seed(7)
    env.reset()
    assert inner.seed_given == 7
    env.reset()
    assert inner.seed_given == 7 and inner.episode == 2
    with pytest.raises(ValueError, match="seed"):
        env.seed(-1)


def test_public_attributes_of_the_env_are_reached():
    env = toy(length=8)
    assert env.length == 8 and env.gym.length == 8
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = env.nothing
    with pytest.raises(AttributeError, match="_private"):
        _ = env._private


def test_rendering_in_another_mode_is_an_error_with_advice():
    env = AlfGymWrapper(gymnasium.make("CartPole-v1"))
    with pytest.raises(RuntimeError, match="render_mode='rgb_array'"):
        env.render("rgb_array")
    env.close()


def test_wrapper_is_a_single_env_of_arrays_and_a_context_manager():
    env = toy()
    with env as entered:
        assert entered is env
    assert not env.batched and env.batch_size == 1 and not env.is_tensor_based and env.num_tasks == 1
    assert env.task_names == ["ToyEnv"] and env.metadata == {"render_modes": []}


def test_batched_env_without_batch_size_is_an_error():
    class Half(AlfGymWrapper):
        @property
        def batched(self):
            return True

    with pytest.raises(RuntimeError, match="batch_size"):
        _ = Half(ToyEnv(3)).batch_size
