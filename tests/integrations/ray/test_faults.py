"""Deaths of actors and nodes: the stream of every env equals that of an undisturbed run."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.faults.traces import play, undisturbed, wait_until
from tests.inside import hub_of
from tests.integrations.ray.cluster import SimulatedCluster, run_program, title_of
from tests.integrations.ray.pools import ray_pool
from vecenv import RayOptions, WorkerDiedError, WorkerTimeoutError
from vecenv.core.pool.pool import Pool
from vecenv.core.system.clock import now_ns
from vecenv.core.system.process_stat import state_of
from vecenv.envs.toys import NoisyGlobal, ToyEnv

ray = pytest.importorskip("ray", exc_type=ImportError)

pytestmark = [pytest.mark.ray, pytest.mark.extended]


def kill(pool: Pool, shard: int) -> None:
    """Kill the actor of a shard, and wait until it has ended."""
    pid = pool.shards()[shard].pid
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)


def wait_for_end(pid: int) -> None:
    """Wait until the process of an actor has ended."""
    wait_until(lambda: not title_of(pid).startswith("ray::ShardActor"))


def remove_node(cluster: SimulatedCluster, pool: Pool, shard: int) -> Any:
    """Kill the node of a shard, and wait until its actor has ended; return the node."""
    info = pool.shards()[shard]
    node = cluster.node_of(info.node_id)
    cluster.remove_node(node)
    wait_for_end(info.pid)
    return node


def test_actors_killed_at_any_moment_lose_no_step(cluster: SimulatedCluster, caplog: pytest.LogCaptureFixture) -> None:
    def before(pool: Pool, number: int) -> None:
        if number == 2:  # idle
            kill(pool, 0)
        if number == 9:  # two at once
            kill(pool, 0)
            kill(pool, 1)

    def amid(pool: Pool, number: int) -> None:
        if number in (0, 5):  # 0: the first reset
            kill(pool, 1)
        if number == 11:  # its successor is lost while it is built
            kill(pool, 0)
            while (shard := pool.shards()[0]).restarts < 3 or not shard.pid:
                hub_of(pool).wait_briefly(now_ns() + 10_000_000)
            kill(pool, 0)

    with ray_pool([NoisyGlobal] * 4) as pool:
        ours = play(pool, 12, amid, before=before)
        assert [shard.restarts for shard in pool.shards()] == [4, 3]
        assert pool.statistics().shards_replaced == 7
        pool.call(_warn)
    assert ours.rows == undisturbed([NoisyGlobal] * 4, 12).rows
    assert any(ours.marks)
    assert re.search(r"shard 1, node [\d.]+ \(\w+\), process \d+: from an env", caplog.text)


def _warn(env: Any) -> None:
    logging.getLogger("simulator").warning("from an env")


def temporary_files(pids: set[int]) -> list[Path]:
    """Return the files that `multiprocessing` has made for processes, and the named sockets that they listen on."""
    paths = [Path(one.laddr) for pid in pids for one in psutil.Process(pid).net_connections("unix") if one.laddr]
    return [*Path(tempfile.gettempdir()).glob("pymp-*"), *(path for path in paths if path.name.startswith("listener-"))]


def test_shards_make_no_temporary_files(cluster: SimulatedCluster) -> None:
    """Ray ends their processes without exit functions, which would remove them."""
    before = temporary_files(set())
    with ray_pool([ToyEnv] * 4) as pool:
        pool.start()
        actors = [psutil.Process(shard.pid) for shard in pool.shards()]
        pids = {one.pid for actor in actors for one in (actor, *actor.children(recursive=True))}
        assert len(pids) > len(actors) and temporary_files(pids) == before


def test_stopped_actor_is_replaced_and_its_processes_end(cluster: SimulatedCluster) -> None:
    old: list[int] = []

    def inject(pool: Pool, number: int) -> None:
        if number == 3:
            pid = pool.shards()[1].pid
            old[:] = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
            os.kill(pid, signal.SIGSTOP)
            wait_until(lambda: state_of(pid) == "T")

    with ray_pool([ToyEnv] * 4, RayOptions(num_shards=2, cpus_per_shard=1, shard_timeout=3.0)) as pool:
        ours = play(pool, 6, inject)
        wait_until(lambda: not any(psutil.pid_exists(pid) and title_of(pid) for pid in old))
    assert len(old) > 1 and ours.rows == undisturbed([ToyEnv] * 4, 6).rows


def test_raise_policy_names_the_shard_and_the_other_shards_go_on(cluster: SimulatedCluster) -> None:
    with ray_pool([ToyEnv] * 4, on_failure="raise") as pool:
        pool.start()
        pool.reset(seeds=[0, 1, 2, 3])
        pool.recv()
        kill(pool, 1)
        pool.send(np.zeros(4, np.int64))
        with pytest.raises(WorkerDiedError, match=r"shard 1 \(envs 2-3\).*node") as found:
            pool.recv()
        assert found.value.env_ids == (2, 3) and isinstance(found.value.__cause__, ray.exceptions.RayError)
        pool.cancel([2, 3])
        assert pool.recv().env_ids.tolist() == [0, 1]


def test_removed_node_is_replaced_by_a_spare_one(cluster: SimulatedCluster) -> None:
    spare = cluster.add_node()
    removed: list[Any] = []

    def inject(pool: Pool, number: int) -> None:
        if number == 3:
            removed.append(remove_node(cluster, pool, 0))

    options = RayOptions(num_shards=2, cpus_per_shard=2, placement="STRICT_SPREAD")
    with ray_pool([ToyEnv] * 4, options) as pool:
        ours = play(pool, 6, inject)
        assert pool.shards()[0].restarts >= 1
    assert ours.rows == undisturbed([ToyEnv] * 4, 6).rows
    assert removed and (spare in cluster.nodes or len(cluster.nodes) == 2)


def test_shard_waits_for_a_node_that_comes_later(cluster: SimulatedCluster) -> None:
    def before(pool: Pool, number: int) -> None:
        if number == 3:
            remove_node(cluster, pool, 1)

    def inject(pool: Pool, number: int) -> None:
        if number == 3:
            while pool.shards()[1].restarts < 1:
                with contextlib.suppress(WorkerTimeoutError):
                    pool.recv(timeout=0.1)
            cluster.add_node()

    options = RayOptions(num_shards=2, cpus_per_shard=2)
    with ray_pool([ToyEnv] * 4, options) as pool:
        ours = play(pool, 6, inject, before=before)
    assert ours.rows == undisturbed([ToyEnv] * 4, 6).rows


def test_shard_without_room_is_given_up_and_others_go_on(cluster: SimulatedCluster) -> None:
    options = RayOptions(num_shards=2, cpus_per_shard=2, replace_timeout=2.0)
    with ray_pool([ToyEnv] * 4, options) as pool:
        pool.start()
        pool.reset(seeds=[0, 1, 2, 3])
        pool.recv()
        remove_node(cluster, pool, 1)
        pool.send(np.zeros(4, np.int64))
        with pytest.raises(WorkerDiedError, match=r"no place within 2 s.*CPU 2 of bundle 1.*node .* free of"):
            pool.recv()
        pool.cancel([2, 3])
        assert pool.recv().env_ids.tolist() == [0, 1]
        cluster.add_node()
        pool.restart(1)
        pool.reset([2, 3], seeds=[7, 8])
        assert sorted(pool.recv().env_ids.tolist()) == [2, 3]


_RPC_PROGRAM = """
import os
os.environ["RAY_testing_rpc_failure"] = (
    '{"CoreWorkerService.grpc_client.PushTask":{"num_failures":4,"req_failure_prob":20,"resp_failure_prob":20,'
    '"in_flight_failure_prob":0}}'
)
import ray
from tests.faults.traces import play, undisturbed
from tests.integrations.ray.pools import ray_pool
from vecenv.envs.toys import ToyEnv

ray.init(ADDRESS, log_to_driver=False, logging_level="error")
with ray_pool([ToyEnv] * 4) as pool:
    ours = play(pool, 30)
    calls = pool.statistics().shard_calls
assert ours.rows == undisturbed([ToyEnv] * 4, 30).rows
assert not any(ours.marks)
print("repeated", calls > 2 * 31)
ray.shutdown()
"""


def test_lost_requests_and_replies_are_repeated(cluster: SimulatedCluster) -> None:
    assert run_program(cluster, _RPC_PROGRAM).split() == ["repeated", "True"]


_SHUTDOWN = """
import ray
from vecenv import ConfigError, VectorEnv
from vecenv.envs.toys import ToyEnv

ray.init(ADDRESS, log_to_driver=False, logging_level="error")
envs = VectorEnv([ToyEnv] * 4, backend="ray", ray={"num_shards": 2, "cpus_per_shard": 1})
envs.reset(seed=0)
ray.shutdown()
try:
    envs.step(envs.action_space.sample())
except ConfigError as error:
    print(error)
envs.close()
print(ray.is_initialized())
"""


def test_pool_ends_with_the_ray_that_it_was_made_in(cluster: SimulatedCluster) -> None:
    assert run_program(cluster, _SHUTDOWN).splitlines() == [
        "backend='ray': Ray was shut down, and the shards ended with it; close the envs",
        "False",
    ]


_OUT_OF_MEMORY = """
import ray
from vecenv import RayOptions, VectorEnv, WorkerDiedError
from vecenv.envs.toys import ToyEnv

ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
try:
    VectorEnv([ToyEnv], backend=RayOptions(num_shards=1, cpus_per_shard=1))
except WorkerDiedError as error:
    print(error)
ray.shutdown()
"""


def test_actor_that_ray_kills_for_want_of_memory_is_reported_with_used_and_total_memory() -> None:
    """Ray kills actors beyond its threshold, which is exceeded here from the start. Its message has some 40 lines."""
    settings = {"RAY_memory_usage_threshold": "0.0001", "RAY_memory_monitor_refresh_ms": "100"}
    with tempfile.TemporaryDirectory(prefix="vecenv-", dir="/tmp") as folder:  # the paths of sockets must be short
        environ = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        environ |= {**settings, "RAY_TMPDIR": folder, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-W", "ignore", "-c", _OUT_OF_MEMORY]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    says = (
        r"OutOfMemoryError: .*Memory on the node \(IP: .*\) was [\d.]+GB used / [\d.]+GB limit .* 4th process in a row"
    )
    assert re.search(says, done.stdout), done.stdout
    assert done.stderr.count("another one is started") == 3


_DRIVER = """
import signal, os, sys
import ray
from vecenv import VectorEnv
from vecenv.envs.toys import ToyEnv

ray.init(ADDRESS, log_to_driver=False, logging_level="error")
envs = VectorEnv([ToyEnv] * 4, backend="ray", ray={"num_shards": 2, "cpus_per_shard": 1})
envs.reset(seed=0)
if END == "kill":
    print(*(shard.pid for shard in envs.shards()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
print(*(shard.pid for shard in envs.shards()))
"""


@pytest.mark.parametrize("end", ["kill", "exit"])
def test_end_of_the_driver_ends_everything(cluster: SimulatedCluster, end: str) -> None:
    program = _DRIVER.replace("END", repr(end))
    output = run_program(cluster, program, returncode=-signal.SIGKILL if end == "kill" else 0)
    pids = [int(word) for word in output.split()]
    assert len(pids) == 2  # the leak guard waits for the other processes
    for pid in pids:
        wait_for_end(pid)
