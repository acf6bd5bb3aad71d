"""A program that trains with XuanCe over its own vector env and over vecenv's, and prints digests of weights as JSON.

It writes XuanCe's logs into the working directory.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from argparse import Namespace
from typing import Any

import torch
import xuance

import vecenv.integrations.xuance

NUM_ENVS, NUM_STEPS = 4, 40


def train(algorithm: str, vectorize: str, *, kills: bool = False, **config: Any) -> str:
    """Train for some steps of all envs, and kill a worker in the middle if asked; return a digest of the weights."""
    given = Namespace(vectorize=vectorize, parallels=NUM_ENVS, running_steps=1000, render=False, **config)
    runner = xuance.get_runner(algorithm, "classic_control", "CartPole-v1", parser_args=given)
    runner.agent.train(NUM_STEPS)
    if kills:
        os.kill(runner.envs.vector_env.worker_pids[0], signal.SIGKILL)
    runner.agent.train(NUM_STEPS)
    runner.envs.close()
    runner.agent.finish()
    found = hashlib.sha256()
    for name, value in sorted(runner.agent.policy.state_dict().items()):
        found.update(name.encode() + value.numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    torch.set_num_threads(1)
    results = {}
    for algorithm, config in {"ppo": {"horizon_size": 16}, "dqn": {"start_training": 100}}.items():
        results[algorithm] = [
            train(algorithm, "SubprocVecEnv", **config),
            train(algorithm, "VecenvVecEnv", **config),
            train(algorithm, "VecenvVecEnv", kills=True, **config),
        ]
    print(json.dumps({"weights": results, "class": vecenv.integrations.xuance.VecenvVecEnv.__name__}))


if __name__ == "__main__":
    main()
