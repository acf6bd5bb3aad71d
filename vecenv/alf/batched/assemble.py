"""Assembler: builds a batched time step from rows, by whole columns, without a Python loop over envs.

    rows of the pool   obs leaves | reward | terminated | truncated | flags | infos
                            |          |         |            |         |
    time step          observation   reward    discount    step_type  FIRST    env_info

Rows are ordered by env. In rows of a `TimeStepAdapter`, leaves of the observation contain step type and discount, and
the k rows of a batch are laid end to end. If an episode could not be restored after a crash, these leaves are its last
delivered ones, and its LAST step is made here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vecenv.alf.base.known_infos import KnownInfos
from vecenv.alf.base.timestep import StepType, TimeStep
from vecenv.alf.batched.adapter import EnvDescription
from vecenv.core.layout.flags import RowFlag
from vecenv.core.layout.rows import AnyRows
from vecenv.core.layout.spec import Array, Leaf
from vecenv.core.parent.batch import Batch
from vecenv.core.pool.pool import Pool
from vecenv.values.nested import map_structure

_FIRST = RowFlag.RESET | RowFlag.AUTORESET
_LAST = int(StepType.LAST)


class Assembler:
    """Builds time steps of B = `size` rows of the environments of a started pool.

    Attributes:
        known_infos: the only state.
    """

    def __init__(self, pool: Pool, description: EnvDescription, size: int) -> None:
        self._spec = pool.obs_spec
        self._copy_timer = pool.copy_timer
        self._root = pool.obs_spec.root
        self._size = size
        self._num_envs = size // (description.batch_size or 1)
        self._rows_per_env = description.batch_size
        self._derives_step_types = description.discount is not None
        self._is_discounted = description.discount not in (None, 1.0)
        # Initial values, which are copied and never changed.
        self._discounts = np.full(size, 1.0 if description.discount is None else description.discount, np.float32)
        self._mid = np.full(size, StepType.MID, np.int32)
        self._reward_shape = (size, *description.specs.reward.shape)
        self._observation_spec, self._action_spec = description.specs.observation, description.specs.prev_action
        self._action_leaf = None if isinstance(self._action_spec, (dict, tuple, list)) else self._action_spec.dtype
        self._leaf_dtype: np.dtype[Any] = getattr(self._observation_spec, "dtype", np.dtype(np.float32))
        self._whole_spec = (self._observation_spec, None, None, self._action_spec)  # Only the structure is used.
        self.known_infos = KnownInfos(description.specs.env_info, (size,))
        self._env_ids = np.arange(size, dtype=np.int32)

    def build(self, batch: Batch, prev_action: Any, infos: dict[str, Any]) -> TimeStep:
        """Return the time step of a batch.

        Args:
            batch: the rows of all envs, in order; they are copied.
            prev_action: nest of arrays (B, *S), changed in place: rows of FIRST steps become 0.
            infos: arrays (B, ...) that may be kept; numeric keys of earlier infos are added as zeros.
        """
        rows, flags = batch.rows, batch.flags
        if self._derives_step_types:
            step_type, discount = self._derive_step_types(rows, flags, prev_action)
            observation = self._copied(self._copy_observation, rows)
        else:
            unpack = self._unpack_time_steps
            step_type, discount, observation, prev_action = self._copied(unpack, rows, flags, prev_action)
        reward = _own(rows.column("reward"), np.dtype(np.float32))
        if reward.shape != self._reward_shape:
            reward = reward.reshape(self._reward_shape)
        if infos or self.known_infos.zeros:
            infos = self.known_infos.complete(infos)
        return TimeStep(step_type, reward, discount, observation, prev_action, self._env_ids.copy(), (), infos)

    def _copied(self, copy: Callable[..., Any], *args: Any) -> Any:
        timer = self._copy_timer
        return copy(*args) if timer is None else timer.run(self._num_envs, copy, *args)

    def _derive_step_types(self, rows: AnyRows, flags: int, prev_action: Any) -> tuple[Array, Array]:
        terminated, truncated = rows.column("terminated"), rows.column("truncated")
        step_type = self._mid + (terminated | truncated)  # MID or LAST
        discount = self._discounts.copy()
        if self._is_discounted:
            discount[truncated] = 1.0
        discount[terminated] = 0.0
        if flags & _FIRST:
            first = (rows.column("flags") & _FIRST).nonzero()[0]  # few rows: indices cost less than a mask
            step_type[first] = 0
            discount[first] = 1.0
            if self._action_leaf is not None:
                prev_action[first] = 0
            else:
                map_structure(lambda leaf: leaf.__setitem__(first, 0), prev_action)
        return step_type, discount

    def _copy_observation(self, rows: AnyRows) -> Any:
        if isinstance(self._root, Leaf):
            return _own(rows.obs(0), self._leaf_dtype)
        return map_structure(lambda spec, view: _own(view, spec.dtype), self._observation_spec, self._nested(rows))

    def _unpack_time_steps(self, rows: AnyRows, flags: int, sent: Any) -> Any:
        # Spaces cannot describe lists and named tuples, so the structure of the specs is used.
        observation, step_type, discount, prev_action = map_structure(
            self._copy_leaf, self._whole_spec, self._nested(rows)
        )
        if flags & RowFlag.REPEATS:  # the envs that raised repeat their last time steps
            repeats = np.repeat((rows.column("flags") & RowFlag.REPEATS) != 0, self._rows_per_env or 1)
            step_type[repeats], discount[repeats] = StepType.MID, 1.0
        truncated = rows.column("truncated")
        if truncated.any():
            abandoned = self._abandoned(truncated, step_type)
            step_type[abandoned] = _LAST
            discount[abandoned] = 1.0
            map_structure(
                lambda _, own, leaf: own.__setitem__(abandoned, leaf[abandoned]), self._action_spec, prev_action, sent
            )
        return step_type, discount, observation, prev_action

    def _abandoned(self, truncated: Array, step_type: Array) -> Array:
        """Return bool (B,), True where an episode was abandoned: the pool ended it, not the environment."""
        if self._rows_per_env is not None:  # the adapter of a batch never sends ends, see `TimeStepAdapter`
            return np.repeat(truncated, self._rows_per_env)
        abandoned: Array = truncated & (step_type != _LAST)
        return abandoned

    def _nested(self, rows: AnyRows) -> Any:
        return self._spec.batch(lambda leaf: rows.obs(leaf.index), lambda node: ())

    def _copy_leaf(self, spec: Any, view: Array) -> Array:
        """Return a copy of a leaf, (B, *S); the rows of batches are laid end to end."""
        own = np.array(view)
        return own.reshape(self._size, *view.shape[2:]) if self._rows_per_env is not None else own


def _own(view: Array, dtype: np.dtype[Any]) -> Array:
    if view.dtype == dtype:
        return view.copy()
    with np.errstate(over="ignore"):  # values beyond float32 become infinite
        return view.astype(dtype)
