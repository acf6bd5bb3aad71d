"""The public names: sorted, complete, and cheap and quiet to import."""

import functools
import importlib
import os
import sys
import types

import pytest

import vecenv
from tests.programs import run_python

HOME_OF, MODULE_OF = vecenv._HOME_OF, vecenv._MODULE_OF


def output_of(code: str) -> str:
    """Run a program in a fresh interpreter and return its output."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = run_python("-W", "error", "-c", code, env=environ)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_dunder_all_is_sorted_and_unique():
    assert vecenv.__all__ == sorted(set(vecenv.__all__))


def test_names_exist_and_are_public():
    values = {name: getattr(vecenv, name) for name in vecenv.__all__}
    assert [name for name, value in values.items() if isinstance(value, types.ModuleType)] == []
    assert [name for name, value in values.items() if getattr(vecenv, name) is not value] == []
    assert [name for name in vecenv.__all__ if name not in dir(vecenv)] == []


def test_names_of_the_package_are_those_that_its_modules_export():
    """The type checker sees `from module import *`, the interpreter sees the table."""
    exported = {
        (name, module)
        for module in set(MODULE_OF.values())
        for name in importlib.import_module(f"vecenv.{module}").__all__
    }
    stay = {(name, module) for name, module in exported if name not in HOME_OF}
    assert stay == set(MODULE_OF.items())


def test_package_exports_at_most_60_names():
    assert len(vecenv.__all__) <= 60


@pytest.mark.parametrize("name", sorted(HOME_OF))
def test_name_that_has_moved_works_and_warns(name):
    home = f"vecenv.{HOME_OF[name]}"
    with pytest.warns(DeprecationWarning, match=f"^vecenv.{name} has moved to {home}.{name}. ") as caught:
        value = getattr(vecenv, name)
    assert value is getattr(importlib.import_module(home), name)
    assert caught[0].filename == __file__
    assert name not in vecenv.__all__ and name not in dir(vecenv)


def test_names_of_di_engine_are_those_that_have_moved_there():
    moved = [name for name, home in HOME_OF.items() if home == "ding"]
    assert vecenv.ding.__all__ == sorted([*moved, "check_all"])  # a check of any env, and a name of DI-engine


def test_help_opens_with_a_map_of_ten_lines_whose_names_exist():
    lines = [line for line in vecenv.__doc__.splitlines() if line.startswith("    ")]
    assert len(lines) == 10 and vecenv.__doc__.splitlines()[2:12] == lines
    for line in lines:
        names = line[:36].replace(",", " ").split()
        assert names
        for name in names:
            path = name.split(".")
            if path[0] == "integrations":
                pytest.importorskip(f"vecenv.{'.'.join(path[:-1])}", exc_type=ImportError)
            assert functools.reduce(getattr, path, vecenv)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'vecenv' has no attribute 'no_such_name'"):
        _ = vecenv.no_such_name
    assert not hasattr(vecenv, "__wrapped__")


@pytest.mark.extended
@pytest.mark.parametrize("part", ["alf", "envs", "errors", "managers", "options", "vector", "wrappers"])
def test_parts_can_be_read_before_their_names(part):
    assert (
        output_of(f"import vecenv; print('{part}' in dir(vecenv), vecenv.{part}.__name__)") == f"True vecenv.{part}\n"
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
    assert output_of(IMPORT_ALONE).split("\n")[0] == "[] [] []"


READ_ALL = """
import sys, threading
import vecenv
for name in vecenv.__all__:
    getattr(vecenv, name)
heavy = {"torch", "ray", "stable_baselines3", "cv2", "ale_py", "mujoco", "moviepy", "imageio", "matplotlib", "rich"}
print(sorted(heavy & set(sys.modules)), threading.active_count())
"""


@pytest.mark.extended
def test_reading_every_name_loads_no_optional_library():
    assert output_of(READ_ALL) == "[] 1\n"
