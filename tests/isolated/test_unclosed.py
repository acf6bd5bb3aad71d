"""Programs that end without having closed their pools, in ways that `multiprocessing` and threads take part in."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vecenv.core.layout.native import load

from .programs import assert_gone, program, run


@pytest.mark.extended
@pytest.mark.parametrize("where", ["after a finalizer", "in a child"])
def test_pools_end_before_multiprocessing_waits_for_their_workers(where: str, tmp_path: Path) -> None:
    if where == "in a child":
        body = """
        import multiprocessing
        def use():
            global pool
            pool = start()
            print(*pool.worker_pids, flush=True)
        child = multiprocessing.get_context("fork").Process(target=use)
        child.start()
        child.join()
        assert child.exitcode == 0
        """
    else:
        body = """
        pool = start()
        print(*pool.worker_pids)
        """
    # A finalizer that is older than `multiprocessing` has those of pools run after `multiprocessing` has waited.
    source = "import weakref\nweakref.finalize(weakref.finalize, int)\n" + program(body)
    done = run(source, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert_gone([int(pid) for pid in done.stdout.split()])


@pytest.mark.extended
def test_program_that_ends_while_a_daemon_thread_closes_a_pool_prints_nothing(tmp_path: Path) -> None:
    source = program(
        """
        import pathlib, threading
        class Waits(toys.CountEnv):
            def close(self):
                pathlib.Path(f"closing-{os.getpid()}").touch()
                while not os.path.exists("ending"):
                    os.sched_yield()
        pool = start(Waits, num_envs=2)
        threading.Thread(target=pool.close, daemon=True).start()
        def tell():
            while pool._lifecycle._retired_by is None:
                os.sched_yield()
            pathlib.Path("ending").touch()
        threading.Thread(target=tell, daemon=True).start()
        while not all(os.path.exists(f"closing-{pid}") for pid in pool.worker_pids):
            os.sched_yield()
        """
    )
    done = run(source, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.extended
def test_killed_parent_ends_workers_that_run_no_handler(tmp_path: Path) -> None:
    """Those of the twin are Python's, which wait for the main thread. Nor is there a fork server that ends them."""
    source = program(
        """
        import ctypes, pathlib
        class Deadlock(toys.CountEnv):
            def step(self, action):
                mutex = ctypes.create_string_buffer(64)
                pathlib.Path(f"locked-{os.getpid()}").touch()
                for _ in range(2):
                    ctypes.CDLL(None).pthread_mutex_lock(mutex)
        os.environ["VECENV_IMPLEMENTATION"] = "python"
        pool = start(Deadlock, num_envs=2, context="spawn")
        print(*pool.worker_pids, flush=True)
        pool.send(np.zeros(2, np.int64))
        while not all(os.path.exists(f"locked-{pid}") for pid in pool.worker_pids):
            os.sched_yield()
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = run(source, tmp_path)
    assert done.returncode == -signal.SIGKILL and done.stderr == ""
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    assert_gone(pids)


@pytest.mark.extended
def test_pool_closed_after_its_module_was_cleared_prints_nothing(tmp_path: Path) -> None:
    """A caller's `__del__` closed it at the interpreter's end, as DI-engine's collectors do: an AttributeError."""
    source = program(
        """
        import ctypes
        from vecenv.core.operations import lifecycle
        from vecenv.core.pool import serial
        class Collector:
            def __init__(self, pool):
                self.pool = pool
            def __del__(self):
                assert lifecycle is None or lifecycle.os is None
                self.pool.close()
                print("closed")
        # Modules that something keeps, as torch keeps many, are cleared in the end, the last one first.
        for module in (sys.modules["__main__"], lifecycle):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))
        collectors = [Collector(start()), Collector(serial.SerialPool([toys.CountEnv] * 2))]
        print(*collectors[0].pool.worker_pids)
        """
    )
    done = run(source, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    *pids, first, second = done.stdout.split()
    assert first == second == "closed"
    assert_gone([int(pid) for pid in pids])


def test_program_with_an_unclosed_thread_environment_ends_at_once(tmp_path: Path) -> None:
    """It waited `close_timeout` for a thread that stands still once the interpreter ends."""
    source = program(
        """
        from vecenv.alf import AlfGymWrapper, ThreadEnvironment
        class Collector:
            def __del__(self):
                self.env.close()
        env = ThreadEnvironment(lambda: AlfGymWrapper(toys.CountEnv()), tensors=False, close_timeout=1000.0)
        collector = Collector()
        collector.env = ThreadEnvironment(lambda: AlfGymWrapper(toys.CountEnv()), tensors=False, close_timeout=1000.0)
        """
    )
    done = run(source, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.extended
@pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("implementation", ["native", "python"])
def test_workers_end_when_their_program_calls_exec(
    implementation: str, start_method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a program that restarts itself: the process stays the same."""
    if implementation == "native" and load() is None:
        pytest.skip("the extension was not built")
    monkeypatch.setenv("VECENV_IMPLEMENTATION", implementation)
    body = f"""
        pool = start(context="{start_method}")
        print(*pool.worker_pids, flush=True)
        os.execv(sys.executable, [sys.executable, "-c", "input()"])
        """
    (tmp_path / "script.py").write_text(program(body))
    with subprocess.Popen(
        [sys.executable, "script.py"], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdin is not None and running.stdout is not None
        assert_gone([int(pid) for pid in running.stdout.readline().split()])
        assert running.poll() is None
        running.communicate("\n", timeout=60)
    assert running.returncode == 0
