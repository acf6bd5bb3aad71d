"""The check that envs do not disturb each other in one process, as those do whose state belongs to the whole process.

Such state is a variable of a module, or a global variable of a C library. The envs of one worker share it, and so the
results depend on the number of workers.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from vecenv.envs.check.data import Violation
from vecenv.envs.check.episodes import Run, find_difference
from vecenv.envs.check.pickling import SPAWN_TIMEOUT, interpreter_environment, new_interpreter, registered_value

__all__ = ["play_copies", "sharing_violations"]

#: Episodes of each env, and most steps of one.
_EPISODES, _MAX_STEPS = 2, 100
#: The copies that play in each new interpreter. The second run of copy 0 shows whether it can be repeated at all.
_CASTS = ((0,), (0,), (1,), (0, 1))
_Episodes = list[list[tuple[Any, ...]]]


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
    for episode, (left, right) in enumerate(zip(one, other, strict=True)):
        found = find_difference(left, right, f"episode {episode}")
        if found is not None:
            return found
    return None


def _play_in_interpreters(env_fn: Callable[[], Any], seed: int) -> list[dict[int, _Episodes] | None]:
    """Return the result of `play_copies` for each cast; None if its interpreter failed or took too long.

    The check of pickling reports why, because it builds an env in a new interpreter, too.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        children = []
        for number, cast in enumerate(_CASTS):
            sent, result = Path(folder, f"sent{number}"), Path(folder, f"result{number}")
            sent.write_bytes(registered_value(functools.partial(play_copies, env_fn, seed, cast, result)))
            child = subprocess.Popen(
                new_interpreter("()"),
                stdin=stack.enter_context(sent.open("rb")),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=interpreter_environment(),
            )
            stack.callback(_end, child)
            children.append((child, result))
        deadline = time.monotonic() + SPAWN_TIMEOUT
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
