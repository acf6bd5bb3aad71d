"""Failures that are raised at once, as the policy demands: the errors name the last seed and actions of the env."""

from __future__ import annotations

import functools
import os
import signal
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.faults.traces import recovering_pool
from vecenv import VectorEnv
from vecenv.core.layout.flags import Op
from vecenv.core.options import Limits
from vecenv.ding import SyncSubprocessEnvManager
from vecenv.envs import toys
from vecenv.errors import WorkerDiedError, WorkerError, WorkerTimeoutError


class Fails(toys.ToyEnv):
    """Kills its process, or hangs, in one step of an episode, or in a reset with one seed."""

    def __init__(self, how: str, at: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.how, self.at = how, at

    def fail(self) -> None:
        if self.how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            pass

    def step(self, action: Any) -> Any:
        if self.elapsed_steps + 1 == self.at:
            self.fail()
        return super().step(action)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed == -self.at:
            self.fail()
        return super().reset(seed=None if seed is None else abs(seed))


class Spoken(Fails):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.action_space = spaces.Text(5)


RAISED = {"dies": WorkerDiedError, "hangs": WorkerTimeoutError}


@pytest.mark.extended
@pytest.mark.parametrize("how", RAISED)
def test_error_names_the_seed_and_the_action_under_way(how: str, implementation: str) -> None:
    env_fns = [functools.partial(toys.ToyEnv, 5), functools.partial(Fails, how, 3)]
    with VectorEnv(env_fns, num_workers=2, failures="raise", timeouts={"step": 0.5, "close": 0.1}) as envs:
        envs.reset(seed=7)
        for _ in range(2):
            envs.step([0, 0])
        with pytest.raises(RAISED[how], match=r"^[^\n]*; seed 8, last actions \[1\]") as caught:
            envs.step([0, 1])
    error = caught.value
    assert (error.env_ids, error.op, error.seed, error.actions) == ((1,), "step", 8, (1,))
    assert error.reproducer is None


@pytest.mark.extended
@pytest.mark.parametrize("how", RAISED)
def test_reset_error_names_its_own_seed(how: str, implementation: str) -> None:
    limits = Limits(reset=0.5, close=0.1)
    with recovering_pool([functools.partial(Fails, how, 3)], num_workers=1, on_failure="raise", limits=limits) as pool:
        pool.start()
        pool.reset(seeds=[5])
        pool.recv().raise_errors()
        pool.reset(kwargs=[{"seed": -3}])
        with pytest.raises(RAISED[how], match="; seed -3") as caught:
            pool.recv()
    assert (caught.value.seed, caught.value.actions) == (-3, ())


@pytest.mark.extended
def test_action_without_a_column_is_not_known(implementation: str) -> None:
    with recovering_pool([functools.partial(Spoken, "dies", 1)], num_workers=1, on_failure="raise") as pool:
        pool.start()
        pool.reset(seeds=[5])
        pool.recv().raise_errors()
        pool.send(("word",))
        with pytest.raises(WorkerDiedError, match="; seed 5$") as caught:
            pool.recv()
    assert (caught.value.seed, caught.value.actions) == (5, ())


def test_object_action_is_not_read_from_an_older_column(implementation: str) -> None:
    with recovering_pool([functools.partial(Fails, "dies", 2)], num_workers=1, on_failure="raise") as pool:
        pool.start()
        pool.reset(seeds=[5])
        pool.recv().raise_errors()
        pool.send(np.ones(1, np.int64))
        pool.recv().raise_errors()
        pool.send_objects([0], [0])
        with pytest.raises(WorkerError, match="; seed 5$"):
            pool.recv()
        assert pool.owes(0) == Op.STEP


@pytest.mark.extended
def test_manager_step_over_its_limit_names_seed_and_actions(implementation: str) -> None:
    """Managers keep a journal even if they do not recover from hangs."""
    cfg = {"step_timeout": 0.5, "num_workers": 1, "close_timeout": 0.1}
    with SyncSubprocessEnvManager(env_fn=[functools.partial(Fails, "hangs", 3)], cfg=cfg) as manager:
        manager.launch()
        for action in (1, 0):
            manager.step({0: action})
        with pytest.raises(WorkerTimeoutError, match=r"last actions \[1, 0, 1\]") as caught:
            manager.step({0: 1})
    assert [int(action) for action in caught.value.actions] == [1, 0, 1]
