"""Modules outside the search path: workers import them from the files from which the program loaded them."""

from __future__ import annotations

import shutil
import sys
import textwrap
from pathlib import Path

import pytest

import vecenv
from tests.isolated.programs import program, run
from tests.programs import run_python
from vecenv.core.system.module_paths import Source, find_sources, import_from

PLUGIN = """
from vecenv.envs import toys

class Mine(toys.CountEnv):
    pass
"""
LOAD = """
    def load(name, file):
        spec = importlib.util.spec_from_file_location(name, file)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
"""


@pytest.mark.extended
@pytest.mark.parametrize("how", ["by reference", "in the constructor", "registered by name"])
def test_envs_of_a_module_loaded_from_a_file_run(how: str, start_method: str, tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "games.py").write_text(PLUGIN)
    env_fn = {
        "by reference": "plugin.Mine",
        "in the constructor": "lambda: plugin.Mine()",
        "registered by name": "lambda: gymnasium.make('Mine-v0')",
    }[how]
    body = f"""
        import gymnasium, importlib.util, sys
        {LOAD.replace(chr(10), chr(10) + "    ")}
        plugin = load("plugin_of_mine", "plugins/games.py")
        gymnasium.register("Mine-v0", "plugin_of_mine:Mine")
        pool = start({env_fn}, context="{start_method}")
        os.chdir("/")
        pool.restart(0)
        print(pool.call(lambda env: type(env.unwrapped)) == [plugin.Mine] * 4)
        pool.close()
    """
    done = run(program(body), tmp_path)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


TEST = f"""{PLUGIN}
import vecenv

def test_it_starts():
    with vecenv.VectorEnv([Mine] * 2) as envs:
        assert envs.reset(seed=0)[0].shape[0] == 2
"""


@pytest.mark.extended
def test_envs_of_a_test_module_run_with_pytests_importlib_mode(tmp_path: Path) -> None:
    """The module then belongs to a package that cannot be imported and has no file."""
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "test_mine.py").write_text(TEST)
    main = "import pytest, sys; sys.path.remove(''); sys.exit(pytest.main(['-q', '--import-mode=importlib']))"
    done = run_python("-c", main, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


ELSEWHERE = """
import os, sys
sys.path.insert(0, os.getcwd())
from vecenv.core.options import PoolOptions
from vecenv.core.pool.process import ProcessPool
from vecenv.envs import toys

def home_of(env):
    return sys.modules["vecenv.core.processes.worker_main"].__file__

pool = ProcessPool([toys.CountEnv] * 2, PoolOptions(num_workers=2, context={start_method!r}))
pool.start()
print({{os.path.commonpath([os.getcwd(), home]) == os.getcwd() for home in pool.call(home_of)}})
pool.close()
"""


@pytest.mark.extended
def test_workers_import_from_where_the_program_does(start_method: str, tmp_path: Path) -> None:
    """A fork server once loaded the installed package, although the program's search path begins elsewhere."""
    shutil.copytree(Path(vecenv.__file__).parent, tmp_path / "vecenv", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "main.py").write_text(ELSEWHERE.format(start_method=start_method))
    options = ["-P"] if sys.version_info >= (3, 11) else ["-I"]  # without the folder of the program
    done = run_python(*options, "main.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "{True}\n"), done.stderr


def test_modules_on_the_search_path_need_no_entry() -> None:
    usual = {"os", "json.decoder", "numpy", "vecenv.core.system.module_paths", "_pytest.python", __name__}
    assert not usual & find_sources().keys()


def test_source_that_is_gone_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    import_from({"plugin_that_is_gone": Source(str(tmp_path / "plugin.py"), None, "")})
    with pytest.raises(ModuleNotFoundError, match="plugin_that_is_gone"):
        __import__("plugin_that_is_gone")


ENV = """
import gymnasium, numpy as np
from gymnasium import spaces
{head}

class Env(gymnasium.Env):
    observation_space, action_space = spaces.Box(-99, 99, (1,), np.float32), spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.full(1, {value}, np.float32), {{}}
    def step(self, action):
        return np.full(1, {value}, np.float32), 0.0, False, False, {{}}
"""
PROGRAM = f"""
import importlib, importlib.util, os, sys, zipfile
import vecenv
{textwrap.dedent(LOAD)}
def write(path, value, head=""):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write({ENV!r}.format(head=head, value=value) if value else head)
    return os.path.abspath(path)

def prefer(folder):
    sys.path.insert(0, os.path.abspath(folder))
    importlib.invalidate_caches()

"""
#: How a program loads `Env` from the folder `own`, although the search path leads to the folder `other`.
AMBIGUOUS = {
    "by its path": """
        write("other/games.py", 7)
        prefer("other")
        Env = load("games", write("own/games.py", 1)).Env
    """,
    "before the path changed": """
        write("own/games.py", 1), write("other/games.py", 7)
        prefer("own")
        from games import Env
        prefer("other")
    """,
    "package": """
        for folder, value in (("own", 1), ("other", 7)):
            write(f"{folder}/games/__init__.py", 0), write(f"{folder}/games/board.py", value)
        prefer("own")
        from games.board import Env
        prefer("other")
    """,
    "package by its path": """
        for folder, value in (("own", 1), ("other", 7)):
            write(f"{folder}/games/__init__.py", 0), write(f"{folder}/games/board.py", value)
        prefer("other")
        load("games", os.path.abspath("own/games/__init__.py"))
        from games.board import Env
    """,
    "namespace package": """
        write("own/games/board.py", 1), write("other/games/board.py", 7)
        prefer("own")
        from games.board import Env
        prefer("other")
    """,
    "submodule by its path": """
        write("other/games/__init__.py", 0), write("other/games/board.py", 7)
        prefer("other")
        import games
        Env = load("games.board", write("own/board.py", 1)).Env
    """,
    "a dependency": """
        write("own/tools.py", 0, "VALUE = 1"), write("other/tools.py", 0, "VALUE = 7")
        prefer("own")
        Env = load("games", write("own/games.py", "VALUE", "from tools import VALUE")).Env
        sys.path[0] = os.path.abspath("other")
    """,
    "before the folder changed": """
        write("own/games.py", 1), write("other/games.py", 7)
        sys.path.insert(0, "")
        os.chdir("own")
        from games import Env
        os.chdir("../other")
    """,
    "relative entry of the path": """
        write("own/source/games.py", 1), write("other/source/games.py", 7)
        sys.path.insert(0, "source")
        os.chdir("own")
        from games import Env
        os.chdir("../other")
    """,
    "archive": """
        write("own/games.py", 1), write("other/games.py", 7)
        with zipfile.ZipFile("games.zip", "w") as archive:
            archive.write("own/games.py", "games.py")
        prefer("games.zip")
        from games import Env
        prefer("other")
    """,
    "name of the standard library": """
        Env = load("calendar", write("own/calendar.py", 1)).Env
    """,
    "in the place of another one": """
        write("other/games.py", 7)
        prefer("other")
        from games import Env
        vecenv.VectorEnv([Env] * 2).close()
        Env = load("games", write("own/games.py", 1)).Env
    """,
}
USE = """
    envs = vecenv.VectorEnv([Env] * 2, num_workers=2, context={start_method!r})
    rows = [envs.reset(seed=1)[0]]
    os.kill(envs.worker_pids[0], 9)
    logging.getLogger("vecenv").setLevel(logging.CRITICAL)
    rows += [envs.step([0, 0])[0]]
    envs.close()
    print(*[row.ravel().tolist() for row in rows])
"""


@pytest.mark.parametrize("kind", AMBIGUOUS)
def test_workers_load_the_file_that_the_program_has_loaded(kind: str, start_method: str, tmp_path: Path) -> None:
    """They once loaded the file that the search path leads to at their start."""
    body = textwrap.dedent(AMBIGUOUS[kind]) + textwrap.dedent(USE.format(start_method=start_method))
    done = run(program(PROGRAM) + body, tmp_path)
    assert (done.returncode, done.stdout) == (0, "[1.0, 1.0] [1.0, 1.0]\n"), done.stderr


def test_error_names_both_files_if_that_of_the_program_is_gone(tmp_path: Path) -> None:
    body = """
    write("other/games.py", 7)
    prefer("other")
    Env = load("games", write("own/games.py", 1)).Env
    os.unlink("own/games.py")
    try:
        vecenv.VectorEnv([Env] * 2)
    except ImportError as error:
        print(error)
    """
    done = run(program(PROGRAM) + textwrap.dedent(body), tmp_path)
    files = [str(tmp_path / folder / "games.py") for folder in ("own", "other")]
    assert done.stdout == (
        f"module 'games': the program has loaded {files[0]}, which is gone, and sys.path leads to {files[1]}\n"
    ), done.stderr


def test_search_path_that_leads_elsewhere_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folders = tmp_path / "own", tmp_path / "other"
    name = f"games_{tmp_path.name}"
    for folder in folders:
        folder.mkdir()
        (folder / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(str(folders[0]))
    monkeypatch.setitem(sys.modules, name, __import__(name))
    assert name not in find_sources()
    monkeypatch.syspath_prepend(str(folders[1]))
    own, other = (str(folder / f"{name}.py") for folder in folders)
    assert find_sources()[name] == Source(own, None, other)
