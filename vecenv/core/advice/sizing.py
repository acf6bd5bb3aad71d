"""Sizing: how many workers, threads and spare envs fit the measured cost of an env's step.

The model of one round, in which each env makes one step: the envs of a slot step one after the other, all slots share
the cores with other programs, and the round ends with the slowest slot. So it waits for a reset of any env, unless a
spare env takes over. Its constants were measured on two cores.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "CONSTANTS",
    "ENDS",
    "SERIAL",
    "SERIAL_MARGIN",
    "Gain",
    "Setting",
    "Workload",
    "choose_setting",
    "choose_spares",
    "estimate_gain",
    "load_of",
    "round_ns",
    "widened",
]

#: Lower and upper bound of a factor of steps per second.
Gain: TypeAlias = tuple[float, float]

#: Episodes end in the same round in all envs, never in the same round, or after random numbers of steps.
ENDS = ("aligned", "spread", "random")
#: CPU time of a step in a slot that sleeps between two steps: waking up, and switching threads.
_SWITCH_NS = 40_000
#: CPU time of a step in a slot that runs several steps in a row, and the same in this thread.
_COMMAND_NS, _SERIAL_COMMAND_NS = 700, 500
#: Time of a round without envs, with workers and in this thread.
_ROUND_NS, _SERIAL_ROUND_NS = 8_000, 3_000
#: The serial backend is chosen only if it is faster by this factor.
SERIAL_MARGIN = 1.1
#: Factors of the constants on other machines, and the error of the model itself.
CONSTANTS, _MODEL = (0.5, 1.0, 2.0), 1.15
#: Least share of a core that a worker lacks from which other programs are the cause.
_LEAST_LACK = 0.1
#: Halvings of the interval in which a time is searched.
_HALVINGS = 30


@dataclass(frozen=True)
class Workload:
    """The cost of one step of one env, its share of the resets included.

    Attributes:
        step_ns: wall time in nanoseconds.
        busy_ns: the part in which the env does not wait.
        delay_ns: the part in which the env could compute, but waits for a core. It belongs to `busy_ns`.
        slow_ns: wall time of a slow reset, or of a step that is much longer than others; 0 if there are none.
        slow_busy_ns: the part of that in which the env does not wait.
        slow_share: how many of these there are per step, 0 to 1.
        ends: the patterns that may be theirs, of `ENDS`.
    """

    step_ns: float
    busy_ns: float
    delay_ns: float = 0.0
    slow_ns: float = 0.0
    slow_busy_ns: float = 0.0
    slow_share: float = 0.0
    ends: tuple[str, ...] = ENDS

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
    """Workers, threads and spare envs of a pool.

    Attributes:
        num_workers: worker processes; 0 is the serial backend.
        threads_per_worker: threads that step envs.
        num_spares: spare envs.
        is_leased: whether the workers are those of an env server, which decides their number.
    """

    num_workers: int
    threads_per_worker: int = 1
    num_spares: int = 0
    is_leased: bool = False

    def __str__(self) -> str:
        if not self.num_workers:
            return "the serial backend"
        workers = f"{self.num_workers} worker{'s' if self.num_workers > 1 else ''}"
        workers += f" of {self.threads_per_worker} threads" if self.threads_per_worker > 1 else ""
        return f"{workers} and {self.num_spares} spare envs" if self.num_spares else workers

    @classmethod
    def with_spares(cls, num_envs: int, num_spares: int) -> Setting:
        """Return the setting of a pool with spare envs and no `num_workers`: a reset delays no other env."""
        return cls(num_envs + num_spares, 1, num_spares)


SERIAL = Setting(0)


def round_ns(
    workload: Workload, num_envs: int, setting: Setting, cores: int, load: float = 0.0, constants: float = 1.0
) -> float:
    """Estimate how long one round of all envs takes, in nanoseconds.

    Args:
        workload: the cost of an env.
        num_envs: how many envs step, spare ones not counted.
        setting: of the pool.
        cores: how many cores the pool may use.
        load: how many threads of other programs want these cores, see `load_of`.
        constants: factor of the constants.
    """
    num_hosted = num_envs + setting.num_spares
    num_workers = min(num_hosted, max(1, setting.num_workers))
    share, slow_busy_ns = min(1.0, workload.slow_share), workload.slow_busy_ns
    slow_wait_ns = workload.slow_ns - slow_busy_ns
    all_busy_ns = workload.busy_ns - workload.delay_ns
    busy_ns = max(0.0, all_busy_ns - share * slow_busy_ns)
    wait_ns = max(0.0, workload.step_ns - workload.busy_ns - share * slow_wait_ns)
    turns = max(1.0, (min(num_workers, cores) + load) / cores)  # the factor of the time that computing takes
    if not setting.num_workers:
        step_ns = wait_ns + turns * all_busy_ns + share * slow_wait_ns + constants * _SERIAL_COMMAND_NS
        return constants * _SERIAL_ROUND_NS + num_envs * step_ns
    num_slots = min(num_hosted, setting.num_workers * setting.threads_per_worker)
    used_cores = min(num_workers, cores, cores * num_workers / (num_workers + load))
    overhead_ns = constants * (_SWITCH_NS if num_slots > min(num_workers, cores) else _COMMAND_NS)
    per_slot = math.ceil(num_envs / num_slots)

    def steps_ns(busy_ns: float) -> float:
        in_a_row_ns = per_slot * (wait_ns + turns * busy_ns + constants * _COMMAND_NS)
        return max(in_a_row_ns, wait_ns + num_envs * (busy_ns + overhead_ns) / used_cores)

    all_slow_ns = slow_wait_ns + num_envs * slow_busy_ns / used_cores
    if workload.ends[-1] == "aligned":
        waited_ns = share * max(per_slot * workload.slow_ns, all_slow_ns)
    else:
        waited_ns = _mean_of_most(per_slot, share, num_slots) * (slow_wait_ns + turns * slow_busy_ns)
        waited_ns = max(waited_ns, share * num_envs * slow_busy_ns / used_cores)
    found_ns = steps_ns(busy_ns) + waited_ns
    if setting.num_spares and num_slots == num_hosted:
        found_ns = min(found_ns, _with_spares(workload, num_envs, setting.num_spares, steps_ns(all_busy_ns)))
    return constants * _ROUND_NS + found_ns


def _mean_of_most(count: int, chance: float, num_slots: int) -> float:
    """Return the mean of the largest number of slow operations in a slot, each of `count` with this chance."""
    if not 0.0 < chance < 1.0:
        return count * chance
    most, up_to, exactly = 0.0, 0.0, (1.0 - chance) ** count
    for number in range(count):
        up_to = min(1.0, up_to + exactly)
        most += 1.0 - up_to**num_slots
        exactly *= (count - number) / (number + 1) * chance / (1.0 - chance)
    return most


def _with_spares(workload: Workload, num_envs: int, num_spares: int, steps_ns: float) -> float:
    """Return the time of a round in which spare envs take over; `steps_ns` is that of the steps alone."""
    slow_ns, share, ends = workload.slow_ns, workload.slow_share, workload.ends[-1]
    is_own = num_spares % num_envs == 0
    if ends == "aligned" and not is_own:
        return math.inf  # some rows have none
    found_ns = max(steps_ns, (steps_ns + share * slow_ns) / (1 + num_spares / num_envs))  # all envs are reset always
    if ends != "random" and is_own:
        return found_ns
    num_rows, least = (1, num_spares // num_envs) if is_own else (num_envs, num_spares)
    most_ns = found_ns + num_envs * share * slow_ns
    for _ in range(_HALVINGS):
        middle_ns = (found_ns + most_ns) / 2
        # these rows have no spare env left if that number of episodes ends within one reset
        missing = _poisson_tail(least, num_rows * share * slow_ns / middle_ns)
        if steps_ns + num_envs * share * missing * slow_ns / (least + 1) > middle_ns:
            found_ns = middle_ns
        else:
            most_ns = middle_ns
    return most_ns


def _poisson_tail(least: int, mean: float) -> float:
    """Return the chance of at least `least` events, where `mean` of them are expected."""
    below, exactly = 0.0, math.exp(-mean)
    for number in range(least):
        below += exactly
        exactly *= mean / (number + 1)
    return max(0.0, 1.0 - below)


def load_of(busy_ns: float, delay_ns: float, num_workers: int, cores: int) -> float:
    """Return how many threads of other programs want the cores, from the delay of those that compute.

    Args:
        busy_ns, delay_ns: as in `Workload`.
        num_workers: how many processes compute at once.
        cores: how many cores they may use.
    """
    if delay_ns < _LEAST_LACK * busy_ns:
        return 0.0
    return max(0.0, cores / max(0.01, 1.0 - delay_ns / busy_ns) - num_workers)


def estimate_gain(
    workload: Workload,
    num_envs: int,
    now: Setting,
    then: Setting,
    cores: int,
    load: float = 0.0,
    measured_ns: float = math.nan,
) -> Gain:
    """Estimate the factor of steps per second from another setting, for a caller that waits all the time.

    `measured_ns` is the time of a round at present, NaN if it is not known. Only the patterns of `ENDS`, the constants
    and the load (this one or none) that explain it are used.
    """
    found = []
    for ends in workload.ends if workload.slow_share else workload.ends[-1:]:
        case = dataclasses.replace(workload, ends=(ends,))
        for others, constants in itertools.product({0.0, load}, CONSTANTS):
            before, after = (round_ns(case, num_envs, one, cores, others, constants) for one in (now, then))
            found.append((0.0 if math.isnan(measured_ns) else abs(math.log(before / measured_ns)), before / after))
    farthest = min(found)[0] + math.log(_MODEL)
    return widened([ratio for distance, ratio in found if distance <= farthest])


def widened(gains: Sequence[float]) -> Gain:
    """Return bounds of these gains, with the error of the model."""
    return min(gains) / _MODEL, max(gains) * _MODEL


def choose_setting(
    workload: Workload,
    num_envs: int,
    cores: int,
    *,
    may_thread: bool,
    may_be_serial: bool = False,
    serial_margin: float = SERIAL_MARGIN,
) -> Setting:
    """Choose workers and threads for a measured env.

    Args:
        workload: its cost.
        num_envs: how many envs the pool has.
        cores: how many cores the pool may use.
        may_thread: whether several envs may step at once in one process.
        may_be_serial: whether `SERIAL` may be chosen.
        serial_margin: it is chosen only if it is faster by this factor.
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
        if serial_ns * serial_margin < round_ns(workload, num_envs, setting, cores):
            return SERIAL
    return setting


def choose_spares(workload: Workload, num_envs: int, cores: int) -> Setting:
    """Return the best setting with spare envs: as many as envs, or half of that, which all rows share."""
    counts = {num_envs, max(1, num_envs // 2)}
    settings = [Setting.with_spares(num_envs, count) for count in sorted(counts, reverse=True)]
    return min(settings, key=lambda one: round_ns(workload, num_envs, one, cores))
