"""The transitions of each env are those of a plain loop of this env alone, for all backends and orders."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.collection.plain_loop import DiceEnv, assert_plain
from vecenv import Collector, VectorEnv, collect
from vecenv.envs.toys import SpaceEnv

NESTED = spaces.Dict(
    image=spaces.Box(0, 255, (2, 3), np.uint8),
    rest=spaces.Tuple([spaces.Discrete(5), spaces.Box(-1, 1, (), np.float64)]),
)
ACTIONS = spaces.Tuple([spaces.Discrete(3), spaces.Dict(push=spaces.Box(-1, 1, (2,), np.float32))])

RUNS = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(list(AutoresetMode)),
        "num_envs": st.integers(1, 5),
        "seed": st.integers(0, 1000),
        "copy": st.booleans(),
        "order": st.sampled_from(["lockstep", "overlap", "finish"]),
        "calls": st.lists(
            st.one_of(
                st.tuples(st.just("flat"), st.integers(1, 40)),
                st.tuples(st.just("time_major"), st.integers(1, 8)),
                st.tuples(st.just("episodes"), st.integers(1, 8)),
            ),
            min_size=1,
            max_size=4,
        ),
    }
)


class RandomPolicy:
    """Draws actions; kills a worker before one of ten answers, if `kills` is set."""

    def __init__(self, envs: VectorEnv, seed: int, kills: bool) -> None:
        self.envs = envs
        self.draw = random.Random(seed)
        self.space = envs.single_action_space
        self.space.seed(seed)
        self.kills = kills

    def __call__(self, obs: Any, env_id: np.ndarray) -> Any:
        if self.kills and self.draw.random() < 0.1:
            with contextlib.suppress(ProcessLookupError):  # an earlier kill ended it, and the pool has not noticed yet
                os.kill(self.draw.choice(self.envs.worker_pids), signal.SIGKILL)
        actions = [self.space.sample() for _ in env_id]
        if isinstance(self.space, spaces.Discrete):
            return np.array(actions), {"env": env_id.copy()}
        return np.array([a[0] for a in actions]), {"push": np.stack([a[1]["push"] for a in actions])}


def check(run: dict[str, Any], env_fn: Any = DiceEnv, kills: bool = False, **options: Any) -> None:
    """Collect as `run` describes, and compare with plain loops."""
    num_envs, order = run["num_envs"], run["order"]
    env_fns = [env_fn] * num_envs
    how: dict[str, Any] = {"overlap": order == "overlap"}
    if order == "finish":
        how["min_count"] = 1 + run["seed"] % num_envs
    with VectorEnv(env_fns, autoreset_mode=run["mode"], copy=run["copy"], **options) as envs:
        policy = RandomPolicy(envs, run["seed"], kills)
        batches = []
        for number, (kind, count) in enumerate(run["calls"]):
            seed = None if number else run["seed"]
            if kind == "flat":
                batches.append(collect(envs, policy, steps=count, seed=seed, **how))
                assert batches[-1].rewards.shape == (count,)
            elif kind == "time_major":
                batches.append(collect(envs, policy, steps=count * num_envs, time_major=True, seed=seed, **how))
                assert batches[-1].env_id.tolist() == [list(range(num_envs))] * count
            else:
                batches.append(collect(envs, policy, episodes=count, seed=seed, **how))
                assert len(batches[-1].episode_returns) == count
            for name, column in batches[-1].extras.items():
                assert np.array_equal(column, batches[-1].env_id), name
        restarts = envs.statistics()["restarts"]
    assert_plain(batches, env_fns, run["seed"])
    if kills:
        assert restarts > 0, "no kill hit: the program shows nothing"


@pytest.mark.extended
@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(RUNS)
def test_transitions_are_those_of_plain_loops(run: dict[str, Any]):
    check(run, backend="serial")


@pytest.mark.extended
@settings(max_examples=15, derandomize=True, deadline=None, database=None)
@given(RUNS)
def test_nested_transitions_are_those_of_plain_loops(run: dict[str, Any]):
    check(run, functools.partial(SpaceEnv, NESTED, ACTIONS, length=3), backend="serial")


KILLED = {
    "mode": AutoresetMode.NEXT_STEP,
    "num_envs": 4,
    "seed": 3,
    "copy": True,
    "order": "overlap",
    "calls": [("time_major", 10), ("flat", 50), ("episodes", 9)],
}


@pytest.mark.extended
@pytest.mark.parametrize("order", ["overlap", "lockstep", "finish"])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_kills_of_workers_change_no_transition(mode: AutoresetMode, order: str):
    check({**KILLED, "mode": mode, "order": order}, kills=True, num_workers=2, failures={"max_restarts": 1000})


@pytest.mark.extended
@settings(
    max_examples=20,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(RUNS, st.integers(1, 3))
def test_transitions_from_workers_are_those_of_plain_loops(run: dict[str, Any], num_workers: int):
    check(run, num_workers=min(num_workers, run["num_envs"]))


@pytest.mark.extended
@pytest.mark.parametrize("overlap", [False, True])
def test_rows_do_not_depend_on_workers(overlap: bool):
    """The same seed gives the same rows in the same order for every backend and number of workers."""

    def rows(**options: Any) -> Any:
        with VectorEnv([DiceEnv] * 5, **options) as envs:
            draw = np.random.default_rng(1)
            collector = Collector(
                envs, lambda obs, env_id: draw.integers(0, 2, len(env_id)), batch_steps=33, overlap=overlap, seed=4
            )
            batches = [next(collector) for _ in range(3)]
        return [(batch.obs.tobytes(), batch.next_obs.tobytes(), batch.env_id.tolist()) for batch in batches]

    expected = rows(backend="serial")
    assert rows(num_workers=1) == expected and rows(num_workers=3) == expected


def test_registered_env_is_collected_as_in_a_plain_loop():
    env_fns = [lambda: gymnasium.make("CartPole-v1")] * 3
    with VectorEnv(env_fns, num_workers=2) as envs:
        draw = np.random.default_rng(0)
        batch = collect(envs, lambda obs, env_id: draw.integers(0, 2, len(env_id)), steps=300, seed=9)
    assert_plain([batch], env_fns, 9)
