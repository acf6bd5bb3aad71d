"""The check that an env, or its constructor, can be loaded in a new interpreter, as in a worker."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from vecenv.envs.check.actions import is_ding
from vecenv.envs.check.data import Violation
from vecenv.gymnasium_api.registrations import pickle_registrations
from vecenv.values.pickling import dump_with_main

__all__ = ["SPAWN_TIMEOUT", "interpreter_environment", "new_interpreter", "pickling_violations", "registered_value"]

SPAWN_TIMEOUT = 120.0  # seconds; the new interpreter has to import the env's modules
_PROGRAM = """\
import pickle, sys
from vecenv.values.pickling import adopt_main, load_with_main
from vecenv.gymnasium_api.registrations import apply_registrations
adopt_main()
settings, data = pickle.load(sys.stdin.buffer)
apply_registrations(settings)
value = load_with_main(data)"""


def pickling_violations(env: Any, env_fn: Callable[[], Any] | None) -> Iterator[Violation]:
    """Yield a violation if `env_fn` cannot be sent to a new interpreter and called there.

    If `env_fn` is None, the env itself is sent, or its spec if that fails.
    """
    problem = _spawn_error(env) if env_fn is None else _spawn_error(env_fn, "(); getattr(value, 'close', list)()")
    spec = getattr(env, "spec", None)
    if env_fn is None and problem is not None and spec is not None and not is_ding(env):
        problem = _spawn_error(spec)  # workers can make the env from its spec
    if problem is not None:
        yield Violation("pickling", f"cannot be sent to a new process: {problem}")


def _spawn_error(value: Any, use: str = "") -> str | None:
    """Send a value to a new interpreter, which does not import this program's main module but has its registry.

    `use` is code appended to the expression that loads the value there. The error is returned, or None.
    """
    try:
        sent = registered_value(value)
    except (TypeError, ValueError, AttributeError, RecursionError, pickle.PicklingError) as error:
        return f"{type(error).__name__}: {error}"
    environment = interpreter_environment()
    try:
        child = subprocess.run(
            new_interpreter(use), input=sent, env=environment, capture_output=True, timeout=SPAWN_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return f"a new process did not load it within {SPAWN_TIMEOUT} s"
    if child.returncode == 0:
        return None
    lines = child.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {child.returncode}"


def registered_value(value: Any) -> bytes:
    """Return the standard input of `new_interpreter`: this program's registrations, and a value."""
    return pickle.dumps((pickle_registrations(), dump_with_main(value)))


def new_interpreter(use: str) -> list[str]:
    """Return the command of an interpreter that loads a `registered_value`; `use` is code after that expression."""
    return [sys.executable, "-c", f"{_PROGRAM}{use}"]


def interpreter_environment() -> dict[str, str]:
    """Return environment variables with which a new interpreter finds the modules that this one finds."""
    return {**os.environ, "PYTHONPATH": _search_path()}


def _search_path() -> str:
    """Return `sys.path` as one string, without the working directory if that was removed."""
    with contextlib.suppress(FileNotFoundError):
        return os.pathsep.join(path or os.getcwd() for path in sys.path)
    return os.pathsep.join(filter(None, sys.path))
