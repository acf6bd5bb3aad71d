"""Fork servers: the modules that they have loaded, and which of them starts a process."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest

from tests import descriptors
from tests.faults.traces import stopped
from tests.isolated.programs import run
from vecenv.core.options import PoolOptions
from vecenv.core.pool.process import ProcessPool
from vecenv.core.system import fork_server, start_process
from vecenv.envs import toys
from vecenv.envs.adapt import adapt_and_build
from vecenv.envs.state.state import SNAPSHOTTER
from vecenv.errors import ConfigError

LOOK = "import os, sys; open({path!r}, 'w').write(' '.join([str(os.getppid()), *sys.modules]))"


def look(tmp_path, *modules):
    """Start a process; return the pid of its fork server and the names of the modules loaded in it."""
    path = tmp_path / "found"
    process = start_process.start_process(
        "forkserver", exec, (LOOK.format(path=str(path)),), "look", frozenset(modules)
    )
    process.join()
    assert process.exitcode == 0
    process.close()
    pid, *found = path.read_text().split()
    return int(pid), found


@pytest.mark.extended
def test_server_has_the_requested_modules_and_is_shared(own_server, tmp_path):
    adapt, state, batched = "vecenv.envs.adapt", "vecenv.envs.state.state", "vecenv.envs.batched"
    first, found = look(tmp_path, adapt, state)
    assert {"vecenv.core.processes.worker_main", "numpy", "gymnasium", adapt, state} <= set(found)
    assert batched not in found and "vecenv.managers" not in found
    second, found = look(tmp_path, batched)
    assert second == first == fork_server.main_server().pid and {adapt, state, batched} <= set(found)


@pytest.mark.extended
def test_server_has_no_descriptor_twice(own_server, tmp_path):
    """Its workers inherit all its open descriptors."""
    pid, _ = look(tmp_path)
    found = [
        one for number, one in descriptors.open_descriptors(pid).items() if number > 2
    ]  # pipe ends differ in their flags
    assert len({one for one in found if one[0].startswith("socket:")}) == 1
    assert len(set(found)) == len(found), found


@pytest.mark.extended
def test_server_that_was_killed_is_replaced(own_server, tmp_path):
    first, _ = look(tmp_path, "vecenv.envs.adapt")
    os.kill(first, signal.SIGKILL)
    second, found = look(tmp_path, "vecenv.envs.adapt")
    assert second != first and "vecenv.envs.adapt" in found
    assert look(tmp_path)[0] == second


@pytest.mark.extended
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "once it has been waited for"])
def test_server_is_replaced_with_sigchld_ignored(own_server, tmp_path, waits):
    first, _ = look(tmp_path)
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        os.kill(first, signal.SIGKILL)
        while waits and os.path.exists(f"/proc/{first}"):
            os.sched_yield()
        assert look(tmp_path)[0] != first
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.extended
def test_server_that_does_not_answer_is_abandoned(own_server, tmp_path, monkeypatch):
    """The start of a worker by a stopped server once waited without a limit."""
    first, _ = look(tmp_path)
    monkeypatch.setattr(start_process, "_REPLY_SECONDS", 5.0)
    with stopped([first]):
        assert look(tmp_path)[0] == fork_server.main_server().pid != first
    assert not psutil.pid_exists(first)


@pytest.mark.extended
def test_worker_start_raises_if_servers_do_not_answer(own_server, tmp_path, monkeypatch):
    first, _ = look(tmp_path)
    pool = ProcessPool([toys.CountEnv], PoolOptions(num_workers=1), adapt=adapt_and_build)
    with stopped([first]), monkeypatch.context() as patch:
        patch.setattr(start_process, "_REPLY_SECONDS", 0.01)  # the import of the next server takes longer
        with pytest.raises(ConfigError, match="its fork server did not answer within 0.01 s") as caught:
            pool.start()
        assert "ulimit" not in str(caught.value), "that would not help"
        pool.close()
    assert not psutil.pid_exists(first)
    assert look(tmp_path)[0] == fork_server.main_server().pid != first


@pytest.mark.extended
def test_forked_child_keeps_no_server_alive(own_server, tmp_path):
    first, _ = look(tmp_path)
    number = fork_server.main_server().connection.fileno()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(OSError):
            os.fstat(number)
            os._exit(1)
        os._exit(2 if fork_server.servers else 0)
    assert os.waitpid(pid, 0)[1] == 0
    assert look(tmp_path)[0] == first


def test_preload_is_limited_to_modules_of_this_package():
    """Code that other modules run on import may not survive a fork."""
    values = (
        adapt_and_build,
        SNAPSHOTTER,
        None,
        functools.partial(print),
        test_preload_is_limited_to_modules_of_this_package,
    )
    assert start_process.modules_of(*values) == {"vecenv.envs.adapt", "vecenv.envs.state.state"}
    assert start_process.modules_of() == frozenset()
    assert all(name in sys.modules for name in start_process.modules_of(*values))


@pytest.mark.extended
def test_process_spawned_by_another_thread_during_a_start_keeps_its_main_script(tmp_path):
    source = """
        import multiprocessing, threading
        from vecenv.core.system import start_process as spawning
        def target():
            print("found", flush=True)
        class Starts:
            def __reduce__(self):  # called as the worker is started
                other = multiprocessing.get_context("spawn").Process(target=target)
                thread = threading.Thread(target=other.start)
                thread.start()
                thread.join()
                other.join()
                return str, ()
        if __name__ == "__main__":
            process = spawning.start_process("spawn", str, (Starts(),), "worker")
            process.join()
            print(process.exitcode)
    """
    done = run(textwrap.dedent(source), tmp_path)
    assert (done.stdout, done.stderr) == ("found\n0\n", "")


@pytest.mark.extended
@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_program_may_still_set_its_own_start_method(context, tmp_path):
    source = f"""
        import multiprocessing
        from vecenv.core.system import start_process as spawning
        process = spawning.start_process("{context}", str, (), "worker")
        process.join()
        multiprocessing.set_start_method("spawn")
    """
    done = run(textwrap.dedent(source), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.extended
@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_start_method_of_another_library_is_not_used(context, tmp_path):
    """In a worker of joblib, for example, `multiprocessing` starts processes with loky."""
    source = f"""
        import multiprocessing.context
        from vecenv.core.system import start_process as spawning
        class OtherContext(multiprocessing.context.SpawnContext):
            _name = "other"
        multiprocessing.context._concrete_contexts["other"] = OtherContext()
        multiprocessing.set_start_method("other")
        process = spawning.start_process("{context}", str, (), "worker")
        process.join()
        print(process.exitcode, multiprocessing.get_start_method())
    """
    done = run(textwrap.dedent(source), tmp_path)
    assert (done.stdout, done.stderr) == ("0 other\n", "")


LOUD = """
    import os, sys
    from vecenv import VectorEnv
    from vecenv.envs.toys import CountEnv

    def write():
        for descriptor in (1, 2):
            os.write(descriptor, b"for nobody to read")

    class Loud(CountEnv):
        def __init__(self):
            write()
            super().__init__()

        def step(self, action):
            write()
            return super().step(action)

    if __name__ == "__main__":
        for descriptor in (0, 1, 2):
            os.close(descriptor)
        with VectorEnv([Loud] * 2, num_workers=2, context=sys.argv[1], timeouts={"construct": 20.0}) as envs:
            envs.reset(seed=0)
            left = [descriptor for descriptor in (0, 1, 2) if os.path.exists(f"/proc/self/fd/{descriptor}")]
            sent = [envs.step([0, 0])[1].tolist() for _ in range(3)]
        with open("done", "w") as file:
            print(left, sent, file=file)
"""


@pytest.mark.extended
@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_program_with_closed_standard_descriptors(context, implementation, tmp_path):
    """A worker's socket once got the descriptor of standard output, to which the env prints. The parent then hung."""
    script = tmp_path / "loud.py"
    script.write_text(textwrap.dedent(LOUD))
    subprocess.run([sys.executable, str(script), context], cwd=tmp_path, check=True, timeout=120)
    assert (tmp_path / "done").read_text() == "[] [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]\n"
