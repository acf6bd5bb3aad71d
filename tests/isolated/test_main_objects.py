"""Messages of workers leave the classes and functions of the program's own file as they are."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.programs import run_python

from .programs import run

KINDS = Path(__file__).with_name("kinds_of_main.py")
ROOT = KINDS.parents[2]
#: Front ends, and the module that each needs.
PLAYS = {
    "VectorEnv": "",
    "successor": "",
    "recycled": "",
    "spare envs": "",
    "BatchedVectorEnv": "",
    "SB3VecEnv": "sb3",
    "Tianshou": "tianshou",
    "TorchRL": "torchrl",
    "ALF": "",
    "collect": "",
    "evaluate": "",
    "sync": "",
    "async": "",
    "V2": "",
    "shards": "",
}

HEAD = """
    import multiprocessing, sys, operator
    import gymnasium
    import numpy as np
    from gymnasium import spaces
    import vecenv
    class Item:
        made = 0
        table = {}
        def __init__(self, x=0):
            self.x = x
            type(self).made += 1
        def scaled(self):
            return self.x * SCALE
    SCALE = 1
    def double(x):
        return 2 * x
    class Env(gymnasium.Env):
        observation_space, action_space = spaces.Box(-9, 9, (1,), np.float32), spaces.Discrete(9)
        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(1, np.float32), {"item": Item(5)}
        def step(self, action):
            return np.zeros(1, np.float32), 0.0, False, False, {"item": Item(5)}
        def give(self):
            return Item(6)
        def take(self, item):
            return Item.made, item.scaled(), isinstance(item, Item)
"""


def program(body: str, head: str = HEAD) -> str:
    return textwrap.dedent(head) + textwrap.dedent(body)


def check_kinds(name: str, start_method: str, **environ: str) -> None:
    """Run the program; it imports `tests` from the root of the repository."""
    command = [sys.executable, str(KINDS), name, start_method]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=variables)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize("name", PLAYS)
def test_objects_of_main_are_of_the_same_classes_after_their_return(name: str, start_method: str) -> None:
    if PLAYS[name]:
        pytest.importorskip(f"vecenv.integrations.{PLAYS[name]}", exc_type=ImportError)
    check_kinds(name, start_method)


def test_objects_of_main_are_of_the_same_classes_with_the_serial_backend() -> None:
    check_kinds("serial", "forkserver")


def test_objects_of_main_return_without_the_extension() -> None:
    check_kinds("VectorEnv", "forkserver", VECENV_IMPLEMENTATION="python")


STATE = """
    def state():
        return Item.made, Item.table is table, item.scaled(), Item.scaled is method
    envs = vecenv.VectorEnv([Env] * 2, context="{start_method}", num_workers=2)
    SCALE, Item.made = 10, 100
    table, method, item = Item.table, Item.scaled, Item(3)
    _, infos = envs.reset(seed=0)
    assert isinstance(infos["item"][0], Item) and state() == (101, True, 30, True), state()
    infos = envs.step(np.zeros(2, np.int64))[4]
    assert isinstance(infos["item"][1], Item) and state() == (101, True, 30, True), state()
    assert isinstance(envs.call("give")[0], Item) and state() == (101, True, 30, True), state()
    assert envs.call("take", item) == ((3, 3, True),) * 2, envs.call("take", item)
    envs.set_attr("item", [item, item])
    assert envs.call("take", item) == ((3, 3, True),) * 2
    envs.close()
    print("done")
"""


@pytest.mark.parametrize("how", ["file", "-c", "stdin"])
def test_classes_of_main_keep_their_attributes(how: str, start_method: str, tmp_path: Path) -> None:
    ignore = "import warnings; warnings.simplefilter('ignore')\n"
    done = run(ignore + program(STATE.format(start_method=start_method)), tmp_path, how)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_classes_of_a_module_run_by_name_keep_their_attributes(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").touch()
    (tmp_path / "own" / "program.py").write_text(program(STATE.format(start_method="forkserver")))
    done = run_python("-m", "own.program", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_classes_of_a_spawned_program_keep_their_attributes(tmp_path: Path) -> None:
    """There `__main__` has the name `__mp_main__`."""
    body = "\n".join(f"    {line}" for line in textwrap.dedent(STATE.format(start_method="forkserver")).splitlines())
    body = f"""
def main():
    global SCALE
{body}
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=main)
    process.start()
    process.join()
    print(process.exitcode)
"""
    done = run(program("") + body, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n0\n", "")


@pytest.mark.parametrize("redefines", ["before the second pool", "after it"])
def test_redefined_class_does_not_replace_the_one_that_was_sent(redefines: str, tmp_path: Path) -> None:
    """As in a notebook whose cell runs again."""
    redefine = """
    first = Item
    class Item:
        made = 0
        def __init__(self, x=0):
            self.x = x
        def scaled(self):
            return -1
    """
    second = """
    others = vecenv.VectorEnv([Env] * 2, num_workers=2)
    expected = Item
    """
    body = """
    envs = vecenv.VectorEnv([Env] * 2, num_workers=2)
    """
    body += redefine + second if redefines == "before the second pool" else second + redefine
    body += """
    for one, cls in ((envs, first), (others, expected)):
        _, infos = one.reset(seed=0)
        assert type(infos["item"][0]) is cls, (cls, type(infos["item"][0]))
        assert type(one.call("give")[1]) is cls
        assert one.call("take", cls(3))[0][1:] == (3 if cls is first else -1, True)
        one.close()
    assert Item().scaled() == -1 and Item is not first
    print("done")
    """
    done = run(program(body), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_result_of_a_task_in_a_shard_is_of_the_class_that_was_sent(tmp_path: Path) -> None:
    body = """
    import pickle
    from vecenv.core.options import PoolOptions
    from vecenv.core.pool.pool import Pool
    from vecenv.core.shards.local_carrier import LocalCarrier
    from vecenv.core.shards.requests import RunTask
    from vecenv.core.shards.sharded_engine import ShardedEngine
    from vecenv.core.shards.task_calls import TaskCall
    from vecenv.values.pickling import dump_by_value
    def make_task(pool):
        def task(argument, shared):
            return Item(argument) if argument else lambda: Item
        return task
    factory = dump_by_value(make_task)
    pool = Pool(ShardedEngine([Env] * 2, PoolOptions(num_workers=1), carrier=LocalCarrier(), num_shards=2))
    pool.start()
    first, Item.made = Item, 100
    class Item:
        pass
    def run(argument):
        op = RunTask(1, factory, pickle.dumps(argument, protocol=5), False)
        call = TaskCall(0, lambda generation: (op, None))
        pool.submit_task(call)
        pool.wait_for_task([call])
        assert call.error is None, call.error
        return call.value
    for argument in (5, "x" * 10_000):
        item = run(argument)
        assert type(item) is first and item.x == argument, type(item)
    assert run(None)() is first
    assert first.made == 100 and not hasattr(Item, "made")
    pool.close()
    print("done")
    """
    done = run(program(body), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_lambda_with_changed_globals_changes_no_function_of_workers(tmp_path: Path) -> None:
    body = """
    from vecenv.core.pool.process import ProcessPool
    pool = ProcessPool([Env] * 2)
    pool.start()
    SCALE = 10
    assert pool.call(lambda env: SCALE * Item(2).scaled()) == [20, 20]
    assert pool.call(lambda env: Item(2).scaled()) == [2, 2]
    assert pool.call(lambda env: Item) == [Item, Item]
    pool.close()
    print("done")
    """
    done = run(program(body), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_classes_with_hooks_of_their_own_reach_workers_as_they_are(start_method: str, tmp_path: Path) -> None:
    """Python calls these hooks when a class is made; they need attributes that the copy of a class gets later."""
    body = f"""
    import abc
    made = []
    class Task:
        def __init_subclass__(cls, *, level):
            made.append((cls.task_id, level))
    class Walk(Task, level=3):
        task_id = "walk"
    class Meta(abc.ABCMeta):
        def __new__(meta, name, bases, names, *, kind):
            cls = super().__new__(meta, name, bases, names)
            made.append((names["size"], kind))
            return cls
        def __init__(cls, name, bases, names, *, kind):
            super().__init__(name, bases, names)
        def __setattr__(cls, name, value):
            if name == "size":
                raise AttributeError("read-only")
            super().__setattr__(name, value)
    class Robot(metaclass=Meta, kind="robot"):
        size = 2
        @abc.abstractmethod
        def move(self):
            pass
    class Arm:
        pass
    Robot.register(Arm)
    class Made(Env):
        def give(self):
            class Run(Task, level=4):
                task_id = "run"
            try:
                Robot.size = 3
            except AttributeError:
                pass
            return Walk.task_id, Robot.size, isinstance(Arm(), Robot), isinstance(3, Robot), made
    with vecenv.VectorEnv([Made] * 2, context="{start_method}", num_workers=2) as envs:
        expected = "walk", 2, True, False, [("walk", 3), (2, "robot"), ("run", 4)]
        assert envs.call("give") == (expected, expected), envs.call("give")
    assert len(made) == 2
    print("done")
    """
    done = run("import warnings; warnings.simplefilter('ignore')\n" + program(body), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_class_that_only_a_worker_has_is_named(tmp_path: Path) -> None:
    body = """
    class Makes(Env):
        def give(self):
            import __main__
            __main__.Made = type("Made", (), {"__module__": "__main__"})
            return __main__.Made()
    envs = vecenv.VectorEnv([Makes] * 2, num_workers=2)
    try:
        envs.call("give")
    except vecenv.EnvError as error:
        print("Made" in str(error))
    envs.close()
    """
    done = run(program(body), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


NESTED = """
    class UsesPool(Env):
        def __init__(self):
            with multiprocessing.get_context("{method}").Pool(1) as pool:
                self.value = pool.apply_async({function}, (3,)).get(30)
        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.full(1, self.value, np.float32), {{}}
    {guard}
        envs = vecenv.VectorEnv([UsesPool] * 2, context="{start_method}", num_workers=2)
        print(envs.reset()[0].ravel().tolist())
        envs.close()
"""
GUARD = 'if __name__ == "__main__":'


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_env_starts_processes_that_run_functions_of_main(method: str, start_method: str, tmp_path: Path) -> None:
    source = NESTED.format(method=method, function="double", guard=GUARD, start_method=start_method)
    done = run("import warnings; warnings.simplefilter('ignore')\n" + program(source), tmp_path)
    assert (done.returncode, done.stdout) == (0, "[6.0, 6.0]\n"), done.stderr


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_env_of_a_program_without_main_guard_spawns_processes(start_method: str, tmp_path: Path) -> None:
    """They run functions of other modules; that file is not imported in them."""
    source = NESTED.format(method="spawn", function="operator.neg", guard="if True:", start_method=start_method)
    done = run(program(source), tmp_path)
    assert (done.returncode, done.stdout) == (0, "[-3.0, -3.0]\n"), done.stderr
