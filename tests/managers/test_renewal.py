"""Constructors that fail when an env is replaced: the old env stays closed, and the next reset tries again."""

from __future__ import annotations

import functools

import pytest

from tests.managers.fakes import IN_PROCESS, ActorEnv, actors
from vecenv.ding import AsyncSubprocessEnvManager, BaseEnvManager, EnvState, SyncSubprocessEnvManager
from vecenv.envs.factory import EnvFactory
from vecenv.managers.env_driver import DriverSettings, DriverSnapshotter, EnvDriver, ResetRequest

MANAGER_CLASSES = [BaseEnvManager, SyncSubprocessEnvManager, AsyncSubprocessEnvManager]


class Closable(ActorEnv):
    """An env that fails once it is closed. The reset of the first one fails with `stat` 'first'.

    It hangs with `stat` 'block_first'.
    """

    def __init__(self, number):
        super().__init__({"number": number})
        self.build = number
        self.is_closed = False

    def reset(self, stat=None):
        assert not self.is_closed, "a closed env is reset"
        if stat == "first":
            stat = "error" if self.build == 0 else None
        if stat == "block_first":
            stat = "block" if self.build == 0 else None
        return super().reset(stat)

    def close(self):
        self.is_closed = True


def build(folder, fails):
    """Build an env that is numbered by the constructor's calls so far; raise for the numbers in `fails`."""
    number = len(list(folder.iterdir()))
    (folder / str(number)).touch()
    if number in fails:
        raise OSError(f"no licence for {number}")
    return Closable(number)


def make(manager_cls, folder, fails, **cfg):
    if manager_cls not in IN_PROCESS:
        cfg["num_workers"] = 1
    return manager_cls([functools.partial(build, folder, fails), *actors(1)], {"retry_waiting_time": 0, **cfg})


@pytest.mark.parametrize("manager_cls", MANAGER_CLASSES)
def test_constructor_error_is_followed_by_another_attempt(manager_cls, tmp_path):
    """Regression: the next attempt reset the old env, which was closed."""
    with make(manager_cls, tmp_path, {1}, max_retry=3, retry_type="renew") as manager:
        manager.launch()
        manager.reset({0: {"stat": "first"}})
        assert manager.env_states[0] is EnvState.RUN and manager.build[:1] == [2]


@pytest.mark.parametrize("manager_cls", MANAGER_CLASSES)
def test_constructor_error_uses_an_attempt(manager_cls, tmp_path):
    manager = make(manager_cls, tmp_path, {1, 2, 3, 4}, max_retry=4, retry_type="renew")
    manager.launch()
    with pytest.raises(RuntimeError, match=r"4 attempts.*no licence for"):
        manager.reset({0: {"stat": "first"}})
    assert manager.closed and len(list(tmp_path.iterdir())) == 4  # one reset failed, then three constructors


@pytest.mark.parametrize("manager_cls", MANAGER_CLASSES)
def test_step_error_is_raised_although_the_constructor_fails(manager_cls, tmp_path):
    """Regression: the constructor's exception was raised, and the next reset used the old env, which was closed."""
    with make(manager_cls, tmp_path, {1}, on_step_error="renew") as manager:
        manager.launch()
        kind = RuntimeError if manager_cls is BaseEnvManager else LookupError
        with pytest.raises(kind, match="cannot step") as caught:
            manager.step({0: "error"})
        error = caught.value
        assert isinstance(error.__context__, OSError) and "no licence for 1" in str(error.__context__)
        assert any("could not be rebuilt" in note for note in error.__notes__)
        assert manager.env_states == {0: EnvState.ERROR, 1: EnvState.RUN}
        manager.reset({0: None})
        assert manager.env_states[0] is EnvState.RUN and manager.build[:1] == [2]


@pytest.mark.extended
def test_hung_reset_during_a_rebuild_has_its_attempts(tmp_path):
    """Regression: env 0 was replaced in a worker in which env 1 hung; the TimeoutError of env 1 closed the manager."""
    cfg = {"max_retry": 3, "retry_type": "renew", "reset_timeout": 0.5}
    with make(AsyncSubprocessEnvManager, tmp_path, {}, **cfg) as manager:
        manager.launch()
        manager.reset({0: {"stat": "first"}, 1: {"stat": "block_later"}})
        assert manager.ready_obs_id == [0, 1] and manager.steps == [0, 0]


WITH_WORKERS = MANAGER_CLASSES[1:]


@pytest.mark.extended
@pytest.mark.parametrize("manager_cls", WITH_WORKERS)
def test_constructor_error_after_a_hung_reset_is_followed_by_another_attempt(manager_cls, tmp_path):
    """Regression: `reset` raised the constructor's exception, and the env stayed in RESET."""
    with make(manager_cls, tmp_path, {1}, max_retry=3, reset_timeout=0.5) as manager:
        manager.launch()
        manager.reset({0: {"stat": "block_first"}})
        assert manager.ready_obs_id == [0, 1] and manager.build[:1] == [2]


@pytest.mark.extended
@pytest.mark.parametrize("manager_cls", WITH_WORKERS)
def test_constructor_error_after_a_hung_reset_uses_an_attempt(manager_cls, tmp_path):
    manager = make(manager_cls, tmp_path, {1, 2, 3, 4}, max_retry=3, reset_timeout=0.5)
    manager.launch()
    with pytest.raises(RuntimeError, match=r"3 attempts.*no licence for 2"):
        manager.reset({0: {"stat": "block_first"}})
    assert manager.closed and len(list(tmp_path.iterdir())) == 3


def test_snapshot_without_an_env_restores_the_same_successor(tmp_path):
    """After a crash of the worker the env that the new worker has built is not used."""
    settings = DriverSettings(autoreset=False, abnormal_ends=False)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    managed = EnvFactory(EnvDriver, (functools.partial(build, tmp_path / "a", {1}), 0, settings))()
    managed.reset(request=ResetRequest({}, seed=(5, True)))
    with pytest.raises(OSError, match="no licence"):
        managed.rebuild()
    snapshot = DriverSnapshotter().capture(managed)
    twin = EnvFactory(EnvDriver, (functools.partial(build, tmp_path / "b", {}), 0, settings))()
    DriverSnapshotter().restore(twin, snapshot.state)
    unused = twin.env.env
    managed.reset()
    twin.reset()
    assert unused.is_closed and not twin.env.env.is_closed
    assert twin.env.env.seed_calls == managed.env.env.seed_calls and len(managed.env.env.seed_calls) == 1
