"""Messages that cannot be unpickled, or raise at the caller, beside the death of their worker."""

from __future__ import annotations

import functools
import multiprocessing
import warnings
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.broken_pickles import BrokenPickleInfo
from tests.faults.traces import kill, recovering_pool
from vecenv.core.options import Limits
from vecenv.envs import toys
from vecenv.errors import EnvError


class WideObservation(toys.CountEnv):
    """Returns its second observation as float64, which is converted with a warning."""

    def observe(self) -> Any:
        obs = super().observe()
        return obs.astype(np.float64) if self.elapsed_steps == 2 else obs


class OneWay:
    """Can be sent by a worker, but not sent back."""

    def __reduce__(self) -> Any:
        if multiprocessing.parent_process() is None:
            raise TypeError("this stays here")
        return OneWay, ()


class SeesOneWay(toys.CountEnv):
    """Each observation has such an object in it."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict(count=self.observation_space, word=spaces.Text(1))

    def observe(self) -> Any:
        return {"count": super().observe(), "word": OneWay()}


@pytest.mark.parametrize("max_log_bytes", [100, 10**6])
def test_worker_is_replaced_if_last_delivered_values_cannot_be_sent(max_log_bytes: int, implementation: str) -> None:
    with recovering_pool([SeesOneWay] * 2, num_workers=2, max_log_bytes=max_log_bytes) as pool:
        pool.start()
        pool.reset(seeds=[1, 2])
        pool.recv()
        for _ in range(4):
            pool.step(np.zeros(2, np.int64))
        kill(pool, 0)
        batch = pool.step(np.zeros(2, np.int64))
        assert batch.truncated.tolist() == [max_log_bytes == 100, False]
        assert [type(word) for word in batch.obs["word"]] == [OneWay] * 2


@pytest.mark.extended
@pytest.mark.parametrize("fault", ["exits", "hangs"])
def test_worker_that_left_unreadable_messages_is_replaced(fault: str, implementation: str, tmp_path: Any) -> None:
    kind = toys.Exits if fault == "exits" else toys.Hangs
    env_fns = [BrokenPickleInfo, functools.partial(kind, 2, moment="step", once=str(tmp_path / "done"))]
    with recovering_pool(env_fns, num_workers=1, limits=Limits(step=1.0)) as pool:
        pool.start()
        pool.reset(seeds=[1, 2])
        pool.recv()
        for round_ in range(4):
            pool.send(np.zeros(2, np.int64))
            batch = pool.recv()
            assert batch.lengths.tolist() == [round_ + 1] * 2
            errors = batch.errors()
            assert list(errors) == ([0] if round_ == 1 else [])
            assert all(isinstance(error, EnvError) and "LookupError" in str(error) for error in errors.values())
        assert pool.statistics()["restarts"] == 1


def test_worker_is_replaced_if_its_warning_is_an_error(implementation: str, tmp_path: Any) -> None:
    env_fns = [WideObservation, functools.partial(toys.Exits, 2, moment="step", once=str(tmp_path / "done"))]
    with recovering_pool(env_fns, num_workers=1) as pool:
        pool.start()
        pool.reset(seeds=[1, 2])
        pool.recv()
        pool.step(np.zeros(2, np.int64))
        pool.send(np.zeros(2, np.int64))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning, match="float64"):
                pool.recv()
        if pool.outstanding():
            pool.recv()
        assert pool.step(np.zeros(2, np.int64)).lengths.tolist() == [3, 3]
        assert pool.statistics()["restarts"] == 1
