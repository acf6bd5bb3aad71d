"""Read the times that workers write into shared memory: durations of steps and resets, shares, memory of workers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...statistics import CallerTimes, Durations, EnvTimes, WorkerTimes
from ..layout.counters import FIRST_OCTAVE, NUM_BUCKETS
from ..layout.flags import Op
from ..layout.spec import Array
from ..parent.hub import SlotState
from ..system.clock import now_ns
from ..system.run_delay import open_run_delay, read_run_delay
from .sizing import ENDS, Workload, load_of

__all__ = [
    "SLOW",
    "SlowOperations",
    "find_slow_operations",
    "measure_load",
    "read_caller",
    "read_envs",
    "read_threads",
    "read_workers",
    "read_workload",
    "rss_of",
    "running_of",
    "typical_seconds",
]

_NS = 1e9
#: A class of operations without a measured one has no CPU share, above this part of an env's time.
_UNMEASURED_SHARE = 0.2
#: Least measured operations of all envs for a workload.
_MEASURED = 5
#: Ratio of the times of a slow reset or step and a median step.
SLOW = 3.0
#: Other patterns of episode ends are excluded if they are less likely than this.
_UNLIKELY = 0.05
#: Ratio of a mean and a median from which a few operations are the reason.
_FAR = 1.25
#: Variance of the numbers of episodes over their mean, below and above which ends are regular, and random.
_REGULAR, _RANDOM = 0.15, 0.6
#: An operation of this time belongs to the class of long ones, in nanoseconds; see native/shm/timing.h.
_LONG_NS = 1_000_000
#: Least CPU time of a thread that has computed, in seconds, and as a part of that of the busiest thread.
_LEAST_SECONDS, _LEAST_PART = 0.03, 0.1


def _make_bounds() -> Array:
    """Return the bounds of the buckets of native/shm/timing.h in seconds."""
    octaves = 2.0 ** np.arange(FIRST_OCTAVE, FIRST_OCTAVE + NUM_BUCKETS // 4)
    quarters = (octaves[:, None] * (1.0 + np.arange(4) / 4)).ravel()
    return np.concatenate([[0.0], quarters[: NUM_BUCKETS - 1], [math.inf]]) / _NS


_BOUNDS = _make_bounds()
_NO_TIMES = np.zeros(0)
_PROBE_NS = 20_000_000
_RESETS = "num_resets", "reset"
#: Mean of a quarter of an octave, over its lower bound.
_MIDDLE_OF_BUCKET = 1.08


def read_envs(timings: Array | None, worker_of: Sequence[int]) -> EnvTimes:
    """Return the times of all envs.

    Args:
        timings: see `CountersPlan.timings`; None: there are none.
        worker_of: the worker_id of each env; -1: it has none.
    """
    if timings is None:
        nothing = Durations(np.zeros(0, np.int64), _NO_TIMES, _NO_TIMES, np.zeros((0, NUM_BUCKETS), np.int64), _BOUNDS)
        return EnvTimes(nothing, nothing, _NO_TIMES, _NO_TIMES, np.zeros(0, np.int64))
    step = _read_durations(timings, "num_steps", "step")
    reset = _read_durations(timings, *_RESETS)
    ended_ns = timings["ended_ns"].copy()
    age = np.maximum(0.0, (now_ns() - ended_ns) / _NS)  # an operation that ends between the two reads ends in future
    age[ended_ns == 0] = math.nan
    exceptions = timings["num_exceptions"].copy()
    return EnvTimes(step, reset, _read_cpu_share(timings), age, np.array(worker_of, np.int64), exceptions)


def _read_durations(timings: Array, num: str, kind: str) -> Durations:
    """Read the words of each env in the reverse of the order in which its worker writes them."""
    number = timings[num].copy()
    total = timings[f"{kind}_ns"] / _NS
    longest = timings[f"max_{kind}_ns"] / _NS
    buckets = timings[f"{kind}_buckets"].copy()
    longest[number == 0] = math.nan
    return Durations(number, total, longest, buckets, _BOUNDS)


def _wall_times(timings: Array) -> Iterator[tuple[str, Array]]:
    """Yield 'short' and 'long' with the nanoseconds that each env spent in operations of this class, float64 (N,)."""
    wall_ns = (timings["step_ns"] + timings["reset_ns"]).astype(np.float64)
    long_ns = np.minimum(timings["long_ns"], wall_ns)
    yield from (("short", wall_ns - long_ns), ("long", long_ns))


def _read_cpu_share(timings: Array) -> Array:
    """Return the part of its operations in which each env computed: short and long ones by their measured shares."""
    cpu_ns, known_ns, wall_ns = np.zeros((3, len(timings)))
    for name, class_ns in _wall_times(timings):
        measured_ns = timings[f"{name}_wall_ns"].astype(np.float64)
        cpu_ns += class_ns * np.minimum(1.0, timings[f"{name}_cpu_ns"] / np.maximum(1.0, measured_ns))
        known_ns += np.where(measured_ns > 0, class_ns, 0.0)
        wall_ns += class_ns
    is_known = (known_ns > 0) & (wall_ns - known_ns <= _UNMEASURED_SHARE * wall_ns)
    return np.where(is_known, cpu_ns / np.maximum(1.0, known_ns), math.nan)


class SlowOperations(NamedTuple):
    """The resets and steps of a pool that take much longer than a median step.

    Attributes:
        first_seconds: time of the first reset of all envs, which belongs to the start.
        seconds: mean time of a slow operation, 0.0 without one.
        share: how many there are per step, 0 to 1.
        ends: as in `Workload`.
    """

    first_seconds: float
    seconds: float
    share: float
    ends: tuple[str, ...]


def find_slow_operations(steps: Durations, resets: Durations) -> SlowOperations:
    """Return the slow resets and steps of all envs. In SAME_STEP mode a slow reset is a slow step."""
    all_resets = resets.together()
    step = float(steps.together().p50[0])
    reset = typical_seconds(all_resets)
    later = np.maximum(0, resets.num - 1)
    first_seconds = float((np.minimum(1, resets.num) * resets.sum / np.maximum(1, resets.num)).sum())
    counts = np.where(reset > SLOW * step, later, 0)
    seconds = float(counts.sum()) * reset if counts.any() else 0.0
    is_slow = steps.bounds[:-1] >= SLOW * step
    by_bucket = steps.buckets.sum(0) * steps.bounds[:-1]
    in_steps = float(by_bucket[is_slow].sum()) * _MIDDLE_OF_BUCKET
    if in_steps > seconds:  # the other ones are a part of the mean
        counts, seconds = steps.buckets[:, is_slow].sum(1), in_steps
    if not counts.any():
        return SlowOperations(first_seconds, 0.0, 0.0, ENDS)
    return SlowOperations(
        first_seconds, seconds / int(counts.sum()), min(1.0, counts.sum() / steps.num.sum()), _find_ends(counts)
    )


def typical_seconds(resets: Durations) -> float:
    """Return the mean of the resets of all envs, or the median if a few, such as the first ones, took much longer."""
    mean, median = float(resets.mean[0]), float(resets.p50[0])
    return mean if mean < _FAR * median else median


def _find_ends(counts: Array) -> tuple[str, ...]:
    """Return the patterns that fit the numbers of episodes of all envs, whose steps were equally many."""
    mean = float(counts.mean())
    if not np.ptp(counts):  # equal ones by chance: about 0.28 / sqrt(mean) for two envs
        is_chance = (0.28 / math.sqrt(mean)) ** (len(counts) - 1) > _UNLIKELY
        return ENDS if is_chance else ENDS[:1]
    spread = float(counts.var(ddof=1)) / mean
    return ENDS[1:2] if spread < _REGULAR else ENDS[2:] if spread > _RANDOM else ENDS[1:]


def read_workload(timings: Array, slot_of: tuple[int, ...], worker_of: Callable[[int], int]) -> Workload | None:
    """Return the mean cost of a step, resets but the first ones included; None if too little was measured.

    The threads of one worker wait for each other when they compute. So a worker counts as waiting only while none of
    its threads computes.

    Args:
        timings: of all envs.
        slot_of: the slot of each env.
        worker_of: returns the worker_id of a slot.
    """
    num_steps = int(timings["num_steps"].sum())
    if num_steps == 0 or int(timings["short_num"].sum()) + int(timings["long_num"].sum()) < _MEASURED:
        return None
    wall_ns = (timings["step_ns"] + timings["reset_ns"]).astype(np.float64)
    busy_ns = np.zeros(len(timings))
    delayed_ns = 0.0
    for name, class_ns in _wall_times(timings):
        measured_ns = float(timings[f"{name}_wall_ns"].sum())
        if not measured_ns and class_ns.sum() > _UNMEASURED_SHARE * wall_ns.sum():
            return None
        delay_ns = float(timings[f"{name}_delay_ns"].sum())
        computing_ns = float(timings[f"{name}_cpu_ns"].sum()) + delay_ns
        busy_ns += class_ns * (min(1.0, computing_ns / measured_ns) if measured_ns else 1.0)
        delayed_ns += float(class_ns.sum()) * min(1.0, delay_ns / max(1.0, measured_ns))
    worker_wall_ns: dict[int, float] = {}
    for slot, slot_ns in enumerate(np.bincount(slot_of, wall_ns)):
        worker_id = worker_of(slot)
        worker_wall_ns[worker_id] = max(worker_wall_ns.get(worker_id, 0.0), float(slot_ns))
    busy_share = float(busy_ns.sum()) / max(1.0, sum(worker_wall_ns.values()))
    slow = find_slow_operations(_read_durations(timings, "num_steps", "step"), _read_durations(timings, *_RESETS))
    step_ns = max(0.0, float(wall_ns.sum()) - slow.first_seconds * _NS) / num_steps
    busy_step_ns = min(1.0, busy_share) * step_ns
    slow_ns = slow.seconds * _NS
    name = "long" if slow_ns >= _LONG_NS else "short"
    slow_busy = float(timings[f"{name}_cpu_ns"].sum() + timings[f"{name}_delay_ns"].sum())
    slow_busy_ns = slow_ns * min(1.0, slow_busy / max(1.0, float(timings[f"{name}_wall_ns"].sum())))
    delay_ns = min(busy_step_ns, delayed_ns / max(1.0, float(wall_ns.sum())) * step_ns)
    return Workload(step_ns, busy_step_ns, delay_ns, slow_ns, slow_busy_ns, slow.share, slow.ends)


def read_workers(
    pids: Sequence[int],
    env_ids: Sequence[Sequence[int]],
    threads_per_worker: int,
    timings: Array | None,
    running: Mapping[int, SlotState],
    opened_ns: int,
) -> WorkerTimes:
    """Return the load of all workers.

    Args:
        pids, env_ids: process id and envs of each worker.
        threads_per_worker: most threads of a worker that run envs.
        timings: as for `read_envs`; None: there are none.
        running: the state of each slot with an operation under way, by env_id; read after `timings` was.
        opened_ns: monotonic clock when the workers began to serve.
    """
    since_ns = max(1, now_ns() - opened_ns)
    busy = np.full(len(pids), math.nan)
    for worker_id, mine in enumerate(env_ids):
        if timings is not None and mine:
            ids = list(mine)
            busy_ns = int(timings["step_ns"][ids].sum()) + int(timings["reset_ns"][ids].sum())
            busy_ns += sum(max(0, now_ns() - running[env_id].started_ns) for env_id in ids if env_id in running)
            busy[worker_id] = min(1.0, busy_ns / (since_ns * min(threads_per_worker, len(ids))))
    return WorkerTimes(
        pid=np.array(pids, np.int64),
        num_envs=np.array([len(mine) for mine in env_ids], np.int64),
        busy_share=busy,
        waiting_share=1.0 - busy,
        rss_nbytes=np.array([rss_of(pid) for pid in pids], np.float64),
        shard=np.full(len(pids), -1),
    )


def rss_of(pid: int) -> float:
    import psutil  # it cannot be imported on every system that has the serial backend

    try:
        return float(psutil.Process(pid).memory_info().rss)
    except psutil.Error:  # it has died
        return math.nan


def read_threads(pids: Sequence[int], threads_per_worker: int) -> tuple[tuple[int, ...], float]:
    """Return how many threads of each worker have computed, and the share of CPU time of those that run no envs.

    Args:
        pids: process id of each worker.
        threads_per_worker: number of threads of a worker that run envs; those with most CPU time count as these.
    """
    if not pids:
        return (), 0.0
    import psutil  # see `rss_of`

    counts = []
    all_seconds = helper_seconds = 0.0
    for pid in pids:
        try:
            threads = psutil.Process(pid).threads()
        except psutil.Error:  # it has died
            threads = []
        seconds = sorted((one.user_time + one.system_time for one in threads), reverse=True)
        least = max(_LEAST_SECONDS, _LEAST_PART * max(seconds, default=0.0))
        counts.append(sum(one >= least for one in seconds))
        all_seconds += sum(seconds)
        helper_seconds += sum(seconds[threads_per_worker:])
    return tuple(counts), helper_seconds / all_seconds if all_seconds else 0.0


def read_caller(first_wait_ns: int, waited_ns: int, copied_ns: int) -> CallerTimes:
    """Return the times of the caller.

    `first_wait_ns` and `waited_ns` are those of `Hub.waits`, `copied_ns` is `CopyTimer.sum_ns`.
    """
    if not first_wait_ns:
        return CallerTimes()
    since_ns = max(1, now_ns() - first_wait_ns)
    waiting = min(1.0, waited_ns / since_ns)
    copying = min(1.0 - waiting, copied_ns / since_ns)
    return CallerTimes(since_ns / _NS, waiting, copying, 1.0 - waiting - copying)


def measure_load(cores: int) -> float:
    """Compute for 20 ms; return how many threads of other programs want the cores, 0.0 if that is not counted."""
    file = open_run_delay()
    if file is None:
        return 0.0
    with contextlib.closing(file):
        began_ns, before_ns = now_ns(), read_run_delay(file) or 0
        while now_ns() - began_ns < _PROBE_NS:
            pass
        delay_ns = (read_run_delay(file) or 0) - before_ns
        return load_of(now_ns() - began_ns, delay_ns, 1, cores)


def running_of(states: Sequence[SlotState]) -> dict[int, SlotState]:
    """Return the states of slots that step or reset an env, by env_id."""
    return {state.env_id: state for state in states if state.op in (Op.STEP, Op.RESET)}
