"""Envs of an env server: the time of a lease, and the speed of its steps; see `vecenv serve`."""

from __future__ import annotations

import contextlib
import functools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import gymnasium

import vecenv
from benchmarks import rows
from benchmarks.rows import Effort
from vecenv.core.processes.worker import usable_cores
from vecenv.measurement.measure import Mode, SyncMode
from vecenv.serving.requests import ask_server

__all__ = ["lease_ms", "leased_to_own", "own_start_to_lease"]

#: Seconds that the constructor of `SlowCartPole` takes.
_CONSTRUCT_SECONDS = 0.05


def make_slow_cartpole() -> gymnasium.Env[Any, Any]:
    """Return a CartPole after 50 ms."""
    time.sleep(_CONSTRUCT_SECONDS)
    return gymnasium.make("CartPole-v1", disable_env_checker=True)


@contextlib.contextmanager
def _leases(num_envs: int) -> Iterator[list[Any]]:
    """Run a server with one worker per core; yield env factories for all of its envs."""
    num_workers = usable_cores()
    with tempfile.TemporaryDirectory() as folder:
        socket = f"{folder}/s"
        options = ["--workers", str(num_workers), "--envs-per-worker", str(-(-num_envs // num_workers))]
        command = [sys.executable, "-m", "vecenv", "serve", "benchmarks.leases:make_slow_cartpole", "--socket", socket]
        server = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            assert server.stdout is not None
            server.stdout.readline()  # the socket exists
            yield vecenv.lease("benchmarks.leases:make_slow_cartpole", num_envs, socket=socket, timeout=120.0)
        finally:
            server.terminate()
            server.communicate()


def _start_seconds(env_fns: list[Any], **options: Any) -> float:
    """Return the time until a vector env of these envs is constructed."""
    began = time.perf_counter()
    envs = vecenv.VectorEnv(env_fns, **options)
    seconds = time.perf_counter() - began
    envs.close()
    if hasattr(env_fns[0], "socket"):  # wait until the workers are idle again
        while any(env["leased"] for env in ask_server(env_fns[0].socket, {"do": "list"})["envs"]):
            pass
    return seconds


def lease_ms(num_envs: int, effort: Effort) -> list[float]:
    """Return the time to construct a `VectorEnv` of that many leased CartPoles, in milliseconds."""
    with _leases(num_envs) as envs:
        _start_seconds(envs)  # waits for the constructors
        return [1e3 * _start_seconds(envs) for _ in range(effort.repeats)]


def own_start_to_lease(num_envs: int, effort: Effort) -> list[float]:
    """Return how many times as long `VectorEnv` takes to start with constructors of 50 ms as with leased envs."""
    own = [functools.partial(make_slow_cartpole)] * num_envs
    with _leases(num_envs) as envs:
        _start_seconds(envs)
        found = []
        for _ in range(effort.repeats):
            leased = statistics.median(_start_seconds(envs) for _ in range(5))
            found.append(_start_seconds(own, num_workers=usable_cores()) / leased)
        return found


def leased_to_own(num_envs: int, effort: Effort) -> list[float]:
    """Return the steps per second of leased envs as a multiple of those of own envs in as many workers."""
    with _leases(num_envs) as envs:
        own = [functools.partial(gymnasium.make, "CartPole-v1", disable_env_checker=True)] * num_envs
        return rows.ratio(functools.partial(_mode, "leased", envs), functools.partial(_mode, "own", own), effort)


def _mode(name: str, env_fns: list[Any]) -> Mode:
    envs = vecenv.VectorEnv(env_fns, num_workers=usable_cores() if name == "own" else None)
    return SyncMode(name, envs, envs.worker_pids)
