"""A program that trains with RLlib, over its own vector envs and over vecenv, and prints the results as JSON."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import ray
from ray import tune
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

from vecenv import VectorEnv
from vecenv.integrations.rllib import env_creator, register
from vecenv.integrations.rllib_multi_agent import ParallelMultiAgentEnv, multi_agent_runner

MODE = "vector_entry_point"


def make_env(context: dict[str, Any]) -> Any:
    return gymnasium.make("CartPole-v1", max_episode_steps=context["limit"])


def train(env: Any, mode: str, num_runners: int, **env_config: Any) -> list[list[float]]:
    """Return the mean return and the number of steps after each of five iterations of PPO."""
    config = PPOConfig().environment(env, env_config=env_config)
    config = config.env_runners(
        num_env_runners=num_runners, num_envs_per_env_runner=4, gym_env_vectorize_mode=mode, rollout_fragment_length=64
    )
    algorithm = build(config)
    if not num_runners:
        assert isinstance(algorithm.env_runner.env.unwrapped, VectorEnv) == (mode == MODE)
    return returns_of(algorithm)


def train_agents(runner_cls: Any, num_runners: int, *, has_workers: bool = True) -> list[list[float]]:
    """Return the same for two agents; None is RLlib's own env runner. `has_workers`: whether the envs have workers."""
    config = PPOConfig().environment("agents", env_config={"num_agents": 2})
    config = config.env_runners(
        env_runner_cls=runner_cls, num_env_runners=num_runners, num_envs_per_env_runner=4, rollout_fragment_length=64
    )
    algorithm = build(config.multi_agent(policies={"one"}, policy_mapping_fn=lambda *args, **kwargs: "one"))
    if not num_runners:
        assert isinstance(algorithm.env_runner.env, ParallelMultiAgentEnv) == (runner_cls is not None and has_workers)
    return returns_of(algorithm)


def build(config: Any) -> Any:
    config = config.training(train_batch_size_per_learner=256, num_epochs=1, minibatch_size=128)
    return config.debugging(seed=3).build_algo()


def returns_of(algorithm: Any) -> list[list[float]]:
    results = [algorithm.train()["env_runners"] for _ in range(5)]
    algorithm.stop()
    return [[result["episode_return_mean"], result["num_env_steps_sampled_lifetime"]] for result in results]


@ray.remote(num_cpus=2)
def count_workers() -> int:
    """Return the number of workers of a vector env that the creator makes in a task with two CPUs."""
    envs = env_creator("CartPole-v1")({"num_envs": 4})
    num_workers: int = envs.statistics().num_workers
    envs.close()
    return num_workers


def main() -> None:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    name = register("fast-cartpole", "CartPole-v1", timeouts={"step": 60.0})
    own = register("own", make_env)
    tune.register_env("plain", make_env)
    tune.register_env("agents", MultiAgentCartPole)
    runner_cls = multi_agent_runner(timeouts={"step": 60.0})
    auto_cls = multi_agent_runner(backend="auto", num_workers=1)  # one worker is never faster than the loop
    print(
        json.dumps(
            {
                "num_workers": ray.get(count_workers.remote()),
                "local": [train(name, MODE, 0), train("CartPole-v1", "sync", 0)],
                "remote": [train(name, MODE, 1), train("CartPole-v1", "sync", 1)],
                "function": [train(own, MODE, 0, limit=15), train("plain", "sync", 0, limit=15)],
                "agents, local": [train_agents(runner_cls, 0), train_agents(None, 0)],
                "agents, auto": [train_agents(auto_cls, 0, has_workers=False), train_agents(None, 0)],
                "agents, remote": [train_agents(runner_cls, 1), train_agents(None, 1)],
            }
        )
    )
    ray.shutdown()


if __name__ == "__main__":
    main()
