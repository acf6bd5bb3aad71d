"""Under the check: does an env, or what builds it, get into a fresh interpreter, as into a worker?"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle

from vecenv.envs.check.actions import is_ding
from vecenv.envs.check.data import Violation

__all__ = ["pickling_violations"]

SPAWN_TIMEOUT = 120.0  # seconds for a fresh interpreter to import what the env needs


def pickling_violations(env: Any, env_fn: Callable[[], Any] | None) -> Iterator[Violation]:
    """Find out by sending `env_fn` and calling it there, or the env itself where there is none."""
    trouble = _spawn_trouble(env) if env_fn is None else _spawn_trouble(env_fn, "(); getattr(value, 'close', list)()")
    spec = getattr(env, "spec", None)
    if env_fn is None and trouble is not None and spec is not None and not is_ding(env):
        trouble = _spawn_trouble(spec)  # what workers make it from
    if trouble is not None:
        yield Violation("pickling", f"cannot be sent to a new process: {trouble}")


def _spawn_trouble(value: Any, use: str = "") -> str | None:
    """Send a value to a fresh interpreter, which imports nothing of the running program's main module.

    Args:
        value: what to send.
        use: what is done with `value` there, as code that follows it.
    """
    try:
        data = cloudpickle.dumps(value)
    except (TypeError, ValueError, AttributeError, RecursionError, pickle.PicklingError) as error:
        return f"{type(error).__name__}: {error}"
    environment = {**os.environ, "PYTHONPATH": _search_path()}
    program = f"import pickle, sys; value = pickle.load(sys.stdin.buffer){use}"
    try:
        child = subprocess.run(
            [sys.executable, "-c", program], input=data, env=environment, capture_output=True, timeout=SPAWN_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return f"a new process did not load it within {SPAWN_TIMEOUT} s"
    if child.returncode == 0:
        return None
    lines = child.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {child.returncode}"


def _search_path() -> str:
    """Give where modules are looked for; without the working directory if that was removed."""
    with contextlib.suppress(FileNotFoundError):
        return os.pathsep.join(path or os.getcwd() for path in sys.path)
    return os.pathsep.join(filter(None, sys.path))
