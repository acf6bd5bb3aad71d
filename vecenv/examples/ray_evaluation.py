"""Train by PPO over a Ray cluster, and evaluate meanwhile: `python -m vecenv.examples.ray_evaluation`.

    training: weights -> collectors in shards -> transitions -> weights
                  \\-> Evaluator, a thread with envs in a shard of its own -> mean return of 20 seeds

An evaluation takes the newest weights, and the training never waits for it. The seeds are always the same, so the
means can be compared. The training is that of `vecenv.examples.ray_ppo`.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from vecenv.collection import Transitions
from vecenv.envs.gym_registry import make_env
from vecenv.errors import require
from vecenv.evaluation import evaluate
from vecenv.examples.ppo import SETTINGS, Agent, Settings, learn
from vecenv.examples.ray_ppo import SIZES, parse, run
from vecenv.ray_options import RayOptions
from vecenv.vector import VectorEnv

__all__ = ["Evaluator", "main"]

torch: Any = require("torch", "torch")

SEEDS, NUM_ENVS = range(1000, 1020), 8


def make_policy(weights: Any) -> Callable[[Any], Any]:
    """Return the policy of a shard: the most likely actions of an agent with these weights."""
    torch.set_num_threads(1)
    agent = Agent(*SIZES)
    agent.load_state_dict(weights)
    return agent.best_actions


class Evaluator(threading.Thread):
    """Evaluates the weights that it is given, one after the other; use it in a `with` statement.

    Attributes:
        means: (env steps of the training, mean return) of each evaluation.
    """

    def __init__(self) -> None:
        super().__init__(name="evaluator")
        self.means: list[tuple[int, float]] = []
        self._steps = 0
        self._given: queue.Queue[tuple[int, Any] | None] = queue.Queue(maxsize=1)
        self._error: BaseException | None = None

    def learn(self, agent: Agent, optimizer: Any, batch: Transitions, settings: Settings) -> None:
        """Improve the agent, and have it evaluated if no other weights wait."""
        learn(agent, optimizer, batch, settings)
        self._steps += len(batch)
        if self._error is not None:
            raise self._error
        with contextlib.suppress(queue.Full):
            weights = {name: value.clone() for name, value in agent.state_dict().items()}
            self._given.put_nowait((self._steps, weights))

    def run(self) -> None:
        """Evaluate until the training has ended; a pool belongs to the thread that uses it."""
        try:
            env_fns = [functools.partial(make_env, "CartPole-v1")] * NUM_ENVS
            with VectorEnv(env_fns, backend=RayOptions(num_shards=1, cpus_per_shard=1)) as envs:
                while (given := self._given.get()) is not None:
                    steps, weights = given
                    policy = functools.partial(make_policy, weights)
                    result = evaluate(envs, where="shards", make_policy=policy, seeds=SEEDS)
                    self.means.append((steps, float(result.mean)))
        except BaseException as error:
            self._error = error  # `learn` raises it

    def __enter__(self) -> Evaluator:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        while self.is_alive():  # the thread may be in an evaluation, and older weights may wait
            with contextlib.suppress(queue.Full):
                self._given.put(None, timeout=1.0)
            self.join(1.0)


def main(argv: Sequence[str] | None = None) -> None:
    """Train, evaluate, and print the results of both."""
    options = parse(argv, "Train by PPO over a Ray cluster, and evaluate meanwhile.")
    options.cpus = options.cpus or 1  # one is left for the shard of the evaluator
    require("ray", "ray").init()
    with Evaluator() as evaluator:
        run("PPO", SETTINGS["vector"], options, learn=evaluator.learn)
    for steps, mean in evaluator.means:
        print(f"evaluation after {steps} steps: mean return {mean:.1f} of {len(SEEDS)} episodes")


if __name__ == "__main__":
    main()
