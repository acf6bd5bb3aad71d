"""The public names: sorted, complete, and cheap and quiet to import."""

import importlib
import os
import subprocess
import sys
import types

import pytest

import vecenv


def run_python(code: str) -> str:
    """Run a program in a fresh interpreter and return what it prints."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=environ, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_all_is_sorted_and_without_doubles():
    assert vecenv.__all__ == sorted(set(vecenv.__all__))


@pytest.mark.parametrize("name", vecenv.__all__)
def test_every_name_is_there_and_public(name):
    value = getattr(vecenv, name)
    assert not isinstance(value, types.ModuleType)
    assert name in dir(vecenv)
    assert getattr(vecenv, name) is value


@pytest.mark.parametrize("module", sorted(set(vecenv._MODULE_OF.values())))
def test_what_a_module_exports_is_what_the_package_exports(module):
    """The type checker sees `from module import *`, the interpreter sees the table."""
    exported = set(importlib.import_module(f"vecenv.{module}").__all__)
    assert exported == {name for name, home in vecenv._MODULE_OF.items() if home == module}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'vecenv' has no attribute 'no_such_name'"):
        _ = vecenv.no_such_name
    assert not hasattr(vecenv, "__wrapped__")


@pytest.mark.parametrize("part", ["alf", "envs", "errors", "managers", "vector", "wrappers"])
def test_the_parts_can_be_read_before_any_name_of_theirs(part):
    assert (
        run_python(f"import vecenv; print('{part}' in dir(vecenv), vecenv.{part}.__name__)") == f"True vecenv.{part}\n"
    )


def test_star_import():
    namespace: dict[str, object] = {}
    exec("from vecenv import *", namespace)
    assert set(vecenv.__all__) <= set(namespace)


def test_version():
    assert vecenv.__version__.count(".") == 2


IMPORT_ALONE = """
import os, sys
import vecenv
heavy = {"torch", "ray", "stable_baselines3", "gymnasium", "numpy", "multiprocessing", "cv2"} & set(sys.modules)
segments = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
children = ""
if os.path.isdir("/proc/self/task"):
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        children = file.read()
print(sorted(heavy), [name for name in segments if name.startswith(f"vecenv-{os.getpid()}-")], children.split())
"""


def test_import_alone_loads_nothing_and_starts_nothing():
    assert run_python(IMPORT_ALONE).split("\n")[0] == "[] [] []"


READ_ALL = """
import sys, threading
import vecenv
for name in vecenv.__all__:
    getattr(vecenv, name)
heavy = {"torch", "ray", "stable_baselines3", "cv2", "ale_py", "mujoco", "moviepy", "imageio", "matplotlib", "rich"}
print(sorted(heavy & set(sys.modules)), threading.active_count())
"""


def test_reading_every_name_loads_no_optional_library():
    assert run_python(READ_ALL) == "[] 1\n"
