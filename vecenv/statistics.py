"""Statistics of a pool: counts, durations of steps and resets, load of workers. `envs.statistics()` returns them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from .values.id_ranges import ids_text, node_text
from .values.shown_text import ShownText

__all__ = ["CallerTimes", "Durations", "EnvTimes", "ShardInfo", "Shards", "Statistics", "WorkerTimes"]

Array: TypeAlias = "np.ndarray[Any, Any]"
#: Most envs, and most workers, in the printed table.
_MOST_LINES = 8


class ShardInfo(NamedTuple):
    """One shard of a pool over several machines.

    Attributes:
        shard: its number.
        pid: of its process; 0 if it has none yet.
        node_id, node_ip: of the node where that runs, '' without nodes.
        env_ids: its envs.
        state: 'waiting' (its process is not placed yet), 'opening' or 'building' (its envs are built), 'ready' (others
            are still being started), 'serving', 'lost' (it will be replaced), or 'dead'.
        restarts: how often it was replaced.
    """

    shard: int
    pid: int
    node_id: str
    node_ip: str
    env_ids: tuple[int, ...]
    state: str
    restarts: int


class Shards(ShownText, list[ShardInfo]):
    """The shards of a pool, by number; a list that `print` shows as a table. It is empty if there are no shards."""

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("", "node", "pid", "envs", "state", "restarts")]
        for one in self:
            node = node_text(one.node_ip, one.node_id) or "-"
            cells = node, str(one.pid or "-"), ids_text(one.env_ids), one.state, str(one.restarts)
            rows.append((f"shard {one.shard}", *cells))
        return "\n".join(_align(rows)) if self else "no shards"


@dataclass(frozen=True, eq=False)
class Durations:
    """How long operations of one kind took, wall time, for each env.

    The quantiles come from a histogram with four buckets per octave, so they may be wrong by an eighth. Numbers of
    an env without such an operation are NaN.

    Attributes:
        num: how many operations, int64 (N,).
        sum: seconds of all of them, float64 (N,).
        max: seconds of the longest one, float64 (N,).
        buckets: the histogram: how many operations lie between two neighbours of `bounds`, int64 (N, K).
        bounds: seconds, float64 (K + 1,); the first is 0, the last is infinity.
    """

    num: Array
    sum: Array
    max: Array
    buckets: Array
    bounds: Array

    @property
    def mean(self) -> Array:
        """Seconds, float64 (N,)."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.minimum(self.sum / self.num, self.max)

    @property
    def p50(self) -> Array:
        """Seconds that half of the operations did not exceed, float64 (N,)."""
        return self.quantile(0.5)

    @property
    def p99(self) -> Array:
        """Seconds that 99 % of the operations did not exceed, float64 (N,)."""
        return self.quantile(0.99)

    def quantile(self, share: float) -> Array:
        """Return the seconds that this share of the operations, 0 to 1, did not exceed, float64 (N,)."""
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"share: expected a number between 0 and 1, got {share!r}")
        if not len(self.buckets):
            return np.zeros(0)
        up_to = self.buckets.cumsum(1)
        rank = np.maximum(1, np.ceil(share * up_to[:, -1]))
        bucket = np.minimum((up_to < rank[:, None]).sum(1), self.buckets.shape[1] - 1)
        rows = np.arange(len(self.buckets))
        inside = self.buckets[rows, bucket]
        with np.errstate(invalid="ignore", divide="ignore"):
            part = (rank - (up_to[rows, bucket] - inside)) / inside
        low = self.bounds[bucket]
        high = np.minimum(self.bounds[bucket + 1], self.max)  # NaN without any operation
        found: Array = np.minimum(low + part * (high - low), self.max)
        return found

    def together(self) -> Durations:
        """Return the durations of all envs as those of one, N = 1; of no env if there are none."""
        if not len(self.num):
            return self
        longest = self.max[self.num > 0].max(initial=0.0)
        return Durations(
            num=self.num.sum(keepdims=True),
            sum=self.sum.sum(keepdims=True),
            max=np.array([longest if self.num.any() else math.nan]),
            buckets=self.buckets.sum(0, keepdims=True),
            bounds=self.bounds,
        )


@dataclass(frozen=True, eq=False)
class EnvTimes:
    """Times of each env since the start, by env_id; N is 0 with `timings=False` and while the pool is not open.

    Attributes:
        step: of steps.
        reset: of resets, autoresets included. With autoreset mode `SameStep` a reset is part of the step.
        cpu_share: the part of the time of steps and resets in which the env computed on the CPU, float64 (N,). It is
            measured for one operation of 64, and for long ones. NaN where too little was measured, where the system
            does not count run-queue delays, and with the serial backend.
        answer_age: seconds since the last answer, float64 (N,); NaN before the first one.
        worker_id: of the env, int64 (N,); -1 with the serial backend.
        exceptions: how many of its exceptions have ended an episode, or made the env be built again, int64 (N,). See
            `FailurePolicy.on_exception`.
    """

    step: Durations
    reset: Durations
    cpu_share: Array
    answer_age: Array
    worker_id: Array
    exceptions: Array = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True, eq=False)
class WorkerTimes:
    """Load of each worker, by worker_id; W is 0 with the serial backend and while the pool is not open.

    The process of a shard that steps its envs itself counts as a worker here.

    Attributes:
        pid: process id, int64 (W,).
        num_envs: how many envs it hosts, int64 (W,).
        busy_share: the part of the time since the start in which its threads stepped or reset envs, float64 (W,). The
            operation that runs now is included. NaN with `timings=False`.
        waiting_share: the remaining part, float64 (W,): the worker waits for commands; it also calls and restores envs.
        rss_nbytes: memory in bytes that it has in RAM, shared memory included, float64 (W,); NaN if it is dead.
        shard: number of its shard, int64 (W,); -1 if it is on this machine. Workers are numbered through all shards.
    """

    pid: Array
    num_envs: Array
    busy_share: Array
    waiting_share: Array
    rss_nbytes: Array
    shard: Array = field(default_factory=lambda: np.zeros(0, np.int64))

    def describe(self, worker_id: int) -> str:
        """Return the name of a worker for messages, such as 'worker 3', or 'worker 3 (shard 1)'."""
        shard = self.shard[worker_id]
        return f"worker {worker_id} (shard {shard})" if shard >= 0 else f"worker {worker_id}"


@dataclass(frozen=True)
class CallerTimes:
    """How the thread that uses the pool has spent its time since it first waited for envs.

    Attributes:
        seconds: since then; 0 if it has not waited yet, with `timings=False`, and with the serial backend.
        waiting_share: the part in which `recv` and `step` waited for envs; NaN if `seconds` is 0.
        copying_share: the part in which the front end copied observations of batches of 64 KiB and more. Batches that
            are lent (see `copy`) are not copied. NaN if `seconds` is 0.
        outside_share: the remaining part, from each batch to the next request: the caller's own work, such as a policy,
            and the other work of the front end. NaN if `seconds` is 0.
    """

    seconds: float = 0.0
    waiting_share: float = math.nan
    copying_share: float = math.nan
    outside_share: float = math.nan


@dataclass(frozen=True, eq=False, repr=False)
class Statistics(ShownText, Mapping[str, Any]):
    """The counts of a pool since its start, the times of its envs and the load of its workers.

    It is a read-only mapping of its counts, so `statistics["restarts"]` is `statistics.restarts`. `print` shows a
    table. It is a copy: later steps do not change it.

    Workers write the times into shared memory while they are read. So numbers may lack the newest operation of an env,
    quantiles include all that are counted, and no mean or quantile exceeds the maximum.

    Example:
        >>> import gymnasium, vecenv
        >>> envs = vecenv.VectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2, backend="serial")
        >>> obs, infos = envs.reset(seed=0)
        >>> result = envs.step(envs.action_space.sample())
        >>> statistics = envs.statistics()
        >>> statistics["steps"], statistics.envs.step.num.tolist()
        (2, [1, 1])
        >>> envs.close()

    Attributes:
        steps: steps of envs.
        restarts: workers that were replaced because they died or hung.
        recycled: workers that were replaced because of `recycle_after`.
        workers_added: for envs that failed so often that they got a worker of their own, and for envs that wait.
        replayed, unproven, truncated: episodes that were restored after a crash, restored from a state that may be
            incomplete, or ended.
        steps_replayed, replay_seconds: the cost of that.
        log_nbytes: memory for restoring envs, which `max_log_bytes` limits. It does not count pages that wait to be
            reused, half of that at most, and a few messages of each env that are always kept.
        num_workers, threads_per_worker: at the start, 0 and 1 if the envs live in this process.
        exceptions: exceptions of envs that have ended an episode, or made the env be built again, see
            `FailurePolicy.on_exception`; 0 with `timings=False`.
        choice: the reason why 'auto' has chosen them, or why there are more because envs wait; else ''.
        shards_replaced: with `backend="ray"`: shards that were replaced because they died or hung.
        shard_calls, bytes_up, bytes_down: with `backend="ray"`: requests to shards, and the bytes sent and received.
        envs: times of each env.
        workers: load of each worker.
        caller: times of the thread that uses the pool.
    """

    steps: int
    restarts: int
    recycled: int
    workers_added: int
    replayed: int
    unproven: int
    truncated: int
    steps_replayed: int
    replay_seconds: float
    log_nbytes: int
    num_workers: int
    threads_per_worker: int
    choice: str
    envs: EnvTimes
    workers: WorkerTimes
    caller: CallerTimes
    exceptions: int = 0
    shards_replaced: int = 0
    shard_calls: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    # ---- the mapping -----------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        if name not in _COUNTS:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(_COUNTS)

    def __len__(self) -> int:
        return len(_COUNTS)

    def as_dict(self) -> dict[str, int | float]:
        """Return all counts and a summary of the times as {name: number}, for TensorBoard, W&B and JSON.

        Names of times begin with 'step/', 'reset/', 'envs/', 'workers/' and 'caller/'. Durations are seconds, of all
        envs together. Numbers that are not known are left out.
        """
        found: dict[str, float] = {name: value for name, value in self.items() if name != "choice"}
        for kind, durations in (("step", self.envs.step), ("reset", self.envs.reset)):
            for name, values in _columns(durations.together()).items():
                found.update({f"{kind}/{name}": value for value in values.tolist()})
        for group, times, names in (("envs", self.envs, _ENV_SHARES), ("workers", self.workers, _WORKER_SHARES)):
            for name in names:
                known = getattr(times, name)
                known = known[~np.isnan(known)]
                if len(known):
                    found[f"{group}/{name}_mean"] = float(known.mean())
                    found[f"{group}/{name}_max"] = float(known.max())
        found.update({f"caller/{name}": value for name, value in dataclasses.asdict(self.caller).items()})
        return {name: value for name, value in found.items() if not math.isnan(value)}

    # ---- the table -------------------------------------------------------------------------

    def __repr__(self) -> str:
        counts = ", ".join(f"{name}={value!r}" for name, value in self.items())
        return f"{type(self).__name__}({counts})"

    def __str__(self) -> str:
        lines = [", ".join(f"{name} {_short(self[name])}" for name in _COUNTS if self[name] or name == "steps")]
        lines += self._env_lines() + self._worker_lines()
        if self.caller.seconds:
            caller = self.caller
            shares = f"waits {_share(caller.waiting_share)}, copies {_share(caller.copying_share)}"
            rest = f"is outside {_share(caller.outside_share)} of {time_text(caller.seconds)}"
            lines += ["", f"caller  {shares}, {rest}"]
        return "\n".join(lines)

    def _env_lines(self) -> list[str]:
        envs = self.envs
        if not len(envs.step.num):
            return []
        rows: list[tuple[str, ...]] = [("per env", "", *_TIMES, "cpu", "last answer")]
        for kind, durations in (("step", envs.step), ("reset", envs.reset)):
            rows.append((f"all {kind}s", "", *_cells(durations.together(), 0), "", ""))
        slowest = np.argsort(-np.nan_to_num(envs.step.p99, nan=-1.0), kind="stable")[:_MOST_LINES]
        for env_id in slowest.tolist():
            age = envs.answer_age[env_id]
            cells = (*_cells(envs.step, env_id), _share(envs.cpu_share[env_id]), time_text(age))
            rows.append((f"env {env_id}", "step", *cells))
            rows.append(("", "reset", *_cells(envs.reset, env_id), "", ""))
        left = len(envs.step.num) - len(slowest)
        return ["", *_align(rows), *([f"... and {left} envs with quicker steps (by p99)"] if left else [])]

    def _worker_lines(self) -> list[str]:
        workers = self.workers
        if not len(workers.pid):
            return []
        rows: list[tuple[str, ...]] = [("", "pid", "envs", "busy", "waiting", "RSS")]
        busiest = np.argsort(-np.nan_to_num(workers.busy_share, nan=-1.0), kind="stable")[:_MOST_LINES]
        for worker_id in busiest.tolist():
            shares = _share(workers.busy_share[worker_id]), _share(workers.waiting_share[worker_id])
            memory = workers.rss_nbytes[worker_id]
            shown = "-" if math.isnan(memory) else f"{memory / 2**20:,.0f} MiB"
            counts = str(workers.pid[worker_id]), str(workers.num_envs[worker_id])
            rows.append((workers.describe(worker_id), *counts, *shares, shown))
        left = len(workers.pid) - len(busiest)
        return ["", *_align(rows), *([f"... and {left} workers that were less busy"] if left else [])]


_COUNTS = tuple(one.name for one in dataclasses.fields(Statistics) if one.name not in ("envs", "workers", "caller"))
_TIMES = ("number", "mean", "p50", "p99", "max")
_ENV_SHARES, _WORKER_SHARES = ("cpu_share", "answer_age"), ("busy_share", "waiting_share", "rss_nbytes")


def _columns(durations: Durations) -> dict[str, Array]:
    named = durations.num, durations.mean, durations.p50, durations.p99, durations.max
    return dict(zip(("num", "mean", "p50", "p99", "max"), named))


def _cells(durations: Durations, row: int) -> list[str]:
    number, *times = (column[row] for column in _columns(durations).values())
    return [f"{int(number):,}", *map(time_text, times)]


def time_text(value: float) -> str:
    """Return seconds with a unit, such as '1.5 ms'; '-' for NaN."""
    if math.isnan(value):
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}" if value < 1000 * size else f"{value / size:,.0f} {unit}"
    return f"{value * 1e6:.3g} us"


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.0%}"


def _short(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}" if isinstance(value, float) else repr(value)


def _align(rows: list[tuple[str, ...]]) -> list[str]:
    """Return the rows as lines: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
