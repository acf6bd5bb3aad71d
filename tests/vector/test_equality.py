"""Over many episodes, VectorEnv gives the same results as `gymnasium.vector.SyncVectorEnv`."""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.spaces import ALL_SPACES
from tests.vector.comparison import assert_same
from tests.vector.test_batched import GivesOptions, HasGenerator
from vecenv import BatchedVectorEnv, VectorEnv
from vecenv.envs.toys import AliasedObs, CountEnv, KeepsAction, SpaceEnv, ToyEnv
from vecenv.values.nested import flatten

NUM_ENVS = 3
MODES = [pytest.param(mode, id=mode.value) for mode in AutoresetMode]
BACKENDS = ["serial", "process"]


def compare(make_env, *, backend, mode, num_steps=14, seed: Any = 5, options=None, **kwargs):
    """Step both with the same actions from the same seeds and compare every result."""
    env_fns = make_env if isinstance(make_env, list) else [make_env] * NUM_ENVS
    sync_kwargs = {key: value for key, value in kwargs.items() if key in ("copy", "observation_mode")}
    with (
        contextlib.closing(SyncVectorEnv(env_fns, autoreset_mode=mode, **sync_kwargs)) as theirs,
        contextlib.closing(VectorEnv(env_fns, backend=backend, autoreset_mode=mode, **kwargs)) as ours,
    ):
        assert ours.observation_space == theirs.observation_space
        assert ours.action_space == theirs.action_space
        assert ours.single_observation_space == theirs.single_observation_space
        assert ours.single_action_space == theirs.single_action_space
        assert ours.metadata == theirs.metadata
        actions = copy.deepcopy(ours.action_space)
        actions.seed(3)
        assert_same(ours.reset(seed=seed, options=options), theirs.reset(seed=seed, options=options), "reset")
        for i in range(num_steps):
            action = actions.sample()
            result = ours.step(action)
            assert_same(result, theirs.step(action), f"step {i}")
            ended = result[2] | result[3]
            if mode == AutoresetMode.DISABLED and ended.any():
                mask = {"reset_mask": ended}
                assert_same(ours.reset(options=dict(mask)), theirs.reset(options=dict(mask)), f"reset after step {i}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ALL_SPACES)
def test_spaces_as_observation_and_action(name, mode):
    space = ALL_SPACES[name]
    envs = [functools.partial(SpaceEnv, space, space, length=length) for length in (1, 3, 4)]
    compare(envs, backend="serial", mode=mode, num_steps=50)


@pytest.mark.extended
@pytest.mark.parametrize("mode", MODES)
def test_spaces_all_at_once_through_processes(mode, implementation):
    space = Dict(ALL_SPACES)
    envs = [functools.partial(SpaceEnv, space, space, length=length) for length in (2, 3, 5)]
    compare(envs, backend="process", mode=mode, num_steps=25, num_workers=2)


FIXED = Tuple((Discrete(5, start=-2), Dict(a=Box(0, 255, (2, 3), np.uint8), b=MultiBinary(3)), Box(-1, 1, ())))
MIXED = Dict({name: ALL_SPACES[name] for name in ("text", "graph", "sequence", "one_of", "discrete", "tuple_nested")})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("space", [FIXED, MIXED], ids=["fixed", "mixed"])
def test_nested_spaces_through_processes(space, mode, implementation):
    envs = [functools.partial(SpaceEnv, space, space, length=length) for length in (3, 4, 5)]
    compare(envs, backend="process", mode=mode, num_workers=2)


class Custom(gymnasium.Space):
    """A space class that Gymnasium does not know: pairs of a letter and a set."""

    def __init__(self, seed=None):
        super().__init__(None, None, seed)

    def sample(self, mask=None, probability=None):
        number = int(self.np_random.integers(5))
        return "abcde"[number], set(range(number))

    def contains(self, x):
        return isinstance(x, tuple)

    def __eq__(self, other):
        return isinstance(other, Custom)

    __hash__ = None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_custom_space_equals_gymnasium(backend, mode, implementation):
    compare(functools.partial(SpaceEnv, Custom(), length=3), backend=backend, mode=mode)


class Note:
    """An observation that is neither an array nor a container."""

    def __init__(self):
        self.steps = 0


class NoteEnv(gymnasium.Env):
    """Observes one note and modifies it at every step."""

    observation_space, action_space = Custom(), Discrete(2)

    def __init__(self):
        self.note = Note()

    def reset(self, *, seed=None, options=None):
        self.note.steps = 0
        return (self.note,), {}

    def step(self, action):
        self.note.steps += 1
        return (self.note,), 0.0, self.note.steps == 2, False, {}


@pytest.mark.parametrize("backend", BACKENDS)
def test_final_observation_objects_are_not_modified(backend, implementation):
    with contextlib.closing(VectorEnv([NoteEnv], backend=backend, autoreset_mode="SameStep")) as envs:
        envs.reset(seed=0)
        envs.step([0])
        obs, _, _, _, infos = envs.step([0])
        assert obs[0][0].steps == 0 and infos["final_obs"][0][0].steps == 2


class IntsEnv(gymnasium.Env):
    """Returns the observations of a list, whose Discrete parts are ints or NumPy's integers."""

    action_space = Discrete(2)

    def __init__(self, space, *values):
        self.observation_space, self.values = space, values

    def reset(self, *, seed=None, options=None):
        return self.values[0], {}

    def step(self, action):
        return self.values[1], 0.0, True, False, {}


INTS = {
    "int": (Discrete(9), 0, 2),
    "integer of NumPy": (Discrete(9), np.int64(0), np.int64(2)),
    "tuple": (
        Tuple([Discrete(9), Box(0, 1, (1,), np.float32)]),
        (0, np.zeros(1, np.float32)),
        (2, np.ones(1, np.float32)),
    ),
    "dict": (Dict(a=Discrete(9), b=Discrete(9)), {"a": 0, "b": 0}, {"a": 2, "b": 3}),
    "converted": (Tuple([Discrete(9), Box(0, 1, (1,), np.float32)]), (0, np.zeros(1)), (2, np.ones(1))),
}


@pytest.mark.filterwarnings("ignore:.*converted")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", INTS)
def test_final_observations_keep_ints(form, backend, implementation):
    """They were integers of NumPy."""
    env_fns = [functools.partial(IntsEnv, *INTS[form])] * 2
    kinds = []
    for make in (SyncVectorEnv, functools.partial(VectorEnv, backend=backend)):
        with contextlib.closing(make(env_fns, autoreset_mode="SameStep")) as envs:
            envs.reset()
            finals = envs.step([0, 0])[4]["final_obs"]
            kinds.append([type(leaf) for final in finals for leaf in flatten(final)])
    assert kinds[0] == kinds[1]


class GradReward:
    """A number like a tensor with a gradient: it converts to float but not to an array."""

    def __array__(self, *args, **kwargs):
        raise RuntimeError("can't be an array, it requires grad")

    def __float__(self):
        return 0.5


@pytest.mark.parametrize("backend", BACKENDS)
def test_reward_that_is_a_number_but_not_an_array(backend, implementation):
    class Env(ToyEnv):
        def step(self, action):
            obs, _, *rest = super().step(action)
            return obs, GradReward(), *rest

    with contextlib.closing(VectorEnv([Env], backend=backend)) as envs:
        envs.reset(seed=0)
        assert envs.step([0])[1].tolist() == [0.5]


@pytest.mark.parametrize("found", [np.array([-1.0, 0.0, 1.0]), "sparse", (-1, 1)], ids=["array", "word", "range"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_reward_space_attribute_need_not_be_a_space(backend, found):
    """Gymnasium does not define this attribute."""

    class Env(ToyEnv):
        reward_space = found

    with contextlib.closing(VectorEnv([Env] * 2, backend=backend)) as envs:
        envs.reset(seed=0)
        assert envs.step([0, 0])[1].shape == (2,)


class InfoEnv(ToyEnv):
    """Gives infos of every type; their keys differ from step to step and from env to env."""

    def make_info(self):
        draw = int(self.np_random.integers(8))
        info: dict[str, Any] = {"steps": self.elapsed_steps, "half": self.elapsed_steps / 2}
        if draw & 1:
            info.update(small=np.float32(0.1 * draw), tiny=np.uint8(draw), is_odd=True, is_numpy=np.bool_(draw > 3))
        if draw & 2:
            info.update(array=np.arange(draw), name=f"env {draw}", nothing=None)
            info["array"] = np.full((2, 2), draw, np.int16)
        if draw & 4:
            info["nested"] = {"draw": draw, "deep": {"half": draw / 2, "text": "x" * draw}}
        return info if draw else {}


class ScalarInfoEnv(ToyEnv):
    """Gives infos of numbers only, which use columns; some steps have fewer keys."""

    def make_info(self):
        draw = int(self.np_random.integers(4))
        info = {"steps": self.elapsed_steps, "half": self.elapsed_steps / 2, "flag": draw > 1, "one": np.float32(draw)}
        info.update(numpy_flag=np.bool_(draw > 1), byte=np.uint8(draw))
        return {key: info[key] for key in list(info)[draw:]} if draw != 1 else {}


class EndInfoEnv(ToyEnv):
    """Gives numbers at every step and a dict at the last one, like Gymnasium's statistics."""

    def make_info(self):
        info: dict[str, Any] = {"lives": 3, "frame": self.elapsed_steps}
        if self.length is not None and self.elapsed_steps >= self.length:
            info["episode"] = {"r": float(self.action_sum), "l": self.elapsed_steps, "t": 0.5}
        return info


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("env_class", [InfoEnv, ScalarInfoEnv, EndInfoEnv, CountEnv], ids=lambda cls: cls.__name__)
def test_infos_equal_gymnasium(env_class, backend, mode):
    envs = [functools.partial(env_class, length=length) for length in (3, 5, 4, 7)]
    compare(envs, backend=backend, mode=mode, num_steps=40)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_env_that_reuses_its_buffer_equals_gymnasium(backend, mode, implementation):
    class Theirs(AliasedObs):  # SyncVectorEnv does not copy final observations
        def observe(self):
            return super().observe().copy()

    env_fns = [functools.partial(AliasedObs, length) for length in (3, 4)]
    references = [functools.partial(Theirs, length) for length in (3, 4)]
    with (
        contextlib.closing(SyncVectorEnv(references, autoreset_mode=mode)) as theirs,
        contextlib.closing(VectorEnv(env_fns, backend=backend, autoreset_mode=mode)) as ours,
    ):
        assert_same(ours.reset(seed=1), theirs.reset(seed=1))
        for _ in range(3 if mode == AutoresetMode.DISABLED else 12):
            assert_same(ours.step([1, 0]), theirs.step([1, 0]))


class ReusesInfo(ToyEnv):
    """Gives the same dict with the same array at every step."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.kept = {"clock": np.zeros(2)}

    def make_info(self):
        self.kept["clock"] += 1
        return self.kept


@pytest.mark.parametrize("backend", BACKENDS)
def test_final_infos_precede_the_reset(backend, implementation):
    compare(functools.partial(ReusesInfo, length=3), backend=backend, mode=AutoresetMode.SAME_STEP)


def test_final_keys_are_in_gymnasiums_order():
    with contextlib.closing(VectorEnv([functools.partial(ToyEnv, length=1)], autoreset_mode="SameStep")) as envs:
        envs.reset(seed=0)
        ends = [key for key in envs.step([0])[4] if "final" in key]
    assert ends == ["final_obs", "_final_obs", "final_info", "_final_info"]


@pytest.mark.parametrize("vector_env", [VectorEnv, BatchedVectorEnv])
def test_gymnasiums_vector_env_is_a_direct_base_class(vector_env):
    """skrl looks at the direct base classes only."""
    assert gymnasium.vector.VectorEnv in vector_env.__bases__


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", [None, 0, [4, None, 9], np.int64(3)], ids=["none", "int", "list", "numpy"])
def test_seeds_equal_gymnasium(seed, mode):
    seed = int(seed) if isinstance(seed, np.integer) else seed
    compare(functools.partial(HasGenerator, length=4), backend="process", mode=mode, seed=seed)


@pytest.mark.parametrize("backend", BACKENDS)
def test_options_reach_the_envs(backend):
    compare(GivesOptions, backend=backend, mode=AutoresetMode.NEXT_STEP, options={"level": 3})
    options = {"reset_mask": np.array([True] * 3), "level": 4}
    compare(GivesOptions, backend=backend, mode=AutoresetMode.DISABLED, options=options)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_partial_resets_at_any_time(backend, mode, implementation):
    rng = np.random.default_rng(4)
    env_fns = [functools.partial(CountEnv, length) for length in (2, 3, 4, 9)]
    with (
        contextlib.closing(SyncVectorEnv(env_fns, autoreset_mode=mode)) as theirs,
        contextlib.closing(VectorEnv(env_fns, backend=backend, autoreset_mode=mode)) as ours,
    ):
        assert_same(ours.reset(seed=1), theirs.reset(seed=1))
        ended = np.zeros(4, np.bool_)
        for i in range(60):
            mask = rng.random(4) < 0.3
            if mode == AutoresetMode.DISABLED:
                mask |= ended
            if mask.any():
                seed = [int(seed) if seed < 50 else None for seed in rng.integers(0, 100, 4)]
                results = [envs.reset(seed=seed, options={"reset_mask": mask.copy()}) for envs in (ours, theirs)]
                assert_same(*results, f"reset before step {i}")
            results = [envs.step(np.zeros(4, np.int64)) for envs in (ours, theirs)]
            assert_same(*results, f"step {i}")
            ended = results[0][2] | results[0][3]


@pytest.mark.extended
def test_observation_mode_different():
    def make(high):
        return SpaceEnv(Dict(a=Box(0, high, (2,), np.float32), b=Discrete(high)), length=3)

    envs = [functools.partial(make, high) for high in (2, 3, 4)]
    for backend in BACKENDS:
        compare(envs, backend=backend, mode=AutoresetMode.NEXT_STEP, observation_mode="different")


def test_observation_mode_of_given_spaces():
    single, batched = Box(0, 9, (2,), np.float32), Box(0, 9, (3, 2), np.float32)
    envs = [functools.partial(SpaceEnv, Box(0, high, (2,), np.float32), length=3) for high in (2, 3, 4)]
    compare(envs, backend="serial", mode=AutoresetMode.SAME_STEP, observation_mode=(batched, single))


@pytest.mark.extended
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["CartPole-v1", "Blackjack-v1", "Acrobot-v1", "Pendulum-v1"])
def test_gymnasiums_own_envs_give_equal_results(name, mode):
    make = functools.partial(gymnasium.make, name, max_episode_steps=12)
    compare(make, backend="process", mode=mode, num_steps=60)


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_worker_count_does_not_change_results(num_workers):
    envs = [functools.partial(CountEnv, length) for length in (3, 4, 5, 6, 7)]
    compare(envs, backend="process", mode=AutoresetMode.NEXT_STEP, num_workers=num_workers)


def test_threads_do_not_change_results():
    envs = [functools.partial(CountEnv, length) for length in (3, 4, 5, 6)]
    compare(envs, backend="process", mode=AutoresetMode.NEXT_STEP, num_workers=2, threads_per_worker=2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["discrete", "box_float32", "multi_discrete", "dict", "tuple", "text"])
def test_actions_arrive_as_gymnasium_passes_them(name, backend):
    compare(functools.partial(KeepsAction, ALL_SPACES[name], length=4), backend=backend, mode=AutoresetMode.NEXT_STEP)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_byte_order_of_numbers_is_converted(backend, implementation):
    order = ">" if sys.byteorder == "little" else "<"
    space = Box(-1, 1, (2,), np.dtype(f"{order}f4"))
    env_fns = [functools.partial(SpaceEnv, space, length=4)] * 2
    with (
        contextlib.closing(VectorEnv(env_fns, backend=backend)) as ours,
        contextlib.closing(SyncVectorEnv(env_fns)) as theirs,
    ):
        ours.reset(seed=3)
        theirs.reset(seed=3)
        for _ in range(6):
            np.testing.assert_array_equal(ours.step([0, 1])[0], theirs.step([0, 1])[0])


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_final_observations_without_axes_are_arrays(backend, implementation):
    space = Dict(a=Box(-1, 1, (), np.float32), b=Discrete(3))
    env_fns = [functools.partial(SpaceEnv, space, length=2)] * 2
    with contextlib.closing(VectorEnv(env_fns, backend=backend, autoreset_mode="SameStep")) as envs:
        envs.reset(seed=3)
        envs.step([0, 0])
        for final in envs.step([0, 0])[4]["final_obs"]:
            assert isinstance(final["a"], np.ndarray) and final["a"].shape == ()
            assert final in space
