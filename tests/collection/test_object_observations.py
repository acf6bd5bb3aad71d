"""Observations without a fixed dtype and shape: columns of objects in `collect`, tuples of objects for policies.

The expected transitions are those of a plain loop over single envs.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode

from tests.collection.sharded import ShardedVectorEnv
from tests.faults.traces import end
from tests.vector.own_spaces import Angle
from vecenv import Collector, ConfigError, Transitions, VectorEnv, collect, evaluate

_BOX = spaces.Box(-1, 1, (2,), np.float32)
SPACES: dict[str, spaces.Space[Any]] = {
    "Text": spaces.Text(9),
    "Sequence": spaces.Sequence(spaces.Discrete(4)),
    "stacked Sequence": spaces.Sequence(_BOX, stack=True),
    "Graph": spaces.Graph(_BOX, spaces.Discrete(3)),
    "OneOf": spaces.OneOf((spaces.Discrete(3), _BOX)),
    "Dict": spaces.Dict(note=spaces.Text(9), place=_BOX, parts=spaces.Tuple((spaces.Discrete(3), spaces.Text(3)))),
}
ALL_SPACES = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
MODES = pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
BACKENDS = pytest.mark.parametrize("backend", ["serial", "process"])
NUM_ENVS = 3


class SampleEnv(gymnasium.Env[Any, Any]):
    """Samples its observations; an episode has `length` steps."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space[Any], length: int = 3) -> None:
        self.observation_space = space
        self.length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode = 0 if seed is not None else self.episode + 1
        self.seed = seed if seed is not None else self.seed
        self.t = 0
        return self.observe(), {}

    def observe(self) -> Any:
        self.observation_space.seed(1000 * self.seed + 100 * self.episode + self.t)
        return self.observation_space.sample()

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.observe(), 1.0, self.t == self.length, False, {}


def env_fns(space: spaces.Space[Any]) -> list[Callable[[], Any]]:
    return [functools.partial(SampleEnv, space, 3 + i) for i in range(NUM_ENVS)]


def zeros(obs: Any, env_id: Any) -> Any:
    return np.zeros(len(env_id), np.int64)


def row_of(space: spaces.Space[Any], obs: Any, index: Any) -> Any:
    """Return one row of nested columns."""
    if isinstance(space, spaces.Dict):
        return {key: row_of(part, obs[key], index) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(row_of(part, column, index) for part, column in zip(space.spaces, obs))
    return obs[index]


def assert_rows(space: spaces.Space[Any], batch: Transitions, seed: int = 0) -> None:
    """Compare the observations of a batch with those of single envs; all episodes began after a reset with `seed`."""
    single = SampleEnv(space)
    for index in np.ndindex(batch.env_id.shape):
        single.seed, single.episode = seed + int(batch.env_id[index]), int(batch.episode[index])
        for offset, columns in ((0, batch.obs), (1, batch.next_obs)):
            single.t = int(batch.step[index]) + offset
            assert data_equivalence(row_of(space, columns, index), single.observe(), exact=False)


@ALL_SPACES
@MODES
@BACKENDS
def test_collect_has_columns_of_objects(space: Any, mode: AutoresetMode, backend: str) -> None:
    with VectorEnv(env_fns(space), autoreset_mode=mode, backend=backend) as envs:
        for number in range(3):
            batch = collect(envs, zeros, steps=12, time_major=number == 1, seed=0 if number == 0 else None)
            assert_rows(space, batch)
            assert batch.env_id.shape == ((4, 3) if number == 1 else (12,))


@pytest.mark.parametrize("options", [{"episodes": 7}, {"steps": 11, "min_count": 1}, {"steps": 11, "overlap": True}])
def test_collect_in_other_orders_has_columns_of_objects(options: dict[str, Any]) -> None:
    for space in SPACES.values():
        with VectorEnv(env_fns(space)) as envs:
            assert_rows(space, collect(envs, zeros, seed=0, **options))


@ALL_SPACES
def test_policies_get_the_observations_of_step(space: Any) -> None:
    seen: list[Any] = []

    def policy(obs: Any, env_id: Any) -> Any:
        seen.append(obs)
        return zeros(obs, env_id)

    with VectorEnv(env_fns(space), backend="serial") as envs:
        collect(envs, policy, steps=3 * NUM_ENVS, seed=0)
        expected = [envs.reset(seed=0)[0], *(envs.step(np.zeros(NUM_ENVS, np.int64))[0] for _ in range(2))]
    assert data_equivalence(tuple(seen), tuple(expected))


@ALL_SPACES
def test_estimates_are_asked_with_tuples_of_objects(space: Any) -> None:
    class Estimating:
        __call__ = staticmethod(zeros)
        seen: Any = None

        def bootstrap(self, obs: Any, env_id: Any) -> Any:
            self.seen = obs
            return np.ones(len(env_id))

    policy = Estimating()
    with VectorEnv(env_fns(space), backend="serial") as envs:
        batch = collect(envs, policy, steps=2 * NUM_ENVS, time_major=True, seed=0)
        expected = [envs.reset(seed=0)[0], *(envs.step(np.zeros(NUM_ENVS, np.int64))[0] for _ in range(2))][-1]
    assert batch.bootstrap is not None and batch.bootstrap.tolist() == [[0.0] * 3, [1.0] * 3]
    assert data_equivalence(policy.seen, expected)


class CrashingEnv(SampleEnv):
    """Ends its process at step 2 of its second episode, each time."""

    def step(self, action: Any) -> Any:
        if self.episode == 1 and self.t == 2:
            os._exit(3)
        return super().step(action)


def one_crashes(space: spaces.Space[Any]) -> list[Callable[[], Any]]:
    fns = env_fns(space)
    fns[1] = functools.partial(CrashingEnv, space, 4)
    return fns


def assert_lost_row(space: spaces.Space[Any], batch: Transitions) -> None:
    """Check that the lost row repeats its observation, and that the env's earlier ones are whole."""
    (lost,) = np.argwhere(batch.lost).tolist()
    index = tuple(lost)
    assert batch.env_id[index] == 1 and batch.step[index] == 2
    single = SampleEnv(space)
    single.seed, single.episode, single.t = 1, 1, 2
    for columns in (batch.obs, batch.next_obs):
        assert data_equivalence(row_of(space, columns, index), single.observe(), exact=False)


@MODES
def test_lost_row_repeats_its_objects(mode: AutoresetMode, tmp_path: Path) -> None:
    space = SPACES["Dict"]
    failures = {"reproducer_dir": str(tmp_path)}
    with VectorEnv(one_crashes(space), autoreset_mode=mode, failures=failures) as envs:
        batch = collect(envs, zeros, steps=8 * NUM_ENVS, time_major=True, seed=0)
        assert_lost_row(space, batch)


# ---- shards ----------------------------------------------------------------------------------


def make_policy() -> Any:
    return zeros


@pytest.mark.parametrize("space", [SPACES["Graph"], SPACES["Dict"]], ids=["Graph", "Dict"])
@pytest.mark.parametrize("sync", [True, False])
def test_collector_in_shards_has_columns_of_objects(space: Any, sync: bool) -> None:
    fns = [functools.partial(SampleEnv, space, 3 + i) for i in range(4)]
    with ShardedVectorEnv(fns, 2) as envs:
        options: dict[str, Any] = {"where": "shards", "make_policy": make_policy, "sync": sync, "seed": 0}
        collector = Collector(envs, batch_steps=16, time_major=True, **options)
        for number in range(4):
            if number == 2:
                end(envs.carrier.pid_of(0))
            assert_rows(space, next(collector))


def test_lost_row_in_shards_repeats_its_objects(tmp_path: Path) -> None:
    space = SPACES["Dict"]
    with ShardedVectorEnv(one_crashes(space), 2, failures={"reproducer_dir": str(tmp_path)}) as envs:
        collector = Collector(
            envs, batch_steps=8 * NUM_ENVS, time_major=True, where="shards", make_policy=make_policy, seed=0
        )
        assert_lost_row(space, next(collector))


# ---- evaluate --------------------------------------------------------------------------------


@ALL_SPACES
@BACKENDS
def test_evaluate_passes_objects_to_the_policy(space: Any, backend: str) -> None:
    seen: dict[int, list[Any]] = {}

    def policy(obs: Any, env_id: Any) -> Any:
        for row, one in enumerate(env_id.tolist()):
            seen.setdefault(one, []).append(row_of(space, obs, row))
        return zeros(obs, env_id)

    found = evaluate(functools.partial(SampleEnv, space), policy, seeds=range(5), num_envs=2, backend=backend)
    assert found.lengths.tolist() == [3] * 5
    single = SampleEnv(space)
    # Envs take the seeds in order: 0 and 1, then 2 and 3, then 4.
    for env_id, seeds in ((0, (0, 2, 4)), (1, (1, 3))):
        for number, seed in enumerate(seeds):
            for t in range(3):
                single.seed, single.episode, single.t = seed, 0, t
                assert data_equivalence(seen[env_id][3 * number + t], single.observe(), exact=False)


def test_torch_module_gets_objects_as_they_are() -> None:
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, obs: Any) -> Any:
            assert all(isinstance(text, str) for text in obs["note"])
            assert isinstance(obs["place"], torch.Tensor)
            return torch.zeros(len(obs["note"]), dtype=torch.int64)

    with VectorEnv(env_fns(SPACES["Dict"]), backend="serial") as envs:
        assert len(collect(envs, Net(), steps=6, seed=0)) == 6


def test_collect_refuses_batches_that_the_program_makes() -> None:
    message = "collect: batches of .*Angle.* are made by functions of the program"
    env_fn = functools.partial(SampleEnv, Angle())
    with VectorEnv([env_fn] * 2, backend="serial") as envs, pytest.raises(ConfigError, match=message):
        collect(envs, zeros, steps=2)
