"""`Timeouts`, `FailurePolicy` and `EngineOptions`: their values, and how each front end reads them."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import gc
import math
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.envs.registration import EnvSpec

from tests.inside import config_of, pool_of, set_step_timeout, vector_env_of
from tests.managers.fakes import actors
from vecenv import (
    BatchedVectorEnv,
    ConfigError,
    EngineOptions,
    FailurePolicy,
    Timeouts,
    VectorEnv,
    alf,
    make_vec,
    register_vec,
)
from vecenv.alf import ParallelAlfEnvironment, ThreadEnvironment, create_environment
from vecenv.core.layout.flags import Autoreset
from vecenv.core.options import Limits, PoolFailurePolicy, PoolOptions
from vecenv.ding import (
    AsyncSubprocessEnvManager,
    BaseEnvManager,
    BaseEnvManagerV2,
    GymVectorEnvManager,
    SubprocessEnvManagerV2,
    SyncSubprocessEnvManager,
)
from vecenv.envs.toys import ToyEnv
from vecenv.managers.options import pool_options

FIELDS = {
    Timeouts: ["step", "reset", "construct", "call", "close"],
    FailurePolicy: [
        "on_failure",
        "on_repeat",
        "on_exception",
        "recover_hangs",
        "max_restarts",
        "restart_window",
        "max_log_bytes",
        "recovery_timeout",
        "recycle_after",
        "reproducer_dir",
    ],
    EngineOptions: ["depth", "build", "timings", "monitor", "worker_output", "worker_init"],
}
VALUES = [
    Timeouts(step=5, construct=math.inf),
    FailurePolicy(max_restarts=3, recycle_after={"rss_mb": 100.5}, on_repeat="raise"),
    EngineOptions(depth=4, monitor=False, worker_output="none", worker_init=gc.collect),
]
WORKER_MANAGERS = [SyncSubprocessEnvManager, AsyncSubprocessEnvManager, SubprocessEnvManagerV2]
MANAGERS = [BaseEnvManager, BaseEnvManagerV2, *WORKER_MANAGERS]


# ---- the values ----------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", FIELDS)
def test_values_have_these_fields_and_none_is_the_default_of_each(cls: Any) -> None:
    assert [(field.name, field.default, field.kw_only) for field in dataclasses.fields(cls)] == [
        (name, None, True) for name in FIELDS[cls]
    ]
    with pytest.raises(TypeError):
        cls(5.0)
    with pytest.raises(TypeError, match="speed"):
        cls(speed=5.0)


def test_values_show_the_fields_that_are_given() -> None:
    assert repr(Timeouts()) == "Timeouts()" and repr(FailurePolicy()) == "FailurePolicy()"
    assert [repr(value) for value in VALUES[:2]] == [
        "Timeouts(step=5, construct=inf)",
        "FailurePolicy(on_repeat='raise', max_restarts=3, recycle_after={'rss_mb': 100.5})",
    ]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_are_frozen_compared_hashed_replaced_and_pickled(value: Any) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.step = 1.0
    for again in (pickle.loads(pickle.dumps(value)), copy.deepcopy(value), dataclasses.replace(value)):
        assert again == value and again is not value and hash(again) == hash(value)
    name = {Timeouts: "call", FailurePolicy: "max_restarts", EngineOptions: "depth"}[type(value)]
    other = dataclasses.replace(value, **{name: 9})
    assert other != value and getattr(other, name) == 9
    if value is not VALUES[2]:  # functions have no such form
        assert eval(repr(value), {**globals(), "inf": math.inf}) == value


def test_values_become_those_of_python() -> None:
    timeouts = Timeouts(step=np.float32(0.5), reset=np.int64(3), close=np.float64(2.5))
    assert repr(timeouts) == "Timeouts(step=0.5, reset=3, close=2.5)"
    policy = FailurePolicy(max_restarts=np.int8(3), recover_hangs=np.True_)
    assert repr(policy) == "FailurePolicy(recover_hangs=True, max_restarts=3)"


def test_policy_keeps_a_dict_of_its_own() -> None:
    given = {"episodes": 3}
    policy = FailurePolicy(recycle_after=given)
    given["episodes"] = 5
    assert policy.recycle_after == {"episodes": 3}


def test_policy_takes_a_folder_as_a_path(tmp_path: Any) -> None:
    assert FailurePolicy(reproducer_dir=tmp_path) == FailurePolicy(reproducer_dir=str(tmp_path))


SECONDS = ["5", 0, -1.0, math.nan, [1.0]]
WRONG: list[tuple[Any, str, Any, str]] = [
    *[(Timeouts, name, value, "expected seconds above 0") for name in FIELDS[Timeouts] for value in SECONDS],
    *[(FailurePolicy, "restart_window", value, "expected seconds above 0") for value in SECONDS],
    *[(FailurePolicy, "recovery_timeout", value, "expected seconds above 0") for value in SECONDS],
    (FailurePolicy, "on_failure", "ignore", r"expected one of \('recover', 'raise'\)"),
    (FailurePolicy, "on_repeat", ["raise"], r"expected one of \('truncate', 'raise'\)"),
    (FailurePolicy, "recover_hangs", 1, "expected True or False"),
    (FailurePolicy, "max_restarts", -1, "expected a whole number of at least 0"),
    (FailurePolicy, "max_restarts", 1.5, "expected a whole number of at least 0"),
    (FailurePolicy, "max_log_bytes", True, "expected a whole number of at least 0"),
    (FailurePolicy, "recycle_after", 7, "expected a dict"),
    (FailurePolicy, "recycle_after", {}, "expected 'episodes', 'rss_mb' or both"),
    (FailurePolicy, "recycle_after", {"steps": 3}, "unknown key 'steps'"),
    (FailurePolicy, "recycle_after", {"episodes": 0}, "expected a number above 0"),
    (FailurePolicy, "reproducer_dir", "/no/such/folder", "expected an existing folder"),
]


@pytest.mark.parametrize("cls, name, value, says", WRONG)
def test_values_that_are_wrong_name_the_field_expected_and_got(cls: Any, name: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{cls.__name__}: {name}.*{says}") as caught:
        cls(**{name: value})
    assert caught.value.key == name
    with pytest.raises(ConfigError, match=says):
        dataclasses.replace(cls(), **{name: value})


def test_limits_and_policies_of_a_pool_are_checked_in_the_same_way() -> None:
    with pytest.raises(ConfigError, match="^Limits: step: expected seconds above 0, got -1.0"):
        Limits(step=-1.0)
    with pytest.raises(ConfigError, match="^PoolFailurePolicy: recover_hangs: expected True or False, got 1"):
        PoolFailurePolicy(recover_hangs=1)  # type: ignore[arg-type]


# ---- front ends ----------------------------------------------------------------------------------

CARTPOLES = functools.partial(CartPoleVectorEnv, 2)
LOAD = functools.partial(alf.load, "CartPole-v1")


def _of_vector_env(make: Callable[..., Any], options: Mapping[str, Any]) -> PoolOptions:
    with contextlib.closing(make(**options)) as envs:
        return pool_of(envs).options


def _of_sb3(options: Mapping[str, Any]) -> PoolOptions:
    sb3 = pytest.importorskip("vecenv.integrations.sb3", exc_type=ImportError)
    return _of_vector_env(functools.partial(sb3.SB3VecEnv, [ToyEnv], backend="serial"), options)


def _of_manager(manager_cls: Any, options: Mapping[str, Any]) -> PoolOptions:
    return pool_options(config_of(manager_cls(actors(1), dict(options))), Autoreset.SAME_STEP)


def _of_gym_vector(options: Mapping[str, Any]) -> PoolOptions:
    with contextlib.closing(GymVectorEnvManager([ToyEnv], {"backend": "serial", **options})) as manager:
        return vector_env_of(manager).pool.options


def _of_registered(options: Mapping[str, Any]) -> PoolOptions:
    make = functools.partial(gymnasium.make_vec, register_vec("CartPole-v1"), backend="serial")
    return _of_vector_env(make, options)


#: Front end -> options of its pool, by the options that are given to the front end.
FRONT_ENDS: dict[str, Callable[[Mapping[str, Any]], PoolOptions]] = {
    "VectorEnv": functools.partial(_of_vector_env, functools.partial(VectorEnv, [ToyEnv], backend="serial")),
    "make_vec": functools.partial(
        _of_vector_env, functools.partial(make_vec, "CartPole-v1", vectorization_mode="serial")
    ),
    "register_vec": _of_registered,
    "BatchedVectorEnv": functools.partial(
        _of_vector_env, functools.partial(BatchedVectorEnv, [CARTPOLES], backend="serial")
    ),
    "SB3VecEnv": _of_sb3,
    "ParallelAlfEnvironment": functools.partial(
        _of_vector_env, functools.partial(ParallelAlfEnvironment, [LOAD], backend="serial")
    ),
    "create_environment": functools.partial(
        _of_vector_env,
        functools.partial(create_environment, "CartPole-v1", num_parallel_environments=1, backend="serial"),
    ),
    **{cls.__name__: functools.partial(_of_manager, cls) for cls in MANAGERS},
    "GymVectorEnvManager": _of_gym_vector,
}
#: Front ends with keywords or keys for the fields of values.
HAVE_KEYWORDS = [name for name in FRONT_ENDS if "Manager" in name or name.endswith("nvironment")]
HANGS_RAISE = {cls.__name__ for cls in MANAGERS}
IN_PROCESS = {"BaseEnvManager", "BaseEnvManagerV2"}


def _engine(front_end: str, **options: Any) -> dict[str, Any]:
    return options if front_end in HAVE_KEYWORDS else {"engine": options}


@pytest.fixture(params=FRONT_ENDS)
def front_end(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param
    gymnasium.registry.pop("vecenv/CartPole-v1", None)


def test_defaults_of_each_front_end_are_those_of_the_table(front_end: str) -> None:
    options = FRONT_ENDS[front_end]({})
    has_connect = front_end in HANGS_RAISE - IN_PROCESS
    construct = None if front_end in IN_PROCESS else 60.0
    assert options.limits == Limits(construct=construct, close=5.0, reset=60 if has_connect else None)
    assert options.failures == PoolFailurePolicy(
        on_failure="raise" if front_end in IN_PROCESS else "recover",
        on_repeat="truncate",
        recover_hangs=front_end not in HANGS_RAISE,
        max_restarts=32,
        restart_window=60.0,
        max_log_bytes=64 << 20,
        recovery_timeout=None,
        recycle_after=None,
        reproducer_dir=None,
    )


def test_worker_output_is_an_option_of_each_front_end(front_end: str) -> None:
    assert FRONT_ENDS[front_end]({}).worker_output == "once"
    assert FRONT_ENDS[front_end](_engine(front_end, worker_output="none")).worker_output == "none"


def test_timings_are_an_option_of_each_front_end(front_end: str) -> None:
    assert FRONT_ENDS[front_end]({}).timings is True
    assert FRONT_ENDS[front_end](_engine(front_end, timings=False)).timings is False


def test_monitor_is_an_option_of_each_front_end(front_end: str) -> None:
    assert FRONT_ENDS[front_end]({}).monitor is True
    assert FRONT_ENDS[front_end](_engine(front_end, monitor=False)).monitor is False


@pytest.mark.parametrize("timeouts, failures", [(Timeouts(), FailurePolicy()), ({}, {}), (None, None)], ids=repr)
def test_values_without_arguments_change_nothing(front_end: str, timeouts: Any, failures: Any) -> None:
    plain = FRONT_ENDS[front_end]({})
    assert FRONT_ENDS[front_end]({"timeouts": timeouts, "failures": failures}) == plain


def test_policy_with_one_field_changes_that_one(front_end: str) -> None:
    plain = FRONT_ENDS[front_end]({})
    failures = dataclasses.replace(plain.failures, max_restarts=5)
    for policy in (FailurePolicy(max_restarts=5), {"max_restarts": 5}, {"max_restarts": 5, "restart_window": None}):
        assert FRONT_ENDS[front_end]({"failures": policy}) == dataclasses.replace(plain, failures=failures)


def test_timeouts_with_one_field_change_that_one(front_end: str) -> None:
    plain = FRONT_ENDS[front_end]({})
    for name in FIELDS[Timeouts]:
        limits = dataclasses.replace(plain.limits, **{name: 77.0})
        for timeouts in (Timeouts(**{name: 77.0}), {name: 77.0}):
            assert FRONT_ENDS[front_end]({"timeouts": timeouts}).limits == limits


def test_infinity_is_no_limit(front_end: str) -> None:
    limits = FRONT_ENDS[front_end]({"timeouts": Timeouts(**dict.fromkeys(FIELDS[Timeouts], math.inf))}).limits
    assert [getattr(limits, name) for name in FIELDS[Timeouts]] == [None] * 5


def test_number_limits_steps_and_resets(front_end: str) -> None:
    limits = FRONT_ENDS[front_end]({"timeouts": 7}).limits
    assert limits == FRONT_ENDS[front_end]({"timeouts": Timeouts(step=7, reset=7)}).limits and limits.step == 7


def test_string_is_the_reaction_to_failures(front_end: str) -> None:
    assert FRONT_ENDS[front_end]({"failures": "raise"}).failures.on_failure == "raise"


@pytest.mark.parametrize("front_end", HAVE_KEYWORDS, indirect=True)
def test_single_keywords_go_together_with_values_for_other_fields(front_end: str) -> None:
    given = {"step_timeout": 9, "timeouts": Timeouts(reset=8)}
    if front_end != "GymVectorEnvManager":
        given |= {"on_failure": "raise", "failures": FailurePolicy(max_restarts=5)}
    options = FRONT_ENDS[front_end](given)
    assert (options.limits.step, options.limits.reset) == (9, 8)
    if front_end != "GymVectorEnvManager":
        assert (options.failures.on_failure, options.failures.max_restarts) == ("raise", 5)


@pytest.mark.parametrize("front_end", HAVE_KEYWORDS, indirect=True)
def test_option_given_twice_is_refused_with_both_names(front_end: str) -> None:
    with pytest.raises(ConfigError, match=r"step_timeout=1\.5 and timeouts=Timeouts\(step=2\)") as caught:
        FRONT_ENDS[front_end]({"step_timeout": 1.5, "timeouts": {"step": 2}})
    assert caught.value.key == "step_timeout"
    if front_end != "GymVectorEnvManager":
        with pytest.raises(ConfigError, match=r"on_failure='raise' and failures=FailurePolicy\(on_failure='recover'\)"):
            FRONT_ENDS[front_end]({"on_failure": "raise", "failures": FailurePolicy(on_failure="recover")})


@pytest.mark.parametrize("front_end", [name for name in HAVE_KEYWORDS if "Manager" not in name], indirect=True)
def test_keyword_counts_as_given_where_it_has_its_default(front_end: str) -> None:
    """The keys of managers do not: configs there are often merged over all defaults first."""
    for given in (
        {"step_timeout": None, "timeouts": Timeouts(step=2)},
        {"construct_timeout": 60.0, "timeouts": Timeouts(construct=2)},
        {"on_failure": "recover", "failures": {"on_failure": "raise"}},
    ):
        with pytest.raises(ConfigError, match="given twice"):
            FRONT_ENDS[front_end](given)


@pytest.mark.parametrize(
    "given, says",
    [
        ({"timeouts": True}, "timeouts: expected seconds, a Timeouts or a dict, got True"),
        ({"timeouts": -5.0}, "Timeouts: step: expected seconds above 0, got -5.0"),
        ({"timeouts": FailurePolicy()}, r"timeouts: expected seconds, a Timeouts or a dict, got FailurePolicy\(\)"),
        ({"timeouts": {"steps": 5.0}}, "timeouts: unknown key 'steps'; did you mean 'step'?"),
        ({"timeouts": {"wait": 5.0}}, r"timeouts: unknown key 'wait'; known are \['step', 'reset'"),
        ({"timeouts": {"step": 0}}, "Timeouts: step: expected seconds above 0, got 0"),
        ({"failures": "stop"}, "FailurePolicy: on_failure: expected one of .*, got 'stop'"),
        ({"failures": 5}, "failures: expected 'recover', 'raise', a FailurePolicy or a dict, got 5"),
        ({"failures": {"max_restart": 5}}, "failures: unknown key 'max_restart'; did you mean 'max_restarts'?"),
        ({"failures": {"max_restarts": -5}}, "FailurePolicy: max_restarts: expected a whole number"),
    ],
    ids=str,
)
def test_wrong_value_is_named_by_each_front_end(front_end: str, given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        FRONT_ENDS[front_end](given)


# ---- single front ends ---------------------------------------------------------------------------


@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_manager_takes_a_config_that_was_merged_over_its_defaults(manager_cls: Any) -> None:
    cfg = manager_cls.default_config()
    cfg.update(timeouts=Timeouts(step=2, reset=90), failures=FailurePolicy(on_failure="raise", on_repeat="raise"))
    options = _of_manager(manager_cls, cfg)
    assert (options.limits.step, options.limits.reset) == (2, 90)
    assert (options.failures.on_failure, options.failures.on_repeat) == ("raise", "raise")
    again = manager_cls(actors(1), config_of(manager_cls(actors(1), cfg)))
    assert pool_options(config_of(again), Autoreset.SAME_STEP) == options


@pytest.mark.parametrize("manager_cls", WORKER_MANAGERS)
def test_manager_caps_a_reset_by_a_connect_timeout_that_is_given(manager_cls: Any) -> None:
    for given, limit in (
        ({"timeouts": Timeouts(reset=90)}, 90),
        ({"timeouts": Timeouts(reset=90), "connect_timeout": 30}, 30),
        ({"reset_timeout": 90}, 60),
    ):
        assert _of_manager(manager_cls, given).limits.reset == limit


@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_manager_recovers_no_hangs(manager_cls: Any) -> None:
    assert _of_manager(manager_cls, {"failures": FailurePolicy(recover_hangs=False)}) == _of_manager(manager_cls, {})
    with pytest.raises(ConfigError, match=f"^{manager_cls.__name__}: failures: recover_hangs: expected False or None"):
        manager_cls(actors(1), {"failures": {"recover_hangs": True}})


@pytest.mark.parametrize("manager_cls", [BaseEnvManager, SyncSubprocessEnvManager])
def test_manager_with_values_steps_and_its_limits_can_be_changed(manager_cls: Any) -> None:
    cfg = {"timeouts": Timeouts(step=50), "failures": FailurePolicy(max_restarts=5)}
    with manager_cls(actors(2), cfg) as manager:
        manager.launch()
        assert pool_of(manager).options.limits.step == 50
        set_step_timeout(manager, 60)
        assert len(manager.step({0: 0, 1: 0})) == 2 and pool_of(manager).options.limits.step == 60


def test_thread_environment_takes_timeouts() -> None:
    with ThreadEnvironment(LOAD, timeouts=Timeouts(step=7, close=math.inf)) as env:
        assert env._timeouts == {"step": 7, "reset": None, "construct": 60.0, "call": None, "close": None}
    with pytest.raises(ConfigError, match=r"close_timeout=5\.0 and timeouts=Timeouts\(close=7\)"):
        ThreadEnvironment(LOAD, timeouts={"close": 7}, close_timeout=5.0)


@pytest.mark.parametrize("given", [{"timeouts": {"stp": 1}}, {"failures": 5}], ids=str)
def test_create_environment_checks_values_without_workers_too(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(given))):
        create_environment("CartPole-v1", num_parallel_environments=1, nonparallel=True, **given)


def test_batched_vector_env_takes_no_number_of_episodes() -> None:
    with pytest.raises(ConfigError, match="recycle_after: episodes of batched envs"):
        BatchedVectorEnv([CARTPOLES], backend="serial", failures=FailurePolicy(recycle_after={"episodes": 3}))


def test_make_vec_keeps_values_in_a_spec_that_can_be_written_as_json() -> None:
    failures = FailurePolicy(max_restarts=5, recycle_after={"rss_mb": 100.5})
    options: dict[str, Any] = {"timeouts": Timeouts(step=3, construct=math.inf), "failures": failures}
    with contextlib.closing(make_vec("CartPole-v1", vectorization_mode="serial", **options)) as envs:
        found, spec = envs.pool.options, envs.spec
    assert spec is not None
    for one in (spec, EnvSpec.from_json(spec.to_json())):
        with contextlib.closing(make_vec(one)) as again:
            assert again.pool.options == found
