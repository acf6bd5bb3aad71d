"""Find envs that wait most of their time, from the times that workers write into the arena, and recommend a setting."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from ...errors import PerformanceWarning, warn_caller
from ..layout.spec import Array
from ..processes.slots import SlotTable
from ..system.clock import now_ns
from .sizing import Setting, Workload, choose_setting, round_ns

__all__ = ["LEAST_GAIN", "WaitingCheck", "advise", "find_better", "read_workload"]

_LOG = logging.getLogger("vecenv")
#: Least steps of each env, nanoseconds since the first request, and measured operations, for the verdict.
_STEPS, _SINCE_NS, _MEASURED = 20, 200_000_000, 5
#: Steps of each env after which there is no verdict if too few operations were measured.
_MOST_STEPS = 2_000
#: A class of operations without any measured one counts as computing, up to this share of the time.
_UNMEASURED_SHARE = 0.2
#: Least gain for which a setting is recommended.
LEAST_GAIN = 1.2


class WaitingCheck:
    """Judges once whether the envs of a pool wait, and warns if another setting would be faster.

    Args:
        timings: see `CountersPlan.timings`.
        slots: which slot serves each env.
        setting: workers and threads of the pool.
        cores: how many cores the pool may use.
    """

    def __init__(self, timings: Array, slots: SlotTable, setting: Setting, cores: int) -> None:
        self._timings = timings
        self._slots = slots
        self._setting = setting
        self._cores = cores
        self._num_requests = 0
        self._first_ns = 0

    def is_due(self) -> bool:
        """Count a request; return whether enough is measured for a verdict, or nothing will be. Takes microseconds."""
        self._num_requests += 1
        self._first_ns = self._first_ns or now_ns()
        if self._num_requests <= _STEPS or now_ns() - self._first_ns < _SINCE_NS:
            return False
        num_steps = int(self._timings["num_steps"].sum()) / len(self._timings)
        return num_steps >= _STEPS and (num_steps >= _MOST_STEPS or self._read() is not None)

    def judge(self) -> None:
        """Emit one line in the log and one `PerformanceWarning` if the envs wait and another setting would be faster.

        With the filter "error" the warning is raised; nothing else is changed then.
        """
        workload = self._read()
        num_envs = len(self._timings)
        if workload is None or not workload.is_waiting:
            return
        best, gain = find_better(workload, num_envs, self._setting, self._cores)
        if gain < LEAST_GAIN:
            return
        text = _describe(workload, num_envs, self._setting, best, gain)
        _LOG.info("%s", text)
        warn_caller(text, PerformanceWarning)

    def _read(self) -> Workload | None:
        return read_workload(self._timings, self._slots.by_env, self._slots.worker_of)


def read_workload(timings: Array, slot_of: tuple[int, ...], worker_of: Callable[[int], int]) -> Workload | None:
    """Return the mean cost of a step, resets included; None if too little was measured.

    The threads of one worker wait for each other when they compute. So a worker counts as waiting only while none of
    its threads computes.

    Args:
        timings: of all envs.
        slot_of: the slot of each env.
        worker_of: returns the worker_id of a slot.
    """
    num_steps = int(timings["num_steps"].sum())
    wall_ns = (timings["step_ns"] + timings["reset_ns"]).astype(np.float64)
    long_ns = timings["long_ns"].astype(np.float64)
    if num_steps == 0 or int(timings["short_num"].sum()) + int(timings["long_num"].sum()) < _MEASURED:
        return None
    busy_ns = np.zeros(len(timings))
    delayed_ns = 0.0
    for name, class_ns in (("short", wall_ns - long_ns), ("long", long_ns)):
        measured_ns = float(timings[f"{name}_wall_ns"].sum())
        if not measured_ns and class_ns.sum() > _UNMEASURED_SHARE * wall_ns.sum():
            return None
        delay_ns = float(timings[f"{name}_delay_ns"].sum())
        computing_ns = float(timings[f"{name}_cpu_ns"].sum()) + delay_ns
        busy_ns += class_ns * (min(1.0, computing_ns / measured_ns) if measured_ns else 1.0)
        delayed_ns += float(class_ns.sum()) * min(1.0, delay_ns / max(1.0, measured_ns))
    slot_wall_ns = np.bincount(slot_of, wall_ns)
    worker_wall_ns: dict[int, float] = {}
    for slot, slot_ns in enumerate(slot_wall_ns):
        worker_id = worker_of(slot)
        worker_wall_ns[worker_id] = max(worker_wall_ns.get(worker_id, 0.0), float(slot_ns))
    busy_share = float(busy_ns.sum()) / max(1.0, sum(worker_wall_ns.values()))
    step_ns = float(wall_ns.sum()) / num_steps
    busy_share = min(1.0, busy_share)
    return Workload(step_ns, busy_share * step_ns, min(busy_share * step_ns, delayed_ns / num_steps))


def find_better(workload: Workload, num_envs: int, setting: Setting, cores: int) -> tuple[Setting, float]:
    """Return the best workers and threads for envs that wait, and their gain: estimated steps per second, over now."""
    best = choose_setting(workload, num_envs, cores, may_thread=True)
    now, then = (round_ns(workload, num_envs, one, cores) for one in (setting, best))
    return best, now / then


def advise(best: Setting, num_envs: int) -> str:
    """Return the arguments of a front end for a setting, and the one for envs to which threads do harm."""
    threads = "" if best.threads_per_worker == 1 else f", threads_per_worker={best.threads_per_worker}"
    for_draws = f" (num_workers={num_envs} for envs that draw from global random generators)" if threads else ""
    return f"num_workers={best.num_workers}{threads}{for_draws}"


def _describe(workload: Workload, num_envs: int, setting: Setting, best: Setting, gain: float) -> str:
    per_slot = -(-num_envs // min(num_envs, setting.num_workers * setting.threads_per_worker))
    return (
        f"the envs wait for {workload.waiting:.0%} of their time: a step takes {_ms(workload.step_ns)} with its share "
        f"of the resets, and {_ms(workload.busy_ns)} of that is work. {setting} step up to {per_slot} envs one after "
        f"the other. Use {advise(best, num_envs)}: expect about {gain:.2g} times as many "
        "steps per second. num_workers='auto' measures and chooses. With VectorEnv, send() and recv() let quick envs "
        "go on without slow ones"
    )


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.3g} ms"
