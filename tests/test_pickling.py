"""Pickles by value: cached functions and properties of classes that another process cannot import."""

from __future__ import annotations

import enum
import functools
import importlib
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import cloudpickle
import pytest

from tests.programs import run_python
from vecenv.values.pickling import dump_by_value


@functools.lru_cache
def importable(number: int) -> int:
    return number


def copy_of(value):
    return pickle.loads(dump_by_value(value))


def test_cached_function_that_can_be_imported_stays_the_same():
    assert copy_of(importable) is importable


def test_cached_function_of_a_package_that_travels_by_value_travels_too(tmp_path, monkeypatch):
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").touch()
    (tmp_path / "own_package" / "own_module.py").write_text("import functools\n@functools.cache\ndef f(x): return x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    package, module = importlib.import_module("own_package"), importlib.import_module("own_package.own_module")
    assert copy_of(module.f) is module.f
    cloudpickle.register_pickle_by_value(package)
    try:
        data = dump_by_value(module.f)
    finally:
        cloudpickle.unregister_pickle_by_value(package)
        for name in ("own_package", "own_package.own_module"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != str(tmp_path)])
    assert pickle.loads(data)(3) == 3, "where the package cannot be imported"


def test_local_cached_function_travels_with_its_settings_and_an_empty_cache():
    @functools.lru_cache(maxsize=3, typed=True)
    def double(number):
        """Return the double."""
        return 2 * number

    double(1)
    copy = copy_of(double)
    assert copy(4) == 8 and copy.__doc__ == double.__doc__
    assert copy.cache_parameters() == {"maxsize": 3, "typed": True} and copy.cache_info().currsize == 1


def test_recursive_cached_function_travels():
    @functools.cache
    def add_up(number):
        return number and number + add_up(number - 1)

    copy = copy_of(add_up)
    assert copy(20) == 210 and copy.cache_info().currsize == 21, "the copy calls itself"


def test_local_enum_keeps_its_aliases_and_the_attributes_of_its_members():
    class Planet(enum.Enum):
        EARTH = (5.0, 6.0)
        TERRA = EARTH
        MARS = (3.0, 2.0)

        def __init__(self, mass, radius):
            self.mass = mass
            self.radius = radius

    class Status(enum.IntEnum):
        OK = 200, "fine"

        def __new__(cls, value, phrase):
            made = int.__new__(cls, value)
            made._value_ = value
            made.phrase = phrase
            return made

    data = dump_by_value((Planet, Planet.MARS, Status.OK))
    program = """
import pickle, sys
planet, mars, status = pickle.load(sys.stdin.buffer)
assert mars is planet.MARS and planet["TERRA"] is planet.TERRA is planet.EARTH and planet((3.0, 2.0)) is mars
assert [(one.mass, one.radius) for one in planet] == [(5.0, 6.0), (3.0, 2.0)]
assert status == 200 and status.phrase == "fine"
"""
    subprocess.run([sys.executable, "-c", program], input=data, check=True)


def test_local_singledispatch_function_travels_after_calls():
    @functools.singledispatch
    def describe(value):
        return "any"

    @describe.register
    def _(value: int):
        return "int"

    describe(True)  # fills a dict with weak references
    copy = copy_of(describe)
    assert [copy(value) for value in (1, True, "a")] == ["int", "int", "any"]


def test_cached_property_of_a_local_class_travels():
    class Square:
        @functools.cached_property
        def area(self):
            """Area."""
            return [4]

    copy = copy_of(Square)
    made = copy()
    assert made.area is made.area and copy.area.__doc__ == "Area."


PROGRAM = """
import functools, os, signal, sys
import gymnasium, numpy as np, vecenv

class CachedEnv(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float64)

    @functools.cached_property
    def action_space(self):
        return gymnasium.spaces.Discrete(2)

    @functools.lru_cache(maxsize=None)
    def table(self, number):
        return 2.0 * number

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1), {}

    def step(self, action):
        self.count += 1
        return np.array([self.table(self.count)]), 0.0, False, False, {}

if __name__ == "__main__":
    gymnasium.register("Cached-v0", CachedEnv)
    for make in (lambda: CachedEnv(), functools.partial(gymnasium.make, "Cached-v0", disable_env_checker=True)):
        with vecenv.VectorEnv([make] * 2, context=sys.argv[1]) as envs:
            envs.reset()
            for number in range(3):
                if number == 2:
                    os.kill(envs.worker_pids[0], signal.SIGKILL)
                obs = envs.step(np.zeros(2, np.int64))[0]
            print(obs.tolist(), envs.statistics().replayed)
"""


@pytest.mark.extended
@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_env_class_of_the_main_script_may_have_cached_methods(tmp_path: Path, context: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = run_python(str(path), context, env=environ, check=False)
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and all(line.startswith("[[6.0], [6.0]] ") for line in lines), done.stderr
    assert all(int(line.split()[-1]) >= 1 for line in lines)
