"""Options of vector envs: how each is written, and the keywords of earlier releases."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import math
import sys
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from vecenv import (
    BatchedVectorEnv,
    ConfigError,
    DependencyError,
    EngineOptions,
    RayOptions,
    Timeouts,
    VectorEnv,
    evaluate,
    make_vec,
    tune,
)
from vecenv.core.options import PoolOptions
from vecenv.envs.toys import ToyEnv
from vecenv.vector.options import MOVED

#: Old keyword -> a value other than its default, and the arguments that say the same now, as the warning shows them.
FORMS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "step_timeout": (9.0, {"timeouts": {"step": 9.0}}, "timeouts={'step': 9.0}"),
    "reset_timeout": (8, {"timeouts": Timeouts(reset=8)}, "timeouts={'reset': 8}"),
    "construct_timeout": (None, {"timeouts": {"construct": math.inf}}, "timeouts={'construct': math.inf}"),
    "call_timeout": (7.0, {"timeouts": {"call": 7.0}}, "timeouts={'call': 7.0}"),
    "close_timeout": (6.0, {"timeouts": {"close": 6.0}}, "timeouts={'close': 6.0}"),
    "on_failure": ("raise", {"failures": "raise"}, "failures='raise'"),
    "strict": (True, {"checks": "strict"}, "checks='strict'"),
    "debug": (True, {"checks": "debug"}, "checks='debug'"),
    "depth": (4, {"engine": {"depth": 4}}, "engine={'depth': 4}"),
    "build": ("serial", {"engine": {"build": "serial"}}, "engine={'build': 'serial'}"),
    "timings": (False, {"engine": EngineOptions(timings=False)}, "engine={'timings': False}"),
    "monitor": (False, {"engine": {"monitor": False}}, "engine={'monitor': False}"),
    "worker_output": ("none", {"engine": {"worker_output": "none"}}, "engine={'worker_output': 'none'}"),
    "worker_init": (gc.collect, {"engine": {"worker_init": gc.collect}}, "engine={'worker_init': <built-in "),
}
MAKE: dict[str, Callable[..., Any]] = {
    "VectorEnv": functools.partial(VectorEnv, [ToyEnv], backend="serial"),
    "BatchedVectorEnv": functools.partial(
        BatchedVectorEnv, [functools.partial(CartPoleVectorEnv, 2)], backend="serial"
    ),
    "make_vec": functools.partial(make_vec, "CartPole-v1", vectorization_mode="serial"),
}


def options_of(make: str, **options: Any) -> tuple[PoolOptions, Any]:
    with contextlib.closing(MAKE[make](**options)) as envs:
        found: PoolOptions = envs.pool.options
        return found, found.worker_init


@pytest.mark.parametrize("make", [VectorEnv, BatchedVectorEnv])
def test_vector_env_has_at_most_23_parameters(make: Any) -> None:
    assert len(inspect.signature(make).parameters) <= 23


def test_table_names_every_keyword_that_has_moved() -> None:
    assert {*FORMS, "ray"} == {*MOVED}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("make", MAKE)
def test_old_keyword_works_and_one_warning_names_its_new_form(make: str, name: str) -> None:
    value, now, shown = FORMS[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DeprecationWarning)
        found = options_of(make, **{name: value})
    (warning,) = (one for one in caught if one.category is DeprecationWarning)
    assert str(warning.message).startswith(f"{name}= has moved: write {shown}") and warning.filename == __file__
    assert found == options_of(make, **now) != options_of(make)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("make", MAKE)
@pytest.mark.filterwarnings("ignore:.*has moved:DeprecationWarning")
def test_option_given_in_both_forms_is_refused(make: str, name: str) -> None:
    value, now, _ = FORMS[name]
    with pytest.raises(ConfigError, match=f"^{name}=.* and {next(iter(now))}=.*: one option is given twice") as caught:
        options_of(make, **{name: value}, **now)
    assert caught.value.key == name


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.filterwarnings("ignore:.*has moved:DeprecationWarning")
def test_old_keywords_are_added_to_other_fields(make: str) -> None:
    old = {"step_timeout": 9, "call_timeout": 5.0, "strict": True, "debug": True, "depth": 4, "monitor": False}
    found = options_of(make, **old, timeouts={"reset": 8}, engine=EngineOptions(timings=False))
    timeouts, engine = Timeouts(step=9, call=5, reset=8), {"depth": 4, "monitor": False, "timings": False}
    assert found == options_of(make, timeouts=timeouts, checks="all", engine=engine)


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.filterwarnings("ignore:.*has moved:DeprecationWarning")
def test_old_keyword_with_its_default_changes_nothing(make: str) -> None:
    old = {"strict": False, "debug": False, "worker_init": None, "ray": None, "on_failure": "recover"}
    assert options_of(make, **old) == options_of(make)
    with pytest.raises(ConfigError, match="strict=False and checks='all': one option is given twice"):
        options_of(make, strict=False, checks="all")


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize("checks", [None, "strict", "debug", "all"])
def test_checks_switch_on_strict_and_debug(make: str, checks: str | None) -> None:
    found, _ = options_of(make, checks=checks)
    assert (found.strict, found.debug) == (checks in ("strict", "all"), checks in ("debug", "all"))
    assert found.ignores_extra_keys is not found.strict


@pytest.mark.parametrize(
    "given, says",
    [
        ({"checks": "none"}, r"checks: expected one of \(None, 'strict', 'debug', 'all'\), got 'none'"),
        ({"checks": ["strict"]}, "checks: expected one of"),
        ({"engine": 3}, "engine: expected an EngineOptions or a dict, got 3"),
        ({"engine": {"dept": 3}}, "engine: unknown key 'dept'; did you mean 'depth'"),
        ({"engine": {"depth": 1}}, "EngineOptions: depth: expected a whole number of at least 2, got 1"),
        ({"engine": {"worker_init": 3}}, "EngineOptions: worker_init: expected a callable"),
    ],
    ids=str,
)
@pytest.mark.parametrize("make", MAKE)
def test_wrong_value_is_refused(make: str, given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        options_of(make, **given)


@pytest.mark.parametrize(("name", "hint"), [("step_timout", "timeouts={'step': ...}"), ("timouts", "'timeouts'")])
@pytest.mark.parametrize("make", ["VectorEnv", "BatchedVectorEnv"])
def test_hint_for_an_unknown_keyword_is_written_as_now(make: str, name: str, hint: str) -> None:
    with pytest.raises(TypeError) as caught:
        options_of(make, **{name: 3})
    assert str(caught.value) == f"{make}: there is no option {name!r}; did you mean {hint}?"
    assert isinstance(caught.value, ConfigError)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("n_envs", "write [env_fn] * num_envs"),
        ("num_envs", "write [env_fn] * num_envs"),
        ("start_method", "did you mean 'context'?"),
        ("seed", "write reset(seed=...)"),
    ],
)
def test_options_of_other_libraries_get_a_hint(name: str, hint: str) -> None:
    with pytest.raises(TypeError) as caught:
        options_of("VectorEnv", **{name: 3})
    assert str(caught.value) == f"VectorEnv: there is no option {name!r}; {hint}"


def test_hint_of_functions_that_pass_options_on_is_written_as_now() -> None:
    with pytest.raises(ConfigError, match=r"has no option 'worker_inits'; did you mean engine=\{'worker_init"):
        evaluate("CartPole-v1", lambda obs, env_id: env_id, episodes=1, worker_inits=3)


def test_functions_that_merge_options_take_the_old_keywords() -> None:
    with pytest.warns(DeprecationWarning, match="^close_timeout= has moved"):
        evaluate(ToyEnv, lambda obs, env_id: 0 * env_id, episodes=1, num_envs=1, backend="serial", close_timeout=9.0)
    with pytest.warns(DeprecationWarning, match="^construct_timeout= has moved"):
        found = tune("CartPole-v1", 1, seconds=0.2, lockstep=True, progress=False, options={"construct_timeout": 50.0})
    assert found.options["timeouts"] == {"construct": 50.0}


def test_spec_of_a_vector_env_has_the_new_forms() -> None:
    with pytest.warns(DeprecationWarning, match="^depth= has moved"):
        envs = make_vec("CartPole-v1", vectorization_mode="serial", depth=4)
    with contextlib.closing(envs), contextlib.closing(make_vec(envs.spec)) as again:
        assert again.pool.options == envs.pool.options and again.pool.options.depth == 4


@pytest.mark.parametrize("make", ["VectorEnv", "BatchedVectorEnv"])
def test_ray_options_are_a_backend(make: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    options = RayOptions(num_shards=1)
    with pytest.raises(DependencyError):
        MAKE[make](backend=options)
    for given in (options, {"num_shards": 1}):
        with (
            pytest.warns(DeprecationWarning, match=r"^ray= has moved: write backend=vecenv.RayOptions\(\.\.\.\)"),
            pytest.raises(DependencyError),
        ):
            MAKE[make](backend="ray", ray=given)


@pytest.mark.parametrize("make", ["VectorEnv", "BatchedVectorEnv"])
@pytest.mark.filterwarnings("ignore:ray= has moved:DeprecationWarning")
def test_wrong_ray_options_are_refused(make: str) -> None:
    with pytest.raises(ConfigError, match=r"^ray=.* and backend=RayOptions\(.*: one option is given twice"):
        MAKE[make](backend=RayOptions(), ray=RayOptions())
    with pytest.raises(ConfigError, match="ray: unknown key 'shards'"):
        MAKE[make](backend="ray", ray={"shards": 1})


def test_make_vec_takes_ray_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VECENV_DEBUG", "1")  # the pool is a serial one
    options = RayOptions(num_shards=1)
    with contextlib.closing(make_vec("CartPole-v1", backend=options)) as envs:
        assert isinstance(envs.spec, gymnasium.envs.registration.EnvSpec)
        assert envs.spec.kwargs["vectorization_mode"] == "ray"
        assert envs.spec.kwargs["vector_kwargs"] == {"backend": options}
        make_vec(envs.spec).close()
    with pytest.warns(DeprecationWarning, match="^ray= has moved"):
        envs = make_vec("CartPole-v1", vectorization_mode="ray", ray=options)
    with contextlib.closing(envs):
        assert envs.spec is not None and envs.spec.kwargs["vector_kwargs"] == {"backend": options}
