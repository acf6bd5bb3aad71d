"""Whole programs, each in a process of its own: guards, signals, exits. Leftovers are errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from vecenv.core.system.blas_threads import THREAD_VARIABLES
from vecenv.core.system.clock import Deadline

from .programs import assert_gone, program, recovering, run


@pytest.mark.extended
@pytest.mark.parametrize("how", ["file", "-c", "stdin"])
def test_programs_without_a_main_guard_run(how: str, start_method: str, tmp_path: Path) -> None:
    source = program(
        f"""
        import gymnasium
        print("top level")
        class Mine(toys.CountEnv):
            pass
        gymnasium.register("Mine-v0", Mine)
        pool = start(lambda: gymnasium.make("Mine-v0"), context="{start_method}")
        print(pool.call(lambda env: type(env.unwrapped).__name__))
        pool.close()
        """
    )
    ignore = "import warnings; warnings.simplefilter('ignore')\n" if start_method == "fork" else ""
    done = run(ignore + source, tmp_path, how)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["top level", "['Mine', 'Mine', 'Mine', 'Mine']"]


@pytest.mark.extended
@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
@pytest.mark.parametrize("how", ["by reference", "in the constructor"])
def test_module_that_starts_its_own_workers_on_import_is_named(how: str, start_method: str, tmp_path: Path) -> None:
    """Rather than that each worker imports it and starts workers, and each of those."""
    env_fn = "Mine" if how == "by reference" else "lambda: __import__('guardless').Mine()"
    body = f"""
        class Mine(toys.CountEnv):
            pass
        start({env_fn}, num_workers=1, context="{start_method}", construct=20.0).close()
    """
    (tmp_path / "guardless.py").write_text(program(body))
    done = run("import guardless", tmp_path, "-c")
    assert done.stderr.count("ConfigError: module 'guardless' starts workers when it is imported") == 2, done.stderr
    assert any("without end" in line for line in done.stderr.splitlines()[-2:]), done.stderr  # Python 3.10: no notes


@pytest.mark.extended
def test_worker_may_import_a_module_that_starts_other_workers(tmp_path: Path) -> None:
    """Also if it was forked during the import that started it."""
    (tmp_path / "planner.py").write_text(program("pool = start()"))
    body = """
        class Mine(toys.CountEnv):
            def reset(self, **kwargs):
                import planner
                planner.pool.close()
                return super().reset(**kwargs)
        start(Mine, num_workers=1, context="fork").close()
        print("done")
    """
    (tmp_path / "guardless.py").write_text(program(body))
    done = run("import guardless", tmp_path, "-c")
    assert (done.stdout, done.stderr) == ("done\n", "")


REGISTERS = """
    import threading, warnings
    import gymnasium
    warnings.simplefilter("ignore")  # of forks
    lock = threading.Lock()
    class Mine(toys.CountEnv):
        pass
    class Locked(toys.CountEnv):
        def __init__(self):
            super().__init__()
            self.lock = lock
    gymnasium.register("Mine-v0", "__main__:Mine")
    gymnasium.register("Locked-v0", Locked)
    gymnasium.register("Named-v0", "__main__:Locked")
"""


@pytest.mark.extended
def test_envs_registered_by_a_name_in_the_main_script_are_made_in_workers(start_method: str, tmp_path: Path) -> None:
    """Other registered envs that cannot be pickled do not matter."""
    source = program(REGISTERS) + textwrap.dedent(
        f"""
        pool = start(lambda: gymnasium.make("Mine-v0"), context="{start_method}")
        print(pool.call(lambda env: type(env.unwrapped) is Mine))
        pool.close()
        """
    )
    done = run(source, tmp_path)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "[True, True, True, True]\n")


@pytest.mark.extended
def test_script_runs_in_the_debugger(start_method: str, tmp_path: Path) -> None:
    """`python -m pdb` leaves `__main__` without a `__spec__`, which multiprocessing looks at."""
    (tmp_path / "script.py").write_text(
        program(
            f"""
            class Mine(toys.CountEnv):
                pass
            pool = start(Mine, context="{start_method}")
            print(pool.call(lambda env: type(env).__name__))
            pool.close()
            """
        )
    )
    debug = "import pdb, sys; sys.argv = ['pdb', '-c', 'continue', '-c', 'quit', 'script.py']; pdb.main()"
    done = run(debug, tmp_path, "-c")
    assert "['Mine', 'Mine', 'Mine', 'Mine']" in done.stdout.splitlines(), done.stdout + done.stderr


@pytest.mark.extended
def test_removed_working_directory_does_not_stop_workers(start_method: str, tmp_path: Path) -> None:
    if start_method != "fork" and not _imports_in_a_removed_directory(tmp_path):
        pytest.skip("nothing is spawned there: this Python cannot import socket (python/cpython#130932, as in 3.13.0)")
    source = program(
        f"""
        os.mkdir("gone")
        os.chdir("gone")
        os.rmdir("../gone")
        sys.path.append("")
        pool = start(context="{start_method}")
        pool.restart(0)
        pool.reset()
        print(sorted(pool.recv().env_ids.tolist()))
        pool.close()
        """
    )
    ignore = "import warnings; warnings.simplefilter('ignore')\n" if start_method == "fork" else ""
    done = run(ignore + source, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[0, 1, 2, 3]\n"


@pytest.mark.extended
def test_search_path_entries_that_are_not_strings_do_not_stop_workers(start_method: str, tmp_path: Path) -> None:
    """Imports ignore them, but a fork server once got them on its command line, as code."""
    source = program(
        f"""
        import pathlib
        sys.path += [pathlib.Path("plugins"), None]
        pool = start(context="{start_method}")
        pool.close()
        print("closed")
        """
    )
    ignore = "import warnings; warnings.simplefilter('ignore')\n" if start_method == "fork" else ""
    done = run(ignore + source, tmp_path)
    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr


def _imports_in_a_removed_directory(tmp_path: Path) -> bool:
    """Tell whether Python itself can import what multiprocessing does, as it does: by -c."""
    done = run("import os; os.mkdir('no'); os.chdir('no'); os.rmdir('../no'); import socket", tmp_path, "-c")
    return "SystemError: error return without exception set" not in done.stderr


@pytest.mark.extended
def test_workers_never_run_the_main_script_again(tmp_path: Path) -> None:
    source = program(
        """
        with open("runs", "a") as file:
            file.write("once\\n")
        pool = start(num_envs=64, num_workers=64)
        assert len(set(pool.worker_pids)) == 64
        pool.close()
        """
    )
    done = run(source, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "runs").read_text() == "once\n"


ENDS = {
    "closed": ("pool.close()", 0, ""),
    "forgotten": ("", 0, ""),
    "exception": ("raise KeyError('mine')", 1, "KeyError: 'mine'"),
    "sys_exit": ("sys.exit(5)", 5, ""),
    "collected": ("del pool; import gc; gc.collect()", 0, ""),
    "terminated": ("os.kill(os.getpid(), signal.SIGTERM); signal.pause()", -signal.SIGTERM, ""),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
    "os_exit": ("os._exit(7)", 7, ""),
}


#: Ends that differ from others in the program only, not in its workers: with the other start methods they are slow.
LIKE_OTHERS = ("sys_exit", "collected", "terminated", "os_exit")
ENDS_BY_METHOD = [
    pytest.param(end, method, marks=pytest.mark.slow if end in LIKE_OTHERS and method != "forkserver" else ())
    for end in ENDS
    for method in ("forkserver", "spawn", "fork")
]


@pytest.mark.parametrize(("end", "start_method"), ENDS_BY_METHOD)
def test_program_leaves_nothing_however_it_ends(end: str, start_method: str, tmp_path: Path) -> None:
    last, code, says = ENDS[end]
    before = sockets()
    if start_method == "fork":
        last = f"import warnings; warnings.simplefilter('ignore')\n{last}"
    body = f"pool = start(context={start_method!r})\nprint(*pool.worker_pids, flush=True)\n{last}\n"
    done = run(program("") + body, tmp_path)
    assert done.returncode == code, done.stderr
    assert says in done.stderr and (says or done.stderr == "")
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    assert_gone(pids)
    deadline = Deadline(30.0)
    while sockets() != before and not deadline.is_over():  # a fork server ends last
        os.sched_yield()
    assert sockets() == before


@pytest.mark.extended
def test_program_that_ends_while_daemon_threads_use_pools_prints_nothing(tmp_path: Path) -> None:
    source = recovering(
        """
        import threading
        pools = [recovering() for _ in range(6)]
        turning = [threading.Event() for _ in pools]
        def loop(pool, turns):
            while True:
                pool.send(np.zeros(pool.num_envs, np.int64))
                pool.recv()
                turns.set()
        for pool, turns in zip(pools, turning):
            threading.Thread(target=loop, args=(pool, turns), daemon=True).start()
            print(*pool.worker_pids)
        for turns in turning:
            turns.wait(30)
        """
    )
    done = run(source, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert_gone([int(pid) for pid in done.stdout.split()])


@pytest.mark.extended
def test_forked_child_that_ends_normally_prints_nothing(start_method: str, tmp_path: Path) -> None:
    source = program(
        f"""
        import warnings
        warnings.simplefilter("ignore")
        pool = start(context={start_method!r})
        pool.send(np.zeros(4, np.int64))
        if pid := os.fork():
            assert os.waitpid(pid, 0) == (pid, 0)
            pool.recv().raise_errors()
            pool.close()
        """
    )
    done = run(source, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def sockets() -> list[str]:
    """Where fork servers listen: folders of the system's temporary one."""
    return sorted(name for name in os.listdir(tempfile.gettempdir()) if name.startswith("pymp-"))


@pytest.mark.extended
@pytest.mark.parametrize("env", ["toys.HangInC", "toys.HangAtStep", "toys.SpawnsChild"])
def test_killed_parent_ends_busy_workers_and_their_children(env: str, start_method: str, tmp_path: Path) -> None:
    source = program(
        f"""
        import psutil, warnings
        warnings.simplefilter("ignore")  # of a fork beside threads
        pool = start({env}, num_envs=2, context={start_method!r})
        pool.send(np.zeros(2, np.int64))
        if {env} is toys.SpawnsChild:
            pool.recv().raise_errors()
        family = [child.pid for pid in pool.worker_pids for child in psutil.Process(pid).children(True)]
        print(*pool.worker_pids, *family, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = run(source, tmp_path)
    assert done.returncode == -signal.SIGKILL and done.stderr == ""
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == (4 if "Child" in env else 2)
    assert_gone(pids)


@pytest.mark.extended
@pytest.mark.parametrize("stops", ["from outside", "by themselves, and again when they are continued"])
@pytest.mark.parametrize("implementation", ["native", "python"])
def test_killed_parent_ends_stopped_workers(implementation: str, stops: str, start_method: str, tmp_path: Path) -> None:
    """A stopped process hears nothing by itself: the kernel continues it when the process that forked it has ended.

    It tells any thread of it, also those of envs and of numeric libraries.
    """
    source = program(
        f"""
        import threading
        class StopSelf(toys.StopSelf):
            def __init__(self):
                super().__init__()
                for _ in range(3):
                    threading.Thread(target=threading.Event().wait, daemon=True).start()
        os.environ["VECENV_IMPLEMENTATION"] = {implementation!r}
        outside = {stops!r} == "from outside"
        pool = start(toys.CountEnv if outside else StopSelf, context={start_method!r})
        print(*pool.worker_pids, flush=True)
        if outside:
            os.kill(pool.worker_pids[1], signal.SIGSTOP)
        else:
            pool.send(np.zeros(4, np.int64))  # two envs to each worker
        while any(psutil.Process(pid).status() != psutil.STATUS_STOPPED for pid in pool.worker_pids[outside:]):
            os.sched_yield()
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    source = "import psutil, warnings; warnings.simplefilter('ignore')\n" + source
    done = run(source, tmp_path)
    assert done.returncode == -signal.SIGKILL and done.stderr == ""
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    assert_gone(pids)


@pytest.mark.extended
@pytest.mark.parametrize("implementation", ["native", "python"])
def test_fork_server_ends_workers_that_cannot_be_continued(implementation: str, tmp_path: Path) -> None:
    """Every thread stops the process again: the thread that notices the end is stopped before it can act."""
    source = program(
        f"""
        import threading
        class Stopper(toys.CountEnv):
            def step(self, action):
                def stop():
                    while True:
                        os.kill(os.getpid(), signal.SIGSTOP)
                for _ in range(3):
                    threading.Thread(target=stop, daemon=True).start()
                stop()
        os.environ["VECENV_IMPLEMENTATION"] = {implementation!r}
        pool = start(Stopper, context="forkserver")
        print(*pool.worker_pids, flush=True)
        pool.send(np.zeros(4, np.int64))
        while any(psutil.Process(pid).status() != psutil.STATUS_STOPPED for pid in pool.worker_pids):
            os.sched_yield()
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = run("import psutil\n" + source, tmp_path)
    assert done.returncode == -signal.SIGKILL and done.stderr == ""
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    assert_gone(pids)


@pytest.mark.extended
@pytest.mark.parametrize("waits", ["recv", "start", "nothing"])
def test_ctrl_c_reaches_the_caller_and_workers_print_nothing(waits: str, start_method: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        program(
            f"""
            import warnings, time
            if "{start_method}" == "fork":
                warnings.simplefilter("ignore")
            try:
                if "{waits}" == "start":
                    print("ready", flush=True)
                    start(toys.HangAtInit, context="{start_method}")
                pool = start(toys.HangAtStep, context="{start_method}", close=0.2)
                pool.send(np.zeros(4, np.int64))
                while not all(pool._hub.state(slot).op for slot in range(2)):
                    os.sched_yield()  # a worker that is not at its step yet ends by itself, sooner or later
                print("ready", flush=True)
                if "{waits}" == "recv":
                    pool.recv()
                signal.pause()
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            if "{waits}" != "start":
                pool.close()
                print(pool.closed)
            """
        )
    )
    process = subprocess.Popen(
        [sys.executable, "-W", "error", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a terminal would send the signal to the whole group, and so do we
        cwd=tmp_path,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert err == "" and process.returncode == 0
    assert out.splitlines() == (["interrupted"] if waits == "start" else ["interrupted", "True"])


@pytest.mark.extended
def test_opening_and_closing_many_times_leaks_nothing(tmp_path: Path) -> None:
    source = program(
        """
        import gc, psutil, threading
        me = psutil.Process()
        def holdings():
            gc.collect()
            return me.num_fds(), threading.active_count(), segments(), me.num_threads()
        for _ in range(3):
            start().close()
        before, rss = holdings(), me.memory_info().rss
        for _ in range(30):
            start().close()
        assert holdings() == before, (holdings(), before)
        assert me.memory_info().rss - rss < 8 << 20, me.memory_info().rss - rss
        """
    )
    done = run(source, tmp_path, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.extended
@pytest.mark.parametrize(("variable", "expected"), [("", "(1, '1')"), ("OPENBLAS_NUM_THREADS", "(2, '1')")])
def test_workers_use_one_blas_thread_unless_a_variable_is_set(
    variable: str, expected: str, start_method: str, tmp_path: Path
) -> None:
    """A variable that the program sets is kept."""
    source = program(
        f"""
        import warnings
        warnings.simplefilter("ignore")
        for name in {THREAD_VARIABLES!r}:
            os.environ.pop(name, None)
        if {variable!r}:
            os.environ[{variable!r}] = "2"
        def num_threads(env):
            import ctypes
            libraries = {{line.split()[-1] for line in open("/proc/self/maps") if "openblas" in line}}
            names = [prefix + "openblas_get_num_threads" + end for prefix in ("scipy_", "") for end in ("64_", "")]
            found = [getattr(ctypes.CDLL(library), name, None) for library in libraries for name in names]
            return max(call() for call in found if call), os.environ["OMP_NUM_THREADS"]
        pool = start(context="{start_method}", num_workers=1)
        print(pool.call(num_threads, [0])[0])
        pool.close()
        """
    )
    done = run(source, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == expected


@pytest.mark.extended
@pytest.mark.parametrize("where", ["main", "function"])
def test_spaces_of_the_programs_own_classes_travel(where: str, start_method: str, tmp_path: Path) -> None:
    classes = """
class Narrow(spaces.Box):
    pass
class Few(spaces.Discrete):
    pass
class Mine(gymnasium.Env):
    observation_space, action_space = Narrow(-1, 1, (2,)), Few(2)
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        return np.ones(2, np.float32), 1.0, False, False, {}
"""
    if where == "function":
        classes = (
            "def make():\n" + textwrap.indent(classes + "return Mine, Narrow", "    ") + "\nMine, Narrow = make()\n"
        )
    source = (
        "import os, signal\nimport gymnasium, numpy as np\nfrom gymnasium import spaces\nimport vecenv\n"
        + classes
        + textwrap.dedent(
            f"""
            envs = vecenv.VectorEnv([Mine] * 2, num_workers=2, context="{start_method}")
            envs.reset(seed=1)
            envs.step([0, 1])
            os.kill(envs.worker_pids[0], signal.SIGKILL)
            print(envs.step([0, 1])[1].tolist(), type(envs.single_observation_space) is Narrow)
            envs.close()
            """
        )
    )
    ignore = "import warnings; warnings.simplefilter('ignore')\n"
    done = run(ignore + source, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[1.0, 1.0] True\n"
