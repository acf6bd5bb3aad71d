"""Profile: the numbers of one pool that rules need.

The caller's time of one env step consists of three parts:

    waiting     `recv` and `step` wait for envs
    copying     the front end copies observations
    outside     the caller's own work, and the other work of the front end
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass

import numpy as np

from ...statistics import Durations, Statistics, time_text
from ..layout.spec import Array
from .facts import PoolFacts
from .sizing import CONSTANTS, ENDS, SERIAL, Gain, Setting, Workload, estimate_gain, load_of, round_ns, widened
from .times import find_slow_operations

__all__ = ["Profile", "make_profile"]

#: A verdict needs this number of steps, of steps per env, and of seconds of the caller.
_STEPS, _STEPS_PER_ENV, _SECONDS = 50, 5, 0.2
_NS = 1e9


@dataclass(frozen=True)
class Profile:
    """One pool: its facts, and numbers that several rules need. Times are seconds of the caller per env step.

    `load` is the number of threads of other programs that want its cores.
    """

    statistics: Statistics
    facts: PoolFacts
    num_envs: int
    num_steps: int
    workload: Workload
    load: float
    waiting: float
    copying: float
    outside: float

    @property
    def total(self) -> float:
        return self.waiting + self.copying + self.outside

    @property
    def steps(self) -> Durations:
        return self.statistics.envs.step

    @property
    def waited(self) -> float:
        """Seconds of all waits."""
        return self.waiting * self.num_steps

    @property
    def is_measured(self) -> bool:
        """Whether the caller's times are measured; else they are estimated."""
        return self.statistics.caller.seconds > 0

    @property
    def num_rows(self) -> int:
        """The number of envs that step, spare ones not counted."""
        return self.num_envs - self.facts.num_spares

    def gain_of(self, waiting: float) -> float:
        """Return the gain if the caller waited only this number of seconds per env step."""
        return self.total / max(1e-9, waiting + self.copying + self.outside)

    def gain_with(self, workload: Workload, setting: Setting, saved: float = 0.0) -> Gain:
        """Return the gain if the caller waited as long as the model says for this setting.

        `saved` is the time per env step that the caller saves outside; it may be a fifth less.
        """
        gains = []
        for load, constants in itertools.product({0.0, self.load}, CONSTANTS):
            waiting = (
                round_ns(workload, self.num_rows, setting, self.facts.cores, load, constants) / self.num_rows / _NS
            )
            gains += [self.gain_of(waiting - min(self.outside, part * saved)) for part in (0.8, 1.0)]
        return widened(gains)

    def gain_by(self, setting: Setting) -> Gain:
        """Return the gain if the waits changed as the model says for this setting, compared with the present one."""
        facts = self.facts
        now = Setting(facts.setting.num_workers, facts.setting.threads_per_worker, facts.num_spares)
        measured_ns = max(1e-9, self.waiting) * self.num_rows * _NS if self.is_measured else math.nan
        workload = dataclasses.replace(self.workload, ends=ENDS) if self.is_measured else self.workload
        low, high = estimate_gain(workload, self.num_rows, now, setting, facts.cores, self.load, measured_ns)
        return self.gain_of(self.waiting / low), self.gain_of(self.waiting / high)

    def by_worker(self, seconds: Array) -> Array:
        """Return the time of each worker for operations with these seconds in each env, float64 (W,)."""
        worker_id = np.maximum(0, self.statistics.envs.worker_id)  # -1: of an env whose worker is being replaced
        num_envs = np.bincount(worker_id)
        at_once = np.clip(num_envs, 1, self.facts.setting.threads_per_worker)
        by_worker: Array = np.bincount(worker_id, seconds) / at_once
        return by_worker

    @property
    def workers_text(self) -> str:
        """The workers, such as '2 workers' or '1 shard'."""
        shards = self.facts.num_shards
        return f"{shards} shard{'s' if shards > 1 else ''}" if shards else str(self.facts.setting)

    def workload_without_waits(self) -> Workload:
        """Return the cost of a step as it would be without waiting for cores, and without first resets."""
        resets = self.statistics.envs.reset
        later = np.where(resets.num > 1, (resets.num - 1) * resets.p50, 0.0)  # the first one is the start
        own_ns = float(self.steps.sum.sum() + later.sum()) / max(1, int(self.steps.num.sum())) * _NS
        own_ns = max(1.0, own_ns - self.workload.delay_ns)
        return Workload(own_ns, own_ns)

    @property
    def busy(self) -> Array:
        """Seconds for which each worker has stepped and reset envs, float64 (W,)."""
        return self.by_worker(self.statistics.envs.step.sum + self.statistics.envs.reset.sum)


def make_profile(statistics: Statistics, facts: PoolFacts) -> Profile | str:
    """Return the numbers of a pool, or the reason why nothing can be said about it."""
    envs, caller = statistics.envs, statistics.caller
    num_envs = len(envs.step.num)
    if not num_envs:
        return "nothing was measured: the envs are not open, or timings=False"
    num_steps = statistics.steps if facts.num_shards else int(envs.step.num.sum())
    seconds = caller.seconds or float(envs.step.sum.sum())
    is_short = seconds < _SECONDS and facts.setting != SERIAL
    if num_steps < max(_STEPS, _STEPS_PER_ENV * num_envs) or is_short:
        return f"too little was measured: {num_steps:,} steps of {num_envs} envs in {time_text(seconds)}"
    slow = find_slow_operations(envs.step, envs.reset)
    seconds = float(envs.step.sum.sum() + envs.reset.sum.sum()) - slow.first_seconds
    mean_ns = seconds / max(1, int(envs.step.num.sum())) * _NS
    workload = facts.workload or Workload(mean_ns, mean_ns, 0.0, slow.seconds * _NS, slow.seconds * _NS, *slow[2:])
    num_workers = min(facts.setting.num_workers, num_envs)
    load = load_of(workload.busy_ns, workload.delay_ns, num_workers, facts.cores)
    load = facts.callers_load if facts.setting == SERIAL else load
    waiting, copying, outside = (
        share * caller.seconds / num_steps
        for share in (caller.waiting_share, caller.copying_share, caller.outside_share)
    )
    if not caller.seconds:
        waiting = round_ns(workload, num_envs, facts.setting, facts.cores, load) / num_envs / _NS
        copying = outside = 0.0
    return Profile(statistics, facts, num_envs, num_steps, workload, load, waiting, copying, outside)
