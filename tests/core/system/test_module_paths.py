"""Modules outside the search path: workers import them from the files from which the program loaded them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vecenv
from tests.isolated.programs import program, run
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
    done = subprocess.run([sys.executable, "-c", main], cwd=tmp_path, capture_output=True, text=True, timeout=120)
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
    done = subprocess.run(
        [sys.executable, *options, "main.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "{True}\n"), done.stderr


def test_modules_on_the_search_path_need_no_entry() -> None:
    usual = {"os", "json.decoder", "numpy", "vecenv.core.system.module_paths", "_pytest.python", __name__}
    assert not usual & find_sources().keys()


def test_source_that_is_gone_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    import_from({"plugin_that_is_gone": Source(str(tmp_path / "plugin.py"), None, "")})
    with pytest.raises(ModuleNotFoundError, match="plugin_that_is_gone"):
        __import__("plugin_that_is_gone")
