"""The asynchronous manager: answers that arrive after the call that requested them."""

from __future__ import annotations

import os
import threading
from functools import partial

import pytest

from tests.faults.traces import wait_until
from tests.inside import pool_of
from tests.managers.fakes import ActorEnv, actors
from vecenv.ding import AsyncSubprocessEnvManager, EnvState


@pytest.fixture
def gate(tmp_path):
    """Return a path; an env whose action it is waits until `open_gate`."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return str(path)


def open_gate(path):
    os.close(os.open(path, os.O_WRONLY))  # returns when the env waits there


@pytest.fixture
def launched(launch):
    def launched(count=3, length=5, **cfg):
        return launch(AsyncSubprocessEnvManager, actors(count, length=length), **{"num_workers": count, **cfg})

    return launched


def test_async_defaults_are_documented():
    config = AsyncSubprocessEnvManager.default_config()
    assert (config.wait_num, config.step_wait_timeout, config.connect_timeout) == (2, 0.01, 60)


def test_step_returns_without_a_slow_env(launched, gate):
    manager = launched()
    timesteps = manager.step({0: 0, 1: gate, 2: 0})
    assert list(timesteps) == [0, 2]
    assert manager.active_env == [1] and manager.ready_obs_id == [0, 2] == list(manager.ready_obs)
    open_gate(gate)
    timesteps = manager.step({})
    assert list(timesteps) == [1] and timesteps[1].obs.tolist() == [1, 1, 1]
    assert manager.active_env == [] and manager.data_count == [1, 1, 1]


def test_step_of_an_unanswered_env_raises(launched, gate):
    """W31: all later answers of the env belonged to the step before."""
    manager = launched()
    manager.step({0: 0, 1: gate, 2: 0})
    with pytest.raises(AssertionError, match=r"\[1\]"):
        manager.step({0: 0, 1: 0})
    assert not manager.closed and manager._env_states[0] is EnvState.RUN
    open_gate(gate)
    manager.step({})
    assert manager.data_count == [1, 1, 1]


@pytest.mark.extended
def test_reset_drops_the_answer_of_a_stepping_env(launched, gate):
    manager = launched()
    manager.step({0: 0, 1: gate, 2: 0})
    pid = os.fork()
    if pid == 0:  # the gate must open while the parent waits in reset
        open_gate(gate)
        os._exit(0)
    manager.reset({1: None})
    os.waitpid(pid, 0)
    assert manager.ready_obs[1].tolist() == [1, 0, 2] and manager.active_env == []
    timesteps = manager.step({0: 0, 1: 0, 2: 0})
    while 1 not in timesteps:
        timesteps.update(manager.step({}))
    assert timesteps[1].obs.tolist() == [1, 1, 2]


@pytest.mark.extended
@pytest.mark.parametrize("policy", ["error", "renew"])
def test_first_observation_beside_a_failed_step_is_kept(policy):
    """Regression: env 0 stayed in RESET, and if no other env was ready, `ready_obs` raised StateError."""
    with AsyncSubprocessEnvManager(actors(3, length=1), {"num_workers": 1, "on_step_error": policy}) as manager:
        manager.launch()
        manager.step({0: 0})
        assert manager.env_states[0] is EnvState.RESET
        with pytest.raises(LookupError):  # the only worker answers in order: a reset, a failure, a step
            manager.step({1: "error", 2: 0})
        assert list(manager.step({})) == [2]
        assert manager.ready_obs[0].tolist() == [0, 0, 2]
        assert manager.env_states[0] is EnvState.RUN and manager.env_states[1] is EnvState.ERROR


class FailsBehind(ActorEnv):
    """An env that waits at the gate in its action and then raises; env 2 has longer episodes."""

    def __init__(self, number):
        super().__init__({"number": number, "length": 9 if number == 2 else 1})

    def step(self, action):
        timestep = super().step(action)
        if isinstance(action, str):
            raise LookupError(f"{self.name} fails behind its gate")
        return timestep


@pytest.mark.extended
def test_reset_completes_although_another_env_fails(gate):
    """Regression: if an automatic reset was under way, `reset` raised the exception of the other env at once."""
    cfg = {"num_workers": 2, "on_step_error": "error"}
    with AsyncSubprocessEnvManager([partial(FailsBehind, number) for number in range(3)], cfg) as manager:
        manager.launch()
        assert list(manager.step({0: 0, 1: gate, 2: 0})) == [0, 2]
        assert manager.env_states[0] is EnvState.RESET  # queued in its worker behind the step of env 1
        pid = os.fork()
        if pid == 0:  # the gate must open while the parent waits in reset
            open_gate(gate)
            os._exit(0)
        with pytest.raises(LookupError, match="actor 1 fails behind its gate"):
            manager.reset({0: None, 2: None})
        os.waitpid(pid, 0)
        assert [manager.ready_obs[env_id].tolist() for env_id in (0, 2)] == [[0, 0, 3], [2, 0, 2]]
        assert manager.ready_obs_id == [0, 2] and manager.env_states[1] is EnvState.ERROR
        assert list(manager.step({0: 0, 2: 0})) == [0, 2]


class Misspells(ActorEnv):
    """An env that waits at a gate in all resets but the first, and in steps with a gate; then its step raises."""

    def reset(self, stat=None):
        if self.episodes:
            os.close(os.open(stat, os.O_RDONLY))
        return super().reset()

    def step(self, action):
        timestep = super().step(action)
        return timestep.observation if isinstance(action, str) else timestep


@pytest.mark.extended
def test_ready_obs_raises_an_envs_attribute_error(gate, tmp_path):
    """Regression: the message was that the envs have no attribute 'ready_obs', without the env's own error."""
    reset_gate = str(tmp_path / "reset")
    os.mkfifo(reset_gate)
    env_fns = [partial(Misspells, {"number": number, "length": 1}) for number in range(3)]
    cfg = {"num_workers": 3, "wait_num": 1, "connect_timeout": 10.0, "on_step_error": "error"}
    with AsyncSubprocessEnvManager(env_fns, cfg) as manager:
        manager.launch({0: {"stat": reset_gate}, 1: None, 2: None})
        manager.step({0: 0})
        with pytest.raises(LookupError):
            manager.step({1: gate, 2: "error"})
        assert manager.ready_obs_id == []
        opener = threading.Thread(target=open_gate, args=(gate,))
        opener.start()
        with pytest.raises(AttributeError, match="no attribute 'observation'"):
            manager.ready_obs  # noqa: B018  # it raises
        opener.join()
        open_gate(reset_gate)
        assert list(manager.ready_obs) == [0]


class WaitsAtGate(ActorEnv):
    """An env that waits at the gate `stat` before its second episode."""

    def reset(self, stat=None):
        if stat is not None and self.episodes == 1:
            os.close(os.open(stat, os.O_RDONLY))
        return super().reset(stat)


def test_ready_obs_receives_first_observations(gate, tmp_path):
    """Regression: only steps received first observations, so a loop over `ready_obs` did not end."""
    reset_gate = str(tmp_path / "reset")
    os.mkfifo(reset_gate)
    env_fns = [partial(WaitsAtGate, {"number": number, "length": 1 + number // 2}) for number in range(4)]
    with AsyncSubprocessEnvManager(env_fns, {"num_workers": 4, "wait_num": 3, "step_timeout": 60}) as manager:
        manager.launch({0: {"stat": reset_gate}, 1: None, 2: None, 3: None})
        assert list(manager.step({0: 0, 1: 0, 2: 0, 3: gate})) == [0, 1, 2]
        wait_until(lambda: list(manager.ready_obs) == [1, 2])
        assert manager.env_states[0] is EnvState.RESET
        open_gate(reset_gate)
        wait_until(lambda: list(manager.ready_obs) == [0, 1, 2])
        assert set(manager.env_states.values()) == {EnvState.RUN} and manager.active_env == [3]
        open_gate(gate)
        assert list(manager.step({})) == [3] and manager.ready_obs_id == [0, 1, 2, 3]


def test_ready_obs_after_an_interrupted_reset_does_not_wait(launched, monkeypatch):
    manager = launched()

    def interrupted(*args, **kwargs):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(pool_of(manager), "reset", interrupted)
    with pytest.raises(KeyboardInterrupt):
        manager.reset({0: None})
    assert list(manager.ready_obs) == [1, 2]
    manager.reset({0: None})
    assert list(manager.ready_obs) == [0, 1, 2]


@pytest.mark.parametrize("max_retry", [1, 2])
def test_attributes_wait_for_all_attempts_of_a_hung_reset(max_retry):
    """Regression: the manager was closed with a TimeoutError for every max_retry."""
    cfg = {"num_workers": 2, "max_retry": max_retry, "reset_timeout": 0.5, "retry_waiting_time": 0}
    with AsyncSubprocessEnvManager(actors(2, length=1), cfg) as manager:
        manager.launch({0: {"stat": "block_later"}, 1: None})
        manager.step({0: 0})
        if max_retry == 1:
            with pytest.raises(RuntimeError, match="env 0 could not be reset in its only attempt"):
                manager.name  # noqa: B018  # it raises
            assert manager.closed
        else:
            assert manager.name == ["actor 0", "actor 1"]
            assert not manager.closed and manager.episodes == [1, 1]


def test_attributes_leave_a_pending_timestep(launched, gate):
    """W18: the attribute's value was the timestep."""
    manager = launched()
    manager.step({0: 0, 1: gate, 2: 0})
    open_gate(gate)
    assert manager.name == ["actor 0", "actor 1", "actor 2"]
    assert manager.step({})[1].info["name"] == "actor 1"


def test_step_wait_timeout_none_waits_for_all(launched):
    manager = launched(wait_num=1, step_wait_timeout=None)
    assert list(manager.step({2: 0, 0: 0, 1: 0})) == [0, 1, 2]


def test_step_waits_longer_if_all_timesteps_are_last(launched, gate):
    manager = launched(count=2, length=1, wait_num=1)
    open_soon = os.fork()
    if open_soon == 0:
        open_gate(gate)
        os._exit(0)
    timesteps = manager.step({0: 0, 1: gate})
    os.waitpid(open_soon, 0)
    assert list(timesteps) == [0, 1] and all(timestep.done for timestep in timesteps.values())
    assert manager.ready_obs  # waits for one reset


def test_async_steps_lose_no_timestep(launched):
    manager = launched(count=4, length=3, episode_num=5, wait_num=2, step_wait_timeout=1e-6)
    counts = dict.fromkeys(range(4), 0)
    while not manager.done:
        timesteps = manager.step(dict.fromkeys(manager.ready_obs, 0))
        assert timesteps and list(timesteps) == sorted(timesteps)
        for env_id in timesteps:
            counts[env_id] += 1
    assert manager.data_count == list(counts.values()) == [15] * 4
    assert manager.ready_obs == {} and manager.env_episode_count == dict.fromkeys(range(4), 5)


@pytest.mark.extended
def test_automatic_reset_error_is_raised_by_ready_obs(launched):
    """W23: the exception was lost in a thread."""
    manager = launched(count=1, length=1)
    manager.reset({0: {"stat": "error_later"}}) if manager.episodes == [0] else None
    manager.close()
    manager.launch({0: {"stat": "error_later"}})
    manager.step({0: 0})
    with pytest.raises(RuntimeError, match="cannot reset again"):
        manager.ready_obs  # noqa: B018
    assert manager.closed


@pytest.mark.extended
def test_automatic_reset_has_a_time_limit(launched):
    manager = launched(count=1, length=1, reset_timeout=1.0)
    manager.close()
    manager.launch({0: {"stat": "block_later"}})
    manager.step({0: 0})
    with pytest.raises(RuntimeError, match="env 0"):
        manager.ready_obs  # noqa: B018
    assert manager.closed


def test_step_of_no_env_returns_nothing(launched):
    assert launched().step({}) == {}
