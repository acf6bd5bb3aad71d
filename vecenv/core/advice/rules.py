"""Rules that find out why a pool is slow: from its statistics to verdicts.

Each rule is a function that returns a verdict or None. It compares the present time of one env step, as the caller
sees it, with an estimate of that time after a change of one setting; see `Case` for the parts of the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...report import Report, Verdict
from ...statistics import Statistics
from .case import Case, as_text, examine
from .facts import PoolFacts
from .sizing import SERIAL, Setting, choose_setting, round_ns
from .waiting import LEAST_GAIN, advise, find_better

__all__ = ["judge", "recommend_serial"]

#: Seconds of a step that may cost less than its transfer to a worker.
_CHEAP_STEP = 200e-6
#: Least gain for which workers are recommended to the serial backend: their hand-over costs
#: more where cores are shared.
_WORKERS_GAIN = 1.5
#: Stragglers: p99 of steps over p50. Quicker ones than `_MIN_P99` seconds are noise of the system.
_TAIL, _MIN_P99 = 4.0, 200e-6
#: Least ratio of the times of a slow reset and a step.
_SLOW_RESET = 3.0
#: The share of the caller's time from which a policy is slow, and copies are expensive.
_SLOW_POLICY, _MUCH_COPYING = 0.5, 0.1
#: Time of the front end itself in a round, at most: seconds, and seconds per env. The rest outside is the policy.
_FRONT_END, _FRONT_END_PER_ENV = 50e-6, 5e-6
#: The share of steps whose info is pickled, and the gain without, from which infos are a cause.
_MANY_INFOS, _INFO_GAIN = 0.1, 1.05
#: Ratio of the time in which a worker copies and pickles an info, and that of unpickling.
_PICKLING = 2.0
#: Least ratio of the times of envs on a slow core and on others. Below `_MIN_STEP` seconds that is noise.
_SLOW_CORE, _MIN_STEP = 1.5, 50e-6
_NS = 1e9


def judge(statistics: Statistics, facts: PoolFacts) -> Report:
    """Return the verdicts that follow from the statistics and facts of a pool.

    A verdict that explains others takes their place. Where the hand-over to workers costs most, nothing else about
    workers is reported. A slow core does not count as stragglers, nor an env that waits for its own threads as waiting.
    """
    case = examine(statistics, facts)
    if isinstance(case, str):
        return Report(note=case)
    if facts.num_shards:
        return _report(_judge_shards(case), case)
    first = _try([_judge_cheap_envs, _judge_one_process], case)
    if not first and facts.setting != SERIAL:
        first = _try([_judge_slow_core], case) or _try([_judge_stragglers], case)
        first += _try([_judge_slow_resets], case)
        first += _try([_judge_threads], case) or _try([_judge_waiting_envs, _judge_cores], case)
    return _report(first + _try([_judge_policy, _judge_pickled_infos, _judge_copies], case), case)


def _judge_shards(case: Case) -> list[Verdict]:
    """Return the verdicts about a pool of shards. Cores and threads of other machines are not known here."""
    first = _try([_judge_one_machine], case) or _try([_judge_stragglers], case)
    first += _try([_judge_hand_over, _judge_slow_resets], case)
    return first + _try([_judge_policy, _judge_copies], case)


def _report(found: list[Verdict], case: Case) -> Report:
    found.sort(key=lambda one: -one.gain)
    note = "" if found else f"nothing takes much time that another setting would save; {_summary(case)}"
    return Report(tuple(found), note)


def _try(rules: list[Callable[[Case], Verdict | None]], case: Case) -> list[Verdict]:
    return [verdict for rule in rules if (verdict := rule(case)) is not None]


# ---- the place where envs live ------------------------------------------------------------------


def recommend_serial(
    num_envs: int, step_seconds: float, present_seconds: float, where: str, gain: float, setting: str
) -> Verdict:
    """Return the verdict about envs whose steps cost less than the hand-over to workers.

    Args:
        num_envs: how many envs.
        step_seconds: time of one step of one env.
        present_seconds: time of one env step with workers, as the caller sees it.
        where: the workers, such as '2 workers'.
        gain: env steps per second without workers, over those with.
        setting: the setting to recommend.
    """
    cause = _cheap(num_envs, step_seconds, present_seconds, where)
    return Verdict("cheap envs", cause, step_seconds, "s", f"{setting}, which survives no crash of an env", gain)


def _cheap(num_envs: int, step_seconds: float, present_seconds: float, where: str) -> str:
    envs = "the env" if num_envs == 1 else f"the {num_envs} envs"
    return (
        f"a step of {envs} takes {as_text(step_seconds)}, and {as_text(present_seconds)} with the hand-over to {where}"
    )


def _judge_cheap_envs(case: Case) -> Verdict | None:
    facts = case.facts
    if facts.setting == SERIAL or float(case.steps.together().p50[0]) > _CHEAP_STEP:
        return None
    own = case.workload_without_waits()
    serial_ns, fewer_ns = (round_ns(own, case.num_envs, one, facts.cores) for one in (SERIAL, Setting(facts.cores)))
    if facts.setting.num_workers > facts.cores and fewer_ns < serial_ns:
        return None  # a worker per core is better still, see `_judge_cores`
    gain = case.gain_of(serial_ns / case.num_envs / _NS)
    if gain < LEAST_GAIN:
        return None
    return recommend_serial(
        case.num_envs, own.step_ns / _NS, case.waiting + case.outside, case.places, gain, facts.names.serial
    )


def _judge_one_machine(case: Case) -> Verdict | None:
    """Judge whether this machine alone would step the envs of the shards sooner than the shards answer."""
    facts, own = case.facts, case.workload_without_waits()
    seconds = own.step_ns / _NS
    best = choose_setting(own, case.num_envs, facts.cores, may_thread=False, may_be_serial=True)
    gain = case.gain_of(round_ns(own, case.num_envs, best, facts.cores) / case.num_envs / _NS)
    if gain < LEAST_GAIN or seconds > case.waiting or not case.is_measured:
        return None
    present = case.waiting + case.outside
    if best == SERIAL:
        return recommend_serial(case.num_envs, seconds, present, case.places, gain, facts.names.serial)
    cause = _cheap(case.num_envs, seconds, present, case.places)
    setting = f"{facts.names.processes} on this machine, with {advise(best, case.num_envs)}"
    return Verdict("cheap envs", cause, seconds, "s", setting, gain)


def _judge_hand_over(case: Case) -> Verdict | None:
    """Judge how much of the waits is the way to the shards and back."""
    steps, resets = case.steps, case.statistics.envs.reset
    num = np.maximum(1, steps.num + resets.num)
    stepping = float(case.by_worker((steps.sum + resets.sum) / num).max())  # of the slowest worker, in a round
    waiting = case.waiting * case.num_envs
    gain = case.gain_of(min(waiting, stepping) / case.num_envs)
    if gain < LEAST_GAIN or not case.is_measured:
        return None
    cause = (
        f"a round of all envs takes {as_text(waiting)}, and the slowest worker steps envs for "
        f"{as_text(stepping)} of it: the rest is the way to the shards and back"
    )
    setting = case.facts.names.collect or "more envs per shard"
    return Verdict("hand-over", cause, waiting - stepping, "s", setting, gain, is_limit=True)


def _judge_one_process(case: Case) -> Verdict | None:
    if case.facts.setting != SERIAL:
        return None
    cores, workload = case.facts.cores, case.workload
    best = choose_setting(workload, case.num_envs, cores, may_thread=workload.is_waiting)
    if best.num_workers < 2:
        return None
    now, then = (round_ns(workload, case.num_envs, one, cores) for one in (SERIAL, best))
    if now < _WORKERS_GAIN * then:
        return None
    cause = (
        f"the {case.num_envs} envs step one after the other, {as_text(workload.step_ns / _NS)} each, and {cores} cores "
        "may be used"
    )
    setting = f"{case.facts.names.processes} with {advise(best, case.num_envs)}"
    return Verdict("one process", cause, workload.step_ns / _NS, "s", setting, case.gain_of(case.waiting * then / now))


# ---- envs that differ ---------------------------------------------------------------------------


def _judge_stragglers(case: Case) -> Verdict | None:
    if not case.is_measured:
        return None
    together = case.steps.together()
    p50, p99 = float(together.p50[0]), float(together.p99[0])
    if p99 < max(_MIN_P99, _TAIL * p50):
        return None
    used = min(1.0, float(case.busy.mean()) / max(1e-9, case.waited))
    gain = case.gain_of(case.waiting * used)
    if gain < LEAST_GAIN:
        return None
    medians = case.steps.p50
    slowest = int(np.nanargmax(medians))
    which = ""
    if medians[slowest] > 2 * np.nanmedian(medians):
        which = f"; env {slowest} is the slowest, {as_text(medians[slowest])} in the median"
    cause = (
        f"one step of a hundred takes {as_text(p99)}, {p99 / p50:.2g} times the median of {as_text(p50)}, and the "
        f"others wait for it: the workers step envs in {used:.0%} of that time{which}"
    )
    setting = case.facts.names.overlap or "envs of equal speed: this front end waits for all of them"
    return Verdict("stragglers", cause, p99 / p50, "times", setting, gain, is_limit=True)


def _judge_slow_core(case: Case) -> Verdict | None:
    medians, worker_id = case.steps.p50, case.statistics.envs.worker_id
    slow = []
    for one in range(len(case.statistics.workers.pid)):
        own, others = medians[worker_id == one], medians[(worker_id != one) & ~np.isnan(medians)]
        if len(own) < 2 or len(others) < 2 or np.isnan(own).any():  # one slow env proves nothing about its core
            continue
        reference = float(np.median(others))
        if own.min() > max(_MIN_STEP, _SLOW_CORE * reference):
            slow.append((one, float(np.median(own)), reference))
    if len(slow) != 1:
        return None
    one, median, reference = slow[0]
    gain = case.gain_of(case.waiting * reference / median) if case.is_measured else math.nan
    if gain < LEAST_GAIN:
        return None
    pid = int(case.statistics.workers.pid[one])
    cause = (
        f"steps of all envs of worker {one} take {as_text(median)} in the median, {median / reference:.2g} times those "
        f"of the other workers, {as_text(reference)}: its core is slow or shared, or these envs are others"
    )
    setting = f"look for other programs on the core of process {pid} (top, taskset -p {pid}), or leave that core out"
    return Verdict("slow core", cause, median / reference, "times", setting, gain)


def _judge_slow_resets(case: Case) -> Verdict | None:
    if not case.is_measured:
        return None
    resets = case.statistics.envs.reset.together()
    reset = float(resets.mean[0])
    step = float(case.steps.together().p50[0])
    if not reset > _SLOW_RESET * step:  # NaN without a reset
        return None
    if case.facts.resets_in_steps:
        is_long = case.steps.bounds[:-1] >= reset / 2
        num = case.steps.buckets[:, is_long].sum(1).astype(np.float64)
        in_steps = num * reset
    else:
        num = np.maximum(0, case.statistics.envs.reset.num - 1).astype(np.float64)  # the first one is the start
        in_steps = np.zeros(case.num_envs)
    lost = float((num * reset).sum())
    if not lost:
        return None
    own_steps = np.maximum(0.0, case.steps.sum - in_steps)
    longest = float(case.by_worker(own_steps).max())  # of the workers, without any reset
    computing = float(own_steps.sum() + lost) * (1 - case.workload.waiting) / case.facts.cores
    waited = max(0.0, case.waited - reset)  # for the first resets, too, which no setting saves
    least = max(longest, waited - lost, computing)
    gain = (case.total * case.num_steps - reset) / max(1e-9, least + (case.total - case.waiting) * case.num_steps)
    if gain < LEAST_GAIN:
        return None
    share = lost / float(own_steps.sum() + lost)
    cause = (
        f"a reset takes {as_text(reset)}, as long as {reset / step:,.0f} steps, and all envs wait for it: resets are "
        f"{share:.0%} of the work"
    )
    setting = case.facts.names.spare_envs or "quicker resets: this front end has no spare envs"
    return Verdict("slow resets", cause, reset, "s", setting, gain, is_limit=True)


# ---- workers, threads and cores -----------------------------------------------------------------


def _judge_waiting_envs(case: Case) -> Verdict | None:
    facts, workload = case.facts, case.workload
    if not workload.is_waiting:
        return None
    best, ratio = find_better(workload, case.num_envs, facts.setting, facts.cores)
    gain = case.gain_of(case.waiting / ratio)
    if gain < LEAST_GAIN:
        return None
    cause = (
        f"the envs wait for {workload.waiting:.0%} of their time: {as_text(workload.step_ns / _NS)} a step with its "
        f"share of the resets, {as_text(workload.busy_ns / _NS)} of that is work"
    )
    return Verdict("waiting envs", cause, workload.waiting, "share", advise(best, case.num_envs), gain)


def _judge_threads(case: Case) -> Verdict | None:
    facts = case.facts
    most = max(facts.compute_threads, default=0)
    all_threads = sum(facts.compute_threads)
    if most <= facts.setting.threads_per_worker or all_threads <= facts.cores:
        return None
    gain = case.gain_of(case.waiting * (1 - facts.helper_share))
    if gain < LEAST_GAIN:
        return None
    cause = (
        f"{all_threads} threads compute in {facts.setting}, up to {most} in one, and {_cores(facts.cores)} may be "
        f"used. {facts.helper_share:.0%} of the CPU time is that of threads which the envs or their libraries start"
    )
    setting = (
        "one thread per worker, by torch.set_num_threads(1), cv2.setNumThreads(1) or "
        "threadpoolctl.threadpool_limits(1) in the constructor of the env"
    )
    return Verdict("too many threads", cause, float(all_threads), "threads", setting, gain, is_limit=True)


def _judge_cores(case: Case) -> Verdict | None:
    facts, workload = case.facts, case.workload
    num_workers = min(facts.setting.num_workers, case.num_envs)
    if num_workers <= facts.cores or workload.is_waiting:
        return None
    if facts.core_limit and facts.machine_cores > facts.cores and case.is_measured:
        ready = min(float(num_workers), float(case.busy.sum()) / max(1e-9, case.waited))  # workers with work to do
        gain = case.gain_of(case.waiting * facts.cores / max(facts.cores, min(ready, facts.machine_cores)))
        if gain >= LEAST_GAIN:
            cause = (
                f"{num_workers} workers share {_cores(facts.cores)}, the limit of {facts.core_limit}; the machine has "
                f"{facts.machine_cores}. On average {ready:.2g} workers compute or wait for a core"
            )
            setting = f"a limit of {min(num_workers, facts.machine_cores)} cores (docker --cpus, taskset, Slurm)"
            return Verdict("too few cores", cause, float(facts.cores), "cores", setting, gain)
    fewer = Setting(facts.cores)
    now, then = (round_ns(workload, case.num_envs, one, facts.cores) for one in (facts.setting, fewer))
    gain = case.gain_of(case.waiting * min(1.0, then / now))
    if gain < LEAST_GAIN:
        return None
    cause = f"{num_workers} workers share {_cores(facts.cores)}, and a step takes {as_text(workload.step_ns / _NS)}"
    return Verdict("too few cores", cause, float(facts.cores), "cores", f"num_workers={facts.cores}", gain)


# ---- the caller ---------------------------------------------------------------------------------


def _judge_policy(case: Case) -> Verdict | None:
    if not case.is_measured:
        return None
    policy = case.outside - _FRONT_END / case.num_envs - _FRONT_END_PER_ENV
    if policy < _SLOW_POLICY * case.total:
        return None
    share = case.outside / case.total
    overlapped = case.total / max(case.waiting, case.copying + case.outside)
    cause = (
        f"the caller spends {share:.0%} of its time outside, {as_text(case.outside * case.num_envs)} for each step of "
        f"all {case.num_envs} envs, and the envs wait for it"
    )
    if overlapped >= LEAST_GAIN and case.facts.names.overlap:
        setting = f"{case.facts.names.overlap}, so that some envs step while the policy computes for the others"
        return Verdict("slow policy", cause, share, "share", setting, overlapped, is_limit=True)
    setting = "a quicker policy, or more envs per batch: with half of that time per env step"
    return Verdict("slow policy", cause, share, "share", setting, case.total / (case.total - case.outside / 2))


def _judge_pickled_infos(case: Case) -> Verdict | None:
    infos = case.facts.pickled_infos
    largest = None if infos is None else infos.largest()
    if infos is None or largest is None or infos.num < _MANY_INFOS * case.num_steps or not case.is_measured:
        return None
    load = infos.load_ns / _NS / case.num_steps
    in_workers = _PICKLING * load / min(case.facts.cores, case.facts.setting.num_workers)
    gain = case.gain_of(max(0.0, case.waiting - in_workers) - load)
    if gain < _INFO_GAIN:
        return None
    key, nbytes = largest
    cause = (
        f"{infos.num / case.num_steps:.0%} of the infos are pickled, {infos.nbytes / infos.num:,.0f} bytes each; key "
        f"{key!r} has {nbytes:,.0f} of them, and unpickling takes {load / case.total:.0%} of the caller's time"
    )
    less = "an info of numbers, and arrays of up to 8 numbers"
    setting = f"{case.facts.names.infos}, or {less}" if case.facts.names.infos else less
    return Verdict("pickled infos", cause, nbytes, "bytes", setting, gain)


def _judge_copies(case: Case) -> Verdict | None:
    share = case.copying / case.total if case.is_measured else 0.0
    if share < _MUCH_COPYING:
        return None
    cause = f"copies of observations take {share:.0%} of the caller's time"
    views = case.facts.names.views
    setting = f"{views}, whose arrays stay valid for a few steps" if views else "smaller observations, such as uint8"
    return Verdict("copies", cause, share, "share", setting, 1 / (1 - share))


# ---- texts --------------------------------------------------------------------------------------


def _summary(case: Case) -> str:
    step = as_text(float(case.steps.together().mean[0]))
    waits = f", and the caller waits for {case.waiting / case.total:.0%} of its time" if case.is_measured else ""
    return f"a step takes {step} in the mean{waits}"


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"
