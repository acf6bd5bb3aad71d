"""Calls that change an env last beyond its episode, also if its worker is killed.

Programs of random commands run twice: over a plain env each, and over a pool whose workers are killed between them. All
rows and the attributes at the end must be equal, and every row of a recovered env is marked 'replayed' or 'unproven'.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import vecenv
from tests.core.shards.local_pools import LocalPool
from tests.inside import call_envs
from vecenv.envs.remote import CallMethod, GetAttribute

NUM_ENVS = 3


class Tasks(gymnasium.Env[Any, Any]):
    """An env whose methods change attributes that no reset changes, and read state of the episode."""

    observation_space, action_space = spaces.Box(-1e9, 1e9, (6,), np.float64), spaces.Discrete(4)

    def __init__(self) -> None:
        self.task, self.added, self.gain = 0, 0, 1.0
        self.total, self.episode_steps, self.goal = 0, 0, 0.0
        self.visited: list[int] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode_steps = self.total = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.episode_steps += 1
        self.total += int(action) + self.task
        return self._observe(), self.gain + self.added, False, self.episode_steps >= 9, {}

    def _observe(self) -> Any:
        draw = self.np_random.random()
        return np.array([draw, self.task, self.added, self.total, self.goal, sum(self.visited)], np.float64)

    def set_task(self, task: int) -> None:
        self.task = task

    def add(self, count: int) -> int:
        self.added = self.added * 2 + count
        return self.added

    def visit(self, place: int) -> None:
        self.visited.append(place)

    def scale(self) -> None:
        """Set an attribute from the state of the episode."""
        self.goal = self.total + self.task / 2

    def push(self, count: int) -> None:
        """Change the episode only."""
        self.total += count

    def draw_goal(self) -> float:
        self.goal = float(self.np_random.random())
        return self.goal

    def fail(self) -> None:
        """Change an attribute, then raise."""
        self.added += 1
        raise KeyError("wanted")

    def read(self) -> tuple[int, ...]:
        return self.task, self.added


class RareChange(Tasks):
    """An env with a method that changes nothing but at one call."""

    def __init__(self) -> None:
        super().__init__()
        self.when = {"left": 0}

    def mark(self, left: int) -> int:
        """Change the env if `left` is 0; the 50th call is the first one."""
        if left == 0:
            self.when["left"] += 5
            self.task = self.when["left"]
        return self.task


class Plain:
    """The commands of a program, over one plain env per env id."""

    def __init__(self, make: Any) -> None:
        self.envs = [make() for _ in range(NUM_ENVS)]
        self.begins = [False] * NUM_ENVS

    def call(self, name: str, *args: Any, env_id: list[int] | None = None) -> None:
        for i in range(NUM_ENVS) if env_id is None else env_id:
            try:
                getattr(self.envs[i], name)(*args)
            except KeyError:
                pass

    def set_attr(self, name: str, value: Any, env_id: list[int] | None = None) -> None:
        for i in range(NUM_ENVS) if env_id is None else env_id:
            setattr(self.envs[i], name, value)

    def reset(self, seed: int | None) -> list[Any]:
        self.begins = [False] * NUM_ENVS
        return [env.reset(seed=None if seed is None else seed + i)[0].tolist() for i, env in enumerate(self.envs)]

    def step(self, actions: list[int]) -> list[Any]:
        rows = []
        for i, env in enumerate(self.envs):
            if self.begins[i]:
                rows.append((env.reset()[0].tolist(), 0.0, False))
                self.begins[i] = False
                continue
            obs, reward, _, truncated, _ = env.step(actions[i])
            self.begins[i] = truncated
            rows.append((obs.tolist(), reward, truncated))
        return rows


class Pooled:
    """The same commands over a `VectorEnv`."""

    def __init__(self, make: Any, rng: np.random.Generator, **options: Any) -> None:
        self.envs = vecenv.VectorEnv([make] * NUM_ENVS, num_workers=int(rng.integers(1, 3)), **options)
        self.marks: set[str] = set()

    def call(self, name: str, *args: Any, env_id: list[int] | None = None) -> None:
        try:
            self.envs.call(name, *args, env_id=env_id)
        except KeyError:
            pass

    def set_attr(self, name: str, value: Any, env_id: list[int] | None = None) -> None:
        self.envs.set_attr(name, value, env_id=env_id)

    def reset(self, seed: int | None) -> list[Any]:
        obs, infos = self.envs.reset(seed=seed)
        self._note(infos)
        return [row.tolist() for row in obs]

    def step(self, actions: list[int]) -> list[Any]:
        obs, rewards, _, truncated, infos = self.envs.step(np.array(actions))
        self._note(infos)
        return [(obs[i].tolist(), float(rewards[i]), bool(truncated[i])) for i in range(NUM_ENVS)]

    def _note(self, infos: dict[str, Any]) -> None:
        self.marks |= {str(mark) for mark in infos.get("recovered", ()) if mark}

    def kill(self, worker_id: int) -> None:
        pids = self.envs.worker_pids
        with contextlib.suppress(ProcessLookupError):  # it is dead already, and the pool has not noticed yet
            os.kill(pids[worker_id % len(pids)], signal.SIGKILL)


def run_program(seed: int, *, kills: bool = True, **options: Any) -> set[str]:
    """Run one random program both ways; return the marks of recovered rows."""
    rng = np.random.default_rng(seed)
    plain, pooled = Plain(Tasks), Pooled(Tasks, rng, **options)
    try:
        has_reset = False
        for number in range(int(rng.integers(10, 50))):
            kind = int(rng.integers(12))
            env_id = None if rng.random() < 0.6 else [int(rng.integers(NUM_ENVS))]
            if kind == 0 or (kind > 8 and not has_reset):
                # a first reset without a seed draws one, so it cannot be compared
                reset_seed = int(rng.integers(100)) if not has_reset or rng.random() < 0.6 else None
                has_reset = True
                assert pooled.reset(reset_seed) == plain.reset(reset_seed), (seed, number)
            elif kind <= 5:
                name, *args = [
                    ("set_task", int(rng.integers(5))),
                    ("add", int(rng.integers(3))),
                    ("visit", int(rng.integers(5))),
                    ("scale",),
                    ("push", int(rng.integers(5))),
                    ("fail",),
                    ("draw_goal",) if has_reset else ("read",),
                    ("read",),
                ][int(rng.integers(8))]
                pooled.call(str(name), *args, env_id=env_id)
                plain.call(str(name), *args, env_id=env_id)
            elif kind == 6:
                value = float(rng.integers(5))
                pooled.set_attr("gain", value, env_id)
                plain.set_attr("gain", value, env_id)
            elif has_reset:
                actions = rng.integers(0, 4, NUM_ENVS).tolist()
                assert pooled.step(actions) == plain.step(actions), (seed, number)
            if kills and rng.random() < 0.15:
                pooled.kill(int(rng.integers(2)))
        for name in ("task", "added", "gain", "goal", "visited"):
            assert list(pooled.envs.get_attr(name)) == [getattr(env, name) for env in plain.envs], (seed, name)
        return pooled.marks
    finally:
        pooled.envs.close()


@pytest.mark.parametrize(
    "first, number", [(0, 6), *(pytest.param(first, 50, marks=pytest.mark.slow) for first in range(0, 500, 50))]
)
def test_programs_with_calls_equal_a_plain_loop(first: int, number: int) -> None:
    marks = set().union(*(run_program(seed) for seed in range(first, first + number)))
    assert marks <= {"replayed", "unproven"}


def test_task_survives_an_episode_that_is_lost() -> None:
    envs = vecenv.VectorEnv([Tasks] * 2, num_workers=1, failures={"max_log_bytes": 0})
    try:
        envs.reset(seed=0)
        envs.call("set_task", 3)
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        with pytest.warns(RuntimeWarning, match="built again"):
            assert envs.call("read") == ((3, 0), (3, 0))
        infos = envs.step([0, 0])[4]
        assert infos["recovered"].tolist() == ["truncated"] * 2
    finally:
        envs.close()


def test_method_that_changes_something_at_one_call_is_repeated() -> None:
    rewards = []
    for is_killed in (False, True):
        envs = vecenv.VectorEnv([RareChange] * 2, num_workers=1)
        try:
            envs.reset(seed=0)
            for left in range(49, -100, -1):
                envs.call("mark", abs(left))
                if left % 10 == 0:
                    envs.step([0, 0])
            envs.reset(seed=1)
            if is_killed:
                os.kill(envs.worker_pids[0], signal.SIGKILL)
            obs, reward, _, _, infos = envs.step([1, 1])
            rewards.append((obs.tolist(), reward.tolist(), envs.get_attr("task")))
            assert not is_killed or infos["recovered"].tolist() == ["replayed"] * 2
        finally:
            envs.close()
    assert rewards[0] == rewards[1]


class ChangesLate(Tasks):
    """An env with a method that changes a list and an array at one call only, without assigning an attribute."""

    changing = range(5000, 5001)

    def __init__(self) -> None:
        super().__init__()
        self.places, self.weights = [0, 0], np.zeros(3)

    def note(self, number: int) -> int:
        if number in self.changing:
            self.places[1] += 5
            self.weights[2] += 7
        return 0

    def step(self, action: Any) -> Any:
        obs, *others = super().step(action)
        return obs + sum(self.places) + self.weights.sum(), *others


class ChangesLateAndLarge(ChangesLate):
    """The same, with attributes that take milliseconds to compare."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = [np.zeros(1 << 15) for _ in range(16)]


class ChangesOftenAndLarge(ChangesLateAndLarge):
    """The same, but each call changes them from then on."""

    changing = range(500, 5100)


class ChangesLateAndKeepsState(ChangesLateAndLarge):
    """The same, with a state that contains everything that calls change."""

    def get_state(self) -> Any:
        return self.places, self.weights, self.task

    def set_state(self, state: Any) -> None:
        self.places, self.weights, self.task = state


def play_late_change(make: Any, *, is_killed: bool) -> tuple[Any, Any]:
    """Make 5,100 calls, a reset and a step; return observations, and the marks."""
    envs = vecenv.VectorEnv([make], num_workers=1)
    try:
        envs.reset(seed=0)
        for number in range(5100):
            envs.call("note", number)
            if number % 500 == 0:
                envs.step([1])
        envs.reset(seed=1)
        if is_killed:
            os.kill(envs.worker_pids[0], signal.SIGKILL)
        rows = [envs.step([1]) for _ in range(3)]
        return [row[0].tolist() for row in rows], rows[0][4].get("recovered", [None])[0]
    finally:
        envs.close()


@pytest.mark.parametrize("make", [ChangesLate, ChangesLateAndKeepsState])
def test_change_of_a_list_at_the_5000th_call_is_restored(make: Any) -> None:
    expected, _ = play_late_change(make, is_killed=False)
    assert play_late_change(make, is_killed=True) == (expected, "replayed")


def test_changes_after_many_calls_of_a_large_env_are_not_marked_replayed(caplog: pytest.LogCaptureFixture) -> None:
    _, mark = play_late_change(ChangesOftenAndLarge, is_killed=True)
    assert mark == "unproven"
    assert caplog.text.count("'note' changed something after many calls") == 1


class Fragile(Tasks):
    """An env with methods that end their process when they are repeated."""

    def set_fragile_task(self, task: int) -> None:
        self.fall_if_repeated()
        self.task = task

    def change_in_secret(self) -> None:
        self.fall_if_repeated()
        self.secret = object()

    def fall_if_repeated(self) -> None:
        if os.environ.get("VECENV_REPLAYING"):
            os._exit(3)


@pytest.mark.parametrize("is_mid_episode", [False, True])
def test_call_that_ends_its_worker_when_repeated_is_given_up(
    is_mid_episode: bool, caplog: pytest.LogCaptureFixture
) -> None:
    envs = vecenv.VectorEnv([Fragile] * 2, num_workers=1)
    try:
        envs.reset(seed=0)
        envs.call("add", 1)
        envs.call("set_fragile_task", 3, env_id=[0])
        envs.call("change_in_secret", env_id=[1])
        if not is_mid_episode:
            envs.reset(seed=1)
        envs.call("add", 1)
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        infos = envs.step([0, 0])[4]
        assert infos["recovered"].tolist() == ["unproven"] * 2
        assert envs.get_attr("added") == (3, 3)
        assert envs.get_attr("task") == (3, 0)  # the values stand for the call
        for name in ("set_fragile_task", "change_in_secret"):
            assert caplog.text.count(f"its call of '{name}' is not repeated any more") == 1
        for pid in envs.worker_pids:  # env 1 has a worker to itself now
            os.kill(pid, signal.SIGKILL)
        infos = envs.step([0, 0])[4]
        assert infos["recovered"].tolist() == ["unproven"] * 2
        assert envs.get_attr("task") == (3, 0)
        envs.step([0, 0])
    finally:
        envs.close()


def count_reads(num_calls: int, num_kills: int) -> tuple[int, list[float]]:
    """Make many calls that only read, with steps and kills between.

    Returns:
        The bytes of the log, and the seconds of each recovery.
    """
    envs = vecenv.VectorEnv([Tasks], num_workers=1)
    plain = Tasks()
    seconds = []
    try:
        assert envs.reset(seed=0)[0][0].tolist() == plain.reset(seed=0)[0].tolist()
        envs.call("set_task", 2)
        plain.set_task(2)
        for number in range(num_calls):
            assert envs.call("read") == ((2, 0),)
            if number % 1000 == 999:
                is_killed = number // 1000 % max(1, num_calls // 1000 // num_kills) == 0
                if is_killed:
                    os.kill(envs.worker_pids[0], signal.SIGKILL)
                before = envs.statistics().replay_seconds
                obs, *_, infos = envs.step([1])
                assert obs[0].tolist() == plain.step(1)[0].tolist()
                assert not is_killed or infos["recovered"].tolist() == ["replayed"]
                seconds += [envs.statistics().replay_seconds - before] if is_killed else []
                if number // 1000 % 8 == 7:
                    assert envs.reset(seed=number)[0][0].tolist() == plain.reset(seed=number)[0].tolist()
        return envs.statistics().log_nbytes, seconds
    finally:
        envs.close()


@pytest.mark.extended
@pytest.mark.parametrize("num_calls, rounds", [(20_000, 3), pytest.param(1_000_000, 10, marks=pytest.mark.slow)])
def test_calls_that_only_read_take_no_room_and_no_time(num_calls: int, rounds: int) -> None:
    nbytes, seconds = count_reads(num_calls, rounds)
    assert nbytes < 1_000_000 and max(seconds) < 0.5


# ---- front ends ----------------------------------------------------------------------------------


def play_vector(kills: bool) -> Any:
    envs = vecenv.VectorEnv([Tasks] * 2, num_workers=1)
    return play_gymnasium(envs, kills)


def play_spare(kills: bool) -> Any:
    envs = vecenv.VectorEnv([Tasks] * 2, num_workers=1, num_spare_envs=2)
    return play_gymnasium(envs, kills)


def play_batched(kills: bool) -> Any:
    make = functools.partial(gymnasium.vector.SyncVectorEnv, [Tasks])
    envs = vecenv.BatchedVectorEnv([make] * 2, num_workers=1)
    return play_gymnasium(envs, kills)


def play_gymnasium(envs: Any, kills: bool) -> Any:
    try:
        envs.call("set_task", 3)
        envs.reset(seed=1)
        for number in range(3):
            envs.step(np.array([1, 2]))
            envs.call("add", number)
        envs.call("scale")
        envs.reset(seed=2)
        if kills:
            os.kill(envs.worker_pids[0], signal.SIGKILL)
        rows = [envs.step(np.array([1, 1])) for _ in range(12)]
        return [(row[0].tolist(), row[1].tolist()) for row in rows], envs.get_attr("goal")
    finally:
        envs.close()


def play_sb3(kills: bool) -> Any:
    pytest.importorskip("stable_baselines3", exc_type=ImportError)
    from vecenv.integrations.sb3 import SB3VecEnv

    envs = SB3VecEnv([Tasks] * 2, num_workers=1)
    try:
        envs.env_method("set_task", 3)
        envs.seed(1)
        envs.reset()
        for number in range(3):
            envs.step(np.array([1, 2]))
            envs.env_method("add", number)
        envs.env_method("scale", indices=[1])
        envs.seed(2)
        envs.reset()
        if kills:
            os.kill(envs.vector_env.worker_pids[0], signal.SIGKILL)
        rows = [envs.step(np.array([1, 1])) for _ in range(12)]
        return [(row[0].tolist(), row[1].tolist()) for row in rows], envs.get_attr("goal")
    finally:
        envs.close()


def play_manager(kills: bool) -> Any:
    config = {**vecenv.ding.SyncSubprocessEnvManager.default_config(), "num_workers": 1}
    manager = vecenv.ding.SyncSubprocessEnvManager([Tasks] * 2, config)
    try:
        manager.seed([1, 2])
        manager.launch()
        call_envs(manager, "set_task", 3)
        for number in range(3):
            manager.step({0: 1, 1: 2})
            call_envs(manager, "add", number)
        call_envs(manager, "scale", env_ids=[1])
        manager.seed([3, 4])
        manager.reset()
        if kills:
            os.kill(manager.worker_pids[0], signal.SIGKILL)
        found = []
        for _ in range(6):
            steps = manager.step({0: 1, 1: 1})
            found += [(np.asarray(steps[i].obs).tolist(), np.asarray(steps[i].reward).tolist()) for i in range(2)]
        return found, manager.goal
    finally:
        manager.close()


def play_shards(kills: bool) -> Any:
    pool = LocalPool([Tasks] * 2)
    with pool:
        pool.start()
        pool.call(CallMethod("set_task", (3,)))
        pool.reset(seeds=[1, 2])
        pool.recv()
        for number in range(3):
            pool.step(np.array([1, 2]))
            pool.call(CallMethod("add", (number,)))
        pool.call(CallMethod("scale"), [1])
        pool.reset(seeds=[3, 4])
        pool.recv()
        if kills:
            pool.kill_shard(1)
        rows = []
        for number in range(4):
            batch = pool.step(np.array([1, 1]))
            rows.append((batch.obs.tolist(), batch.rewards.tolist()))
            if kills and number == 1:
                pool.kill_worker(1)
        return rows, pool.call(GetAttribute("goal"), pure=True)


@pytest.mark.parametrize("play", [play_vector, play_spare, play_batched, play_sb3, play_manager, play_shards])
def test_calls_last_in_every_front_end(play: Any) -> None:
    assert play(True) == play(False)


@pytest.mark.extended
@pytest.mark.parametrize("context", ["spawn", "fork"])
def test_calls_last_under_every_start_method(context: str) -> None:
    run_program(1000, context=context)
    run_program(1001, context=context)


@pytest.mark.extended
def test_programs_with_calls_without_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VECENV_IMPLEMENTATION", "python")
    assert run_program(1002) | run_program(1003) <= {"replayed", "unproven"}


class MakesPools(Tasks):
    """An env with a method that changes nothing but how many vector envs it has made."""

    def first_number(self) -> float:
        inner = vecenv.VectorEnv([DrawsGlobally], backend="serial")
        try:
            return float(inner.reset()[0][0, 0])
        finally:
            inner.close()


class DrawsGlobally(gymnasium.Env[Any, Any]):
    observation_space, action_space = spaces.Box(0.0, 1.0, (1,), np.float64), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.random.random(1), {}


def test_pool_that_an_env_makes_after_a_recovery_has_numbers_of_its_own() -> None:
    found = []
    for is_killed in False, True:
        envs = vecenv.VectorEnv([MakesPools], num_workers=1)
        try:
            envs.reset(seed=3)
            numbers = [envs.call("first_number")[0] for _ in range(2)]
            if is_killed:
                os.kill(envs.worker_pids[0], signal.SIGKILL)
            envs.step(np.zeros(1, np.int64))
            found.append([*numbers, envs.call("first_number")[0]])
        finally:
            envs.close()
    assert found[0] == found[1] and len(set(found[0])) == 3


def test_attributes_count_in_the_log_and_are_given_up_beyond_its_bound(caplog: pytest.LogCaptureFixture) -> None:
    envs = vecenv.VectorEnv([Tasks], num_workers=1, failures={"max_log_bytes": 4_000_000})
    try:
        envs.reset(seed=0)
        for number in range(60):
            envs.set_attr(f"extra_{number}", [np.zeros(10_000)])
        assert 1_000_000 < envs.statistics().log_nbytes <= 4_000_000
        envs.reset(seed=1)
        for _ in range(9):
            envs.step([0])
        assert envs.statistics().log_nbytes <= 4_000_000
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        infos = envs.step([0])[4]
        assert infos["recovered"].tolist() == ["unproven"]
        assert "no longer kept" in caplog.text
    finally:
        envs.close()
