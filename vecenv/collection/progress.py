"""Progress: the state of the envs of a vector env between two batches, and the columns of its observations.

It belongs to the vector env and not to a collector: all collectors of the same vector env share it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space

from ..core.layout.spec import Array, Leaf, NoneNode, ObjectNode, Spec, map_columns, nest_columns
from ..errors import ConfigError, StateError
from ..gymnasium_api.registrations import has_own_batches
from ..vector import VectorEnv
from ..vector.base import ClosedVectorEnvError

__all__ = ["SAME_POLICY", "ObsColumns", "Progress", "prepare", "progress_of", "reset_envs"]

#: The policy of saved progress: the next policy continues its episodes.
SAME_POLICY: Any = object()


class ObsColumns:
    """Observations as a flat list of arrays, one for each part of their space; `spec` is the layout of the space.

        Dict(camera=Box(3, 64, 64), note=Text(8))      columns: uint8 (B, 3, 64, 64), object (B,)

    Parts with a fixed dtype and shape come first. Each other part is a column of objects; one that is always None has
    none.

    Raises:
        ConfigError: functions of the caller batch the observations, so they have no rows of a known form.
    """

    def __init__(self, space: Space[Any]) -> None:
        if has_own_batches(space):
            raise ConfigError(
                f"collect: batches of {space} are made by functions of the program, so they have no columns", key="envs"
            )
        self.spec = Spec(space, "obs")
        self._is_plain = isinstance(self.spec.root, Leaf)
        self._num_leaves = len(self.spec.leaves)
        objects = [(np.dtype(object), ())] * self.spec.num_objects
        self._forms: list[tuple[Any, tuple[int, ...]]] = [(leaf.dtype, leaf.shape) for leaf in self.spec.leaves]
        self._forms += objects

    def make_empty(self, num_rows: int) -> list[Array]:
        return [np.empty((num_rows, *shape), dtype) for dtype, shape in self._forms]

    def leaves_of(self, columns: Sequence[Array]) -> tuple[Array, ...]:
        """Return the columns with a fixed dtype and shape, one for each leaf of `spec`."""
        return tuple(columns[: self._num_leaves])

    def flatten(self, obs: Any, count: int) -> Sequence[Array]:
        """Return the columns of B = `count` observations of a vector env; arrays are not copied."""
        if self._is_plain:
            return (obs,)
        if self.spec.is_all_arrays:
            return self.spec.flatten_batch(obs, count)
        leaves: list[Array] = []
        map_columns(self.spec.root, obs, functools.partial(_append, leaves))
        return [*leaves, *(np.fromiter(values, object, len(values)) for values in self.spec.objects(obs))]

    def stack(self, observations: Any, rows: Array) -> list[Array]:
        """Return columns (K, *S) of observations of single envs: those at the indices `rows`, int64 (K,)."""
        found = self.make_empty(len(rows))
        for number, row in enumerate(rows.tolist()):
            values: list[Any] = []
            map_columns(self.spec.root, observations[row], functools.partial(_append, values))
            for column, value in zip(found, [*values, *self.spec.objects(observations[row])]):
                column[number] = value
        return found

    def nest(self, columns: Sequence[Array]) -> Any:
        """Return columns as observations of a vector env: nested like the space, with tuples of B objects."""
        if self._is_plain:
            return columns[0]
        return self._nest(columns, lambda node: tuple(self._objects_of(columns, node)))

    def nest_arrays(self, columns: Sequence[Array], shape: tuple[int, ...]) -> Any:
        """Return columns nested like the space, with the leading shape `shape` and arrays of objects."""
        shaped = [column.reshape(*shape, *column.shape[1:]) for column in columns]
        return self._nest(shaped, lambda node: self._objects_of(shaped, node, shape))

    def _nest(self, columns: Sequence[Array], objects: Callable[[ObjectNode], Any]) -> Any:
        return nest_columns(self.spec.root, lambda leaf: columns[leaf.index], objects)

    def _objects_of(self, columns: Sequence[Array], node: ObjectNode, shape: tuple[int, ...] | None = None) -> Array:
        if isinstance(node, NoneNode):
            return np.full(len(columns[0]) if shape is None else shape, None, object)
        return columns[self._num_leaves + node.index]


def _append(values: list[Any], value: Any) -> Any:
    values.append(value)
    return value


class Progress:
    """The envs as the last batch left them; `spaces` are those of one env, with the shape of a reward.

    Attributes:
        is_known: whether the other attributes are those of the envs. False before the first reset, and after an
            exception of an env.
        is_broken: whether a call of the envs was interrupted; results of it may still be outstanding.
        num_batches: that of the vector env after the last receive; another number shows that other calls were made.
        obs_columns: the columns of observations.
        obs: the current observation of each env, one array (N, *S) per column; undefined where `has_ended`.
        actions: the last action of each env, one array (N, *S) per leaf.
        has_ended: bool (N,), envs whose episode is over, and that must be reset before they step.
        is_fresh: bool (N,), envs whose episode begins with the current observation.
        episodes: int64 (N,), index of the current or ended episode of each env.
        steps: int64 (N,), steps of the current episode that were collected.
        returns: float64 (N, *K), rewards of the current episode that were collected.
        first: the env that steps next where not all can; see `FlatPlan`.
        policy: the policy of the last batch.
    """

    def __init__(self, num_envs: int, spaces: Any) -> None:
        self.obs_columns = ObsColumns(spaces.observation_space)
        self.is_known = self.is_broken = False
        self.num_batches = -1
        self.obs = tuple(self.obs_columns.make_empty(num_envs))
        action_leaves = Spec(spaces.action_space, "action").leaves
        self.actions = tuple(np.zeros((num_envs, *leaf.shape), leaf.dtype) for leaf in action_leaves)
        self.has_ended = np.zeros(num_envs, np.bool_)
        self.is_fresh = np.zeros(num_envs, np.bool_)
        self.episodes = np.zeros(num_envs, np.int64)
        self.steps = np.zeros(num_envs, np.int64)
        self.reward_shape: tuple[int, ...] = spaces.reward_shape
        self.returns = np.zeros((num_envs, *spaces.reward_shape))
        self.first = 0
        self.policy: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("obs_columns", "policy")}

    def complete(self, spaces: Any) -> None:
        """Add what a pickle leaves out: the layout of the observations, and the policy."""
        if "policy" not in vars(self):
            self.obs_columns, self.policy = ObsColumns(spaces.observation_space), SAME_POLICY

    def begin_episodes(self, env_ids: Array | slice, obs: Sequence[Array]) -> None:
        """Record that envs were reset, with these first observations, columns (K, *S)."""
        for current, leaf in zip(self.obs, obs):
            current[env_ids] = leaf
        self.has_ended[env_ids] = False
        self.is_fresh[env_ids] = True

    def part(self, env_ids: slice) -> list[Array]:
        """Return views of `obs`, `actions`, `has_ended` and `is_fresh` of these envs."""
        return [column[env_ids] for column in (*self.obs, *self.actions, self.has_ended, self.is_fresh)]

    def put_part(self, env_ids: slice, part: Sequence[Array]) -> None:
        for column, values in zip(self.part(env_ids), part, strict=True):
            column[...] = values

    def count_abandoned(self, env_ids: Array | slice) -> None:
        """Begin new counts for envs that leave their episode in the middle; their next episode has the next index."""
        self.episodes[env_ids] += self.steps[env_ids] > 0
        self.steps[env_ids] = 0
        self.returns[env_ids] = 0.0


#: The name of the progress in the `extra_state` of a vector env. A table with weak keys would keep both: the progress
#: has the policy, and a policy or an exception of it may refer to the vector env.
_NAME = "collection"


def progress_of(envs: VectorEnv) -> Progress:
    """Return the progress of a vector env, the same object until `load_state_dict`; also that of a saved state.

    Raises:
        ConfigError: functions of the program batch its observations.
    """
    found: Progress | None = envs.extra_state.get(_NAME)
    if found is None:
        found = envs.extra_state[_NAME] = Progress(envs.num_envs, envs.pool.spaces)
    found.complete(envs.pool.spaces)
    return found


def prepare(envs: VectorEnv, progress: Progress, what: str, seed: Any) -> None:
    """Reset all envs, unless their progress is known and `seed` is None; `what` names the caller, for errors."""
    if envs.closed:
        raise ClosedVectorEnvError(f"{what}: the vector env is closed")
    if envs.num_outstanding and not progress.is_broken:
        raise StateError(f"{what}: {envs.num_outstanding} envs owe the results of earlier calls; receive them first")
    if seed is None and progress.is_known and envs.num_batches == progress.num_batches:
        return
    reset_envs(envs, progress, None, seed)


def reset_envs(envs: VectorEnv, progress: Progress, env_ids: Array | None, seed: Any = None) -> None:
    """Reset these envs, int64 (K,), or all."""
    progress.is_known, progress.is_broken = False, True  # a Ctrl-C during the reset leaves it outstanding
    try:
        obs, _ = envs.reset(env_ids, seed=seed)
    except Exception:
        progress.is_broken = envs.num_outstanding > 0
        raise
    chosen, count = (slice(None), envs.num_envs) if env_ids is None else (env_ids, len(env_ids))
    progress.count_abandoned(chosen)
    progress.begin_episodes(chosen, progress.obs_columns.flatten(obs, count))
    progress.is_known, progress.is_broken = True, False
    progress.num_batches = envs.num_batches
