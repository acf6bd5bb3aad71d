"""PolicyRows: keeps the last observation of each env, and calls a policy with those of the envs that need an action."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from ..core.layout.spec import Array, Leaf, Spec
from ..policies import PolicyCaller, no_objects

__all__ = ["Observations", "PolicyRows"]

#: Added to the entropy of a policy's generators. Without it they would draw the numbers of the env's `np_random`.
_STREAM = 0x706F6C


class Observations:
    """Keeps one observation per env."""

    def __init__(self, space: Space[Any], num_envs: int) -> None:
        self._space = space
        root = Spec(space, "obs").root
        self._array = np.zeros((num_envs, *root.shape), root.dtype) if isinstance(root, Leaf) else None
        self._rows: list[Any] = [None] * num_envs  # rows of spaces that are not one array
        self._batch_spaces: dict[int, Space[Any]] = {}

    def put(self, obs: Any, env_ids: Array) -> None:
        """Keep a copy of the observations of the envs `env_ids`, int64 (B,): nested like the space, leaves (B, *S)."""
        if self._array is not None:
            self._array[env_ids] = obs
            return
        count = len(env_ids)
        space = self._batch_spaces.get(count)
        if space is None:
            space = self._batch_spaces[count] = batch_space(self._space, count)
        for env_id, row in zip(env_ids.tolist(), iterate(space, obs)):
            self._rows[env_id] = row

    def take(self, env_ids: Array) -> Any:
        """Return a copy of the observations of these envs, int64 (B,): nested like the space, leaves (B, *S)."""
        if self._array is not None:
            return self._array.take(env_ids, 0)
        empty: Any = create_empty_array(self._space, len(env_ids))
        return concatenate(self._space, [self._rows[env_id] for env_id in env_ids.tolist()], empty)


class PolicyRows:
    """Calls the policy of an evaluation.

    Args:
        has_generators: whether the policy takes a list of random generators, one per row, as its third argument.
        batch_rows: as for `evaluate`.
        first_env_id: number of env 0 for the policy, if the envs are a part of all envs.

    Raises:
        ConfigError: the policy is not callable, or its actions would have no fixed layout.
    """

    def __init__(
        self,
        policy: Any,
        action_space: Space[Any],
        what: str,
        *,
        has_generators: bool,
        batch_rows: int | None,
        first_env_id: int = 0,
    ) -> None:
        self._drawing = _DrawingPolicy(policy) if has_generators else None
        self._first_env_id = first_env_id
        self._caller = PolicyCaller(self._drawing or policy, action_space, what, first_env_id=first_env_id)
        self._batch_rows = batch_rows

    def begin(self, env_ids: Array, seeds: Sequence[int]) -> None:
        """Inform the policy that these envs, int64 (K,), begin episodes from these seeds."""
        if self._drawing is not None:
            self._drawing.seed((env_ids + self._first_env_id).tolist(), seeds)
        self._caller.begin(env_ids)

    def actions(self, observations: Observations, env_ids: Array) -> Any:
        """Return the policy's actions for the envs `env_ids`, int64 (B,), nested like the action space, leaves (B, *S).

        Raises:
            SpaceError: the actions do not fit.
        """
        step = self._batch_rows or len(env_ids)
        starts = range(0, len(env_ids), step)
        parts = [self._act(observations, env_ids[start : start + step]) for start in starts]
        columns = parts[0] if len(parts) == 1 else tuple(map(np.concatenate, zip(*parts)))
        return self._caller.spec.batch(lambda leaf: columns[leaf.index], no_objects)

    def _act(self, observations: Observations, env_ids: Array) -> tuple[Array, ...]:
        count = len(env_ids)
        if self._batch_rows is not None and count < self._batch_rows:
            padding = np.repeat(env_ids[:1], self._batch_rows - count)
            env_ids = np.concatenate([env_ids, padding])
        if self._drawing is not None:
            self._drawing.num_used = count
        answer = self._caller.act(observations.take(env_ids), env_ids)
        return tuple(column[:count] for column in answer.actions)


class _DrawingPolicy:
    """A policy that gets a generator per row as its third argument, as a policy of two arguments."""

    def __init__(self, policy: Callable[..., Any]) -> None:
        self._policy = policy
        self._generators: dict[int, np.random.Generator] = {}
        self._unused = np.random.default_rng(_STREAM)  # generator of rows whose actions are dropped
        self.num_used = 0
        self.begin = getattr(policy, "begin", None)

    def seed(self, env_ids: Sequence[int], seeds: Sequence[int]) -> None:
        for env_id, seed in zip(env_ids, seeds):
            self._generators[env_id] = np.random.default_rng([seed, _STREAM])

    def __call__(self, obs: Any, env_ids: Array) -> Any:
        generators = [self._generators[env_id] for env_id in env_ids[: self.num_used].tolist()]
        generators += [self._unused] * (len(env_ids) - self.num_used)
        return self._policy(obs, env_ids, generators)
