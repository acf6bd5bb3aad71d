"""V2 managers: the same envs, with a sequence of actions and one batch of observations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..errors import SpaceError, require
from ..registry import ENV_MANAGER_REGISTRY
from ..tree import TreeArray
from .base import BaseEnvManager
from .options import BASE_CONFIG, PROCESS_CONFIG, V2_CONFIG
from .subprocess import SyncSubprocessEnvManager
from .timesteps import TimestepBuffers, TreeBuffers
from .trees import NUMBERS, as_tree, as_treetensor, untree

__all__ = ["BaseEnvManagerV2", "SubprocessEnvManagerV2"]


@ENV_MANAGER_REGISTRY.register("base_v2")
class BaseEnvManagerV2(BaseEnvManager):
    """`BaseEnvManager` with batches: `step` takes actions in the order of `ready_obs_id`.

    With the config key `trees` 'treetensor', `ready_obs` and the results of `step` are
    `treetensor.numpy.ndarray` objects, which `treetensor.torch.as_tensor` takes, and infos have only numbers. By
    default they are `vecenv.ding.TreeArray` objects.

    Example:
        >>> import gymnasium
        >>> with BaseEnvManagerV2([lambda: gymnasium.make("CartPole-v1")] * 3) as manager:
        ...     manager.launch()
        ...     trees = manager.step([0, 1, 0])
        ...     manager.ready_obs.shape, [tree.env_id.item() for tree in trees]
        ((3, 4), [0, 1, 2])
    """

    config: ClassVar[dict[str, Any]] = {**BASE_CONFIG, **V2_CONFIG}
    _buffers_class: ClassVar[type[TimestepBuffers]] = TreeBuffers

    def __init__(self, env_fn: Sequence[Callable[[], Any]], cfg: Mapping[str, Any] | None = None) -> None:
        super().__init__(env_fn, cfg)
        self._returns_treetensors = self._cfg.get("trees") == "treetensor"
        if self._returns_treetensors:
            require("treetensor.numpy", "treetensor")

    @property
    def ready_obs(self) -> Any:
        """Newest observations of the envs that can be stepped, in the order of `ready_obs_id`.

        Leaves are (B, *S): a tree for Dict and Tuple spaces, else one array. B is 0 if no env is ready. Usually it
        is the last batch itself, so do not write to it.

        Raises:
            ClosedError: the manager has not been launched, or is closed.
        """
        obs = self._ready_batch()
        return obs.to_treetensor() if self._returns_treetensors and isinstance(obs, TreeArray) else obs

    def _ready_batch(self) -> Any:
        pool = self._manager_pool.require_pool("ready_obs")
        ids = self.ready_obs_id
        if not ids:
            return as_tree(pool.obs_spec.batch(lambda leaf: np.empty((0, *leaf.shape), leaf.dtype), lambda _: ()))
        whole = self._last_obs.stacked(ids)
        if whole is None:
            return TreeArray.stack([as_tree(self._last_obs.rows[env_id]) for env_id in ids])
        return as_tree(whole)

    def step(self, actions: Any) -> list[Any]:
        """Step envs and wait for all of them.

        Args:
            actions: one per ready env, in the order of `ready_obs_id`: a sequence, an array, or a
                tree of arrays (B, ...). Or a dict by env id, for these envs only.

        Returns:
            One tree per env, in the order of the actions: `obs`, `reward` float32 with the shape of the reward
            space, (1,) by default, `done` bool (), `info`, `env_id` int64 (). Keys of `info` are changed to
            identifiers. A list or tuple of infos, one per agent, is a list or tuple of trees; with treetensor it is
            a tree with the keys `_0`, `_1`.

        Raises:
            SpaceError: a wrong number of actions.
            Exception: as `step` of the manager with dicts. The attribute `timesteps` of an env's exception has the
                timesteps of the other envs, {env_id: tree}.
        """
        self._manager_pool.require_pool("step")
        ids, values = self._read_actions(actions)
        if not ids:
            self._check_any_running()
            return []
        return self._present(self._step_envs(ids, values))

    def _present(self, timesteps: list[Any]) -> list[Any]:
        return list(map(as_treetensor, timesteps)) if self._returns_treetensors else timesteps

    def _read_actions(self, actions: Any) -> tuple[list[int], list[Any]]:
        if isinstance(actions, Mapping) and all(isinstance(key, int | np.integer) for key in actions):
            return list(actions), [self._untree(action) for action in actions.values()]
        ids = self.ready_obs_id
        if isinstance(actions, Mapping | TreeArray) or hasattr(actions, "json"):
            actions = TreeArray(actions).split()
        if not isinstance(actions, Iterable):
            raise SpaceError(f"actions: expected one per ready env {ids}, got {actions!r}", path="actions")
        values = list(actions)
        if not NUMBERS.issuperset(map(type, values)):
            values = [self._untree(action) for action in values]
        if len(values) != len(ids):
            raise SpaceError(
                f"actions: expected {len(ids)}, one per ready env {ids}, got {len(values)}", path="actions"
            )
        return ids, values

    def _untree(self, action: Any) -> Any:
        """Return a tree as the nested value that an env expects, and other actions unchanged."""
        if not hasattr(action, "json"):
            return action
        return untree(self._manager_pool.require_pool("step").action_spec.root, action.json())


@ENV_MANAGER_REGISTRY.register("subprocess_v2")
class SubprocessEnvManagerV2(BaseEnvManagerV2, SyncSubprocessEnvManager):
    """`SyncSubprocessEnvManager` with batches: `step` takes actions in the order of `ready_obs_id`.

    The config key `trees` is that of `BaseEnvManagerV2`.
    """

    config: ClassVar[dict[str, Any]] = {**PROCESS_CONFIG, **V2_CONFIG}
