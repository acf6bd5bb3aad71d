"""The step of one env raises: timesteps of the other envs are in the attribute `timesteps` of the exception."""

from __future__ import annotations

import pytest

from tests.managers.fakes import IN_PROCESS, WITH_WORKERS, ActorEnv, actors
from vecenv.ding import AsyncSubprocessEnvManager, BaseEnvManager, EnvState, SyncSubprocessEnvManager

MANAGERS = [*IN_PROCESS, *WITH_WORKERS]


class Odd(ActorEnv):
    """An env whose first step raises; its second step ends its only episode, and its second reset raises."""

    def __init__(self):
        super().__init__({"length": 1})
        self._has_failed = False

    def reset(self, stat=None):
        return super().reset("error_later")

    def step(self, action):
        if not self._has_failed:
            self._has_failed = True
            raise LookupError("cannot step yet")
        return super().step(action)


def make(manager_cls, env_fns, **cfg):
    if manager_cls not in IN_PROCESS:
        cfg["num_workers"] = 1
    return manager_cls(env_fns, cfg)


def by_id(timesteps):
    return timesteps if isinstance(timesteps, dict) else {tree.env_id.item(): tree for tree in timesteps}


def step(manager, actions):
    """Step; return (timesteps by id, exception or None), also if an env raises."""
    try:
        return by_id(manager.step(actions)), None
    except (LookupError, RuntimeError) as error:
        return error.timesteps, error


@pytest.mark.parametrize("policy", ["error", "renew"])
@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_step_error_loses_no_timestep_of_other_envs(manager_cls, policy):
    """Regression: timesteps of env 1 were lost, also the last one of its episode."""
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
        assert errors and (seen, last) == (4, 2) == (manager.data_count[1], manager.env_episode_count[1])


@pytest.mark.parametrize("manager_cls", [BaseEnvManager, SyncSubprocessEnvManager])
def test_step_error_has_timesteps_in_request_order(manager_cls):
    with make(manager_cls, actors(4), on_step_error="error") as manager:
        manager.launch()
        timesteps, error = step(manager, {3: 0, 1: "error", 0: "error", 2: 0})
        assert list(timesteps) == [3, 2] and "actor 0 cannot step" in str(error)
        assert [timestep.obs.tolist() for timestep in timesteps.values()] == [[3, 1, 1], [2, 1, 1]]


@pytest.mark.extended
@pytest.mark.parametrize("manager_cls", WITH_WORKERS)
def test_step_error_that_closes_has_timesteps(manager_cls):
    cfg = {"step_wait_timeout": None} if manager_cls is AsyncSubprocessEnvManager else {}
    manager = make(manager_cls, actors(2), **cfg)
    manager.launch()
    timesteps, error = step(manager, {0: 0, 1: "error"})
    assert manager.closed and isinstance(error, LookupError)
    # In the asynchronous manager they may arrive after the error.
    assert list(timesteps) == [0] or (manager_cls is AsyncSubprocessEnvManager and not timesteps)


def steps_in(timesteps):
    return {(env_id, int(timestep.obs[1])) for env_id, timestep in timesteps.items()}


@pytest.mark.parametrize("cfg", [{}, {"max_retry": 2, "retry_waiting_time": 0}], ids=["in row", "by command"])
@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_automatic_reset_error_has_timesteps(manager_cls, cfg):
    """Regression: all timesteps of the call were lost."""
    manager = make(manager_cls, actors(3, length=2), **cfg)
    manager.launch({0: {"stat": "error_later"}, 1: None, 2: None})
    seen, error = set(), None
    while error is None:
        timesteps, error = step(manager, dict.fromkeys(manager.ready_obs_id, 0))
        seen |= steps_in(timesteps)
    assert manager.closed and "env 0 could not be reset" in str(error)
    # If the autoreset in the row of the last step fails, that row has no timestep.
    made = {(env_id, number) for env_id in range(3) for number in (1, 2)} - (set() if cfg else {(0, 2)})
    if manager_cls is AsyncSubprocessEnvManager:  # other envs may be further, or not so far
        assert seen >= {(0, 1), (0, 2)}
    else:
        assert seen == made


@pytest.mark.extended
@pytest.mark.parametrize("manager_cls", [SyncSubprocessEnvManager, AsyncSubprocessEnvManager])
def test_automatic_reset_error_has_final_obs_with_reset_inplace(manager_cls):
    manager = make(manager_cls, actors(2, length=1), reset_inplace=True, max_retry=2, retry_waiting_time=0)
    manager.launch({0: {"stat": "error_later"}, 1: None})
    timesteps, error = step(manager, {0: 0, 1: 0})
    assert "env 0 could not be reset" in str(error) and 0 in timesteps
    assert timesteps[0].done and timesteps[0].info["final_obs"].tolist() == timesteps[0].obs.tolist() == [0, 1, 1]


def test_automatic_reset_error_has_timesteps_of_earlier_attempts():
    """The step of env 1 succeeds; that of env 0 succeeds in its second attempt, and then its reset fails."""
    manager = make(BaseEnvManager, [Odd, *actors(2, length=5)], max_retry=2, retry_waiting_time=0)
    manager.launch()
    timesteps, error = step(manager, {2: 0, 0: 0, 1: 0})
    assert manager.closed and "env 0 could not be reset" in str(error)
    assert list(timesteps) == [2, 0, 1] and timesteps[0].done


def test_automatic_reset_error_has_no_timestep_of_a_failed_step():
    """The row of that step has zeros."""
    manager = make(BaseEnvManager, actors(2, length=1), max_retry=2, retry_waiting_time=0)
    manager.launch({0: None, 1: {"stat": "error_later"}})
    timesteps, error = step(manager, {0: "error", 1: 0})
    assert manager.closed and "env 1 could not be reset" in str(error)
    assert list(timesteps) == [1] and timesteps[1].done


def test_reset_error_has_no_timesteps():
    manager = make(BaseEnvManager, actors(2))
    manager.launch()
    with pytest.raises(RuntimeError, match="could not be reset") as caught:
        manager.reset({0: {"stat": "error"}})
    assert caught.value.timesteps == {}


def test_step_error_after_attempts_has_timesteps_of_successes():
    with make(BaseEnvManager, actors(3), max_retry=2, retry_waiting_time=0) as manager:
        manager.launch()
        timesteps, _ = step(manager, {0: 0, 1: "error", 2: 0})
        assert list(timesteps) == [0, 2]


def test_step_error_has_trees_of_the_chosen_library():
    pytest.importorskip("treetensor")
    with make(IN_PROCESS[1], actors(2), trees="treetensor") as manager:
        manager.launch()
        timesteps, _ = step(manager, {0: 0, 1: "error"})
        assert type(timesteps[0]) is type(by_id(manager.step({0: 0}))[0])
