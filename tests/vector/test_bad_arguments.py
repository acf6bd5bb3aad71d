"""Wrong arguments of a vector env: the error names each one before any process starts."""

from __future__ import annotations

import contextlib
import functools

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.spaces import Box, Dict, Discrete

from vecenv import BatchedVectorEnv, ConfigError, SpaceError, VectorEnv, make_vec
from vecenv.alf import create_environment
from vecenv.ding import create_env_manager
from vecenv.envs.toys import ToyEnv

LIMITS = ("construct", "reset", "step", "call", "close")


@pytest.mark.parametrize("value", ["a", 0, -1, float("nan"), [1]], ids=repr)
@pytest.mark.parametrize("name", LIMITS)
def test_timeout_of_wrong_type_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"{name}: expected seconds above 0, got") as caught:
        VectorEnv([ToyEnv], timeouts={name: value})
    assert caught.value.key == name


@pytest.mark.parametrize(
    "failures, says",
    [
        (3, "failures: expected 'recover', 'raise', a FailurePolicy or a dict, got 3"),
        ("truncate", "on_failure: expected one of .*, got 'truncate'"),
        ({5: 5}, r"failures: unknown key 5; known are \['on_failure', 'on_repeat'"),
        ({"recycle_after": 5}, "recycle_after: expected a dict, got 5"),
        ({"recycle_after": {"episodes": "x"}}, r"recycle_after\['episodes'\]: expected a number above 0, got 'x'"),
        ({"recycle_after": {"weeks": 1}}, "recycle_after: unknown key 'weeks'"),
        ({"recovery_timeout": "x"}, "recovery_timeout: expected seconds above 0, got 'x'"),
        ({"restart_window": 0}, "restart_window: expected seconds above 0, got 0"),
        ({"restart_window": "x"}, "restart_window: expected seconds above 0, got 'x'"),
    ],
    ids=str,
)
def test_on_failure_of_wrong_value_is_refused(failures, says):
    with pytest.raises(ConfigError, match=says):
        VectorEnv([ToyEnv], failures=failures)


@pytest.mark.parametrize("value", ["no", 2, None], ids=repr)
@pytest.mark.parametrize("name", ["shared_memory", "copy", "daemon", "episode_statistics", "mark_autoreset"])
def test_flag_of_wrong_type_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"^{name}: expected True or False, got {value!r}$") as caught:
        VectorEnv([ToyEnv], **{name: value})
    assert caught.value.key == name


@pytest.mark.parametrize("name", ["copy", "mark_autoreset"])
def test_batched_flag_of_wrong_type_is_refused(name):
    with pytest.raises(ConfigError, match=f"^{name}: expected True or False, got 'no'$"):
        BatchedVectorEnv([ToyEnv], **{name: "no"})


@pytest.mark.parametrize("backend", ["threads", None, ["serial"]], ids=repr)
def test_unknown_backend_is_refused(backend):
    with pytest.raises(ConfigError, match=r"^backend: expected one of \('process', 'serial', 'ray', 'auto'\), got"):
        VectorEnv([ToyEnv], backend=backend)


@pytest.mark.parametrize("context", ["thread", ""], ids=repr)
@pytest.mark.parametrize("backend", ["serial", "process"])
def test_start_method_is_validated_even_if_unused(backend, context):
    with pytest.raises(ConfigError, match="^context: expected one of"):
        VectorEnv([ToyEnv], context=context, backend=backend)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_recv_with_wrong_arguments_is_refused_and_loses_nothing(backend, implementation):
    with contextlib.closing(VectorEnv([ToyEnv] * 2, backend=backend)) as envs:
        envs.reset(seed=0)
        envs.send([0, 0])
        for args, says in [
            (("a",), "min_count: expected a whole number or None, got 'a'"),
            ((1.5,), "min_count: expected a whole number or None, got 1.5"),
            ((None, "x"), "timeout: expected seconds or None, got 'x'"),
        ]:
            with pytest.raises(ConfigError, match=says):
                envs.recv(*args)
        assert envs.recv(np.int64(2), np.float32(30))[0][:, 0].tolist() == [1.0, 1.0]


def test_name_of_wrong_type_is_refused(implementation):
    batches = BatchedVectorEnv([functools.partial(CartPoleVectorEnv, 2)], backend="serial")
    with VectorEnv([ToyEnv], backend="serial") as envs, batches:
        for one in (envs, batches):
            for call in (one.call, one.get_attr, lambda name, one=one: one.set_attr(name, 1)):
                with pytest.raises(
                    TypeError, match="^(call|get_attr|set_attr): expected the name of an attribute, got 5$"
                ):
                    call(5)


def test_seed_of_wrong_type_is_named():
    with (
        VectorEnv([ToyEnv] * 2, backend="serial") as envs,
        pytest.raises(TypeError, match=r"^seed: expected a list of 2, each an int or None, got \[1, 'a'\]$"),
    ):
        envs.reset(seed=[1, "a"])


@pytest.mark.parametrize("seed", [np.array(3), "ab", 3.0], ids=repr)
def test_seeds_of_wrong_type_are_refused(seed):
    with (
        VectorEnv([ToyEnv] * 2, backend="serial") as envs,
        pytest.raises(TypeError, match=f"^seed: expected an int, a list of 2 or None, got {type(seed).__name__}$"),
    ):
        envs.reset(seed=seed)


@pytest.mark.parametrize(
    "mask, error",
    [
        (np.array([[1, 1]]), ConfigError),  # both are wrong: the error names the shape, as in Gymnasium
        (np.array([True]), ConfigError),
        (np.zeros(2, np.bool_), ConfigError),
        (np.ones(2), TypeError),
        ([True, False], TypeError),
    ],
    ids=str,
)
def test_mask_of_wrong_type_is_refused(mask, error):
    with contextlib.closing(VectorEnv([ToyEnv] * 2, backend="serial", autoreset_mode="Disabled")) as envs:
        envs.reset(seed=0)
        with pytest.raises(error, match="reset_mask"):
            envs.reset(options={"reset_mask": mask})


@pytest.mark.parametrize("env_ids", ["a", 1.0, [True, False], np.zeros(0)], ids=repr)
def test_env_ids_of_wrong_type_are_named_after_an_episode_end(env_ids):
    with VectorEnv([ToyEnv] * 2, backend="serial", autoreset_mode="Disabled") as envs:
        envs.reset(seed=0)
        while not envs.step([0, 0])[2].any():
            pass
        for call in (envs.step, envs.send):
            with pytest.raises(ConfigError, match="^env_ids: expected a non-empty list of integers, got"):
                call([0], env_ids)


class ChattyEnv(gymnasium.Env):
    """Has observations and actions with keys outside its spaces."""

    observation_space = Dict(a=Discrete(3))
    action_space = Dict(a=Discrete(3), b=Box(-1, 1, (2,), np.float32))

    def reset(self, *, seed=None, options=None):
        return {"a": 1, "debug": 2}, {}

    def step(self, action):
        return {"a": action["a"], "debug": 2}, float(len(action)), False, False, {}


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_keys_outside_the_space_are_dropped_with_a_warning(backend, implementation):
    with contextlib.closing(VectorEnv([ChattyEnv] * 2, backend=backend)) as envs:
        with pytest.warns(UserWarning, match=r"obs: keys \['debug'\] are not in the space"):
            obs, _ = envs.reset(seed=0)
        assert obs.keys() == {"a"}
        actions = {"a": np.array([2, 0]), "b": np.zeros((2, 2), np.float32), "c": 5}
        with pytest.warns(UserWarning, match=r"action: keys \['c'\] are not in the space"):
            obs, rewards, *_ = envs.step(actions)
        assert obs["a"].tolist() == [2, 0] and rewards.tolist() == [2.0, 2.0]
        envs.step(actions)  # the warning comes once
        with pytest.raises(SpaceError, match="expected a dict with keys"):
            envs.step({"a": np.array([2, 0])})


def test_keys_outside_the_space_are_refused_in_strict_mode():
    with (
        contextlib.closing(VectorEnv([ChattyEnv] * 2, backend="serial", checks="strict")) as envs,
        pytest.raises(SpaceError, match="expected a dict with keys"),
    ):
        envs.reset(seed=0)


# ---- misspelt options ----------------------------------------------------------------------------


class TakesAnything(ToyEnv):
    """Passes keywords on to a class that refuses them, as the MuJoCo envs of Gymnasium do."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)


@pytest.mark.parametrize("name, near", [("num_worker", "num_workers"), ("timout", "timeouts"), ("num_env", "num_envs")])
@pytest.mark.parametrize("mode", ["serial", "process"])
def test_misspelt_option_of_make_vec_is_named_with_its_nearest_name(mode, name, near):
    """It was passed to the env, whose TypeError does not mention the option."""
    gymnasium.register("TakesAnything-v0", TakesAnything)
    try:
        for env_name in ("CartPole-v1", "TakesAnything-v0"):
            with pytest.raises(ConfigError, match=f"option '{name}'; did you mean '{near}'") as caught:
                make_vec(env_name, num_envs=2, vectorization_mode=mode, **{name: 2})
            assert caught.value.key == name
        with pytest.raises(TypeError, match="'colour'"):
            make_vec("CartPole-v1", vectorization_mode=mode, colour=2)
    finally:
        del gymnasium.registry["TakesAnything-v0"]


def test_misspelt_options_of_other_front_ends_are_named_with_their_nearest_names():
    says = "option 'num_worker'; did you mean 'num_workers'"
    with pytest.raises(ConfigError, match=f"vector_kwargs: VectorEnv has no {says}"):
        make_vec("CartPole-v1", vector_kwargs={"num_worker": 2})
    with pytest.raises(ConfigError, match=says):
        create_environment("CartPole-v1", num_worker=2)
    sb3 = pytest.importorskip("vecenv.integrations.sb3", exc_type=ImportError)
    with pytest.raises(ConfigError, match=f"SB3VecEnv: VectorEnv has no {says}"):
        sb3.SB3VecEnv([ToyEnv], num_worker=2)


# ---- objects in the place of constructors ----------------------------------------------------------


class PettingZooEnv:
    """Has the methods of PettingZoo's parallel API."""

    possible_agents = ("first", "second")

    def observation_space(self, agent):
        return Discrete(2)

    action_space = observation_space

    def reset(self, seed=None, options=None):
        raise NotImplementedError

    def step(self, actions):
        raise NotImplementedError


CARTPOLE = gymnasium.make("CartPole-v1")
NOT_CONSTRUCTORS = [
    (["CartPole-v1"], r"env_fns\[0\]: .*the string 'CartPole-v1'; write lambda: gymnasium.make\('CartPole-v1'\)$"),
    ("CartPole-v1", r"env_fns: expected a list of functions.*, got the string 'CartPole-v1'; write"),
    ([gymnasium.spec("CartPole-v1")], r"got the EnvSpec of 'CartPole-v1'; .*\[spec.make\] \* num_envs"),
    ([CARTPOLE], r"got an env that is built already, TimeLimit; .*: lambda: gymnasium.make\('CartPole-v1'\)$"),
    ([ToyEnv()], r"got an env that is built already, ToyEnv; .*: lambda: ToyEnv\(...\)$"),
    (CARTPOLE, r"env_fns: expected a list of functions.*, got an env that is built already"),
    (ToyEnv, r"env_fns: expected a list of functions.*, got one function; write \[env_fn\] \* num_envs"),
    ([PettingZooEnv()], r"got PettingZooEnv, a PettingZoo env of several agents; use PettingZooVectorEnv of vecenv"),
    ([CartPoleVectorEnv(2)], r"got an env that is built already, CartPoleVectorEnv; write"),
    ([5], r"got 5$"),
]


@pytest.mark.parametrize("env_fns, text", NOT_CONSTRUCTORS, ids=range(len(NOT_CONSTRUCTORS)))
def test_object_in_env_fns_is_named_with_the_code_to_write(env_fns, text):
    """The errors were "env_fns[0] is not callable but TimeLimit"."""
    for backend in ("serial", "process"):
        with pytest.raises(ConfigError, match=text) as caught:
            VectorEnv(env_fns, backend=backend)
        assert caught.value.key == "env_fns"


def test_spec_make_is_a_constructor():
    with VectorEnv([gymnasium.spec("CartPole-v1").make] * 2, num_workers=1) as envs:
        envs.reset(seed=0)


@pytest.mark.extended
@pytest.mark.parametrize(
    "env_fn, text",
    [
        (PettingZooEnv, "expected an env of one agent, got PettingZooEnv, a PettingZoo env of several agents"),
        (
            lambda: "CartPole-v1",
            "str is not an env: it has no reset.*; got the string 'CartPole-v1'; write lambda: gymnasium.make",
        ),
        (lambda: None, "NoneType is not an env: it has no reset"),
    ],
    ids=["pettingzoo", "string", "none"],
)
def test_result_of_a_constructor_that_is_no_env_is_named(env_fn, text):
    for backend in ("serial", "process"):
        with pytest.raises(TypeError, match=text):
            VectorEnv([env_fn], backend=backend)


@pytest.mark.extended
def test_spaces_that_differ_are_named_by_leaf_and_property():
    """Both spaces were printed in full."""

    def build(high):
        env = ToyEnv()
        env.observation_space = Dict(camera=Box(0, 255, (8, 8, 3), np.uint8), speed=Box(0, high, (2,), np.float32))
        return env

    env_fns = [functools.partial(build, 1)] * 2 + [functools.partial(build, 2)]
    says = r"^env 2: observation_space/speed: high is 2.0 at index 0, that of env 0 is 1.0\. "
    for options in ({"backend": "serial"}, {"num_workers": 1}, {"num_workers": 3}):
        with pytest.raises(SpaceError, match=says) as caught:
            VectorEnv(env_fns, **options)
        assert caught.value.path == "observation_space/speed"


@pytest.mark.extended
@pytest.mark.parametrize("options", [{"backend": "serial"}, {"num_workers": 1}, {"threads_per_worker": 2}], ids=str)
@pytest.mark.parametrize("wraps", [False, True])
def test_one_env_for_two_rows_is_refused(options, wraps):
    """Its resets and steps of one row disturbed the other, without an error."""
    env = ToyEnv()
    env_fns = [lambda: gymnasium.Wrapper(env) if wraps else env] * 3
    with pytest.raises(ConfigError, match=r"envs 0 and 1 returned the same env\. .*not `lambda: env`"):
        VectorEnv(env_fns, **{"num_workers": 1, **options} if "backend" not in options else options)
    manager = create_env_manager({"type": "base"} if "backend" in options else {"type": "subprocess"}, env_fns[:1] * 9)
    with pytest.raises(ConfigError, match="returned the same env"):
        manager.launch()


@pytest.mark.parametrize("unwrapped", [None, property(lambda self: object())], ids=["none", "new object"])
def test_envs_with_an_unusual_attribute_unwrapped_are_distinct(unwrapped):
    env_class = type("Unusual", (ToyEnv,), {"unwrapped": unwrapped})
    with VectorEnv([env_class] * 20, backend="serial") as envs:
        assert envs.num_envs == 20


@pytest.mark.extended
def test_one_env_for_two_workers_is_copied():
    env = ToyEnv()
    with VectorEnv([lambda: env] * 2, num_workers=2) as envs, VectorEnv([ToyEnv] * 2) as others:
        np.testing.assert_array_equal(envs.reset(seed=0)[0], others.reset(seed=0)[0])
        for _ in range(3):
            np.testing.assert_array_equal(envs.step([0, 1])[0], others.step([0, 1])[0])
