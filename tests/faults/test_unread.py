"""Mail that cannot be unpickled, or is an error to the caller, beside the death of its worker."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import pytest

from tests.faults.tapes import mortal
from tests.unreadable import UnreadableInfo
from vecenv.core.options import Limits
from vecenv.envs import toys
from vecenv.errors import EnvError


class WideObservation(toys.CountEnv):
    """Returns its second observation as float64, which is converted with a warning."""

    def observe(self) -> Any:
        obs = super().observe()
        return obs.astype(np.float64) if self.elapsed_steps == 2 else obs


@pytest.mark.parametrize("crime", ["exits", "hangs"])
def test_a_worker_that_left_mail_nobody_can_read_is_replaced(crime: str, implementation: str, tmp_path: Any) -> None:
    kind = toys.Exits if crime == "exits" else toys.Hangs
    env_fns = [UnreadableInfo, functools.partial(kind, 2, moment="step", once=str(tmp_path / "done"))]
    with mortal(env_fns, num_workers=1, limits=Limits(step=1.0)) as pool:
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


def test_a_worker_is_replaced_where_a_warning_that_it_left_is_an_error(implementation: str, tmp_path: Any) -> None:
    env_fns = [WideObservation, functools.partial(toys.Exits, 2, moment="step", once=str(tmp_path / "done"))]
    with mortal(env_fns, num_workers=1) as pool:
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
