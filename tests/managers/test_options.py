"""Config keys: accepted values, wrong values, and the pool's options."""

from __future__ import annotations

import threading

import pytest

from tests.inside import config_of, set_step_timeout
from tests.managers.fakes import ActorEnv, actors
from vecenv import ConfigError
from vecenv.core.layout.flags import Autoreset
from vecenv.ding import AsyncSubprocessEnvManager, BaseEnvManager, GymVectorEnvManager, SyncSubprocessEnvManager
from vecenv.managers.options import pool_options

DOCUMENTED = {
    "episode_num": float("inf"),
    "max_retry": 1,
    "retry_type": "reset",
    "retry_waiting_time": 0.1,
    "auto_reset": True,
    "step_timeout": None,
    "reset_timeout": None,
    "shared_memory": True,
    "copy_on_get": True,
    "wait_num": float("inf"),
    "step_wait_timeout": None,
    "connect_timeout": 60,
    "reset_inplace": False,
}
OURS = {
    "num_workers": 2,
    "threads_per_worker": 1,
    "build": "serial",
    "depth": 3,
    "on_failure": "raise",
    "on_repeat": "raise",
    "max_restarts": 0,
    "restart_window": 1.5,
    "max_log_bytes": 1 << 20,
    "recycle_after": {"episodes": 3, "rss_mb": 100.5},
    "recovery_timeout": 3.0,
    "construct_timeout": None,
    "call_timeout": 5.0,
    "close_timeout": 5.0,
    "on_step_error": "renew",
    "context": "forkserver",
    "worker_output": "all",
    "timings": False,
    "monitor": False,
}


def test_config_defaults_are_documented():
    config = SyncSubprocessEnvManager.default_config()
    assert {key: config[key] for key in DOCUMENTED} == DOCUMENTED
    assert set(OURS) <= set(config)
    assert set(BaseEnvManager.default_config()) < set(config)
    assert AsyncSubprocessEnvManager.default_config().wait_num == 2
    assert GymVectorEnvManager.default_config().shared_memory is False


def test_config_accepts_every_key(recwarn):
    with SyncSubprocessEnvManager(actors(2), {**DOCUMENTED, **OURS}) as manager:
        manager.launch()
        assert len(manager.step({0: 0, 1: 0})) == 2
    assert not recwarn.list


@pytest.mark.parametrize(
    "key, value",
    [
        ("on_failure", "ignore"),
        ("on_repeat", "recover"),
        ("on_step_error", None),
        ("retry_type", "again"),
        ("max_restarts", -1),
        ("max_restarts", 1.5),
        ("restart_window", 0),
        ("max_log_bytes", -1),
        ("max_log_bytes", 1e6),
        ("max_log_bytes", True),
        ("recovery_timeout", 0),
        ("recycle_after", {"steps": 3}),
        ("recycle_after", {"episodes": 0}),
        ("recycle_after", 7),
        ("recycle_after", {}),
        ("episode_num", 0),
        ("episode_num", 2.5),
        ("wait_num", 0),
        ("max_retry", "3"),
        ("retry_waiting_time", -1),
        ("step_timeout", -2),
        ("connect_timeout", float("nan")),
    ],
)
def test_config_error_has_the_key(key, value):
    with pytest.raises(ConfigError, match=key) as caught:
        SyncSubprocessEnvManager(actors(1), {key: value})
    assert caught.value.key == key


@pytest.mark.parametrize(
    "key, value", [("num_workers", 0), ("threads_per_worker", 0), ("depth", 1), ("build", "threads")]
)
def test_launch_with_options_that_the_pool_refuses_raises(key, value):
    manager = SyncSubprocessEnvManager(actors(1), {key: value})
    with pytest.raises(ConfigError, match=key):
        manager.launch()
    assert manager.closed


def test_pool_options_have_the_config_values():
    manager = SyncSubprocessEnvManager(actors(1), {**OURS, "step_timeout": 1, "reset_timeout": 90})
    options = pool_options(config_of(manager), Autoreset.SAME_STEP)
    assert (options.num_workers, options.depth, options.context) == (2, 3, "forkserver")
    assert (options.threads_per_worker, options.build) == (1, "serial")
    failures = options.failures
    assert (failures.on_failure, failures.on_repeat, failures.recover_hangs) == ("raise", "raise", False)
    assert (failures.max_restarts, failures.restart_window, failures.max_log_bytes) == (0, 1.5, 1 << 20)
    assert (failures.recycle_after, failures.recovery_timeout) == ({"episodes": 3, "rss_mb": 100.5}, 3.0)
    limits = options.limits
    assert (limits.construct, limits.call, limits.close, limits.step, limits.reset) == (None, 5.0, 5.0, 1, 60)


def test_attributes_in_process_are_copies_except_those_that_cannot_be_pickled():
    """Regression: a lock was an error; later, a list was the env's own, but a copy in managers with workers."""

    class Locked(ActorEnv):
        def __init__(self):
            super().__init__()
            self.lock = threading.Lock()

    with BaseEnvManager([Locked, Locked], {}) as manager:
        manager.launch()
        first, second = manager.lock
        assert first is not second and manager.lock == [first, second]
        manager.step({0: 7, 1: 7})
        manager.kept[0].append("seen")
        assert manager.kept == [[7], [7]]


@pytest.mark.parametrize("max_retry", [1, 2])
def test_reset_inplace_has_no_effect_in_process(max_retry):
    """Regression: in this process the final observation was put into the info."""
    BaseEnvManager(actors(1), {"reset_inplace": True, "auto_reset": False})
    with BaseEnvManager(actors(1, length=1), {"reset_inplace": True, "max_retry": max_retry}) as manager:
        manager.launch()
        timestep = manager.step({0: 0})[0]
        assert timestep.done and timestep.obs.tolist() == [0, 1, 1] and "final_obs" not in timestep.info
        assert manager.ready_obs[0].tolist() == [0, 0, 2]


class Namesake(ActorEnv):
    """An env with attributes of the same names as those of its driver."""

    def __init__(self):
        super().__init__()
        self._seeds, self._has_seed, self.notes_agents, self.env = [1, 2], "mine", 7, "inner"


@pytest.mark.parametrize("manager_cls", [BaseEnvManager, SyncSubprocessEnvManager])
def test_attributes_are_not_those_of_the_env_driver(manager_cls):
    with manager_cls([Namesake, Namesake], {}) as manager:
        manager.launch()
        found = [manager._seeds, manager._has_seed, manager.notes_agents, manager.env]
        assert found == [[[1, 2]] * 2, ["mine"] * 2, [7] * 2, ["inner"] * 2]
    with manager_cls([ActorEnv], {}) as manager:
        manager.launch()
        for name in ("_seeds", "notes_agents", "env", "generator_owners"):
            with pytest.raises(AttributeError, match="neither"):
                getattr(manager, name)


@pytest.mark.parametrize("manager_cls", [BaseEnvManager, SyncSubprocessEnvManager, AsyncSubprocessEnvManager])
@pytest.mark.parametrize("limit", [float("inf"), threading.TIMEOUT_MAX, 10**400], ids=["inf", "most", "more"])
def test_infinite_limits_are_none(manager_cls, limit):
    names = ("step", "reset", "connect", "call", "close", "construct", "recovery", "step_wait")
    cfg = {f"{name}_timeout": limit for name in names} | {"restart_window": limit}
    with manager_cls(actors(2), cfg) as manager:
        manager.launch()
        set_step_timeout(manager, limit)
        assert manager.step({0: 0, 1: 0})
