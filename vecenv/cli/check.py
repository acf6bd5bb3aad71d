"""`vecenv check`: play an env and print every rule it breaks; say whether its episodes survive a crash.

The env lives in a worker, which is asked for a part of the check at a time. An env that ends its process or hangs
breaks a rule, and does not end the command.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import re
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

import gymnasium

from vecenv.envs.adapt import adapt
from vecenv.envs.check.data import Violation, lacks_spaces
from vecenv.envs.check.episodes import exhaust
from vecenv.envs.check.interpreters import pickling_violations, sharing_violations
from vecenv.envs.check.recovery import compare_runs
from vecenv.envs.check.rules import run_part, run_rules
from vecenv.errors import ConfigError, VecenvError, WorkerDiedError, WorkerError, WorkerTimeoutError
from vecenv.measurement.env_names import find_env_fn
from vecenv.measurement.target import build_env
from vecenv.options import EngineOptions, FailurePolicy, Timeouts
from vecenv.vector.env import VectorEnv

__all__ = ["run"]

_BROKEN = 1
#: Seconds after which a worker that has nothing new to tell answers.
_PART_SECONDS = 0.05
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def run(options: argparse.Namespace) -> int:
    """Check, print; return 0 if no rule is broken, else 1."""
    env_fn = find_env_fn(options.env, options.env_kwargs)
    found: list[Violation] = []
    try:
        with _open(lambda: _CheckedEnv(env_fn, options), options.step_timeout) as ask:
            is_over = False
            while not is_over:
                lines, violations, is_over = ask()
                found.extend(violations)
                for line in lines:
                    print(line, flush=True)
        if not options.no_spawn:
            exhaust(run_part("pickling", pickling_violations(None, env_fn), found, print))
            if not lacks_spaces(found):
                exhaust(run_part("sharing", sharing_violations(env_fn, options.seed), found, print))
    except _Unloadable as error:
        found.append(Violation("pickling", f"cannot be sent to a new process: {error}"))
    except WorkerDiedError as error:
        how = error.signal_name or f"exit code {error.exitcode}"
        found.append(Violation("crash", f"the env ended its process: {how}{_place(error)}"))
    except WorkerTimeoutError as error:
        limit = f"{options.step_timeout:g} s (--step-timeout)"
        found.append(Violation("hang", f"a call of the env took longer than {limit}{_place(error)}"))
    for violation in found:
        print(f"  {violation}")
    count = len(found)
    print(f"{options.env}: " + (f"{count} rule{'s' * (count > 1)} broken" if count else "keeps every rule"))
    return _BROKEN if found else 0


class _Unloadable(Exception):
    """The module of the env cannot be imported in a worker."""


class _News(NamedTuple):
    """The result of a part of the check: lines to print, violations, and whether it was the last part."""

    lines: list[str]
    violations: list[Violation]
    is_over: bool


@contextlib.contextmanager
def _open(env_fn: Callable[[], gymnasium.Env[Any, Any]], limit: float) -> Iterator[Callable[[], _News]]:
    """Host a `_CheckedEnv` in a worker; yield the function that has it check the next part.

    The function raises WorkerDiedError and WorkerTimeoutError, and the error with which the env was refused.

    Raises:
        _Unloadable: the env could not be loaded in the worker.
    """
    try:
        envs = VectorEnv(
            [env_fn],
            num_workers=1,
            timeouts=Timeouts(call=limit, close=1.0),
            failures=FailurePolicy(on_failure="raise"),
            engine=EngineOptions(worker_output="all"),
        )
    except ImportError as error:
        raise _Unloadable(f"{type(error).__name__}: {error}") from error

    def ask() -> _News:
        (news,) = envs.call("check_next_part")
        if isinstance(news, VecenvError):
            raise news
        assert isinstance(news, _News)
        return news

    with contextlib.closing(envs):
        yield ask


class _CheckedEnv(gymnasium.Env[Any, Any]):
    """In the worker: builds the env of the user and checks it, a part at a time."""

    observation_space = action_space = gymnasium.spaces.Discrete(1)

    def __init__(self, env_fn: Callable[[], Any], options: argparse.Namespace) -> None:
        self._found: list[Violation] = []
        self._lines: list[str] = []
        self._num_told = 0
        self._steps = self._check(env_fn, options)

    def check_next_part(self) -> _News | VecenvError:
        """Check until there is something to tell, or for 50 ms and a step; return an error that refuses the env."""
        end, is_over = time.monotonic() + _PART_SECONDS, False
        try:
            while not (self._lines or self._num_told < len(self._found) or is_over or time.monotonic() > end):
                is_over = next(self._steps, self) is self
        except VecenvError as error:
            return error
        news = _News(self._lines, self._found[self._num_told :], is_over)
        self._lines, self._num_told = [], len(self._found)
        return news

    def _check(self, env_fn: Callable[[], Any], options: argparse.Namespace) -> Generator[None, None, None]:
        env = build_env(env_fn, options.env)
        try:
            limits = options.episodes, options.max_steps
            yield from run_rules(env, options.seed, *limits, self._found, lambda line: self._lines.append(line))
        finally:
            with _add_exceptions("close", self._found):
                adapt(env).close()  # not every env has `close`
        yield
        if options.determinism and lacks_spaces(self._found):
            self._lines.append("recovery after a crash: cannot be tried without proper spaces")
        elif options.determinism:
            with _add_exceptions("recovery", self._found, ConfigError):
                report = yield from compare_runs(env_fn, options.seed)
                self._lines += report.lines()
                if report.seeded is not None:
                    self._found.append(Violation("recovery", f"not reproducible: {report.seeded}"))

    def close(self) -> None:
        self._steps.close()


def _place(error: WorkerError) -> str:
    """Return where in the code of the env a worker was, the newest call first; '' if its error has no stack."""
    frames = re.findall(r'File "([^"]*)", line (\d+) in (\S+)', str(error))
    own = itertools.takewhile(lambda frame: not frame[0].startswith(_PACKAGE), frames)
    calls = [f"{name} ({file}:{line})" for file, line, name in own]
    return f"; it was in {', called by '.join(calls)}" if calls else ""


@contextlib.contextmanager
def _add_exceptions(rule: str, violations: list[Violation], *raised: type[Exception]) -> Iterator[None]:
    """Add an exception of the env to the violations; those of the classes `raised` are raised."""
    try:
        yield
    except BaseException as error:  # env code may raise any class
        if isinstance(error, (KeyboardInterrupt, GeneratorExit, *raised)):
            raise
        violations.append(Violation(rule, f"{type(error).__name__} raised: {error}"))
