"""RayOptions: the options of a pool on the nodes of a Ray cluster; this file imports no Ray."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import ConfigError
from .options import read_fields
from .values.checks import check_seconds, check_whole, is_positive, nearest

__all__ = ["RayOptions"]

#: Options that may be None.
_OPTIONAL = ("num_shards", "cpus_per_shard", "num_workers", "runtime_env")
PLACEMENTS = ("SPREAD", "STRICT_SPREAD", "PACK")


@dataclass(frozen=True, kw_only=True)
class RayOptions:
    """Options of the backend "ray", as the argument `backend=` of vector envs: shards, and their nodes in a cluster.

    A shard is an actor of Ray with a part of the envs and worker processes of its own. Results do not depend on the
    number of shards or on their nodes. The program calls `ray.init()` itself. See docs/ray.md.

    Example:
        >>> import vecenv
        >>> options = vecenv.RayOptions(num_shards=4, cpus_per_shard=16)
        >>> options.placement, options.shard_timeout
        ('SPREAD', 30.0)

    Attributes:
        num_shards: number of shards. None (default): one per living node that has `cpus_per_shard` CPUs free, or one
            per bundle of `placement_group`. At most one per env.
        cpus_per_shard: CPUs that Ray reserves for each shard, and worker processes of each shard. None (default): the
            smallest whole number of CPUs of these nodes or bundles; if `num_shards` is more than one per node, the
            shards of a node share it.
        num_workers: 'auto': each shard measures one of its envs, and chooses workers and threads for its CPUs; cheap
            envs are stepped in the actor itself. The reason is in `statistics()["choice"]`. None (default):
            `cpus_per_shard`.
        placement: 'SPREAD' (default) puts shards on different nodes where it can, 'STRICT_SPREAD' never puts two on one
            node, 'PACK' puts them on few nodes; as of Ray's placement groups.
        placement_group: a placement group of the program; each shard uses one of its bundles. A trial of Ray Tune must
            use its own one. None (default): a new one is made, and removed by `close`.
        first_bundle: index of the bundle of shard 0 in `placement_group`. Default: 0. Bundles before it stay free.
        resources: further resources of each shard, such as {"simulator": 1}. Default: none.
        num_gpus: GPUs of each shard. Default: 0.
        runtime_env: Ray's runtime environment of shards, such as {"pip": ["my-envs"]}. Default: that of the program.
        shard_timeout: seconds without any reply after which a shard counts as hung and is replaced. Default: 30.
        replace_timeout: seconds that the successor of a lost shard may wait for room in the cluster. Default: 300.

    Raises:
        ConfigError: a field has a value that it cannot have.
    """

    num_shards: int | None = None
    cpus_per_shard: int | None = None
    num_workers: str | None = None
    placement: str = "SPREAD"
    placement_group: Any = None
    first_bundle: int = 0
    resources: Mapping[str, float] = field(default_factory=dict, hash=False)
    num_gpus: float = 0
    runtime_env: Mapping[str, Any] | None = field(default=None, hash=False)
    shard_timeout: float = 30.0
    replace_timeout: float = 300.0

    def __post_init__(self) -> None:
        for option, check in _CHECKS.items():
            value = getattr(self, option)
            if value is not None or option not in _OPTIONAL:
                try:
                    object.__setattr__(self, option, check(f"RayOptions: {option}", value))
                except ConfigError as error:
                    raise ConfigError(str(error), key=option) from None
        if self.first_bundle and self.placement_group is None:
            raise ConfigError(
                "RayOptions: first_bundle: only with a placement_group of the program", key="first_bundle"
            )
        if self.placement_group is not None and self.placement != "SPREAD":
            raise ConfigError(
                "RayOptions: placement: not with placement_group, whose own strategy places its bundles",
                key="placement",
            )


def read_ray_options(ray: Any) -> RayOptions:
    """Return the argument or key `ray` of a front end: a `RayOptions`, a dict of its fields, or None.

    Raises:
        ConfigError: a key is unknown, or a value is wrong.
    """
    return read_fields("ray", RayOptions, ray)


def read_backend(backend: Any, ray: Any) -> Any:
    """Return a `RayOptions` if the backend is "ray", else `backend`; `ray` is as for `read_ray_options`.

    Raises:
        ConfigError: a key is unknown, a value is wrong, or the backend is another one.
    """
    if backend == "ray":
        return read_ray_options(ray)
    if ray is not None:
        raise ConfigError(f"ray: only with backend='ray', and backend is {backend!r}", key="ray")
    return backend


def _num_workers(name: str, value: Any) -> str:
    if value != "auto":
        raise ConfigError(f"{name}: expected 'auto' or None, got {value!r}; cpus_per_shard sets the number of workers")
    return str(value)


def _placement(name: str, value: Any) -> str:
    if value not in PLACEMENTS:
        near = nearest(value.upper(), PLACEMENTS) if isinstance(value, str) else None
        hint = f"; did you mean {near!r}?" if near else ""
        raise ConfigError(f"{name}: expected one of {PLACEMENTS}, got {value!r}{hint}")
    return str(value)


def _resources(name: str, value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{name}: expected a dict of names and amounts, got {value!r}")
    for key, amount in value.items():
        if key in ("CPU", "GPU"):
            option = "cpus_per_shard" if key == "CPU" else "num_gpus"
            raise ConfigError(f"{name}: {key!r} has an option of its own, {option}")
        if not is_positive(amount):
            raise ConfigError(f"{name}[{key!r}]: expected a number above 0, got {amount!r}")
    return dict(value)


def _gpus(name: str, value: Any) -> float:
    if isinstance(value, bool) or not (is_positive(value) or value == 0):
        raise ConfigError(f"{name}: expected a number of at least 0, got {value!r}")
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def _runtime_env(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name}: expected a dict or None, got {value!r}")
    return dict(value)


_COUNT = functools.partial(check_whole, low=1)
#: Field -> check(name, value), which returns the value in Python's types or raises ConfigError.
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "num_shards": _COUNT,
    "cpus_per_shard": _COUNT,
    "num_workers": _num_workers,
    "placement": _placement,
    "first_bundle": functools.partial(check_whole, low=0),
    "resources": _resources,
    "num_gpus": _gpus,
    "runtime_env": _runtime_env,
    "shard_timeout": check_seconds,
    "replace_timeout": check_seconds,
}
