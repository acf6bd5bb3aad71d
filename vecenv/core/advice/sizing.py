"""Sizing: how many workers and threads fit the measured cost of an env's step.

The model of one round, in which each env makes one step: the envs of a slot step one after the other, and all slots
share the cores. Its constants were measured on two cores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["SERIAL", "Setting", "Workload", "choose_setting", "round_ns"]

#: CPU time of a step in a slot that sleeps between two steps: waking up, and switching threads.
_SWITCH_NS = 40_000
#: CPU time of a step in a slot that runs several steps in a row, and the same in this thread.
_COMMAND_NS, _SERIAL_COMMAND_NS = 700, 500
#: Time of a round without envs, with workers and in this thread.
_ROUND_NS, _SERIAL_ROUND_NS = 8_000, 3_000
#: The serial backend is chosen only if it is faster by this factor.
_SERIAL_MARGIN = 1.1


@dataclass(frozen=True)
class Workload:
    """The cost of one step of one env, its share of the resets included.

    Attributes:
        step_ns: wall time in nanoseconds.
        busy_ns: the part in which the env does not wait.
        delay_ns: the part in which the env could compute, but waits for a core. It belongs to `busy_ns`.
    """

    step_ns: float
    busy_ns: float
    delay_ns: float = 0.0

    @property
    def waiting(self) -> float:
        """The share of the wall time in which the env waits, 0 to 1."""
        return max(0.0, 1.0 - self.busy_ns / self.step_ns) if self.step_ns else 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether the env waits more than half of the time."""
        return self.waiting > 0.5


@dataclass(frozen=True)
class Setting:
    """Workers and threads of a pool. `num_workers` 0 is the serial backend."""

    num_workers: int
    threads_per_worker: int = 1

    def __str__(self) -> str:
        if not self.num_workers:
            return "the serial backend"
        workers = f"{self.num_workers} worker{'s' if self.num_workers > 1 else ''}"
        return workers if self.threads_per_worker == 1 else f"{workers} of {self.threads_per_worker} threads"


SERIAL = Setting(0)


def round_ns(workload: Workload, num_envs: int, setting: Setting, cores: int) -> float:
    """Estimate how long one round of all envs takes, in nanoseconds."""
    if not setting.num_workers:
        return _SERIAL_ROUND_NS + num_envs * (workload.step_ns + _SERIAL_COMMAND_NS)
    num_slots = min(num_envs, setting.num_workers * setting.threads_per_worker)
    used_cores = min(setting.num_workers, cores)
    overhead_ns = _SWITCH_NS if num_slots > used_cores else _COMMAND_NS
    in_a_row_ns = math.ceil(num_envs / num_slots) * (workload.step_ns + _COMMAND_NS)
    computing_ns = num_envs * (workload.busy_ns + overhead_ns) / used_cores
    return _ROUND_NS + max(in_a_row_ns, computing_ns)


def choose_setting(
    workload: Workload, num_envs: int, cores: int, *, may_thread: bool, may_be_serial: bool = False
) -> Setting:
    """Choose workers and threads for a measured env.

    Args:
        workload: its cost.
        num_envs: how many envs the pool has.
        cores: how many cores the pool may use.
        may_thread: whether several envs may step at once in one process.
        may_be_serial: whether `SERIAL` may be chosen.
    """
    setting = Setting(min(num_envs, cores))
    if workload.is_waiting:
        # this number of envs keeps the cores busy; more of them only switch more often
        at_once = 2 * cores * workload.step_ns / (workload.busy_ns + _SWITCH_NS)
        per_slot = max(1, int(num_envs / max(at_once, cores)))
        num_slots = math.ceil(num_envs / per_slot)
        num_workers = min(num_slots, cores) if may_thread else num_slots
        waiting = Setting(num_workers, math.ceil(num_slots / num_workers))
        setting = min(setting, waiting, key=lambda one: round_ns(workload, num_envs, one, cores))
    if may_be_serial:
        serial_ns = round_ns(workload, num_envs, SERIAL, cores)
        if serial_ns * _SERIAL_MARGIN < round_ns(workload, num_envs, setting, cores):
            return SERIAL
    return setting
