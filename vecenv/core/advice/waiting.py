"""Find envs that wait most of their time, from the times that workers write into the arena, and recommend a setting."""

from __future__ import annotations

import logging

from ...errors import PerformanceWarning, warn_caller
from ...report import Verdict
from ...statistics import time_text
from ..layout.spec import Array
from ..processes.slots import SlotTable
from ..system.clock import now_ns
from .sizing import Setting, Workload, choose_setting, round_ns
from .times import read_workload

__all__ = ["LEAST_GAIN", "WaitingCheck", "advise", "find_waiting"]

_LOG = logging.getLogger("vecenv")
#: Least steps of each env, and nanoseconds since the first request, for the verdict.
_STEPS, _SINCE_NS = 20, 200_000_000
#: Steps of each env after which there is no verdict if too few operations were measured.
_MOST_STEPS = 2_000
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
        workload, num_envs = self._read(), len(self._timings)
        found = None if workload is None else find_waiting(workload, num_envs, self._setting, self._cores)
        if found is None or found.gain < LEAST_GAIN:
            return
        num_slots = min(num_envs, self._setting.num_workers * self._setting.threads_per_worker)
        text = (
            f"{found}. {self._setting} step up to {-(-num_envs // num_slots)} envs one after the other. "
            "num_workers='auto' measures and chooses. With VectorEnv, send() and recv() do not wait for slow envs"
        )
        _LOG.info("%s", text)
        warn_caller(text, PerformanceWarning)

    def _read(self) -> Workload | None:
        return read_workload(self._timings, self._slots.by_env, self._slots.worker_of)


def find_waiting(workload: Workload, num_envs: int, setting: Setting, cores: int) -> Verdict | None:
    """Return the verdict about envs that wait, with the gain if the caller waits for them all the time; else None."""
    if not workload.is_waiting:
        return None
    best = choose_setting(workload, num_envs, cores, may_thread=True)
    now, then = (round_ns(workload, num_envs, one, cores) for one in (setting, best))
    cause = (
        f"the envs wait for {workload.waiting:.0%} of their time: {time_text(workload.step_ns / 1e9)} a step with its "
        f"share of the resets, {time_text(workload.busy_ns / 1e9)} of that is work"
    )
    return Verdict("waiting envs", cause, workload.waiting, "share", advise(best, num_envs), now / then)


def advise(best: Setting, num_envs: int) -> str:
    """Return the arguments of a front end for a setting, and the one for envs to which threads do harm."""
    threads = "" if best.threads_per_worker == 1 else f", threads_per_worker={best.threads_per_worker}"
    for_draws = f" (num_workers={num_envs} for envs that draw from global random generators)" if threads else ""
    return f"num_workers={best.num_workers}{threads}{for_draws}"
