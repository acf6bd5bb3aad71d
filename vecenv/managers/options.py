"""Options of managers: their config keys, checked and turned into what a pool wants."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ..config import Config
from ..core.layout.rows import Autoreset
from ..core.options import FailurePolicy, Limits, PoolOptions, is_positive
from ..core.system.clock import MOST_SECONDS, is_number
from ..errors import ConfigError

__all__ = [
    "BASE_CONFIG",
    "OTHER_KEYS",
    "PROCESS_CONFIG",
    "V2_CONFIG",
    "check_config",
    "check_counts",
    "limits_of",
    "pool_options",
    "read_env_fns",
]

#: Keys of every manager, with defaults; times are seconds, None for no limit.
BASE_CONFIG: dict[str, Any] = {
    "episode_num": math.inf,  # episodes of each env, which then is DONE
    "max_retry": 1,  # attempts at a reset (in process: at a step too); 1: no second one
    "retry_type": "reset",  # before another attempt: 'reset' nothing, 'renew' build the env anew
    "retry_waiting_time": 0.1,  # pause before another attempt
    "auto_reset": True,  # begin the next episode when one ends
    "step_timeout": None,
    "reset_timeout": None,
    "on_step_error": "error",  # 'error': that env is in ERROR; 'renew': and rebuilt; 'close': close the manager
    "depth": 3,  # views stay valid until depth - 1 later calls that receive (copy_on_get=False)
    "call_timeout": None,  # for attributes, render and other calls
    "close_timeout": 5.0,  # for all envs together; what still runs then is killed
}

#: Keys of the managers with worker processes.
PROCESS_CONFIG: dict[str, Any] = {
    **BASE_CONFIG,
    "on_step_error": "close",
    "shared_memory": True,  # False: observations and rewards are pickled, and may differ from what their space says
    "copy_on_get": True,  # False: observations are views of the ring, see depth
    "context": "forkserver",  # how to start workers: 'forkserver', 'spawn' or 'fork'
    "wait_num": math.inf,  # results that a step waits for
    "step_wait_timeout": None,  # how long it goes on collecting when it has them; None: until all are in
    "connect_timeout": 60,  # limit of a reset where reset_timeout is longer or None
    "reset_inplace": False,  # the last timestep of an episode has the next one's first observation
    "num_workers": None,  # processes; None: min(number of envs, usable cores)
    "threads_per_worker": 1,  # envs that step at once in one process; for envs that wait
    "construct_timeout": 60.0,  # for building all envs
    # What is done about workers that die; see `core.options.FailurePolicy`.
    "on_failure": "recover",  # 'recover' brings the envs back to where they were; 'raise' closes the manager
    "on_repeat": "truncate",  # the same call kills a second worker: 'truncate' ends that episode; 'raise'
    "max_restarts": 32,  # of one env within restart_window; beyond that the manager gives up
    "restart_window": 60.0,
    "max_log_bytes": 64 << 20,  # memory for what is kept to bring envs back, all envs together; 0: nothing is
    "recovery_timeout": None,  # for repeating one episode; None: the larger of 60 s and ten step_timeouts
    "reproducer_dir": None,  # for files that repeat what killed a worker; None: the system's temporary folder
    "recycle_after": None,  # replace workers after so much: {'episodes': K} or {'rss_mb': M}; None: never
}

#: Keys that the V2 managers have beside these.
V2_CONFIG: dict[str, Any] = {
    "trees": "vecenv",  # of what library trees are: 'vecenv' (TreeArray) or 'treetensor' (its numpy arrays)
}

#: Keys that no manager warns of: a config for another class of manager is no mistake.
OTHER_KEYS = (*PROCESS_CONFIG, *V2_CONFIG, "type", "import_names", "cfg_type")


_CHOICES = {
    "trees": ("vecenv", "treetensor"),
    "retry_type": ("reset", "renew"),
    "on_step_error": ("error", "renew", "close"),
    "on_failure": ("recover", "raise"),
    "on_repeat": ("truncate", "raise"),
}
_LIMITS = (
    "step_timeout",
    "reset_timeout",
    "call_timeout",
    "close_timeout",
    "construct_timeout",
    "connect_timeout",
    "recovery_timeout",
)
_FLAGS = ("auto_reset", "shared_memory", "copy_on_get", "reset_inplace")
_COUNTS = ("episode_num", "wait_num")
_WHOLE = ("max_restarts", "max_log_bytes")
_RECYCLE_KEYS = ("episodes", "rss_mb")


def read_env_fns(env_fn: Any, owner: str) -> list[Callable[[], Any]]:
    """Return a manager's constructors.

    Raises:
        ConfigError: there are none, or one cannot be called.
    """
    fns = list(env_fn) if isinstance(env_fn, Iterable) else []
    if not fns or not all(map(callable, fns)):
        raise ConfigError(f"{owner}: env_fn: expected a list of callables, got {env_fn!r}", key="env_fn")
    return fns


def check_config(cfg: Config, owner: str, *, has_inplace: bool = True) -> None:
    """Raise ConfigError for the first value that makes no sense.

    Args:
        cfg: merged over the defaults.
        owner: name of the manager's class, for messages.
        has_inplace: whether `reset_inplace` is a key of that class.
    """
    for key, choices in _CHOICES.items():
        if key in cfg and cfg[key] not in choices:
            raise _error(owner, key, f"one of {choices}", cfg[key])
    for key in _FLAGS:
        if key in cfg and not isinstance(cfg[key], bool | np.bool_):
            raise _error(owner, key, "True or False", cfg[key])
    for key in _LIMITS:
        if key in cfg:
            check_limit(key, cfg[key], owner)
    patience = cfg.get("step_wait_timeout")
    if patience is not None and not (is_number(patience) and patience >= 0):
        raise _error(owner, "step_wait_timeout", "seconds of at least 0, or None", patience)
    check_counts(cfg, owner)
    if "restart_window" in cfg and not is_positive(cfg["restart_window"]):
        raise _error(owner, "restart_window", "seconds above 0", cfg["restart_window"])
    for key in _WHOLE:
        most = cfg.get(key, 0)
        if isinstance(most, bool) or not isinstance(most, numbers.Integral) or int(most) < 0:
            raise _error(owner, key, "a whole number of at least 0", most)
    _check_recycling(cfg.get("recycle_after"), owner)
    if not isinstance(cfg["max_retry"], numbers.Integral):
        raise _error(owner, "max_retry", "an integer", cfg["max_retry"])
    if not (is_number(cfg["retry_waiting_time"]) and 0 <= cfg["retry_waiting_time"] <= MOST_SECONDS):
        raise _error(owner, "retry_waiting_time", f"seconds from 0 to {MOST_SECONDS:g}", cfg["retry_waiting_time"])
    if has_inplace and cfg.get("reset_inplace") and not cfg["auto_reset"]:
        raise ConfigError(f"{owner}: reset_inplace=True needs auto_reset=True", key="reset_inplace")


def check_counts(cfg: Mapping[str, Any], owner: str) -> None:
    """Raise ConfigError for a count that is none."""
    for key in _COUNTS:
        count = cfg.get(key, 1)
        if not (is_number(count) and count >= 1 and count in (count // 1, math.inf)):
            raise _error(owner, key, "a whole number of at least 1, or infinity", count)


def _check_recycling(value: Any, owner: str) -> None:
    if value is None:
        return
    if not isinstance(value, Mapping) or not value or not set(value) <= set(_RECYCLE_KEYS):
        raise _error(owner, "recycle_after", f"a dict with keys out of {_RECYCLE_KEYS}, or None", value)
    if not all(map(is_positive, value.values())):
        raise _error(owner, "recycle_after", "numbers above 0", value)


def check_limit(key: str, value: Any, owner: str) -> None:
    """Raise ConfigError unless the value is a time limit."""
    if value is not None and not is_positive(value):
        raise _error(owner, key, "seconds above 0, or None", value)


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
        num_workers=cfg.get("num_workers"),
        threads_per_worker=cfg.get("threads_per_worker", 1),
        autoreset=autoreset,
        depth=cfg["depth"],
        context=cfg.get("context", "forkserver"),
        limits=limits_of(cfg),
        failures=_failures(cfg),
    )


def _failures(cfg: Mapping[str, Any]) -> FailurePolicy:
    """Return what is done about workers that die. Hangs raise: `max_retry` and `retry_type` rule about them."""
    keys = [field.name for field in dataclasses.fields(FailurePolicy)]
    return FailurePolicy(**{key: cfg[key] for key in keys if key in cfg}, recover_hangs=False)


def _error(owner: str, key: str, expected: str, got: Any) -> ConfigError:
    return ConfigError(f"{owner}: {key}: expected {expected}, got {got!r}", key=key)
