"""`envs.report()` of real pools: planted causes, and every front end. See also tests/core/advice/test_rules.py."""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import numpy as np
import pytest

import vecenv
from tests.one_core import run_on_one_core
from vecenv import Report, VectorEnv
from vecenv.core.processes.worker import core_limit, usable_cores
from vecenv.envs.toys import FrameEnv, NullEnv
from vecenv.errors import StateError


class Sleeps(NullEnv):
    """Sleeps `seconds` at each step, `tail` at each 20th, and `reset_seconds` in a reset; episodes have 10 steps."""

    def __init__(self, seconds: float = 0.0, tail: float = 0.0, reset_seconds: float = 0.0) -> None:
        super().__init__()
        self.seconds, self.tail, self.reset_seconds = seconds, tail or seconds, reset_seconds
        self.num_done = 0

    def reset(self, **kwargs: Any) -> Any:
        time.sleep(self.reset_seconds)
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.num_done += 1
        time.sleep(self.tail if self.num_done % 20 == 0 else self.seconds)
        return self._obs, 1.0, self.reset_seconds > 0 and self.num_done % 10 == 0, False, {}


class WithLog(NullEnv):
    """Returns an info that must be pickled."""

    log = tuple(str(line) for line in range(5_000))

    def step(self, action: Any) -> Any:
        return self._obs, 1.0, False, False, {"lives": 3, "log": self.log}


class OwnThreads(NullEnv):
    """Hashes in four threads, as a library with threads of its own computes."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = ThreadPoolExecutor(4)
        self.data = bytes(4 << 20)

    def step(self, action: Any) -> Any:
        for _ in self.threads.map(hashlib.sha256, [self.data] * 4):
            pass
        return self._result

    def close(self) -> None:
        self.threads.shutdown()


def report_of(env_fns: list[Any], *, steps: int = 60, seconds: float = 0.4, policy: float = 0.0, **options: Any) -> Any:
    """Step envs at least so often and so long; return the report by name of verdict."""
    with VectorEnv(env_fns, **options) as envs:
        envs.reset(seed=0)
        actions = np.zeros(envs.num_envs, np.int64)
        until = time.monotonic() + seconds
        num = 0
        while num < steps or time.monotonic() < until:
            envs.step(actions)
            num += 1
            if policy:
                time.sleep(policy)
        report = envs.report()
    assert isinstance(report, Report)
    return {verdict.name: verdict for verdict in report}


CHEAP_ENVS = """
import numpy as np
from vecenv import VectorEnv
from vecenv.envs.toys import NullEnv

with VectorEnv([NullEnv], num_workers=1) as envs:
    envs.reset(seed=0)
    for _ in range(50_000):
        envs.step(np.zeros(1, np.int64))
    print(*(f"{one.name}|{one.number}|{one.gain_high}|{one.setting}" for one in envs.report()), sep="\\n")
"""


def test_cheap_envs():
    """On one core, each step needs two switches between processes; with idle cores a hand-over is almost free."""
    name, number, gain, setting = run_on_one_core(CHEAP_ENVS, "cheap envs")[0].split("|")
    assert name == "cheap envs" and float(number) < 200e-6 and float(gain) > 1.2 and "backend='serial'" in setting


@pytest.mark.extended
def test_healthy_pool_has_no_verdict():
    """Each env sleeps in a worker of its own: no other setting is faster."""
    assert report_of([lambda: Sleeps(0.02)] * 2, num_workers=2) == {}


def test_one_process_of_slow_envs():
    if usable_cores() < 2:
        pytest.skip("there is one core")
    assert report_of([lambda: Sleeps(0.005)] * 4, backend="serial", steps=30).keys() == {"one process"}


@pytest.mark.extended
def test_stragglers():
    verdict = report_of([lambda: Sleeps(0.002, tail=0.1), lambda: Sleeps(0.002)], num_workers=2)["stragglers"]
    assert verdict.number > 4 and "recv" in verdict.setting


@pytest.mark.extended
def test_slow_resets():
    found = report_of([lambda: Sleeps(0.001, reset_seconds=0.08), lambda: Sleeps(0.001)], num_workers=2)
    assert found["slow resets"].number > 0.05 and found["slow resets"].gain > 1.2


@pytest.mark.extended
def test_waiting_envs():
    found = report_of([lambda: Sleeps(0.003)] * 16, num_workers=2, steps=25)
    assert "threads_per_worker" in found["waiting envs"].setting


@pytest.mark.extended
def test_slow_policy():
    verdict = report_of([NullEnv] * 4, num_workers=2, policy=0.02)["slow policy"]
    assert verdict.number > 0.5


@pytest.mark.extended
def test_too_many_threads():
    if usable_cores() > 4:
        pytest.skip("there is a core for each thread")
    found = report_of([OwnThreads] * 2, num_workers=2)
    assert found["too many threads"].number > 2 and "waiting envs" not in found


@pytest.mark.extended
def test_pickled_infos():
    found = report_of([WithLog] * 2, num_workers=2)
    assert "'log'" in found["pickled infos"].cause and found["pickled infos"].number > 20_000


@pytest.mark.extended
def test_copies_are_a_share_of_the_caller():
    """DISABLED mode lends no batches."""
    with VectorEnv([FrameEnv] * 32, num_workers=2, autoreset_mode="Disabled") as envs:
        envs.reset(seed=0)
        for _ in range(100):
            envs.step(np.zeros(32, np.int64))
        caller = envs.statistics().caller
    assert 0.01 < caller.copying_share < 1
    assert caller.waiting_share + caller.copying_share + caller.outside_share == pytest.approx(1)
    assert caller.outside_share >= 0


@pytest.mark.extended
def test_lent_and_small_batches_have_no_copies():
    for env_fn, count in ((FrameEnv, 8), (NullEnv, 2)):
        with VectorEnv([env_fn] * count, num_workers=1) as envs:
            envs.reset(seed=0)
            while not envs.statistics().caller.seconds:  # a busy machine may delay the caller until rows have come
                envs.step(np.zeros(count, np.int64))
            for _ in range(10):
                envs.step(np.zeros(count, np.int64))
            assert env_fn is NullEnv or envs.implementation == "python" or envs.statistics().caller.copying_share == 0


@pytest.mark.extended
def test_slow_core():
    """All envs of one worker are slower than those of the others."""
    found = report_of([lambda: Sleeps(0.002)] * 2 + [lambda: Sleeps(0.04)] * 2, num_workers=2, steps=30)
    assert "worker 1" in found["slow core"].cause and "stragglers" not in found


FEW_CORES = """
import numpy as np
from vecenv import VectorEnv
from vecenv.envs.toys import BusyEnv

with VectorEnv([lambda: BusyEnv(5000)] * 2, num_workers=2) as envs:
    envs.reset(seed=0)
    for _ in range(60):
        envs.step(np.zeros(2, np.int64))
    print(envs.report())
"""


@pytest.mark.extended
def test_too_few_cores():
    if usable_cores() < 2:
        pytest.skip("there is one core")
    lines = run_on_one_core(FEW_CORES, "too few cores")
    assert any(line.startswith("too few cores: 2 workers share 1 core") for line in lines), lines
    assert any("the CPU affinity" in line for line in lines), lines


def test_core_limit_names_the_cause(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 10_000)
    assert core_limit() in ("the CPU affinity of this process", "cpu.max of the cgroup")
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert core_limit() == ""


# ---- front ends ---------------------------------------------------------------------------------


FRONT_ENDS = {
    "VectorEnv": lambda: VectorEnv([NullEnv] * 2, backend="serial"),
    "BatchedVectorEnv": lambda: vecenv.BatchedVectorEnv(
        [lambda: gymnasium.make_vec("CartPole-v1", 4)], backend="serial"
    ),
    "ALF": lambda: vecenv.alf.create_environment(
        "CartPole-v1", num_parallel_environments=2, tensors=False, backend="serial"
    ),
}


@pytest.mark.parametrize("name", FRONT_ENDS)
def test_report_without_steps_and_after_close(name: str):
    envs = FRONT_ENDS[name]()
    assert envs.report().note.startswith("too little was measured")
    envs.close()
    assert "not open" in envs.report().note and len(envs.report()) == 0


def test_report_without_timings_says_so():
    with VectorEnv([NullEnv] * 2, num_workers=1, engine={"timings": False}) as envs:
        envs.reset()
        assert "timings=False" in envs.report().note


@pytest.mark.parametrize(
    "kind, advice",
    [
        (vecenv.ding.BaseEnvManager, ""),  # none on one core
        (vecenv.ding.SyncSubprocessEnvManager, "AsyncSubprocessEnvManager with wait_num"),
        (vecenv.ding.GymVectorEnvManager, "send() and recv(num_envs // 2)"),
    ],
)
def test_managers_have_reports(kind: Any, advice: str):
    stragglers = [lambda: Sleeps(0.002, tail=0.1), lambda: Sleeps(0.002)]
    manager = kind(stragglers, kind.default_config())
    if kind is not vecenv.ding.GymVectorEnvManager:
        with pytest.raises(StateError, match="launch the manager first"):
            manager.report()
    manager.launch()
    try:
        for _ in range(40):
            manager.step(dict.fromkeys(manager.ready_obs, 0))
        assert advice in str(manager.report())
    finally:
        manager.close()


CHEAP_ENVS_OF_A_MANAGER = """
import vecenv
from vecenv.envs.toys import NullEnv

manager = vecenv.ding.SyncSubprocessEnvManager([NullEnv], vecenv.ding.SyncSubprocessEnvManager.default_config())
manager.launch()
for _ in range(10_000):
    manager.step({0: 0})
print(str(manager.report()).replace("\\n", " "))
manager.close()
"""


@pytest.mark.extended
def test_report_of_a_manager_names_its_own_settings():
    assert "BaseEnvManager" in run_on_one_core(CHEAP_ENVS_OF_A_MANAGER, "cheap envs")[0]


@pytest.mark.extended
def test_sb3_has_a_report():
    sb3 = pytest.importorskip("vecenv.integrations.sb3", exc_type=ImportError)
    with sb3.SB3VecEnv([lambda: Sleeps(0.003)] * 16, num_workers=2) as envs:
        envs.reset()
        for _ in range(25):
            envs.step(np.zeros(16, np.int64))
        assert "threads_per_worker" in str(envs.report())


CHEAP_ENVS_OF_SB3 = """
import numpy as np
from vecenv.envs.toys import NullEnv
from vecenv.integrations.sb3 import SB3VecEnv

with SB3VecEnv([NullEnv], num_workers=1) as envs:
    envs.reset()
    for _ in range(50_000):
        envs.step(np.zeros(1, np.int64))
    print(str(envs.report()).replace("\\n", " "))
"""


@pytest.mark.extended
def test_report_of_sb3_names_its_own_settings():
    pytest.importorskip("vecenv.integrations.sb3", exc_type=ImportError)
    assert "backend='serial'" in run_on_one_core(CHEAP_ENVS_OF_SB3, "cheap envs")[0]
