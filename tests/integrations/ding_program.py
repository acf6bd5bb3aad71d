"""A program that trains with DI-engine, over its own managers and over those of vecenv, and prints the results as JSON.

It writes DI-engine's logs and checkpoints into the working directory.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
from typing import Any

import gym
import torch
from ding.config import compile_config
from ding.data import DequeBuffer
from ding.entry import serial_pipeline
from ding.envs import DingEnvWrapper, create_env_manager
from ding.framework import OnlineRLContext, task
from ding.framework.middleware import OffPolicyLearner, StepCollector, data_pusher, eps_greedy_handler
from ding.model import DQN
from ding.policy import DQNPolicy
from ding.utils import ENV_MANAGER_REGISTRY, set_pkg_seed
from dizoo.classic_control.cartpole.config.cartpole_dqn_config import create_config, main_config
from dizoo.classic_control.cartpole.envs.cartpole_env import CartPoleEnv
from easydict import EasyDict

SWAP = {"import_names": ["vecenv.integrations.ding"]}
NUM_ENVS = 4


def digest(model: Any) -> str:
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode() + value.numpy().tobytes())
    return found.hexdigest()


def configs(**manager: Any) -> tuple[EasyDict, EasyDict]:
    """Return DI-engine's configs of CartPole with this manager, small enough for a test."""
    config, create = copy.deepcopy(main_config), copy.deepcopy(create_config)
    config.exp_name = manager["type"]
    config.env.update(collector_env_num=NUM_ENVS, evaluator_env_num=2, n_evaluator_episode=2)
    config.policy.collect.n_sample = 64
    config.policy.learn.update_per_collect = 2
    create.env_manager = EasyDict(manager)
    return config, create


def train(**manager: Any) -> str:
    """Run the serial pipeline of DQN for a few iterations; return a digest of the weights."""
    # a step with reset_inplace waits for the resets, so that the program can be repeated
    policy = serial_pipeline(configs(**manager, reset_inplace=True), seed=3, max_train_iter=6)
    return digest(policy.learn_mode.get_attribute("model"))


def train_by_middleware(kind: str, **swap: Any) -> str:
    """Run DQN as a task of middleware; return a digest of the weights."""
    config, create = configs(type=kind, **swap)
    config = compile_config(config, create_cfg=create, auto=True, save_cfg=False, seed=3)
    env_fns = [make_wrapped] * NUM_ENVS
    env = create_env_manager(config.env.manager, env_fns)
    with task.start(async_mode=False, ctx=OnlineRLContext()):
        set_pkg_seed(3, use_cuda=False)
        model, buffer = DQN(**config.policy.model), DequeBuffer(size=1000)
        policy = DQNPolicy(config.policy, model=model)
        task.use(eps_greedy_handler(config))
        task.use(StepCollector(config, policy.collect_mode, env))
        task.use(data_pusher(config, buffer))
        task.use(OffPolicyLearner(config, policy.learn_mode, buffer))
        task.run(max_step=2)
    env.close()
    return digest(model)


def make_wrapped() -> Any:
    return DingEnvWrapper(gym.make("CartPole-v0"))


def step_all(kind: str) -> list[int]:
    """Return the ids of the envs whose timesteps a manager has returned after some steps."""
    env = create_env_manager(EasyDict(type=kind, **SWAP), [functools.partial(CartPoleEnv, {})] * 2)
    env.seed(0)
    env.launch()
    found = set()
    while len(found) < 2:
        found |= set(env.step(dict.fromkeys(env.ready_obs, 1)))
    env.close()
    return sorted(found)


def main() -> None:
    torch.set_num_threads(1)
    results = {
        "pipeline": {
            "subprocess": train(type="subprocess"),
            "vecenv_subprocess": train(type="vecenv_subprocess", **SWAP),
            "vecenv_base": train(type="vecenv_base", **SWAP),
        },
        "middleware": {
            "vecenv_subprocess_v2": train_by_middleware("vecenv_subprocess_v2", **SWAP),
            "vecenv_base_v2": train_by_middleware("vecenv_base_v2", **SWAP),
        },
        "steps": {kind: step_all(kind) for kind in ("vecenv_async_subprocess", "vecenv_gym_vector")},
        "names": sorted(name for name in ENV_MANAGER_REGISTRY if name.startswith("vecenv")),
        "names_of_ding": ["base", "subprocess", "async_subprocess", "base_v2", "subprocess_v2", "gym_vector"],
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
