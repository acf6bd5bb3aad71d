"""Envs with process-wide state are found: copies that share a process disturb each other."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.scripted import Ding
from vecenv.ding import DingEnvWrapper, TwoAgentEnv
from vecenv.envs.check.check import CheckError, check_all
from vecenv.envs.check.interpreters import play_copies, sharing_violations

COUNTER = """
import gymnasium
import numpy as np
from gymnasium import spaces

steps = 0

class CounterEnv(gymnasium.Env):
    \"\"\"Every fourth step of all envs together has a reward of 1.\"\"\"

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        global steps
        super().reset(seed=seed)
        steps = self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        global steps
        steps += 1
        self.count += 1
        return np.zeros(2, np.float32), float(steps % 4 == 0), self.count == 9, False, {}
"""


@pytest.fixture
def counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "counter_env.py").write_text(COUNTER)
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("counter_env")
    del sys.modules["counter_env"]


@pytest.mark.extended
def test_module_level_counter_is_process_wide_state(counter: Any) -> None:
    (found,) = sharing_violations(counter.CounterEnv, 0)
    assert found.rule == "sharing"
    assert "(episode 0 differs, reward of step 3)" in found.message
    assert "num_workers=num_envs" in found.message
    with pytest.raises(CheckError) as caught:
        check_all(counter.CounterEnv(), env_fn=counter.CounterEnv)
    assert [violation.rule for violation in caught.value.violations] == ["sharing"]


@pytest.mark.extended
@pytest.mark.parametrize(
    "env_fn",
    [
        lambda: gymnasium.make("CartPole-v1"),
        Ding,
        TwoAgentEnv,
        lambda: DingEnvWrapper(cfg={"env_id": "CartPole-v1"}),
    ],
)
def test_envs_that_keep_their_state_share_a_process(env_fn: Any) -> None:
    assert list(sharing_violations(env_fn, 0)) == []


class Draws(gymnasium.Env[Any, Any]):
    """Draws from NumPy's global generator, of which every env has its own state in a worker."""

    observation_space = spaces.Box(0.0, 1.0, (2,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.random.uniform(size=2).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        return np.random.uniform(size=2).astype(np.float32), 0.0, False, False, {}


class Entropy(Draws):
    def step(self, action: Any) -> Any:
        return np.frombuffer(os.urandom(2), np.uint8).astype(np.float32) / 255, 0.0, False, False, {}


@pytest.mark.extended
@pytest.mark.parametrize("env_fn", [Draws, Entropy], ids=["global generator", "no two runs are equal"])
def test_randomness_is_not_process_wide_state(env_fn: Any) -> None:
    assert list(sharing_violations(env_fn, 0)) == []


class OnePerProcess(Draws):
    """A simulator that one process may have once."""

    is_taken = False

    def __init__(self) -> None:
        if type(self).is_taken:
            raise RuntimeError("one per process")
        type(self).is_taken = True


@pytest.mark.extended
def test_env_that_one_process_has_once_is_named() -> None:
    (found,) = sharing_violations(OnePerProcess, 0)
    assert "two envs that take turns in one process fail" in found.message


def test_copies_take_turns(tmp_path: Path) -> None:
    calls: list[int] = []

    class Noted(Draws):
        def __init__(self) -> None:
            self.number = len(calls)
            calls.append(-1)

        def step(self, action: Any) -> Any:
            calls.append(self.number)
            return super().step(action)

    play_copies(Noted, 0, (0, 1), tmp_path / "result")
    played = pickle.loads((tmp_path / "result").read_bytes())
    assert calls[:6] == [-1, -1, 0, 1, 0, 1]
    assert [len(episode) for episode in played[1]] == [101, 101]
