"""Env servers in processes of their own, and programs that lease envs from them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import vecenv
from tests.faults.traces import wait_until
from vecenv.errors import ConfigError
from vecenv.serving.requests import ask_server


class ServerProgram:
    """`vecenv serve` with a TOML file, in a process of its own.

    Args:
        folder: for the file, the socket and the output.
        toml: the contents of the file.
        prefix: a command that executes the server.
    """

    def __init__(self, folder: Path, toml: str, prefix: Sequence[str] = ()) -> None:
        self.socket = os.path.join(folder, "s")
        self.log = folder / "log"
        file = folder / "sims.toml"
        file.write_text(toml)
        command = [*prefix, sys.executable, "-m", "vecenv", "serve", str(file), "--socket", self.socket]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def envs(self) -> dict[str, dict[str, Any]]:
        """Return the number of workers in each state, by env; {} before the server answers."""
        try:
            return {one["env"]: one for one in ask_server(self.socket, {"do": "list"})["envs"]}
        except ConfigError:
            assert self.process.poll() is None, self.log.read_text()
            return {}

    def leases(self) -> list[dict[str, Any]]:
        """Return the leases, and the requests that wait."""
        found: list[dict[str, Any]] = ask_server(self.socket, {"do": "list"})["leases"]
        return found

    def await_idle(self, num_workers: int, name: str = "env") -> None:
        """Wait until that many workers of an env are idle, and no other one exists."""

        def is_so() -> bool:
            found = self.envs().get(name, {})
            states = ("idle", "leased", "building", "ending")
            return [found.get(state) for state in states] == [num_workers, 0, 0, 0]

        wait_until(is_so, 60.0)

    def lease(self, num_envs: int, name: str = "env", **options: Any) -> list[Any]:
        """Return env factories for envs of this server."""
        return vecenv.lease(name, num_envs, **{"socket": self.socket, "timeout": 60.0, **options})

    def num_descriptors(self) -> int:
        """Return how many descriptors the server has once no client is connected."""
        process = psutil.Process(self.process.pid)

        def listens_only() -> bool:
            return [one.laddr for one in process.net_connections("unix")].count(self.socket) == 1

        wait_until(listens_only)
        return process.num_fds()

    def stop(self) -> None:
        """End the server by SIGTERM, and wait for its end."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)

    def kill(self) -> None:
        """Kill the server, and wait for its end."""
        self.process.kill()
        self.process.wait(30)


@contextlib.contextmanager
def serving(
    factory: str = "CartPole-v1", workers: int = 2, *, others: str = "", prefix: Sequence[str] = (), **values: Any
) -> Iterator[ServerProgram]:
    """Run a server with one env of this factory, named 'env', and wait until its workers are ready.

    Args:
        factory, workers: of the env.
        others: further tables of the file.
        prefix: a command that executes the server.
        values: further keys of the env, as TOML texts.
    """
    lines = [f'factory = "{factory}"', f"workers = {workers}", *(f"{key} = {value}" for key, value in values.items())]
    # the path of a socket has 107 characters at most
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        server = ServerProgram(Path(folder), "\n".join(["[env]", *lines, others]), prefix)
        try:
            server.await_idle(workers)
            yield server
        finally:
            if server.process.poll() is None:
                server.stop()


def rows_of(env_fns: Sequence[Any], num_steps: int = 30, seed: int = 5, **options: Any) -> list[Any]:
    """Return all that a vector env of these envs answers to a reset with a seed, and to fixed actions."""
    with vecenv.VectorEnv(env_fns, **options) as envs:
        return play(envs, num_steps, seed)


def play(envs: vecenv.VectorEnv, num_steps: int = 30, seed: int = 5) -> list[Any]:
    """Reset with a seed, step with actions that depend on the seed, and return the answers as comparable values."""
    envs.action_space.seed(seed)
    found = [comparable(envs.reset(seed=seed))]
    return found + [comparable(envs.step(envs.action_space.sample())) for _ in range(num_steps)]


def comparable(value: Any) -> Any:
    """Return a value with bytes in place of arrays, and without marks of recoveries."""
    if isinstance(value, Mapping):
        return {key: comparable(one) for key, one in value.items() if "recovered" not in key}
    if isinstance(value, tuple | list):
        return [comparable(one) for one in value]
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [comparable(one) for one in value.tolist()]
    return (str(value.dtype), value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value
