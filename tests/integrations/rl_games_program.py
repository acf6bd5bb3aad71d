"""A program that trains with rl_games over its own vector env and over vecenv's, and prints digests as JSON.

rl_games writes its logs into the working directory.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
from typing import Any

import numpy as np
import torch
from rl_games.common import vecenv as vecenv_of_rl_games
from rl_games.common.env_configurations import configurations
from rl_games.torch_runner import Runner

import vecenv.integrations.rl_games  # noqa: F401  it registers "VECENV"
from tests.integrations.local_ray import ray_in_this_process
from tests.integrations.seeded_cartpole import SeededCartPole

NUM_EPOCHS = 6
PARAMS: dict[str, Any] = {
    "torch_threads": 1,
    "algo": {"name": "a2c_discrete"},
    "model": {"name": "discrete_a2c"},
    "network": {
        "name": "actor_critic",
        "separate": True,
        "space": {"discrete": {}},
        "mlp": {"units": [32], "activation": "relu", "initializer": {"name": "default"}},
    },
    "config": {
        "name": "test",
        "env_name": "seeded",
        "device": "cpu",
        "device_name": "cpu",
        "num_actors": 4,
        "horizon_length": 32,
        "minibatch_size": 64,
        "mini_epochs": 2,
        "max_epochs": NUM_EPOCHS,
        "save_frequency": 0,
        "save_best_after": 1000,
        "score_to_win": 1000,
        "learning_rate": 1e-3,
        "lr_schedule": None,
        "kl_threshold": 0.008,
        "gamma": 0.99,
        "tau": 0.9,
        "e_clip": 0.2,
        "clip_value": True,
        "critic_coef": 1,
        "entropy_coef": 0.01,
        "grad_norm": 1.0,
        "truncate_grads": True,
        "normalize_advantage": True,
        "normalize_input": False,
        "reward_shaper": {"scale_value": 0.1},
    },
}


def train(vecenv_type: str, *, kills: bool = False) -> str:
    """Train for some epochs, and kill a worker in the middle if asked; return a digest of the weights."""
    configurations["seeded"] = {"env_creator": SeededCartPole, "vecenv_type": vecenv_type}
    envs = vecenv_of_rl_games.create_vec_env("seeded", 4, seed=3)
    runner = Runner()
    runner.load({"params": {**PARAMS, "seed": 7}})
    runner.params["config"].update(vec_env=envs, env_info=envs.get_env_info())
    seed_all(7)  # the seeds of actors have changed the generators of this process
    agent = runner.algo_factory.create(runner.algo_name, base_name="run", params=runner.params)
    train_epoch = agent.train_epoch

    def train_or_kill() -> Any:
        if kills and agent.epoch_num == NUM_EPOCHS // 2:
            os.kill(envs.vector_env.worker_pids[0], signal.SIGKILL)
        return train_epoch()

    agent.train_epoch = train_or_kill
    agent.train()
    envs.close()
    found = hashlib.sha256()
    for name, value in sorted(agent.model.state_dict().items()):
        found.update(name.encode() + value.numpy().tobytes())
    return found.hexdigest()


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def main() -> None:
    with ray_in_this_process():
        weights = [train("RAY")]
    weights += [train("VECENV"), train("VECENV", kills=True)]
    print(json.dumps(weights))


if __name__ == "__main__":
    main()
