"""Find the running pools of this user, and read the counters of one, without the help of its process.

    monitor file -> /proc/PID/fd/N -> read-only mapping -> PoolReader.read -> Reading

`core/layout/counters.py` states how the words are written, and in which order they must be read. A reader keeps the
mapping and no descriptor. It writes nothing, and the pool does not notice it.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vecenv.core.advice.times import read_envs
from vecenv.core.layout.counters import COUNTERS_VERSION, COUNTERS_WORDS, CountersPlan
from vecenv.core.layout.flags import Op
from vecenv.core.system.clock import now_ns
from vecenv.core.system.descriptor import Descriptor
from vecenv.core.system.monitor_files import read_monitor_files
from vecenv.core.system.process_stat import started_at, state_of
from vecenv.core.system.stack_dump import StackFile
from vecenv.errors import ClosedError, ConfigError
from vecenv.statistics import EnvTimes

__all__ = ["PoolFile", "PoolReader", "Reading", "ShardReading", "WorkerProcess", "find_pool", "running_pools"]

#: An operation that changes while it is read is read again this number of times.
_ATTEMPTS = 3
#: Limits of a pool: env_ids and slots have 16 bits.
_MOST = 65_535
_STATES = {"T": "stopped", "t": "stopped by a debugger", "Z": "dead", "X": "dead", "": "dead"}
_OPERATIONS = {Op.STEP: "step", Op.RESET: "reset", Op.CALL: "call"}


@dataclass(frozen=True)
class PoolFile:
    """The monitor file of a pool.

    Attributes:
        number: of the pool in its process, from 1 on.
        started: start time of the process, in clock ticks since boot.
        layout: version of the layout of the counters.
        descriptor, device, inode: of the memory of the counters, in that process.
        name: of the envs; '' before they are built.
        backend: 'process', 'serial' or 'shards'.
    """

    pid: int
    number: int
    started: str
    layout: int
    descriptor: int
    device: int
    inode: int
    num_envs: int
    num_slots: int
    is_timed: bool
    name: str
    backend: str

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> PoolFile | None:
        """Return the content of a file; None if something is missing or has another type."""
        kinds = cls.__annotations__
        types = {"int": int, "str": str, "bool": bool}
        found = {name: content.get(name) for name in kinds}
        is_right = all(type(value) is types[kinds[name]] for name, value in found.items())
        return cls(**found) if is_right else None  # type: ignore[arg-type]

    @property
    def envs(self) -> str:
        """The number and the name of the envs; these have no name before they are built."""
        return f"{self.num_envs} x {self.name or 'env'}"

    @property
    def path(self) -> str:
        """The memory of the counters, as other processes can open it."""
        return f"/proc/{self.pid}/fd/{self.descriptor}"

    def is_open(self) -> bool:
        """Return whether the pool is still open.

        Raises:
            PermissionError: this user may not look at the process.
        """
        try:
            found = os.stat(self.path)
        except (FileNotFoundError, ProcessLookupError):
            return False
        is_same = (found.st_dev, found.st_ino) == (self.device, self.inode) and stat.S_ISREG(found.st_mode)
        return is_same and started_at(self.pid) == self.started


def running_pools() -> list[PoolFile]:
    """Return the running pools of this user with the layout of this version, by pid and number."""
    found = []
    for content in read_monitor_files():
        pool = PoolFile.of(content) if content.get("layout") == COUNTERS_VERSION else None
        with contextlib.suppress(PermissionError):
            if pool is not None and pool.is_open():
                found.append(pool)
    return found


def find_pool(pid: int, number: int | None = None) -> PoolFile | list[PoolFile]:
    """Return a pool of a process, or all of them if there are several and none is named.

    Raises:
        ConfigError: the process has no such pool, belongs to another user, or its pool has another layout.
    """
    contents = [one for one in read_monitor_files() if one["pid"] == pid and number in (None, one["number"])]
    for content in contents:
        layout = content.get("layout")
        if layout != COUNTERS_VERSION:
            raise ConfigError(
                f"process {pid} has a pool of another version of vecenv: its counters have layout {layout!r}, this "
                f"version reads layout {COUNTERS_VERSION}; use the vecenv of that process"
            )
    pools = [pool for pool in map(PoolFile.of, contents) if pool is not None]
    try:
        pools = [pool for pool in pools if pool.is_open()]
    except PermissionError as error:
        raise ConfigError(f"process {pid}: this user may not read its memory ({error.strerror})") from error
    if not pools:
        raise ConfigError(_why_none(pid, number))
    return pools[0] if len(pools) == 1 else pools


def _why_none(pid: int, number: int | None) -> str:
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return f"there is no process {pid}"
    if owner != os.getuid():
        return f"process {pid} belongs to another user (uid {owner}); only that user can watch its pools"
    if number is not None:
        return f"process {pid} has no pool {number}"
    return f"process {pid} has no pool that can be watched: it has none, or the option monitor=False"


@dataclass(frozen=True)
class WorkerProcess:
    """A worker process, from the counters of the pool.

    Attributes:
        started: start time in clock ticks since boot.
        stack_fd: descriptor of the file for its stacks, in the process of the pool; -1: there is none.
        slots, env_ids: its slots that serve envs, and these envs.
        shard: its shard, which may be on another machine; -1: it is on this machine, and the next three are not known.
        state_in_shard: its state of /proc when the shard was counted.
        busy_share, rss_nbytes: the same for those of `WorkerLoad`.
    """

    worker_id: int
    pid: int
    started: str
    stack_fd: int
    slots: tuple[int, ...]
    env_ids: tuple[int, ...]
    shard: int
    state_in_shard: str
    busy_share: float
    rss_nbytes: float

    @property
    def state(self) -> str:
        """'' if it runs or sleeps, else 'stopped', 'stopped by a debugger' or 'dead'."""
        if self.shard >= 0:
            return _STATES.get(self.state_in_shard, "")
        if started_at(self.pid) != self.started:
            return "dead"
        return _STATES.get(state_of(self.pid), "")


@dataclass(frozen=True)
class ShardReading:
    """A shard, from the counters of the pool.

    Attributes:
        node: where it runs, '' without nodes.
        pid: of its process on that node; 0 if it has none.
        env_ids: its envs.
        state: as in `ShardInfo`.
        restarts: how often it was replaced.
        worker_restarts: workers that it and its predecessors have replaced.
        steps: of its envs, since the start of the pool.
        since: seconds since its last reply; NaN before the first one.
    """

    shard: int
    node: str
    pid: int
    env_ids: tuple[int, ...]
    state: str
    restarts: int
    worker_restarts: int
    steps: int
    since: float


@dataclass(frozen=True)
class Reading:
    """The counters of a pool at one instant; each word is a copy.

    Attributes:
        taken_ns: monotonic clock.
        num_replaced: workers, or shards, that replaced others.
        workers: by worker_id; in shards by shard and worker_id, as counted about once a second.
        shards: by number; () if the workers are on this machine.
        shard_of_env: int64 (N,); -1 for all if there are none.
        slot_of_env: int64 (N,).
        num_steps: of all envs.
        operations: of each slot: '' between two commands, else 'step', 'reset' or 'call'.
        current_envs: the env of that operation, by slot.
        since: seconds since that operation began, by slot, in a shard until it was counted; NaN between two commands.
        is_asked: whether each env of a shard owes an answer that has not arrived, bool (N,).
        in_task: whether the shard of each env ran a task when it was counted, bool (N,).
        is_blocked: whether a slot waits for its pool to take messages, by slot.
        envs: times of each env. They are NaN and 0 if nothing is timed, and for broken counters.
        busy_ns: of each env, int64 (N,): wall time of its steps and resets.
        num_episodes, return_sum: of each env, int64 and float64 (N,).
    """

    taken_ns: int
    opened_ns: int
    num_replaced: int
    workers: tuple[WorkerProcess, ...]
    shards: tuple[ShardReading, ...]
    shard_of_env: Any
    slot_of_env: Any
    num_steps: int
    operations: tuple[str, ...]
    current_envs: tuple[int, ...]
    since: Any
    is_asked: Any
    in_task: Any
    is_blocked: Any
    envs: EnvTimes
    busy_ns: Any
    num_episodes: Any
    return_sum: Any


class PoolReader:
    """A read-only mapping of the counters of one pool.

    Args:
        pool: the file of the pool.

    Raises:
        ConfigError: the memory has not the layout of this version, or this user may not read it.
        ClosedError: the pool has ended.
    """

    def __init__(self, pool: PoolFile) -> None:
        self.pool = pool
        memory = self._map()
        header = np.frombuffer(memory, np.int64, len(COUNTERS_WORDS))
        self._words = dict(zip(COUNTERS_WORDS, header.tolist()))
        num_envs, num_slots = self._words["num_envs"], self._words["num_slots"]
        is_sane = 0 < num_envs <= _MOST and 0 < num_slots <= _MOST
        self._plan = CountersPlan(
            num_envs if is_sane else 1,
            num_slots if is_sane else 1,
            is_timed=self._words["timings"] != 0,
            has_shards=self._words["shards"] != 0,
        )
        fixed = [name for name in COUNTERS_WORDS if name not in ("is_native", "opened_ns", "num_replaced")]
        if any(self._words[name] != self._plan.words[name] for name in fixed) or len(memory) < self._plan.nbytes:
            raise ConfigError(f"process {pool.pid}: its counters are broken, or those of another version of vecenv")
        self._header = header
        self._slots = self._plan.slots(memory, is_native=bool(self._words["is_native"]))
        self._workers = self._plan.workers(memory)
        self._slot_of_env = self._plan.slot_of_env(memory)
        self._shards = self._plan.shards(memory)
        self._owed = self._plan.owed(memory) if self.has_shards else np.zeros((2, self.num_envs), np.bool_)
        timed = CountersPlan(self._plan.num_envs, self._plan.num_slots, True)
        self._timings: Any = self._plan.timings(memory) if self.is_timed else timed.timings(bytes(timed.nbytes))

    def _map(self) -> mmap.mmap:
        """Map the memory. Nothing but the regular file of the right number is opened: a device might react to it."""
        pool = self.pool
        try:
            if not pool.is_open():
                raise _ended(pool)
            descriptor = Descriptor(os.open(pool.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY))
        except (FileNotFoundError, ProcessLookupError):
            raise _ended(pool) from None
        except PermissionError as error:
            raise ConfigError(f"process {pool.pid}: this user may not read its memory ({error.strerror})") from error
        with contextlib.closing(descriptor):
            found = os.fstat(descriptor.number)
            if (found.st_dev, found.st_ino) != (pool.device, pool.inode):
                raise _ended(pool)
            if found.st_size < 8 * len(COUNTERS_WORDS):
                raise ConfigError(f"process {pool.pid}: its counters are broken, or those of another version of vecenv")
            return mmap.mmap(descriptor.number, found.st_size, mmap.MAP_SHARED, mmap.PROT_READ)

    @property
    def num_envs(self) -> int:
        return self._plan.num_envs

    @property
    def is_timed(self) -> bool:
        """Whether workers write how long operations take."""
        return self._plan.is_timed

    @property
    def has_shards(self) -> bool:
        """Whether the envs live in shards, which send copies of their counters."""
        return self._plan.has_shards

    def owner_state(self) -> str:
        """Return '' if the process of the pool runs or sleeps, else 'stopped' or 'stopped by a debugger'."""
        return _STATES.get(state_of(self.pool.pid), "")

    def request_stack(self, worker: WorkerProcess) -> str:
        """Send the signal for a stack to a worker, and return the stack, or the reason why there is none."""
        if worker.stack_fd < 0:
            return "no stack: the envs live in the process of the pool itself"
        if worker.state == "dead":
            return "no stack: the worker has ended, or its pid belongs to another process now"
        try:
            descriptor = Descriptor(os.open(f"/proc/{self.pool.pid}/fd/{worker.stack_fd}", os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            return f"no stack: its file cannot be opened ({error.strerror})"
        stacks = StackFile.attached(descriptor)
        try:
            return stacks.request(worker.pid) or "no stack: the worker has not answered"
        finally:
            stacks.close()

    # ---- reading ---------------------------------------------------------------------------

    def read(self) -> Reading:
        """Read all counters; ClosedError if the pool has ended."""
        if not self.pool.is_open():
            raise _ended(self.pool)
        if not self.pool.name:  # the envs were being built when it was read
            self.pool = next((one for one in running_pools() if one.path == self.pool.path), self.pool)
        slot_of_env = self._slot_of_env.copy()
        taken_ns = now_ns()
        shard_of_env, shards = np.full(self.num_envs, -1), tuple(self._read_shards())
        for one in shards:
            shard_of_env[list(one.env_ids)] = one.shard
        rows = self._shards[shard_of_env] if shards else np.zeros(self.num_envs, self._shards.dtype)
        slots = self._read_slots(slot_of_env, rows["counted_ns"] if shards else None)
        workers = self._read_workers(slot_of_env, shard_of_env)
        is_owed, has_arrived = self._owed.copy()
        worker_of = {env_id: worker.worker_id for worker in workers for env_id in worker.env_ids}
        return Reading(
            taken_ns=taken_ns,
            opened_ns=int(self._words["opened_ns"]),
            num_replaced=self._num_replaced(),
            workers=workers,
            shards=shards,
            shard_of_env=shard_of_env,
            slot_of_env=slot_of_env,
            num_steps=sum(one.steps for one in shards)
            if shards
            else int(np.maximum(0, self._slots["num_steps"]).sum()),
            is_asked=is_owed & ~has_arrived,
            in_task=rows["in_task"] != 0,
            **slots,
            **self._read_timings([worker_of.get(env_id, -1) for env_id in range(self.num_envs)]),
        )

    def _num_replaced(self) -> int:
        if self.has_shards:
            return int(self._shards["restarts"].sum())
        return max(0, int(self._header[COUNTERS_WORDS.index("num_replaced")]))

    def _read_slots(self, slot_of_env: Any, counted_ns: Any = None) -> dict[str, Any]:
        """Read the operations: each with its step_id before and after its env, until both are the same.

        Args:
            slot_of_env: int64 (N,).
            counted_ns: when the shard of each slot was counted, int64 (N,); None: there are none.
        """
        slots = self._slots
        op, step_id = slots["op"].copy(), slots["step_id"].copy()
        env_id, started_ns = slots["env_id"].astype(np.int64), slots["started_ns"].copy()
        for _ in range(_ATTEMPTS):
            again, step_again = slots["op"].copy(), slots["step_id"].copy()
            moved = (again != op) | (step_again != step_id)
            if not moved.any():
                break
            op, step_id = again, step_again
            env_id, started_ns = slots["env_id"].astype(np.int64), slots["started_ns"].copy()
        read_ns = now_ns() if counted_ns is None else counted_ns
        since = (read_ns - started_ns) / 1e9
        is_known = (started_ns > 0) & (started_ns <= read_ns) & (env_id >= 0) & (env_id < len(slot_of_env))
        is_known &= np.isin(op, [int(one) for one in _OPERATIONS])
        owners = slot_of_env[np.where(is_known, env_id, 0)]
        is_known &= owners == np.arange(len(slots))
        since[~is_known] = np.nan
        names = tuple(_OPERATIONS[Op(one)] if known else "" for one, known in zip(op.tolist(), is_known.tolist()))
        is_blocked = (slots["blocked"] != 0) & is_known
        return dict(operations=names, current_envs=tuple(env_id.tolist()), since=since, is_blocked=is_blocked)

    def _read_workers(self, slot_of_env: Any, shard_of_env: Any) -> tuple[WorkerProcess, ...]:
        pids = self._workers["pid"].copy()
        table = self._workers.copy()
        is_known = (pids > 0) & (self._workers["pid"] == pids) & (table["worker_id"] >= 0)
        env_ids_of: dict[int, list[int]] = {}
        for env_id, slot in enumerate(slot_of_env.tolist()):
            env_ids_of.setdefault(slot, []).append(env_id)
        by_id: dict[tuple[int, int], list[int]] = {}
        for slot in np.flatnonzero(is_known).tolist():
            if slot in env_ids_of:
                key = int(shard_of_env[env_ids_of[slot][0]]), int(table["worker_id"][slot])
                by_id.setdefault(key, []).append(slot)
        return tuple(
            WorkerProcess(
                worker_id=worker_id,
                pid=int(pids[slots[0]]),
                started=str(table["started"][slots[0]]),
                stack_fd=int(table["stack_fd"][slots[0]]),
                slots=tuple(slots),
                env_ids=tuple(sorted(env_id for slot in slots for env_id in env_ids_of[slot])),
                shard=shard,
                state_in_shard=table["state"][slots[0]].decode(errors="replace"),
                busy_share=float(table["busy_share"][slots].mean()),
                rss_nbytes=float(table["rss_nbytes"][slots[0]]),
            )
            for (shard, worker_id), slots in sorted(by_id.items())
        )

    def _read_shards(self) -> Iterator[ShardReading]:
        for shard, row in enumerate(self._shards[self._shards["num_envs"] > 0]):
            answered_ns, first = int(row["answered_ns"]), int(row["first_env_id"])
            yield ShardReading(
                shard=shard,
                node=row["node"].decode(errors="replace"),
                pid=int(row["pid"]),
                env_ids=tuple(range(self.num_envs)[first : first + int(row["num_envs"])]),
                state=row["state"].decode(errors="replace"),
                restarts=int(row["restarts"]),
                worker_restarts=int(row["worker_restarts"]),
                steps=max(0, int(row["num_steps"])),
                since=max(0.0, (now_ns() - answered_ns) / 1e9) if answered_ns else math.nan,
            )

    def _read_timings(self, worker_of: Sequence[int]) -> dict[str, Any]:
        """Read the times, again while those of an env contradict each other; the rows that still do are emptied."""
        for _ in range(_ATTEMPTS):
            num_episodes = self._timings["num_episodes"].copy()
            return_sum = self._timings["return_sum"].copy()
            before = self._timings["num_steps"].copy(), self._timings["num_resets"].copy()
            copied = self._timings.copy()
            copied["num_steps"], copied["num_resets"] = before
            limits = self._timings["num_steps"].copy(), self._timings["num_resets"].copy()
            is_broken = _find_broken(copied, limits, self._num_replaced() + int(self._shards["worker_restarts"].sum()))
            if not is_broken.any():
                break
        copied[is_broken] = np.zeros((), copied.dtype)
        has_episodes = ~is_broken & (num_episodes > 0)
        return dict(
            envs=read_envs(copied, worker_of),
            busy_ns=copied["step_ns"] + copied["reset_ns"],
            num_episodes=np.where(has_episodes, num_episodes, 0),
            return_sum=np.where(has_episodes, return_sum, 0.0),
        )


def _find_broken(timings: Any, limits: Sequence[Any], num_replaced: int) -> Any:
    """Return for which envs the words contradict each other, bool (N,).

    An operation is stored in the order bucket, maximum, sum, number. A worker that is killed in between leaves one more
    in the histogram than in the number. In `timings` the numbers were read first; `limits` were read last.
    """
    is_broken = np.zeros(len(timings), bool)
    for kind, limit in zip(("step", "reset"), limits):
        number, total = timings[f"num_{kind}s"], timings[f"{kind}_ns"]
        longest, buckets = timings[f"max_{kind}_ns"], timings[f"{kind}_buckets"]
        counted = buckets.sum(1)
        is_broken |= (number < 0) | (total < 0) | (longest < 0) | (buckets < 0).any(1)
        is_broken |= (counted < number) | (counted > limit + 1 + num_replaced)
        is_broken |= total > longest.astype(np.float64) * counted + 1.0
    return is_broken


def _ended(pool: PoolFile) -> ClosedError:
    return ClosedError(f"the pool of process {pool.pid} has ended")
