"""Rules that find out why a pool is slow: from its statistics to verdicts.

Each rule is a function that returns a verdict or None. It compares the present time of one env step, as the caller
sees it, with an estimate of that time after a change of one setting; see `Profile` for the parts of the time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from ...report import Report, Verdict
from ...statistics import Statistics, time_text
from .facts import PoolFacts
from .profile import Profile, make_profile
from .sizing import SERIAL, Gain, Setting, choose_setting, choose_spares, round_ns
from .times import SLOW, typical_seconds
from .waiting import LEAST_GAIN, advise, find_waiting, one_env_per_worker

__all__ = ["UNPROTECTED", "cheap_envs", "diagnose"]

_Rule: TypeAlias = Callable[[Profile], "Verdict | None"]
#: The price of the serial backend, to be appended to a setting.
UNPROTECTED = ", which survives no crash of an env"
#: Seconds of a step that may cost less than its transfer to a worker.
_CHEAP_STEP = 200e-6
#: Least gain for which workers are recommended to the serial backend: their hand-over costs
#: more where cores are shared.
_WORKERS_GAIN = 1.5
#: Stragglers: p99 of steps over p50. Quicker ones than `_MIN_P99` seconds are noise of the system.
_TAIL, _MIN_P99 = 4.0, 200e-6
#: An upper limit of a gain is reached up to this factor, and a gain computed from measured times is exact up to that.
_LIMIT, _MEASURED = 1.5, 1.15
#: The share of the caller's time from which a policy is slow, and copies are expensive.
_SLOW_POLICY, _MUCH_COPYING = 0.5, 0.1
#: Time of the front end itself in a round, at most: seconds, and seconds per env. The remaining time is the policy.
_FRONT_END, _FRONT_END_PER_ENV = 50e-6, 5e-6
#: The share of steps whose info is pickled from which infos are a cause, and the least gain of the caller's settings.
_MANY_INFOS, _CALLER_GAIN = 0.1, 1.05
#: Least ratio of the time in which a worker copies and pickles an info, and that of unpickling.
_PICKLING = 2.0
#: Least ratio of the times of envs on a slow core and on others. Below `_MIN_STEP` seconds that is noise.
_SLOW_CORE, _MIN_STEP = 1.5, 50e-6
_NS = 1e9


def diagnose(statistics: Statistics, facts: PoolFacts) -> Report:
    """Return the verdicts that follow from the statistics and facts of a pool.

    A verdict that explains others replaces them. Where the hand-over to workers costs most, nothing else about
    workers is reported. A slow core does not count as stragglers, nor an env that waits for its own threads as waiting.
    """
    pool = make_profile(statistics, facts)
    if isinstance(pool, str):
        return Report(note=pool)
    found = _find_in_shards(pool) if facts.num_shards else _find_in_workers(pool)
    found.sort(key=lambda one: -_middle(one.gain_low, one.gain_high))
    if found:
        return Report(tuple(found))
    step = time_text(float(pool.steps.together().mean[0]))
    waits = f", and the caller waits for {pool.waiting / pool.total:.0%} of its time"
    cause = f"a step takes {step} per env in the mean{waits if pool.is_measured else ''}"
    return Report(note=f"nothing takes much time that another setting would save; {cause}")


def _find_in_workers(pool: Profile) -> list[Verdict]:
    found = _apply([_find_cheap_envs, _find_one_process], pool)
    if not found and pool.facts.setting != SERIAL:
        found = _apply([_find_slow_core], pool) or _apply([_find_stragglers], pool)
        found += _apply([_find_slow_resets], pool)
        found += _apply([_find_threads], pool) or _apply([_find_waiting_envs, _find_few_cores], pool)
    return found + _apply([_find_policy, _find_pickled_infos, _find_copies], pool, _CALLER_GAIN)


def _find_in_shards(pool: Profile) -> list[Verdict]:
    """Return the verdicts about a pool of shards. Cores and threads of other machines are not known here."""
    found = _apply([_find_one_machine], pool) or _apply([_find_stragglers], pool)
    found += _apply([_find_hand_over, _find_slow_resets], pool)
    return found + _apply([_find_policy, _find_copies], pool, _CALLER_GAIN)


def _apply(rules: Sequence[_Rule], pool: Profile, least_gain: float = LEAST_GAIN) -> list[Verdict]:
    """Return the verdicts of rules whose gain may be large enough, or is not known."""
    usable = [rule for rule in rules if pool.is_measured or rule in _ESTIMATING]
    found = [verdict for rule in usable if (verdict := rule(pool)) is not None]
    return [verdict for verdict in found if not verdict.gain_high < _MEASURED * least_gain]


def _middle(low: float, high: float) -> float:
    """Return the middle of the bounds of a gain; infinity if it is not known."""
    return math.inf if math.isnan(low) else math.sqrt(low * high)


def _up_to(gain: float) -> Gain:
    """Return the bounds of a gain with this upper limit."""
    return max(min(1.0, gain), gain / _LIMIT), gain


def _about(gain: float) -> Gain:
    """Return the bounds of a gain that follows from measured times."""
    return gain / _MEASURED, gain * _MEASURED


# ---- where envs live ----------------------------------------------------------------------------


def cheap_envs(
    num_envs: int, step_seconds: float, present_seconds: float, where: str, gain: Gain, setting: str
) -> Verdict:
    """Return the verdict about envs whose steps cost less than the hand-over to workers.

    Args:
        num_envs: how many envs.
        step_seconds, present_seconds: time of a step of one env, and of an env step with workers for the caller.
        where: the workers, such as '2 workers'.
        gain: bounds of the env steps per second with the setting to recommend, over the present ones.
        setting: that setting.
    """
    envs = "the env" if num_envs == 1 else f"the {num_envs} envs"
    present = f"{time_text(present_seconds)} with the hand-over to {where}"
    each = "" if num_envs == 1 else " per env"
    cause = f"a step of {envs} takes {time_text(step_seconds)}{each}, and {present}"
    return Verdict("cheap envs", cause, step_seconds, "s", setting, *gain)


def _find_cheap_envs(pool: Profile) -> Verdict | None:
    facts = pool.facts
    if facts.setting == SERIAL or facts.setting.is_leased or float(pool.steps.together().p50[0]) > _CHEAP_STEP:
        return None
    own = pool.workload_without_waits()
    serial_ns, fewer_ns = (round_ns(own, pool.num_envs, one, facts.cores) for one in (SERIAL, Setting(facts.cores)))
    if facts.setting.num_workers > facts.cores and fewer_ns < serial_ns:
        return None  # a worker per core is better still, see `_find_few_cores`
    gain = pool.gain_with(own, SERIAL)
    setting = facts.names.serial + UNPROTECTED
    present = pool.waiting + pool.outside
    return cheap_envs(pool.num_envs, own.step_ns / _NS, present, pool.workers_text, gain, setting)


def _find_one_machine(pool: Profile) -> Verdict | None:
    """Judge whether this machine alone would step the envs of the shards sooner than the shards answer."""
    facts, own = pool.facts, pool.workload_without_waits()
    seconds = own.step_ns / _NS
    best = choose_setting(own, pool.num_envs, facts.cores, may_thread=False, may_be_serial=True)
    gain = pool.gain_with(own, best)
    if seconds > pool.waiting:
        return None
    setting = f"{facts.names.processes} on this machine, with {advise(best, pool.num_envs, facts.setting)}"
    if best == SERIAL:
        setting = facts.names.serial + UNPROTECTED
    present = pool.waiting + pool.outside
    return cheap_envs(pool.num_envs, seconds, present, pool.workers_text, gain, setting)


def _find_hand_over(pool: Profile) -> Verdict | None:
    """Judge how much of the waits is the way to the shards and back."""
    steps, resets = pool.steps, pool.statistics.envs.reset
    num = np.maximum(1, steps.num + resets.num)
    by_worker = pool.by_worker((steps.sum + resets.sum) / num)
    slowest = int(by_worker.argmax())
    stepping = float(by_worker[slowest])  # its time in a round
    waiting = pool.waiting * pool.num_envs
    gain = _up_to(pool.gain_of(min(waiting, stepping) / pool.num_envs))
    cause = (
        f"a round of all envs takes {time_text(waiting)}, and {_name(pool, slowest)}, the slowest one, steps envs for "
        f"{time_text(stepping)} of it: the rest is the way to the shards and back"
    )
    setting = pool.facts.names.collect or "more envs per shard"
    return Verdict("hand-over", cause, waiting - stepping, "s", setting, *gain)


def _name(pool: Profile, worker_id: int) -> str:
    return pool.statistics.workers.describe(worker_id)


def _find_one_process(pool: Profile) -> Verdict | None:
    if pool.facts.setting != SERIAL:
        return None
    cores, workload = pool.facts.cores, pool.workload
    best = choose_setting(workload, pool.num_envs, cores, may_thread=workload.is_waiting)
    if best.num_workers < 2:
        return None
    gain = pool.gain_by(best)
    if _middle(*gain) < _WORKERS_GAIN:
        return None
    cause = (
        f"the {pool.num_envs} envs step one after the other, {time_text(workload.step_ns / _NS)} each, and {cores} "
        "cores may be used"
    )
    setting = f"{pool.facts.names.processes} with {advise(best, pool.num_envs, pool.facts.setting)}"
    return Verdict("one process", cause, workload.step_ns / _NS, "s", setting, *gain)


# ---- envs that differ ---------------------------------------------------------------------------


def _find_stragglers(pool: Profile) -> Verdict | None:
    together = pool.steps.together()
    p50, p99 = float(together.p50[0]), float(together.p99[0])
    if p99 < max(_MIN_P99, _TAIL * p50):
        return None
    used = min(1.0, float(pool.busy.mean()) / max(1e-9, pool.waited))
    gain = _up_to(pool.gain_of(pool.waiting * used))
    medians = pool.steps.p50
    slowest = int(np.nanargmax(medians))
    which = ""
    if medians[slowest] > 2 * np.nanmedian(medians):
        worker_id = int(pool.statistics.envs.worker_id[slowest])
        where = f" of {_name(pool, worker_id)}" if pool.facts.num_shards and worker_id >= 0 else ""
        which = f"; env {slowest}{where} is the slowest, {time_text(medians[slowest])} in the median"
    cause = (
        f"one step of a hundred takes {time_text(p99)}, {p99 / p50:.2g} times the median of {time_text(p50)}, and the "
        f"others wait for it: the workers step envs in {used:.0%} of that time{which}"
    )
    setting = pool.facts.names.overlap or "envs of equal speed: this front end waits for all of them"
    return Verdict("stragglers", cause, p99 / p50, "times", setting, *gain)


def _find_slow_core(pool: Profile) -> Verdict | None:
    medians, worker_id = pool.steps.p50, pool.statistics.envs.worker_id
    slow = []
    for one in range(len(pool.statistics.workers.pid)):
        own, others = medians[worker_id == one], medians[(worker_id != one) & ~np.isnan(medians)]
        if len(own) < 2 or len(others) < 2 or np.isnan(own).any():  # one slow env proves nothing about its core
            continue
        reference = float(np.median(others))
        if own.min() > max(_MIN_STEP, _SLOW_CORE * reference):
            slow.append((one, float(np.median(own)), reference))
    if len(slow) != 1:
        return None
    one, median, reference = slow[0]
    gain = _about(pool.gain_of(pool.waiting * reference / median) if pool.is_measured else math.nan)
    pid = int(pool.statistics.workers.pid[one])
    cause = (
        f"steps of all envs of worker {one} take {time_text(median)} in the median, {median / reference:.2g} times "
        f"those of the other workers, {time_text(reference)}: its core is slow or shared, or these envs are others"
    )
    setting = f"look for other programs on the core of process {pid} (top, taskset -p {pid}), or leave that core out"
    return Verdict("slow core", cause, median / reference, "times", setting, *gain)


def _find_slow_resets(pool: Profile) -> Verdict | None:
    resets, facts = pool.statistics.envs.reset, pool.facts
    reset = typical_seconds(resets.together())
    step = float(pool.steps.together().p50[0])
    if not reset > SLOW * step:  # NaN without a reset
        return None
    if facts.resets_in_steps:
        num = int(pool.steps.buckets[:, pool.steps.bounds[:-1] >= reset / 2].sum())
        work = float(pool.steps.sum.sum())
    else:
        num = int(np.maximum(0, resets.num - 1).sum())  # the first one is the start
        work = float(pool.steps.sum.sum()) + num * reset
    if not num:
        return None
    cause = (
        f"a reset takes {time_text(reset)}, as long as {reset / step:,.0f} steps, and all envs wait for it: resets are "
        f"{min(1.0, num * reset / work):.0%} of the work"
    )
    if not facts.names.spare_envs:
        return Verdict("slow resets", cause, reset, "s", "quicker resets: this front end has no spare envs")
    best = choose_spares(pool.workload, pool.num_rows, facts.cores)
    setting = facts.names.spare_envs.replace("...", str(best.num_spares))
    setting += f" and {one_env_per_worker(facts.setting)}, so that each env has a worker"
    gain = (math.nan, math.nan) if facts.num_shards else pool.gain_by(best)  # the cores of the shards are not known
    return Verdict("slow resets", cause, reset, "s", setting, *gain)


# ---- workers, threads and cores -----------------------------------------------------------------


def _find_waiting_envs(pool: Profile) -> Verdict | None:
    found = find_waiting(pool.workload, pool.num_rows, pool.facts.setting, pool.facts.cores, pool.load)
    if found is None:
        return None
    low, high = (pool.gain_of(pool.waiting / one) for one in (found.gain_low, found.gain_high))
    return dataclasses.replace(found, gain_low=low, gain_high=high)


def _find_threads(pool: Profile) -> Verdict | None:
    facts = pool.facts
    most = max(facts.compute_threads, default=0)
    all_threads = sum(facts.compute_threads)
    if most <= facts.setting.threads_per_worker or all_threads <= facts.cores:
        return None
    # threads that compute for the env save nothing, and those that spin save all their time
    gain = (1.0, pool.gain_of(pool.waiting * (1 - facts.helper_share)))
    cause = (
        f"{all_threads} threads compute in {facts.setting}, up to {most} in one, and {_cores(facts.cores)} may be "
        f"used. {facts.helper_share:.0%} of the CPU time is that of threads which the envs or their libraries start"
    )
    setting = (
        "one thread per worker, by torch.set_num_threads(1), cv2.setNumThreads(1) or "
        "threadpoolctl.threadpool_limits(1) in the constructor of the env"
    )
    return Verdict("too many threads", cause, float(all_threads), "threads", setting, *gain)


def _find_few_cores(pool: Profile) -> Verdict | None:
    facts, workload = pool.facts, pool.workload
    num_workers = min(facts.setting.num_workers, pool.num_envs)
    if num_workers <= facts.cores or workload.is_waiting:
        return None
    gain = pool.gain_by(Setting(facts.cores))
    shared = f"{num_workers} workers share {_cores(facts.cores)}"
    cause = f"{shared}, and a step takes {time_text(workload.step_ns / _NS)}"
    setting = advise(Setting(facts.cores), pool.num_envs, facts.setting)
    if facts.core_limit and facts.machine_cores > facts.cores and pool.is_measured:
        ready = min(float(num_workers), float(pool.busy.sum()) / max(1e-9, pool.waited))  # workers with work to do
        higher = pool.gain_of(pool.waiting * facts.cores / max(facts.cores, min(ready, facts.machine_cores)))
        if higher >= LEAST_GAIN:
            limit = f"the limit of {facts.core_limit}; the machine has {facts.machine_cores}"
            cause = f"{shared}, {limit}. On average {ready:.2g} workers compute or wait for a core"
            setting = f"a limit of {min(num_workers, facts.machine_cores)} cores (docker --cpus, taskset, Slurm)"
            gain = _up_to(higher)
    return Verdict("too few cores", cause, float(facts.cores), "cores", setting, *gain)


# ---- the caller ---------------------------------------------------------------------------------


def _find_policy(pool: Profile) -> Verdict | None:
    policy = pool.outside - _FRONT_END / pool.num_envs - _FRONT_END_PER_ENV
    if policy < _SLOW_POLICY * pool.total:
        return None
    share = pool.outside / pool.total
    overlapped = pool.total / max(pool.waiting, pool.copying + pool.outside)
    cause = (
        f"the caller spends {share:.0%} of its time outside, {time_text(pool.outside * pool.num_envs)} for each step "
        f"of all {pool.num_envs} envs, and the envs wait for it"
    )
    if overlapped >= LEAST_GAIN and pool.facts.names.overlap:
        setting = f"{pool.facts.names.overlap}, so that some envs step while the policy computes for the others"
        return Verdict("slow policy", cause, share, "share", setting, *_up_to(overlapped))
    setting = "a quicker policy, or more envs per batch: with half of that time per env step"
    return Verdict("slow policy", cause, share, "share", setting, *_about(pool.total / (pool.total - pool.outside / 2)))


def _find_pickled_infos(pool: Profile) -> Verdict | None:
    infos = pool.facts.pickled_infos
    largest = None if infos is None else infos.largest()
    if infos is None or largest is None or infos.num < _MANY_INFOS * pool.num_steps:
        return None
    load = infos.load_ns / _NS / pool.num_steps
    in_workers = _PICKLING * load / min(pool.facts.cores, pool.facts.setting.num_workers)
    without = pool.gain_of(max(0.0, pool.waiting - in_workers) - load)
    only = pool.gain_with(pool.workload, pool.facts.setting, load)  # if infos are the only cause of waits
    gain = min(without, *only), max(without, *only)
    if gain[1] >= _MEASURED * _CALLER_GAIN:  # times in which workers copy and the front end merges are not measured
        gain = math.nan, math.nan
    key, nbytes = largest
    cause = (
        f"{infos.num / pool.num_steps:.0%} of the infos are pickled, {infos.nbytes / infos.num:,.0f} bytes each; key "
        f"{key!r} has {nbytes:,.0f} of them, and unpickling takes {load / pool.total:.0%} of the caller's time"
    )
    less = "an info of numbers, and arrays of up to 8 numbers"
    setting = f"{pool.facts.names.infos}, or {less}" if pool.facts.names.infos else less
    return Verdict("pickled infos", cause, nbytes, "bytes", setting, *gain)


def _find_copies(pool: Profile) -> Verdict | None:
    share = pool.copying / pool.total
    if share < _MUCH_COPYING:
        return None
    cause = f"copies of observations take {share:.0%} of the caller's time"
    views = pool.facts.names.views
    setting = f"{views}, whose arrays stay valid for a few steps" if views else "smaller observations, such as uint8"
    return Verdict("copies", cause, share, "share", setting, *_about(1 / (1 - share)))


#: Rules that work with estimated times of the caller, too.
_ESTIMATING = {
    _find_cheap_envs, _find_one_process, _find_slow_core, _find_threads, _find_waiting_envs, _find_few_cores
}  # fmt: skip


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"
