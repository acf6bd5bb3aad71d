"""Faults during leases: clients, servers and workers that are killed or hang, and programs that send nonsense."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faults.traces import wait_until
from tests.serving.programs import ServerProgram, comparable, play, rows_of, serving
from vecenv import ConfigError, ShortageError, VectorEnv, WorkerTimeoutError
from vecenv.core.processes.leased_workers import build_of_program
from vecenv.core.system.message_socket import MOST_NBYTES, MessageSocket
from vecenv.serving.catalog import CatalogEntry
from vecenv.serving.requests import ask_server
from vecenv.serving.server import EnvServer

pytestmark = [pytest.mark.extended]

MAKE_CARTPOLE = functools.partial(gymnasium.make, "CartPole-v1")


class StopperEnv(gymnasium.Env[Any, Any]):
    """An env whose step blocks while the file of the environment variable `STOPPER` exists.

    A file `began.PID` beside it shows that an env of this process has begun a step.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        path = Path(os.environ["STOPPER"])
        path.with_name(f"began.{os.getpid()}").touch()
        while path.exists():
            os.sched_yield()
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), 0.0, False, False, {}


_CLIENT = """
    import sys, numpy as np, vecenv
    from vecenv.core.processes import worker
    stage, path = sys.argv[1:]
    if stage == "attach":
        worker.Worker.send_attach = lambda *args: (print("ready", flush=True), sys.stdin.read())
    envs = vecenv.VectorEnv(vecenv.lease("env", 2, socket=path))
    envs.reset(seed=1)
    if stage == "step":
        envs.send(np.array([0, 1]))
    print("ready", flush=True)
    sys.stdin.read()
"""


def start_client(server: ServerProgram, stage: str) -> subprocess.Popen[str]:
    """Start a program that leases two envs, and wait until it has come to this stage: 'attach', 'idle' or 'step'."""
    command = [sys.executable, "-c", textwrap.dedent(_CLIENT), stage, server.socket]
    client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None and client.stdout.readline() == "ready\n"
    return client


def kill(client: subprocess.Popen[str]) -> None:
    client.kill()
    client.communicate()


@pytest.fixture
def stopper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "stop"
    monkeypatch.setenv("STOPPER", str(path))
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a short path, for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("stage", ["idle", "step", "attach"])
def test_workers_of_a_killed_client_return_as_new(stage: str) -> None:
    own = rows_of([MAKE_CARTPOLE] * 2)
    with serving() as server:
        pids = workers_of(server)
        kill(start_client(server, stage))
        server.await_idle(2)
        assert rows_of(server.lease(2)) == own
        server.await_idle(2)
        assert workers_of(server) == pids


def _raising(env_fn: Callable[[], Any], is_last: object) -> Any:
    if is_last:
        raise ValueError("as requested")
    return env_fn()


def test_failed_start_of_a_pool_leaves_its_leased_workers_alive() -> None:
    """They were killed, so that a mistake in a wrapper, or Ctrl-C, cost the start of all simulators."""
    with serving(workers=3) as server:
        pids = workers_of(server)
        with pytest.raises(ValueError, match="as requested"):
            VectorEnv([functools.partial(_raising, one, number == 2) for number, one in enumerate(server.lease(3))])
        server.await_idle(3)
        assert workers_of(server) == pids


def test_lock_of_the_start_method_fork_is_an_error_for_leased_envs() -> None:
    lock = multiprocessing.get_context("fork").Lock()
    with serving(workers=1) as server:
        with pytest.raises(ConfigError, match="was made for the start method 'fork'"):
            VectorEnv([functools.partial(_raising, one, lock) for one in server.lease(1)], context="fork")
        server.await_idle(1)


def test_hanging_step_of_a_killed_client_ends_with_its_worker(stopper: Path) -> None:
    own = rows_of([StopperEnv] * 2)
    with serving("tests.serving.test_server_faults:StopperEnv", close_seconds="0.2", rebuild='"never"') as server:
        pids = workers_of(server)
        stopper.touch()
        client = start_client(server, "step")
        await_steps_in(pids, stopper)
        kill(client)
        wait_until(lambda: not pids & workers_of(server))
        stopper.unlink()
        server.await_idle(2)
        assert rows_of(server.lease(2)) == own


def test_hanging_step_of_a_closed_pool_ends_with_its_worker(stopper: Path) -> None:
    with serving("tests.serving.test_server_faults:StopperEnv", rebuild='"never"') as server:
        envs = VectorEnv(server.lease(2), timeouts={"close": 0.1})
        envs.reset(seed=1)
        pids = workers_of(server)
        stopper.touch()
        envs.send(np.array([0, 1]))
        await_steps_in(pids, stopper)
        envs.close()
        stopper.unlink()
        server.await_idle(2)
        assert not pids & workers_of(server)


def await_steps_in(pids: set[int], stopper: Path) -> None:
    """Wait until an env in each of these processes has begun a step."""
    wait_until(lambda: all(stopper.with_name(f"began.{pid}").exists() for pid in pids))


def workers_of(server: ServerProgram) -> set[int]:
    """Return the processes of the server's workers."""
    found = set()
    for one in psutil.Process(server.process.pid).children():
        with contextlib.suppress(psutil.Error):  # it has ended
            if "standby" in one.name() or "vecenv worker" in " ".join(one.cmdline()):
                found.add(one.pid)
    return found


def test_killed_server_leaves_leased_workers_to_their_clients() -> None:
    own = rows_of([MAKE_CARTPOLE] * 2)
    with serving(workers=3) as server:
        every = workers_of(server)
        with VectorEnv(server.lease(2)) as envs:
            leased = set(envs.pool.worker_pids)
            found = play(envs, 10)
            server.kill()
            wait_until(lambda: not any(map(psutil.pid_exists, every - leased)))
            found += [comparable(envs.step(envs.action_space.sample())) for _ in range(20)]
            assert found == own
            os.kill(min(leased), signal.SIGKILL)
            with pytest.raises(ShortageError, match="its server has ended|the env server at .* has ended"):
                envs.step(envs.action_space.sample())
        wait_until(lambda: not any(map(psutil.pid_exists, leased)))


@pytest.mark.parametrize("stage", ["idle", "step", "attach"])
def test_killed_server_and_client_leave_no_worker(stage: str) -> None:
    with serving(workers=3) as server:
        every = workers_of(server)
        client = start_client(server, stage)
        server.kill()
        kill(client)
        wait_until(lambda: not any(map(psutil.pid_exists, every)))


def test_step_that_holds_the_gil_ends_with_server_and_client(tmp_path: Path) -> None:
    began = tmp_path / "began"
    with serving("vecenv.envs.toys:HangInC", close_seconds="0.2", kwargs=f'{{once = "{began}"}}') as server:
        every = workers_of(server)
        client = start_client(server, "step")
        wait_until(began.exists)
        server.kill()
        kill(client)
        wait_until(lambda: not any(map(psutil.pid_exists, every)))


def test_killed_server_leaves_no_worker_that_is_built(short_folder: Path) -> None:
    server = ServerProgram(
        short_folder, '[env]\nfactory = "vecenv.envs.toys:HangAtInit"\nclose_seconds = 0.1\nworkers = 2'
    )
    wait_until(lambda: server.envs().get("env", {}).get("building") == 2)
    every = workers_of(server)
    server.kill()
    wait_until(lambda: not any(map(psutil.pid_exists, every)))


def test_client_that_ends_while_it_waits_is_forgotten() -> None:
    with serving() as server, VectorEnv(server.lease(2)):
        code = f"import vecenv; vecenv.VectorEnv(vecenv.lease('env', 1, socket={server.socket!r}))"
        client = subprocess.Popen([sys.executable, "-c", code])
        wait_until(lambda: [one["is_granted"] for one in server.leases()] == [True, False])
        client.kill()
        client.wait()
        wait_until(lambda: len(server.leases()) == 1)


def test_server_that_starts_after_a_kill_replaces_the_socket(tmp_path: Path) -> None:
    with serving() as server:
        server.kill()
        again = ServerProgram(Path(server.socket).parent, '[env]\nfactory = "CartPole-v1"')
        again.await_idle(1)
        third = ServerProgram(Path(server.socket).parent, '[env]\nfactory = "CartPole-v1"')
        assert third.process.wait(60) == 2 and "answers at" in third.log.read_text()
        again.stop()


def test_stopped_server_leaves_leased_workers_to_their_clients() -> None:
    with serving() as server, VectorEnv(server.lease(1)) as envs:
        assert ask_server(server.socket, {"do": "stop"}) == {}
        server.process.wait(30)
        envs.reset(seed=1)
        envs.step(np.array([0]))


def test_failing_constructors_are_tried_again_and_reported() -> None:
    others = '[bad]\nfactory = "vecenv.envs.toys:RaiseAtInit"'
    with serving(others=others) as server:
        wait_until(lambda: server.log.read_text().count("bad: its constructor has failed") > 1)
        assert "RuntimeError" in server.log.read_text()
        rows_of(server.lease(1), 2)


def test_worker_that_dies_while_idle_is_replaced() -> None:
    with serving() as server:
        pids = workers_of(server)
        os.kill(min(pids), signal.SIGKILL)
        wait_until(lambda: len(workers_of(server) - pids) == 1)
        server.await_idle(2)


def test_processes_of_envs_live_as_long_as_their_worker() -> None:
    with serving("vecenv.envs.toys:SpawnsChild", rebuild='"never"') as server:
        with VectorEnv(server.lease(2)) as envs:
            children = envs.reset(seed=1)[1]["child_pid"].tolist()
        server.await_idle(2)
        assert all(map(psutil.pid_exists, children))
        with VectorEnv(server.lease(2), failures="raise") as envs:
            assert envs.reset(seed=1)[1]["child_pid"].tolist() == children
            os.kill(envs.pool.worker_pids[0], signal.SIGKILL)
            wait_until(lambda: not psutil.pid_exists(children[0]))
        server.await_idle(2)


# ---- messages ------------------------------------------------------------------------------------


def test_server_without_descriptors_refuses_and_then_serves_again() -> None:
    """It may open none to seven more descriptors, so that each step of a lease fails once."""
    with serving(nice="{default = 1}") as server:
        own = rows_of(server.lease(2))
        server.await_idle(2)
        count, errors = server.num_descriptors(), []
        for more in range(8):
            with with_free_descriptors(server, more), contextlib.suppress(WorkerTimeoutError):
                try:
                    VectorEnv(server.lease(2, timeout=1.5)).close()
                except ConfigError as error:
                    errors.append(str(error))
            server.await_idle(2)
            assert server.num_descriptors() == count
        assert any("the server cannot lend a worker: Too many open files" in one for one in errors), errors
        assert "a connection cannot be accepted: Too many open files" in server.log.read_text()
        assert rows_of(server.lease(2)) == own


def test_server_without_descriptors_does_not_spin() -> None:
    with serving() as server:
        count, process = server.num_descriptors(), psutil.Process(server.process.pid)
        with with_free_descriptors(server, 0):
            before = sum(process.cpu_times()[:2])
            with pytest.raises(WorkerTimeoutError, match="has not granted 2 envs"):
                VectorEnv(server.lease(2, timeout=2.0))
            assert sum(process.cpu_times()[:2]) - before < 1.0
        VectorEnv(server.lease(2)).close()
        assert server.num_descriptors() == count


@contextlib.contextmanager
def with_free_descriptors(server: ServerProgram, count: int) -> Iterator[None]:
    """Let the server open this number of further descriptors."""
    process = psutil.Process(server.process.pid)
    numbers = set(map(int, os.listdir(f"/proc/{process.pid}/fd")))
    limit = next(one for one in itertools.count() if one - sum(number < one for number in numbers) == count)
    soft, hard = process.rlimit(psutil.RLIMIT_NOFILE)
    process.rlimit(psutil.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        process.rlimit(psutil.RLIMIT_NOFILE, (soft, hard))


def test_server_refuses_a_system_without_pidfds(monkeypatch: pytest.MonkeyPatch, short_folder: Path) -> None:
    def refuse(pid: int, flags: int = 0) -> int:
        raise PermissionError(errno.EPERM, "forbidden by seccomp")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(ConfigError, match="env servers need pidfds"):
        EnvServer([CatalogEntry("env", "CartPole-v1")], str(short_folder / "s"))
    assert not os.listdir(short_folder)


def test_long_names_of_many_clients_are_listed() -> None:
    """The list was one message, which was too long then, and the server seemed to have ended."""
    with serving(workers=1) as server, contextlib.ExitStack() as waiting:
        with pytest.raises(ConfigError, match="client: expected a name of at most 200 characters, got 201"):
            VectorEnv(server.lease(1, client="x" * 201))
        names = [chr(0x10900 + number) * 200 for number in range(40)]
        for name in names:
            connection = waiting.enter_context(contextlib.closing(MessageSocket.connect(server.socket)))
            request = {"do": "lease", "env": "env", "num_envs": 1, "client": name, "build": build_of_program()}
            connection.send(request)
        wait_until(lambda: [one["client"] for one in server.leases()] == names)


def test_client_of_another_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(workers=1) as server:
        monkeypatch.setattr("vecenv.core.processes.leased_workers.__version__", "0.0.1")
        with pytest.raises(ConfigError, match=r"the server has vecenv .*, and the client vecenv 0.0.1, Python"):
            VectorEnv(server.lease(1))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_another_user_cannot_connect() -> None:
    with serving(workers=1) as server:
        code = f"import os, socket; os.setuid(65534); socket.socket(1, 5).connect({server.socket!r})"
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert "PermissionError" in found.stderr
        assert os.stat(server.socket).st_mode & 0o777 == 0o600


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_KEYS = st.sampled_from(["do", "env", "num_envs", "client", "max_seconds", "build"])
_REQUESTS = st.dictionaries(_KEYS, st.sampled_from(["lease", "replace", "list", "env"]) | _JSON, max_size=6)
_PACKETS = st.binary(max_size=200) | (_REQUESTS | _JSON).map(lambda value: json.dumps(value).encode())


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_random_messages_leave_the_server_serving(count: int) -> None:
    with serving(workers=1) as server:

        @settings(max_examples=count // 10, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(_PACKETS, min_size=10, max_size=10))
        def send(packets: list[bytes]) -> None:
            for packet in packets:
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
                    end.connect(server.socket)
                    end.send(packet)
                    end.settimeout(0.001)
                    try:
                        end.recv(MOST_NBYTES)
                    except TimeoutError:
                        pass

        send()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
            end.connect(server.socket)
            end.send(b"x" * (MOST_NBYTES + 1))
            assert b"the longest one has" in end.recv(MOST_NBYTES)
        wait_until(lambda: server.leases() == [])
        assert rows_of(server.lease(1), 3) == rows_of([MAKE_CARTPOLE], 3)
