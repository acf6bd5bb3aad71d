"""Errors: every exception of vecenv, on which all other modules stand.

    VecenvError(Exception)
    ├── ConfigError(ValueError, AssertionError)   a key or value is wrong; no process was started
    │   ├── ShortageError                         the system has no room for a start now; it may have later
    │   ├── UnknownNameError(KeyError)            a registry or suite has no such name
    │   └── WrongTypeError(TypeError)             an argument has another type, such as a bool for a count
    ├── SpaceError(ValueError, AssertionError)    a value does not fit its space
    │   ├── DifferentSpacesError(RuntimeError)    the spaces of two envs of a pool differ
    │   └── NotASequenceError(TypeError)          one value, where a sequence with one per env is expected
    ├── StateError(RuntimeError, AssertionError)  right call, wrong moment
    │   └── ClosedError                           after close(); your code closed it
    ├── WorkerError(RuntimeError)                 something failed on a worker's side
    │   ├── EnvError                              the exception of an env cannot be raised as itself
    │   ├── WorkerTimeoutError(TimeoutError, multiprocessing.TimeoutError)
    │   └── WorkerDiedError
    ├── DependencyError(ImportError)              an optional package is missing
    └── InternalError                             vecenv is wrong

    PerformanceWarning(UserWarning)               another setting would be much faster

The builtin second bases are there because ported programs catch them. Fields are keyword-only and have defaults, so
every error pickles, copies and can be raised with a message alone.
"""

from __future__ import annotations

import importlib
import multiprocessing
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

__all__ = [
    "ClosedError",
    "ConfigError",
    "DependencyError",
    "DifferentSpacesError",
    "EnvError",
    "ErrorRows",
    "InternalError",
    "NotASequenceError",
    "PerformanceWarning",
    "ShortageError",
    "SpaceError",
    "StateError",
    "UnknownNameError",
    "VecenvError",
    "WorkerDiedError",
    "WorkerError",
    "WorkerTimeoutError",
    "WrongTypeError",
]

_T = TypeVar("_T")
_Error = TypeVar("_Error", bound="WorkerError")

#: Whether Python's tracebacks show the notes of exceptions (3.11).
_SHOWS_NOTES = hasattr(BaseException, "add_note")

#: Packages whose lines callers do not write: this one, and those whose wrappers stand around its envs.
_NOT_CALLERS = frozenset({__name__.partition(".")[0], "gymnasium", "stable_baselines3", "tianshou"})


#: The extras of the package -> their requirements, for hints that name packages; as in pyproject.toml.
EXTRAS = {
    "atari": ("ale-py>=0.10", "opencv-python-headless>=4.8"),
    "board": ("pygame-ce>=2.4", "pettingzoo>=1.25", "chess>=1.10"),
    "cli": ("rich>=13", "matplotlib>=3.7", "shtab>=1.6"),
    "ding": ("DI-engine>=0.5",),
    "dm": ("dm-env>=1.6",),
    "gym": ("gym>=0.23",),
    "metrics": ("prometheus-client>=0.19",),
    "pettingzoo": ("pettingzoo>=1.25",),
    "pufferlib": ("pufferlib>=3.0",),
    "ray": ("ray>=2.50",),
    "rl_games": ("rl-games>=1.6",),
    "rllib": ("ray[rllib]>=2.50",),
    "sb3": ("stable-baselines3>=2.3",),
    "serve": ("tomli>=2",),
    "tianshou": ("tianshou>=2.0",),
    "torch": ("torch>=2.0",),
    "torchrl": ("torchrl>=0.14",),
    "treetensor": ("DI-treetensor>=0.4",),
    "video": ("gymnasium[classic-control]>=1.1", "moviepy>=1.0.3", "imageio[ffmpeg]>=2.30", "rich>=13"),
    "xuance": ("xuance>=1.4",),
}


class VecenvError(Exception):
    """Base of everything that vecenv raises on its own account."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)


class ConfigError(VecenvError, ValueError, AssertionError):
    """A config key, a value or an argument is wrong; nearly always raised before any process starts.

    Attributes:
        key: the config key or parameter at fault, or None.
    """

    def __init__(self, message: str = "", *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class ShortageError(ConfigError):
    """The system has no process, descriptor, thread, memory or shared memory left to start a worker or a shard.

    If that was a replacement of one that died, no episode is lost: the next call of the pool tries again.
    """


class UnknownNameError(ConfigError, KeyError):
    """A name was looked up that is not registered.

    Attributes:
        name: the name that was looked up.
        known: the registered names, in their order.
    """

    def __init__(
        self, message: str = "", *, name: str | None = None, known: Sequence[str] = (), key: str | None = None
    ) -> None:
        super().__init__(message, key=key)
        self.name = name
        self.known = tuple(known)

    def __str__(self) -> str:
        # KeyError would show the repr of the message, quotes and escapes included.
        return Exception.__str__(self)


class WrongTypeError(ConfigError, TypeError):
    """An argument has a type that another library uses for it, such as a bool where a count is expected."""


class SpaceError(VecenvError, ValueError, AssertionError):
    """An action, an observation or a reward does not fit its space.

    Attributes:
        path: where in the nested value, such as `obs/camera/left`, or None.
        expected: dtype and shape of the space, such as `uint8 (3, 64, 64)`.
        got: those of the value, in the same form.
    """

    def __init__(
        self, message: str = "", *, path: str | None = None, expected: str | None = None, got: str | None = None
    ) -> None:
        super().__init__(message)
        self.path = path
        self.expected = expected
        self.got = got


class NotASequenceError(SpaceError, TypeError):
    """A single value was given where a sequence is expected, such as `step(0)` of several envs."""


class DifferentSpacesError(SpaceError, RuntimeError):
    """The spaces of an env differ from those of env 0."""


class StateError(VecenvError, RuntimeError, AssertionError):
    """The call is right but comes at the wrong moment, such as a step before launch."""


class ClosedError(StateError):
    """The object was closed by the program that now uses it."""


class WorkerError(VecenvError, RuntimeError):
    """Something failed on a worker's side.

    Attributes:
        worker_id: index of the worker, or None.
        env_ids: the envs that it hosts, or those of them concerned.
        op: the operation that was running: construct, reset, step, call or close.
        step_id: number of the command that failed, counted over all envs of a pool, or None.
        seed: of the env's episode, when recovery has failed or is not wanted; None: an autoreset began it, or the seed
            is unknown. During an autoreset: of the previous episode.
        actions: then also the newest actions of that episode, with the running one: at most 8, oldest first, as the env
            got them; with `on_failure='raise'` only the running one. (): there were none, or they are not known.
        reproducer: path of a file that `vecenv replay` runs, or None.
    """

    def __init__(
        self,
        message: str = "",
        *,
        worker_id: int | None = None,
        env_ids: Sequence[int] = (),
        op: str | None = None,
        step_id: int | None = None,
        seed: int | None = None,
        actions: Sequence[Any] = (),
        reproducer: str | None = None,
    ) -> None:
        super().__init__(message)
        self.worker_id = worker_id
        self.env_ids = tuple(env_ids)
        self.op = op
        self.step_id = step_id
        self.seed = seed
        self.actions = tuple(actions)
        self.reproducer = reproducer


class EnvError(WorkerError):
    """An env raised an exception that cannot be raised again as itself, or its reply cannot be unpickled here.

    The class of that exception cannot be pickled or rebuilt, or does not exist in this process.

    Attributes:
        exception_type: qualified name of the class that the env raised, or None.
    """

    def __init__(self, message: str = "", *, exception_type: str | None = None, **where: Any) -> None:
        super().__init__(message, **where)
        self.exception_type = exception_type


class RemoteTraceback(Exception):
    """The traceback of a worker as text; the cause of the exception that is raised in the parent.

    Attributes:
        text: the traceback.
        place: worker_id, env_ids, op and step_id of the command that failed, as for `locate`.
    """

    def __init__(self, text: str, place: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.place = dict(place or {})

    def __str__(self) -> str:
        return f"\n\n{self.text}"


class WorkerTimeoutError(WorkerError, TimeoutError, multiprocessing.TimeoutError):
    """A worker did not answer in time. It may be alive; its late answer will be dropped.

    Attributes:
        timeout: the limit in seconds, or None.
    """

    def __init__(self, message: str = "", *, timeout: float | None = None, **where: Any) -> None:
        super().__init__(message, **where)
        self.timeout = timeout


class WorkerDiedError(WorkerError):
    """A worker process ended while it owed an answer.

    Attributes:
        exitcode: minus the signal's number if one killed it, or None if unknown.
    """

    def __init__(self, message: str = "", *, exitcode: int | None = None, **where: Any) -> None:
        super().__init__(message, **where)
        self.exitcode = exitcode

    @property
    def signal(self) -> int | None:
        """Number of the signal that killed the worker, such as 11; None if none did."""
        return -self.exitcode if self.exitcode is not None and self.exitcode < 0 else None

    @property
    def signal_name(self) -> str | None:
        """Name of the signal that killed the worker, such as SIGSEGV; None if none did."""
        return signal_name(self.exitcode)


class DependencyError(VecenvError, ImportError):
    """An optional package is missing or broken.

    Attributes:
        package: the module that could not be imported.
        extra: the extra of vecenv that brings it.
    """

    def __init__(self, message: str = "", *, package: str | None = None, extra: str | None = None) -> None:
        super().__init__(message)
        self.package = package
        self.extra = extra


class InternalError(VecenvError):
    """An invariant of vecenv itself is broken."""

    def __str__(self) -> str:
        return f"{super().__str__()}; this is a bug in vecenv, please report it with this traceback"


class PerformanceWarning(UserWarning):
    """Another setting would make the program much faster; the text contains the measurement and the setting."""


class ErrorRows(NamedTuple):
    """The answers of the other envs in a call in which an env raised: the attribute `rows` of its exception.

    Attributes:
        result: the value that the call would have returned. The row of an env that raised repeats its last observation,
            or contains zeros if it had none. Its reward is 0, its episode has not ended, and it has no info.
        mask: bool array, one value per row of `result`; False for the envs that raised.
    """

    result: Any
    mask: Any


def take_rows(error: BaseException) -> ErrorRows | None:
    """Remove the `ErrorRows` of an exception, and return them; None if it has none."""
    return vars(error).pop("rows") if isinstance(vars(error).get("rows"), ErrorRows) else None


def convert_rows(error: BaseException, convert: Callable[[Any], Any], index: Any = ...) -> None:
    """Convert the result in the `ErrorRows` of an exception, if it has them; `index` selects its rows that remain."""
    rows = take_rows(error)
    if rows is not None:
        vars(error)["rows"] = ErrorRows(convert(rows.result), rows.mask[index])


def converted(convert: Callable[[Any], _T], function: Callable[..., Any], *args: Any, **kwargs: Any) -> _T:
    """Return the converted result of a function; the `ErrorRows` of its exception are converted, too."""
    try:
        return convert(function(*args, **kwargs))
    except Exception as error:
        convert_rows(error, convert)
        raise


def signal_name(exitcode: int | None) -> str | None:
    """Name the signal behind a negative exit code; None for any other exit code."""
    if exitcode is None or exitcode >= 0:
        return None
    try:
        return signal.Signals(-exitcode).name
    except ValueError:  # most real-time signals have no name
        return f"signal {-exitcode}"


def locate(
    error: _Error,
    *,
    worker_id: int | None = None,
    env_ids: Iterable[int] = (),
    op: str | None = None,
    step_id: int | None = None,
) -> _Error:
    """Attach to an error where it happened, and return it. The engine sets these fields of `WorkerError` here only."""
    error.worker_id, error.env_ids, error.op, error.step_id = worker_id, tuple(env_ids), op, step_id
    return error


def place_of(error: BaseException) -> dict[str, Any]:
    """Return where an exception of an env happened, as arguments for `locate`; {} if that is unknown."""
    if isinstance(error, WorkerError):
        return {"worker_id": error.worker_id, "env_ids": error.env_ids, "op": error.op, "step_id": error.step_id}
    return error.__cause__.place if isinstance(error.__cause__, RemoteTraceback) else {}


def add_notes(error: BaseException, notes: Iterable[str]) -> None:
    """Add notes to an exception; with Python 3.10 also to its remote traceback, or to the message of a VecenvError."""
    for note in notes:
        vars(error).setdefault("__notes__", []).append(note)  # as `add_note` does
        if _SHOWS_NOTES:
            continue
        link: BaseException | None = error
        while link is not None and not isinstance(link, RemoteTraceback):
            link = link.__cause__
        if link is not None:
            link.text = f"{link.text.rstrip()}\n{note}\n"
        elif isinstance(error, VecenvError):
            error.args = (f"{error.args[0]}\n{note}", *error.args[1:])


def warn_caller(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line of the stack that callers write: that one can be changed."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _NOT_CALLERS:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def describe_exit(exitcode: int | None) -> str:
    """Say in words how a process ended, for the middle of an error's message.

    >>> describe_exit(3)
    'exit code 3'
    >>> describe_exit(-11)
    'killed by SIGSEGV (exit code -11)'
    """
    if exitcode is None:
        return "exit code unknown"
    name = signal_name(exitcode)
    if name is None:
        return f"exit code {exitcode}"
    hint = "; often the system's memory killer" if name == "SIGKILL" else ""
    return f"killed by {name} (exit code {exitcode}){hint}"


def require(module_name: str, extra: str) -> ModuleType:
    """Import an optional library at the moment of use.

    Args:
        module_name: dotted name, such as `cv2` or `matplotlib.pyplot`.
        extra: the extra of vecenv that installs it.

    Raises:
        DependencyError: it is not installed, or fails to import.
    """
    try:
        return importlib.import_module(module_name)
    except ImportError as error:
        top = module_name.partition(".")[0]
        missing = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == top
        trouble = "is not installed" if missing else f"cannot be imported ({error})"
        packages = " ".join(f'"{requirement}"' for requirement in EXTRAS[extra])
        message = f"package {module_name!r} {trouble}; run: pip install {packages}"
        raise DependencyError(message, package=module_name, extra=extra) from error
