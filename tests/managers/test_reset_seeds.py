"""Seeds among reset parameters, and seeds of resets that fail."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.inside import seed_of
from tests.managers.fakes import IN_PROCESS, WITH_WORKERS, ActorEnv, actors
from vecenv import EnvError
from vecenv.ding import BaseEnvManager, DingEnvWrapper, SyncSubprocessEnvManager
from vecenv.envs.toys import CountEnv

MANAGERS = [BaseEnvManager, SyncSubprocessEnvManager]


def make(manager_cls, env_fn, **cfg):
    if manager_cls is SyncSubprocessEnvManager:
        cfg["num_workers"] = 1
    return manager_cls([env_fn], cfg)


class NamesASeed(ActorEnv):
    """An env that keeps its seeds, and the call that each came with."""

    def __init__(self):
        super().__init__({"length": 1})
        self.given = []

    def seed(self, seed, dynamic_seed=True):
        self.given.append(("seed", seed))

    def reset(self, seed=None, level=0):
        self.given.append(("reset", seed, level))
        return super().reset()


@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_seed_in_reset_param_is_a_parameter(manager_cls):
    with make(manager_cls, NamesASeed) as manager:
        manager.launch({0: {"seed": 3, "level": 2}})
        manager.step({0: 0})
        assert manager.given == [[("reset", 3, 2), ("reset", 3, 2)]]


@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_seed_in_reset_param_leaves_later_seeds_unchanged(manager_cls):
    with make(manager_cls, functools.partial(DingEnvWrapper, cfg={"env_id": "CartPole-v1"})) as manager:
        manager.seed(5, dynamic_seed=False)
        manager.launch()
        first = manager.ready_obs[0].copy()
        manager.reset({0: {"seed": 7}})
        other = manager.ready_obs[0].copy()
        manager.reset({0: None})
        assert np.array_equal(manager.ready_obs[0], first) and not np.array_equal(other, first)
        assert seed_of(manager) == ([5], [False])


class Transient(CountEnv):
    """An env with episodes of one step that keeps the seeds of its resets; the resets in `fails` raise."""

    def __init__(self, fails):
        super().__init__(1)
        self.fails, self.resets, self.given = set(fails), 0, []

    def reset(self, *, seed=None, options=None):
        self.resets += 1
        if self.resets in self.fails:
            raise ZeroDivisionError("not this time")
        self.given.append(seed)
        return super().reset(seed=seed, options=options)


class OldTransient(ActorEnv):
    """The same env with the old API, with a `seed` method without `dynamic_seed`."""

    def __init__(self, fails):
        super().__init__({"length": 1})
        self.fails, self.resets, self.given = set(fails), 0, []

    def seed(self, seed):
        self.newest = seed

    def reset(self):
        self.resets += 1
        if self.resets in self.fails:
            raise ZeroDivisionError("not this time")
        self.given.append(self.newest)
        return super().reset()


class DingTransient(DingEnvWrapper):
    """The same as a wrapped env, which derives its seeds itself."""

    def __init__(self, fails):
        self.inner = Transient(fails)
        super().__init__(self.inner, {"env_wrapper": None})

    @property
    def given(self):
        return self.inner.given


@pytest.mark.parametrize("manager_cls", MANAGERS)
@pytest.mark.parametrize("env_cls", [Transient, OldTransient, DingTransient])
def test_failed_reset_keeps_the_episodes_seed(manager_cls, env_cls):
    """Regression: the next episode had the seed of the one after it, so all later episodes changed."""
    given = []
    for fails in ((), (2, 4), (1,)):
        cfg = {"max_retry": 2, "retry_waiting_time": 0}
        with make(manager_cls, functools.partial(env_cls, fails), **cfg) as manager:
            manager.seed(5, dynamic_seed=True)
            manager.launch()
            for _ in range(3):
                manager.step({0: 0})
            given += manager.given
    assert given[0] == given[1] == given[2] and len(set(given[0])) == 4


@pytest.mark.parametrize("manager_cls", IN_PROCESS + WITH_WORKERS)
def test_failed_launch_keeps_the_seeds(manager_cls):
    """Regression: envs whose reset had succeeded were unseeded in the next launch."""
    with manager_cls(actors(3), {"num_workers": 1} if manager_cls in WITH_WORKERS else {}) as manager:
        manager.seed({0: 5, 1: 6, 2: 7})
        with pytest.raises(EnvError, match="env 1 could not be reset"):
            manager.launch({0: None, 1: {"stat": "error"}, 2: None})
        manager.launch()
        assert [calls[-1] for calls in manager.seed_calls] == [(5, True), (6, True), (7, True)]
        manager.close()
        manager.launch()
        assert [len(calls) for calls in manager.seed_calls] == [0, 0, 0], "once is enough"
