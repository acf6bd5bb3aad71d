"""The cluster as vecenv sees it: Ray itself, and the living nodes with their resources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...errors import ConfigError, require

__all__ = ["Node", "connected_ray", "describe_resources", "living_nodes"]


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
