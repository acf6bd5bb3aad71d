"""A training of Stable-Baselines3 that is saved and continued has the weights of an undisturbed one."""

from __future__ import annotations

import contextlib
import functools
import random
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

import torch
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.vec_env import VecFrameStack, VecMonitor, VecNormalize

from vecenv import ConfigError
from vecenv.cli import main
from vecenv.integrations.sb3 import SB3VecEnv
from vecenv.integrations.sb3_runs import SaveRun, resume_run, save_run

pytestmark = pytest.mark.sb3

CARTPOLE = functools.partial(gymnasium.make, "CartPole-v1")
PENDULUM = functools.partial(gymnasium.make, "Pendulum-v1")
OFF_POLICY = {"learning_starts": 40, "buffer_size": 500, "batch_size": 16, "train_freq": 4}
RUNS: list[Any] = [
    pytest.param(PPO, CARTPOLE, {"n_steps": 32, "batch_size": 32, "n_epochs": 2}, id="PPO"),
    pytest.param(A2C, CARTPOLE, {"n_steps": 16}, id="A2C"),
    pytest.param(DQN, CARTPOLE, {**OFF_POLICY, "target_update_interval": 50}, id="DQN"),
    pytest.param(SAC, PENDULUM, OFF_POLICY, id="SAC"),
]


def plain(envs: Any) -> Any:
    return envs


def wrapped(envs: Any) -> Any:
    return VecNormalize(VecFrameStack(VecMonitor(envs), 2))


def weights_of(model: Any) -> list[Any]:
    return [value.tolist() for value in model.policy.state_dict().values()]


def disturb_generators() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)


@pytest.mark.extended
@pytest.mark.parametrize("wrap", [plain, wrapped])
@pytest.mark.parametrize(("algorithm", "env_fn", "options"), RUNS)
def test_resumed_run_has_equal_weights(
    algorithm: Any, env_fn: Any, options: Any, wrap: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, total = tmp_path / "run.state", 384
    with contextlib.closing(wrap(SB3VecEnv([env_fn] * 4, num_workers=2))) as envs:
        model = algorithm("MlpPolicy", envs, seed=3, device="cpu", **options)
        model.learn(total // 3)
        save_run(path, model)
        model.learn(total - total // 3, reset_num_timesteps=False)
        expected = weights_of(model)
    disturb_generators()
    with contextlib.closing(wrap(SB3VecEnv([env_fn] * 4, backend="serial"))) as envs:
        model = resume_run(path, algorithm, envs, device="cpu")
        assert model.num_timesteps == total // 3
        model.learn(total - total // 3, reset_num_timesteps=False)
        assert weights_of(model) == expected
    assert main(["inspect", str(path)]) == 0
    assert f"num_timesteps      {total // 3}" in capsys.readouterr().out


PROGRAM = """
import functools, os, sys
import gymnasium
from stable_baselines3 import PPO
from vecenv.integrations.sb3 import SB3VecEnv
from vecenv.integrations.sb3_runs import SaveRun, resume_run

if __name__ == "__main__":
    path, out = sys.argv[1:]
    envs = SB3VecEnv([functools.partial(gymnasium.make, "CartPole-v1")] * 4, num_workers=1 + os.getpid() % 3)
    if os.path.exists(path):
        model = resume_run(path, PPO, envs, device="cpu")
    else:
        model = PPO("MlpPolicy", envs, n_steps=32, batch_size=64, n_epochs=1, seed=3, device="cpu")
    print("begins", flush=True)
    callback = SaveRun(path, every_seconds=1e-9)
    model.learn(2048 - model.num_timesteps, callback=callback, reset_num_timesteps=model.num_timesteps == 0)
    model.policy.save(out)
    envs.close()
"""


@pytest.mark.extended
def test_run_that_is_killed_many_times_has_equal_weights(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))

    def start(name: str) -> Any:
        words = [sys.executable, str(program), str(tmp_path / f"{name}.state"), str(tmp_path / f"{name}.pt")]
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)

    def finish(process: Any) -> None:
        process.communicate(timeout=240)
        assert process.returncode == 0

    finish(start("whole"))
    rng = np.random.default_rng(0)
    for _ in range(3):
        process = start("killed")
        assert process.stdout.readline() == "begins\n"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(float(rng.uniform(0.0, 1.0)))
        process.kill()
        process.communicate()
    finish(start("killed"))
    one, other = (torch.load(tmp_path / f"{name}.pt", weights_only=False) for name in ("whole", "killed"))
    for name, value in one["state_dict"].items():
        assert torch.equal(value, other["state_dict"][name]), name


def test_callback_saves_between_training_and_rollout(tmp_path: Path) -> None:
    """The file that is written in the middle of `learn` continues with the weights of that call."""
    path = tmp_path / "run.state"
    copies = []

    class CopyRun(SaveRun):
        def _on_rollout_start(self) -> None:
            super()._on_rollout_start()
            copies.append(path.read_bytes() if path.exists() else b"")

    with contextlib.closing(SB3VecEnv([CARTPOLE] * 2, backend="serial")) as envs:
        model = PPO("MlpPolicy", envs, n_steps=16, batch_size=32, n_epochs=1, seed=3, device="cpu")
        model.learn(128, callback=CopyRun(path, every_seconds=1e-9))
        expected = weights_of(model)
    assert len(copies) == 4 and copies[0] == b""
    path.write_bytes(copies[2])
    with contextlib.closing(SB3VecEnv([CARTPOLE] * 2, num_workers=1)) as envs:
        model = resume_run(path, PPO, envs, device="cpu")
        assert model.num_timesteps == 64
        model.learn(64, reset_num_timesteps=False)
        assert weights_of(model) == expected


def test_wrong_runs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.state"
    with contextlib.closing(SB3VecEnv([CARTPOLE] * 2, backend="serial")) as envs:
        model = PPO("MlpPolicy", envs, n_steps=16, batch_size=32, device="cpu")
        model.learn(32)
        save_run(path, model)
        with pytest.raises(ConfigError, match="it was saved by PPO, and this is A2C"):
            resume_run(path, A2C, envs)
        with pytest.raises(ConfigError, match="saved in 0 wrappers, and these are in 1"):
            resume_run(path, PPO, VecMonitor(envs))
    others = contextlib.closing(SB3VecEnv([CARTPOLE] * 3, backend="serial"))
    with others as envs, pytest.raises(ConfigError, match="it contains 2 envs, and there are 3"):
        resume_run(path, PPO, envs)
    with pytest.raises(ConfigError, match="over an SB3VecEnv"):
        save_run(path, PPO("MlpPolicy", "CartPole-v1", device="cpu"))
