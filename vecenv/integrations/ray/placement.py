"""Placement: how many shards there are on the living nodes, and the bundle of a placement group for each."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from ...core.system.clock import now_ns
from ...errors import ConfigError, require
from ...ray_options import RayOptions

__all__ = ["Placement"]

#: Nanoseconds after which a placement group is looked at again.
_LOOK_NS = 250_000_000
#: Nanoseconds in which Ray may still show resources as reserved that a closed pool or an ended task has returned.
_SETTLE_NS = 1_000_000_000
#: Seconds between two looks in this time.
_SETTLE_PAUSE = 0.02
#: Seconds that a new placement group has to find its nodes before it is removed.
_PLACES_SECONDS = 1.0


class Node(NamedTuple):
    """A living node.

    Attributes:
        node_id: hexadecimal, as in Ray's dashboard.
        address: its IP address.
        resources: name -> amount, such as {"CPU": 16.0}.
        free: the same, without the amounts that are reserved now.
    """

    node_id: str
    address: str
    resources: Mapping[str, float]
    free: Mapping[str, float]

    def __str__(self) -> str:
        return f"node {self.address} ({self.node_id[:8]})"

    def describe_free(self, needed: Mapping[str, float]) -> str:
        """Return how much of the needed resources the node has, for messages."""
        amounts = [f"{name} {self.free.get(name, 0):g} free of {self.resources.get(name, 0):g}" for name in needed]
        return f"{self}: {', '.join(amounts)}"


def connected_ray() -> Any:
    """Return the module `ray`, which the program has connected to a cluster.

    Raises:
        DependencyError: Ray is not installed.
        ConfigError: Ray is not initialised, or this program is a Ray Client.
    """
    ray = require("ray", "ray")
    if ray.util.client.ray.is_connected():
        raise ConfigError(
            "backend='ray' does not work over Ray Client (ray://...), where each call passes a proxy; submit the "
            "program as a job, or start it on a node of the cluster",
            key="backend",
        )
    if not ray.is_initialized():
        raise ConfigError(
            "backend='ray': Ray is not initialised; call ray.init() first: vecenv starts no cluster", key="backend"
        )
    return ray


def living_nodes(ray: Any) -> list[Node]:
    """Return the living nodes, ordered by node_id."""
    # The only source of free resources by node; `ray.available_resources` has the sum of all nodes.
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    nodes = [
        Node(entry["NodeID"], entry["NodeManagerAddress"], entry["Resources"], free.get(entry["NodeID"], {}))
        for entry in ray.nodes()
        if entry["Alive"]
    ]
    return sorted(nodes)


def describe_resources(resources: Mapping[str, float]) -> str:
    """Return amounts of resources as text, such as 'CPU 16, GPU 1'."""
    return ", ".join(f"{name} {amount:g}" for name, amount in resources.items())


class Placement:
    """The bundles of all shards: those of a placement group of the program, or of a new one.

    There is at most one shard per env.

    Raises:
        DependencyError: Ray is not installed.
        ConfigError: Ray is not initialised, no node has the resources, or the placement group lacks bundles.
    """

    def __init__(self, options: RayOptions, num_envs: int) -> None:
        self._ray = connected_ray()
        self._options = options
        self._group = options.placement_group
        self._missing = ""  # The missing resources, as found last.
        self._look_at_ns = 0
        if self._group is None:
            num_shards, self.cpus_per_shard = self._fit_nodes(num_envs)
        else:
            num_shards, self.cpus_per_shard = self._fit_bundles()
        self.num_shards = min(num_shards, num_envs)

    # ---- size ------------------------------------------------------------------------------

    def _needed(self, cpus: int) -> dict[str, float]:
        gpus = {"GPU": self._options.num_gpus} if self._options.num_gpus else {}
        return {"CPU": cpus, **gpus, **self._options.resources}

    @property
    def runtime_env(self) -> dict[str, Any] | None:
        """Ray's runtime environment of the shards."""
        return None if self._options.runtime_env is None else dict(self._options.runtime_env)

    @property
    def needed(self) -> dict[str, float]:
        """Resources of one shard: name -> amount."""
        return self._needed(self.cpus_per_shard)

    def _fit_nodes(self, num_envs: int) -> tuple[int, int]:
        """Return the number of shards and their CPUs for a new placement group."""
        options = self._options
        nodes = living_nodes(self._ray)
        others = self._needed(options.cpus_per_shard or 1)
        fitting = [node for node in nodes if _has(node.resources, others)]
        if not fitting:
            present = "; ".join(node.describe_free(others) for node in nodes)
            raise ConfigError(
                f"ray: no living node has the resources of a shard ({describe_resources(others)}); {present}",
                key="cpus_per_shard",
            )
        num_shards = options.num_shards
        per_node = math.ceil(min(num_shards or 1, num_envs) / len(fitting))
        cpus = options.cpus_per_shard or max(1, int(min(node.resources["CPU"] for node in fitting)) // per_node)
        if num_shards is None:
            needed = self._needed(cpus)
            num_shards = self._count_free(len(fitting), needed)
            if not num_shards:
                present = "; ".join(node.describe_free(needed) for node in living_nodes(self._ray))
                raise ConfigError(
                    f"ray: no living node has the resources of a shard free ({describe_resources(needed)}); "
                    f"{present}. Set num_shards to wait for them",
                    key="num_shards",
                )
        return num_shards, cpus

    def _count_free(self, most: int, needed: Mapping[str, float]) -> int:
        """Return how many nodes have these resources free; waits up to 1 s for `most`, as Ray frees them late."""
        until_ns = now_ns() + _SETTLE_NS
        while (count := sum(_has(node.free, needed) for node in living_nodes(self._ray))) < most:
            if now_ns() >= until_ns:
                break
            time.sleep(_SETTLE_PAUSE)
        return count

    def _fit_bundles(self) -> tuple[int, int]:
        """Return the number of shards and their CPUs for the placement group of the program."""
        from ray.util.placement_group import PlacementGroup

        options = self._options
        if not isinstance(self._group, PlacementGroup):
            raise ConfigError(
                f"ray: placement_group: expected a PlacementGroup of Ray, got {self._group!r}", key="placement_group"
            )
        bundles = self._group.bundle_specs[options.first_bundle :]
        num_shards = len(bundles) if options.num_shards is None else options.num_shards
        if not 0 < num_shards <= len(bundles):
            raise ConfigError(
                f"ray: placement_group: {max(num_shards, 1)} shards need as many bundles from bundle "
                f"{options.first_bundle} on, and there are {len(bundles)}",
                key="placement_group",
            )
        bundles = bundles[:num_shards]
        cpus = options.cpus_per_shard or int(min(bundle.get("CPU", 0) for bundle in bundles))
        needed = self._needed(max(cpus, 1))
        for index, bundle in enumerate(bundles, options.first_bundle):
            if not _has(bundle, needed):
                raise ConfigError(
                    f"ray: placement_group: a shard needs {describe_resources(needed)}, and bundle {index} has "
                    f"{describe_resources(bundle)}",
                    key="placement_group",
                )
        return num_shards, cpus

    # ---- bundles ---------------------------------------------------------------------------

    def actor_options(self, shard: int) -> dict[str, Any]:
        """Return the options of Ray for the actor of a shard; makes the placement group if there is none."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        if self._group is None:
            self._group = self._ray.util.placement_group(
                [self.needed] * self.num_shards, strategy=self._options.placement
            )
        strategy = PlacementGroupSchedulingStrategy(self._group, self._options.first_bundle + shard)
        return {
            "num_cpus": self.cpus_per_shard,
            "num_gpus": self._options.num_gpus,
            "resources": dict(self._options.resources),
            "runtime_env": self.runtime_env,
            "scheduling_strategy": strategy,
        }

    def describe_missing(self, shard: int) -> str:
        """Return the resources that a shard waits for, and those of the living nodes."""
        now = now_ns()
        if now >= self._look_at_ns:
            nodes = living_nodes(self._ray)
            there = "; ".join(node.describe_free(self.needed) for node in nodes)
            self._missing = f"{there}{self._describe_group()}"
            self._look_at_ns = now + _LOOK_NS
        bundle = self._options.first_bundle + shard
        return f"{describe_resources(self.needed)} of bundle {bundle}; there is {self._missing}"

    def _describe_group(self) -> str:
        """Return how many bundles the placement group has, which Ray reserves together or not at all."""
        if self._group is None:
            return ""
        table = self._ray.util.placement_group_table(self._group)
        count = len(table["bundles"])
        bundles = f"{count} bundles of the group are placed at the same time" if count > 1 else "the group"
        return f"; {bundles} ({table['strategy']}, {table['state']})"

    def remove(self) -> None:
        """Remove the placement group if it was made here.

        Ray (2.60) may reserve the CPUs of a group forever if the group is removed while Ray looks for nodes.
        """
        if self._group is not None and self._options.placement_group is None:
            group, self._group = self._group, None
            try:
                group.wait(_PLACES_SECONDS)
            finally:
                self._ray.util.remove_placement_group(group)


def _has(resources: Mapping[str, float], needed: Mapping[str, float]) -> bool:
    return all(resources.get(name, 0) >= amount for name, amount in needed.items())
