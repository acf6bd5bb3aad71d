"""Every column of a row arrives with its value from every engine, with and without spare envs."""

from __future__ import annotations

import contextlib
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from vecenv.core.layout.columns import FINAL_CELLS, INFO_CELLS, Group, names_of
from vecenv.core.layout.flags import Autoreset, RowFlag
from vecenv.core.options import PoolOptions
from vecenv.core.parent.batch import Batch
from vecenv.core.pool.pool import Pool
from vecenv.core.pool.process import ProcessEngine
from vecenv.core.pool.serial import SerialEngine, SerialPool
from vecenv.core.spares.resets import SpareRule
from vecenv.envs.seeding import episode_seed

from .test_pool import OpenPool, open_pool

__all__ = ["open_pool"]  # the fixture

LENGTH = 3
#: Groups of columns that contain infos; without C, infos are messages.
CELLS = {Group.INFO, Group.FINAL_INFO}


class NonzeroEnv(gymnasium.Env[Any, Any]):
    """An env whose episodes end with a row in which no column is zero."""

    observation_space, action_space = spaces.Box(0.0, 99.0, (2,), np.float64), spaces.Discrete(2)

    def __init__(self) -> None:
        self.num_steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.num_steps = 0
        return np.array([7.0, 8.0]), {"started": 5.0}

    def step(self, action: Any) -> Any:
        self.num_steps += 1
        is_over = self.num_steps == LENGTH
        return np.array([self.num_steps, 9.0]), 2.5, is_over, is_over, {"count": float(self.num_steps)}


def last_step(pool: Pool) -> Batch:
    """Return the batch of the step that ends the second episode of both envs."""
    pool.reset(seeds=[3, 4])
    pool.recv()
    for _ in range(2 * LENGTH):
        batch = pool.step(np.zeros(2, np.int64))
    return batch


def read(batch: Batch) -> dict[str, Any]:
    """Return the values of the second row, which is that of env 1, by column."""
    has_cells = batch.flags & RowFlag.INFO
    names = names_of(*(group for group in Group if group != Group.PRIVATE and (has_cells or group not in CELLS)))
    values = {name: batch.rows.column(name)[1].tolist() for name in names}
    if has_cells:
        for cells in INFO_CELLS, FINAL_CELLS:  # cells without a tag have any value
            values[cells.values] = np.where(values[cells.tags], values[cells.values], 0).tolist()
    return {**values, "info": batch.infos()[1], "final_info": batch.final_infos()[1]}


def assert_nonzero(values: dict[str, Any]) -> None:
    assert all(value if isinstance(value, dict) else np.any(value) for value in values.values()), values


@pytest.mark.parametrize("copy", [False, True], ids=["views", "copies"])
def test_every_column_arrives_with_its_value(open_pool: OpenPool, copy: bool) -> None:
    batch = last_step(open_pool(NonzeroEnv, 2, autoreset=Autoreset.SAME_STEP, final_obs=True))
    found = read(batch.copy() if copy else batch)
    assert_nonzero(found)
    with contextlib.closing(SerialPool([NonzeroEnv] * 2, PoolOptions(autoreset=Autoreset.SAME_STEP))) as pool:
        pool.start()
        expected = read(last_step(pool))
    for name in found.keys() & expected.keys() - {"seconds"}:
        assert found[name] == expected[name], name


def test_every_column_arrives_with_its_value_from_spare_envs() -> None:
    found = []
    for make_engine in SerialEngine, ProcessEngine:
        engine = make_engine([NonzeroEnv] * 4, PoolOptions(num_workers=2))
        with contextlib.closing(Pool(engine, SpareRule(2, episode_seed), Autoreset.SAME_STEP)) as pool:
            pool.start()
            found.append(read(last_step(pool)))
        assert found[-1].pop("episode") == 0, "the env that serves the row is in its first episode"
        assert_nonzero(found[-1])
        del found[-1]["seconds"]
    assert found[0] == found[1]
