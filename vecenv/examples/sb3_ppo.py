"""Train PPO of Stable-Baselines3 on CartPole-v1 over three vector envs: `python -m vecenv.examples.sb3_ppo`.

The same seeds give the same observations in all three, so PPO learns the same from the same number of steps; what
differs is the time. Put `SB3VecEnv` where a program has `SubprocVecEnv`, and that is all there is to do.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from vecenv.cli.options import count, natural
from vecenv.errors import require

__all__ = ["SB3Result", "main", "train"]

_KINDS = ("vecenv", "dummy", "subproc")
#: Episodes whose mean return decides.
_NUM_EPISODES = 100
#: Env steps between two rounds of learning, of all envs together.
_ROLLOUT_STEPS = 2048


class SB3Result(NamedTuple):
    """The result of `train`: mean return of the last episodes, their number, env steps, seconds of learning."""

    mean_return: float
    episodes: int
    steps: int
    seconds: float


def train(kind: str, *, num_envs: int, max_steps: int, target: float, seed: int) -> SB3Result:
    """Train until the mean return of the last 100 episodes is at least `target`, or for `max_steps` env steps.

    Args:
        kind: 'vecenv', 'dummy' or 'subproc', the vector env to train on.
        num_envs: envs that run at once.
        max_steps: env steps of all envs together; a rollout that has begun is finished.
        target: mean return to stop at.
        seed: of the envs and of PPO.

    Raises:
        DependencyError: Stable-Baselines3 is not installed.
    """
    sb3, env_util = require("stable_baselines3", "sb3"), require("stable_baselines3.common.env_util", "sb3")
    # SubprocVecEnv's workers are forked: started afresh, each of them would import torch.
    options = {"start_method": "fork"} if kind == "subproc" else {}
    envs = env_util.make_vec_env(
        "CartPole-v1", num_envs, seed=seed, vec_env_cls=_vec_env_class(kind), vec_env_kwargs=options
    )
    num_steps = max(2, min(_ROLLOUT_STEPS, max_steps) // num_envs)
    with contextlib.closing(envs):
        model = sb3.PPO(
            "MlpPolicy",
            envs,
            n_steps=num_steps,
            batch_size=min(256, num_steps * num_envs),
            n_epochs=20,
            gae_lambda=0.8,
            gamma=0.98,
            learning_rate=1e-3,
            stats_window_size=_NUM_EPISODES,
            seed=seed,
            device="cpu",
        )
        start = time.perf_counter()
        model.learn(max_steps, callback=_stop_at(target))
        seconds = time.perf_counter() - start
        returns = [episode["r"] for episode in model.ep_info_buffer]
    return SB3Result(float(np.mean(returns)) if returns else 0.0, len(returns), model.num_timesteps, seconds)


def _vec_env_class(kind: str) -> Any:
    if kind == "vecenv":
        from vecenv.integrations.sb3 import SB3VecEnv

        return SB3VecEnv
    vec_env = require("stable_baselines3.common.vec_env", "sb3")
    return vec_env.DummyVecEnv if kind == "dummy" else vec_env.SubprocVecEnv


def _stop_at(target: float) -> Callable[[dict[str, Any], dict[str, Any]], bool]:
    def is_below_target(variables: dict[str, Any], _: dict[str, Any]) -> bool:
        episodes = variables["self"].ep_info_buffer
        if len(episodes) < _NUM_EPISODES:
            return True
        return bool(np.mean([episode["r"] for episode in episodes]) < target)

    return is_below_target


def main(argv: Sequence[str] | None = None) -> None:
    """Train on each kind of vector env, then print returns and times side by side."""
    options = _parse(argv)
    if options.threads:
        require("torch", "sb3").set_num_threads(options.threads)
    print(f"PPO on CartPole-v1, {options.envs} envs, until a mean return of {options.target:g}")
    for kind in options.kind or _KINDS:
        trained = train(kind, num_envs=options.envs, max_steps=options.steps, target=options.target, seed=options.seed)
        print(
            f"{kind:8} mean return {trained.mean_return:6.1f} of the last {trained.episodes} episodes after "
            f"{trained.steps} steps, {trained.seconds:.1f} s",
            flush=True,
        )


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train PPO on CartPole-v1 over three kinds of vector env.")
    parser.add_argument("--envs", type=count, default=64, help="envs that run at once (default: %(default)s)")
    parser.add_argument("--steps", type=count, default=300_000, help="env steps at most (default: %(default)s)")
    parser.add_argument("--target", type=float, default=400.0, help="mean return to stop at (default: %(default)s)")
    parser.add_argument("--kind", action="append", choices=_KINDS, help="only this vector env; may be repeated")
    parser.add_argument("--seed", type=natural, default=0, help="of the envs and of PPO (default: %(default)s)")
    parser.add_argument("--threads", type=natural, default=1, help="of torch; 0: as torch likes (default: %(default)s)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
