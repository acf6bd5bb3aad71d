"""Random generators that a module creates when it is imported: each worker has others, wherever they are kept."""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vecenv import VectorEnv
from vecenv.core.processes.shared_generators import entropy_watched, find_generator, has_new_generator, live_generators

HEAD = """
import functools, os, random, secrets, types
import gymnasium, numpy as np
from gymnasium import spaces

class Base(gymnasium.Env):
    observation_space, action_space = spaces.Box(-1e9, 1e9, (1,), np.float64), spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.array([self.draw()]), {}
    def step(self, action):
        return np.array([self.draw()]), 0.0, False, False, {}

"""
CLASS = "class Env(Base):\n    def draw(self): return {}"
#: How a module keeps its generator -> its source.
KINDS: dict[str, str] = {
    "class attribute": "class Env(Base):\n    rng = np.random.default_rng()\n"
    "    def draw(self): return self.rng.normal()",
    "module": f"RNG = np.random.default_rng()\n{CLASS.format('RNG.normal()')}",
    "default argument": "class Env(Base):\n    def draw(self, rng=random.Random()): return rng.random()",
    "dict": f"TOOLS = {{1: np.random.RandomState()}}\n{CLASS.format('TOOLS[1].normal()')}",
    "object": f"TOOLS = types.SimpleNamespace(rng=random.Random())\n{CLASS.format('TOOLS.rng.random()')}",
    "closure": "def make(rng):\n    return lambda self: rng.normal()\n"
    "class Env(Base):\n    draw = make(np.random.default_rng())",
    "cache": "@functools.cache\ndef rng():\n    return np.random.default_rng()\n"
    f"rng()\n{CLASS.format('rng().normal()')}",
    "space": "SPACE = spaces.Box(0, 1, (), np.float64)\nSPACE.seed()\n" + CLASS.format("float(SPACE.sample())"),
    "seed sequence": "SEEDS = np.random.SeedSequence()\n"
    + CLASS.format("np.random.default_rng(SEEDS.spawn(1)[0]).normal()"),
    "seed of the system": "RNG = [random.Random(int.from_bytes(os.urandom(8), 'little'))]\n"
    + CLASS.format("RNG[0].random()"),
    "seed of secrets": f"RNG = [random.Random(secrets.randbits(64))]\n{CLASS.format('RNG[0].random()')}",
    "process id": f"RNG = [np.random.default_rng(os.getpid())]\n{CLASS.format('RNG[0].normal()')}",
    "numbers of its own": "STATE = [int.from_bytes(os.urandom(6), 'little')]\n"
    + CLASS.format("STATE.append(STATE.pop() * 69069 % 2**48) or float(STATE[0] % 10**9)"),
}


def import_source(source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Import a module with this source; it has a name of its own, since the import servers of a program know it."""
    name = f"module_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(HEAD + source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return __import__(name)


@pytest.mark.parametrize("kind", KINDS)
def test_workers_share_no_generator_of_an_import(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With 4 envs there was one stream of numbers, also after the death of a worker."""
    module = import_source(KINDS[kind], monkeypatch, tmp_path)
    with VectorEnv([module.Env] * 3, num_workers=3) as envs:
        rows = [envs.reset()[0][:, 0], envs.step([0, 0, 0])[0][:, 0]]
    assert len(set(rows[0])) == len(set(rows[1])) == 3


@pytest.mark.parametrize("source", ["secrets.SystemRandom()", "import tempfile\ntempfile.mktemp()"])
def test_harmless_imports_are_made_once_for_all_workers(
    source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The generator of `tempfile` has another state after a fork."""
    body = f"{source}\nclass Env(Base):\n    imported_by = os.getpid()\n    def draw(self): return 0.0"
    module = import_source(body, monkeypatch, tmp_path)
    with VectorEnv([module.Env] * 2, num_workers=2) as envs:
        assert not set(envs.get_attr("imported_by")).intersection(envs.worker_pids)


@pytest.mark.parametrize(
    "take", [random.Random, np.random.default_rng, np.random.RandomState, lambda: random.SystemRandom().random()]
)
def test_entropy_is_noticed_while_it_is_watched(take: Callable[[], Any]) -> None:
    with entropy_watched() as takers:
        take()
    assert set(takers) == {__name__}
    take()
    assert set(takers) == {__name__}


def test_generators_with_seeds_take_no_entropy() -> None:
    with entropy_watched() as takers:
        random.Random(1), np.random.default_rng(1)  # RandomState(1) does, before it takes the seed
    assert takers == []


def test_new_generators_are_found_wherever_they_are() -> None:
    earlier = live_generators()
    assert not has_new_generator(earlier)
    kept = [{"key": (np.random.default_rng(1),)}]
    assert has_new_generator(earlier) and kept


def test_generators_of_a_module_are_named() -> None:
    module = types.ModuleType("games")
    module.same = random._inst  # type: ignore[attr-defined]
    assert find_generator(module) == ""
    module.Env = type("Env", (), {"rng": random.Random(1), "__module__": "games"})  # type: ignore[attr-defined]
    assert find_generator(module) == "games.Env.rng"


def test_fork_of_a_generator_gives_one_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Workers share the generators of the caller, as in Gymnasium."""
    module = import_source(KINDS["class attribute"], monkeypatch, tmp_path)
    with pytest.warns(RuntimeWarning, match=rf"^{module.__name__}\.Env\.rng is a random generator") as warned:
        VectorEnv([module.Env] * 2, num_workers=2, context="fork").close()
    assert len(warned) == 1
