"""Wrappers of time steps: limits, discounts, actions, batches, tasks."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest

from tests.alf.comparison import VectorReward, assert_same, counting, toy
from tests.alf.gym.test_wrapper import episode
from tests.scripted import Scripted
from vecenv.alf import (
    ActionObservationWrapper,
    AlfEnvironmentBaseWrapper,
    AlfGymWrapper,
    AtariTerminalOnLifeLossWrapper,
    BatchedTensorWrapper,
    BatchEnvironmentWrapper,
    CurriculumWrapper,
    DiscreteActionWrapper,
    MultitaskWrapper,
    NonEpisodicAgent,
    NormalizedActionWrapper,
    RandomFirstEpisodeLength,
    ScalarRewardWrapper,
    TemporallyCorrelatedNoiseWrapper,
    TensorWrapper,
    TimeLimit,
    load,
)
from vecenv.envs.state.state import SNAPSHOTTER, uncovered_layers
from vecenv.envs.toys import ToyEnv
from vecenv.errors import ConfigError
from vecenv.wrappers.base import own_generator


class Echo(Scripted):
    """Observes its last action, over `length` steps."""

    def __init__(self, length=100, low=0.0, high=10.0, shape=(2,)):
        from gymnasium import spaces

        actions = spaces.Box(low, high, shape, np.float32)
        super().__init__([np.zeros(shape, np.float32)] * (length + 1), actions=actions)

    def step(self, action):
        assert action in self.action_space
        _, *rest = super().step(action)
        return np.asarray(action, np.float32), *rest


# ---- the base and the limit --------------------------------------------------------------------------


def test_base_wrapper_forwards_everything_but_private_names():
    inner = toy(length=3)
    env = AlfEnvironmentBaseWrapper(inner)
    assert env.wrapped_env() is inner and env.length == 3
    assert env.time_step_spec() == inner.time_step_spec() and env.task_names == ["ToyEnv"]
    with pytest.raises(AttributeError, match="private"):
        _ = env._seed
    env.seed(1)
    for mine, theirs in zip(episode(env), _seeded_episode(toy(length=3), 1), strict=True):
        assert_same(mine, theirs)
    assert env.get_info() == {}
    env.sync_progress()
    env.close()


def _seeded_episode(env, seed):
    env.seed(seed)
    return episode(env)


@pytest.mark.parametrize(("length", "steps", "discount"), [(10, 3, 1.0), (3, 3, 0.0), (2, 2, 0.0)])
def test_time_limit_truncates_and_a_termination_stays_one(length, steps, discount):
    env = TimeLimit(toy(length=length), 3)
    for _ in range(2):  # the second episode has its own step count
        found = episode(env)
        assert len(found) == steps + 1 and found[-1].discount == discount
    assert env.step(0).is_first(), "the step after the end begins an episode"


def test_time_limit_one_short_truncates_an_env_with_its_own_end():
    last = episode(TimeLimit(toy(length=5), 4))[-1]
    assert last.discount == 1.0


def test_time_limit_of_wrong_type_is_refused():
    with pytest.raises(AssertionError, match="batch of 2"):
        TimeLimit(BatchEnvironmentWrapper([toy(), toy()]), 3)
    with pytest.raises(ValueError, match="at least 1"):
        TimeLimit(toy(), 0)
    for duration in (2.5, "3", None):
        with pytest.raises(ConfigError, match=f"^duration: expected a whole number of at least 1, got {duration!r}"):
            TimeLimit(toy(), duration)
    assert TimeLimit(BatchEnvironmentWrapper([toy()]), 3).duration == 3


@pytest.mark.parametrize(
    "wrap",
    [
        AlfEnvironmentBaseWrapper,
        lambda env: TimeLimit(env, 5),
        lambda env: RandomFirstEpisodeLength(env, 5),
        lambda env: DiscreteActionWrapper(env, 5),
        NonEpisodicAgent,
        ActionObservationWrapper,
        ScalarRewardWrapper,
        NormalizedActionWrapper,
        TemporallyCorrelatedNoiseWrapper,
        CurriculumWrapper,
        TensorWrapper,
        BatchedTensorWrapper,
        lambda env: BatchEnvironmentWrapper([toy(), env]),
        lambda env: MultitaskWrapper([env], ["a"]),
    ],
)
@pytest.mark.parametrize("env", [None, ToyEnv()], ids=["None", "a Gymnasium env"])
def test_non_alf_environment_is_refused_with_advice(wrap, env):
    with pytest.raises(
        ConfigError, match=f": expected an AlfEnvironment, got {re.escape(repr(env))}; AlfGymWrapper makes"
    ):
        wrap(env)


@pytest.mark.parametrize(
    "wrap",
    [lambda env: RandomFirstEpisodeLength(env, 5), TemporallyCorrelatedNoiseWrapper, AtariTerminalOnLifeLossWrapper],
)
def test_single_env_wrappers_refuse_a_batch(wrap):
    with pytest.raises(ConfigError, match=": expected one env, got a batch; wrap each env instead"):
        wrap(BatchEnvironmentWrapper([AlfGymWrapper(Echo()), AlfGymWrapper(Echo())]))


def test_alf_environment_is_not_wrapped_twice():
    with pytest.raises(ConfigError, match="^gym_env: is an AlfEnvironment already"):
        AlfGymWrapper(toy())


@pytest.mark.parametrize(
    ("key", "value"), [("env_id", "x"), ("env_id", -1), ("discount", "x"), ("discount", None), ("auto_reset", "no")]
)
def test_gym_wrapper_refuses_wrong_arguments(key, value):
    with pytest.raises(ConfigError, match=f"^{key}: expected .*, got {value!r}$"):
        AlfGymWrapper(ToyEnv(), **{key: value})


def test_time_limit_step_before_any_reset_resets():
    env = TimeLimit(toy(length=9), 2)
    assert [int(env.step(0).step_type) for _ in range(5)] == [0, 1, 2, 0, 1]


def test_time_limit_of_a_batch_of_one_of_tensors():
    torch = pytest.importorskip("torch")
    env = TimeLimit(BatchedTensorWrapper(toy(length=9)), 2)
    env.reset()
    action = torch.zeros(1, dtype=torch.int64)
    assert env.step(action).is_mid().tolist() == [True]
    step = env.step(action)
    assert step.is_last().tolist() == [True] and step.step_type.dtype == torch.int32 and step.discount.tolist() == [1]


# ---- episodes ------------------------------------------------------------------------------------------


def test_non_episodic_agent_sees_no_termination():
    last = episode(NonEpisodicAgent(toy()))[-1]
    assert last.is_last() and last.discount == 1.0 and last.discount.dtype == np.float32
    assert episode(NonEpisodicAgent(toy(), 0.5))[-1].discount == 0.5
    with pytest.raises(ConfigError, match="^discount: expected a number, got 'x'$"):
        NonEpisodicAgent(toy(), "x")


def test_random_first_episode_ends_apply_to_the_first_episode_only():
    env = RandomFirstEpisodeLength(toy(length=50), 20, num_episodes=2)
    env.seed(3)
    lengths = [len(episode(env)) - 1 for _ in range(4)]
    assert all(1 <= length <= 20 for length in lengths[:2]) and lengths[2:] == [50, 50]
    again = RandomFirstEpisodeLength(toy(length=50), 20, num_episodes=2)
    again.seed(3)
    assert [len(episode(again)) - 1 for _ in range(4)] == lengths
    others = set()
    for seed in range(8):
        env = RandomFirstEpisodeLength(toy(length=50), 20)
        env.seed(seed)
        others.add(len(episode(env)))
    assert len(others) > 2
    with pytest.raises(ValueError, match="a batch"):
        RandomFirstEpisodeLength(BatchEnvironmentWrapper([toy()]), 3)


def test_previous_action_is_observed():
    env = ActionObservationWrapper(toy())
    spec = env.observation_spec()
    assert spec["prev_action"] == env.action_spec() and env.time_step_spec().observation == spec
    first, second = env.reset(), env.step(1)
    assert int(first.observation["prev_action"]) == 0 and int(second.observation["prev_action"]) == 1
    assert second.observation["observation"].shape == (4,)


def test_reward_vector_is_weighted():
    env = ScalarRewardWrapper(VectorReward(), [0.5, 2.0])
    assert env.reward_spec().shape == () and env.time_step_spec().reward.shape == ()
    env.reset()
    step = env.step({"move": np.int64(3), "push": np.zeros(1, np.float32)})
    assert step.reward == pytest.approx(0.5 * 1 + 2.0 * 3) and step.reward.dtype == np.float32
    assert ScalarRewardWrapper(VectorReward()).reset().reward == 0
    with pytest.raises(ValueError, match="expected a vector"):
        ScalarRewardWrapper(toy())
    with pytest.raises(ValueError, match="expected 2 numbers"):
        ScalarRewardWrapper(VectorReward(), [1.0])


def test_lost_life_has_discount_zero_but_continues_the_episode():
    class Lives(Scripted):
        def reset(self, **kwargs):
            obs, _ = super().reset(**kwargs)
            return obs, {"lives": 3}

        def step(self, action):
            obs, reward, *flags, info = super().step(action)
            return obs, reward, *flags, {"lives": 3 - (self.step_count == 2)}  # a life is lost and then regained

    env = AtariTerminalOnLifeLossWrapper(AlfGymWrapper(Lives([np.zeros(1, np.float32)] * 5)))
    for _ in range(2):
        steps = episode(env)
        assert [float(step.discount) for step in steps] == [1.0, 1.0, 0.0, 1.0, 0.0]
        assert [int(step.step_type) for step in steps] == [0, 1, 1, 1, 2]


# ---- actions -----------------------------------------------------------------------------------------------


def test_normalized_actions_reach_both_ends():
    env = NormalizedActionWrapper(AlfGymWrapper(Echo()))
    assert env.action_spec().minimum == -1 and env.time_step_spec().prev_action == env.action_spec()
    env.reset()
    step = env.step(np.array([-1.0, 1.0], np.float32))
    assert step.observation.tolist() == [0.0, 10.0] and step.prev_action.tolist() == [-1.0, 1.0]
    with pytest.raises(ValueError, match="finite bounds"):
        NormalizedActionWrapper(AlfGymWrapper(Echo(high=np.inf)))


def test_discrete_actions_index_a_grid_that_includes_its_ends():
    env = DiscreteActionWrapper(AlfGymWrapper(Echo()), 3)
    assert env.action_spec().maximum == 8
    first = env.reset()
    assert first.prev_action.dtype == np.int64 and first.prev_action.shape == ()
    seen = [env.step(np.int64(action)).observation.tolist() for action in range(9)]
    assert seen == [[a, b] for a in (0.0, 5.0, 10.0) for b in (0.0, 5.0, 10.0)]
    with pytest.raises(ValueError, match="bounded vector"):
        DiscreteActionWrapper(toy(), 3)


def test_discrete_actions_of_a_batch_of_tensors():
    torch = pytest.importorskip("torch")
    batch = BatchEnvironmentWrapper([AlfGymWrapper(Echo(length=2)), AlfGymWrapper(Echo(length=3))])
    env = DiscreteActionWrapper(TensorWrapper(batch), 3)
    assert env.reset().prev_action.tolist() == [0, 0]
    step = env.step(torch.tensor([0, 8]))
    assert step.observation.tolist() == [[0.0, 0.0], [10.0, 10.0]] and step.prev_action.tolist() == [0, 8]
    env.step(torch.tensor([4, 4]))
    step = env.step(torch.tensor([4, 4]))
    assert step.is_first().tolist() == [True, False] and step.prev_action.tolist() == [0, 4]


def test_noise_lasts_for_two_steps_and_stays_in_bounds():
    def run(seed, **kwargs):
        env = TemporallyCorrelatedNoiseWrapper(AlfGymWrapper(Echo(low=-1.0, high=1.0)), **kwargs)
        env.seed(seed)
        env.reset()
        return np.array([env.step(np.zeros(2, np.float32)).observation for _ in range(60)])

    assert (run(1) == run(1)).all() and (run(1) != run(2)).any()
    assert np.abs(run(1, sigma=5.0)).max() == 1.0

    def lag_one(x):
        return np.corrcoef(x[:-1].ravel(), x[1:].ravel())[0, 1]

    assert lag_one(run(3, sigma=0.1)) > 0.25 > lag_one(run(3, sigma=0.1, past_noise_weight=0.0))
    env = TemporallyCorrelatedNoiseWrapper(AlfGymWrapper(Echo()))
    env.reset()
    step = env.step(np.ones(2, np.float32))
    assert step.prev_action.tolist() == step.observation.tolist() != [1.0, 1.0], "what the env got"


def test_noise_restarts_with_each_episode():
    env = TemporallyCorrelatedNoiseWrapper(AlfGymWrapper(Echo(length=3, low=-9.0, high=9.0)), 0.5)
    env.seed(5)
    env.reset()
    seen = [env.step(np.zeros(2, np.float32)).observation for _ in range(5)]
    a, b, c, d, _, f, g = own_generator(5, "action_noise").normal(0, 0.5, (7, 2))
    np.testing.assert_allclose(seen, [a + b, b + c, c + d, [0, 0], f + g], rtol=1e-6)


@pytest.mark.parametrize("action", [9, -1, 27])
def test_discrete_actions_beyond_the_grid_are_refused(action):
    env = DiscreteActionWrapper(AlfGymWrapper(Echo()), 3)
    env.reset()
    with pytest.raises(ValueError, match=r"expected 0 \.\. 8"):
        env.step(np.int64(action))
    env = DiscreteActionWrapper(BatchEnvironmentWrapper([AlfGymWrapper(Echo())] * 2), 3)
    env.reset()
    with pytest.raises(ValueError, match=r"expected 0 \.\. 8"):
        env.step(np.array([0, action]))


def test_previous_actions_are_separate_arrays_in_the_dtype_of_the_spec():
    env = NormalizedActionWrapper(AlfGymWrapper(Echo()))
    env.reset()
    action = np.array([0.5, -0.5])
    step = env.step(action)
    action[:] = 0
    assert step.prev_action.tolist() == [0.5, -0.5] and step.prev_action.dtype == np.float32
    env = DiscreteActionWrapper(AlfGymWrapper(Echo()), 3)
    env.reset()
    step = env.step(np.uint8(3))
    assert step.prev_action == 3 and step.prev_action.dtype == np.int64 and step.prev_action.shape == ()


# ---- batches and tensors ---------------------------------------------------------------------------------------


def test_batch_of_single_envs_stacks_their_steps():
    batch = BatchEnvironmentWrapper([counting(0), counting(1)])
    singles = [counting(0), counting(1)]
    batch.seed(5)
    for index, env in enumerate(singles):
        env.seed(5 + index)
    assert batch.batched and batch.batch_size == 2
    step, rows = batch.reset(), [env.reset() for env in singles]
    for _ in range(8):
        for index, row in enumerate(rows):
            np.testing.assert_array_equal(step.observation[index], row.observation)
            assert step.step_type[index] == row.step_type and step.env_id[index] == index
            assert step.env_info["steps"][index] == row.env_info["steps"]
        step, rows = batch.step(np.array([0, 1])), [env.step(a) for env, a in zip(singles, (0, 1))]


@pytest.mark.parametrize("several", [BatchEnvironmentWrapper, lambda envs: MultitaskWrapper(envs, ["a", "b", "c"])])
def test_batch_closes_every_env_although_one_raises(several, monkeypatch):
    envs = [toy(), toy(), toy()]
    closed = []
    for number, env in enumerate(envs):
        monkeypatch.setattr(env, "close", functools.partial(_close, number, closed))
    with pytest.raises(OSError, match="of env 1"):
        several(envs).close()
    assert closed == [0, 1, 2]


def _close(number, closed):
    closed.append(number)
    if number == 1:
        raise OSError(f"of env {number}")


def test_batch_of_misfit_envs_is_refused():
    with pytest.raises(ValueError, match="specs differ"):
        BatchEnvironmentWrapper([toy(), toy(num_actions=3)])
    with pytest.raises(ValueError, match="at least one"):
        BatchEnvironmentWrapper([])
    with pytest.raises(ConfigError, match="^envs: expected a list"):
        BatchEnvironmentWrapper(toy())
    with pytest.raises(ValueError, match="single envs"):
        BatchEnvironmentWrapper([BatchEnvironmentWrapper([toy()])])


def test_batch_with_different_infos():
    env = BatchEnvironmentWrapper([VectorReward(0), VectorReward(1)])
    action = {"move": np.array([1, 2]), "push": np.zeros((2, 1), np.float32)}
    env.reset()
    steps = [env.step(action) for _ in range(4)]
    assert "late" not in steps[2].env_info and steps[3].env_info["late"].tolist() == [[0, 1], [0, 1]]
    assert steps[3].reward.tolist() == [[4.0, 1.0], [4.0, 2.0]]


def test_batch_of_one_env_as_tensors():
    torch = pytest.importorskip("torch")
    env = BatchedTensorWrapper(toy())
    assert env.is_tensor_based and env.batched and env.batch_size == 1
    assert env.reset().observation.shape == (1, 4)
    step = env.step(torch.tensor([1]))
    assert step.reward.dtype == torch.float32 and step.prev_action.tolist() == [1]
    with pytest.raises(AssertionError):
        BatchedTensorWrapper(BatchEnvironmentWrapper([toy()]))
    with pytest.raises(AssertionError):
        TensorWrapper(toy())


# ---- tasks -----------------------------------------------------------------------------------------------------------


def tasks(env_id=0):
    return MultitaskWrapper([toy(length=4), toy(length=4, truncate=True)], ["ends", "stops"], env_id)


def test_task_action_selects_the_task_and_a_change_begins_an_episode():
    env = tasks(env_id=3)
    assert env.num_tasks == 2 and env.task_names == ["ends", "stops"]
    assert env.action_spec()["task_id"].maximum == 1
    assert env.reset().prev_action == {"task_id": 0, "action": 0}
    assert env.step({"task_id": 0, "action": 1}).is_mid()
    switched = env.step({"task_id": 1, "action": 1})
    assert switched.is_first() and switched.prev_action["task_id"] == 1 and switched.env_id == 3
    back = [env.step({"task_id": 0, "action": 1}) for _ in range(2)]
    assert back[0].is_first() and back[1].observation[0] == 1, "the episode that was left is not gone on with"
    with pytest.raises(ValueError, match="task_id"):
        env.step({"task_id": 2, "action": 0})


def test_current_task_is_restored_in_a_new_env():
    env, twin = tasks(), tasks()
    env.reset()
    env.step({"task_id": 1, "action": 0})
    SNAPSHOTTER.restore(twin, SNAPSHOTTER.capture(env).state)
    assert twin.reset().prev_action["task_id"] == 1


def test_tasks_must_be_alike_and_have_unique_names():
    with pytest.raises(ValueError, match="different task names"):
        MultitaskWrapper([toy(), toy()], ["same", "same"])
    with pytest.raises(ValueError, match="task b: its specs differ"):
        MultitaskWrapper([toy(), toy(num_actions=5)], ["a", "b"])
    env = MultitaskWrapper.load(load, ["CartPole-v0", "CartPole-v1"], env_id=2)
    assert env.task_names == ["CartPole-v0", "CartPole-v1"] and env.reset().env_id == 2
    env.close()


@pytest.mark.parametrize("cut", [lambda env: TimeLimit(env, 2), lambda env: _cut_after_two(env)])
def test_task_change_is_not_truncated_at_its_first_step(cut):
    """The original keeps counting across tasks; its LAST instead of FIRST would end an episode before it began."""
    env = cut(MultitaskWrapper([toy(length=9), toy(length=9)], ["one", "other"]))
    env.reset()
    types = [int(env.step({"task_id": task, "action": 0}).step_type) for task in (0, 1, 1, 1, 1, 1)]
    assert types == [1, 0, 2, 0, 1, 2]


def _cut_after_two(env):
    env = RandomFirstEpisodeLength(env, 2, num_episodes=2)
    env.seed(
        next(seed for seed in range(99) if own_generator(seed, "first_length").integers(1, 3, 2).tolist() == [2, 2])
    )
    return env


class Learning(AlfEnvironmentBaseWrapper):
    """Its rewards grow from episode to episode, or stay constant."""

    def __init__(self, env, growth):
        super().__init__(env)
        self._growth, self._episode = growth, 0

    def _reset(self):
        self._episode += 1
        return self._env.reset()

    def _step(self, action):
        step = self._env.step(action)
        if step.is_first():
            self._episode += 1
        return step._replace(reward=step.reward * np.float32(self._growth * self._episode))


def test_curriculum_prefers_the_task_with_most_progress():
    envs = [
        MultitaskWrapper([Learning(toy(length=2), 0), Learning(toy(length=2), 1)], ["flat", "rising"]) for _ in range(4)
    ]
    env = CurriculumWrapper(BatchEnvironmentWrapper(envs), current_score_update_rate=0.3, past_score_update_rate=0.05,
                            warmup_period=5, seed=0)  # fmt: skip
    assert env.action_spec() == toy().action_spec()
    first = env.reset()
    assert first.prev_action.shape == (4,) and first.env_info["curriculum_task_prob"]["flat"].tolist() == [0] * 4
    assert env.env_info_spec().keys() >= {"curriculum_task_count", "curriculum_task_score", "curriculum_task_prob"}
    for _ in range(120):
        step = env.step(np.zeros(4, np.int64))
        shown = step.env_info["curriculum_task_prob"]["rising"]
        assert ((shown > 0) == step.is_last()).all(), "told where episodes end"
    assert env.task_probs[1] > 5 * env.task_probs[0] and env.task_probs.sum() == pytest.approx(1)
    with pytest.raises(ValueError, match="multitask"):
        CurriculumWrapper(toy())


def test_curriculum_counts_progress_per_step():
    """Each episode of either task earns one more per step than the episode before."""
    envs = [MultitaskWrapper([Learning(toy(length=1), 1), Learning(toy(length=3), 1)], ["short", "long"])]
    env = CurriculumWrapper(BatchEnvironmentWrapper(envs), current_score_update_rate=1.0, past_score_update_rate=0.5,
                            warmup_period=1, seed=0)  # fmt: skip
    env.reset()
    for _ in range(200):
        env.step(np.zeros(1, np.int64))
    assert env.task_probs == pytest.approx([0.5, 0.5], abs=0.01)


@pytest.mark.parametrize(
    "make",
    [
        toy,
        tasks,
        lambda: BatchEnvironmentWrapper([toy(), toy(length=5)]),
        lambda: RandomFirstEpisodeLength(TimeLimit(toy(length=50), 40), 30, num_episodes=3),
    ],
)
def test_state_across_episodes_moves_to_a_new_env(make):
    """A replacement worker continues from this state."""
    env, twin = make(), make()
    assert uncovered_layers(env) == []
    env.seed(3)
    for _ in range(2):
        env.reset()
    SNAPSHOTTER.restore(twin, SNAPSHOTTER.capture(env).state)
    action = np.zeros(env.batch_size if env.batched else (), np.int64)
    action = {"task_id": np.int64(1), "action": action} if make is tasks else action
    assert_same(env.reset(), twin.reset())
    for _ in range(40):
        assert_same(env.step(action), twin.step(action))


def test_curriculum_state_moves_to_a_new_env():
    def make():
        return CurriculumWrapper(BatchEnvironmentWrapper([tasks(), tasks()]), warmup_period=2, seed=0)

    env, twin = make(), make()
    assert uncovered_layers(env) == []
    action = np.zeros(2, np.int64)
    env.reset()
    for _ in range(30):
        env.step(action)
    SNAPSHOTTER.restore(twin, SNAPSHOTTER.capture(env).state)
    assert_same(env.reset(), twin.reset())
    for _ in range(30):
        assert_same(env.step(action), twin.step(action))
