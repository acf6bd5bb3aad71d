"""Progress: the state of the envs of a vector env between two batches, so that the next one goes on there.

It belongs to the vector env and not to a collector: all collectors of the same vector env share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium import Space

from ..core.layout.spec import Array, Spec
from ..errors import StateError
from ..vector import VectorEnv
from ..vector.errors import ClosedVectorEnvError
from .observations import ObsColumns

__all__ = ["Progress", "ProgressPart", "SteppedEnvs", "prepare", "progress_of"]


class SteppedEnvs(Protocol):
    """The part of `VectorEnv` that a batch is collected with; the envs of a shard have it, too."""

    num_envs: int
    metadata: dict[str, Any]

    @property
    def num_batches(self) -> int:
        """The number of batches that were received so far."""

    @property
    def num_outstanding(self) -> int:
        """The number of envs whose step or reset was begun and not received yet."""

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Step all envs and wait for them."""

    def send(self, actions: Any, env_id: Any) -> None:
        """Begin to step some envs."""

    def async_reset(self, env_id: Any) -> None:
        """Begin to reset some envs."""

    def recv(self, min_count: int) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Wait for the results of at least this number of envs."""


class ProgressPart(NamedTuple):
    """The progress of some consecutive envs, without counts: the fields are those of `Progress`, (n, ...)."""

    obs: tuple[Array, ...]
    actions: tuple[Array, ...]
    has_ended: Array
    is_fresh: Array


class Progress:
    """The envs as the last batch left them.

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
        first: the env whose turn is next where not all can step; see `FlatPlan`.
        policy: the policy of the last batch.
    """

    def __init__(
        self,
        num_envs: int,
        observation_space: Space[Any],
        action_space: Space[Any],
        reward_shape: tuple[int, ...],
    ) -> None:
        self.obs_columns = ObsColumns(observation_space)
        self.is_known = self.is_broken = False
        self.num_batches = -1
        self.obs = tuple(self.obs_columns.make_empty(num_envs))
        action_leaves = Spec(action_space, "action").leaves
        self.actions = tuple(np.zeros((num_envs, *leaf.shape), leaf.dtype) for leaf in action_leaves)
        self.has_ended = np.zeros(num_envs, np.bool_)
        self.is_fresh = np.zeros(num_envs, np.bool_)
        self.episodes = np.zeros(num_envs, np.int64)
        self.steps = np.zeros(num_envs, np.int64)
        self.reward_shape = reward_shape
        self.returns = np.zeros((num_envs, *reward_shape))
        self.first = 0
        self.policy: Any = None

    def begin_episodes(self, env_ids: Array | slice, obs: Sequence[Array]) -> None:
        """Record that envs were reset, with these first observations, columns (K, *S)."""
        for current, leaf in zip(self.obs, obs):
            current[env_ids] = leaf
        self.has_ended[env_ids] = False
        self.is_fresh[env_ids] = True

    def part(self, env_ids: slice) -> ProgressPart:
        return ProgressPart(
            tuple(leaf[env_ids] for leaf in self.obs),
            tuple(leaf[env_ids] for leaf in self.actions),
            self.has_ended[env_ids],
            self.is_fresh[env_ids],
        )

    def put_part(self, env_ids: slice, part: ProgressPart) -> None:
        ours: Sequence[Array] = (*self.obs, *self.actions, self.has_ended, self.is_fresh)
        for column, values in zip(ours, (*part.obs, *part.actions, part.has_ended, part.is_fresh), strict=True):
            column[env_ids] = values

    def count_abandoned(self, env_ids: Array | slice) -> None:
        """Begin new counts for envs that leave their episode in the middle; their next episode has the next index."""
        self.episodes[env_ids] += self.steps[env_ids] > 0
        self.steps[env_ids] = 0
        self.returns[env_ids] = 0.0


#: The attribute of a vector env that holds its progress. A table with weak keys would keep both: the progress has the
#: policy, and a policy or an exception of it may refer to the vector env.
_ATTRIBUTE = "_collection_progress"


def progress_of(envs: VectorEnv) -> Progress:
    """Return the progress of a vector env, the same object each time.

    Raises:
        ConfigError: functions of the program batch its observations.
    """
    found = vars(envs).get(_ATTRIBUTE)
    if found is None:
        spaces = envs.pool.spaces
        found = Progress(envs.num_envs, spaces.observation_space, spaces.action_space, spaces.reward_shape)
        setattr(envs, _ATTRIBUTE, found)
    return found


def prepare(envs: VectorEnv, progress: Progress, what: str, seed: Any) -> None:
    """Reset all envs, unless their progress is known and `seed` is None; `what` names the caller, for errors."""
    if envs.closed:
        raise ClosedVectorEnvError(f"{what}: the vector env is closed")
    if envs.num_outstanding and not progress.is_broken:
        raise StateError(f"{what}: {envs.num_outstanding} envs owe the results of earlier calls; receive them first")
    if seed is None and progress.is_known and envs.num_batches == progress.num_batches:
        return
    progress.is_known, progress.is_broken = False, True  # a Ctrl-C during the reset leaves it outstanding
    try:
        obs, _ = envs.reset(seed=seed)
    except Exception:
        progress.is_broken = envs.num_outstanding > 0
        raise
    progress.count_abandoned(slice(None))
    progress.begin_episodes(slice(None), progress.obs_columns.flatten(obs, envs.num_envs))
    progress.is_known, progress.is_broken = True, False
    progress.num_batches = envs.num_batches
