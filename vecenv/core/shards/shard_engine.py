"""Make the engine of a shard: envs in worker processes, or in the process of the shard itself.

With one CPU, workers gain nothing for cheap envs: each round then costs two switches between processes. Without
workers, an env that ends its process ends the shard. The driver restores the envs of a lost shard in any case.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ...values.pickling import load_with_main
from ..advice.auto import choose_options
from ..advice.sizing import SERIAL, Setting
from ..options import PoolOptions
from ..parent.inbox import Listener
from ..pool.process import ProcessEngine, measure_first_env
from ..pool.serial import SerialEngine
from .requests import ShardBoot

__all__ = ["ShardEngine", "make_shard_engine"]

#: Both have the attribute `files`.
ShardEngine = ProcessEngine | SerialEngine


def make_shard_engine(boot: ShardBoot, listener: Listener) -> tuple[ShardEngine, Setting | None, float]:
    """Return the engine of a shard, the workers that were chosen, and the seconds of a step.

    The workers are those of the predecessor, if there is one. Else an env is measured if `boot.num_cpus` is given.
    Without both, `boot.options` say how many there are, the setting is None, and the seconds are 0.

    Args:
        boot: of the shard.
        listener: as for `ProcessEngine`.

    Raises:
        Exception: of the constructor of the env that is measured.
    """
    env_fns = list(load_with_main(boot.env_fns).values())
    options = dataclasses.replace(boot.options, worker_init=load_with_main(boot.worker_init))
    parts: dict[str, Any] = {
        "adapt": load_with_main(boot.adapt),
        "snapshotter": load_with_main(boot.snapshotter),
        "first_env_id": boot.first_env_id,
    }
    setting, step_seconds = boot.setting, 0.0
    if setting is None and boot.num_cpus is not None:
        options, setting, step_seconds = _choose(env_fns, options, boot.num_cpus, parts)
    elif setting is not None:
        options = dataclasses.replace(
            options, num_workers=setting.num_workers or None, threads_per_worker=setting.threads_per_worker
        )
    engine: type[ShardEngine] = SerialEngine if setting == SERIAL else ProcessEngine
    parts |= {"resume": boot.resume, "files": boot.files, "listener": listener}
    return engine(env_fns, options, **parts), setting, step_seconds


def _choose(
    env_fns: Sequence[Callable[[], Any]], options: PoolOptions, num_cpus: int, parts: dict[str, Any]
) -> tuple[PoolOptions, Setting, float]:
    """Measure an env, and choose the workers for these CPUs; options that need workers exclude the shard's process."""
    options = dataclasses.replace(options, num_workers=None, threads_per_worker=1)
    found = measure_first_env(env_fns, options, **parts)
    needs_workers = options.limits.has_any() or options.worker_init is not None or options.failures.recycle_after
    options = choose_options(
        options, len(env_fns), found, may_be_serial=not needs_workers, cores=num_cpus, in_shard=True
    )
    num_workers = options.num_workers if isinstance(options.num_workers, int) else SERIAL.num_workers
    per_step = found.per_step()
    seconds = 0.0 if per_step is None else per_step[0] / 1e9
    return options, Setting(num_workers, options.threads_per_worker), seconds
