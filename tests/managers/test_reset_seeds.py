"""Seeds that come with a reset, and seeds of resets that fail."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.managers.fakes import ActorEnv
from vecenv import BaseEnvManager, DingEnvWrapper, SyncSubprocessEnvManager

MANAGERS = [BaseEnvManager, SyncSubprocessEnvManager]


def make(manager_cls, env_fn, **cfg):
    if manager_cls is SyncSubprocessEnvManager:
        cfg["num_workers"] = 1
    return manager_cls([env_fn], cfg)


class NamesASeed(ActorEnv):
    """Notes which seeds came by which way."""

    def __init__(self):
        super().__init__({"length": 1})
        self.given = []

    def seed(self, seed, dynamic_seed=True):
        self.given.append(("seed", seed))

    def reset(self, seed=None, level=0):
        self.given.append(("reset", seed, level))
        return super().reset()


@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_a_seed_among_the_parameters_is_a_parameter(manager_cls):
    with make(manager_cls, NamesASeed) as manager:
        manager.launch({0: {"seed": 3, "level": 2}})
        manager.step({0: 0})
        assert manager.given == [[("reset", 3, 2), ("reset", 3, 2)]]


@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_a_seed_for_one_episode_leaves_those_to_come_as_they_were(manager_cls):
    with make(manager_cls, functools.partial(DingEnvWrapper, cfg={"env_id": "CartPole-v1"})) as manager:
        manager.seed(5, dynamic_seed=False)
        manager.launch()
        first = manager.ready_obs[0].copy()
        manager.reset({0: {"seed": 7}})
        other = manager.ready_obs[0].copy()
        manager.reset({0: None})
        assert np.array_equal(manager.ready_obs[0], first) and not np.array_equal(other, first)
        assert (manager._seed, manager._dynamic_seed) == ([5], [False])
