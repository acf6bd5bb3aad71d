"""A manager whose envs live on the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from ..ray_options import read_ray_options
from ..registry import ENV_MANAGER_REGISTRY
from .base import BaseEnvManager
from .options import PROCESS_CONFIG

__all__ = ["RayEnvManager"]


@ENV_MANAGER_REGISTRY.register("ray")
class RayEnvManager(BaseEnvManager):
    """`SyncSubprocessEnvManager` with worker processes on the nodes of a Ray cluster; see docs/ray.md.

    The config key `ray` is a `vecenv.RayOptions` or a dict of its fields. The program calls `ray.init()` before
    `launch`. The key `num_workers` is refused: each shard has `cpus_per_shard` workers.
    """

    config: ClassVar[dict[str, Any]] = {**PROCESS_CONFIG, "ray": None}
    _backend = "ray"

    def __init__(self, env_fn: Sequence[Callable[[], Any]], cfg: Mapping[str, Any] | None = None) -> None:
        super().__init__(env_fn, cfg)
        read_ray_options(self._cfg["ray"])
