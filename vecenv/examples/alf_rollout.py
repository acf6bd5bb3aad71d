"""Roll a batch of ALF environments out with a random policy: `python -m vecenv.examples.alf_rollout --envs 6`.

Each line is one time step of all envs: their step types, F, . or L, and the discounts of those with LAST. The discount
is 0 if the pole fell, 1 if the time limit ended the episode.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from vecenv.alf import ParallelAlfEnvironment, StepType, TimeStep, create_environment, load
from vecenv.cli.options import count, natural

__all__ = ["main", "rollout"]

_LETTERS = {int(StepType.FIRST): "F", int(StepType.MID): ".", int(StepType.LAST): "L"}


def rollout(env: ParallelAlfEnvironment, policy: Callable[[TimeStep], Any], steps: int) -> Iterator[TimeStep]:
    """Yield the first time step and `steps` more; `policy` turns a time step into the next actions."""
    time_step = env.reset()
    yield time_step
    for _ in range(steps):
        time_step = env.step(policy(time_step))
        yield time_step


def main(argv: Sequence[str] | None = None) -> None:
    """Roll out and print."""
    options = _parse(argv)
    env = create_environment(
        options.env,
        functools.partial(load, max_episode_steps=options.limit),
        num_parallel_environments=options.envs,
        seed=options.seed,
        tensors=False,
    )
    generator = np.random.default_rng(options.seed)
    spec = env.action_spec()

    def random_policy(time_step: TimeStep) -> Any:
        return spec.numpy_sample((options.envs,), generator)

    ends = {0.0: 0, 1.0: 0}
    with env:
        about = f"{options.envs} envs in {env.num_workers} workers, at most {options.limit} steps an episode"
        print(f"{options.env}, {about}")
        print("step  types" + " " * max(0, options.envs - 5) + "  discounts of LAST steps")
        for number, time_step in enumerate(rollout(env, random_policy, options.steps)):
            last = np.flatnonzero(time_step.is_last())
            discounts = ", ".join(f"env {env_id}: {time_step.discount[env_id]:g}" for env_id in last)
            letters = "".join(_LETTERS[int(step_type)] for step_type in time_step.step_type)
            print(f"{number:4d}  {letters:5s}  {discounts}".rstrip())
            for discount in time_step.discount[last].tolist():
                ends[discount] += 1
    print(f"{ends[0.0]} episodes ended (discount 0), {ends[1.0]} were cut off (discount 1)")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Roll a batch of ALF environments out with a random policy.")
    parser.add_argument("--env", default="CartPole-v1", help="registered env (default: %(default)s)")
    parser.add_argument("--envs", type=count, default=6, help="envs in the batch (default: %(default)s)")
    parser.add_argument("--steps", type=count, default=60, help="time steps after the first (default: %(default)s)")
    parser.add_argument("--limit", type=count, default=20, help="steps in an episode at most (default: %(default)s)")
    parser.add_argument("--seed", type=natural, default=0, help="of envs and policy (default: %(default)s)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
