"""Save a training of Stable-Baselines3 with its envs, so that another program continues it with equal weights.

    model.learn(total, callback=SaveRun("run.state"))
    model = resume_run("run.state", PPO, SB3VecEnv(env_fns))      after a kill
    model.learn(total - model.num_timesteps, callback=SaveRun("run.state"), reset_num_timesteps=False)

A file is written between a training step and the next rollout, when the rollout buffer is empty.
"""

from __future__ import annotations

import copy
import io
import os
import pickle
import random
import time
from typing import Any

import numpy as np

from ..errors import ConfigError, require
from ..saved_state import SavedState
from ..values.checks import check_seconds
from .sb3 import SB3VecEnv

__all__ = ["SaveRun", "resume_run", "save_run"]

_BaseCallback: Any = require("stable_baselines3.common.callbacks", "sb3").BaseCallback
_torch: Any = require("torch", "sb3")

#: Attributes of wrappers that are not saved: the vec env inside, an open file, and those that a new wrapper has, too.
_NOT_SAVED = (
    "venv", "results_writer", "class_attributes", "observation_space", "action_space", "metadata", "render_mode",
)  # fmt: skip


class SaveRun(_BaseCallback):
    """A callback that saves the run between a training step and the next rollout.

    PPO, A2C and others of their kind are saved after each training on a rollout, DQN, SAC and others between two of
    their rollouts, in each case if the last save is `every_seconds` old. The file contains the replay buffer, too.

    Args:
        path: file to write; it replaces an older one when it is complete.
        every_seconds: shortest time between two saves.

    Raises:
        ConfigError: `every_seconds` is not above 0.
    """

    def __init__(self, path: str | os.PathLike[str], every_seconds: float = 60.0) -> None:
        super().__init__()
        self.path = path
        self.every_seconds = check_seconds("every_seconds", every_seconds)
        self._saved_at = time.monotonic()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        # A run without steps is not saved: programs pass `reset_num_timesteps=True` for it, which resets the envs.
        if self.model.num_timesteps and time.monotonic() - self._saved_at >= self.every_seconds:
            save_run(self.path, self.model)
            self._saved_at = time.monotonic()

    def _on_training_end(self) -> None:
        save_run(self.path, self.model)


def save_run(path: str | os.PathLike[str], model: Any) -> None:
    """Save a model, its replay buffer, its envs with their wrappers, and the random generators of this process.

    Call it between two calls of `learn`; within one, `SaveRun` calls it at the right moments.

    Args:
        path: file to write; it replaces an older one when it is complete.
        model: an algorithm of Stable-Baselines3 over an `SB3VecEnv`, which may be in wrappers.

    Raises:
        ConfigError: the model has no `SB3VecEnv`.
        StateError: as for `SB3VecEnv.save`.
        OSError: the file cannot be written; an older file is unchanged.
    """
    layers, envs = _layers_of(model.env)
    stream, buffer = io.BytesIO(), getattr(model, "replay_buffer", None)
    model.save(stream)
    value = {
        "model": stream.getvalue(),
        "replay_buffer": None if buffer is None else pickle.dumps(buffer, 5),
        "envs": envs.state_dict(),
        "wrappers": [_state_of(layer) for layer in layers],
        "generators": (random.getstate(), np.random.get_state(), _torch.get_rng_state()),
    }
    fields = {"kind": type(model).__name__, "num_envs": envs.num_envs, "num_timesteps": model.num_timesteps}
    SavedState.of(value, **fields).write(path)


def resume_run(path: str | os.PathLike[str], algorithm: Any, env: Any, **others: Any) -> Any:
    """Return the model that `save_run` has saved. `learn(..., reset_num_timesteps=False)` continues its training.

    The random generators of this process continue, too: `random`, `numpy.random` and that of torch on the CPU. Action
    noise that has a state starts again, and so does the noise of `use_sde=True`.

    Args:
        path: the file. It contains pickles, so load only files that you trust.
        algorithm: the class of the model.
        env: an `SB3VecEnv` with the same env constructors, in the same wrappers. Its envs are built again.
        **others: further arguments of `algorithm.load`, such as `device`.

    Raises:
        ConfigError: the file is damaged, another class has written it, or the envs do not fit.
    """
    saved = SavedState.read(path)
    layers, envs = _layers_of(env)
    saved.check(kind=algorithm.__name__, num_envs=envs.num_envs)
    value = saved.value
    if len(layers) != len(value["wrappers"]):
        counts = f"saved in {len(value['wrappers'])} wrappers, and these are in {len(layers)}"
        raise ConfigError(f"resume_run: the envs were {counts}", key="env")
    model = algorithm.load(io.BytesIO(value["model"]), env=env, force_reset=False, **others)
    if value["replay_buffer"] is not None:
        model.replay_buffer = pickle.loads(value["replay_buffer"])
    envs.load_state_dict(value["envs"])  # last: `load` has seeded the spaces
    model.action_space = model.env.action_space
    for layer, state in zip(layers, value["wrappers"]):
        vars(layer).update(state)
    python, numpy, cpu = value["generators"]
    random.setstate(python)
    np.random.set_state(numpy)
    _torch.set_rng_state(cpu)
    return model


def _layers_of(env: Any) -> tuple[list[Any], SB3VecEnv]:
    """Return the wrappers around an `SB3VecEnv`, outermost first, and the vec env."""
    layers = []
    while env is not None and not isinstance(env, SB3VecEnv):
        layers.append(env)
        env = getattr(env, "venv", None)
    if env is None:
        raise ConfigError("expected a model or wrappers over an SB3VecEnv", key="env")
    return layers, env


def _state_of(layer: Any) -> dict[str, Any]:
    """Return copies of the attributes of a wrapper, but for those that a new wrapper has, too."""
    return copy.deepcopy({name: value for name, value in vars(layer).items() if name not in _NOT_SAVED})
