"""`make_vec` has the signature of `gymnasium.make_vec`."""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import types

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import TimeAwareObservation, TimeLimit

from vecenv import ConfigError, VectorEnv, make_vec, register_vec
from vecenv.envs.toys import ToyEnv


@pytest.fixture
def make():
    with contextlib.ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(contextlib.closing(make_vec(*args, **kwargs)))


@pytest.fixture
def registered():
    gymnasium.register("VecenvToy-v0", entry_point=ToyEnv, max_episode_steps=4)
    yield "VecenvToy-v0"
    del gymnasium.registry["VecenvToy-v0"]


def test_make_vec_default(make):
    envs = make("CartPole-v1", 3)
    assert isinstance(envs, VectorEnv) and len(envs.worker_pids) >= 1
    assert repr(envs).startswith("VectorEnv(CartPole-v1, num_envs=3, ")
    assert envs.reset(seed=0)[0].shape == (3, 4)


@pytest.mark.parametrize("mode", ["serial", "sync", gymnasium.VectorizeMode.SYNC])
def test_make_vec_serial(make, mode):
    assert make("CartPole-v1", num_envs=2, vectorization_mode=mode).worker_pids == ()


def test_make_vec_passes_arguments_to_their_place(make):
    envs = make(
        "CartPole-v1",
        num_envs=4,
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP, "num_workers": 1},
        wrappers=(TimeAwareObservation, functools.partial(TimeLimit, max_episode_steps=3)),
        copy=False,
        sutton_barto_reward=True,
        render_mode="rgb_array",
        max_episode_steps=50,
    )
    assert envs.autoreset_mode is AutoresetMode.SAME_STEP and len(envs.worker_pids) == 1 and not envs.copy
    assert envs.render_mode == "rgb_array" and envs.single_observation_space.shape == (5,)
    envs.reset(seed=0)
    _, rewards, _, _, _ = envs.step([0, 1, 0, 1])
    assert rewards.tolist() == [0.0] * 4
    assert envs.call("_sutton_barto_reward") == (True,) * 4


def test_spec_rebuilds_the_vector_env(make):
    envs = make("CartPole-v1", 2, "serial", {"engine": {"depth": 4}}, (TimeAwareObservation,), sutton_barto_reward=True)
    again = make(envs.spec)
    assert again.num_envs == 2 and again.worker_pids == () and again.single_observation_space.shape == (5,)
    assert again.call("_sutton_barto_reward") == (True, True)
    assert again.spec == envs.spec


def test_make_vec_of_an_env_spec(make, registered):
    spec = copy.deepcopy(gymnasium.spec(registered))
    spec.kwargs["length"] = 3
    envs = make(spec, num_envs=2, vectorization_mode="serial")
    envs.reset(seed=0)
    assert [envs.step([0, 0])[2].tolist() for _ in range(3)][-1] == [True, True]
    assert gymnasium.spec(registered).kwargs == {}


@pytest.mark.extended
def test_registration_requirements_are_pickled(make, registered):
    envs = make(registered, num_envs=2)
    envs.reset(seed=0)
    assert [envs.step([0, 0])[3].tolist() for _ in range(4)][-1] == [True, True]


def test_make_vec_imports_a_module_first(make, monkeypatch):
    module = types.ModuleType("vecenv_module_with_envs")
    gymnasium.register("VecenvLate-v0", entry_point=ToyEnv)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    try:
        assert make("vecenv_module_with_envs:VecenvLate-v0", vectorization_mode="serial").num_envs == 1
    finally:
        del gymnasium.registry["VecenvLate-v0"]


@pytest.mark.parametrize(
    "args, kwargs, error, text",
    [
        (["NoSuchEnv-v0"], {}, gymnasium.error.Error, "NoSuchEnv"),
        ([3], {}, gymnasium.error.Error, "expected a name or an EnvSpec"),
        (["CartPole-v1", 0], {}, ConfigError, "num_envs: expected"),
        (["CartPole-v1", 2.5], {}, ConfigError, "num_envs: expected"),
        (["CartPole-v1", 2, "threads"], {}, ConfigError, "vectorization_mode: expected"),
        (["CartPole-v1", 2, gymnasium.VectorizeMode.VECTOR_ENTRY_POINT], {}, ConfigError, "vectorization_mode"),
        (["CartPole-v1"], {"vector_kwargs": {"colour": 1}}, ConfigError, "VectorEnv has no option 'colour'"),
        (["CartPole-v1"], {"vector_kwargs": {5: 1, "a": 2}}, ConfigError, "VectorEnv has no option 5"),
        (["CartPole-v1"], {"no_such_argument": 1}, TypeError, "no_such_argument"),
        (["CartPole-v1", True], {}, ConfigError, "num_envs: expected"),
        (["CartPole-v1", np.int64(0)], {}, ConfigError, "num_envs: expected"),
        (["CartPole-v1"], {"vector_kwargs": 3}, ConfigError, "vector_kwargs: expected a dict, got 3"),
        (["CartPole-v1"], {"wrappers": TimeAwareObservation}, ConfigError, "wrappers: expected a list of callables"),
        (["CartPole-v1"], {"wrappers": [3]}, ConfigError, r"wrappers: expected a list of callables, got \[3\]"),
    ],
)
def test_make_vec_refuses_bad_arguments(args, kwargs, error, text):
    with pytest.raises(error, match=text):
        make_vec(*args, **kwargs)


def test_make_vec_accepts_numpy_numbers(make):
    envs = make("CartPole-v1", np.int64(2), "serial")
    assert envs.num_envs == 2 and type(envs.num_envs) is int


def test_seeds_continue_like_gymnasium(make):
    theirs = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    ours = make("CartPole-v1", num_envs=2)
    assert np.array_equal(ours.reset(seed=3)[0], theirs.reset(seed=3)[0])
    theirs.close()


# ---- by gymnasium.make_vec --------------------------------------------------------------------


@pytest.fixture
def registry():
    before = dict(gymnasium.registry)
    yield gymnasium.registry
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


@pytest.fixture
def make_by_gymnasium(registry):
    with contextlib.ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(contextlib.closing(gymnasium.make_vec(*args, **kwargs)))


def test_gymnasium_make_vec_builds_a_vecenv(make_by_gymnasium):
    name = register_vec("CartPole-v1")
    assert name == register_vec("CartPole-v1") == "vecenv/CartPole-v1"
    envs = make_by_gymnasium(
        name,
        num_envs=3,
        vectorization_mode="vector_entry_point",
        num_workers=2,
        autoreset_mode="SameStep",
        sutton_barto_reward=True,
        max_episode_steps=2,
    )
    assert isinstance(envs, VectorEnv) and len(envs.worker_pids) == 2
    envs.reset(seed=0)
    assert envs.step([0, 0, 0])[1].tolist() == [0.0] * 3
    assert envs.step([0, 0, 0])[3].all()


@pytest.mark.extended
def test_registered_name_makes_single_envs(make, make_by_gymnasium):
    """A script can use one id for its training envs and for the single env that it displays."""
    name = register_vec("FrozenLake-v1")
    with contextlib.closing(gymnasium.make(name)) as env:
        assert env.spec.id == name and env.spec.max_episode_steps == 100
        assert env.unwrapped.desc.shape == (4, 4)
    others = make_by_gymnasium(name, 2, vectorization_mode="sync", vector_kwargs={"autoreset_mode": "SameStep"})
    assert type(others) is gymnasium.vector.SyncVectorEnv
    for envs in (make_by_gymnasium(name, 2), make(name, 2), make_by_gymnasium(name, 2, map_name="8x8")):
        assert isinstance(envs, VectorEnv)
        assert envs.single_observation_space.n == (64 if envs.spec.kwargs["map_name"] == "8x8" else 16)


def test_registered_env_with_wrappers_makes_vector_envs(make_by_gymnasium):
    more = (TimeAwareObservation.wrapper_spec(),)
    gymnasium.register("VecenvToy-v4", entry_point=ToyEnv, additional_wrappers=more, max_episode_steps=5)
    envs = make_by_gymnasium(register_vec("VecenvToy-v4"), num_envs=2, backend="serial")
    assert envs.single_observation_space.shape == (ToyEnv().observation_space.shape[0] + 1,)


def test_gymnasium_rebuilds_from_the_spec(make_by_gymnasium):
    envs = make_by_gymnasium(register_vec("CartPole-v1"), num_envs=2, backend="serial", sutton_barto_reward=True)
    assert repr(envs).startswith("VectorEnv(vecenv/CartPole-v1, num_envs=2, ")
    for spec in (envs.spec, gymnasium.envs.registration.EnvSpec.from_json(envs.spec.to_json())):
        again = make_by_gymnasium(spec)
        assert isinstance(again, VectorEnv) and again.num_envs == 2 and again.worker_pids == ()
        assert again.call("_sutton_barto_reward") == (True, True)


def test_vector_env_of_gymnasium_is_rebuilt_from_its_spec(make, make_by_gymnasium):
    """Gymnasium's own class rebuilds these envs, and ours does under a registered name."""
    own = make(make_by_gymnasium("CartPole-v1", 3, sutton_barto_reward=True).spec)
    assert len(own.worker_pids) > 0 and own.call("_sutton_barto_reward") == (True,) * 3
    options = {"backend": "serial", "autoreset_mode": "SameStep", "sutton_barto_reward": True}
    again = make(make_by_gymnasium(register_vec("CartPole-v1"), 2, **options).spec)
    assert again.num_envs == 2 and again.worker_pids == () and again.autoreset_mode is AutoresetMode.SAME_STEP
    assert again.call("_sutton_barto_reward") == (True, True)


def test_registered_name_makes_vector_envs(make, registry):
    assert make(register_vec("CartPole-v1"), num_envs=2, vectorization_mode="serial").spec.id == "CartPole-v1"


def test_registered_env_with_its_own_vector_entry_point(make_by_gymnasium):
    gymnasium.register("VecenvToy-v0", entry_point=ToyEnv, vector_entry_point="vecenv.vector.by_id:VecenvToy-v0")
    envs = make_by_gymnasium("VecenvToy-v0", num_envs=2, length=3)
    assert isinstance(envs, VectorEnv)
    envs.reset(seed=0)
    assert [envs.step([0, 0])[2].tolist() for _ in range(3)][-1] == [True, True]


def test_registered_names_with_a_namespace(make_by_gymnasium):
    gymnasium.register("space/VecenvToy-v3", entry_point=ToyEnv)
    assert register_vec("space/VecenvToy-v3") == "vecenv/space.VecenvToy-v3"
    assert make_by_gymnasium(register_vec("space/VecenvToy-v3", "Mine-v1"), backend="serial").num_envs == 1


def test_register_refuses_unfit_envs(registry):
    gymnasium.register("VecenvToy-v0", vector_entry_point=VectorEnv)
    with pytest.raises(gymnasium.error.Error, match="no entry point for single envs"):
        register_vec("VecenvToy-v0")
    with pytest.raises(gymnasium.error.Error, match="NoSuchEnv"):
        register_vec("NoSuchEnv-v0")
    with pytest.raises(gymnasium.error.Error, match="id: expected a name, got int"):
        register_vec(3)
    with pytest.raises(ConfigError, match="'CartPole-v1' is the id of another env"):
        register_vec("Acrobot-v1", "CartPole-v1")
    with pytest.raises(ConfigError, match="^name: expected a name or None, got 5$"):
        register_vec("Acrobot-v1", 5)
    with pytest.raises(AttributeError, match="no env of this id"):
        gymnasium.envs.registration.load_env_creator("vecenv.vector.by_id:NoSuchEnv-v0")


def test_registered_name_keeps_values_of_the_env_spec(make_by_gymnasium):
    envs = make_by_gymnasium(register_vec("CartPole-v1"), num_envs=2)
    assert envs.spec.max_episode_steps == 500
    assert envs.spec.reward_threshold == gymnasium.spec("CartPole-v1").reward_threshold
    assert envs.get_attr("_max_episode_steps") == (500, 500)


def test_make_vec_mode_of_wrong_type_is_refused():
    with pytest.raises(ConfigError, match="vectorization_mode"):
        make_vec("CartPole-v1", 2, vectorization_mode=["sync"])
