"""A Ray cluster of simulated nodes on this machine, and everything of vecenv that is left in it."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

__all__ = ["SimulatedCluster", "find_leftovers", "pool_processes", "simulated_cluster", "title_of"]

_ROOT = Path(__file__).parents[1]
#: Bytes of the object store of each node.
_STORE_NBYTES = 150 << 20
#: Ray notices the end of a node after a few seconds.
_SETTINGS = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}
#: The folder of Ray; all of its processes inherit this variable, and so they are known.
_FOLDER = "RAY_TMPDIR"


class SimulatedCluster:
    """A head without CPUs, and nodes; the process is connected to it.

    Attributes:
        nodes: the nodes beside the head, as Ray describes them.
        address: for `ray.init`.
    """

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": _SETTINGS}
        self._cluster = Cluster(True, head_node_args={**head, "object_store_memory": _STORE_NBYTES})
        self.nodes: list[Any] = []
        self.address: str = self._cluster.address

    def add_node(self, num_cpus: int = 2) -> Any:
        """Add a node; only in the main thread."""
        node = self._cluster.add_node(num_cpus=num_cpus, object_store_memory=_STORE_NBYTES)
        self.nodes.append(node)
        return node

    def remove_node(self, node: Any) -> None:
        """Kill all processes of a node at once."""
        self.nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def node_of(self, node_id: str) -> Any:
        """Return the node with this id."""
        return next(node for node in self.nodes if node.node_id == node_id)

    def shut_down(self) -> None:
        """End all nodes."""
        self._cluster.shutdown()


@contextlib.contextmanager
def simulated_cluster(num_nodes: int = 2, num_cpus: int = 2) -> Iterator[SimulatedCluster]:
    """Start a cluster, and connect this process to it.

    Args:
        num_nodes: nodes beside the head.
        num_cpus: CPUs that each of them claims to have.
    """
    import ray

    folder = tempfile.mkdtemp(prefix="vecenv-", dir="/tmp")  # the paths of Ray's sockets must be short
    path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    cluster = None
    with mock.patch.dict(os.environ, {_FOLDER: folder, "PYTHONPATH": path}):  # Ray notes there that a cluster exists
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Ray warns of itself
                cluster = SimulatedCluster()
                for _ in range(num_nodes):
                    cluster.add_node(num_cpus)
                ray.init(cluster.address, log_to_driver=False, logging_level="error")
            yield cluster
        finally:
            ray.shutdown()
            if cluster is not None:
                cluster.shut_down()
            shutil.rmtree(folder, ignore_errors=True)


def find_leftovers() -> list[str]:
    """Describe the actors, placement groups, references of objects and processes of pools that exist now."""
    import ray
    from ray._private import state
    from ray.util import placement_group_table

    counts = ray._private.worker.global_worker.core_worker.get_all_reference_counts()
    groups = placement_group_table().values()
    return [
        *(f"actor {one['ActorID']}" for one in state.actors().values() if one["State"] != "DEAD"),
        *(f"placement group {one['placement_group_id']}" for one in groups if one["state"] != "REMOVED"),
        *(f"object {one}" for one in counts),
        *(f"process {pid} ({title})" for pid, title in pool_processes()),
    ]


def pool_processes() -> list[tuple[int, str]]:
    """Return pid and title of each process of shards and their workers in this cluster."""
    mark = f"{_FOLDER}={os.environ[_FOLDER]}".encode()
    found = []
    for pid in psutil.pids():
        title = title_of(pid)
        with contextlib.suppress(OSError):
            is_ours = title.startswith(("vecenv worker", "ray::ShardActor"))
            if is_ours and mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append((pid, title))
    return found


def title_of(pid: int) -> str:
    """Return the command line of a process; '' if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""
