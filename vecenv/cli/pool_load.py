"""The load of a pool between two readings of its counters, as numbers for a screen and for JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vecenv.cli.pool_reader import PoolReader, Reading, ShardReading, WorkerProcess
from vecenv.core.advice.times import rss_of

__all__ = ["EnvLoad", "PoolLoad", "ShardLoad", "WorkerLoad", "measure_load"]


@dataclass(frozen=True)
class EnvLoad:
    """One env, since the start of the pool, or of the newest process of its shard. Unknown numbers are NaN.

    Attributes:
        worker_id: number of its worker, in its shard if it has one; -1: it has no worker, or that is not known.
        shard: -1: there are no shards.
        doing: 'step', 'reset', 'call' or 'idle'; 'blocked' if its worker waits for the pool to take messages; 'dead' if
            it has no worker. Of an env in a shard: also 'asked' if it owes an answer, and had not begun when the shard
            was counted.
        since: seconds since it began that; in a shard until it was counted, and from its last answer that was.
        num_steps, mean, p50, p99, max: timed steps and their seconds; `reset_mean`: seconds of a reset.
        num_episodes, mean_return: of its episodes that have ended.
        num_exceptions: number of exceptions that ended an episode or caused a rebuild of the env.
    """

    env_id: int
    shard: int
    worker_id: int
    doing: str
    since: float
    num_steps: int
    mean: float
    p50: float
    p99: float
    max: float
    reset_mean: float
    num_episodes: int
    mean_return: float
    num_exceptions: int

    @property
    def slowness(self) -> float:
        """Seconds of a slow step: the 99th percentile, or the time of the present operation if that is longer."""
        now = 0.0 if self.doing == "idle" else self.since
        return float(np.nanmax([0.0, self.p99, now]))


@dataclass(frozen=True)
class WorkerLoad:
    """One worker.

    Attributes:
        state: '' if it runs, else 'stopped', 'stopped by a debugger' or 'dead'.
        busy_share: the part of the interval in which its threads stepped or reset envs, in a shard of the last second
            that was counted; NaN with `timings=False`.
        rss_nbytes: memory in RAM, shared memory included; NaN if it is dead.
    """

    process: WorkerProcess
    state: str
    busy_share: float
    rss_nbytes: float


@dataclass(frozen=True)
class ShardLoad:
    """One shard.

    Attributes:
        steps_per_second: of its envs, in the interval.
    """

    process: ShardReading
    steps_per_second: float


@dataclass(frozen=True)
class PoolLoad:
    """The load of a pool in an interval; the names are those in JSON.

    Attributes:
        owner_state: of the process that owns the pool: 'running', 'stopped' or 'stopped by a debugger'.
        owner_rss_nbytes: its memory in RAM.
        is_starting: whether no shard serves yet; without shards a pool is shown once it is open.
        age_seconds, interval_seconds: since the start of the pool, and length of the interval.
        steps, episodes: since the start of the pool.
        steps_per_second: of all envs together, in the interval.
        mean_return: of all episodes; NaN if there was none.
        recent_mean_return: of the episodes that ended in the interval; NaN if there was none.
        restarts: workers, or shards, that replaced others.
        exceptions: sum of those of the envs.
    """

    owner_state: str
    owner_rss_nbytes: float
    is_starting: bool
    age_seconds: float
    interval_seconds: float
    steps: int
    steps_per_second: float
    episodes: int
    mean_return: float
    recent_mean_return: float
    restarts: int
    exceptions: int
    workers: tuple[WorkerLoad, ...]
    shards: tuple[ShardLoad, ...]
    envs: tuple[EnvLoad, ...]

    def as_dict(self, reader: PoolReader) -> dict[str, Any]:
        """Return all numbers, for `json_text`; those that are not known are NaN."""
        pool = reader.pool
        untimed = {} if reader.is_timed else {"episodes": math.nan, "exceptions": math.nan}
        return {
            "pid": pool.pid,
            "pool": pool.number,
            "name": pool.name,
            "backend": pool.backend,
            **vars(self),
            **untimed,
            "workers": [
                {
                    "shard": one.process.shard,
                    "worker_id": one.process.worker_id,
                    "pid": one.process.pid,
                    "env_ids": one.process.env_ids,
                    "state": one.state or "running",
                    "busy_share": one.busy_share,
                    "rss_nbytes": one.rss_nbytes,
                }
                for one in self.workers
            ],
            "shards": [{**vars(one.process), "steps_per_second": one.steps_per_second} for one in self.shards],
            "envs": [vars(one) for one in self.envs],
        }


#: The states of shards before any of them serves.
_STARTING = {"waiting", "opening", "ready"}


def measure_load(reader: PoolReader, before: Reading, after: Reading) -> PoolLoad:
    seconds = max(1e-9, (after.taken_ns - before.taken_ns) / 1e9)
    workers = tuple(_worker_load(worker, reader, before, after) for worker in after.workers)
    envs = tuple(_env_loads(after, workers))
    return PoolLoad(
        owner_state=reader.owner_state() or "running",
        owner_rss_nbytes=rss_of(reader.pool.pid),
        is_starting=reader.has_shards and _STARTING.issuperset(one.state for one in after.shards),
        age_seconds=max(0.0, (after.taken_ns - after.opened_ns) / 1e9),
        interval_seconds=seconds,
        steps=after.num_steps,
        steps_per_second=max(0, after.num_steps - before.num_steps) / seconds,
        episodes=int(after.num_episodes.sum()),
        mean_return=_mean(after.return_sum.sum(), after.num_episodes.sum()),
        recent_mean_return=_mean(*_recent_episodes(before, after)),
        restarts=after.num_replaced,
        exceptions=sum(one.num_exceptions for one in envs),
        workers=workers,
        shards=tuple(
            ShardLoad(one, max(0, one.steps - earlier.steps) / seconds)
            for earlier, one in zip(before.shards, after.shards)
        ),
        envs=envs,
    )


def _recent_episodes(before: Reading, after: Reading) -> tuple[float, int]:
    """Return the sum of the returns, and the number, of the episodes that ended between two readings."""
    num_ended = after.num_episodes - before.num_episodes
    is_known = (num_ended > 0) & _was_known(before)
    return float((after.return_sum - before.return_sum)[is_known].sum()), int(num_ended[is_known].sum())


def _was_known(before: Reading) -> Any:
    """Return which envs had counters in the first reading that did not contradict each other, bool (N,)."""
    return before.envs.step.num + before.envs.reset.num > 0


def _mean(total: float, number: int) -> float:
    return float(total) / int(number) if number else math.nan


def _worker_load(worker: WorkerProcess, reader: PoolReader, before: Reading, after: Reading) -> WorkerLoad:
    state = worker.state
    if worker.shard >= 0:
        return WorkerLoad(worker, state, worker.busy_share, worker.rss_nbytes)
    busy_share = _busy_share(worker, before, after) if reader.is_timed else math.nan
    return WorkerLoad(worker, state, busy_share, rss_of(worker.pid) if state != "dead" else math.nan)


def _busy_share(worker: WorkerProcess, before: Reading, after: Reading) -> float:
    """Return the part of the interval in which the threads of a worker stepped or reset envs."""
    seconds = max(1e-9, (after.taken_ns - before.taken_ns) / 1e9)
    ids = [env_id for env_id in worker.env_ids if _was_known(before)[env_id]]
    busy = float((after.busy_ns[ids] - before.busy_ns[ids]).sum()) / 1e9
    for reading, sign in ((before, -1.0), (after, 1.0)):  # operations under way are not in these sums yet
        for slot in worker.slots:
            if reading.operations[slot] in ("step", "reset"):
                busy += sign * float(reading.since[slot])
    return min(1.0, max(0.0, busy / (seconds * len(worker.slots))))


def _env_loads(reading: Reading, workers: Sequence[WorkerLoad]) -> Iterator[EnvLoad]:
    step, reset = reading.envs.step, reading.envs.reset
    columns = {
        "num_steps": step.num, "mean": step.mean, "p50": step.p50, "p99": step.p99, "max": step.max,
        "reset_mean": reset.mean, "num_episodes": reading.num_episodes, "num_exceptions": reading.envs.exceptions,
        "mean_return": np.array([_mean(*one) for one in zip(reading.return_sum, reading.num_episodes)]),
    }  # fmt: skip
    worker_of = {env_id: worker for worker in workers for env_id in worker.process.env_ids}
    in_shards = len(reading.shards) > 0
    # An operation that was under way when its shard was counted may have ended, and its answer may be here.
    may_run = reading.is_asked | reading.in_task | (not in_shards)
    for env_id, slot in enumerate(reading.slot_of_env.tolist()):
        worker = worker_of.get(env_id)
        operation = reading.operations[slot] if 0 <= slot < len(reading.operations) else ""
        if (worker is None and not in_shards) or (worker is not None and worker.state == "dead"):
            doing, since = "dead", math.nan
        elif operation and reading.current_envs[slot] == env_id and may_run[env_id]:
            doing = "blocked" if reading.is_blocked[slot] else operation
            since = float(reading.since[slot])
        elif reading.is_asked[env_id]:
            doing, since = "asked", math.nan
        else:
            doing, since = "idle", float(reading.envs.answer_age[env_id])
        numbers = {name: column[env_id].item() for name, column in columns.items()}
        shard, worker_id = int(reading.shard_of_env[env_id]), -1 if worker is None else worker.process.worker_id
        yield EnvLoad(env_id=env_id, shard=shard, worker_id=worker_id, doing=doing, since=since, **numbers)
