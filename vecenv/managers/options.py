"""Config keys of the managers: defaults, checks, and the options of a pool that they give."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..config import Config
from ..core.layout.flags import Autoreset
from ..core.options import DEFAULT_START_METHOD, Limits, PoolFailurePolicy, PoolOptions
from ..core.parent.leases import NUM_LEASES
from ..core.system.clock import MOST_SECONDS, is_number, limit_of
from ..errors import ConfigError
from ..options import FailurePolicy, Timeouts, given_fields, read_failures, read_timeouts
from ..values.checks import is_positive

__all__ = [
    "BASE_CONFIG",
    "OTHER_KEYS",
    "PROCESS_CONFIG",
    "V2_CONFIG",
    "check_config",
    "check_counts",
    "check_spares",
    "limits_of",
    "pool_options",
]

#: Keys of every manager, with defaults. Times are in seconds; None is no limit.
BASE_CONFIG: dict[str, Any] = {
    "episode_num": math.inf,  # episodes of each env; after the last one the env is DONE
    "max_retry": 1,  # attempts at a reset, and in process at a step; 1: no second attempt
    "retry_type": "reset",  # before another attempt: 'reset' keeps the env, 'renew' builds it again
    "retry_waiting_time": 0.1,  # pause before another attempt
    "auto_reset": True,  # begin the next episode when one ends
    "timeouts": None,  # `vecenv.Timeouts` or a dict of its fields; or the five keys `..._timeout`, one by one
    "failures": None,  # `vecenv.FailurePolicy` or a dict of its fields; or the keys of that name, one by one
    "step_timeout": None,  # limit of one step of one env
    "reset_timeout": None,  # limit of one reset of one env
    "on_step_error": "error",  # a step raised: 'error': its env is in ERROR; 'renew': and is built again; 'close'
    "depth": 3,  # number of batches that the pool keeps
    "call_timeout": None,  # limit of attributes, render and other calls
    "close_timeout": 5.0,  # limit for all envs together; workers that are still busy then are killed
    "timings": True,  # count how long each step and reset takes, see `statistics`
    "monitor": True,  # write a file by which `vecenv top` finds the pool
    "resume": None,  # a file of `save`, or the result of `state_dict`; the first launch continues there
}

#: Keys of the managers with worker processes.
PROCESS_CONFIG: dict[str, Any] = {
    **BASE_CONFIG,
    "on_step_error": "close",  # the same; 'close' closes the manager
    "shared_memory": True,  # False: observations and rewards are pickled, and need not fit their spaces
    "copy_on_get": True,  # False: large observations are lent from shared memory until the caller drops them
    "context": DEFAULT_START_METHOD,  # start method of the workers: 'forkserver', 'spawn' or 'fork'
    "wait_num": math.inf,  # number of results that a step waits for
    "step_wait_timeout": None,  # then it collects further results for this long; None: until all have arrived
    "connect_timeout": 60,  # limit of a reset if reset_timeout is longer or None; not if `timeouts` has a reset limit
    "reset_inplace": False,  # the last timestep of an episode has the first observation of the next one
    "num_workers": None,  # processes; None: min(number of envs, usable cores), with spare envs one per env
    "num_spare_envs": 0,  # envs that are reset ahead and take over when episodes end; a multiple of the number of envs
    "threads_per_worker": 1,  # envs that step at once in one process; more than one for envs that wait
    "build": "parallel",  # the threads of a worker build envs at the same time; 'serial': one after the other
    "construct_timeout": 60.0,  # limit of the constructor of one env
    "worker_output": "once",  # the output of workers: 'once', 'all' or 'none', as for `vecenv.VectorEnv`
    "worker_init": None,  # a function that each worker calls before it builds envs, as for `vecenv.VectorEnv`
    # The fields of `vecenv.FailurePolicy`, which explains them. Managers do not recover hangs: they raise TimeoutError.
    "on_failure": "recover",  # 'raise' closes the manager
    "on_repeat": "truncate",
    "max_restarts": 32,
    "restart_window": 60.0,
    "max_log_bytes": 64 << 20,
    "recovery_timeout": None,
    "reproducer_dir": None,
    "recycle_after": None,
}

#: Further keys of the V2 managers.
V2_CONFIG: dict[str, Any] = {
    "trees": "vecenv",  # library of the nested arrays: 'vecenv' (TreeArray) or 'treetensor' (its numpy arrays)
}

#: Keys that no manager warns about: a config for another class of manager is not a mistake.
OTHER_KEYS = (*PROCESS_CONFIG, *V2_CONFIG, "ray", "type", "import_names", "cfg_type")


_CHOICES = {
    "trees": ("vecenv", "treetensor"),
    "retry_type": ("reset", "renew"),
    "on_step_error": ("error", "renew", "close"),
}
_FLAGS = ("auto_reset", "shared_memory", "copy_on_get", "reset_inplace")
_COUNTS = ("episode_num", "wait_num")
#: Keys that are fields of `PoolOptions`.
_POOL_KEYS = (
    *("num_workers", "threads_per_worker", "build", "depth", "context"),
    *("worker_output", "worker_init", "timings", "monitor"),
)
_LIMITS = tuple(f"{field.name}_timeout" for field in dataclasses.fields(Timeouts))
_NO_KEYS = ("recover_hangs", "on_exception")
_FAILURES = tuple(field.name for field in dataclasses.fields(FailurePolicy) if field.name not in _NO_KEYS)


def check_config(cfg: Config, owner: str) -> None:
    """Raise ConfigError for the first value of a merged config that makes no sense; `owner` is the manager's class."""
    for key, choices in _CHOICES.items():
        if key in cfg and cfg[key] not in choices:
            raise _error(owner, key, f"one of {choices}", cfg[key])
    for key in _FLAGS:
        if key in cfg and not isinstance(cfg[key], bool | np.bool_):
            raise _error(owner, key, "True or False", cfg[key])
    if "connect_timeout" in cfg:
        check_limit("connect_timeout", cfg["connect_timeout"], owner)
    wait_limit = cfg.get("step_wait_timeout")
    if wait_limit is not None and not (is_number(wait_limit) and wait_limit >= 0):
        raise _error(owner, "step_wait_timeout", "seconds of at least 0, or None", wait_limit)
    check_counts(cfg, owner)
    if not isinstance(cfg["max_retry"], numbers.Integral):
        raise _error(owner, "max_retry", "an integer", cfg["max_retry"])
    if not (is_number(cfg["retry_waiting_time"]) and 0 <= cfg["retry_waiting_time"] <= MOST_SECONDS):
        raise _error(owner, "retry_waiting_time", f"seconds from 0 to {MOST_SECONDS:g}", cfg["retry_waiting_time"])


def check_spares(cfg: Mapping[str, Any], owner: str, num_envs: int) -> None:
    """Raise ConfigError unless `num_spare_envs` is a multiple of the number of envs."""
    num_spares = cfg["num_spare_envs"]
    is_whole = isinstance(num_spares, numbers.Integral) and not isinstance(num_spares, bool)
    if not is_whole or num_spares < 0 or num_spares % num_envs:
        expected = f"a multiple of the number of envs, {num_envs}, as each has seeds and reset parameters of its own"
        raise _error(owner, "num_spare_envs", expected, num_spares)


def check_counts(cfg: Mapping[str, Any], owner: str) -> None:
    """Raise ConfigError for a count that is none."""
    for key in _COUNTS:
        count = cfg.get(key, 1)
        if not (is_number(count) and count >= 1 and count in (count // 1, math.inf)):
            raise _error(owner, key, "a whole number of at least 1, or infinity", count)


def check_limit(key: str, value: Any, owner: str) -> None:
    """Raise ConfigError unless the value is a time limit."""
    if value is not None and not is_positive(value):
        raise _error(owner, key, "seconds above 0, or None", value)


def merge_values(cfg: Config, config: Mapping[str, Any], owner: str) -> None:
    """Move the fields of `timeouts` and `failures` to the keys of the same options, and check these.

    Args:
        cfg: merged over `config`; changed in place.
        config: the defaults of that class. A key that has its default counts as not given.
        owner: name of the manager's class, for messages.

    Raises:
        ConfigError: a value is wrong, or an option is given twice.
    """
    defaults = {**PROCESS_CONFIG, **config}
    given = {key: cfg[key] for key in (*_LIMITS, *_FAILURES) if key in cfg and not _is_same(cfg[key], defaults[key])}
    limits, single = ({key: given[key] for key in keys if key in given} for keys in (_LIMITS, _FAILURES))
    timeouts = read_timeouts(cfg.get("timeouts"), owner=owner, **limits)
    failures = read_failures(cfg.get("failures"), owner=owner, **single)
    if failures.recover_hangs:
        raise ConfigError(
            f"{owner}: failures: recover_hangs: expected False or None, got True; managers raise TimeoutError at a "
            "limit, and max_retry and retry_type rule what follows",
            key="recover_hangs",
        )
    if failures.on_exception == "truncate":
        raise ConfigError(
            f"{owner}: failures: on_exception: expected 'raise' or None, got 'truncate'; on_step_error, max_retry and "
            "retry_type rule what follows an exception",
            key="on_exception",
        )
    for name, seconds in given_fields(timeouts).items():
        cfg[f"{name}_timeout"] = limit_of(seconds)
    has_reset = timeouts.reset is not None and "reset_timeout" not in given  # It is a field of `timeouts`.
    if has_reset and _is_same(cfg.get("connect_timeout"), defaults["connect_timeout"]):
        cfg["connect_timeout"] = None  # else a default would cap the limit that was given
    cfg.update({name: value for name, value in given_fields(failures).items() if name not in _NO_KEYS})
    cfg.update(timeouts=None, failures=None)


def _is_same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)


def limits_of(cfg: Mapping[str, Any]) -> Limits:
    """Return the pool's limits."""
    times = [cfg[key] for key in ("reset_timeout", "connect_timeout") if cfg.get(key) is not None]
    return Limits(
        construct=cfg.get("construct_timeout"),
        reset=min(times) if times else None,
        step=cfg["step_timeout"],
        call=cfg["call_timeout"],
        close=cfg["close_timeout"],
    )


def pool_options(cfg: Mapping[str, Any], autoreset: Autoreset) -> PoolOptions:
    """Return the pool's options."""
    return PoolOptions(
        **{key: cfg[key] for key in _POOL_KEYS if key in cfg},
        autoreset=autoreset,
        leases=0 if cfg.get("copy_on_get", True) else NUM_LEASES,
        limits=limits_of(cfg),
        # Hangs raise; then `max_retry` and `retry_type` apply.
        failures=PoolFailurePolicy(**{key: cfg[key] for key in _FAILURES if key in cfg}, recover_hangs=False),
    )


def _error(owner: str, key: str, expected: str, got: Any) -> ConfigError:
    return ConfigError(f"{owner}: {key}: expected {expected}, got {got!r}", key=key)
