"""Options that every front end takes: time limits, and the policy for workers that fail; and those of the engine.

    Timeouts, FailurePolicy, EngineOptions          the values that users pass as `timeouts=`, `failures=`, `engine=`
    read_timeouts, read_failures, read_engine       such a value, its short form, and single keywords, as one value

Defaults are in `core/options.py` and `managers/options.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .errors import ConfigError
from .values.checks import check_callable, check_choice, check_flag, check_seconds, check_whole, is_positive, nearest

__all__ = ["EngineOptions", "FailurePolicy", "Timeouts"]


class _Unset:
    """Type of `UNSET`."""

    def __repr__(self) -> str:
        return "<default>"


#: Default of a keyword that is also a field of `Timeouts` or `FailurePolicy`. It shows whether the caller gave it.
UNSET: Any = _Unset()


class _Options:
    """Base of the three classes: checks the fields that are given, and shows only these."""

    def __post_init__(self) -> None:
        for name, value in given_fields(self).items():
            object.__setattr__(self, name, check_option(name, value, owner=type(self).__name__))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in given_fields(self).items())
        return f"{type(self).__name__}({shown})"


@dataclass(frozen=True, kw_only=True, repr=False)
class Timeouts(_Options):
    """Time limits in seconds, the argument `timeouts=` of every front end.

    A number instead, `timeouts=10.0`, limits `step` and `reset`. Each limit is a number above 0, or None for the
    default of the front end. `math.inf` switches a limit off. A limit holds for one operation of one env; `close` holds
    for all envs together. With `BatchedVectorEnv` one batch counts as one env. After a step, reset or call over its
    limit, a front end that recovers hangs (see `FailurePolicy`) replaces the worker and continues; the others raise
    WorkerTimeoutError, which is a TimeoutError. An operation of a worker without a limit is reported in the log and by
    a RuntimeWarning, with the Python stack of the worker, after 10 s, 60 s, and then every 10 minutes.

    The defaults below are those of all front ends, except where a field names another one. `GymVectorEnvManager` has
    those of the `VectorEnv` that it builds.

    Example:
        >>> import gymnasium, math, vecenv
        >>> timeouts = Timeouts(step=10.0, construct=math.inf)
        >>> timeouts
        Timeouts(step=10.0, construct=inf)
        >>> dataclasses.replace(timeouts, reset=30)
        Timeouts(step=10.0, reset=30, construct=inf)
        >>> envs = vecenv.VectorEnv([lambda: gymnasium.make("CartPole-v1")], backend="serial", timeouts=timeouts)
        >>> envs.close()

    Attributes:
        step: one step of one env. Default: no limit. Set it where a simulator can hang, to several times the longest
            step that you have seen. A reset that a vector env makes within a step counts as part of the step.
        reset: one reset of one env. Default: no limit; in managers with workers 60 s, their `connect_timeout`.
        construct: the constructor of one env, and the start of a worker up to its first constructor, without the time
            for which the worker waits for a core. Default: 60 s; in managers without workers no limit. Raise it for
            envs that load large files.
        call: one call of a method of one env, such as `render` or `set_attr`. Default: no limit.
        close: closing all envs at the end. Workers that are still busy then are killed. Default: 5 s. Raise it where
            envs write files as they close.

    With `backend="serial"` and in managers without workers a constructor and a `close` cannot be interrupted.

    Raises:
        ConfigError: a field is neither None nor a number above 0.
    """

    step: float | None = None
    reset: float | None = None
    construct: float | None = None
    call: float | None = None
    close: float | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class FailurePolicy(_Options):
    """Policy for workers that die or hang, the argument `failures=` of every front end.

    A string instead, `failures="raise"`, is `on_failure`. A field that is None has the default of the front end,
    so `FailurePolicy(max_restarts=5)` changes one number and recovery stays on. The defaults below are those of all
    front ends, except where a field names another one; `GymVectorEnvManager` has those of the `VectorEnv` that it
    builds. With `backend="serial"` only `on_exception` and its limit have an effect, in managers without workers none.

    Example:
        >>> import gymnasium, vecenv
        >>> failures = FailurePolicy(max_restarts=5)
        >>> failures
        FailurePolicy(max_restarts=5)
        >>> dataclasses.replace(failures, on_repeat="raise")
        FailurePolicy(on_repeat='raise', max_restarts=5)
        >>> envs = vecenv.VectorEnv([lambda: gymnasium.make("CartPole-v1")], backend="serial", failures=failures)
        >>> envs.close()

    Attributes:
        on_failure: 'recover' (the default) replaces the worker, repeats the commands of its envs and continues the
            call. 'raise' raises WorkerDiedError or WorkerTimeoutError, for an env that you debug.
        on_repeat: the reaction when the same call of an env ends a second worker (an eighth one if the signal came
            from outside, such as that of the memory killer). 'truncate' (the default) writes a reproducer file and
            ends the episode as truncated; if that does not help either, the error is raised. 'raise' raises at once,
            where a truncated episode would spoil the data.
        on_exception: the reaction when `step` or `reset` of an env raises. 'raise' (the default): the exception reaches
            the caller, with the answers of the other envs in its attribute `rows`, see `vecenv.ErrorRows`. 'truncate':
            only this env's episode ends, as truncated with reward 0 and its last observation once more;
            `infos["error"]` contains the exception as text, and `infos["recovered"]` is 'truncated'. If a reset raises,
            the env is built again and reset; its first row is marked 'restarted', with the same "error". Each exception
            counts in `max_restarts` and in `statistics().envs.exceptions`. KeyboardInterrupt and SystemExit are not
            caught. Managers of DI-engine accept only 'raise': they have `max_retry`, `retry_type` and `on_step_error`.
        recover_hangs: whether an operation over its limit is recovered like a death. Default: True; managers raise
            TimeoutError instead, as DI-engine's do, and accept only False.
        max_restarts: failures with the same env at work that are accepted within `restart_window`, exceptions included
            with `on_exception='truncate'`; the next one is raised. Failures while no env is at work: ten times as many.
            Default: 32. 0: the first failure is raised.
        restart_window: seconds over which failures are counted. Default: 60. Lengthen it to stop a run that fails
            rarely but repeatedly.
        max_log_bytes: memory in bytes for the commands and states from which episodes are repeated, all envs
            together; `statistics()["log_nbytes"]` is the part in use. Default: 64 MiB. Raise it for large actions or
            long episodes. 0: nothing is kept, so an episode that a death interrupts ends as truncated.
        recovery_timeout: seconds that the repetition of one env's episode may take; each repeated step has its own
            limit, too. Default: 60 s, or ten times the step limit if that is more. Raise it for long episodes of slow
            envs. `math.inf`: no limit.
        recycle_after: replaces workers between two batches, after a number of episodes of one env, `{'episodes': K}`,
            or above an amount of memory in MiB, `{'rss_mb': M}`. Default: never. Use it for simulators that leak
            memory. Memory is freed only if the env begins from a seeded reset or a state; if all its commands have to
            be repeated, it leaks again, and the worker then stays for 20 times as long as the repetition took. An
            episode that cannot be repeated ends as truncated. `BatchedVectorEnv` takes 'rss_mb' only.
        reproducer_dir: existing folder for reproducer files, which `vecenv replay FILE` runs. Default: the temporary
            folder of the system.

    Raises:
        ConfigError: a field has a value that it cannot have.
    """

    on_failure: str | None = None
    on_repeat: str | None = None
    on_exception: str | None = None
    recover_hangs: bool | None = None
    max_restarts: int | None = None
    restart_window: float | None = None
    max_log_bytes: int | None = None
    recovery_timeout: float | None = None
    recycle_after: Mapping[str, float] | None = field(default=None, hash=False)  # a dict has no hash
    reproducer_dir: str | os.PathLike[str] | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class EngineOptions(_Options):
    """Options of the engine that most programs leave alone, the argument `engine=` of vector envs.

    A field that is None has its default. Managers and ALF's environments have options of these names instead.

    Example:
        >>> import gymnasium, vecenv
        >>> engine = EngineOptions(depth=4, monitor=False)
        >>> engine
        EngineOptions(depth=4, monitor=False)
        >>> envs = vecenv.VectorEnv([lambda: gymnasium.make("CartPole-v1")], backend="serial", engine=engine)
        >>> envs.close()

    Attributes:
        depth: number of batches in shared memory, at least 2. Default: 3. See `copy=False` of `VectorEnv`.
        build: how a worker with several threads builds its envs. 'parallel' (default): all threads at the same time. An
            env that draws from the global random generators (`random`, `numpy.random`) in its constructor is closed and
            built again by itself, so that its random values do not depend on other envs. 'serial': one env after the
            other, for constructors that must not run at the same time; constructors that wait get no further workers.
        timings: count in the workers how long each step and reset takes, see `statistics`. Costs about 10 ns each.
            Default: True. If False, `statistics()` has no times, and envs that wait are not found.
        monitor: write a small file by which `vecenv top` finds this pool, with mode 0600 below XDG_RUNTIME_DIR or the
            temporary folder. It costs nothing while `vecenv top` does not run. Default: True.
        worker_output: the output of workers. 'once' (default): equal lines that workers print while envs are built,
            such as banners, are shown once with their number; later lines are shown as they are. 'all': all lines are
            shown as they are. 'none': lines are shown only if building the envs fails.
        worker_init: a function without arguments. Each worker, and each successor of a worker, calls it before it
            builds envs. It makes settings that do not travel by themselves, such as those of modules, and patches. With
            `backend="serial"`, it is not called: that process is the program's own. Default: there is none.

    Raises:
        ConfigError: a field has a value that it cannot have.
    """

    depth: int | None = None
    build: str | None = None
    timings: bool | None = None
    monitor: bool | None = None
    worker_output: str | None = None
    worker_init: Callable[[], object] | None = None


#: What front ends take as `timeouts`, `failures` and `engine`.
TimeoutsLike = Timeouts | Mapping[str, Any] | float | None
FailuresLike = FailurePolicy | Mapping[str, Any] | str | None
EngineLike = EngineOptions | Mapping[str, Any] | None

_Values = TypeVar("_Values")


# ---- checks --------------------------------------------------------------------------------------


def _choice(*choices: str) -> Callable[[str, Any], str]:
    def check(name: str, value: Any) -> str:
        check_choice(name, value, choices)
        return str(value)

    return check


def _callable(name: str, value: Any) -> Callable[[], object]:
    check_callable(name, value)
    found: Callable[[], object] = value
    return found


def _recycling(name: str, value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name}: expected a dict, got {value!r}", key=name)
    for key, most in value.items():
        if key not in ("episodes", "rss_mb"):
            raise ConfigError(f"{name}: unknown key {key!r}; known are 'episodes' and 'rss_mb'", key=name)
        if not is_positive(most):
            raise ConfigError(f"{name}[{key!r}]: expected a number above 0, got {most!r}", key=name)
    if not value:
        raise ConfigError(f"{name}: expected 'episodes', 'rss_mb' or both, got {value!r}", key=name)
    return dict(value)


def _folder(name: str, value: Any) -> str:
    if not (isinstance(value, str | os.PathLike) and os.path.isdir(value)):
        raise ConfigError(f"{name}: expected an existing folder, got {value!r}", key=name)
    return str(os.fspath(value))


#: Field -> check(name, value), which returns the value in Python's types or raises ConfigError.
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "step": check_seconds,
    "reset": check_seconds,
    "construct": check_seconds,
    "call": check_seconds,
    "close": check_seconds,
    "on_failure": _choice("recover", "raise"),
    "on_repeat": _choice("truncate", "raise"),
    "on_exception": _choice("raise", "truncate"),
    "recover_hangs": check_flag,
    "max_restarts": functools.partial(check_whole, low=0),
    "restart_window": check_seconds,
    "max_log_bytes": functools.partial(check_whole, low=0),
    "recovery_timeout": check_seconds,
    "recycle_after": _recycling,
    "reproducer_dir": _folder,
    "depth": functools.partial(check_whole, low=2),
    "build": _choice("parallel", "serial"),
    "timings": check_flag,
    "monitor": check_flag,
    "worker_output": _choice("once", "all", "none"),
    "worker_init": _callable,
}


def check_option(option: str, value: Any, *, name: str | None = None, owner: str = "") -> Any:
    """Return the value of a field of `Timeouts`, `FailurePolicy` or `EngineOptions`, not None, in Python's types.

    `name` and `owner` are other words for the option, and the class that takes it, for messages.

    Raises:
        ConfigError: the option cannot have this value.
    """
    try:
        return _CHECKS[option](name or option, value)
    except ConfigError as error:
        if not owner:
            raise
        raise ConfigError(f"{owner}: {error}", key=error.key) from None


# ---- what front ends do with them ----------------------------------------------------------------


def given_fields(options: Any) -> dict[str, Any]:
    """Return the fields of a `Timeouts`, `FailurePolicy` or `EngineOptions` that are not None, by name."""
    values = {one.name: getattr(options, one.name) for one in dataclasses.fields(options)}
    return {name: value for name, value in values.items() if value is not None}


def read_timeouts(timeouts: Any, *, owner: str = "", **limits: Any) -> Timeouts:
    """Return the argument `timeouts` of a front end and its single limits as one value.

    Args:
        timeouts: a `Timeouts`, a dict of its fields, a number for `step` and `reset`, or None.
        owner: class of the front end, for messages.
        **limits: `step_timeout` and so on: seconds, None for no limit, or `UNSET`.

    Raises:
        ConfigError: a value is wrong, or a limit is given twice.
    """
    if not isinstance(timeouts, bool) and isinstance(timeouts, numbers.Real):
        timeouts = {"step": timeouts, "reset": timeouts}
    found = read_fields("timeouts", Timeouts, timeouts, owner, "seconds, ")
    return _add_single(found, "timeouts", limits, owner)


def read_failures(failures: Any, *, owner: str = "", **single: Any) -> FailurePolicy:
    """Return the argument `failures` of a front end and its single options as one value.

    Args:
        failures: a `FailurePolicy`, a dict of its fields, a value of `on_failure`, or None.
        owner, **single: as for `read_timeouts`: `on_failure` and so on, not None, or `UNSET`.

    Raises:
        ConfigError: a value is wrong, or an option is given twice.
    """
    if isinstance(failures, str):
        failures = {"on_failure": failures}
    found = read_fields("failures", FailurePolicy, failures, owner, "'recover', 'raise', ")
    return _add_single(found, "failures", single, owner)


def _add_single(found: _Values, argument: str, single: Mapping[str, Any], owner: str) -> _Values:
    """Return the value of an argument with options that were given by keywords of their own."""
    given: dict[str, Any] = {}
    for name, value in single.items():
        if value is not UNSET:
            is_limit = isinstance(found, Timeouts)
            option = name.removesuffix("_timeout") if is_limit else name
            is_off = is_limit and value is None
            given[option] = math.inf if is_off else check_option(option, value, name=name, owner=owner)
            check_once(name, value, argument, getattr(found, option), found, owner)
    return dataclasses.replace(found, **given)  # type: ignore[type-var]  # it is a dataclass


def read_engine(engine: Any) -> EngineOptions:
    """Return the argument `engine` of a front end, an `EngineOptions`, a dict of its fields, or None, as one value.

    Raises:
        ConfigError: a key is unknown, or a value is wrong.
    """
    return read_fields("engine", EngineOptions, engine)


def read_fields(argument: str, cls: type[_Values], value: Any, owner: str = "", others: str = "") -> _Values:
    """Return an argument that is a value of a dataclass, a dict of its fields, or None for the defaults.

    Args:
        argument: its name.
        cls: the dataclass.
        value: as the user gave it.
        owner: class of the front end, for messages.
        others: other values that the front end takes, for messages; it ends in a comma and a space.

    Raises:
        ConfigError: a key is unknown, or a value is wrong.
    """
    if isinstance(value, cls):
        return value
    where = f"{owner}: {argument}" if owner else argument
    if value is not None and not isinstance(value, Mapping):
        kind = f"{'an' if cls is EngineOptions else 'a'} {cls.__name__}"
        raise ConfigError(f"{where}: expected {others}{kind} or a dict, got {value!r}", key=argument)
    given = dict(value or {})
    known = [one.name for one in dataclasses.fields(cls)]  # type: ignore[arg-type]  # it is a dataclass
    for key in given:
        if key not in known:
            near = nearest(key, known)
            hint = f"; did you mean {near!r}?" if near else f"; known are {known}"
            raise ConfigError(f"{where}: unknown key {key!r}{hint}", key=str(key))
    return cls(**given)


def check_once(name: str, value: Any, argument: str, other: Any, found: Any, owner: str = "") -> None:
    """Raise ConfigError if an option is given by a keyword `name` of its own, and as `other` in another `argument`."""
    if other is not None:
        where = f"{owner}: " if owner else ""
        raise ConfigError(
            f"{where}{name}={value!r} and {argument}={found!r}: one option is given twice; leave one of them out",
            key=name,
        )
