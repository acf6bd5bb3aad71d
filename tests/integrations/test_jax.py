"""Envs that compute with JAX: a fork is refused once this process has a backend of JAX."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.programs import run_python

pytest.importorskip("jax", exc_type=ImportError)

PROGRAM = """
    import sys

    import gymnasium
    import numpy as np
    import jax

    from vecenv import ConfigError, VectorEnv

    class JaxEnv(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-9.0, 9.0, (2,))
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.observe(0), {}

        def step(self, action):
            return self.observe(action), 1.0, False, False, {}

        def observe(self, action):
            return np.asarray(jax.numpy.ones(2) * int(action), np.float32)

    def play(context):
        with VectorEnv([JaxEnv] * 2, context=context, num_workers=2, timeouts=60.0) as envs:
            envs.reset(seed=0)
            return envs.step([0, 1])[0].tolist()

    if __name__ == "__main__":
        print(play("fork"))  # jax is imported, and has no backend yet
        jax.numpy.ones(3).sum().block_until_ready()
        try:
            play("fork")
        except ConfigError as error:
            print(error.key, error)
        print(play("forkserver"))
"""


def test_fork_is_refused_once_jax_has_a_backend(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    run = run_python(str(script), cwd=tmp_path, check=True, timeout=240)
    first, refusal, last = run.stdout.splitlines()
    assert first == last == "[[0.0, 0.0], [1.0, 1.0]]"
    assert refusal.startswith("context context='fork' cannot be used once JAX has computed something: ")
    assert refusal.endswith("use 'forkserver'")
