"""find_env_modules: the modules that the construction of envs imports."""

from __future__ import annotations

import functools
import json
import textwrap
import types

import gymnasium
import psutil
import pytest

from tests.programs import run_python
from vecenv.core.processes.env_modules import find_env_modules
from vecenv.envs.toys import CountEnv


def make_lazily():
    import psutil._common  # noqa: F401

    return CountEnv()


class LazyEnv(CountEnv):
    def __init__(self):
        import psutil._pslinux  # noqa: F401

        super().__init__()


def find(*env_fns, excluded=()):
    return set(find_env_modules(env_fns, {__name__, *excluded}))


@pytest.mark.parametrize(
    "env_fn, modules",
    [
        (CountEnv, set()),
        (functools.partial(gymnasium.make, "CartPole-v1"), set()),
        (functools.partial(gymnasium.make, "HalfCheetah-v5"), {"gymnasium.envs.mujoco.half_cheetah_v5"}),
        (functools.partial(CountEnv, psutil.Process), {"psutil"}),
        (functools.partial(CountEnv, {"key": [psutil.Process]}), {"psutil"}),
        (lambda: psutil.Process(), {"psutil"}),
        (lambda: [psutil.Process for _ in range(3)], {"psutil"}),
        (make_lazily, {"psutil._common"}),
        (lambda: make_lazily(), {"psutil._common"}),
        (LazyEnv, {"psutil._pslinux"}),
        (types.MethodType(lambda self: None, psutil.NoSuchProcess(1)), {"psutil"}),
        (lambda: json.loads("{}"), set()),
    ],
)
def test_modules_of_a_factory(env_fn, modules):
    assert find(env_fn) == modules


def test_values_of_closures_and_defaults_are_searched():
    of_closure, of_default = psutil.Process, pytest.Item
    assert find(lambda one=of_default: of_closure) == {"psutil", "_pytest.nodes"}


def test_excluded_modules_are_left_out():
    assert find(lambda: psutil.Process, excluded=["psutil"]) == set()


def test_recursion_ends():
    values: list[object] = []
    values.append(values)
    assert find(functools.partial(CountEnv, values)) == set()


def test_objects_of_the_main_module_are_searched(tmp_path):
    source = """
        import functools, psutil
        from vecenv.core.processes.env_modules import find_env_modules

        class Env:
            def __init__(self):
                self.process = psutil.Process()

        def make():
            return Env()

        print(*find_env_modules([make, functools.partial(make)], ()))
    """
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(source))
    done = run_python(str(script), check=True)
    assert done.stdout == "psutil\n"
