"""Env runners of RLlib over vecenv give the results of RLlib's own vector envs."""

from __future__ import annotations

import functools
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

pytest.importorskip("ray.rllib", exc_type=ImportError)

from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.env.vector.registration import make_vec
from ray.rllib.env.vector.sync_vector_multi_agent_env import SyncVectorMultiAgentEnv

from vecenv import ConfigError
from vecenv.integrations.rllib import env_creator, register
from vecenv.integrations.rllib_multi_agent import ParallelMultiAgentEnv, multi_agent_runner

pytestmark = pytest.mark.ray


@pytest.mark.extended
def test_returns_of_ppo_equal_those_of_rllibs_own_vector_envs() -> None:
    """In a process of its own, since a process that uses Ray keeps connections."""
    command = [sys.executable, "-m", "tests.integrations.rllib_program"]
    with tempfile.TemporaryDirectory(prefix="vecenv-", dir="/tmp") as folder:  # Ray needs short paths of sockets
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=500,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "RAY_TMPDIR": folder},
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("num_workers") == 2, "one per CPU that Ray has assigned"
    for kind, (ours, theirs) in found.items():
        assert ours == theirs, kind
    assert "Traceback" not in done.stderr


def test_creator_makes_a_single_env_without_num_envs() -> None:
    env = pickle.loads(pickle.dumps(env_creator("CartPole-v1")))({"max_episode_steps": 7})
    assert env.spec.max_episode_steps == 7
    env.close()


class _MixedEnv(MultiAgentEnv):  # type: ignore[misc]
    """Agents with values that fit into columns and values that do not, which come and go.

    The digits of the actions so far decide which agents answer and which values have other types than usual.
    """

    possible_agents = ["array", 1, "number", "nested"]
    observation_spaces = {
        "array": gymnasium.spaces.Box(-9, 9, (2, 3), np.float32),
        1: gymnasium.spaces.Discrete(100),
        "number": gymnasium.spaces.Box(0, 9, (), np.int16),
        "nested": gymnasium.spaces.Dict(x=gymnasium.spaces.Box(0, 9, (2,), np.uint8)),
    }
    action_spaces = dict.fromkeys(possible_agents, gymnasium.spaces.Discrete(10)) | {
        "array": gymnasium.spaces.Box(-1, 1, (3,), np.float32),
        "nested": gymnasium.spaces.Text(500),
    }

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._sum, self._step = 0 if seed is None else seed, 0
        return self._obs(), ({1: {"seed": seed}} if seed else {})

    def _obs(self) -> dict[Any, Any]:
        digit = self._sum % 10
        whole = np.full((2, 3), digit, np.float32)
        whole.flags.writeable = digit != 3
        values = {
            "array": whole if digit != 4 else whole.astype(np.float64),
            1: digit if digit < 5 else np.int64(digit),
            "number": np.int16(digit),
            "nested": {"x": np.full(2, digit, np.uint8), **({"long": "x" * 5000} if digit == 6 else {})},
        }
        agents = [agent for i, agent in enumerate(values) if (self._sum >> i) % 3]
        return {agent: values[agent] for agent in (agents if digit < 7 else reversed(agents))}

    def step(self, actions: Any) -> Any:
        assert all(self.action_spaces[agent].contains(action) for agent, action in actions.items()), actions
        self._sum += sum(
            int(np.sum(np.abs(value))) if agent != "nested" else len(value) for agent, value in actions.items()
        )
        self._step += 1
        obs = self._obs()
        rewards = {agent: 0.5 * self._sum if i % 2 else np.float32(self._sum) for i, agent in enumerate(obs)}
        ended = self._step % 11 == 0
        ends = dict.fromkeys(obs, ended) | {"__all__": ended}
        infos = {agent: {"step": self._step} if self._sum % 4 == 0 else {} for agent in obs}
        return obs, rewards, ends, dict.fromkeys(ends, False), infos


def _actions(obs: Any, rng: np.random.Generator) -> list[dict[Any, Any]]:
    """Return an action for each agent with an observation; long texts do not fit into rows."""
    samples = {
        "array": rng.uniform(-1, 1, 3).astype(np.float32),
        1: rng.integers(10),
        "number": rng.integers(10),
        "nested": "a" * int(rng.choice([3, 40, 499])),
    }
    return [{agent: samples[agent] for agent in one} for one in obs]


def _assert_same(ours: Any, theirs: Any, path: str) -> None:
    """Compare nested values, their types, and the order of dicts."""
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs), path
        for key, value in theirs.items():
            _assert_same(ours[key], value, f"{path}/{key}")
    elif isinstance(theirs, np.ndarray):
        assert ours.flags.writeable == theirs.flags.writeable, path
        assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs), path
    else:
        assert type(ours) is type(theirs) and ours == theirs, path


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"backend": "serial"}, {"num_workers": 2, "kills": True}])
def test_multi_agent_answers_equal_those_of_rllibs_own_vector_env(options: dict[str, Any]) -> None:
    """Values, their types and their order are equal, also after the death of a worker."""
    kills = options.pop("kills", False)
    own, ours = SyncVectorMultiAgentEnv([_MixedEnv] * 3), ParallelMultiAgentEnv(_MixedEnv, 3, **options)
    rng = np.random.default_rng(0)
    try:
        expected, found = own.reset(seed=4), ours.reset(seed=4)
        for step in range(120):
            for part, (values, others) in enumerate(zip(found, expected, strict=True)):
                for env_id, (value, other) in enumerate(zip(values, others, strict=True)):
                    _assert_same(value, other, f"step {step}, part {part}, env {env_id}")
            if kills and step in (25, 70):
                os.kill(ours.vector_env.worker_pids[step % 2], signal.SIGKILL)
            actions = _actions(expected[0], rng)
            expected, found = own.step(actions), ours.step(actions)
        if kills:
            assert ours.vector_env.statistics()["replayed"] > 0
    finally:
        ours.close()


class _SleepingEnv(_MixedEnv):
    """Each step waits for 50 ms."""

    def step(self, actions: Any) -> Any:
        time.sleep(0.05)
        return super().step(actions)


@pytest.mark.parametrize(
    "env_class, num_workers, expected",
    [(_SleepingEnv, 2, ParallelMultiAgentEnv), (_SleepingEnv, 1, SyncVectorMultiAgentEnv)],
)
def test_auto_runner_keeps_rllibs_loop_unless_workers_are_faster(
    env_class: Any, num_workers: int, expected: Any
) -> None:
    """Two workers wait for two envs at the same time; one worker gains nothing."""
    gymnasium.register("vecenv-test-agents-v0", env_class, disable_env_checker=True)
    runner = multi_agent_runner(backend="auto", num_workers=num_workers)
    try:
        envs = runner.make_vec_env(object.__new__(runner), make_vec, "vecenv-test-agents-v0", 2, "sync")
        try:
            assert type(envs) is expected
        finally:
            envs.close()
    finally:
        del gymnasium.registry["vecenv-test-agents-v0"]


@pytest.mark.parametrize(
    "make, text",
    [
        (functools.partial(env_creator, "CartPole-v1", num_worker=2), "did you mean 'num_workers'"),
        (functools.partial(multi_agent_runner, num_worker=2), "did you mean 'num_workers'"),
        (functools.partial(register, "ray", "CartPole-v1", backend="ray"), "backend='ray': a runner of RLlib has its"),
        (functools.partial(register, "wrong", 3), "expected an id or a function of the context, got int"),
    ],
)
def test_wrong_arguments_are_refused(make: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make()
