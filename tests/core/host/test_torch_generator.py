"""torch's global generator: each env has its own state of it, whenever torch is imported. The caller's is not moved."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import vecenv
from tests.programs import run_python
from vecenv.core.host import generator_states, global_rngs, torch_generator
from vecenv.core.host.global_rngs import GlobalRngs

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="could not import 'torch'")

WORKERS: dict[str, dict[str, Any]] = {
    "serial": {"backend": "serial"},
    "four workers": {"num_workers": 4},
    "fork": {"num_workers": 2, "context": "fork"},
    "spawn": {"num_workers": 1, "context": "spawn"},
}


class ImportsTorch(gymnasium.Env[Any, Any]):
    """Imports torch in its first call of a kind, and draws from torch there and in all later ones.

    Args:
        moment: 'construct', 'reset' or 'step'.
    """

    observation_space, action_space = spaces.Box(-9.0, 9.0, (3,), np.float64), spaces.Discrete(2)

    def __init__(self, moment: str) -> None:
        self.moment, self.num_steps = moment, 0
        self.draw("construct")

    def draw(self, moment: str) -> Any:
        if moment == "step" or moment == self.moment:
            import torch

            normal = torch.randn(1, dtype=torch.float64)  # each second one is cached
            return np.array([float(torch.rand(())), float(normal), np.random.random()])
        return np.zeros(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.num_steps = 0
        return self.draw("reset"), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.num_steps += 1
        return self.draw("step"), 0.0, self.num_steps == 5, False, {}


def play(moment: str, seed: int | None = 3, kill_before: int | None = None, **options: Any) -> list[Any]:
    envs = vecenv.VectorEnv([lambda: ImportsTorch(moment)] * 4, **options)
    try:
        rows = [envs.reset(seed=seed)[0].tolist()]
        for step in range(9):
            if step == kill_before:
                os.kill(envs.worker_pids[0], signal.SIGKILL)
            rows.append(envs.step(np.zeros(4, np.int64))[0].tolist())
    finally:
        envs.close()
    return rows


def play_in_new_process(moment: str, options: dict[str, Any]) -> str:
    program = (
        "import sys; from tests.core.host.test_torch_generator import play\n"
        "if __name__ == '__main__':\n"
        "    assert 'torch' not in sys.modules\n"
        f"    print(play({moment!r}, **{options!r}))\n"
        "    finders = [finder for finder in sys.meta_path if type(finder).__name__ == 'TorchImports']\n"
        "    import torch\n"
        "    fresh = torch.Generator().manual_seed(torch.initial_seed())\n"
        "    assert not finders and torch.equal(torch.get_rng_state(), fresh.get_state()), 'not moved'\n"
    )
    found = run_python("-c", program, check=False)
    assert not found.returncode, found.stderr
    return found.stdout


@pytest.mark.extended
@pytest.mark.parametrize("moment", ["step", "reset", "construct"])
@pytest.mark.parametrize("implementation", ["native", "python"], indirect=True)
def test_numbers_do_not_depend_on_who_imports_torch(moment: str, implementation: str) -> None:
    """In a new process: one worker's envs import torch one by one, and those of the serial backend in the caller."""
    expected = play_in_new_process(moment, {"num_workers": 4})
    assert play_in_new_process(moment, {"num_workers": 1}) == expected
    assert play_in_new_process(moment, {"backend": "serial"}) == expected
    assert play_in_new_process(moment, {"num_workers": 2, "kill_before": 7}) == expected
    import torch  # here it is imported before the pool

    assert torch and str(play(moment, backend="serial")) == expected.strip()


@pytest.mark.parametrize("options", WORKERS.values(), ids=WORKERS)
def test_generator_of_the_caller_is_not_moved(options: dict[str, Any]) -> None:
    import torch

    torch.manual_seed(1), torch.randn(1, dtype=torch.float64)
    before = torch.get_rng_state()
    first, second = play("step", **options), play("step", seed=None, **options)
    assert torch.equal(torch.get_rng_state(), before)
    assert first[1] != second[1] and len({row[0] for row in first[1]}) == 4


@pytest.mark.parametrize("quiet", [0, 16])
def test_first_draws_in_steps_are_the_envs_own(quiet: int) -> None:
    import torch

    def drawn(call: Any, count: int) -> list[float]:
        return [float(call(1, torch.rand, count)[-1] + call(1, torch.randn, 1)) for _ in range(4)]

    with GlobalRngs(entropy=3) as rngs:
        expected, expected_after_many = drawn(rngs.call_swapped, 3), drawn(rngs.call_swapped, 1000)
    with GlobalRngs(entropy=3) as rngs:
        for _ in range(quiet):
            rngs.call_lazily(1, int)
        assert drawn(rngs.call_lazily, 3) == expected and drawn(rngs.call_lazily, 1000) == expected_after_many


def test_env_continues_its_own_numbers_after_a_long_first_draw() -> None:
    import torch

    with GlobalRngs(entropy=3) as rngs:
        expected = [rngs.call_swapped(1, torch.rand, 2000), rngs.call_swapped(1, torch.rand, 9)]
    with GlobalRngs(entropy=3) as rngs:
        for _ in range(16):
            rngs.call_lazily(1, int)
        assert not torch.equal(rngs.call_lazily(1, torch.rand, 2000), expected[0])
        assert torch.equal(rngs.call_lazily(1, torch.rand, 9), expected[1])


def test_states_go_on_where_torch_is_imported_later(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    rngs = GlobalRngs(entropy=3)
    with rngs:
        rngs.call_swapped(0, torch.rand, 3)
    packed = rngs.pack_state(0, b"state")
    with monkeypatch.context() as without:
        without.delitem(sys.modules, "torch")
        later = GlobalRngs(entropy=4)
        assert later.unpack_state(2, packed) == b"state" and len(later.watched_words) == 4
        assert later.unpack_state(2, later.pack_state(2, b"")) == b""
    with rngs:
        expected = rngs.call_swapped(0, torch.rand, 3).tolist()
    with later:
        assert later.call_lazily(2, torch.rand, 3).tolist() == expected


def test_unknown_layout_is_swapped_by_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch_generator, "_offset", lambda: None)
    state = torch.get_rng_state()
    assert not GlobalRngs().watched_words
    expected = play("step", backend="serial")
    assert play("step", num_workers=1, context="fork") == expected
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.native
def test_layout_is_known_on_this_platform() -> None:
    import torch

    assert torch_generator.memory_of(torch.default_generator) is not None and len(GlobalRngs().watched_words) == 6


def test_pool_begins_from_the_callers_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(global_rngs, "_pool_numbers", iter([0, 0, 0]))
    with torch.random.fork_rng(devices=[]):
        found = []
        for seed in 1, 2, 1:
            torch.manual_seed(seed)
            found.append(global_rngs.pool_entropy())
    assert found[0] == found[2] != found[1]
    assert len({generator_states.parts_of(entropy)[:2] for entropy in found}) == 1, "the others do not depend on torch"
