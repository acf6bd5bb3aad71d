"""Envs of every API, adapted by `adapt`."""

from __future__ import annotations

import copy
import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.inside import seed_of
from tests.scripted import Ding, Plain, numbers_env
from vecenv import ConfigError, SpaceError, StateError, VectorEnv
from vecenv.ding import DingEnvWrapper, GymToGymnasiumWrapper
from vecenv.envs.adapt import AdaptedEnv, adapt, adapt_and_build, convert_space, ensure_spaces, find_attr, original
from vecenv.envs.base import BaseEnvTimestep
from vecenv.envs.seeding import episode_seed
from vecenv.envs.step_formats import AGENTS, is_abnormal, read_flags, to_timestep


@pytest.mark.parametrize("make", [numbers_env, lambda: gymnasium.make("CartPole-v1")])
def test_gymnasium_env_is_returned_unchanged(make):
    env = make()
    assert adapt(env) is env and original(adapt(env)) is env


@pytest.mark.parametrize("make", [Plain, Ding, lambda: GymToGymnasiumWrapper(numbers_env(3))])
def test_old_envs_get_the_gymnasium_api(make):
    env = adapt(make())
    assert isinstance(env, gymnasium.Env)
    obs, info = env.reset(seed=3, options={"ignored": True})
    assert isinstance(obs, np.ndarray) and info == {}
    for last in (False, False, True):
        obs, _reward, terminated, truncated, info = env.step(0)
        assert (terminated, truncated) == (last, False)
        assert info["terminated"] is last and info["truncated"] is False
    assert obs in env.observation_space


def test_original_env_is_reachable_with_its_attributes():
    plain = Plain()
    env = adapt(plain)
    assert original(env) is plain and env.unwrapped is plain
    assert env.flavour == "vanilla" and env.length == 3
    with pytest.raises(AttributeError):
        _ = env.no_such_thing
    env.close()
    assert plain.closed


def test_adapted_env_pickles_and_copies_without_endless_recursion():
    for env in (pickle.loads(pickle.dumps(adapt(Plain()))), copy.deepcopy(adapt(Plain()))):
        assert env.flavour == "vanilla"
    with pytest.raises(AttributeError):
        _ = AdaptedEnv.__new__(AdaptedEnv).flavour


def test_w8_truncation_is_not_lost():
    env = adapt(Plain(length=1, timeout=True))
    env.reset()
    _, _, terminated, truncated, info = env.step(0)
    assert (terminated, truncated) == (False, True) and info["TimeLimit.truncated"] is True


@pytest.mark.parametrize(
    "done, info, flags",
    [
        (False, {}, (False, False)),
        (True, {}, (True, False)),
        (np.True_, {}, (True, False)),
        (True, {"TimeLimit.truncated": True}, (False, True)),
        (True, {"TimeLimit.truncated": False}, (True, False)),
        (True, {"truncated": True}, (False, True)),
        (True, {"truncated": True, "terminated": True}, (True, True)),
        (True, {"truncated": False, "terminated": False}, (True, False)),
        (False, {"truncated": True}, (False, False)),
        (np.array([True, False]), {}, (False, False)),
        (np.array([True, True]), {}, (True, False)),
        (None, {"abnormal": True}, (False, False)),
        (True, {"truncated": np.array([True])}, (False, True)),
        (True, {"truncated": "no"}, (True, False)),
    ],
)
def test_flags_of_old_envs(done, info, flags):
    assert read_flags(done, info) == flags


LIMIT = {"TimeLimit.truncated": True}


@pytest.mark.parametrize(
    "done, info, flags",
    [
        (np.array([True, True]), {"truncated": np.array([True, True])}, (False, True)),
        (np.array([True, True]), {"truncated": np.array([True, False])}, (True, False)),
        ([True, True], {"truncated": [True, True], "terminated": (False, False)}, (False, True)),
        ([True, False], {}, (False, False)),
        ({"a": False, "b": False}, {}, (False, False)),
        ({"a": True, "b": False}, {}, (False, False)),
        ({"a": True, "b": True}, {}, (True, False)),
        ({"a": True, "b": np.array([True])}, {"truncated": {"a": True, "b": True}}, (False, True)),
        ({"a": True, "__all__": False}, {}, (False, False)),
        ({"a": False, "__all__": True}, {}, (True, False)),
        ({"a": True, "b": True}, {"a": LIMIT, "b": LIMIT}, (False, True)),
        ({"a": True, "b": True}, {"a": LIMIT, "b": {"TimeLimit.truncated": False}}, (True, False)),
        (True, {"agent_infos": [LIMIT, LIMIT]}, (False, True)),
        (True, {"agent_infos": [LIMIT, {}]}, (False, True)),
        (True, {"agent_infos": 2}, (True, False)),
        (True, {"agent_infos": [LIMIT, LIMIT], "truncated": False}, (False, True)),
        (True, {"agent_infos": [{"terminated": True}, {"terminated": True}]}, (True, False)),
    ],
)
def test_flags_of_several_agents(done, info, flags):
    assert read_flags(done, info) == flags


@pytest.mark.parametrize("done", ["yes", {"a": "yes"}, {}, [None, True], object], ids=repr)
def test_done_of_wrong_type_is_a_type_error(done):
    with pytest.raises(TypeError, match="done: expected a bool"):
        read_flags(done, {})


def test_time_out_in_agent_infos_truncates_the_episode():
    class Team(Plain):
        def step(self, action):
            obs, reward, done, info = super().step(action)
            return obs, reward, [done, done], [info, info]

    env = adapt(Team(length=1, timeout=True))
    env.reset()
    _, _, terminated, truncated, info = env.step(0)
    assert (terminated, truncated) == (False, True)
    assert (info["terminated"], info["truncated"], info["TimeLimit.truncated"]) == (False, True, True)


class FiveValues(Plain):
    """A plain object with the new API."""

    def reset(self, seed=None):
        self.seeds.append(seed)
        self.count = 0
        return np.zeros(1, np.float32), {"fresh": True}

    def step(self, action):
        obs, reward, done, info = super().step(action)
        return obs, reward, done, False, info


def test_plain_object_with_the_new_api():
    env = adapt(FiveValues())
    assert env.reset()[1] == {"fresh": True}
    assert env.step(0)[1:4] == (1.0, False, False)


def test_agent_flags_with_the_new_api():
    class Team(FiveValues):
        def step(self, action):
            obs, reward, done, truncated, info = super().step(action)
            return obs, reward, {"a": done, "b": True}, {"a": truncated, "b": False}, info

    env = adapt(Team(length=2))
    env.reset()
    assert [env.step(0)[2:4] for _ in range(2)] == [(False, False), (True, False)]


def test_old_class_that_derives_from_gymnasiums_is_recognised():
    class OldOverGymnasium(gymnasium.Env):
        observation_space = spaces.Discrete(2)
        action_space = spaces.Discrete(2)

        def reset(self):
            return 0

        def step(self, action):
            return 1, 0.0, True, {}

    env = adapt(OldOverGymnasium())
    assert env.reset(seed=1) == (0, {})
    assert env.step(0)[2:4] == (True, False)


def test_tuple_observation_is_not_taken_for_obs_and_info():
    class Pairs(Plain):
        def __init__(self):
            super().__init__()
            self.observation_space = spaces.Tuple([spaces.Discrete(2), spaces.Dict({"a": spaces.Discrete(2)})])

        def reset(self):
            return 1, {"a": 0}

    assert adapt(Pairs()).reset() == ((1, {"a": 0}), {})


def test_tuple_observation_with_an_info_is_split():
    class Pairs(Plain):
        def __init__(self):
            super().__init__()
            self.observation_space = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)])

        def reset(self):
            return (0, 1), {"level": 2}

    assert adapt(Pairs()).reset() == ((0, 1), {"level": 2})


def test_reset_info_of_a_base_env_is_passed_on():
    env = Ding()
    env.reset_info = {"level": 3}
    assert adapt(env).reset()[1] == {"level": 3}


def test_reset_parameters_reach_the_env():
    env = Ding()
    adapt(env).reset(options={"a": 1}, level=2)
    assert env.reset_kwargs == {"options": {"a": 1}, "level": 2}


def test_seeds_of_a_base_env_go_to_its_seed_method():
    env = Ding()
    adapted = adapt(env)
    adapted.seed(5, False)
    assert seed_of(env) == (5, False)
    adapted.reset(seed=8)
    assert seed_of(env)[0] == 8


class RecordsSeeds(Ding):
    """Records the seeds and the way that each one came."""

    def __init__(self):
        super().__init__()
        self.given = []

    def seed(self, seed, dynamic_seed=True):
        self.given.append(("seed", seed))

    def reset(self, seed=None):
        self.given.append(("reset", seed))
        return super().reset()


def test_seed_reaches_a_reset_that_accepts_it_and_lasts_one_episode():
    """It went to `seed` and started another sequence for all later episodes."""
    env = RecordsSeeds()
    adapted = adapt(env)
    adapted.seed(5, False)
    adapted.reset(seed=8)
    adapted.reset()
    assert env.given == [("seed", 5), ("reset", 8), ("reset", None)]


def test_seed_of_one_reset_replaces_that_episodes_seed():
    class NoSeedMethod(RecordsSeeds):
        seed = None

    env = NoSeedMethod()
    adapted = adapt(env)
    adapted.seed(5, True)
    for seed in (None, 8, None):
        adapted.reset(seed=seed)
    assert env.given == [("reset", episode_seed(5, 0)), ("reset", 8), ("reset", episode_seed(5, 2))]


def test_action_space_of_a_base_env_is_not_seeded():
    def drawn_by(env):
        env.action_space.seed(1)
        adapt(env).seed(5)
        return [env.action_space.sample() for _ in range(20)]

    own, seeded = (spaces.Discrete(2, seed=seed) for seed in (1, 5))
    assert drawn_by(Ding()) == [own.sample() for _ in range(20)]
    assert drawn_by(Plain()) == [seeded.sample() for _ in range(20)]


def test_seeds_of_an_old_env_by_episode():
    plain = Plain()
    env = adapt(plain)
    env.seed(5, True)
    env.reset()
    env.reset()
    env.seed(6, False)
    env.reset()
    env.reset()
    env.seed(7)
    env.reset()
    env.reset()
    assert plain.seeds == [episode_seed(5, 0), episode_seed(5, 1), 6, 6, 7]


def test_env_without_a_seed_method_is_seeded_at_reset():
    class NoSeed(FiveValues):
        seed = None

    plain = NoSeed()
    env = adapt(plain)
    env.reset(seed=4)
    env.reset()
    assert plain.seeds == [4, None]


def test_bad_seed_is_a_config_error():
    with pytest.raises(ConfigError):
        adapt(Plain()).seed(-1)


def step_with(info, obs=None, done=None):
    class Answers(Ding):
        def step(self, action):
            return BaseEnvTimestep(obs, None, done, info)

    env = adapt(Answers())
    env.reset()
    return env.step(0)


def test_abnormal_timestep_passes_through():
    obs, reward, terminated, truncated, info = step_with({"abnormal": True})
    assert (obs, reward, terminated, truncated) == (None, None, False, False) and info["abnormal"] is True


def test_missing_observation_is_marked_abnormal():
    assert step_with({})[4]["abnormal"] is True


@pytest.mark.parametrize("info", [[{"abnormal": True}], ({}, {}, {"abnormal": True})])
def test_w28_lists_of_infos_of_any_length(info):
    out = step_with(info)[4]
    assert out["abnormal"] is True and out["agent_infos"] == list(info)
    assert is_abnormal(info) and not is_abnormal([{}]) and not is_abnormal(None)


@pytest.mark.parametrize("kind", [list, tuple])
def test_info_sequence_type_is_recorded(kind):
    class Answers(Ding):
        def step(self, action):
            return BaseEnvTimestep(np.zeros(2), None, False, kind([{}, {}]))

    for asks in (False, True):
        env = adapt(Answers())
        env.notes_agents = asks
        env.reset()
        info = env.step(0)[4]
        assert info["agent_infos"] == [{}, {}] and info.get(AGENTS) == ((kind is tuple) if asks else None)


def test_other_infos_are_type_errors():
    with pytest.raises(TypeError, match="info: expected a dict"):
        step_with("info")


def test_envs_own_info_is_not_modified():
    info = {}
    step_with(info, obs=np.zeros(2), done=True)
    assert info == {}


@pytest.mark.parametrize("result", [(1, 2, 3), 5, None])
def test_unknown_step_form_is_an_error_that_names_the_expected(result):
    class Odd(Plain):
        def step(self, action):
            return result

    env = adapt(Odd())
    env.reset()
    with pytest.raises(TypeError, match="step: expected"):
        env.step(0)


def test_step_before_reset_is_a_state_error():
    with pytest.raises(StateError, match="before its first reset"):
        adapt(Plain()).step(0)


def test_adapt_refuses_objects_that_are_not_envs():
    with pytest.raises(TypeError, match="not an env: it has no reset"):
        adapt(object())


def test_to_timestep_marks_both_flags_in_a_copy():
    info = {"a": 1}
    timestep = to_timestep(1, 2.0, np.False_, np.True_, info)
    assert timestep.done is True and info == {"a": 1}
    assert timestep.info == {"a": 1, "terminated": False, "truncated": True, "TimeLimit.truncated": True}
    assert to_timestep(1, 2.0, True, True, {}).info["TimeLimit.truncated"] is False


def test_ensure_spaces_resets_a_lazy_env_once():
    env = adapt(DingEnvWrapper(cfg={"env_id": "CartPole-v1"}))
    assert env.observation_space is None
    ensure_spaces(env)
    assert env.observation_space.shape == (4,)
    env.close()


def test_ensure_spaces_lets_other_errors_through():
    class Broken(Plain):
        @property
        def action_space(self):
            raise ZeroDivisionError

        @action_space.setter
        def action_space(self, value):
            pass

    with pytest.raises(ZeroDivisionError):
        ensure_spaces(adapt(Broken()))


def test_ensure_spaces_raises_when_there_are_none():
    class Spaceless(Plain):
        def __init__(self):
            super().__init__()
            del self.action_space

    with pytest.raises(SpaceError, match="missing, also after a reset"):
        ensure_spaces(adapt(Spaceless()))


@pytest.mark.parametrize("lazy", [False, True])
def test_env_without_spaces_is_closed(lazy):
    """The adapter alone holds this env; an exception of its `close` must not replace the SpaceError."""

    class Spaceless(Plain):
        num_closes = 0

        def __init__(self):
            super().__init__()
            del self.action_space

        def reset(self, **reset_param):
            if lazy:
                raise LookupError("nothing to build it from")
            return super().reset(**reset_param)

        def close(self):
            Spaceless.num_closes += 1
            raise OSError("cannot be closed")

    with pytest.raises(LookupError if lazy else SpaceError):
        adapt_and_build(Spaceless())
    assert Spaceless.num_closes == 1


def test_refused_vector_env_is_closed():
    envs = gymnasium.vector.SyncVectorEnv([numbers_env])
    with pytest.raises(TypeError, match="is a vector env"):
        adapt_and_build(envs)
    assert envs.closed


class OldSpaces:
    """Its class names are those of the old package."""

    Box = type("Box", (), {"low": np.zeros(2), "high": np.ones(2), "shape": (2,), "dtype": np.float32})
    Discrete = type("Discrete", (), {"n": 3})
    MultiBinary = type("MultiBinary", (), {"n": 3})
    MultiDiscrete = type("MultiDiscrete", (), {"nvec": [2, 3], "dtype": np.int64})


def test_spaces_of_old_gym_become_gymnasiums():
    old_dict = type("Dict", (), {"spaces": {"a": OldSpaces.Discrete()}})()
    old_tuple = type("Tuple", (), {"spaces": [OldSpaces.Box(), old_dict]})()
    converted = convert_space(old_tuple)
    assert converted == spaces.Tuple([spaces.Box(0, 1, (2,)), spaces.Dict({"a": spaces.Discrete(3)})])
    assert convert_space(OldSpaces.MultiBinary()) == spaces.MultiBinary(3)
    assert convert_space(OldSpaces.MultiDiscrete()) == spaces.MultiDiscrete([2, 3])
    with pytest.raises(TypeError, match="expected a Gymnasium space"):
        convert_space(3)


@pytest.mark.parametrize("name", ["observation_space", "action_space", "reward_space"])
def test_missing_space_is_named(name):
    class Env:
        observation_space, action_space = spaces.Box(0, 1, (2,)), spaces.Discrete(2)

        def reset(self, *, seed=None, options=None): ...

        def step(self, action): ...

    setattr(Env, name, (-1, 1))
    with pytest.raises(SpaceError, match=f"^{name}: expected a Gymnasium space, got builtins.tuple$"):
        getattr(adapt(Env()), name)


def test_find_attr_looks_through_layers():
    inner = numbers_env()
    inner.special = 5
    env = gymnasium.wrappers.TimeLimit(gymnasium.wrappers.OrderEnforcing(inner), 5)
    assert find_attr(env, "special") == 5 and find_attr(env, "absent", "default") == "default"


def test_render_passes_the_old_argument():
    class Renders(Plain):
        def render(self, mode="human"):
            return mode

    assert adapt(Renders()).render() == "rgb_array"


@pytest.mark.parametrize("given, shown", [({"render_fps": 9}, {"render_fps": 9}), ("none of the kind", {}), (None, {})])
def test_metadata_of_wrong_type_are_tolerated(given, shown):
    """`GymVectorEnvManager` and `VectorEnv` raised TypeError: 'str' object is not a mapping."""

    class Described(Plain):
        metadata = given

    assert adapt(Described()).metadata == shown
    with VectorEnv([Described], backend="serial") as envs:
        assert envs.metadata.items() >= shown.items()
