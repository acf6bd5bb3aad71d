"""One env's step raises: what the others answered in the same call is not lost."""

from __future__ import annotations

import pytest

from tests.managers.fakes import IN_PROCESS, WITH_WORKERS, actors
from vecenv import AsyncSubprocessEnvManager, BaseEnvManager, EnvState, SyncSubprocessEnvManager

MANAGERS = [*IN_PROCESS, *WITH_WORKERS]


def make(manager_cls, env_fns, **cfg):
    if manager_cls not in IN_PROCESS:
        cfg["num_workers"] = 1
    return manager_cls(env_fns, cfg)


def by_id(timesteps):
    return timesteps if isinstance(timesteps, dict) else {tree.env_id.item(): tree for tree in timesteps}


def step(manager, actions):
    """Step, and take what there is also where an env raises: (timesteps by id, exception or None)."""
    try:
        return by_id(manager.step(actions)), None
    except (LookupError, RuntimeError) as error:
        return error.timesteps, error


@pytest.mark.parametrize("policy", ["error", "renew"])
@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_no_timestep_of_the_others_is_lost(manager_cls, policy):
    """Env 1's were thrown away, the one that ended its episode too."""
    with make(manager_cls, actors(2, length=2), on_step_error=policy, episode_num=2) as manager:
        manager.launch()
        seen, last, errors = 0, 0, 0
        for num_calls in range(8):
            ids = manager.ready_obs_id
            timesteps, error = step(manager, {i: "error" if i == 0 and num_calls % 2 else 0 for i in ids})
            errors += error is not None
            if error is not None:
                assert manager.env_states[0] is EnvState.ERROR
                manager.reset({0: None})
            if 1 in timesteps:
                seen += 1
                last += bool(timesteps[1].done)
        while manager_cls is AsyncSubprocessEnvManager and 1 in manager.active_env:
            timesteps, _ = step(manager, {})
            seen, last = seen + (1 in timesteps), last + bool(1 in timesteps and timesteps[1].done)
        assert errors and (seen, last) == (4, 2) == (manager._data_count[1], manager.env_episode_count[1])


@pytest.mark.parametrize("manager_cls", [BaseEnvManager, SyncSubprocessEnvManager])
def test_they_come_with_the_exception_in_the_order_asked(manager_cls):
    with make(manager_cls, actors(4), on_step_error="error") as manager:
        manager.launch()
        timesteps, error = step(manager, {3: 0, 1: "error", 0: "error", 2: 0})
        assert list(timesteps) == [3, 2] and "actor 0 cannot step" in str(error)
        assert [timestep.obs.tolist() for timestep in timesteps.values()] == [[3, 1, 1], [2, 1, 1]]


@pytest.mark.parametrize("manager_cls", WITH_WORKERS)
def test_a_manager_that_closes_hands_them_out_too(manager_cls):
    cfg = {"step_wait_timeout": None} if manager_cls is AsyncSubprocessEnvManager else {}
    manager = make(manager_cls, actors(2), **cfg)
    manager.launch()
    timesteps, error = step(manager, {0: 0, 1: "error"})
    assert manager.closed and isinstance(error, LookupError)
    # Asynchronously they have come only if that was before.
    assert list(timesteps) == [0] or (manager_cls is AsyncSubprocessEnvManager and not timesteps)


def test_after_several_attempts_those_that_succeeded_are_there():
    with make(BaseEnvManager, actors(3), max_retry=2, retry_waiting_time=0) as manager:
        manager.launch()
        timesteps, _ = step(manager, {0: 0, 1: "error", 2: 0})
        assert list(timesteps) == [0, 2]


def test_trees_are_of_the_library_that_was_asked_for():
    pytest.importorskip("treetensor")
    with make(IN_PROCESS[1], actors(2), trees="treetensor") as manager:
        manager.launch()
        timesteps, _ = step(manager, {0: 0, 1: "error"})
        assert type(timesteps[0]) is type(by_id(manager.step({0: 0}))[0])
