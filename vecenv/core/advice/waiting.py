"""Find envs that wait most of their time, from the times that workers write into the arena, and recommend a setting."""

from __future__ import annotations

import logging

from ...errors import PerformanceWarning, warn_caller
from ...report import Verdict
from ...statistics import time_text
from ..layout.spec import Array
from ..processes.slots import SlotTable
from ..system.clock import now_ns
from .sizing import Setting, Workload, choose_setting, choose_spares, estimate_gain
from .times import read_workload

__all__ = ["LEAST_GAIN", "WaitingCheck", "advise", "find_waiting", "one_env_per_worker"]

_LOG = logging.getLogger("vecenv")
#: Nanoseconds since the first steps for a verdict, and least steps of each env: if it changes the pool, if it warns.
_SINCE_NS, _STEPS, _STEPS_TO_WARN = 200_000_000, 1, 20
#: Nanoseconds between two looks at the times.
_PAUSE_NS = 20_000_000
#: The sums of timings that a workload consists of.
_SUMS = (
    "num_steps", "step_ns", "reset_ns", "long_ns", "short_num", "short_wall_ns", "short_cpu_ns", "short_delay_ns",
    "long_num", "long_wall_ns", "long_cpu_ns", "long_delay_ns",
)  # fmt: skip
#: Steps of each env after which there is no verdict if too few operations were measured.
_MOST_STEPS = 2_000
#: Least gain for which a setting is recommended.
LEAST_GAIN = 1.2


class WaitingCheck:
    """Finds out once whether the envs of a pool wait and another setting would be faster. First resets do not count.

    Args:
        timings: see `CountersPlan.timings`.
        slots: which slot serves each env.
        setting: workers and threads of the pool.
        cores: how many cores the pool may use.
        changes_pool: whether the pool follows the verdict, so that each second until then is a loss.
    """

    def __init__(
        self, timings: Array, slots: SlotTable, setting: Setting, cores: int, *, changes_pool: bool = False
    ) -> None:
        self._timings = timings
        self._slots = slots
        self.setting = setting
        self._cores = cores
        self._least_steps = _STEPS if changes_pool else _STEPS_TO_WARN
        self._before_steps = timings.copy()
        self._has_steps = False
        self._first_ns = 0  # the last request before there were steps
        self._next_look_ns = 0

    def is_due(self) -> bool:
        """Return whether enough is measured for a verdict, or nothing will be; called before requests."""
        if not self._has_steps:
            before = self._timings.copy()
            self._has_steps = bool(before["num_steps"].any())
            if not self._has_steps:
                self._before_steps, self._first_ns = before, now_ns()
                return False
        now = now_ns()
        if now - self._first_ns < _SINCE_NS or now < self._next_look_ns:
            return False
        self._next_look_ns = now + _PAUSE_NS
        num_steps = int(self._timings["num_steps"].sum()) / len(self._timings)
        return num_steps >= self._least_steps and (num_steps >= _MOST_STEPS or self._read() is not None)

    def find(self) -> tuple[Verdict, Setting] | None:
        """Return the verdict and the best setting without threads; None if envs do not wait, or little is gained."""
        workload, num_envs = self._read(), len(self._timings)
        found = None if workload is None else find_waiting(workload, num_envs, self.setting, self._cores)
        if workload is None or found is None or not found.gain_low >= LEAST_GAIN:
            return None
        return found, choose_setting(workload, num_envs, self._cores, may_thread=False)

    @property
    def construct_seconds(self) -> float:
        """The time of the slowest constructor, in seconds."""
        return float(self._timings["construct_ns"].max()) / 1e9

    def warn(self, found: Verdict, reason: str = "") -> None:
        """Write a verdict to the log, and emit it as a `PerformanceWarning`. `reason`: why the pool does not follow it.

        With the filter "error" the warning is raised; nothing else is changed then.
        """
        num_slots = min(len(self._timings), self.setting.num_workers * self.setting.threads_per_worker)
        measures = "" if self.setting.is_leased else "num_workers='auto' measures and chooses. "
        text = (
            f"{found}. {self.setting} step up to {-(-len(self._timings) // num_slots)} envs one after the other"
            f"{reason and f', and more workers are not started: {reason}'}. "
            f"{measures}With VectorEnv, send() and recv() do not wait for slow envs"
        )
        _LOG.info("%s", text)
        warn_caller(text, PerformanceWarning)

    def _read(self) -> Workload | None:
        since = self._timings.copy()
        for name in _SUMS:
            since[name] -= self._before_steps[name]
        return read_workload(since, self._slots.by_env, self._slots.worker_of)


def find_waiting(workload: Workload, num_envs: int, setting: Setting, cores: int, load: float = 0.0) -> Verdict | None:
    """Return the verdict about envs that wait, with the gain if the caller waits for them all the time; else None.

    Where a lockstep waits for resets, its setting also names the number of spare envs.
    """
    if not workload.is_waiting:
        return None
    best = choose_setting(workload, num_envs, cores, may_thread=not setting.is_leased)
    spares = choose_spares(workload, num_envs, cores)
    further, _ = estimate_gain(workload, num_envs, best, spares, cores, load)
    cause = (
        f"the envs wait for {workload.waiting:.0%} of their time: {time_text(workload.step_ns / 1e9)} a step with its "
        f"share of the resets, {time_text(workload.busy_ns / 1e9)} of that is work"
    )
    gain = estimate_gain(workload, num_envs, setting, best, cores, load)
    text = advise(best, num_envs, setting)
    if further >= LEAST_GAIN:
        alone = one_env_per_worker(setting)
        text += f" (more with num_spare_envs={spares.num_spares} and {alone}: steps do not wait for resets then)"
    return Verdict("waiting envs", cause, workload.waiting, "share", text, *gain)


def advise(best: Setting, num_envs: int, present: Setting) -> str:
    """Return the arguments of a front end for a setting, and the one for envs to which threads do harm.

    Args:
        best: the setting to recommend.
        num_envs: number of envs.
        present: the setting of the pool.
    """
    if present.is_leased:
        each = -(-num_envs // best.num_workers)
        return f"envs_per_worker={each} at the env server, so that {best.num_workers} workers step the envs"
    threads = "" if best.threads_per_worker == 1 else f", threads_per_worker={best.threads_per_worker}"
    for_draws = f" (num_workers={num_envs} for envs that draw from global random generators)" if threads else ""
    return f"num_workers={best.num_workers}{threads}{for_draws}"


def one_env_per_worker(present: Setting) -> str:
    """Return the argument that gives a pool with this setting a worker for each env."""
    return "envs_per_worker=1 at the env server" if present.is_leased else "no num_workers"
