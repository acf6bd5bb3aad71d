"""Env runners of RLlib over vecenv give the results of RLlib's own vector envs."""

from __future__ import annotations

import functools
import json
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.rllib", exc_type=ImportError)

from vecenv import ConfigError
from vecenv.integrations.rllib import env_creator, register
from vecenv.integrations.rllib_multi_agent import multi_agent_runner

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
