"""Traces: the answers of each env of a pool, comparable bit for bit between two runs.

    undisturbed run      -> traces          the same seeds and actions give the same traces
    run with a fault     -> traces, marks   `marks` are the infos about recoveries; traces do not contain them

Equal traces show that no step was lost or made twice.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import psutil
from gymnasium import Space
from gymnasium.vector.utils import concatenate, create_empty_array

from vecenv.core.layout.flags import RowFlag
from vecenv.core.options import PoolFailurePolicy, PoolOptions
from vecenv.core.parent.batch import Batch
from vecenv.core.pool.pool import Pool
from vecenv.core.pool.process import ProcessPool
from vecenv.core.pool.serial import SerialPool
from vecenv.envs.adapt import adapt_and_build
from vecenv.envs.state.state import SNAPSHOTTER

ESSENTIAL = RowFlag.RESET | RowFlag.AUTORESET | RowFlag.FINAL | RowFlag.ERROR

Injector = Callable[[Any, int], object]


class Row(NamedTuple):
    """One answer; values as bytes, so that equal means equal in every bit."""

    flags: int
    obs: Any
    final_obs: Any
    reward: bytes
    ended: tuple[bool, bool]
    place: tuple[int, int, int]  # episode, length, seed
    episode_return: bytes  # NaN if rewards have several numbers
    info: Any
    error: str


@dataclass
class Traces:
    """Answers by env, and (number of the answer, mark) of those that are marked as recovered."""

    rows: list[list[Row]]
    marks: list[list[tuple[int, str]]] = field(default_factory=list)

    def take(self, batch: Batch) -> list[int]:
        """Note all rows of a batch; return their env ids."""
        env_ids: list[int] = batch.env_ids.tolist()
        obs, infos, errors = batch.obs, batch.infos(), batch.errors()
        has_final = bool(batch.flags & RowFlag.FINAL)
        final = batch.final_obs if has_final else None
        final_infos = batch.final_infos()
        for row, env_id in enumerate(env_ids):
            info = dict(infos[row])
            final_info = dict(final_infos[row]) or None
            for one in (info, final_info or {}):
                if (mark := one.pop("recovered", None)) is not None:
                    self.marks[env_id].append((len(self.rows[env_id]), mark))
            flags = int(batch.row_flags[row]) & ESSENTIAL
            self.rows[env_id].append(
                Row(
                    flags,
                    None if env_id in errors else frozen(pick(obs, row)),
                    frozen(pick(final, row)) if flags & RowFlag.FINAL else None,
                    batch.rewards[row].tobytes(),
                    (bool(batch.terminated[row]), bool(batch.truncated[row])),
                    (int(batch.episodes[row]), int(batch.lengths[row]), int(batch.seeds[row])),
                    batch.returns[row].tobytes(),
                    frozen((info, final_info or None)),
                    repr(errors.get(env_id)),
                )
            )
        return env_ids


def pick(obs: Any, row: int) -> Any:
    """Return one row of a batch of observations."""
    if isinstance(obs, dict):
        return {key: pick(part, row) for key, part in obs.items()}
    if isinstance(obs, tuple) and not hasattr(obs, "_fields") and len(obs) and isinstance(obs[0], np.ndarray):
        return tuple(pick(part, row) for part in obs)
    return obs[row]


def frozen(value: Any) -> Any:
    """Return a value as something whose == compares every bit, dtype and shape."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return tuple((key, frozen(value[key])) for key in sorted(value, key=repr))  # the order of keys is not specified
    if isinstance(value, tuple | list):
        return type(value).__name__, *map(frozen, value)
    return value


class Actions:
    """The stream of actions of each env: the n-th one does not depend on anything else."""

    def __init__(self, space: Space[Any], num_envs: int) -> None:
        self.spaces = []
        for env_id in range(num_envs):
            copy = type(space).__new__(type(space))
            copy.__dict__.update(_deep(space))
            copy.seed(1000 + env_id)
            self.spaces.append(copy)
        self._space = space

    def next(self, env_ids: Sequence[int]) -> Any:
        """Return one action for each of these envs."""
        samples = [self.spaces[env_id].sample() for env_id in env_ids]
        out = create_empty_array(self._space, len(samples), np.zeros)
        return concatenate(self._space, samples, out)


def _deep(space: Space[Any]) -> dict[str, Any]:
    import copy

    return dict(copy.deepcopy(space).__dict__)


def play(
    pool: Pool,
    rounds: int,
    inject: Injector | None = None,
    *,
    before: Injector | None = None,
    seeds: Sequence[int] | None = None,
    in_order: bool = True,
    start: bool = True,
) -> Traces:
    """Reset, step every env `rounds` times and return all answers.

    Args:
        inject: called with (pool, round) while the steps are under way; round 0 is the reset.
        before: called with (pool, round) before the steps are sent.
        in_order: as one batch a round; False: each env on its own, as fast as it answers.
    """
    count = pool.num_envs
    traces = Traces([[] for _ in range(count)], [[] for _ in range(count)])
    if start:
        pool.start()
    actions = Actions(pool.action_space, count)
    pool.reset(seeds=list(range(count)) if seeds is None else seeds)
    if inject:
        inject(pool, 0)
    traces.take(pool.recv())
    if in_order:
        for number in range(1, rounds + 1):
            if before:
                before(pool, number)
            pool.send(actions.next(range(count)))
            if inject:
                inject(pool, number)
            traces.take(pool.recv())
        return traces
    pool.send(actions.next(range(count)), ordered=False)
    turn = 0
    while pool.outstanding():
        turn += 1
        if inject:
            inject(pool, turn)
        again = [env_id for env_id in traces.take(pool.recv(min_count=1)) if len(traces.rows[env_id]) <= rounds]
        if again:
            if before:
                before(pool, turn)
            pool.send(actions.next(again), again, ordered=False)
    return traces


def recovering_pool(env_fns: Sequence[Callable[[], Any]], **options: Any) -> ProcessPool:
    """Make a pool of two workers that recovers; options of PoolOptions and of PoolFailurePolicy alike."""
    policy = {name: options.pop(name) for name in list(options) if name in PoolFailurePolicy.__dataclass_fields__}
    failures = PoolFailurePolicy(**{"on_failure": "recover", "max_restarts": 100, **policy})
    merged = PoolOptions(**{"num_workers": 2, "failures": failures, **options})
    return ProcessPool(env_fns, merged, adapt=adapt_and_build, snapshotter=SNAPSHOTTER)


def undisturbed(env_fns: Sequence[Callable[[], Any]], rounds: int, **options: Any) -> Traces:
    """Play in this process, without the option keys that only process pools have."""
    known = {name: options[name] for name in ("autoreset", "final_obs", "infos", "depth") if name in options}
    with SerialPool(env_fns, PoolOptions(**known), adapt=adapt_and_build) as pool:
        return play(pool, rounds)


def end(pid: int, sign: int = signal.SIGKILL) -> None:
    """Kill a process, and wait for its end; do nothing if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(pidfd, sign)
            select.select([pidfd], [], [])
        finally:
            os.close(pidfd)


def kill(pool: ProcessPool, worker_id: int, sign: int = signal.SIGKILL) -> int:
    """Kill a worker and return its pid. It is dead on return, but the pool does not know yet."""
    pid = pool.worker_pids[worker_id]
    end(pid, sign)
    return pid


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Look until `condition` holds; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"did not come to hold within {seconds:g} s"
        os.sched_yield()


@contextlib.contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    """Stop these processes within the block, by SIGSTOP."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: all(psutil.Process(pid).status() == psutil.STATUS_STOPPED for pid in pids))
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # killed within the block
                os.kill(pid, signal.SIGCONT)
