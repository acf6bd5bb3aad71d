"""The check of envs: good envs, and one faulty env for each rule."""

from __future__ import annotations

import contextlib
import copy
import pickle
import random

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.scripted import Ding, Plain, numbers_env
from vecenv import CheckError, check_all
from vecenv.ding import (
    ActionRepeatWrapper,
    ClipRewardWrapper,
    DingEnvWrapper,
    EvalEpisodeReturnWrapper,
    FrameStackWrapper,
    ObsNormWrapper,
    ObsPlusPrevActRewWrapper,
    check_array_space,
    check_different_memory,
    check_obs_deepcopy,
    check_reset,
    check_space_dtype,
    check_step,
    demonstrate_correct_procedure,
)
from vecenv.envs.base import BaseEnvTimestep
from vecenv.values.nested import equal


def rules(error):
    return {violation.rule for violation in error.value.violations}


class Images(Ding):
    def __init__(self, cfg=None):
        super().__init__(cfg)
        self.observation_space = spaces.Box(0, 255, (2, 2, 3), np.uint8)

    def reset(self):
        super().reset()
        return np.zeros((2, 2, 3), np.uint8)

    def step(self, action):
        return super().step(action)._replace(obs=np.zeros((2, 2, 3), np.uint8))


@pytest.mark.extended
@pytest.mark.parametrize(
    "make",
    [
        Ding,
        Images,
        Plain,
        lambda: gymnasium.make("CartPole-v1"),
        lambda: DingEnvWrapper(cfg={"env_id": "CartPole-v1"}),
        lambda: DingEnvWrapper(gymnasium.make("Pendulum-v1")),
    ],
)
def test_good_envs_pass(make):
    env = make()
    check_all(env, episodes=1)
    env.close()


def test_check_reports_each_part():
    lines = []
    check_all(Ding(), spawn=False, report=lines.append)
    assert lines == ["reset: ok", "spaces: ok", "step: ok", "aliasing: ok", "determinism: ok"]


def test_check_prints_nothing(capsys):
    check_all(Ding(), spawn=False)
    assert capsys.readouterr() == ("", "")


class ManyViolations(Ding):
    """Breaks all rules that one env can break."""

    def __init__(self, cfg=None):
        super().__init__(cfg)
        self.observation_space = spaces.Box(0.0, 1.0, (2,), np.float64)
        self.buffer = np.zeros(2, np.float32)
        self.generator = (number for number in ())

    def reset(self):
        self._count = 0
        return self.buffer

    def step(self, action):
        self._count += 1
        self.buffer[:] = random.random()
        return BaseEnvTimestep(self.buffer, 1.0, np.bool_(self._count >= 3), {"eval_episode_return": "one"})


def test_violations_are_collected_in_one_error():
    with pytest.raises(AssertionError) as error:
        check_all(ManyViolations())
    assert {"dtype", "reward", "done", "score", "aliasing", "determinism", "pickling"} <= rules(error)
    assert all(str(violation) in str(error.value) for violation in error.value.violations)


def test_violation_error_pickles_and_copies():
    with pytest.raises(CheckError) as error:
        check_all(ManyViolations(), spawn=False)
    for twin in (pickle.loads(pickle.dumps(error.value)), copy.copy(error.value)):
        assert twin.violations == error.value.violations and str(twin) == str(error.value)
    assert CheckError("m").violations == ()


@pytest.mark.parametrize("dtype, good", [(np.float32, True), (np.float64, False), (np.int64, True), (np.int32, False)])
def test_space_dtypes_are_checked(dtype, good):
    env = Ding()
    env.observation_space = spaces.Dict({"a": spaces.Tuple([spaces.Box(0, 5, (2,), dtype)])})
    if good:
        check_space_dtype(env)
    else:
        with pytest.raises(AssertionError, match="observation_space/a/0: expected"):
            check_space_dtype(env)


@pytest.mark.parametrize("low, good", [(0, True), (-1, False)])
def test_int8_is_allowed_for_masks_only(low, good):
    env = Ding()
    env.observation_space = spaces.Box(low, 1, (2,), np.int8)
    with contextlib.nullcontext() if good else pytest.raises(AssertionError, match="expected int64"):
        check_space_dtype(env)


def test_w37_uint8_images_are_allowed():
    check_space_dtype(Images())
    check_array_space(np.zeros((2, 2), np.uint8), spaces.Box(0, 255, (2, 2), np.uint8), "image")


def test_nan_equals_nan():
    nan = np.array([1.0, np.nan])
    assert equal({"a": (nan, np.nan)}, {"a": (nan.copy(), float("nan"))}) and not equal(nan, nan[::-1])


def test_missing_space_is_a_violation():
    env = Ding()
    env.reward_space = None
    with pytest.raises(AssertionError, match="reward_space is missing"):
        check_space_dtype(env)


@pytest.mark.parametrize(
    "data, space",
    [
        (np.zeros(2, np.float32), spaces.Box(-1, 1, (2,))),
        (2, spaces.Discrete(3)),
        (np.array([4]), spaces.Discrete(3, start=2)),
        ({"a": 1}, {"a": spaces.Discrete(2)}),
        ((1, np.ones(1, np.float32)), spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (1,))])),
        ([0, 1], [spaces.Discrete(2), spaces.Discrete(2)]),
        ("text", spaces.Text(10)),
    ],
)
def test_fitting_data_pass(data, space):
    check_array_space(data, space, "data")


@pytest.mark.parametrize(
    "data, space, says",
    [
        (np.zeros(2), spaces.Box(-1, 1, (2,)), "expected float32 .2,., got float64 .2,."),
        (np.zeros(3, np.float32), spaces.Box(-1, 1, (2,)), "shape"),
        (np.full(2, 3, np.float32), spaces.Box(-1, 1, (2,)), "between -1 and 1, got 3 to 3"),
        ({"a": 5}, spaces.Dict({"a": spaces.Discrete(2)}), "data/a: expected 0 to 1, got 5"),
        ({"b": 1}, spaces.Dict({"a": spaces.Discrete(2)}), "expected a dict of"),
        ((1,), spaces.Tuple([spaces.Discrete(2)] * 2), "expected a tuple of 2"),
        (1.5, spaces.Discrete(2), "expected an integer"),
        (0.5, spaces.Box(0, 1, (1,)), "expected an array"),
        (np.array([5]), spaces.MultiDiscrete([3]), "is not in"),
        (5, spaces.Text(3), "is not in"),
    ],
)
def test_misfit_data_are_violations(data, space, says):
    with pytest.raises(AssertionError, match=says):
        check_array_space(data, space, "data")


@pytest.mark.parametrize("value, start", [(3, 0), (1, 2), (5, 2), (-1, 0)])
def test_w37_discrete_bounds_are_exact(value, start):
    with pytest.raises(AssertionError, match="bounds"):
        check_array_space(np.array([value]), spaces.Discrete(3, start=start), "action")


@pytest.mark.parametrize("space", [spaces.Box(0, 1, (1,)), spaces.Discrete(2)])
def test_data_of_other_types_are_type_errors(space):
    with pytest.raises(TypeError):
        check_array_space(object(), space, "data")


@pytest.mark.parametrize("data", [1, 0.5, np.float32(1), "ab", None])
@pytest.mark.parametrize(
    "space",
    [
        {"a": spaces.Box(0, 1, (1,))},
        spaces.Dict({"a": spaces.Discrete(2)}),
        [spaces.Discrete(2)] * 2,
        spaces.Tuple([spaces.Discrete(2)]),
    ],
    ids=["dict", "Dict", "list", "Tuple"],
)
def test_data_without_parts_are_a_type_error_for_a_nested_space(data, space):
    with pytest.raises(TypeError, match="x: expected a sequence or a dict, got"):
        check_array_space(data, space, "x")


def test_number_for_a_dict_space_is_a_violation():
    env = Ding()
    env.observation_space = spaces.Dict({"a": spaces.Discrete(2)})
    env.reset = lambda: 1
    with pytest.raises(CheckError, match="expected a dict of"):
        check_reset(env)


def test_reset_is_checked():
    env = Ding()
    check_reset(env)
    env.observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)
    with pytest.raises(AssertionError, match="observation of reset: expected float32"):
        check_reset(env)


class Answers(Ding):
    """A BaseEnv with one part of its timestep replaced."""

    def __init__(self, **parts):
        super().__init__()
        self.parts = parts

    def step(self, action):
        return super().step(action)._replace(**self.parts)


@pytest.mark.parametrize(
    "parts, rule",
    [
        ({"obs": np.full(2, 9, np.float32)}, "bounds"),
        ({"reward": 1.0}, "reward"),
        ({"reward": np.array(1.0, np.float32)}, "reward"),
        ({"reward": np.full(1, 7, np.float32)}, "bounds"),
        ({"done": np.bool_(True), "info": {"eval_episode_return": 1.0}}, "done"),
        ({"done": 1, "info": {"eval_episode_return": 1.0}}, "done"),
        ({"done": True, "info": {}}, "score"),
        ({"done": True, "info": {"eval_episode_return": "1.0"}}, "score"),
        ({"done": True, "info": {"eval_episode_return": None}}, "score"),
        ({"done": True, "info": {"eval_episode_return": np.array(["1.0"])}}, "score"),
        ({"obs": None}, "step"),  # it counted as abnormal, so the check skipped it
    ],
)
def test_step_is_checked(parts, rule):
    with pytest.raises(CheckError) as error:
        check_step(Answers(**parts))
    assert rules(error) == {rule} and len(error.value.violations) == 1


@pytest.mark.parametrize("score", [1, 1.5, np.float32(1.5), np.array([1.5], np.float32), np.ones(2)])
def test_score_may_be_an_array(score):
    """DI-engine's own demo env and its wrapper for scores give float32 (1,)."""
    check_step(Answers(done=True, info={"eval_episode_return": score}))


def test_abnormal_timestep_needs_no_observation():
    check_step(Answers(obs=None, reward=None, info={"abnormal": True}))


def test_w37_endless_episode_is_found():
    with pytest.raises(AssertionError, match="episode 0 did not end within 20 steps"):
        check_step(Answers(done=False), max_steps=20)


def test_check_actions_vary():
    seen = []

    class Watching(Ding):
        def step(self, action):
            seen.append(int(action[0]))
            return super().step(action)

    check_step(Watching({"length": 20}))
    assert set(seen) == {0, 1}


def test_w37_views_of_one_buffer_share_memory():
    buffer = np.zeros(4)
    with pytest.raises(AssertionError, match="share memory"):
        check_different_memory(buffer[:2], buffer[1:3], 0)
    check_different_memory(buffer[:2], buffer[2:], 0)
    check_different_memory({"a": (np.zeros(1), 1)}, {"a": (np.zeros(1), 1)}, 0)
    with pytest.raises(AssertionError, match="obs.*/a/0: share memory"):
        check_different_memory({"a": (buffer, 1)}, {"a": (buffer, 1)}, 0)


def test_different_memory_needs_arrays_of_one_type():
    with pytest.raises(AssertionError, match="types differ"):
        check_different_memory(np.zeros(1), [0.0], 3)
    with pytest.raises(TypeError):
        check_different_memory(object(), object(), 3)


@pytest.mark.parametrize("one, two", [(1, 2), (0.5, 0.5), (np.int64(1), np.int64(1)), ("a", "a"), (None, None)])
def test_different_memory_of_plain_values_is_a_type_error_only_when_called_directly(one, two):
    with pytest.raises(TypeError, match="around step -1: expected arrays or containers"):
        check_different_memory(one, two, -1)
    check_different_memory({"to_play": one, "a": np.zeros(1)}, {"to_play": two, "a": np.zeros(1)}, -1)


def test_number_observations_share_no_memory():
    env = Ding()
    env.reset = lambda: 1
    env.step = lambda action: BaseEnvTimestep(1, np.zeros(1, np.float32), True, {})
    check_obs_deepcopy(env)


@pytest.mark.parametrize(
    "one, two, says",
    [
        ({"a": np.zeros(1)}, {"b": np.zeros(1)}, r"obs.*: keys differ, \['a'\] and \['b'\]"),
        ({"a": np.zeros(1)}, {"a": np.zeros(1), 2: np.zeros(1)}, r"keys differ, \['a'\] and \['2', 'a'\]"),
        ([np.zeros(1)], [np.zeros(1), np.zeros(1)], "lengths differ, 1 and 2"),
        ((np.zeros(1), np.zeros(1)), (np.zeros(1),), "lengths differ, 2 and 1"),
        ({"a": (np.zeros(1),)}, {"a": ()}, "/a: lengths differ, 1 and 0"),
    ],
    ids=["keys", "more keys", "longer", "shorter", "inside"],
)
def test_different_memory_needs_one_structure(one, two, says):
    """It raised KeyError, or surplus parts were not checked."""
    with pytest.raises(AssertionError, match=says):
        check_different_memory(one, two, 3)


@pytest.mark.parametrize("done, kind", [(np.bool_(True), r"np\.bool_"), (1, "int"), (None, "NoneType")])
def test_done_of_wrong_type_is_named(done, kind):
    """NumPy calls its type `bool`, too: 'expected bool, got bool'."""
    with pytest.raises(CheckError, match=rf"done: expected bool, got {kind}"):
        check_step(Answers(done=done, info={"eval_episode_return": 1.0}), max_steps=3)


def test_obs_deepcopy_check_covers_an_episode():
    check_obs_deepcopy(Ding())
    with pytest.raises(AssertionError, match="share memory"):
        check_obs_deepcopy(ManyViolations())


def test_observation_changed_in_the_next_step_is_found():
    class Changes(Ding):
        def reset(self):
            self.last = super().reset()
            return self.last

        def step(self, action):
            self.last += 0.1
            timestep = super().step(action)
            self.last = timestep.obs
            return timestep

    with pytest.raises(AssertionError, match="was changed by that step"):
        check_obs_deepcopy(Changes())


class WritesInTurn(Ding):
    """Has several arrays and writes each observation into the least recently used one."""

    config = {"length": 20}
    count = 2

    def __init__(self, cfg=None):
        super().__init__(cfg)
        self.arrays = [np.zeros(2, np.float32) for _ in range(self.count)]

    def fill(self, obs):
        array = self.arrays[self._count % self.count]
        array[:] = obs
        return array

    def reset(self):
        return self.fill(super().reset())

    def step(self, action):
        timestep = super().step(action)
        return timestep._replace(obs=self.fill(timestep.obs / (1 + self._count)))


@pytest.mark.parametrize("count", [2, 3, 8])
def test_observation_buffers_in_rotation_are_found(count):
    env = WritesInTurn()
    env.arrays, env.count = [np.zeros(2, np.float32) for _ in range(count)], count
    with pytest.raises(AssertionError, match=f"observations {count} steps apart, at step {count - 1}: share memory"):
        check_obs_deepcopy(env)


def test_observation_changed_many_steps_later_is_found():
    class Changes(WritesInTurn):
        def step(self, action):
            timestep = super().step(action)
            return timestep._replace(obs=np.array(timestep.obs))

    env = Changes()
    with pytest.raises(AssertionError, match="the observation 2 steps before step 1 was changed by that step"):
        check_obs_deepcopy(env)


@pytest.mark.parametrize("obs", [np.array([2]), np.array([[2]])], ids=str)
@pytest.mark.parametrize("nested", [False, True])
def test_discrete_observation_in_an_array_is_found(obs, nested):
    """A manager expects int64 of shape () and refuses it at launch."""
    space = spaces.Discrete(5)
    env = Answers(done=True, info={"eval_episode_return": 1.0})
    env.observation_space = spaces.Dict({"a": spaces.Tuple([space])}) if nested else space
    env.reset = lambda: {"a": (obs,)} if nested else obs
    where = "/a/0" if nested else ""
    with pytest.raises(CheckError, match=f"shape: observation of reset{where}: expected an integer of shape"):
        check_reset(env)
    env.reset = lambda: {"a": (2,)} if nested else np.int64(2)
    check_reset(env)


WRAPPERS = [
    ActionRepeatWrapper,
    ClipRewardWrapper,
    EvalEpisodeReturnWrapper,
    FrameStackWrapper,
    ObsNormWrapper,
    ObsPlusPrevActRewWrapper,
]


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_gymnasium_envs_in_wrappers_without_a_spec_pass(wrap):
    env = wrap(gymnasium.make("CartPole-v1"))
    check_all(env, episodes=1, spawn=False)
    env.close()


def test_gymnasiums_checker_messages_are_reported():
    class Forgets(gymnasium.Wrapper):
        def reset(self, *, seed=None, options=None):
            return self.env.reset(options=options)

    env = EvalEpisodeReturnWrapper(Forgets(gymnasium.make("CartPole-v1")))
    with pytest.raises(CheckError) as error:
        check_all(env, episodes=1, spawn=False)
    assert "gymnasium" in rules(error)
    env.close()


def test_env_that_ignores_its_seed_is_found():
    class Unseeded(Ding):
        def reset(self):
            super().reset()
            return np.random.default_rng().random(2).astype(np.float32)

    with pytest.raises(CheckError) as error:
        check_all(Unseeded(), spawn=False)
    assert rules(error) == {"determinism"}


def test_env_that_does_not_pickle_is_found():
    env = Ding()
    env.stream = (number for number in ())
    with pytest.raises(CheckError) as error:
        check_all(env)
    assert rules(error) == {"pickling"} and "generator" in str(error.value)


def test_gymnasiums_checker_runs():
    class Unseeded(type(numbers_env())):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=None, options=options)

    with pytest.raises(CheckError) as error:
        check_all(Unseeded([np.zeros(1, np.float32)] * 4), spawn=False)
    assert "gymnasium" in rules(error) and "env_checker" in str(error.value)


def test_env_that_raises_is_a_violation():
    class Raises(Ding):
        def step(self, action):
            raise ZeroDivisionError("oops")

    with pytest.raises(CheckError, match="ZeroDivisionError raised: oops"):
        check_all(Raises(), spawn=False)


def test_demonstrate_correct_procedure():
    lines = []
    demonstrate_correct_procedure(Ding, lines.append)
    assert len(lines) == 5


def _without_a_seed(self, cfg=None):
    Ding.__init__(self, cfg)
    del self._seed


@pytest.mark.parametrize(
    "fault, rule",
    [
        ({"_env": 1}, "reset"),
        ({"seed": lambda self, seed: setattr(self, "_seed", 0)}, "seed"),
        ({"__init__": _without_a_seed, "seed": lambda self, seed: None}, "seed"),
        ({"step": lambda self, action: BaseEnvTimestep(0, 0, True, {})}, "score"),
        ({"step": lambda self, action: BaseEnvTimestep(0, 0, False, {})}, "endless"),
        ({"reset": lambda self: None}, "reset"),
    ],
)
def test_demonstrate_wrong_procedure(fault, rule):
    with pytest.raises(CheckError) as error:
        demonstrate_correct_procedure(type("Wrong", (Ding,), fault), max_steps=20)
    assert rules(error) == {rule}
