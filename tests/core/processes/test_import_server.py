"""Import servers: modules of env factories are imported once, and workers do not notice it. Each test is a program."""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.isolated.programs import assert_gone, run
from tests.programs import run_python

MODULE = """
    import os
    from vecenv.envs.toys import CountEnv

    with open({log!r}, "a") as file:
        print(os.getpid(), file=file)
    with open("/proc/self/comm") as file:
        in_server = "vecenv import" in file.read()

    class Env(CountEnv):
        imported_by = os.getpid()

        @property
        def pids(self):
            return self.imported_by, os.getpid(), os.getppid()
"""
PROGRAM = """
    import logging, os, signal, sys
    import numpy as np
    from vecenv import VectorEnv
    from vecenv.core.system import fork_server

    def import_servers():
        found = [server for server in fork_server.servers if not server.is_stopped]
        return [server for server in found if server is not fork_server._main]

    def pids(*env_fns, **options):
        with VectorEnv(env_fns, num_workers=len(env_fns), **options) as envs:
            envs.reset(seed=0)
            return envs.get_attr("pids")

    def is_forked(*env_fns, **options):
        found = {imported_by != pid for imported_by, pid, _ in pids(*env_fns, **options)}
        return found.pop() if len(found) == 1 else found
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path) -> None:
    """Write the modules `one` and `two`, each with a class `Env`."""
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(MODULE.format(log=str(tmp_path / f"{name} was imported"))))


def add(path: Path, source: str) -> None:
    with path.open("a") as file:
        file.write(textwrap.dedent(source))


def signal_program_and_hang(path: Path, name: str) -> None:
    """Let the import of a module, in a server, send this signal to the program, and hang."""
    add(
        path,
        f"""
        if in_server:
            import signal
            with open("server", "w") as file:
                print(os.getpid(), file=file)
            os.kill(int(os.environ["PARENT"]), signal.{name})
            signal.pause()
        """,
    )


def lines_of(source: str, tmp_path: Path) -> list[str]:
    """Run a program; return the lines that it prints."""
    done = run(textwrap.dedent(PROGRAM) + textwrap.dedent(source), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def num_imports(name: str, tmp_path: Path) -> int:
    return len((tmp_path / f"{name} was imported").read_text().split())


def _first(values: Iterable[str]) -> list[Any]:
    """Return parameters of which all but the first one are for the whole suite."""
    return [pytest.param(value, marks=[pytest.mark.extended] if number else []) for number, value in enumerate(values)]


def test_modules_are_imported_once_for_all_workers_and_pools(tmp_path: Path) -> None:
    source = """
        import one, two
        first, second = pids(one.Env, one.Env), pids(lambda: one.Env(), one.Env)
        print({found[0] for found in first + second} == {found[2] for found in first + second})
        (server,) = import_servers()
        both = pids(one.Env, two.Env)
        print(both[0][0] == first[0][0], both[1][0] == both[1][2] == both[0][2] != both[0][0])
        print(import_servers() != [server])
    """
    assert lines_of(source, tmp_path) == ["True", "True True", "True"]
    assert num_imports("one", tmp_path) == num_imports("two", tmp_path) == 2  # the program and a server import it


@pytest.mark.extended
def test_replaced_worker_finds_the_modules_loaded(tmp_path: Path) -> None:
    source = """
        import one
        with VectorEnv([one.Env] * 2, num_workers=1) as envs:
            envs.reset(seed=0)
            logging.getLogger("vecenv").setLevel(logging.ERROR)
            before = envs.get_attr("pids")[0]
            os.kill(before[1], signal.SIGKILL)
            envs.step([0, 0])
            after = envs.get_attr("pids")[0]
            print(after[0] == before[0], after[1] != before[1])
    """
    assert lines_of(source, tmp_path) == ["True True"]


UNSAFE = {
    "starts 1 threads": "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "starts a process": "import subprocess; child = subprocess.Popen(['sleep', '60'])",
    "leaves files open": "os.open(__file__, os.O_RDONLY)",
    "sets a signal handler": "import signal; signal.signal(signal.SIGUSR1, print)",
    "has a random generator": "import numpy; rng = numpy.random.default_rng()",
}


@pytest.mark.parametrize("reason", _first(UNSAFE))
def test_module_that_would_not_survive_a_fork_is_left_to_the_workers(reason: str, tmp_path: Path) -> None:
    add(tmp_path / "one.py", UNSAFE[reason])
    source = """
        import one, two
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
        print(is_forked(one.Env, one.Env), num_servers := len(import_servers()))
        print(is_forked(two.Env), is_forked(one.Env, one.Env))
        one.__dict__.get("child") and (one.child.kill(), one.child.wait())
    """
    told, *found = lines_of(source, tmp_path)
    assert "workers import module 'one' themselves: " in told and reason in told
    assert found == ["False 0", "True False"]


@pytest.mark.extended
def test_refused_module_costs_one_server_for_all_modules_of_its_package(tmp_path: Path) -> None:
    """XuanCe has more than ten modules that import `scipy.stats`, which has a generator."""
    package = tmp_path / "package"
    package.mkdir()
    add(tmp_path / "part.py", UNSAFE["has a random generator"])
    for name in ("a", "b", "c"):
        add(package / f"{name}.py", "import one, part\nclass Env(one.Env): pass")
    source = """
        import one, package.a, package.b, package.c
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
        print(is_forked(package.a.Env, package.b.Env, package.c.Env), is_forked(one.Env))
    """
    told, found = lines_of(source, tmp_path)
    assert "workers import module 'package.a' and 2 others of its package themselves: " in told
    assert found == "False True"
    assert num_imports("one", tmp_path) == 6  # the program, the refused server, 3 workers, and the server of `one`


@pytest.mark.extended
def test_module_with_a_name_for_the_global_generators_is_imported_in_a_server(tmp_path: Path) -> None:
    """hbutils, which LightZero imports, has one."""
    add(tmp_path / "one.py", "import random, numpy; first, second = random._inst, numpy.random.mtrand._rand")
    source = """
        import one
        print(is_forked(one.Env, one.Env))
    """
    assert lines_of(source, tmp_path) == ["True"]


@pytest.mark.extended
def test_import_that_kills_its_process_is_left_to_the_workers(tmp_path: Path) -> None:
    add(tmp_path / "one.py", "if in_server: os._exit(3)")
    source = """
        import one, two
        print(is_forked(two.Env, two.Env), is_forked(one.Env, one.Env), is_forked(two.Env))
    """
    done = run(textwrap.dedent(PROGRAM) + textwrap.dedent(source), tmp_path)
    assert (done.returncode, done.stdout) == (0, "True False True\n")
    line = "vecenv: the import server died during the import of module 'one'; another one is started"
    assert done.stderr.splitlines() == [line] * 3


@pytest.mark.extended
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV"])
def test_import_server_that_dies_is_started_again(name: str, tmp_path: Path) -> None:
    source = f"""
        if in_server:
            import signal
            with open("deaths", "a+") as file:
                file.write("x")
                num_deaths = file.tell()
            if num_deaths <= 3:
                os.kill(os.getpid(), signal.{name})
        """
    add(tmp_path / "one.py", source)
    done = run(textwrap.dedent(PROGRAM) + "import one\nprint(is_forked(one.Env, one.Env))\n", tmp_path)
    assert (done.returncode, done.stdout, (tmp_path / "deaths").read_text()) == (0, "True\n", "xxxx")
    assert done.stderr.count("the import server died during the import of module 'one'; another one is started") == 3


@pytest.mark.extended
def test_error_of_an_import_is_raised_by_the_worker(tmp_path: Path) -> None:
    add(tmp_path / "one.py", "import multiprocessing as mp\nif mp.parent_process(): raise ValueError('not here')")
    source = """
        import one
        try:
            pids(one.Env)
        except ValueError as error:
            print(error)
    """
    assert lines_of(source, tmp_path) == ["not here"]


@pytest.mark.extended
def test_change_of_surroundings_starts_a_new_server(tmp_path: Path) -> None:
    source = """
        sys.path[0] = os.getcwd()
        import one
        changes = {
            "variable": lambda: os.environ.update(VECENV_TEST="new"),
            "threads": lambda: os.environ.update(OMP_NUM_THREADS="3"),
            "path": lambda: sys.path.append("/nowhere"),
            "file": lambda: os.utime("one.py", ns=(0, 0)),
            "folder": lambda: os.chdir(".."),
        }
        first = pids(one.Env)[0]
        for name, change in changes.items():
            change()
            second, third = pids(one.Env)[0], pids(one.Env)[0]
            print(name, second[0] != first[0], second[0] == third[0] == second[2])
            first = third
    """
    changes = ("variable", "threads", "path", "file", "folder")
    assert lines_of(source, tmp_path) == [f"{change} True True" for change in changes]


@pytest.mark.extended
def test_variable_that_pytest_changes_in_every_test_starts_no_new_server(tmp_path: Path) -> None:
    """Workers have its present value, also those of a server that another one has forked."""
    for name in ("one", "two"):
        add(tmp_path / f"{name}.py", "Env.test = property(lambda env: os.environ.get('PYTEST_CURRENT_TEST'))")
    source = """
        import one, two
        def look(test, *env_fns):
            os.environ.pop("PYTEST_CURRENT_TEST", None)
            if test:
                os.environ["PYTEST_CURRENT_TEST"] = test
            with VectorEnv(env_fns) as envs:
                return envs.get_attr("test"), envs.get_attr("pids")[0][0]
        found = [look("a", one.Env), look("b", one.Env), look("", one.Env), look("c", one.Env, two.Env)]
        print(*[tests for tests, _ in found])
        print(len({imported_by for _, imported_by in found}))
    """
    assert lines_of(source, tmp_path) == ["('a',) ('b',) (None,) ('c', 'c')", "1"]


@pytest.mark.extended
def test_changed_file_is_imported_again(tmp_path: Path) -> None:
    add(tmp_path / "one.py", "Env.value = 1")
    source = """
        import one
        def values():
            with VectorEnv([one.Env]) as envs:
                return envs.get_attr("value")
        print(values())
        with open("one.py", "a") as file:
            file.write("\\nEnv.value = 23")
        print(values())
    """
    assert lines_of(source, tmp_path) == ["(1,)", "(23,)"]


def test_worker_has_what_the_import_has_changed(tmp_path: Path) -> None:
    add(
        tmp_path / "one.py",
        """
        import sys, gymnasium
        os.environ["VECENV_TEST"] = "set by import"
        sys.path.append("/added/by/import")
        gymnasium.register("One-v0", Env, max_episode_steps=5)
        def find(env):
            return os.environ["VECENV_TEST"], sys.path[-1], "One-v0" in gymnasium.registry
        Env.found = property(find)
        """,
    )
    source = """
        def make():
            import one
            return one.Env()
        def found(context):
            with VectorEnv([make], context=context) as envs:
                return envs.get_attr("found")
        print(found("forkserver") == found("forkserver") == found("spawn"), len(import_servers()))
        print(found("forkserver")[0], "one" in sys.modules)
    """
    assert lines_of(source, tmp_path) == ["True 1", "('set by import', '/added/by/import', True) False"]


@pytest.mark.extended
def test_draws_of_an_import_are_those_of_a_worker(tmp_path: Path) -> None:
    """In a constructor they are from the state of the env, so such a module is left to the workers."""
    for name in ("one", "two"):
        add(tmp_path / f"{name}.py", "import random\nEnv.draw = random.random()")
    source = """
        import random
        def late():
            import one
            return one.Env()
        def draw(env_fn):
            with VectorEnv([env_fn], context={context!r}) as envs:
                return envs.get_attr("draw"), len(import_servers())
        random.seed(1)
        np.random.seed(1)
        print(*draw(late))
        import two
        print(*draw(two.Env))
    """
    forked, spawned = (lines_of(source.format(context=context), tmp_path) for context in ("forkserver", "spawn"))
    assert [line.split()[0] for line in forked] == [line.split()[0] for line in spawned]
    assert [line.split()[1] for line in forked] == ["0", "0"]


def test_output_and_log_records_of_an_import_are_those_of_each_worker(tmp_path: Path) -> None:
    text = "import logging\nprint('hello', flush=True)\nlogging.getLogger('one').warning('careful')"
    add(tmp_path / "one.py", f"if 'loaded' in os.environ:\n{textwrap.indent(text, '    ')}")
    source = """
        import one
        os.environ["loaded"] = "1"
        logging.basicConfig(format="%(name)s %(message)s", stream=sys.stdout)
        for output in ("once", "once", "none"):
            print(is_forked(one.Env, one.Env, engine={"worker_output": output}), flush=True)
    """
    once = ["hello [2 times]", "one careful", "one careful"]
    found = lines_of(source, tmp_path)
    assert sorted(found[:3]) == sorted(once) and sorted(found[4:7]) == sorted(once)
    assert found[3] == found[7] == "True" and found[8:] == ["one careful", "one careful", "True"]


def test_main_script_is_not_imported(tmp_path: Path) -> None:
    source = """
        import one
        print("main")
        class Mine(one.Env):
            pass
        print(is_forked(Mine, lambda: Mine()))
    """
    # the script has no guard, and its own module would not be importable
    assert lines_of(source, tmp_path) == ["main", "True"]


@pytest.mark.extended
def test_module_that_starts_workers_on_import_ends_with_the_same_error(tmp_path: Path) -> None:
    add(tmp_path / "one.py", "from vecenv import VectorEnv\nVectorEnv([Env], num_workers=1)")
    done = run("import one", tmp_path)
    assert "module 'one' starts workers when it is imported" in done.stderr


@pytest.mark.parametrize("how", _first(["it is killed", "it ends"]))
def test_server_ends_with_the_program(how: str, tmp_path: Path) -> None:
    source = f"""
        import one
        envs = VectorEnv([one.Env] * 2, num_workers=2)
        print(*{{server for *_, server in envs.get_attr("pids")}}, *envs.get_attr("pids")[0], flush=True)
        {"os.kill(os.getpid(), signal.SIGKILL)" if how == "it is killed" else "envs.close()"}
    """
    done = run(textwrap.dedent(PROGRAM) + textwrap.dedent(source), tmp_path)
    assert done.returncode == (-signal.SIGKILL if how == "it is killed" else 0)
    assert_gone([int(pid) for pid in done.stdout.split()])


@pytest.mark.extended
def test_server_ends_with_a_killed_program_during_an_import(tmp_path: Path) -> None:
    signal_program_and_hang(tmp_path / "one.py", "SIGKILL")
    source = """
        import one
        os.environ["PARENT"] = str(os.getpid())
        pids(one.Env)
    """
    assert run(textwrap.dedent(PROGRAM) + textwrap.dedent(source), tmp_path).returncode == -signal.SIGKILL
    assert_gone([int((tmp_path / "server").read_text())])


@pytest.mark.extended
@pytest.mark.parametrize("hangs", [False, True], ids=["imported", "the import hangs"])
def test_processes_of_an_import_end_with_a_killed_program(hangs: bool, tmp_path: Path) -> None:
    source = """
        if in_server:
            import subprocess
            child = subprocess.Popen(["sleep", "1000"])
            with open("child", "w") as file:
                print(child.pid, file=file)
    """
    add(tmp_path / "one.py", source)
    if hangs:
        signal_program_and_hang(tmp_path / "one.py", "SIGKILL")
    source = """
        import one
        os.environ["PARENT"] = str(os.getpid())
        envs = VectorEnv([one.Env], num_workers=1)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert run(textwrap.dedent(PROGRAM) + textwrap.dedent(source), tmp_path).returncode == -signal.SIGKILL
    assert_gone([int((tmp_path / "child").read_text())])


@pytest.mark.extended
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
def test_killed_server_is_replaced(how: str, tmp_path: Path) -> None:
    source = f"""
        import one
        first = pids(one.Env)[0]
        os.kill(first[2], signal.{how})
        while os.path.exists(f"/proc/{{first[2]}}"):
            os.sched_yield()
        print(is_forked(one.Env), pids(one.Env)[0][2] not in first)
        print(is_forked(one.Env))
    """
    assert lines_of(source, tmp_path) == ["False True", "True"]


@pytest.mark.extended
def test_server_ends_when_it_is_replaced(tmp_path: Path) -> None:
    """Its successor, which it has forked, keeps running."""
    source = """
        import one, two
        first = pids(one.Env)[0][2]
        second = pids(one.Env, two.Env)[0][2]
        while os.path.exists(f"/proc/{first}"):
            os.sched_yield()
        print(second != first, pids(one.Env, two.Env)[0][2] == second)
    """
    assert lines_of(source, tmp_path) == ["True True"]


@pytest.mark.extended
def test_interrupt_during_an_import_ends_the_server(tmp_path: Path) -> None:
    signal_program_and_hang(tmp_path / "one.py", "SIGINT")
    source = """
        import one
        os.environ["PARENT"] = str(os.getpid())
        try:
            pids(one.Env)
        except KeyboardInterrupt:
            print("interrupted", len(import_servers()))
    """
    assert lines_of(source, tmp_path) == ["interrupted 0"]
    assert_gone([int((tmp_path / "server").read_text())])


@pytest.mark.extended
def test_import_that_hangs_fails_as_in_a_worker(tmp_path: Path) -> None:
    add(tmp_path / "one.py", "import multiprocessing, signal\nif multiprocessing.parent_process(): signal.pause()")
    source = """
        import one
        from vecenv import WorkerTimeoutError
        try:
            pids(one.Env, timeouts={"construct": 1.0})
        except WorkerTimeoutError as error:
            print(str(error).partition(" within")[0])
    """
    assert lines_of(source, tmp_path) == ["worker 0 (env 0) did not finish construct of its envs"]


@pytest.mark.extended
def test_torch_and_its_cuda_state(tmp_path: Path) -> None:
    """Torch is imported by the server; a module that initialises CUDA, or seems to, is left to the workers."""
    pytest.importorskip("torch", exc_type=ImportError)
    add(tmp_path / "one.py", "import torch")
    add(tmp_path / "two.py", "import torch\ntorch.cuda.is_initialized = lambda: True")
    source = """
        import one, two
        print(is_forked(one.Env, one.Env), is_forked(two.Env))
    """
    assert lines_of(source, tmp_path) == ["True False"]


@pytest.mark.extended
def test_forked_child_of_the_program_keeps_no_server_alive(tmp_path: Path) -> None:
    source = """
        import one
        server = pids(one.Env)[0][2]
        pid = os.fork()
        if pid == 0:
            os._exit(len(import_servers()))
        print(os.waitpid(pid, 0)[1], is_forked(one.Env))
    """
    assert lines_of(source, tmp_path) == ["0 True"]


@pytest.mark.extended
def test_commands_without_a_file_work(tmp_path: Path) -> None:
    source = textwrap.dedent(PROGRAM) + "import one\nprint(is_forked(one.Env, lambda: one.Env()))\n"
    done = run_python("-c", source, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.extended
def test_worker_of_a_worker_has_the_settings_of_its_own_parent(tmp_path: Path) -> None:
    """A worker that is forked by a worker once had those of the import server."""
    add(
        tmp_path / "one.py",
        """
        class Outer(CountEnv):
            @property
            def inner(self):
                from vecenv import VectorEnv
                os.environ["VECENV_TEST"] = "of the outer env"
                with VectorEnv([Inner], context="fork") as envs:
                    return envs.get_attr("found")

        class Inner(CountEnv):
            found = property(lambda self: os.environ["VECENV_TEST"])
        """,
    )
    source = """
        import one
        with VectorEnv([one.Outer]) as envs:
            print(envs.get_attr("inner"))
    """
    assert lines_of(source, tmp_path) == ["(('of the outer env',),)"]
