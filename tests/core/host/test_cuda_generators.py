"""torch's generators of CUDA devices: each env has its own state of them once torch has started CUDA in its process.

Without a device, CPU generators stand for those of two devices, and `start_cuda` does what torch does when it starts
CUDA: it makes the generators and runs the queued calls.
"""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import vecenv
from vecenv.core.host import global_rngs
from vecenv.core.host.global_rngs import GlobalRngs

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="could not import 'torch'")

WORKERS: dict[str, dict[str, Any]] = {
    "serial": {"backend": "serial"},
    "four workers": {"num_workers": 4},
    "fork": {"num_workers": 2, "context": "fork"},
    "spawn": {"num_workers": 1, "context": "spawn"},
}
#: The 20th step comes after the first 16, in which the states are swapped in anyway.
MOMENTS = {"construct": -1, "reset": 0, "step 1": 1, "step 20": 20}
_DEVICES = 2


def start_cuda() -> None:
    """Start CUDA as torch does, with generators of the CPU; once per process."""
    import torch

    cuda: Any = torch.cuda
    if not cuda.default_generators:
        cuda.default_generators = tuple(torch.Generator() for _ in range(_DEVICES))
        for call, _ in cuda._queued_calls:
            call()
        cuda._initialized = True


def draw(num_values: int = 1) -> list[float]:
    """Return values of the generators of all devices, then one of torch's CPU generator."""
    import torch

    start_cuda()
    found = [torch.rand(num_values, generator=device)[-1].item() for device in torch.cuda.default_generators]
    return [*found, torch.rand(()).item()]


class DrawsFromCuda(gymnasium.Env[Any, Any]):
    """Starts CUDA at a moment, and draws from the generators of the devices then and in each later step."""

    observation_space, action_space = spaces.Box(-9.0, 9.0, (3,), np.float64), spaces.Discrete(2)

    def __init__(self, moment: int) -> None:
        self.moment, self.num_steps = moment, 0
        if moment < 0:
            draw()

    def observe(self) -> Any:
        return np.array(draw() if self.num_steps >= self.moment else [0.0] * 3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.num_steps += 1
        return self.observe(), 0.0, self.num_steps % 9 == 0, False, {}


@pytest.fixture(autouse=True)
def _without_cuda() -> Iterator[None]:
    """Have this process begin, and end, without CUDA."""
    import torch

    cuda: Any = torch.cuda
    if cuda.is_initialized():
        pytest.skip("CUDA runs in this process")
    names = {
        cuda: ("default_generators", "_initialized", "_queued_calls"),
        global_rngs: ("_has_cuda", "_is_cuda_expected"),
    }
    before = [(where, name, getattr(where, name)) for where, names_of in names.items() for name in names_of]
    cuda._queued_calls, global_rngs._is_cuda_expected = [], False
    yield
    for where, name, value in before:
        setattr(where, name, value)


def play(moment: str, kill_before: int | None = None, **options: Any) -> list[Any]:
    """Return the observations, (26, 4, 3), of four envs."""
    envs = vecenv.VectorEnv([lambda: DrawsFromCuda(MOMENTS[moment])] * 4, **options)
    try:
        rows = [envs.reset(seed=3)[0].tolist()]
        for step in range(25):
            if step == kill_before:
                os.kill(envs.worker_pids[0], signal.SIGKILL)
            rows.append(envs.step(np.zeros(4, np.int64))[0].tolist())
    finally:
        envs.close()
    return rows


@pytest.mark.extended
@pytest.mark.parametrize("moment", MOMENTS)
def test_numbers_do_not_depend_on_workers_and_kills(moment: str) -> None:
    expected = play(moment, num_workers=4)
    drawn = [value for row in expected for env in row for value in env if value]
    assert len(set(drawn)) == len(drawn), "each env and each device has numbers of its own"
    assert play(moment, num_workers=1) == expected
    assert play(moment, num_workers=2, kill_before=22) == expected
    assert play(moment, backend="serial") == expected


@pytest.mark.extended
@pytest.mark.parametrize("options", WORKERS.values(), ids=WORKERS)
def test_generators_of_the_caller_are_not_moved(options: dict[str, Any]) -> None:
    import torch

    if options.get("context") != "fork":  # a program that has started CUDA cannot fork workers
        draw(5)
    before = [device.get_state() for device in (torch.default_generator, *torch.cuda.default_generators)]
    play("step 1", **options)
    after = [device.get_state() for device in (torch.default_generator, *torch.cuda.default_generators)]
    assert len(before) == len(after) and all(map(torch.equal, before, after))


@pytest.mark.extended
def test_numbers_do_not_depend_on_the_c_extension(implementation: str) -> None:
    assert play("step 20", backend="serial") == play("step 20", num_workers=1)


def test_first_numbers_follow_the_seed() -> None:
    with GlobalRngs(entropy=3) as rngs:
        first = rngs.call_swapped(0, draw)
        other = rngs.call_swapped(1, draw)
        rngs.reseed(0, 5)
        seeded = rngs.call_swapped(0, draw)
        rngs.reseed(1, 5)
        assert rngs.call_swapped(1, draw) == seeded
    with GlobalRngs(entropy=3) as rngs:
        assert rngs.call_swapped(0, draw) == first
    assert len({*first, *other, *seeded}) == 9


def test_draws_of_a_step_that_starts_cuda_are_kept() -> None:
    with GlobalRngs(entropy=3) as rngs:
        expected = [rngs.call_swapped(0, draw) for _ in range(3)]
    with GlobalRngs(entropy=3) as rngs:
        for _ in range(16):
            rngs.call_lazily(0, int)
        assert [rngs.call_lazily(0, draw) for _ in range(3)] == expected


def test_states_go_on_where_cuda_starts_later() -> None:
    import torch

    with GlobalRngs(entropy=3) as rngs:
        rngs.call_swapped(0, draw)
        packed = rngs.pack_state(0, b"state")
        expected = rngs.call_swapped(0, draw)
    torch.cuda.default_generators, global_rngs._has_cuda = (), False
    later = GlobalRngs(entropy=4)
    assert later.unpack_state(2, packed) == b"state"
    assert later.unpack_state(2, later.pack_state(2, b"")) == b""
    with later:
        assert later.call_lazily(2, draw) == expected


@pytest.mark.gpu
def test_real_devices_are_swapped() -> None:
    import subprocess
    import sys

    program = (
        "import torch; from vecenv.core.host.global_rngs import GlobalRngs\n"
        "draw = lambda: torch.rand(3, device='cuda').tolist()\n"
        "with GlobalRngs(entropy=3) as rngs: first = [rngs.call_swapped(env, draw) for env in (0, 1, 0)]\n"
        "before = torch.cuda.get_rng_state()\n"
        "with GlobalRngs(entropy=3) as rngs: again = [rngs.call_swapped(env, draw) for env in (0, 1, 0)]\n"
        "assert first == again and len({str(part) for part in first}) == 3, (first, again)\n"
        "assert torch.equal(torch.cuda.get_rng_state(), before)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
