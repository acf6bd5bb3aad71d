"""Managers over worker processes: timeouts, killed workers, views, start methods."""

from __future__ import annotations

import functools
import gc
import os
import re
import signal
import time

import pytest

from tests.inside import config_of, set_step_timeout
from tests.managers.fakes import HANG_SECONDS, ActorEnv, actors
from tests.memory_maps import segments
from vecenv import ClosedError, WorkerDiedError
from vecenv.ding import AsyncSubprocessEnvManager, EnvState, SubprocessEnvManagerV2, SyncSubprocessEnvManager
from vecenv.envs.toys import (
    CountEnv,
    HangInC,
    RaiseUnpicklableError,
    RaiseWeirdError,
    ToyEnv,
    UnpicklableError,
    WeirdError,
)

MANAGERS = [SyncSubprocessEnvManager, AsyncSubprocessEnvManager, SubprocessEnvManagerV2]


@pytest.fixture(params=MANAGERS)
def launched(request, launch):
    defaults = {"num_workers": 2, "wait_num": 100, "step_wait_timeout": None}
    return lambda env_fn=None, **cfg: launch(request.param, env_fn or actors(3), **{**defaults, **cfg})


@pytest.mark.extended
def test_hung_step_raises_timeout_error_and_closes(launched):
    manager = launched(step_timeout=1.0)
    with pytest.raises(TimeoutError, match="env 1"):
        manager.step({0: 0, 1: "block", 2: 0})
    assert manager.closed and manager.env_states[0] is EnvState.VOID
    with pytest.raises(AssertionError):
        manager.step({0: 0})
    manager.launch()
    assert len(manager.step({0: 0, 1: 0, 2: 0})) == 3


@pytest.mark.extended
def test_close_does_not_wait_for_a_hung_worker(launched):
    """The worker does not answer, so waiting for `close_timeout` would be in vain."""
    manager = launched(step_timeout=0.3, close_timeout=HANG_SECONDS)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="env 1"):
        manager.step({0: 0, 1: "block", 2: 0})
    assert manager.closed and time.monotonic() - began < HANG_SECONDS / 2


@pytest.mark.extended
def test_hung_step_in_c_raises_timeout_error(launched):
    manager = launched([HangInC, ToyEnv], step_timeout=0.3)
    with pytest.raises(TimeoutError):
        manager.step({0: 0, 1: 0})
    assert manager.closed


@pytest.mark.extended
def test_limits_may_change_on_a_running_manager(launched):
    manager = launched(max_retry=2)  # then resets are commands of their own
    set_step_timeout(manager, 0.3)
    assert config_of(manager).step_timeout == 0.3
    with pytest.raises(TimeoutError, match=r"0\.3"):
        manager.step({0: "block"})
    with pytest.raises(AssertionError):
        manager._reset_timeout = -1


@pytest.mark.extended
def test_dead_worker_raises_and_closes(launched):
    """W24: it raised a bare EOFError, and the states did not change."""
    manager = launched(on_failure="raise")
    pids = manager.worker_pids
    with pytest.raises(WorkerDiedError, match="exit code 3"):
        manager.step({0: 0, 2: "die"})
    assert manager.closed and manager.worker_pids == ()
    assert set(manager.env_states.values()) == {EnvState.VOID}
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    manager.launch()
    assert len(manager.step({0: 0})) == 1


@pytest.mark.extended
def test_close_releases_the_memory(launched):
    before = segments()
    manager = launched()
    manager.step({0: 0, 1: 0, 2: 0})
    assert segments() > before
    manager.close()
    gc.collect()
    assert segments() <= before


def test_close_with_a_killed_worker_does_not_raise(launched):
    """W21: BrokenPipeError was raised, and the other processes stayed alive."""
    manager = launched()
    os.kill(manager.worker_pids[0], signal.SIGKILL)
    manager.close()
    assert manager.closed


@pytest.mark.extended
def test_attributes_of_a_killed_worker_raise(launched):
    manager = launched(on_failure="raise")
    os.kill(manager.worker_pids[0], signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        manager.name  # noqa: B018
    assert manager.closed


@pytest.mark.extended
def test_hung_reset_is_repeated_in_a_new_worker(launched, tmp_path):
    manager = launched(
        [functools.partial(_HangsOnce, tmp_path / "hung"), *actors(1)],
        max_retry=2,
        reset_timeout=1.0,
        retry_waiting_time=0,
        num_workers=2,
    )
    manager.seed(3, dynamic_seed=False)
    pids = manager.worker_pids
    manager.reset({0: {"stat": "hang once"}})
    assert manager.worker_pids[0] != pids[0] and manager.worker_pids[1] == pids[1]
    assert manager.last_seed == [3, None] and manager.stat == ["hang once", None]
    assert manager.env_states == {0: EnvState.RUN, 1: EnvState.RUN}


@pytest.mark.extended
def test_hung_reset_without_attempts_left_raises(launched):
    manager = launched(max_retry=2, reset_timeout=1.0, retry_waiting_time=0, num_workers=1)
    with pytest.raises(RuntimeError, match="env 0 could not be reset in 2 attempts"):
        manager.reset({0: {"stat": "block"}})
    assert manager.closed


@pytest.mark.extended
def test_hung_reset_warns_about_abandoned_episodes_without_recovery(launched, tmp_path):
    manager = launched(
        [functools.partial(_HangsOnce, tmp_path / "hung"), *actors(3)],
        on_failure="raise",
        max_retry=2,
        reset_timeout=1.0,
        retry_waiting_time=0,
        num_workers=1,
    )
    manager.reset({3: None})
    manager.step({1: 0, 2: 0})
    with pytest.warns(RuntimeWarning, match=r"env 0 hung.*envs \[1, 2\]"):
        manager.reset({0: {"stat": "hang once"}})
    run, error = EnvState.RUN, EnvState.ERROR
    assert manager.env_states == {0: run, 1: error, 2: error, 3: run}  # 3 had made no step: it was reset
    assert manager.ready_obs_id == [0, 3] and manager.episodes == [1, 0, 0, 1]
    with pytest.raises(AssertionError, match="ERROR"):
        manager.step({1: 0})
    manager.reset({1: None, 2: None})
    assert len(manager.step(dict.fromkeys(range(4), 0))) == 4


@pytest.mark.extended
def test_hung_reset_of_another_env_uses_no_attempt(launched, tmp_path):
    hung, failed = tmp_path / "hung", tmp_path / "failed"
    manager = launched(
        [functools.partial(_HangsOnce, hung), functools.partial(_FailsAfter, hung, failed)],
        on_failure="raise",  # else env 1 is restored without a reset
        max_retry=2,
        reset_timeout=1.0,
        retry_waiting_time=0,
        num_workers=1,
    )
    manager.reset({0: {"stat": "hang once"}})
    assert failed.exists() and set(manager.env_states.values()) == {EnvState.RUN}


@pytest.mark.extended
def test_seeds_wait_for_a_requested_reset_although_an_automatic_one_hangs(launched, tmp_path):
    """Regression: the second attempt of an automatic reset used the seed, which was for a reset of the caller."""
    hung = tmp_path / "hung"
    hung.touch()
    manager = launched(
        [functools.partial(_HangsOnce, hung), *actors(1)],
        max_retry=2,
        reset_timeout=1.0,
        retry_waiting_time=0,
        num_workers=1,
    )
    manager.seed([3, 4], dynamic_seed=False)
    manager.reset({0: {"stat": "hang once"}, 1: None})
    hung.unlink()
    manager.seed([8, 9], dynamic_seed=False)
    for _ in range(5):
        manager.step({0: 0})
    while manager.env_states[0] is EnvState.RESET:
        manager.step({})
    assert hung.exists() and manager.last_seed == [3, 4]
    manager.reset()
    assert manager.last_seed == [8, 9]


def test_calls_of_one_env_touch_no_other_worker(launched):
    manager = launched(actors(3), num_workers=3)
    others = [manager.worker_pids[0], manager.worker_pids[2]]
    for pid in others:
        os.kill(pid, signal.SIGSTOP)
    try:  # a stopped worker does not answer, so calls that return have not needed it
        manager.reset({1: None})
        manager.enable_save_figure(1, "here")
        assert manager.reward_shaping(1, [1.0]) == [2.0]
        assert len(manager.step({1: 0})) == 1
        manager.reset({1: {"stat": "mine"}})
    finally:
        for pid in others:
            os.kill(pid, signal.SIGCONT)
    assert manager.episodes == [1, 3, 1] and manager.figure_path == [None, "here", None]


@pytest.mark.extended
def test_step_timeout_set_late_does_not_cover_the_autoreset(launched):
    """Regression: the limit covered both, and a slow reset was taken for a hung step."""
    manager = launched(actors(2, length=1), connect_timeout=3.0)
    manager.close()
    manager.launch({0: {"stat": "block_later"}, 1: None})
    manager.step({1: 0})
    set_step_timeout(manager, 1.0)
    for _ in range(2):
        while EnvState.RESET in manager.env_states.values():  # the asynchronous manager may need more steps
            manager.step({})
        manager.step({1: 0})
    while EnvState.RESET in manager.env_states.values():
        manager.step({})
    assert manager.env_episode_count == {0: 0, 1: 3} and manager.episodes == [1, 4]
    with pytest.raises(RuntimeError, match="env 0 could not be reset"):
        manager.step({0: 0})
        manager.ready_obs  # noqa: B018  # where the asynchronous manager notices
        manager.step({})
    assert manager.closed


def test_unseeded_first_reset_logs_its_seed(launched, caplog):
    caplog.set_level("INFO", "vecenv")
    manager = launched([functools.partial(CountEnv, 1)] * 3)
    first = int(re.findall(r"the seed (\d+) \+ i", caplog.text)[-1])
    assert manager.np_random_seed == [first, first + 1, first + 2] and manager.seed_given == [None] * 3
    manager.reset()
    assert manager.np_random_seed == [first, first + 1, first + 2]  # the generators continue


@pytest.mark.extended
@pytest.mark.parametrize(("env", "error"), [(RaiseWeirdError, WeirdError), (RaiseUnpicklableError, UnpicklableError)])
def test_exception_that_pickle_refuses_arrives_as_its_own_class(launched, env, error):
    """W25: re-creating it killed the worker."""
    manager = launched([env, env])
    with pytest.raises(error, match="toy env"):
        manager.step({0: 0, 1: 0})
    assert manager.closed


@pytest.mark.parametrize("manager_cls", [SyncSubprocessEnvManager, AsyncSubprocessEnvManager])
@pytest.mark.parametrize("extra", [{}, {"step_timeout": 20}, {"max_retry": 2}], ids=["in row", "limit", "retry"])
def test_reset_inplace_keeps_the_final_observation_and_the_parameters(manager_cls, extra):
    """W30: both were lost in other managers."""
    cfg = {"reset_inplace": True, "episode_num": 3, "wait_num": 2, "step_wait_timeout": None, **extra}
    with manager_cls(actors(2, length=1), cfg) as manager:
        manager.launch({0: {"stat": "a"}, 1: {"stat": "b"}})
        timestep = manager.step({0: 0, 1: 0})[1]
        assert timestep.obs.tolist() == [1, 0, 2] and timestep.info["final_obs"].tolist() == [1, 1, 1]
        assert timestep.done is True and manager.env_states == {0: EnvState.RUN, 1: EnvState.RUN}
        assert manager.ready_obs[1].tolist() == [1, 0, 2] and manager.stat == ["a", "b"]
        while not manager.done:
            manager.step(dict.fromkeys(manager.ready_obs, 0))
        assert manager.env_episode_count == {0: 3, 1: 3} and manager.episodes == [3, 3]


def test_reset_inplace_needs_auto_reset():
    with pytest.raises(AssertionError):
        SyncSubprocessEnvManager(actors(1), {"reset_inplace": True, "auto_reset": False})


@pytest.mark.parametrize("manager_cls", [SyncSubprocessEnvManager, AsyncSubprocessEnvManager])
@pytest.mark.parametrize("depth", [2, 4])
def test_views_of_waiting_envs_do_not_expire(manager_cls, depth):
    """Regression: they contained later batches."""
    cfg = {"copy_on_get": False, "depth": depth, "wait_num": 100, "step_wait_timeout": None, "num_workers": 2}
    with manager_cls(actors(3, length=100), cfg) as manager:
        manager.launch()
        manager.step({0: 0, 1: 0, 2: 0})
        for steps in range(2, 40):
            timestep = manager.step({0: 0})[0]
            assert timestep.obs.tolist() == [0, steps, 1] and not timestep.obs.flags.owndata
            assert [obs.tolist() for obs in manager.ready_obs.values()] == [[0, steps, 1], [1, 1, 1], [2, 1, 1]]


def test_abnormal_end_is_neither_counted_nor_reset(launched):
    manager = launched()
    manager.step({0: "abnormal_end", 1: 0, 2: 0})
    assert manager.env_states[0] is EnvState.ERROR and manager.env_episode_count[0] == 0
    assert manager.episodes == [1, 1, 1]


@pytest.mark.extended
def test_num_workers_sets_the_number_of_processes():
    for num_workers, expected in ((3, 3), (None, None), (1, 1)):
        with SyncSubprocessEnvManager(actors(3), {"num_workers": num_workers}) as manager:
            manager.launch()
            assert expected in (None, len(set(manager.worker_pids)))
            assert len(manager.step({0: 0, 1: 0, 2: 0})) == 3


def test_context_accepts_every_start_method(start_method):
    with SyncSubprocessEnvManager(actors(2), {"context": start_method, "num_workers": 1}) as manager:
        manager.launch()
        assert len(manager.step({0: 0, 1: 0})) == 2


@pytest.mark.extended
def test_calls_after_close_raise_closed_error(launched):
    manager = launched()
    manager.close()
    for call in (manager.reset, lambda: manager.step({}), lambda: manager.xyz, lambda: manager.render()):
        with pytest.raises(ClosedError):
            call()


class _HangsOnce:
    def __new__(cls, flag):
        import threading

        from tests.managers.fakes import HANG_SECONDS, ActorEnv

        class Once(ActorEnv):
            def reset(self, stat=None):
                if stat == "hang once" and not flag.exists():
                    flag.touch()
                    threading.Event().wait(HANG_SECONDS)
                return super().reset(stat)

        return Once({})


class _FailsAfter(ActorEnv):
    """An env whose first reset after the file `hung` exists raises."""

    def __init__(self, hung, failed):
        super().__init__()
        self.hung, self.failed = hung, failed

    def reset(self, stat=None):
        if self.hung.exists() and not self.failed.exists():
            self.failed.touch()
            raise ZeroDivisionError("not this time")
        return super().reset(stat)


@pytest.mark.extended
@pytest.mark.parametrize("max_retry", [1, 2])
@pytest.mark.parametrize("manager_cls", [SyncSubprocessEnvManager, AsyncSubprocessEnvManager])
def test_reset_inplace_gives_the_very_last_timestep_its_own_obs(manager_cls, max_retry):
    """Regression: it was zeros if there was no next episode."""
    cfg = {"episode_num": 2, "reset_inplace": True, "max_retry": max_retry}
    with manager_cls([functools.partial(CountEnv, 3)], cfg) as manager:
        manager.launch()
        obs = []
        while not manager.done:
            manager.ready_obs  # noqa: B018  # the asynchronous one waits here for its resets
            obs.extend(timestep.obs[0] for timestep in manager.step(dict.fromkeys(manager.ready_obs, 0)).values())
    assert obs == [1, 2, 0, 1, 2, 3]
