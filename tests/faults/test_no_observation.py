"""An env that gives no observation, or raises KeyboardInterrupt: an error at once, never an older value or a hang."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.faults.traces import kill, play, recovering_pool
from vecenv import VectorEnv
from vecenv.core.layout.flags import Autoreset
from vecenv.core.options import Limits
from vecenv.envs import toys
from vecenv.errors import SpaceError
from vecenv.gymnasium_api.replaying import REPLAYING

pytestmark = pytest.mark.usefixtures("implementation")

SAYS = r"obs: expected float32 \(4,\), got None"
# The two backends differ only in the way in which the error reaches the caller.
WHERE = [("NextStep", "serial"), ("SameStep", "serial"), ("Disabled", "serial"), ("SameStep", "process")]


class Forgets(toys.ToyEnv):
    """Gives None instead of the observation at one moment: (calls of reset, steps since)."""

    def __init__(self, moment: tuple[int, int], length: int | None = 3, **kwargs: Any) -> None:
        super().__init__(length, **kwargs)
        self.moment = moment

    def observe(self) -> Any:
        return None if (self.num_resets, self.elapsed_steps) == self.moment else super().observe()


@contextlib.contextmanager
def opened(moment: tuple[int, int], backend: str, mode: str = "NextStep") -> Iterator[VectorEnv]:
    env_fns = [functools.partial(toys.ToyEnv, 3), functools.partial(Forgets, moment)]
    envs = VectorEnv(env_fns, backend=backend, autoreset_mode=mode)
    try:
        yield envs
    finally:
        envs.close()


def step(envs: VectorEnv, count: int) -> None:
    for _ in range(count):
        obs = envs.step([0, 0])[0]
        assert obs[0, 0] == obs[1, 0], "both are as far"


@pytest.mark.parametrize(("mode", "backend"), WHERE)
@pytest.mark.parametrize("at", [1, 2, 3], ids=["first step", "later step", "terminal step"])
def test_step_without_an_observation_is_an_error(at: int, mode: str, backend: str) -> None:
    with opened((1, at), backend, mode) as envs:
        envs.reset(seed=0)
        step(envs, at - 1)
        with pytest.raises(SpaceError, match=SAYS) as caught:
            envs.step([0, 0])
        assert caught.value.path == "obs" and caught.value.got == "None"


@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("number", [1, 2])
def test_reset_without_an_observation_is_an_error(number: int, backend: str) -> None:
    with opened((number, 0), backend) as envs:
        for seed in range(1, number):
            envs.reset(seed=seed)
        with pytest.raises(SpaceError, match=SAYS):
            envs.reset(seed=number)


@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_autoreset_without_an_observation_is_an_error(mode: str, backend: str) -> None:
    with opened((2, 0), backend, mode) as envs:
        envs.reset(seed=0)
        step(envs, 3 if mode == "NextStep" else 2)
        with pytest.raises(SpaceError, match=SAYS):
            envs.step([0, 0])


def test_env_continues_after_a_step_without_an_observation() -> None:
    with opened((1, 1), "serial") as envs:
        envs.reset(seed=0)
        with pytest.raises(SpaceError, match=SAYS):
            envs.step([0, 0])
        envs.reset(seed=0)
        step(envs, 2)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("moment", "autoreset"),
    [
        pytest.param((1, 2), Autoreset.NEXT_STEP, id="step"),
        pytest.param((1, 3), Autoreset.SAME_STEP, id="terminal step"),
        pytest.param((2, 0), Autoreset.NEXT_STEP, id="autoreset, next step"),
        pytest.param((2, 0), Autoreset.SAME_STEP, id="autoreset, same step"),
    ],
)
def test_step_without_an_observation_is_the_same_error_in_a_replay(
    moment: tuple[int, int], autoreset: Autoreset
) -> None:
    """The error was the answer, and is the answer again: nothing is lost."""
    options: Any = {"num_workers": 1, "autoreset": autoreset}
    with recovering_pool([functools.partial(Forgets, moment)], **options) as pool:
        undisturbed = play(pool, 9)
    with recovering_pool([functools.partial(Forgets, moment)], **options) as pool:
        got = play(pool, 9, before=lambda pool, number: kill(pool, 0) if number == 7 else None)
    assert any("got None" in row.error for row in got.rows[0]), "it never came to that"
    assert got.rows == undisturbed.rows and [mark for _, mark in got.marks[0]] == ["replayed"]


class ForgetsAgain(toys.ToyEnv):
    """Gives no observation in its second step where that is only repeated."""

    def observe(self) -> Any:
        return None if self.elapsed_steps == 2 and REPLAYING in os.environ else super().observe()


def test_observation_missing_only_in_a_replay_is_a_difference() -> None:
    with recovering_pool([ForgetsAgain], num_workers=1) as pool:
        got = play(pool, 6, before=lambda pool, number: kill(pool, 0) if number == 5 else None)
    assert [mark for _, mark in got.marks[0]] == ["truncated", "restarted"]


# ---- KeyboardInterrupt -----------------------------------------------------------------------------


class Interrupts(toys.FaultEnv):
    """Raises KeyboardInterrupt, as code that waits for a device may."""

    def fail(self) -> None:
        self.at = 0  # once
        raise KeyboardInterrupt("from the env")


@pytest.mark.parametrize("moment", ["reset", "step", "autoreset", "call"])
def test_keyboard_interrupt_of_an_env_in_a_worker_is_its_answer(moment: str) -> None:
    limits = Limits(reset=20.0, step=20.0, call=20.0)
    env_fns = [toys.ToyEnv, functools.partial(Interrupts, moment=moment, length=2)]
    with recovering_pool(env_fns, num_workers=1, limits=limits, on_failure="raise") as pool:
        pool.start()
        pool.reset(seeds=[0, 1])
        errors = pool.recv().errors()
        if moment == "call":
            with pytest.raises(Exception, match="from the env") as caught:
                pool.call(lambda env: env.unwrapped.poke(), [1])
            errors = {1: caught.value}
        pids = pool.worker_pids
        for _ in range(3):
            if not errors:
                pool.send(np.zeros(2, np.int64))
                errors = pool.recv().errors()
        assert list(errors) == [1], "the other env has answered"
        assert not isinstance(errors[1], KeyboardInterrupt) and "KeyboardInterrupt" in str(errors[1])
        pool.reset(seeds=[0, 1])
        assert pool.recv().errors() == {}
        assert pool.worker_pids == pids and pool.statistics()["restarts"] == 0, "no worker has died"


def test_keyboard_interrupt_in_a_serial_vector_env_is_raised_as_such() -> None:
    envs = VectorEnv([functools.partial(Interrupts, at=2), toys.ToyEnv], backend="serial")
    with contextlib.closing(envs):
        envs.reset(seed=0)
        envs.step([0, 0])
        with pytest.raises(KeyboardInterrupt, match="from the env"):
            envs.step([0, 0])


@pytest.mark.extended
def test_keyboard_interrupt_of_an_env_in_a_worker_is_an_error_of_the_vector_env() -> None:
    envs = VectorEnv([functools.partial(Interrupts, at=2), toys.ToyEnv], num_workers=1, timeouts={"step": 20.0})
    with contextlib.closing(envs):
        envs.reset(seed=0)
        envs.step([0, 0])
        with pytest.raises(Exception, match="KeyboardInterrupt"):
            envs.step([0, 0])
        envs.reset(seed=0)
        assert envs.step([0, 0])[0][:, 0].tolist() == [1.0, 1.0]
