"""Checks in new interpreters: an env can be loaded as in a worker, and envs in one process do not disturb each other.

Envs disturb each other if they have state that belongs to the whole process, such as a variable of a module, or a
global variable of a C library. The envs of one worker share it, and so the results depend on the number of workers.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from vecenv.envs.check.data import Violation
from vecenv.envs.check.episodes import Run, find_difference, is_ding
from vecenv.gymnasium_api.registrations import pickle_registrations
from vecenv.values.pickling import dump_with_main

__all__ = ["pickling_violations", "play_copies", "sharing_violations"]

_TIMEOUT = 120.0  # seconds; the new interpreter has to import the env's modules
_PROGRAM = """\
import pickle, sys
from vecenv.values.pickling import adopt_main, load_with_main
from vecenv.gymnasium_api.registrations import apply_registrations
adopt_main()
settings, data = pickle.load(sys.stdin.buffer)
apply_registrations(settings)
value = load_with_main(data)"""
#: Episodes of each env, and most steps of one.
_EPISODES, _MAX_STEPS = 2, 100
#: The copies that play in each new interpreter. The second run of copy 0 shows whether it can be repeated at all.
_CASTS = ((0,), (0,), (1,), (0, 1))
_Episodes = list[list[tuple[Any, ...]]]


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
        sent = _registered(value)
    except (TypeError, ValueError, AttributeError, RecursionError, pickle.PicklingError) as error:
        return f"{type(error).__name__}: {error}"
    environment = _environment()
    try:
        child = subprocess.run(_interpreter(use), input=sent, env=environment, capture_output=True, timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        return f"a new process did not load it within {_TIMEOUT} s"
    if child.returncode == 0:
        return None
    lines = child.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {child.returncode}"


def sharing_violations(env_fn: Callable[[], Any], seed: int) -> Iterator[Violation]:
    """Yield a violation if two copies of an env that take turns in one process differ from each copy alone.

    Every run has a new interpreter. An env that fails alone, or whose runs alone differ already, is not judged.
    The seed of the second copy is higher by one.
    """
    alone, again, other, together = _play_in_interpreters(env_fn, seed)
    if alone is None or again is None or other is None or _compare(alone[0], again[0]) is not None:
        return
    advice = "they have process-wide state; num_workers=num_envs gives each env a process of its own"
    if together is None:
        yield Violation("sharing", f"two envs that take turns in one process fail, but not one alone: {advice}")
        return
    for copy_id, expected in enumerate((alone[0], other[1])):
        found = _compare(together[copy_id], expected)
        if found is not None:
            yield Violation(
                "sharing", f"two envs that take turns in one process differ from each one alone ({found}): {advice}"
            )
            return


def play_copies(env_fn: Callable[[], Any], seed: int, copy_ids: Sequence[int], result: Path) -> None:
    """Build copies of an env and play episodes with them alternately, step by step; write the results by copy.

    The seed of copy i is `seed + i`.
    """
    with contextlib.ExitStack() as stack:
        runs = {i: stack.enter_context(contextlib.closing(Run(env_fn, seed + i))) for i in copy_ids}
        played: dict[int, _Episodes] = {i: [] for i in copy_ids}
        for episode in range(_EPISODES):
            results = {i: run.results(_MAX_STEPS, {} if episode else {"seed": seed + i}) for i, run in runs.items()}
            for i in copy_ids:
                played[i].append([])
            while results:
                for i, iterator in list(results.items()):
                    step = next(iterator, None)
                    if step is None:
                        del results[i]
                    else:
                        played[i][episode].append(step)
    result.write_bytes(pickle.dumps(played))


def _compare(one: _Episodes, other: _Episodes) -> str | None:
    found = (find_difference(*pair, f"episode {episode}") for episode, pair in enumerate(zip(one, other, strict=True)))
    return next(filter(None, found), None)


def _play_in_interpreters(env_fn: Callable[[], Any], seed: int) -> list[dict[int, _Episodes] | None]:
    """Return the result of `play_copies` for each cast; None if its interpreter failed or took too long.

    The check of pickling reports why, because it builds an env in a new interpreter, too.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        children = []
        for number, cast in enumerate(_CASTS):
            sent, result = Path(folder, f"sent{number}"), Path(folder, f"result{number}")
            sent.write_bytes(_registered(functools.partial(play_copies, env_fn, seed, cast, result)))
            child = subprocess.Popen(
                _interpreter("()"),
                stdin=stack.enter_context(sent.open("rb")),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_environment(),
            )
            stack.callback(_end, child)
            children.append((child, result))
        deadline = time.monotonic() + _TIMEOUT
        return [_result_of(child, result, deadline) for child, result in children]


def _result_of(child: subprocess.Popen[bytes], result: Path, deadline: float) -> dict[int, _Episodes] | None:
    try:
        if child.wait(max(0.0, deadline - time.monotonic())) != 0:
            return None
    except subprocess.TimeoutExpired:
        return None
    played: dict[int, _Episodes] = pickle.loads(result.read_bytes())
    return played


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()


def _registered(value: Any) -> bytes:
    """Return the standard input of `_interpreter`: this program's registrations, and a value."""
    return pickle.dumps((pickle_registrations(), dump_with_main(value)))


def _interpreter(use: str) -> list[str]:
    """Return the command of an interpreter that loads a `_registered`; `use` is code after that expression."""
    return [sys.executable, "-c", f"{_PROGRAM}{use}"]


def _environment() -> dict[str, str]:
    """Return environment variables with which a new interpreter finds the modules that this one finds."""
    return {**os.environ, "PYTHONPATH": _search_path()}


def _search_path() -> str:
    """Return `sys.path` as one string, without the working directory if that was removed."""
    with contextlib.suppress(FileNotFoundError):
        return os.pathsep.join(path or os.getcwd() for path in sys.path)
    return os.pathsep.join(filter(None, sys.path))
