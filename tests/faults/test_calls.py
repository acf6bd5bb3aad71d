"""Calls and deaths: a call runs once, its answer arrives once, and its payload is never missing."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from typing import Any

import numpy as np
import pytest

from tests.faults.traces import kill, play, recovering_pool, stopped, wait_until
from vecenv import Timeouts, VectorEnv, WorkerDiedError, WorkerTimeoutError
from vecenv.core.host.host import Host
from vecenv.envs import toys
from vecenv.errors import EnvError
from vecenv.gymnasium_api.replaying import is_replaying


class Tunable(toys.CountEnv):
    """Observes an attribute that the caller sets, and the number of pokes."""

    gain = 1.0
    pokes = 0

    def observe(self) -> Any:
        obs = super().observe()
        obs[1] = 100.0 * self.pokes + self.gain
        return obs

    def poke(self) -> int:
        self.pokes += 1
        return self.pokes


@pytest.mark.extended
def test_attributes_and_calls_survive_a_recovery(implementation: str) -> None:
    def run(kills: dict[int, int]) -> list[Any]:
        env = VectorEnv([functools.partial(Tunable, 6)] * 4, num_workers=2)
        seen: list[Any] = [env.reset(seed=5)]
        for number in range(1, 25):
            if number in kills:
                kill(env, kills[number])  # type: ignore[arg-type]
            if number in (3, 9):
                env.set_attr("gain", [float(number + env_id) for env_id in range(4)])
            if number in (4, 14):
                seen.append(env.call("poke"))
            obs, rewards, terminated, truncated, infos = env.step(np.full(4, number % 2))
            infos.pop("recovered", None), infos.pop("_recovered", None)
            seen.append((obs.tobytes(), rewards.tobytes(), terminated.tobytes(), sorted(infos)))
        seen.append((env.get_attr("gain"), env.get_attr("pokes")))
        env.close()
        return seen[1:]

    assert run({2: 0, 4: 1, 5: 0, 9: 0, 11: 1, 14: 1, 15: 1, 20: 0, 24: 1}) == run({})


@pytest.mark.extended
def test_call_that_kills_once_is_repeated(implementation: str, tmp_path: Any) -> None:
    def poke(env: Any) -> int:
        value: int = env.unwrapped.poke()
        if not os.path.exists(tmp_path / "struck") and env.unwrapped.seed_given == 2:
            open(tmp_path / "struck", "x").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return value

    with recovering_pool([functools.partial(Tunable, 6)] * 4) as pool:
        play(pool, 9)
        assert pool.call(poke) == [1, 1, 1, 1]
        assert pool.call(poke) == [2, 2, 2, 2]
        assert pool.statistics()["restarts"] == 1


@pytest.mark.extended
def test_call_beside_running_steps_is_made_once(implementation: str) -> None:
    with recovering_pool([functools.partial(Tunable, 6)] * 4) as pool:
        play(pool, 9)
        pool.send(np.zeros(4, np.int64))
        pool.submit_calls([Tunable.poke] * 4)
        kill(pool, 0)
        kill(pool, 1)
        assert pool.collect_calls() == [1, 1, 1, 1]
        batch = pool.recv()
        batch.raise_errors()
        # the calls were sent after the step, so the step's row contains no poke
        assert (batch.obs[:, 1] == 1.0).all()


class _DiesAfterItsAnswer:
    """Wraps a slot: its worker is killed after it has sent an answer and before it continues."""

    def __init__(self, slot: Any) -> None:
        self._slot = slot

    def __getattr__(self, name: str) -> Any:
        return getattr(self._slot, name)

    def finish(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def last_poke(env: Any) -> int:
    """Poke the env. Its worker dies right after the answer, except in a replay."""
    if not is_replaying():
        frame: Any = sys._getframe()
        while not isinstance(host := frame.f_locals.get("self"), Host):
            frame = frame.f_back
        host._slot = _DiesAfterItsAnswer(host._slot)  # type: ignore[assignment]
    value: int = env.unwrapped.poke()
    return value


@pytest.mark.extended
@pytest.mark.parametrize("pure", [False, True])
def test_call_whose_answer_was_taken_is_not_repeated(pure: bool, implementation: str) -> None:
    with recovering_pool([functools.partial(Tunable, 6)] * 4) as pool:
        play(pool, 9)
        assert pool.call(last_poke, [1], pure=pure) == [1]
        for _ in range(2):
            pool.send(np.zeros(4, np.int64))
            batch = pool.recv(timeout=60)
        assert pool.statistics()["restarts"] == 1, "the answer came, so the call is not repeated"
        assert batch.obs[:, 1].tolist() == [1.0, 1.0 if pure else 101.0, 1.0, 1.0]


class Gated(Tunable):
    """Waits for a file in a step with action 2."""

    def __init__(self, file: str) -> None:
        super().__init__(6, num_actions=3)
        self._file = file

    def step(self, action: Any) -> Any:
        if action == 2:
            wait_until(lambda: os.path.exists(self._file))
        return super().step(action)


def test_call_between_superseded_commands_is_not_repeated(implementation: str, tmp_path: Any) -> None:
    with recovering_pool([functools.partial(Gated, str(tmp_path / "go"))] * 2, num_workers=1) as pool:
        pool.start()
        pool.reset(seeds=[0, 1])
        pool.recv()
        pool.send(np.array([2, 1]), [0, 1], ordered=False)
        pool.submit_calls([last_poke], [1])
        pool.reset([1], seeds=[5], ordered=False)  # supersedes the step, which is then not answered
        open(tmp_path / "go", "x").close()
        assert pool.collect_calls(60) == [1]
        first, second = sorted((pool.recv(1, exact=True, timeout=60) for _ in range(2)), key=lambda one: one.env_ids[0])
        assert (first.lengths[0], second.lengths[0], second.seeds[0]) == (1, 0, 5)
        assert pool.statistics()["restarts"] == 1


class DiesInReset(toys.ToyEnv):
    """Is killed in its first reset with options, and returns the options in the info of the next one."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if options and not os.path.exists(options["struck"]):
            open(options["struck"], "x").close()
            os.kill(os.getpid(), signal.SIGKILL)
        obs, _ = super().reset(seed=seed, options=options)
        return obs, {"size": len(options["blob"]) if options else 0}


@pytest.mark.extended
def test_reset_with_a_payload_larger_than_the_journal_is_repeated(implementation: str, tmp_path: Any) -> None:
    size = 50_000
    with recovering_pool([DiesInReset] * 2, num_workers=1, max_log_bytes=4096) as pool:
        pool.start()
        pool.reset(seeds=[0, 1])
        pool.recv()
        options = {"blob": b"x" * size, "struck": str(tmp_path / "struck")}
        pool.reset(kwargs=[{"options": options}] * 2)
        batch = pool.recv(timeout=60)
        assert [info["size"] for info in batch.infos()] == [size, size]
        assert pool.statistics()["restarts"] == 1


def test_superseded_step_does_not_take_the_payload_of_the_reset(implementation: str, tmp_path: Any) -> None:
    with recovering_pool([DiesInReset], num_workers=1, max_log_bytes=4096) as pool:
        pool.start()
        pool.reset(seeds=[0])
        pool.recv()
        with stopped(pool.worker_pids):
            # the first command in the queue is known to be superseded without a check
            pool.submit_calls([lambda env: 7])
            pool.send_objects([1], [0], ordered=False)
            pool.reset(kwargs=[{"options": {"blob": b"x" * 50_000, "struck": str(tmp_path)}}], ordered=False)
            kill(pool, 0)
        with pytest.warns(RuntimeWarning, match="env 0 answered after it was built again"):
            assert pool.collect_calls(30) == [7]
        (info,) = pool.recv(timeout=30).infos()
        assert info["size"] == 50_000


class Unloadable:
    """Can be pickled anywhere, but unpickled only in the process that made it."""

    def __reduce__(self) -> Any:
        return come_back, (os.getpid(),)


def come_back(pid: int) -> Unloadable:
    if pid != os.getpid():
        raise LookupError("made elsewhere")
    return Unloadable()


def test_unreadable_answer_does_not_lose_others(implementation: str) -> None:
    with recovering_pool([functools.partial(Tunable, 6)] * 3, num_workers=1) as pool:
        play(pool, 9)
        pool.submit_calls([lambda env: Unloadable(), Tunable.poke, Tunable.poke])
        with pytest.raises(EnvError, match="LookupError: made elsewhere"):
            pool.collect_calls(60)
        pool.send(np.zeros(3, np.int64))
        pool.recv(timeout=60).raise_errors()
        assert pool.call(Tunable.poke) == [1, 2, 2]


class WaitsInReplay(toys.ToyEnv):
    """Creates a file before it replays steps, and then waits for a file."""

    def __init__(self, folder: str) -> None:
        super().__init__(10)
        self._folder = folder

    def step(self, action: Any) -> Any:
        if is_replaying():
            open(f"{self._folder}/begun", "a").close()
            wait_until(lambda: os.path.exists(f"{self._folder}/go"))
        return super().step(action)


@pytest.mark.extended
def test_action_sent_while_its_env_is_restored_for_a_call_arrives(implementation: str, tmp_path: Any) -> None:
    def die_once(env: Any) -> str:
        if not os.path.exists(tmp_path / "struck"):
            open(tmp_path / "struck", "x").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return "lives"

    with recovering_pool([functools.partial(WaitsInReplay, str(tmp_path))] * 2) as pool:
        pool.start()
        pool.reset(seeds=[0, 1])
        pool.recv()
        for _ in range(2):
            pool.send(np.ones(2, np.int64))
            pool.recv()
        pool.submit_calls([die_once], [0])
        while not pool.statistics()["restarts"]:  # a wait notices the death; env 1 continues during the restart
            pool.send(np.ones(1, np.int64), [1], ordered=False)
            pool.recv(timeout=60)
        wait_until(lambda: os.path.exists(tmp_path / "begun"))
        # its earlier steps, all with action 1, are replayed only now
        pool.send(np.zeros(1, np.int64), [0], ordered=False)
        open(tmp_path / "go", "x").close()
        assert pool.collect_calls(60) == ["lives"]
        batch = pool.recv(timeout=60)
        assert batch.obs[0, :2].tolist() == [3.0, 2.0], "steps, and the sum of their actions"


@pytest.mark.extended
@pytest.mark.parametrize("pure", [False, True])
def test_abandoned_call_does_not_delay_the_successor(pure: bool, implementation: str, tmp_path: Any) -> None:
    def wait(env: Any) -> None:
        wait_until(lambda: os.path.exists(tmp_path / "go"))

    with recovering_pool([functools.partial(Tunable, 6)] * 4) as pool:
        play(pool, 9)
        pool.submit_calls([wait], [0], pure=pure)
        with pytest.raises(TimeoutError):
            pool.collect_calls(0.01)
        kill(pool, 0)
        open(tmp_path / "go", "x").close()
        pool.send(np.zeros(4, np.int64))
        pool.recv(timeout=60).raise_errors()
        assert pool.call(Tunable.poke) == [1, 1, 1, 1]
        assert pool.statistics()["restarts"] == 1


def _hang(env: Any) -> None:
    time.sleep(60)


def test_worker_that_the_pool_has_killed_is_not_said_to_be_a_victim_of_the_system() -> None:
    """The call hung twice, and later errors named the memory killer of the system."""
    with VectorEnv([toys.ToyEnv] * 2, num_workers=2, timeouts=Timeouts(call=0.2)) as envs:
        envs.reset(seed=0)
        with pytest.raises(WorkerTimeoutError):
            envs.pool.call(_hang)
        with pytest.raises(WorkerDiedError, match="killed by its pool"):
            envs.step(np.zeros(2, np.int64))
