"""Envs that draw from global random generators: equal numbers in equal runs, and other numbers in all others.

A run is described by the states of the caller's generators at its start, and by the number of pools made before.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import vecenv
from tests.collection.sharded import ShardedVectorEnv
from tests.faults import front_ends
from vecenv.alf import AlfGymWrapper, ParallelAlfEnvironment
from vecenv.core.host import global_rngs

NUM_ENVS, STEPS = 4, 6
WORKERS: dict[str, dict[str, Any]] = {
    "serial": {"backend": "serial"},
    "forkserver": {"num_workers": 2, "context": "forkserver"},
    "fork": {"num_workers": 1, "context": "fork"},
    "spawn": {"num_workers": 1, "context": "spawn"},
}
Play = Callable[[dict[str, Any], Any], Any]


class DrawsInSteps(gymnasium.Env[Any, Any]):
    """Draws in steps only, from both generators; the worker of env 0 can be killed."""

    observation_space, action_space = spaces.Box(0.0, 1.0, (2,), np.float64), spaces.Discrete(2)

    def __init__(self) -> None:
        self.drawn = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.num_steps = 0
        self.drawn = self.draw_at_reset()
        return self.drawn, {}

    def draw_at_reset(self) -> Any:
        return np.zeros(2)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.num_steps += 1
        self.drawn = np.array([random.random(), np.random.random()])
        return self.drawn, float(self.drawn[0]), self.num_steps == 4, False, {}


class Draws(DrawsInSteps):
    """Draws in resets and steps."""

    def draw_at_reset(self) -> Any:
        return np.array([np.random.random(), random.random()])


def kill_one(pids: tuple[int, ...]) -> None:
    if pids:
        os.kill(pids[0], signal.SIGKILL)


def play_vector_env(options: dict[str, Any], env: Any, cls: Any = vecenv.VectorEnv, kills: bool = False) -> Any:
    with contextlib.closing(cls([env] * NUM_ENVS, **options)) as envs:
        rows = [envs.reset()[0].tolist()]
        for step in range(STEPS):
            if kills and step == 3:
                kill_one(envs.worker_pids)
            rows.append(envs.step(np.zeros(NUM_ENVS, np.int64))[0].tolist())
    return rows


def play_killed(options: dict[str, Any], env: Any) -> Any:
    return play_vector_env(options, env, kills=True)


def play_shards(options: dict[str, Any], env: Any) -> Any:
    given = {key: value for key, value in options.items() if key != "backend"}
    return play_vector_env(given, env, ShardedVectorEnv)


def play_batched(options: dict[str, Any], env: Any) -> Any:
    def make() -> Any:
        return gymnasium.vector.SyncVectorEnv([env] * 2)

    with contextlib.closing(vecenv.BatchedVectorEnv([make] * 2, **options)) as envs:
        rows = [envs.reset()[0].tolist()]
        return rows + [envs.step(np.zeros(NUM_ENVS, np.int64))[0].tolist() for _ in range(STEPS)]


def play_sb3(options: dict[str, Any], env: Any) -> Any:
    from vecenv.integrations.sb3 import SB3VecEnv

    with contextlib.closing(SB3VecEnv([env] * NUM_ENVS, **options)) as envs:
        return [envs.reset().tolist(), *(envs.step(np.zeros(NUM_ENVS, np.int64))[0].tolist() for _ in range(STEPS))]


def play_alf(options: dict[str, Any], env: Any) -> Any:
    constructors = [lambda env_id: AlfGymWrapper(env(), env_id)] * NUM_ENVS
    with ParallelAlfEnvironment(constructors, tensors=False, **options) as envs:
        rows = [envs.reset().observation.tolist()]
        return rows + [envs.step(np.zeros(NUM_ENVS, np.int64)).observation.tolist() for _ in range(STEPS)]


def play_collect(options: dict[str, Any], env: Any) -> Any:
    with contextlib.closing(vecenv.VectorEnv([env] * NUM_ENVS, **options)) as envs:
        return vecenv.collect(envs, lambda obs, env_id: np.zeros(len(obs), np.int64), steps=24).obs.tolist()


def play_manager(name: str) -> Play:
    def play(options: dict[str, Any], env: Any) -> Any:
        env_fns = [lambda: vecenv.ding.DingEnvWrapper(env())] * NUM_ENVS
        return front_ends.play(name, env_fns, rounds=STEPS, seed=None, **options)

    return play


FACES: dict[str, Play] = {
    "VectorEnv": play_vector_env,
    "killed": play_killed,
    "BatchedVectorEnv": play_batched,
    "SB3VecEnv": play_sb3,
    "ALF": play_alf,
    "collect": play_collect,
    "shards": play_shards,
    **{name: play_manager(name) for name in ("sync", "async", "V2")},
}


@pytest.fixture
def new_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Begin a run: no pool has been made, and the caller's generators are seeded."""
    states = random.getstate(), np.random.get_state()

    def begin(seed: int) -> None:
        monkeypatch.setattr(global_rngs, "_pool_numbers", itertools.count())
        random.seed(seed), np.random.seed(seed)

    yield begin
    random.setstate(states[0]), np.random.set_state(states[1])


@pytest.mark.parametrize("face", FACES)
def test_numbers_follow_from_the_run_and_not_from_its_workers(face: str, new_run: Callable[[int], None]) -> None:
    play = FACES[face]
    if face == "SB3VecEnv":  # its import moves the generators
        pytest.importorskip("vecenv.integrations.sb3", exc_type=ImportError)
    new_run(1)
    expected, second = play(WORKERS["serial"], Draws), play(WORKERS["serial"], Draws)
    assert second != expected, "the second pool of a run"
    new_run(2)
    assert play(WORKERS["serial"], Draws) != expected
    for name, options in WORKERS.items():
        new_run(1)
        assert play(options, Draws) == expected, name


def test_numbers_do_not_depend_on_the_implementation(
    new_run: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    new_run(1)
    expected = play_vector_env(WORKERS["serial"], DrawsInSteps)
    monkeypatch.setenv("VECENV_IMPLEMENTATION", "python")
    for options in WORKERS["serial"], WORKERS["forkserver"]:
        new_run(1)
        assert play_vector_env(options, DrawsInSteps) == expected


@pytest.mark.parametrize("options", WORKERS.values(), ids=WORKERS)
def test_first_draws_in_steps_differ(options: dict[str, Any]) -> None:
    _, first, *_ = play_vector_env(options, DrawsInSteps)
    assert len({value for row in first for value in row}) == 2 * NUM_ENVS


@pytest.mark.parametrize("options", WORKERS.values(), ids=WORKERS)
def test_seeded_reset_alone_decides_the_numbers(options: dict[str, Any]) -> None:
    def episode(seed: int) -> Any:
        obs = envs.reset(seed=seed)[0].tolist()
        return obs, envs.step(np.zeros(NUM_ENVS, np.int64))[0].tolist()

    with contextlib.closing(vecenv.VectorEnv([Draws] * NUM_ENVS, **options)) as envs:
        first, other, again = episode(5), episode(50), episode(5)
    assert first == again != other


def test_evaluation_of_the_same_seeds_gives_the_same(new_run: Callable[[int], None]) -> None:
    def returns(options: dict[str, Any], num_envs: int) -> list[float]:
        def policy(obs: Any, env_id: Any) -> Any:
            return np.zeros(len(obs), np.int64)

        found = vecenv.evaluate(Draws, policy, seeds=range(6), num_envs=num_envs, **options)
        return list(found.returns)

    expected = returns(WORKERS["serial"], 1)
    assert len(set(expected)) == 6
    assert returns(WORKERS["forkserver"], 3) == expected


class DrawsMany(DrawsInSteps):
    """Draws 300 numbers from each generator at once in step number `first`, and one in each later step."""

    observation_space = spaces.Box(0.0, 1.0, (600,), np.float64)
    first, length = 1, 99

    def draw_at_reset(self) -> Any:
        return np.zeros(600)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.num_steps += 1
        obs = np.zeros(600)
        if self.num_steps >= self.first:
            count = 300 if self.num_steps == self.first else 1
            obs[:count], obs[300 : 300 + count] = [random.random() for _ in range(count)], np.random.random(count)
        return obs, 0.0, self.num_steps == self.length, False, {}


class DrawsManyLater(DrawsMany):
    first = 40


class DrawsManyInAnotherEpisode(DrawsMany):
    """Has three episodes without a draw, between which its state can be captured."""

    length, num_episodes = 8, 0

    def draw_at_reset(self) -> Any:
        self.num_episodes += 1
        self.first = 5 if self.num_episodes > 3 else 99
        return super().draw_at_reset()

    def get_state(self) -> int:
        return self.num_episodes

    def set_state(self, state: int) -> None:
        self.num_episodes = state


def play_many(env: Any, steps: int, kills: tuple[int, ...] = (), seed: int | None = None, **options: Any) -> Any:
    with contextlib.closing(vecenv.VectorEnv([env] * NUM_ENVS, **options)) as envs:
        envs.reset(seed=seed)
        rows = []
        for step in range(1, steps + 1):
            if step in kills:
                os.kill(envs.worker_pids[step % len(envs.worker_pids)], signal.SIGKILL)
            rows.append(envs.step(np.zeros(NUM_ENVS, np.int64))[0])
    return np.array(rows)


KILLED: dict[str, tuple[Any, int, tuple[int, ...]]] = {
    "first step": (DrawsMany, 4, (1, 2, 4)),
    "40th step": (DrawsManyLater, 43, (9, 16, 17, 40, 42)),
    "another episode": (DrawsManyInAnotherEpisode, 36, (7, 9, 17, 18, 27, 33, 34)),
}


@pytest.mark.extended
@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("case", KILLED)
def test_long_first_draws_do_not_depend_on_workers(case: str, seed: int | None, new_run: Callable[[int], None]) -> None:
    env, steps, kills = KILLED[case]
    new_run(1)
    expected = play_many(env, steps, seed=seed, backend="serial")
    for num_workers in 1, 4:
        new_run(1)
        assert (play_many(env, steps, seed=seed, num_workers=num_workers) == expected).all()
        for kill in (*((one,) for one in kills), kills):
            new_run(1)
            assert (play_many(env, steps, kill, seed=seed, num_workers=num_workers) == expected).all(), kill


@pytest.mark.parametrize("options", [WORKERS["serial"], WORKERS["forkserver"]], ids=["serial", "forkserver"])
def test_first_draws_of_many_numbers_are_all_different(options: dict[str, Any]) -> None:
    rows = play_many(DrawsMany, 2, **options)
    drawn = rows[rows > 0]
    assert len(drawn) == len(set(drawn)) == NUM_ENVS * 602
    assert np.abs(np.corrcoef(rows[0]) - np.eye(NUM_ENVS)).max() < 0.25  # 600 numbers each: six standard deviations
    rows = play_many(DrawsManyLater, 41, **options)[39:]
    # Only the first words of the step are the env's own, and all words of later steps.
    drawn = np.concatenate([rows[0, :, :4], rows[0, :, 300:304], rows[1, :, :1], rows[1, :, 300:301]], axis=None)
    assert len(set(drawn)) == NUM_ENVS * 10 and (drawn > 0).all()


class DrawsAndRaises(Draws):
    """Raises in the third step of an episode if the action is 1."""

    def step(self, action: Any) -> Any:
        result = super().step(action)
        if self.num_steps == 3 and action == 1:
            raise LookupError
        return result


def numbers_of_manager(cfg: dict[str, Any], dynamic_seed: bool, raises_in: tuple[int, ...] = ()) -> list[float]:
    numbers: list[float] = []
    with vecenv.ding.SyncSubprocessEnvManager(
        [lambda: vecenv.ding.DingEnvWrapper(DrawsAndRaises())] * 3, cfg
    ) as manager:
        manager.seed(5, dynamic_seed)
        manager.launch()
        numbers += [value for obs in manager.ready_obs.values() for value in obs.tolist()]
        for number in range(14):
            actions = {env_id: int(number in raises_in) for env_id in manager.ready_obs}
            if number in raises_in:
                with pytest.raises(LookupError):
                    manager.step(actions)
                manager.reset()
                numbers += [value for obs in manager.ready_obs.values() for value in obs.tolist()]
                continue
            timesteps = manager.step(actions)
            numbers += [value for timestep in timesteps.values() for value in timestep.obs.tolist()]
    return numbers


MANAGERS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "spares": ({"num_spare_envs": 6}, ()),
    "recycled": ({"recycle_after": {"episodes": 2}}, ()),
    "renewed": ({"on_step_error": "renew"}, (2, 9)),
}


@pytest.mark.parametrize("dynamic_seed", [True, False])
@pytest.mark.parametrize("case", MANAGERS)
def test_envs_of_a_manager_never_repeat_numbers(case: str, dynamic_seed: bool) -> None:
    cfg, raises_in = MANAGERS[case]
    drawn = [value for value in numbers_of_manager(cfg, dynamic_seed, raises_in) if value]
    assert len(set(drawn)) == len(drawn) > 60


@pytest.mark.parametrize("seed", [None, 3])
def test_spare_envs_never_repeat_numbers(seed: int | None) -> None:
    with contextlib.closing(vecenv.VectorEnv([Draws] * 2, num_spare_envs=4)) as envs:
        rows = [envs.reset(seed=seed)[0], *(envs.step(np.zeros(2, np.int64))[0] for _ in range(14))]
    assert len(np.unique(rows)) == np.array(rows).size


def test_two_runs_without_seeds_differ() -> None:
    program = (
        "import vecenv, numpy; from tests.test_global_draws import *; print(play_vector_env(WORKERS['serial'], Draws))"
    )
    one, two = (subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout for _ in "12")
    assert one != two


@pytest.mark.parametrize("seeded", [0, 1], ids=["random", "numpy"])
def test_run_that_seeds_one_generator_repeats_its_numbers(seeded: int) -> None:
    seed = ["random.seed(3)", "np.random.seed(3)"][seeded]
    program = (
        f"from tests.test_global_draws import *; {seed}; "
        "print([[env[i] for row in play_vector_env(WORKERS['serial'], DrawsInSteps) for env in row] for i in range(2)])"
    )
    runs = [subprocess.run([sys.executable, "-c", program], capture_output=True, check=True) for _ in range(2)]
    first, second = (json.loads(run.stdout) for run in runs)
    assert first[seeded] == second[seeded] and first[1 - seeded] != second[1 - seeded]


class MakesPoolsInSteps(DrawsInSteps):
    """Each step of another length draws from two pools of this env, and sometimes draws before."""

    num_quiet = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.num_steps += 1
        obs = np.zeros(2)
        if self.num_steps > self.num_quiet:
            before = [random.random(), np.random.random()] if self.num_steps % 3 == 0 else [0.0, 0.0]
            rows = [play_vector_env(WORKERS["serial"], DrawsInSteps)[1][0][0] for _ in range(2)]
            assert rows[0] != rows[1]
            obs = (np.array(rows) + before) % 1
        return obs, 0.0, False, False, {}


class MakesPoolsInLaterSteps(MakesPoolsInSteps):
    num_quiet = 17


@pytest.mark.extended
@pytest.mark.parametrize("env", [MakesPoolsInSteps, MakesPoolsInLaterSteps])
def test_pools_of_steps_do_not_depend_on_the_workers(env: Any, new_run: Callable[[int], None]) -> None:
    steps = env.num_quiet + 4
    new_run(1)
    expected = play_many(env, steps, backend="serial")
    drawn = expected[env.num_quiet :]
    assert len(np.unique(drawn)) == drawn.size
    for num_workers, kills in (1, ()), (4, ()), (2, (steps - 2, steps)):
        new_run(1)
        assert (play_many(env, steps, kills, num_workers=num_workers) == expected).all(), num_workers


class MakesPools(DrawsInSteps):
    """Each reset draws from two pools of this env."""

    def draw_at_reset(self) -> Any:
        rows = [play_vector_env(WORKERS["serial"], DrawsInSteps)[1][0][0] for _ in range(2)]
        assert rows[0] != rows[1]
        return np.array(rows)


def test_pools_of_envs_do_not_depend_on_the_workers(new_run: Callable[[int], None]) -> None:
    new_run(1)
    expected = play_vector_env(WORKERS["serial"], MakesPools)[0]
    for options in WORKERS["forkserver"], WORKERS["fork"]:
        new_run(1)
        assert play_vector_env(options, MakesPools)[0] == expected
