"""`collect` and `Collector`: the rule of each argument, and where a later call continues."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from vecenv import Collector, StateError, VectorEnv, collect, evaluate
from vecenv.envs.toys import CountEnv, ToyEnv

MODES = pytest.mark.parametrize("mode", list(AutoresetMode))


def zeros(obs: Any, env_id: np.ndarray) -> Any:
    return np.zeros(len(env_id), np.int64)


def toys(*lengths: int | None, env: Any = ToyEnv, **options: Any) -> VectorEnv:
    return VectorEnv([functools.partial(env, length) for length in lengths], **{"backend": "serial", **options})


# ---- rows ------------------------------------------------------------------------------------


@MODES
def test_flat_rows_are_ordered_by_round_and_env(mode: AutoresetMode):
    with toys(None, None, None, autoreset_mode=mode) as envs:
        batch = collect(envs, zeros, steps=8, seed=0)
        assert batch.env_id.tolist() == [0, 1, 2, 0, 1, 2, 0, 1] and batch.step.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
        assert collect(envs, zeros, steps=2).env_id.tolist() == [0, 2], "the env that was left out is the next one"


@MODES
def test_time_major_columns_are_complete(mode: AutoresetMode):
    """Envs that spend rounds on resets get no fewer transitions than the others."""
    with toys(1, 2, None, autoreset_mode=mode) as envs:
        batch = collect(envs, zeros, steps=15, time_major=True, seed=0)
        assert batch.obs.shape == batch.next_obs.shape == (5, 3, 4)
        assert batch.rewards.tolist() == [[1.0] * 3] * 5
        assert batch.step.T.tolist() == [[0] * 5, [0, 1, 0, 1, 0], [0, 1, 2, 3, 4]]
        assert batch.episode.T.tolist() == [[0, 1, 2, 3, 4], [0, 0, 1, 1, 2], [0] * 5]
        assert batch.episode_lengths.tolist() == [1, 1, 2, 1, 1, 2, 1]
        again = collect(envs, zeros, steps=3, time_major=True)
        assert again.step.tolist() == [[0, 1, 5]] and again.episode.tolist() == [[5, 2, 0]]


@MODES
def test_next_obs_is_the_final_observation(mode: AutoresetMode):
    with toys(2, 3, autoreset_mode=mode) as envs:
        batch = collect(envs, zeros, steps=12, seed=0)
        assert batch.terminated.any()
        assert (batch.next_obs[:, 0] == batch.obs[:, 0] + 1).all(), "steps of the episode"
        assert (batch.next_obs[:, 2] == batch.obs[:, 2]).all(), "the random number of the episode"


def test_arrays_are_contiguous_and_belong_to_the_caller():
    with toys(3, 4, copy=False) as envs:
        collector = Collector(envs, lambda obs, env_id: (zeros(obs, env_id), {"x": obs[:, 0]}), batch_steps=20, seed=0)
        first = next(collector)
        columns = [first.obs, first.actions, first.rewards, first.terminated, first.next_obs, first.extras["x"]]
        assert all(column.flags.c_contiguous for column in columns)
        before = [column.copy() for column in columns]
        next(collector)
        assert all(map(np.array_equal, columns, before))


def test_returns_count_episodes_over_batches():
    with toys(5, 7) as envs:
        collector = Collector(envs, zeros, batch_steps=4, seed=0)
        batches = list(itertools.islice(collector, 9))
    lengths = np.concatenate([batch.episode_lengths for batch in batches])
    returns = np.concatenate([batch.episode_returns for batch in batches])
    assert sorted(lengths.tolist()) == [5, 5, 5, 7, 7] and returns.tolist() == lengths.tolist()


# ---- policies --------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [False, True])
@MODES
def test_policy_is_asked_once_per_transition_and_informed_of_episodes(mode: AutoresetMode, overlap: bool):
    class Policy:
        def __init__(self) -> None:
            self.steps: dict[int, int] = {}
            self.begun = np.zeros(4, np.int64)
            self.asked = 0

        def begin(self, env_ids: np.ndarray) -> None:
            self.begun[env_ids] += 1
            self.steps.update(dict.fromkeys(env_ids.tolist(), 0))

        def __call__(self, obs: Any, env_id: np.ndarray) -> Any:
            own = np.array([self.steps[env] for env in env_id.tolist()])
            assert obs[:, 0].tolist() == own.tolist(), "steps since `begin`"
            self.steps.update(zip(env_id.tolist(), (own + 1).tolist()))
            self.asked += len(env_id)
            return zeros(obs, env_id), {"own": own}

    policy = Policy()
    with toys(1, 2, 3, 4, autoreset_mode=mode) as envs:
        batches = [collect(envs, policy, steps=30, seed=0, overlap=overlap)]
        batches += [collect(envs, policy, steps=30, overlap=overlap) for _ in range(2)]
        assert policy.asked == 90
        assert all(np.array_equal(batch.extras["own"], batch.step) for batch in batches)
        assert policy.begun.sum() == sum(np.count_nonzero(batch.step == 0) for batch in batches)
        other = Policy()
        other.begin = lambda env_ids: other.steps.update(dict.fromkeys(env_ids.tolist(), 0))
        ids = batches[-1].env_id[~(batches[-1].terminated | batches[-1].truncated)]
        assert len(ids)
        seen: list[int] = []
        collect(envs, Beginner(seen), steps=8)
        assert set(seen) == {0, 1, 2, 3}, "a new policy has no state for episodes that began without it"


class Beginner:
    def __init__(self, seen: list[int]) -> None:
        self.seen = seen

    def begin(self, env_ids: np.ndarray) -> None:
        self.seen += env_ids.tolist()

    def __call__(self, obs: Any, env_id: np.ndarray) -> Any:
        assert set(env_id.tolist()) <= set(self.seen)
        return zeros(obs, env_id)


class Estimator:
    """Estimates are the first leaf of the observation, the steps of the episode, plus 100."""

    def __call__(self, obs: Any, env_id: np.ndarray) -> Any:
        return zeros(obs, env_id), {"value": obs[:, 0] + 100}

    def bootstrap(self, obs: Any, env_id: np.ndarray) -> Any:
        return obs[:, 0] + 100


@pytest.mark.parametrize("overlap", [False, True])
@MODES
def test_bootstrap_has_estimates_where_episodes_are_cut(mode: AutoresetMode, overlap: bool):
    fns = [functools.partial(ToyEnv, 2), functools.partial(ToyEnv, 3, truncate=True), functools.partial(ToyEnv, None)]
    with VectorEnv(fns, backend="serial", autoreset_mode=mode) as envs:
        batch = collect(envs, Estimator(), steps=12, time_major=True, seed=0, overlap=overlap)
        assert batch.bootstrap is not None and batch.bootstrap.dtype == np.float32
        assert batch.bootstrap.T.tolist() == [[0, 0, 0, 0], [0, 0, 103, 101], [0, 0, 0, 104]]
        # The value of each successor, as generalised advantage estimation needs it.
        has_end = batch.terminated | batch.truncated
        values = np.where(has_end[:-1], batch.bootstrap[:-1], batch.extras["value"][1:])
        expected = np.where(batch.terminated, 0, batch.next_obs[..., 0] + 100)
        assert np.array_equal(np.concatenate([values, batch.bootstrap[-1:]]), expected)
        assert collect(envs, Estimator(), steps=12).bootstrap is None
        assert collect(envs, zeros, steps=12, time_major=True).bootstrap is None


# ---- episodes --------------------------------------------------------------------------------


@MODES
def test_episodes_are_the_first_that_begin(mode: AutoresetMode):
    """The first that end would be 7 episodes of one step."""
    with toys(1, 9, 20, autoreset_mode=mode) as envs:
        batch = collect(envs, zeros, episodes=7, seed=0)
        assert sorted(batch.episode_lengths.tolist()) == [1, 1, 1, 1, 1, 9, 20]
        assert len(batch) == 34
        starts, ends = batch.step == 0, batch.terminated
        assert np.count_nonzero(starts) == np.count_nonzero(ends) == 7, "episodes are whole"


@pytest.mark.extended
@MODES
def test_episodes_are_unbiased(mode: AutoresetMode):
    """Half of the episodes have length 1, half 9; the first that end would have a mean length far below 5."""

    class Coin(ToyEnv):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            result = super().reset(seed=seed, options=options)
            self.length = 1 + 8 * int(self.np_random.integers(2))
            return result

    means = []
    with VectorEnv([Coin] * 8, backend="serial", autoreset_mode=mode) as envs:
        for seed in range(100):
            means.append(collect(envs, zeros, episodes=8, seed=1000 * seed).episode_lengths.mean())
    error = 4 / np.sqrt(800)  # standard error of 800 lengths
    assert abs(np.mean(means) - 5.0) < 3 * error


@MODES
def test_fewer_episodes_than_envs_leave_the_other_envs_alone(mode: AutoresetMode):
    with toys(3, 3, 3, 3, autoreset_mode=mode) as envs:
        collect(envs, zeros, steps=8, seed=0)
        batch = collect(envs, zeros, episodes=2)
        assert batch.env_id.tolist() == [0, 1] * 3 and batch.step.tolist() == [0, 0, 1, 1, 2, 2]
        rest = collect(envs, zeros, steps=12)
        assert rest.step[rest.env_id == 3].tolist()[0] == 2, "env 3 was in the middle of an episode"


# ---- going on --------------------------------------------------------------------------------


@MODES
def test_calls_go_on_where_the_last_one_stopped(mode: AutoresetMode):
    def steps_of(counts: list[int]) -> list[tuple[int, ...]]:
        with toys(2, 3, 5, autoreset_mode=mode) as envs:
            batches = [collect(envs, zeros, steps=counts[0], seed=0)]
            batches += [collect(envs, zeros, steps=count) for count in counts[1:]]
        rows = [np.concatenate([getattr(b, name) for b in batches]).tolist() for name in ("env_id", "episode", "step")]
        by_env = [list(zip(*(column[:30] for column in rows)))]
        return sorted(by_env[0])

    one = steps_of([30])
    many = steps_of([3] * 10)
    assert len(one) == len(many) == 30
    assert {row[:3] for row in many} == set(many), "no transition appears twice"
    for env_id in range(3):
        mine = [row for row in many if row[0] == env_id]
        assert mine == sorted(mine) and mine[0] == (env_id, 0, 0)


def test_no_env_is_reset_without_need():
    with toys(4, 4, env=CountEnv) as envs:
        collect(envs, zeros, steps=8, seed=0)
        for _ in range(3):
            collect(envs, zeros, steps=6)
        assert [env.num_resets for env in envs.envs] == [4, 4]  # 26 steps: 13 each, 3 episodes and a bit


def test_other_calls_of_the_envs_begin_anew():
    with toys(10, 10) as envs:
        collect(envs, zeros, steps=6, seed=0)
        envs.step(np.zeros(2, np.int64))
        batch = collect(envs, zeros, steps=4)
        assert batch.step.tolist() == [0, 0, 1, 1] and batch.episode.tolist() == [1] * 4
        envs.reset(seed=3)
        assert collect(envs, zeros, steps=2).step.tolist() == [0, 0]


def test_steps_of_a_front_end_that_uses_the_pool_begin_anew():
    """SB3VecEnv, for example, receives batches of the pool of its `vector_env` by itself."""
    with toys(10, 10) as envs:
        collect(envs, zeros, steps=6, seed=0)
        envs.pool.send(np.zeros(2, np.int64))
        envs.pool.recv()
        batch = collect(envs, zeros, steps=4)
        assert batch.step.tolist() == [0, 0, 1, 1] and batch.episode.tolist() == [1] * 4


@pytest.mark.parametrize("how", [{}, {"overlap": True}, {"min_count": 1}, {"time_major": True}], ids=str)
def test_policy_that_steps_the_same_envs_is_refused(how):
    """Rows of its steps were stored as transitions."""
    calls = []

    def policy(obs, env_id):
        calls.append(len(calls))
        if len(calls) == 3:
            evaluate(envs, zeros, seeds=range(2))
        return zeros(obs, env_id)

    with toys(10, 10) as envs:
        with pytest.raises(StateError):
            collect(envs, policy, steps=20, seed=0, **how)
        batch = collect(envs, policy, steps=4)
        assert batch.step.tolist() == [0, 0, 1, 1], "all envs were reset"


def test_collector_is_an_iterator_that_goes_on():
    with toys(4, 4) as envs:
        collector = Collector(envs, zeros, batch_steps=6, seed=0)
        assert iter(collector) is collector
        steps = [next(collector).step.tolist() for _ in range(2)]
        assert steps == [[0, 0, 1, 1, 2, 2], [3, 3, 0, 0, 1, 1]]


@pytest.mark.extended
def test_min_count_stores_fast_envs_more_often():
    """In finish order, an env that takes long delays no other one."""
    with toys(None, None, None, backend="process", num_workers=3) as envs:
        batch = collect(envs, zeros, steps=60, min_count=1, seed=0)
        assert np.bincount(batch.env_id).sum() == 60 and (batch.next_obs[:, 0] == batch.obs[:, 0] + 1).all()


def test_one_env_and_one_step_are_enough():
    with toys(2) as envs:
        for options in ({}, {"overlap": True}, {"min_count": 1}, {"time_major": True}):
            assert len(collect(envs, zeros, steps=1, **options)) == 1


def test_repr_shows_shape_and_extras():
    with toys(2, 2) as envs:
        batch = collect(envs, Estimator(), steps=8, time_major=True, seed=0)
    assert repr(batch) == "Transitions(shape=(4, 2), 4 ended episodes, extras: value)" and len(batch) == 8
