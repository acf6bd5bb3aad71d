"""Wrong arguments: each raises an error of a documented class, with the expected and the given value."""

from __future__ import annotations

import functools
import os
import threading

import numpy as np
import pytest

from tests.inside import config_of
from tests.managers.fakes import IN_PROCESS, WITH_WORKERS, actors
from vecenv import ConfigError
from vecenv.ding import (
    ENV_REGISTRY,
    AsyncSubprocessEnvManager,
    BaseEnv,
    BaseEnvManager,
    BaseEnvManagerV2,
    DingEnvWrapper,
    GymVectorEnvManager,
    SubprocessEnvManagerV2,
    SyncSubprocessEnvManager,
    TwoAgentEnv,
    create_env_manager,
    get_env_cls,
    get_env_manager_cls,
    get_vec_env_setting,
)
from vecenv.envs.toys import CountEnv
from vecenv.envs.video import DEFAULT_FOLDER, folders_by_env
from vecenv.errors import SpaceError

MANAGERS = [*IN_PROCESS, *WITH_WORKERS, GymVectorEnvManager]

KEYS = [
    ("episode_nums", "episode_num"),
    ("max_retrys", "max_retry"),
    ("retry_types", "retry_type"),
    ("auto_resets", "auto_reset"),
    ("step_timeouts", "step_timeout"),
    ("reset_time_out", "reset_timeout"),
]
WORKER_KEYS = [
    ("wait_nums", "wait_num"),
    ("step_wait_time_out", "step_wait_timeout"),
    ("conect_timeout", "connect_timeout"),
    ("reset_in_place", "reset_inplace"),
    ("shared_memroy", "shared_memory"),
    ("copy_on_gets", "copy_on_get"),
    ("contxt", "context"),
    ("num_worker", "num_workers"),
]


@pytest.mark.parametrize("manager_cls", IN_PROCESS + WITH_WORKERS)
@pytest.mark.parametrize("wrong, right", KEYS)
def test_misspelled_key_warns_with_the_right_key(manager_cls, wrong, right):
    with pytest.warns(UserWarning, match=f"'{wrong}'.*did you mean '{right}'") as caught:
        manager_cls(actors(1), {wrong: None})
    assert caught[0].filename == __file__  # a warning of any class names the caller's line


@pytest.mark.parametrize("manager_cls", WITH_WORKERS)
@pytest.mark.parametrize("wrong, right", WORKER_KEYS)
def test_misspelled_key_of_process_managers_warns(manager_cls, wrong, right):
    with pytest.warns(UserWarning, match=f"'{wrong}'.*did you mean '{right}'"):
        manager_cls(actors(1), {wrong: None})


@pytest.mark.parametrize("manager_cls", IN_PROCESS + WITH_WORKERS)
@pytest.mark.parametrize("mapping", ["dict", "easydict"])
def test_unknown_keys_are_kept_without_a_warning(manager_cls, mapping):
    make_mapping = dict if mapping == "dict" else pytest.importorskip(mapping).EasyDict
    manager = manager_cls(actors(1), make_mapping(my_very_own_key=3, exp_name="x"))
    assert config_of(manager).my_very_own_key == 3 and config_of(manager).exp_name == "x"


@pytest.mark.parametrize("manager_cls", IN_PROCESS + WITH_WORKERS)
@pytest.mark.parametrize(
    "cfg",
    [
        {"retry_type": "again"},
        {"max_retry": 1.5},
        {"max_retry": "2"},
        {"retry_waiting_time": -1},
        {"retry_waiting_time": float("inf")},
        {"step_timeout": -0.1},
        {"step_timeout": "1"},
        {"reset_timeout": 0},
        {"reset_timeout": float("nan")},
        {"episode_num": 0},
        {"episode_num": None},
        {"on_step_error": "shrug"},
        {"auto_reset": "no"},
        {"shared_memory": "no"},
        {"copy_on_get": 0},
        {"reset_inplace": None},
        {"step_wait_timeout": "a"},
        {"step_wait_timeout": float("nan")},
        {"step_wait_timeout": -5},
    ],
    ids=str,
)
def test_wrong_config_value_is_named(manager_cls, cfg):
    (key,) = cfg
    with pytest.raises(AssertionError, match=f"{manager_cls.__name__}: {key}: expected") as caught:
        manager_cls(actors(1), cfg)
    assert isinstance(caught.value, ConfigError) and isinstance(caught.value, ValueError) and caught.value.key == key


@pytest.mark.parametrize("manager_cls", MANAGERS)
@pytest.mark.parametrize("cfg", [5, "base", [1], []], ids=str)
def test_config_of_another_type_raises(manager_cls, cfg):
    with pytest.raises(ConfigError, match=f"^{manager_cls.__name__}: cfg: expected a dict, got "):
        manager_cls(actors(1), cfg)


@pytest.mark.parametrize("manager_cls", IN_PROCESS)
def test_dynamic_seed_of_another_type_raises(manager_cls):
    with pytest.raises(ConfigError, match="^dynamic_seed: expected True or False, got 'no'$"):
        manager_cls(actors(1), {}).seed(3, dynamic_seed="no")


@pytest.mark.parametrize("manager_cls", WITH_WORKERS)
def test_reset_inplace_needs_auto_reset(manager_cls):
    with pytest.raises(AssertionError, match="reset_inplace=True needs auto_reset=True"):
        manager_cls(actors(1), {"reset_inplace": True, "auto_reset": False})


@pytest.mark.parametrize("manager_cls", IN_PROCESS + WITH_WORKERS)
@pytest.mark.parametrize("max_retry", [0, -3])
def test_max_retry_below_one_counts_as_one(manager_cls, max_retry):
    assert manager_cls(actors(1), {"max_retry": max_retry})._max_retry == 1


@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_unknown_env_id_raises_assertion_error(manager_cls):
    with manager_cls(actors(2), {"num_workers": 1} if manager_cls not in IN_PROCESS else {}) as manager:
        manager.launch()
        for actions in ({7: 0}, {"0": 0}, {-1: 0}):
            with pytest.raises(AssertionError):
                manager.step(actions)
        assert not manager.closed and manager.env_num == 2


@pytest.mark.parametrize("manager_cls", IN_PROCESS + WITH_WORKERS)
@pytest.mark.parametrize(
    "seed, error",
    [
        ([1], AssertionError),
        ([1, 2, 3], AssertionError),
        ({5: 1}, AssertionError),
        ([1, -1], AssertionError),
        ([1, "2"], AssertionError),
        (True, (AssertionError, TypeError)),
        (None, TypeError),
        ("12", TypeError),
        (2.0, TypeError),
        ({0, 1}, TypeError),
    ],
    ids=repr,
)
def test_seed_with_wrong_arguments_raises(manager_cls, seed, error):
    with pytest.raises(error):
        manager_cls(actors(2)).seed(seed)


@pytest.mark.parametrize("manager_cls", IN_PROCESS + WITH_WORKERS)
@pytest.mark.parametrize(
    "seeds", [[3, 9], (3, 9), np.array([3, 9]), {0: 3, 1: 9}], ids=["list", "tuple", "array", "dict"]
)
def test_seed_takes_every_form(manager_cls, seeds):
    cfg = {"num_workers": 1} if manager_cls in WITH_WORKERS else {}
    with manager_cls(actors(2), cfg) as manager:
        manager.seed(seeds)
        manager.launch()
        assert manager.last_seed == [3, 9]


@pytest.mark.parametrize("manager_cls", [BaseEnvManager, SyncSubprocessEnvManager, AsyncSubprocessEnvManager])
@pytest.mark.parametrize("actions", [[0, 0], None, 3, "00"], ids=repr)
def test_actions_of_another_type_raise(manager_cls, actions):
    with manager_cls(actors(2), {"num_workers": 1} if manager_cls in WITH_WORKERS else {}) as manager:
        manager.launch()
        with pytest.raises(AssertionError, match="expected a dict of actions"):
            manager.step(actions)


@pytest.mark.parametrize(
    "function", [create_env_manager, lambda cfg, fns: get_env_manager_cls(cfg)], ids=["create", "cls"]
)
def test_unknown_manager_type_raises(function):
    with pytest.raises(KeyError, match="subproces"):
        function({"type": "subproces"}, actors(1))
    with pytest.raises(ConfigError, match="type"):
        function({}, actors(1))
    with pytest.raises(ImportError, match="no_such_module"):
        function({"type": "base", "import_names": ["no_such_module"]}, actors(1))


@pytest.mark.parametrize("function", [get_env_cls, get_vec_env_setting])
def test_unknown_env_type_raises(function):
    with pytest.raises(KeyError, match="no_such_env"):
        function({"type": "no_such_env"})
    with pytest.raises(ConfigError, match="type"):
        function({})


def test_register_of_a_taken_name_raises():
    assert ENV_REGISTRY.get("two_agents") is TwoAgentEnv
    with pytest.raises(AssertionError, match="two_agents"):
        ENV_REGISTRY.register("two_agents", object)


@pytest.mark.parametrize("manager_cls", WITH_WORKERS)
def test_launch_with_a_constructor_of_no_env_raises(manager_cls):
    manager = manager_cls([functools.partial(dict)] * 2, {"num_workers": 1})
    with pytest.raises(TypeError, match="dict is not an env: it has no reset"):
        manager.launch()
    assert manager.closed


@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_launch_with_an_unregistered_env_raises(manager_cls):
    import gymnasium

    env_fn = functools.partial(DingEnvWrapper, None, {"env_id": "NoSuchEnv-v0"})
    with pytest.raises((gymnasium.error.Error, RuntimeError), match="NoSuchEnv"):
        manager_cls([env_fn], {}).launch()


@pytest.mark.parametrize("manager_cls", MANAGERS)
@pytest.mark.parametrize(
    "env_fn",
    [lambda: 1, [1], [], 3, [functools.partial(dict), None]],
    ids=["callable", "ints", "none", "3", "one is none"],
)
def test_env_fn_that_is_not_callable_raises(manager_cls, env_fn):
    with pytest.raises(
        ConfigError, match=rf"{manager_cls.__name__}: env_fn(: expected a list|\[\d\]: expected a function| is empty)"
    ):
        manager_cls(env_fn, {})


@pytest.mark.parametrize("key", ["episode_num", "wait_num"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "2", None])
def test_gym_vector_episode_num_is_checked(key, value):
    with pytest.raises(
        ConfigError, match=f"GymVectorEnvManager: {key}: expected a whole number of at least 1"
    ) as caught:
        GymVectorEnvManager([functools.partial(CountEnv, 2)], {key: value})
    assert caught.value.key == key


@pytest.mark.parametrize("manager_cls", [*IN_PROCESS, GymVectorEnvManager])
def test_base_manager_accepts_keys_of_process_managers(manager_cls):
    """The test fails if there is a warning."""
    env_fns = [functools.partial(CountEnv, 2)]
    with manager_cls(env_fns, {"step_wait_timeout": 0.01, "shared_memory": False, "reset_inplace": False}) as manager:
        manager.launch()


@pytest.mark.parametrize("params", [5, [None, None]], ids=repr)
@pytest.mark.parametrize("manager_cls", IN_PROCESS + WITH_WORKERS)
def test_launch_with_wrong_reset_param_builds_no_env(manager_cls, params):
    with manager_cls([lambda: pytest.fail("built")] * 2) as manager:
        says = f"^launch: reset_param: expected a dict of env ids, got {type(params).__name__}$"
        with pytest.raises(ConfigError, match=says):
            manager.launch(params)
        assert manager.closed


@pytest.mark.parametrize("manager_cls", [BaseEnvManagerV2, SubprocessEnvManagerV2])
@pytest.mark.parametrize(
    "actions, error, says",
    [
        ({7: 1}, ConfigError, "step: no env 7; env ids are 0..1"),
        ({0: 1, 7: 1}, ConfigError, "step: no env 7; env ids are 0..1"),
        (None, SpaceError, r"actions: expected one per ready env \[0, 1\], got None"),
        (3, SpaceError, r"actions: expected one per ready env \[0, 1\], got 3"),
        ([0], SpaceError, r"actions: expected 2, one per ready env \[0, 1\], got 1"),
        ([0] * 3, SpaceError, r"actions: expected 2, one per ready env \[0, 1\], got 3"),
    ],
    ids=str,
)
def test_v2_actions_of_a_wrong_form_raise(manager_cls, actions, error, says):
    with manager_cls(actors(2), {"num_workers": 1} if manager_cls in WITH_WORKERS else {}) as manager:
        manager.launch()
        with pytest.raises(error, match=says):
            manager.step(actions)
        assert manager.data_count == [0, 0] and len(manager.step([0, 0])) == 2, "nothing was stepped"


@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_enable_save_replay_with_wrong_folders_raises(manager_cls):
    with manager_cls([functools.partial(CountEnv, 2)] * 2, {}) as manager:
        with pytest.raises(ConfigError, match="replay_path: expected a folder, or one per env, got 5"):
            manager.enable_save_replay(5)
        with pytest.raises(ConfigError, match="replay_path: expected 2 folders, got 1"):
            manager.enable_save_replay(["a"])
        manager.enable_save_replay(None)
    assert folders_by_env(None, 2) == [os.path.abspath(DEFAULT_FOLDER)] * 2


@pytest.mark.parametrize("cfg", ["CartPole-v1", 3, ["env_id"]], ids=repr)
def test_env_wrapper_config_of_another_type_raises(cfg):
    """An example is the id of an env instead of its config."""
    with pytest.raises(ConfigError, match="DingEnvWrapper: cfg: expected a dict, got"):
        DingEnvWrapper(cfg=cfg)


@pytest.mark.parametrize("cls", [BaseEnv, DingEnvWrapper])
@pytest.mark.parametrize("who", ["collector", "evaluator"])
def test_numpy_integers_are_accepted_as_counts(cls, who):
    create = getattr(cls, f"create_{who}_env_cfg")
    assert len(create({f"{who}_env_num": np.int64(2)})) == 2
    for count in (2.0, np.float64(2), "2", True, np.int64(-1), None):
        with pytest.raises(ConfigError, match=f"{who}_env_num: expected an integer >= 0"):
            create({f"{who}_env_num": count})


@pytest.mark.parametrize("manager_cls", WITH_WORKERS)
def test_reset_with_unpicklable_arguments_changes_nothing(manager_cls):
    """Regression: both envs stayed in RESET, and later resets failed because of the same parameters."""
    with manager_cls(actors(3), {"num_workers": 1}) as manager:
        manager.launch()
        with pytest.raises(ConfigError, match="env 1: its arguments cannot be sent to a worker: TypeError.*lock"):
            manager.reset({0: None, 1: {"stat": threading.Lock()}})
        assert manager.ready_obs_id == [0, 1, 2]
        assert manager.episodes == [1, 1, 1]
        manager.reset()
        assert manager.ready_obs_id == [0, 1, 2] and manager.episodes == [2, 2, 2]
