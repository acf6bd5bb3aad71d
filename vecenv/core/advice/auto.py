"""Choose workers, threads and backend from the measurement of one env."""

from __future__ import annotations

import dataclasses
import logging

from ...statistics import time_text
from ..options import PoolOptions
from ..processes.measure import Measurement
from ..processes.worker import usable_cores
from .sizing import Setting, Workload, choose_setting
from .times import SLOW

__all__ = ["choose_options", "workload_of"]

_LOG = logging.getLogger("vecenv")


def choose_options(
    options: PoolOptions, num_envs: int, found: Measurement, *, may_be_serial: bool = False
) -> PoolOptions:
    """Return the options with the chosen `num_workers` and `threads_per_worker`, and the reason as `choice`; log it.

    `found` is the measurement of env 0. With `may_be_serial`, `num_workers` is None if the serial backend is chosen.
    """
    cores = usable_cores()
    workload = workload_of(found)
    if workload is None:
        setting = Setting(min(num_envs, cores))
        reason = f"env 0 cannot be measured: {found.failure}"
    else:
        setting = choose_setting(workload, num_envs, cores, may_thread=not found.draws, may_be_serial=may_be_serial)
        reason = _explain(found, workload)
    text = f"auto: {setting} for {num_envs} envs; {reason}"
    if not setting.num_workers:
        text += ". In this process neither a segmentation fault nor a hang of an env can be survived"
    _LOG.info("%s", text)
    return dataclasses.replace(
        options, num_workers=setting.num_workers or None, threads_per_worker=setting.threads_per_worker, choice=text
    )


def workload_of(found: Measurement) -> Workload | None:
    """Return the cost of a measured env; None if no step was measured."""
    per_step = found.per_step()
    if per_step is None:
        return None
    resets, (step_ns, _) = found.resets, found.steps.means()
    reset_ns, busy_ns = resets.means()
    if reset_ns < SLOW * step_ns:
        return Workload(*per_step)
    share = resets.num / found.steps.num
    return Workload(*per_step, slow_ns=reset_ns, slow_busy_ns=min(reset_ns, busy_ns), slow_share=share)


def _explain(found: Measurement, workload: Workload) -> str:
    resets = found.resets if found.resets.num else found.first_reset
    times = (found.construct_ns, resets.means()[0], found.steps.means()[0], workload.step_ns)
    constructor, reset, step, with_resets = (time_text(ns / 1e9) for ns in times)
    text = (
        f"constructor {constructor}, reset {reset}, step {step}; "
        f"with resets, a step takes {with_resets} and waits for {workload.waiting:.0%} of that"
    )
    if workload.is_waiting and found.draws:
        text += "; no threads, because the env draws from global random generators"
    return text + (f"; the measurement ended early: {found.failure}" if found.failure else "")
