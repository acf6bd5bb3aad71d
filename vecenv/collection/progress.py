"""Progress: the state of the envs of a vector env between two batches, so that the next one goes on there.

It belongs to the vector env and not to a collector: all collectors of the same vector env share it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.layout.spec import Array, Spec
from ..errors import ConfigError
from ..vector import VectorEnv

__all__ = ["Progress", "progress_of"]


class Progress:
    """The envs as the last batch left them.

    Attributes:
        is_known: whether the other attributes are those of the envs. False before the first reset, and after an
            exception of an env.
        is_broken: whether a call of the envs was interrupted; results of it may still be outstanding.
        num_batches: the count of the vector env after the last receive; another one shows that other calls were made.
        obs_spec: the leaves of the observation space.
        obs: the current observation of each env, one array (N, *S) per leaf; undefined where `has_ended`.
        actions: the last action of each env, one array (N, *S) per leaf.
        has_ended: bool (N,), envs whose episode is over, and that must be reset before they step.
        is_fresh: bool (N,), envs whose episode begins with the current observation.
        episodes: int64 (N,), index of the current or ended episode of each env.
        steps: int64 (N,), steps of the current episode that were collected.
        returns: float64 (N,), rewards of the current episode that were collected.
        first: the env whose turn is next where not all can step; see `FlatPlan`.
        policy: the policy of the last batch.
    """

    def __init__(self, envs: VectorEnv) -> None:
        space, num_envs = envs.single_observation_space, envs.num_envs
        self.obs_spec = Spec(space, "obs")
        if not self.obs_spec.is_all_arrays:
            raise ConfigError(f"collect: observations of {space} have no fixed dtype and shape", key="envs")
        self.is_known = self.is_broken = False
        self.num_batches = -1
        self.obs = tuple(np.empty((num_envs, *leaf.shape), leaf.dtype) for leaf in self.obs_spec.leaves)
        action_leaves = Spec(envs.single_action_space, "action").leaves
        self.actions = tuple(np.zeros((num_envs, *leaf.shape), leaf.dtype) for leaf in action_leaves)
        self.has_ended = np.zeros(num_envs, np.bool_)
        self.is_fresh = np.zeros(num_envs, np.bool_)
        self.episodes = np.zeros(num_envs, np.int64)
        self.steps = np.zeros(num_envs, np.int64)
        self.returns = np.zeros(num_envs)
        self.first = 0
        self.policy: Any = None

    def begin_episodes(self, env_ids: Array | slice, obs: tuple[Array, ...]) -> None:
        """Record that envs were reset, with these first observations, leaves (K, *S)."""
        for current, leaf in zip(self.obs, obs):
            current[env_ids] = leaf
        self.has_ended[env_ids] = False
        self.is_fresh[env_ids] = True

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
        ConfigError: its observations have no fixed dtype and shape.
    """
    found = vars(envs).get(_ATTRIBUTE)
    if found is None:
        found = Progress(envs)
        setattr(envs, _ATTRIBUTE, found)
    return found
