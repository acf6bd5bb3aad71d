"""A lease leaves nothing in its workers that the next one notices: settings, modules, threads, closed envs, memory."""

from __future__ import annotations

import functools
import importlib
import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest

import vecenv
from tests.faults.traces import wait_until
from tests.serving.programs import ServerProgram, rows_of, serving
from vecenv import VectorEnv, WorkerDiedError

pytestmark = [pytest.mark.extended]

_SETTINGS, _THREAD, _CHILD, _RAISE, _EXIT, _PRINT, _NUM_ACTIONS = range(1, 8)


class UntidyEnv(gymnasium.Env[Any, Any]):
    """An env whose actions change the process; its infos show the state of the process."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(_NUM_ACTIONS)

    def __init__(self) -> None:
        self.is_closed = False
        logging.getLogger("untidy").addHandler(logging.NullHandler())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {"state": _state_of_process(), "is_closed": self.is_closed}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == _SETTINGS:
            _change_process()
        elif action == _THREAD:
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        elif action == _CHILD:
            self.child = subprocess.Popen(["sleep", "1000"])
        elif action == _RAISE:
            raise RuntimeError("as requested")
        elif action == _EXIT:
            os._exit(3)
        elif action == _PRINT:
            print("printed by an env", flush=True)
        return np.zeros(2, np.float32), 0.0, False, False, {}

    def close(self) -> None:
        self.is_closed = True


vecenv.register_pickled_state(UntidyEnv)


def _state_of_process() -> str:
    mask = os.umask(0o77)
    os.umask(mask)
    return str(
        [
            *(os.getcwd(), sorted(os.environ), mask, sys.path, len(warnings.filters), sys.getrecursionlimit()),
            *(np.geterr(), np.get_printoptions()["precision"], signal.getsignal(signal.SIGUSR1)),
            *(logging.getLogger("untidy").level, logging.getLogger("untidy").handlers, len(logging.root.handlers)),
        ]
    )


def _change_process() -> None:
    os.chdir("/")
    os.environ["UNTIDY"] = "1"
    os.umask(0o7)
    sys.path.insert(0, "/untidy")
    sys.setrecursionlimit(5000)
    warnings.simplefilter("ignore", ImportWarning)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    np.seterr(divide="raise")
    np.set_printoptions(precision=2)
    logging.getLogger("untidy").setLevel(logging.DEBUG)
    logging.root.addHandler(logging.NullHandler())


def serving_untidy(workers: int = 1, **values: Any) -> Any:
    return serving("tests.serving.test_leftovers:UntidyEnv", workers, **values)


def act_in_lease(server: ServerProgram, action: int, **options: Any) -> tuple[Any, tuple[int, ...]]:
    """Lease one env, and return the infos of its first reset, and its worker, after a step with this action."""
    with VectorEnv(server.lease(1), **options) as envs:
        _, infos = envs.reset(seed=1)
        envs.step(np.array([action]))
        found = infos["state"][0], envs.worker_pids
    server.await_idle(1)
    return found


def test_changes_of_envs_to_their_process_end_with_the_lease() -> None:
    """The next program had the working directory, the environment, the warning filters and so on of the last one."""
    with serving_untidy() as server:
        first = act_in_lease(server, _SETTINGS)
        assert act_in_lease(server, 0) == first


def test_log_levels_of_a_client_end_with_its_lease() -> None:
    with serving_untidy() as server:
        first = act_in_lease(server, 0)
        logging.getLogger("untidy").setLevel(logging.ERROR)
        try:
            assert act_in_lease(server, 0) != first
        finally:
            logging.getLogger("untidy").setLevel(logging.NOTSET)
        assert act_in_lease(server, 0) == first


def test_log_handlers_of_envs_stay_during_leases() -> None:
    """They were removed when the first lease began."""
    with serving_untidy() as server:
        assert "NullHandler" in act_in_lease(server, 0)[0]


@pytest.mark.parametrize("action", [_THREAD, _CHILD])
def test_worker_with_leftover_threads_or_processes_is_replaced(action: int) -> None:
    with serving_untidy() as server:
        state, pids = act_in_lease(server, action)
        again, others = act_in_lease(server, 0)
        assert again == state and others != pids


def test_output_that_one_client_drops_is_written_for_the_next_one() -> None:
    with serving_untidy() as server:
        act_in_lease(server, _PRINT, engine={"worker_output": "none"})
        before = server.log.read_text().count("printed by an env")
        act_in_lease(server, _PRINT)
        wait_until(lambda: server.log.read_text().count("printed by an env") == before + 1)


class _RaisesInSecondReset(gymnasium.Wrapper[Any, Any, Any, Any]):
    num_resets = 0

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        self.num_resets += 1
        if self.num_resets == 2:
            raise ValueError("as requested")
        return self.env.reset(**arguments)


def _raising(env_fn: Callable[[], Any]) -> Any:
    return _RaisesInSecondReset(env_fn())


@pytest.mark.parametrize("rebuild", ["if-needed", "never"])
@pytest.mark.parametrize("envs_per_worker", [1, 2])
def test_env_that_was_closed_after_an_exception_is_not_leased_again(rebuild: str, envs_per_worker: int) -> None:
    with serving_untidy(rebuild=f'"{rebuild}"', envs_per_worker=envs_per_worker) as server:
        wrapped = [functools.partial(_raising, one) for one in server.lease(1)]
        with VectorEnv(wrapped, failures={"on_exception": "truncate"}) as envs:
            envs.reset(seed=1)
            assert envs.reset()[1]["recovered"].tolist() == ["restarted"]
        server.await_idle(1)
        with VectorEnv(server.lease(1)) as envs:
            assert envs.reset(seed=1)[1]["is_closed"].tolist() == [False]


# ---- programs ------------------------------------------------------------------------------------


_WRAPPING = """
import functools, sys, numpy as np
sys.path.insert(0, sys.argv[2])
import vecenv, wrappers_of_program
envs = [functools.partial(wrappers_of_program.wrap, one) for one in vecenv.lease("env", 1, socket=sys.argv[1])]
with vecenv.VectorEnv(envs) as envs:
    envs.reset(seed=1)
    print(envs.step(np.array([0]))[1][0], envs.worker_pids[0])
"""


def test_modules_of_wrappers_are_those_of_the_present_program(tmp_path: Path) -> None:
    """Workers kept the modules of the first program, even if another one had others, or its files had changed."""

    def run(reward: float) -> list[str]:
        package = tmp_path / f"program{int(reward)}"
        (package / "parts_of_program").mkdir(parents=True, exist_ok=True)
        (package / "parts_of_program" / "__init__.py").touch()
        (package / "parts_of_program" / "reward.py").write_text(f"REWARD = {reward}")
        (package / "wrappers_of_program.py").write_text(
            "import gymnasium, parts_of_program.reward\n"
            "assert 'Program-v0' not in gymnasium.registry\n"
            "gymnasium.register('Program-v0', entry_point='parts_of_program:Env')\n"
            "def wrap(env_fn):\n"
            "    reward = parts_of_program.reward.REWARD\n"
            "    return gymnasium.wrappers.TransformReward(env_fn(), lambda _: reward)\n"
        )
        command = [sys.executable, "-c", _WRAPPING, server.socket, str(package)]
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()
        server.await_idle(1)
        return found

    with serving(workers=1) as server:
        (first, pid), *others = [run(reward) for reward in (1.0, 2.0, 2.75)]
        assert first == "1.0" and others == [["2.0", pid], ["2.75", pid]]


def test_lease_ends_with_its_pool_while_a_forked_process_runs() -> None:
    """The process had a copy of the socket, so that the workers counted in quotas until it ended."""
    with serving(workers=1) as server:
        envs = VectorEnv(server.lease(1))
        child = multiprocessing.get_context("fork").Process(target=threading.Event().wait)
        child.start()
        try:
            envs.close()
            wait_until(lambda: server.leases() == [])
        finally:
            child.kill()
            child.join()


def _reporting(env_fn: Callable[[], Any], sender: Any) -> Any:
    sender.send(os.getpid())
    return env_fn()


def test_wrappers_of_leased_envs_share_pipes_of_multiprocessing() -> None:
    receiver, sender = multiprocessing.get_context("spawn").Pipe(duplex=False)
    with receiver, sender, serving() as server:
        for _ in range(2):
            with VectorEnv([functools.partial(_reporting, one, sender) for one in server.lease(2)]) as envs:
                assert {receiver.recv(), receiver.recv()} == set(envs.worker_pids)
            server.await_idle(2)


def test_error_has_the_exit_code_of_a_leased_worker() -> None:
    """The socket of a process that ends is closed first, and the exit code was mostly unknown then."""
    with serving_untidy() as server:
        for _ in range(3):
            with VectorEnv(server.lease(1), failures="raise") as envs:
                envs.reset(seed=1)
                with pytest.raises(WorkerDiedError, match="exit code 3"):
                    envs.step(np.array([_EXIT]))
            server.await_idle(1)


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
def test_server_that_cannot_lower_niceness_stays_alive() -> None:
    """Root in a container cannot, and a server of nice 3 could not set 2; both ended with a PermissionError."""
    prefix = ["setpriv", "--bounding-set=-sys_nice", "nice", "-n", "3"] if os.geteuid() == 0 else ["nice", "-n", "3"]
    with serving(workers=1, nice="{batch = 2}", prefix=prefix) as server:
        for client, niceness in (("batch", 5), ("other", 3), ("batch", 5)):
            with VectorEnv(server.lease(1, client=client)) as envs:
                assert psutil.Process(envs.worker_pids[0]).nice() == niceness
            server.await_idle(1)


def test_module_of_wrappers_that_registers_a_class_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registration kept the class, and thereby the module of each lease."""
    folder = tmp_path / "wrappers"
    folder.mkdir()
    (folder / "registering.py").write_text(
        "import gymnasium, vecenv\n"
        "class Wrapper(gymnasium.Wrapper):\n"
        "    def step(self, action): return super().step(action)\n"  # it keeps the variables of its module
        "vecenv.register_pickled_state(Wrapper)\n"
        "data = bytes(range(256)) * (1 << 14)\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    with serving(workers=1) as server:
        grown = []
        for _ in range(8):
            rows_of([functools.partial(_registering, one) for one in server.lease(1)], 2)
            server.await_idle(1)
            [worker] = [one for one in psutil.Process(server.process.pid).children() if "standby" in one.name()]
            grown.append(worker.memory_info().rss)
        assert grown[-1] - grown[1] < 3 << 22, "six modules have 24 MiB"


def _registering(env_fn: Callable[[], Any]) -> Any:
    return importlib.import_module("registering").Wrapper(env_fn())


@pytest.mark.slow
def test_leases_with_new_classes_do_not_grow_workers_or_server() -> None:
    with serving(workers=1, close_seconds="60") as server:  # a busy system may let a worker wait for seconds
        worker = psutil.Process(server.process.pid).children()
        processes = [psutil.Process(server.process.pid), *worker]
        before = [0, 0]
        for number in range(600):

            class Wrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
                pass

            rows_of(
                [functools.partial(lambda env_fn, kind: kind(env_fn()), one, Wrapper) for one in server.lease(1)], 2
            )
            server.await_idle(1)
            if number == 300:
                before = [one.memory_info().rss for one in processes]
        grown = [one.memory_info().rss - rss for one, rss in zip(processes, before)]
        assert max(grown) < 1 << 20, grown
