"""Choose workers, threads and backend from the measurement of one env."""

from __future__ import annotations

import dataclasses
import logging

from ...statistics import time_text
from ..options import PoolOptions
from ..processes.measure import Measurement
from ..processes.worker import usable_cores
from .sizing import SERIAL_MARGIN, Setting, Workload, choose_setting
from .times import SLOW

__all__ = ["choose_options", "workload_of"]

#: A shard without workers sends no heartbeat during a round of its envs.
_HEARTBEAT_NS = 1_000_000_000
_LOG = logging.getLogger("vecenv")


def choose_options(
    options: PoolOptions,
    num_envs: int,
    found: Measurement,
    *,
    may_be_serial: bool = False,
    cores: int | None = None,
    in_shard: bool = False,
) -> PoolOptions:
    """Return the options with the chosen `num_workers` and `threads_per_worker`, and the reason as `choice`; log it.

    Args:
        options: of the pool.
        num_envs: how many envs it has.
        found: the measurement of env 0.
        may_be_serial: whether the serial backend may be chosen; then `num_workers` is None.
        cores: how many cores the pool may use; None: all that this process may use.
        in_shard: whether the pool is that of a shard, whose own process is then the serial backend.
    """
    cores = cores or usable_cores()
    workload = workload_of(found)
    if workload is None:
        setting = Setting(min(num_envs, cores))
        reason = f"env 0 cannot be measured: {found.failure}"
    else:
        may_be_serial = may_be_serial and (not in_shard or _fits_heartbeat(found, num_envs))
        margin = 1.0 if in_shard else SERIAL_MARGIN  # a shard with a crash is replaced either way
        setting = choose_setting(
            workload,
            num_envs,
            cores,
            may_thread=not found.draws,
            may_be_serial=may_be_serial,
            serial_margin=margin,
        )
        reason = _explain(found, workload)
    text = f"auto: {setting} for {num_envs} envs; {reason}"
    if not setting.num_workers and in_shard:
        text = (
            f"auto: the shard steps its {num_envs} envs in its own process; {reason}. An env that ends the process is "
            "restored by the successor of the shard"
        )
    elif not setting.num_workers:
        text += ". In this process neither a segmentation fault nor a hang of an env can be survived"
    _LOG.info("%s", text)
    return dataclasses.replace(
        options, num_workers=setting.num_workers or None, threads_per_worker=setting.threads_per_worker, choice=text
    )


def _fits_heartbeat(found: Measurement, num_envs: int) -> bool:
    """Return whether all envs of a shard can be reset and stepped between two heartbeats."""
    resets = found.resets if found.resets.num else found.first_reset
    return num_envs * (resets.means()[0] + found.steps.means()[0]) < _HEARTBEAT_NS


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
