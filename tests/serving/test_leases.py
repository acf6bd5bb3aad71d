"""Leased envs: the same rows as those of envs of one's own, in lease after lease, in every front end."""

from __future__ import annotations

import functools
import math
import os
import signal
import threading
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest

import vecenv
from tests.faults.traces import wait_until
from tests.serving.programs import ServerProgram, comparable, play, rows_of, serving
from vecenv import ConfigError, PerformanceWarning, ShortageError, VectorEnv, WorkerTimeoutError
from vecenv.ding import create_env_manager
from vecenv.envs import toys

MAKE_CARTPOLE = functools.partial(gymnasium.make, "CartPole-v1")


def test_leased_envs_answer_as_own_ones_in_each_lease() -> None:
    own = rows_of([MAKE_CARTPOLE] * 4)
    with serving(workers=2, envs_per_worker=2) as server:
        for _ in range(3):
            with VectorEnv(server.lease(4)) as envs:
                pids = envs.pool.worker_pids
                assert play(envs) == own
            server.await_idle(2)
            with VectorEnv(server.lease(4)) as envs:  # another program has used them in between
                assert envs.pool.worker_pids == pids
                play(envs, 7, seed=1)
            server.await_idle(2)


#: All toys whose steps do not fail.
TOYS = [toys.ToyEnv, toys.CountEnv, toys.NullEnv, toys.FrameEnv, toys.BusyEnv, toys.SleepEnv, toys.FixedSleepEnv]
TOYS += [toys.KeepsAction, toys.KeepsInfo, toys.KeepsOptions, toys.NoisyGlobal, toys.SpaceEnv, toys.AliasedObs]
TOYS += [toys.LeaksMemory, toys.HugeInfo]


@pytest.mark.extended
@pytest.mark.parametrize("rebuild", ["if-needed", "always"])
def test_every_toy_answers_as_a_new_one_in_each_lease(rebuild: str) -> None:
    tables = [
        f'[{kind.__name__}]\nfactory = "vecenv.envs.toys:{kind.__name__}"\nrebuild = "{rebuild}"' for kind in TOYS
    ]
    with serving(workers=1, others="\n".join(tables)) as server:
        for kind in TOYS:
            own = rows_of([kind])
            for number in range(2):
                server.await_idle(1, kind.__name__)
                assert rows_of(server.lease(1, kind.__name__)) == own, f"{kind.__name__}, lease {number}"


def test_envs_that_calls_have_changed_are_rebuilt() -> None:
    own = rows_of([MAKE_CARTPOLE] * 2)
    with serving() as server:
        with VectorEnv(server.lease(2)) as envs:
            pids = envs.pool.worker_pids
            envs.set_attr("gravity", 1.0)
            assert play(envs) != own
        server.await_idle(2)
        with VectorEnv(server.lease(2)) as envs:
            assert play(envs) == own and not set(envs.pool.worker_pids) & set(pids)
            assert envs.get_attr("gravity") == (9.8, 9.8)


@pytest.mark.extended
def test_envs_that_are_never_rebuilt_stay_in_their_state_and_are_marked() -> None:
    with serving(rebuild='"never"') as server:
        with VectorEnv(server.lease(2)) as envs:
            pids = envs.pool.worker_pids
            envs.set_attr("gravity", 1.0)
            assert [one["is_marked"] for one in server.leases()] == [True]
        server.await_idle(2)
        with VectorEnv(server.lease(2)) as envs:
            assert envs.get_attr("gravity") == (1.0, 1.0) and envs.pool.worker_pids == pids


def test_killed_leased_worker_is_replaced_by_an_idle_one_and_no_row_differs() -> None:
    own = rows_of([MAKE_CARTPOLE] * 2)
    with serving(workers=3) as server:
        with VectorEnv(server.lease(2)) as envs:
            before = envs.pool.worker_pids
            found = play(envs, 10)
            os.kill(before[0], signal.SIGKILL)
            found += [comparable(envs.step(envs.action_space.sample())) for _ in range(20)]
            assert found == own
            assert envs.pool.worker_pids[0] != before[0] and envs.pool.worker_pids[1] == before[1]
        server.await_idle(3)


@pytest.mark.extended
def test_fallback_without_c_leases_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VECENV_IMPLEMENTATION", "python")
    own = rows_of([MAKE_CARTPOLE] * 2)
    with serving() as server:
        for _ in range(2):
            assert rows_of(server.lease(2)) == own
            server.await_idle(2)


# ---- front ends ---------------------------------------------------------------------------------


def _push_left(obs: Any, env_id: Any) -> Any:
    return np.zeros(len(obs), int)


@pytest.mark.extended
def test_managers_collectors_and_evaluations_take_leased_envs() -> None:
    with serving(workers=2) as server:
        envs = server.lease(2)
        with create_env_manager({"type": "subprocess", "shared_memory": True}, envs) as manager:
            manager.seed(0)
            manager.launch()
            assert sorted(manager.step(manager.random_action())) == [0, 1]
        server.await_idle(2)
        ours = vecenv.evaluate(envs[0], _push_left, seeds=[1, 2, 3], num_envs=2)
        assert ours.returns.tolist() == vecenv.evaluate("CartPole-v1", _push_left, seeds=[1, 2, 3]).returns.tolist()
        server.await_idle(2)
        with VectorEnv(envs) as own:
            assert len(next(vecenv.Collector(own, _push_left, batch_steps=8))) == 8
        server.await_idle(2)


def test_saved_state_continues_in_leased_envs() -> None:
    with serving(workers=2) as server:
        with VectorEnv(server.lease(2)) as envs:
            play(envs, 5)
            state = envs.state_dict()
            expected = comparable(envs.step(np.array([0, 1])))
        server.await_idle(2)
        with VectorEnv(server.lease(2)) as envs:
            envs.load_state_dict(state)
            assert comparable(envs.step(np.array([0, 1]))) == expected
        server.await_idle(2)


def test_spare_envs_are_leased_as_well() -> None:
    with serving(workers=2, envs_per_worker=2) as server:
        with VectorEnv(server.lease(2), num_spare_envs=2) as envs:
            assert len(envs.worker_pids) == 2
            play(envs)
        server.await_idle(2)


def test_ctrl_c_ends_the_wait_for_a_lease() -> None:
    with serving(workers=1) as server, VectorEnv(server.lease(1)):
        killer = threading.Thread(target=lambda: _interrupt_when_waiting(server))
        killer.start()
        with pytest.raises(KeyboardInterrupt):
            VectorEnv(server.lease(1))
        killer.join()
        wait_until(lambda: len(server.leases()) == 1)


def _interrupt_when_waiting(server: ServerProgram) -> None:
    wait_until(lambda: [one["is_granted"] for one in server.leases()] == [True, False])
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.extended
def test_stable_baselines_takes_leased_envs() -> None:
    pytest.importorskip("stable_baselines3", exc_type=ImportError)
    from vecenv.integrations.sb3 import SB3VecEnv

    with serving(workers=2) as server:
        found = []
        for env_fns in (server.lease(2), [MAKE_CARTPOLE] * 2):
            envs = SB3VecEnv(env_fns)
            envs.seed(3)
            found.append([envs.reset().tolist(), envs.step(np.array([0, 1]))[0].tolist()])
            envs.close()
        assert found[0] == found[1]
        server.await_idle(2)


def test_wrappers_around_leased_envs_end_with_the_lease() -> None:
    with serving(workers=2) as server:
        wrapped = [functools.partial(_limited, one) for one in server.lease(2)]
        with VectorEnv(wrapped) as envs:
            envs.reset(seed=1)
            assert [bool(envs.step(np.array([0, 1]))[3].all()) for _ in range(3)] == [False, False, True]
        server.await_idle(2)
        with VectorEnv(server.lease(2)) as envs:
            envs.reset(seed=1)
            assert not any(envs.step(np.array([0, 1]))[3].any() for _ in range(3))


def _limited(env_fn: Any) -> Any:
    return gymnasium.wrappers.TimeLimit(env_fn(), 3)


# ---- bad input ----------------------------------------------------------------------------------


def test_wrong_requests_are_refused_in_one_line() -> None:
    with serving(workers=2, reserve="{eval = 1}", max="{few = 1}") as server:
        for num_envs, options, text in (
            (1, {"name": "emv"}, "unknown env 'emv'; did you mean 'env'"),
            (3, {}, "3 workers of 1 envs are needed, and there are 2"),
            (2, {}, "2 workers of 1 envs are needed, and 1 of 2 are reserved for others"),
            (2, {"client": "few"}, "1 of 2 are reserved|may have 1"),
        ):
            with pytest.raises(ConfigError, match=text):
                VectorEnv(server.lease(num_envs, **options))
        for options, text in (
            ({"num_workers": 3}, "num_workers=3: the env server has 1 envs 'env' in each worker, so 1 envs are in 1"),
            ({"threads_per_worker": 2}, "threads_per_worker: leased"),
        ):
            with pytest.raises(ConfigError, match=text):
                VectorEnv(server.lease(1), **options)
        with pytest.raises(ConfigError, match="env 'env' is leased: .* backend='process'"):
            VectorEnv(server.lease(1), backend="serial")
        with pytest.raises(ConfigError, match="all envs of a pool must be of one lease"):
            VectorEnv([*server.lease(1), MAKE_CARTPOLE])
        with pytest.raises(ConfigError, match="all envs of a pool must be of one lease"):
            VectorEnv([*server.lease(1), *server.lease(1, client="eval")])
        server.await_idle(2)


def test_missing_server_is_an_error_that_names_the_command(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="no env server answers at .*start one with `vecenv serve`"):
        VectorEnv(vecenv.lease("env", 1, socket=str(tmp_path / "s")))
    for arguments, text in ((("", 1), "name: expected a text"), (("env", 0), "num_envs")):
        with pytest.raises(ConfigError, match=text):
            vecenv.lease(*arguments)


# ---- quotas and limits ---------------------------------------------------------------------------


def test_reserve_is_granted_while_others_hold_and_want_everything_else() -> None:
    with serving(workers=3, reserve="{eval = 1}") as server, VectorEnv(server.lease(2)):
        with pytest.raises(WorkerTimeoutError, match="has not granted 1 envs 'env' to client 'default' within 0.1 s"):
            VectorEnv(server.lease(1, timeout=0.1))
        with VectorEnv(server.lease(1, client="eval")) as envs:
            envs.reset(seed=1)
            assert {(one["client"], one["workers"]) for one in server.leases()} == {("default", 2), ("eval", 1)}


def test_lease_ends_after_max_seconds() -> None:
    with serving(workers=1) as server:
        with VectorEnv(server.lease(1, max_seconds=0.5)) as envs:
            envs.reset(seed=1)
            with pytest.raises(ShortageError, match=r"its 0.5 seconds are over \(max_seconds\)"):
                while True:
                    envs.step(np.array([0]))
        server.await_idle(1)


def step_often(envs: VectorEnv) -> None:
    for _ in range(300):
        envs.step(envs.action_space.sample())


def test_advice_for_a_leased_pool_names_settings_of_the_server() -> None:
    """It recommended numbers of workers and threads, which are errors for leased envs."""
    with serving("vecenv.envs.toys:SleepEnv", workers=2, envs_per_worker=4) as server:
        with VectorEnv(server.lease(8)) as envs:
            envs.reset(seed=1)
            with pytest.warns(PerformanceWarning) as caught:
                step_often(envs)
            verdicts = {one.name: one.setting for one in envs.report()}
        for text in (str(caught[0].message), verdicts["waiting envs"]):
            assert "envs_per_worker=1 at the env server" in text
            assert "num_workers" not in text and "threads_per_worker" not in text


@pytest.mark.extended
def test_limits_may_be_infinite() -> None:
    with serving(workers=1, max_seconds="inf", close_seconds="inf") as server:
        VectorEnv(server.lease(1, max_seconds=math.inf, timeout=math.inf)).close()
        server.await_idle(1)


@pytest.mark.extended
def test_niceness_of_a_client_ends_with_its_lease() -> None:
    with serving(workers=1, nice="{batch = 7}") as server:
        with VectorEnv(server.lease(1, client="batch")) as envs:
            assert psutil.Process(envs.pool.worker_pids[0]).nice() == 7
        server.await_idle(1)
        with VectorEnv(server.lease(1)) as envs:
            assert psutil.Process(envs.pool.worker_pids[0]).nice() == 0


def descriptors_of(server: ServerProgram) -> list[int]:
    """Return the numbers of descriptors of the server and of its workers."""
    workers = psutil.Process(server.process.pid).children()
    return [server.num_descriptors(), *sorted(worker.num_fds() for worker in workers)]


@pytest.mark.parametrize("count", [10, pytest.param(1000, marks=pytest.mark.slow)])
def test_leases_leave_no_descriptor_or_process(count: int) -> None:
    with serving(workers=2) as server:
        rows_of(server.lease(2), 2)
        server.await_idle(2)
        before = descriptors_of(server)
        for _ in range(count):
            rows_of(server.lease(2), 2)
        server.await_idle(2)
        wait_until(lambda: descriptors_of(server) == before)
