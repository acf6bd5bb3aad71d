"""The measurement counts steps that advance an env, of all rounds, in every mode."""

from __future__ import annotations

import functools
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from vecenv.envs.toys import BusyEnv, FrameEnv, RaiseAtInit, RaiseAtReset, ToyEnv
from vecenv.errors import ConfigError, EnvError, WorkerDiedError
from vecenv.measurement import measure
from vecenv.measurement.loops import LoopProcesses
from vecenv.measurement.machine import StealMeter, cpu_seconds, describe_machine, usable_cores
from vecenv.measurement.measure import AsyncMode, Mode, SyncMode, Window
from vecenv.measurement.target import action_batches, action_rows, check_env, registered_env, take_rows

SECONDS = 0.02


def test_sync_mode_does_not_count_reset_steps():
    envs = [ToyEnv(length) for length in (1, 2, 3, 10)]
    mode = SyncMode("sync", SyncVectorEnv([functools.partial(_identity, env) for env in envs]), ())
    for _ in range(3):
        before = sum(env.num_steps for env in envs)
        window = mode.run(SECONDS)
        assert window.steps == sum(env.num_steps for env in envs) - before
        assert window.steps < window.batches * len(envs)
    mode.close()


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_workers_count_steps_that_advance_an_env(backend: str):
    lengths = (1, 2, 3, 10)
    mode = measure.vecenv_sync([functools.partial(ToyEnv, length) for length in lengths], backend=backend)
    try:
        windows = []
        while len(windows) < 3 or sum(window.batches for window in windows) < max(lengths):
            before = sum(mode.envs.get_attr("num_steps"))
            windows.append(mode.run(SECONDS))
            assert windows[-1].steps == sum(mode.envs.get_attr("num_steps")) - before
    finally:
        mode.close()
    assert sum(window.steps for window in windows) < sum(window.batches for window in windows) * len(lengths)


def test_async_mode_counts_steps_received_in_the_window():
    envs = ScriptedAsyncEnv(num_envs=5, length=3)
    mode = AsyncMode("async", envs, wait_num=2)
    for _ in range(3):
        first = len(envs.real_rows)
        window = mode.run(SECONDS)
        warm_up = measure._WARM_UP_BATCHES
        received = envs.real_rows[first + warm_up : first + warm_up + int(window.batches)]
        assert window.steps == sum(received)
        assert not envs.queue, "nothing is left under way between windows"
    mode.close()


@pytest.mark.extended
@pytest.mark.parametrize("store", [False, True])
def test_loop_processes_run_together_and_report_in_turn(store: bool):
    loops = LoopProcesses([[FrameEnv] * 2, [FrameEnv]], store=store)
    try:
        for _ in range(2):
            for num_envs, result in zip((2, 1), loops.run(SECONDS), strict=True):
                assert result.steps > 0 and result.steps % num_envs == 0
                assert result.seconds >= SECONDS
                assert result.cpu_seconds > 0
    finally:
        loops.close()


@pytest.mark.extended
@pytest.mark.parametrize("fault", [RaiseAtInit, RaiseAtReset])
def test_loop_reports_a_failing_constructor(fault):
    with pytest.raises(EnvError, match="an env of a plain loop raised .*: toy env"):
        LoopProcesses([[fault]])


class Fails(ToyEnv):
    """Raises in its fifth step the exception that a broken connection raises."""

    def step(self, action):
        if self.elapsed_steps == 4:
            raise ConnectionResetError("no simulator")
        return super().step(action)


class Leaves(ToyEnv):
    """Calls exit in its fifth step, like a script."""

    def step(self, action):
        return super().step(action) if self.elapsed_steps < 4 else sys.exit("enough")


@pytest.mark.extended
@pytest.mark.parametrize(
    ("fault", "says"), [(Fails, "ConnectionResetError: no simulator"), (Leaves, "SystemExit: enough")]
)
def test_loop_reports_an_env_that_raises(fault, says):
    loops = LoopProcesses([[ToyEnv], [fault]])
    try:
        with pytest.raises(EnvError, match=f"an env of a plain loop raised {says}"):
            loops.run(SECONDS)
    finally:
        loops.close()


def test_loop_reports_a_killed_process():
    before = psutil.Process().children()
    loops = LoopProcesses([[ToyEnv]])
    try:
        (child,) = set(psutil.Process().children()).difference(before)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(WorkerDiedError, match="died: killed by SIGKILL") as caught:
            loops.run(SECONDS)
        assert caught.value.exitcode == -9
    finally:
        loops.close()


def test_ceiling_with_fewer_envs_than_cores_repeats_envs(monkeypatch):
    monkeypatch.setattr(measure, "usable_cores", lambda: 3)
    monkeypatch.setattr(measure, "LoopMode", lambda name, shares, **options: shares)
    assert measure.ceiling_loops(["first", "second"]) == [["first"], ["second"], ["first"]]


@pytest.mark.extended
def test_ceiling_distributes_envs_over_cores():
    before = psutil.Process().children()
    mode = measure.ceiling_loops([ToyEnv] * (2 * usable_cores() + 1))
    assert mode._num_envs == 2 * usable_cores() + 1
    assert len(set(psutil.Process().children()).difference(before)) == usable_cores()
    assert mode.run(SECONDS).steps > 0
    mode.close()


@pytest.mark.extended
def test_lockstep_waits_for_the_slower_loop():
    slow, quick = functools.partial(BusyEnv, busy_us=3000), functools.partial(BusyEnv, busy_us=30)
    mode = measure.LoopMode("ceiling", [[slow], [quick] * 2], time_rounds=True)
    try:
        window = mode.run(0.5)
    finally:
        mode.close()
    # during one step of the slow env the fast ones make a hundred, of which a lockstep counts two
    assert window.steps > 30 and window.lockstep is not None and 0 < window.lockstep < 0.5


def test_modes_alternate():
    modes = [ScriptedMode("a", [1, 2, 3]), ScriptedMode("b", [10, 20, 30])]
    turns = list(measure.interleave(modes, SECONDS, rounds=2))
    assert [name for name, _ in turns] == ["a", "b", "a", "b"]
    assert [window.steps for _, window in turns] == [2, 20, 3, 30], "the first windows warm up"


def test_summary_is_the_median_and_ratios_are_quotients_of_printed_rates():
    """A ratio of 4.3 stood beside rates of 203 and 87."""
    modes = [ScriptedMode("plain loop", []), ScriptedMode("fast", [])]
    windows = {
        "plain loop": [Window(100, 10, 1.0, 1.0), Window(50, 5, 1.0, 1.0), Window(200, 20, 1.0, 1.0)],
        "fast": [Window(300, 10, 1.0, 2.0), Window(200, 5, 1.0, 2.0), Window(400, 20, 1.0, 2.0)],
    }
    plain, fast = measure.summarise(modes, windows)
    assert plain.steps_per_second == 100 and plain.ratio_to_plain == 1.0
    assert fast.steps_per_second == 300
    assert fast.ratio_to_plain == 3.0
    windows["plain loop"], windows["fast"] = [Window(1, 1, 3.0, 1.0)] * 3, [Window(2, 1, 3.0, 1.0)] * 3
    assert [one.steps_per_second for one in measure.summarise(modes, windows)] == [0.3333, 0.6667]
    assert measure.summarise(modes, windows)[1].ratio_to_plain == 0.6667 / 0.3333
    assert fast.ratio_to_ceiling is None
    assert fast.us_per_batch == pytest.approx(1e5)
    assert fast.cpu_seconds_per_1000_steps == pytest.approx(1000 * 6 / 900)


def test_env_factories_pickle_and_checked_ones_are_quiet():
    factory = check_env(registered_env("CartPole-v1", {"sutton_barto_reward": True}), "CartPole-v1")
    assert factory == registered_env("CartPole-v1", {"sutton_barto_reward": True}, quiet=True)
    env = pickle.loads(pickle.dumps(factory))()
    assert env.unwrapped._sutton_barto_reward is True
    env.close()
    with pytest.raises(ConfigError, match="no_such_kwarg"):
        check_env(registered_env("CartPole-v1", {"no_such_kwarg": 1}), "CartPole-v1")


@pytest.mark.extended
def test_quiet_env_is_built_where_stderr_is_closed():
    of = "from vecenv.measurement.target import registered_env as of"
    make = f"import os; os.close(2); {of}; of('CartPole-v1', quiet=True)()"
    subprocess.run([sys.executable, "-c", make], check=True, timeout=60)


def test_premade_actions_fit_the_space_and_repeat():
    space = spaces.Discrete(3, start=5)
    batches, rows = action_batches(space, 4), action_rows(space, 4)
    first = [next(batches).tolist() for _ in range(64)]
    assert [next(batches).tolist() for _ in range(64)] == first
    assert [list(map(int, next(rows))) for _ in range(64)] == first
    assert all(space.contains(action) for action in next(rows))


def test_rows_of_nested_actions():
    space = spaces.Dict(
        move=spaces.Box(-1, 1, (2,)),
        keys=spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)]),
        word=spaces.Text(5),
    )
    batch = next(action_batches(space, 6))
    env_ids = np.array([4, 1])
    taken = take_rows(space, batch, env_ids)
    np.testing.assert_array_equal(taken["move"], batch["move"][[4, 1]])
    np.testing.assert_array_equal(taken["keys"][0], batch["keys"][0][[4, 1]])
    np.testing.assert_array_equal(taken["keys"][1], batch["keys"][1][[4, 1]])
    assert taken["word"] == (batch["word"][4], batch["word"][1])


def test_machine_description_and_cpu_time_of_a_dead_process():
    assert usable_cores() >= 1
    assert {"processor", "usable_cores", "system", "python", "numpy", "gymnasium"} <= set(describe_machine())
    assert cpu_seconds(2**22 + 1) == 0.0


@pytest.mark.skipif(sys.platform != "linux", reason="others do not count it")
def test_stolen_time_equals_the_kernels_count(tmp_path: Path, monkeypatch):
    def count(ticks: int) -> None:
        (tmp_path / "stat").write_text(f"cpu  900 0 300 7000 10 0 5 {ticks} 0 0\n")

    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    count(50)
    meter, began = StealMeter(), time.monotonic()
    while time.monotonic() - began < 0.05:
        assert meter.share() == 0.0
    count(51)
    assert 0.0 < meter.share() <= 1 / os.sysconf("SC_CLK_TCK") / 0.05 / psutil.cpu_count()
    count(10**9)
    assert meter.share() == 1.0


def _identity(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    return env


class ScriptedMode(Mode):
    """Returns windows with given numbers of steps."""

    def __init__(self, name: str, steps: list[int]) -> None:
        super().__init__(name)
        self._steps = iter(steps)

    def run(self, seconds: float) -> Window:
        return Window(next(self._steps), 1, seconds, 0.0)

    def close(self) -> None:
        pass


class ScriptedAsyncEnv:
    """Has `send` and `recv` over episodes of fixed length, first in, first out; records which rows were steps."""

    implementation = "python"
    worker_pids = ()

    def __init__(self, num_envs: int, length: int) -> None:
        self.num_envs = num_envs
        self.single_action_space = spaces.Discrete(2)
        self.queue: list[int] = []
        self.real_rows: list[int] = []
        self._length = length
        self._elapsed = np.arange(num_envs) % length

    def reset(self, *, seed: int) -> None:
        pass

    def close(self) -> None:
        pass

    def statistics(self) -> dict[str, int]:
        return {"steps": sum(self.real_rows)}

    def send(self, actions: Any, env_ids: Any = None) -> None:
        env_ids = range(self.num_envs) if env_ids is None else env_ids
        assert len(actions) == len(env_ids)
        assert not set(env_ids) & set(self.queue)
        self.queue.extend(env_ids)

    def recv(self, min_count: int) -> tuple[Any, ...]:
        env_ids = np.array(self.queue[:min_count])
        del self.queue[:min_count]
        only_resets = self._elapsed[env_ids] == self._length
        self._elapsed[env_ids] = np.where(only_resets, 0, self._elapsed[env_ids] + 1)
        self.real_rows.append(int(np.count_nonzero(~only_resets)))
        terminated = self._elapsed[env_ids] == self._length
        return env_ids, np.zeros(len(env_ids)), terminated, np.zeros_like(terminated), {"env_id": env_ids}
