"""Vector envs over shards without Ray, and policies for them."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.core.shards.model_carrier import ModelCarrier
from vecenv import Transitions, VectorEnv
from vecenv.core.advice.sizing import Setting
from vecenv.core.layout.flags import Autoreset
from vecenv.core.pool.pool import Pool
from vecenv.core.shards.carrier import Carrier
from vecenv.core.shards.local_carrier import LocalCarrier
from vecenv.core.shards.sharded_engine import ShardedEngine
from vecenv.saved_state import SavedState
from vecenv.values.nested import map_structure


class ShardedVectorEnv(VectorEnv):
    """A vector env whose shards are child processes, or live in this process with a `ModelCarrier`.

    Args:
        env_fns: one constructor per env.
        num_shards: how many shards, of one worker each.
        carrier: the transport; None: child processes.
        shard_timeout, setting: as for `ShardedEngine`.
        options: of `VectorEnv`.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        num_shards: int = 2,
        carrier: LocalCarrier | ModelCarrier | None = None,
        shard_timeout: float = 30.0,
        setting: Setting | None = None,
        **options: Any,
    ) -> None:
        self._given_carrier = carrier
        self._num_shards, self._shard_timeout, self._setting = num_shards, shard_timeout, setting
        super().__init__(env_fns, **{"num_workers": 1, "context": "fork", **options})

    def _make_pool(self, saved: SavedState | None) -> Pool:
        self.carrier: Any = self._given_carrier or LocalCarrier()
        carrier: Carrier = self.carrier
        recipe = self._recipe_of_pool
        env_fns, options, spares = list(recipe.env_fns), recipe.options, recipe.spares
        if saved is not None:
            options = dataclasses.replace(options, rng_entropy=saved.header["rng_entropy"])
        if spares is not None:
            env_fns += [env_fns[number % len(env_fns)] for number in range(spares.num_spares)]
            options = dataclasses.replace(options, autoreset=Autoreset.DISABLED)
        engine = ShardedEngine(
            env_fns,
            options,
            carrier=carrier,
            num_shards=self._num_shards,
            adapt=recipe.adapt,
            snapshotter=recipe.snapshotter,
            resume=None if saved is None else saved.value.resume,
            shard_timeout=self._shard_timeout,
            setting=self._setting,
        )
        self._pool = Pool(engine, spares, recipe.options.autoreset)
        self.env_fns = self._pool.env_fns
        return self._pool


class DrawingPolicy:
    """Draws actions of two from a generator per env, which `begin` makes; they depend on the weights, too.

    Attributes:
        weights: a number, 0 at first.
        num_sets: how often weights were set.
    """

    def __init__(self) -> None:
        self.weights = 0
        self.num_sets = 0
        self.generators: dict[int, np.random.Generator] = {}
        self.begun: dict[int, int] = {}

    def begin(self, env_ids: np.ndarray) -> None:
        for env_id in env_ids.tolist():
            self.begun[env_id] = self.begun.get(env_id, 0) + 1
            self.generators[env_id] = np.random.default_rng([env_id, self.begun[env_id]])

    def __call__(self, obs: np.ndarray, env_id: np.ndarray) -> Any:
        draws = np.array([self.generators[env].random() for env in env_id.tolist()], np.float32)
        actions = ((draws > 0.5) + obs[:, 0].astype(np.int64) + self.weights) % 2
        return actions, {"draw": draws, "weights": np.full(len(env_id), self.weights), "both": np.stack([draws] * 2, 1)}

    def bootstrap(self, obs: np.ndarray, env_id: np.ndarray) -> np.ndarray:
        return (obs[:, 0] + env_id).astype(np.float32)

    def set_weights(self, weights: int) -> None:
        self.weights = weights
        self.num_sets += 1


class IgnoringPolicy(DrawingPolicy):
    """A `DrawingPolicy` that takes any weights, and does not use them."""

    def set_weights(self, weights: Any) -> None:
        self.num_sets += 1


class KeptPolicy(DrawingPolicy):
    """A `DrawingPolicy` whose state survives its shard."""

    def get_state(self) -> Any:
        return self.weights, self.num_sets, self.generators, self.begun

    def set_state(self, state: Any) -> None:
        self.weights, self.num_sets, self.generators, self.begun = state


class KillingPolicy(KeptPolicy):
    """Kills its shard once, in the call with this number, if its shard has this env."""

    def __init__(self, folder: str, number: int, env: int) -> None:
        super().__init__()
        self.mark, self.number, self.env = Path(folder, f"killed {env}"), number, env
        self.num_calls = 0

    def __call__(self, obs: np.ndarray, env_id: np.ndarray) -> Any:
        self.num_calls += self.env in env_id
        if self.num_calls == self.number and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(obs, env_id)


def assert_equal(ours: Transitions, theirs: Transitions, *, has_bootstrap: bool = True) -> None:
    """Fail unless two batches have the same values in every column."""

    def check(a: Any, b: Any) -> None:
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)

    names = ["obs", "actions", "rewards", "terminated", "truncated", "lost", "env_id", "step", "episode", "next_obs"]
    for name in [*names, "episode_returns", "episode_lengths", "extras"]:
        map_structure(check, getattr(ours, name), getattr(theirs, name))
    if has_bootstrap:
        check(ours.bootstrap, theirs.bootstrap)
