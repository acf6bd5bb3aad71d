"""A worker's death costs nothing: every env's answers equal those of a run without faults."""

from __future__ import annotations

import functools
import os
import signal
import string
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.faults.traces import kill, play, recovering_pool, stopped, undisturbed, wait_until
from tests.inside import engine_of, hub_of
from vecenv.core.layout.flags import Autoreset, Op
from vecenv.core.options import Limits
from vecenv.ding import DingEnvWrapper
from vecenv.envs import toys
from vecenv.gymnasium_api.replaying import is_replaying

NEXT, SAME = Autoreset.NEXT_STEP, Autoreset.SAME_STEP


def kills(schedule: dict[int, int | tuple[int, ...]]) -> Callable[[Any, int], None]:
    """Kill these workers in these rounds; several at once where a round names several."""

    def inject(pool: Any, number: int) -> None:
        victims = schedule.get(number, ())
        for worker_id in (victims,) if isinstance(victims, int) else victims:
            kill(pool, worker_id)

    return inject


# ---- envs -----------------------------------------------------------------------------------


def cart_pole() -> Any:
    return gymnasium.make("CartPole-v1")


def normalized() -> Any:
    return gymnasium.wrappers.NormalizeReward(gymnasium.wrappers.NormalizeObservation(cart_pole()))


def with_norm_wrappers() -> Any:
    names = [{"type": "obs_norm", "kwargs": {}}, {"type": "reward_norm", "kwargs": {"reward_discount": 0.99}}]
    return DingEnvWrapper(cfg={"env_id": "CartPole-v1", "env_wrapper": names})


def pong() -> Any:
    return gymnasium.make("ALE/Pong-v5", max_num_frames_per_episode=240)  # repeats an action with probability 0.25


def breakout() -> Any:
    """Loses its first life within some 30 steps, so episodes end without a real reset."""
    return DingEnvWrapper(cfg={"env_id": "ALE/Breakout-v5", "env_wrapper": "atari_default"})


def walker() -> Any:
    """Its physics world lives on over resets and cannot be captured."""
    return gymnasium.make("BipedalWalker-v3", max_episode_steps=40)


def nested() -> Any:
    space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (64, 64), np.uint8),  # larger than leaves whose digest covers the whole
            "pair": spaces.Tuple((spaces.Discrete(5), spaces.Box(-1.0, 1.0, (2,), np.float64))),
        }
    )
    return toys.SpaceEnv(space, spaces.Tuple((spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,)))), length=7)


def without_layout() -> Any:
    node, edge = spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(3)
    # Before Gymnasium 1.4 the default was a set, in another order in each process.
    text = spaces.Text(9, charset=string.ascii_letters)
    return toys.SpaceEnv(spaces.Dict(text=text, graph=spaces.Graph(node, edge)), spaces.Text(4), length=7)


class Aliased(toys.AliasedObs):
    """Writes its rewards into one array and its episode ends into another one."""

    def __init__(self) -> None:
        super().__init__(6)
        self.reward_space = spaces.Box(0.0, 9.0, (2,), np.float64)
        self.reward, self.is_over = np.zeros(2), np.zeros((), np.bool_)

    def reset(self, **kwargs: Any) -> Any:
        self.reward[:], self.is_over[...] = 0.0, False
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        self.reward[:], self.is_over[...] = self.elapsed_steps, terminated
        return obs, self.reward, self.is_over, truncated, info


#: env, how many, rounds, {round: workers killed while its steps are under way}
LOSSLESS: dict[str, tuple[Callable[[], Any], int, int, dict[int, int | tuple[int, ...]]]] = {
    "count": (toys.CountEnv, 4, 30, {0: 0, 7: 1, 22: 0, 23: (0, 1), 29: 1}),
    "second episode of CartPole": (cart_pole, 4, 70, {40: 0, 60: (0, 1)}),
    "gymnasium's normalising wrappers": (normalized, 2, 60, {30: 0, 50: 1, 58: 1}),
    "our normalising wrappers": (with_norm_wrappers, 2, 60, {30: 0, 50: 1, 58: 1}),
    "nested spaces": (nested, 4, 24, {5: 0, 17: (0, 1)}),
    "spaces without layout": (without_layout, 4, 24, {5: 0, 17: (0, 1)}),
    "one array for all observations": (Aliased, 2, 20, {6: 0, 13: 1}),
    "global generators": (toys.NoisyGlobal, 4, 25, {8: 0, 21: 1}),
}
ATARI: dict[str, tuple[Callable[[], Any], int, int, dict[int, int | tuple[int, ...]]]] = {
    "second episode of Pong": (pong, 2, 150, {90: 0, 140: 1}),
    "a life lost in Breakout": (breakout, 2, 150, {60: 0, 140: 1}),
}


def assert_lossless(
    env_fn: Callable[[], Any], count: int, rounds: int, schedule: dict[int, int | tuple[int, ...]], **options: Any
) -> None:
    expected = undisturbed([env_fn] * count, rounds, **options)
    with recovering_pool([env_fn] * count, **options) as pool:
        got = play(pool, rounds, kills(schedule))
        counts = pool.statistics()
    assert got.rows == expected.rows
    assert counts["restarts"] >= len(schedule) and counts["truncated"] == 0
    marks = [mark for found in got.marks for _, mark in found]
    assert marks and set(marks) == {"replayed"}
    assert any(row.place[0] > 0 for row in expected.rows[0]), "no second episode: the test shows nothing"


@pytest.mark.extended
@pytest.mark.parametrize("autoreset", [NEXT, SAME], ids=lambda mode: mode.name)
@pytest.mark.parametrize("name", LOSSLESS)
def test_faults_lose_nothing(name: str, autoreset: Autoreset) -> None:
    assert_lossless(*LOSSLESS[name], autoreset=autoreset)


@pytest.mark.extended
@pytest.mark.parametrize("name", ["count", "second episode of CartPole", "nested spaces", "spaces without layout"])
def test_faults_lose_nothing_without_the_extension(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VECENV_IMPLEMENTATION", "python")
    assert_lossless(*LOSSLESS[name], autoreset=NEXT)


@pytest.mark.parametrize("autoreset", [NEXT, pytest.param(SAME, marks=pytest.mark.slow)], ids=lambda mode: mode.name)
@pytest.mark.parametrize("name", ATARI)
def test_faults_lose_nothing_in_atari(name: str, autoreset: Autoreset) -> None:
    pytest.importorskip("ale_py")
    assert_lossless(*ATARI[name], autoreset=autoreset)


@pytest.mark.extended
def test_faults_lose_nothing_of_an_env_without_snapshots() -> None:
    pytest.importorskip("Box2D")
    assert_lossless(walker, 2, 150, {60: 0, 140: 1})


@pytest.mark.extended
@pytest.mark.parametrize("count", [1, 3])
def test_faults_lose_nothing_with_several_threads_per_worker(count: int, implementation: str) -> None:
    options = {"num_workers": count, "threads_per_worker": 2}
    expected = undisturbed([cart_pole] * 6, 60)
    with recovering_pool([cart_pole] * 6, **options) as pool:
        got = play(pool, 60, kills({0: 0, 25: count - 1, 50: 0}))
    assert got.rows == expected.rows


@pytest.mark.extended
def test_faults_lose_nothing_in_an_unordered_pool(implementation: str) -> None:
    expected = undisturbed([cart_pole] * 6, 60)
    with recovering_pool([cart_pole] * 6, num_workers=3) as pool:
        # all answers may come at once, so there are at least `rounds` of these receives
        got = play(pool, 60, kills({3: 0, 40: 1, 55: (0, 2)}), in_order=False)
        assert pool.statistics()["restarts"] >= 3
    assert got.rows == expected.rows


@pytest.mark.extended
def test_worker_that_dies_repeatedly_loses_nothing(implementation: str) -> None:
    expected = undisturbed([toys.CountEnv] * 4, 24)
    with recovering_pool([toys.CountEnv] * 4) as pool:
        got = play(pool, 24, before=lambda pool, number: kill(pool, 0))
        assert pool.statistics()["restarts"] == 24
    assert got.rows == expected.rows


@pytest.mark.extended
def test_workers_that_all_die_between_two_calls_lose_nothing(implementation: str) -> None:
    expected = undisturbed([toys.CountEnv] * 4, 24)
    with recovering_pool([toys.CountEnv] * 4) as pool:
        got = play(pool, 24, before=kills({1: (0, 1), 11: (0, 1), 20: (0, 1)}))
    assert got.rows == expected.rows


# ---- deaths at awkward moments ------------------------------------------------------------------


class DiesInReplay(toys.CountEnv):
    """Kills its process in step 5, and its successor's while that repeats step 3, and so on for each path."""

    def __init__(self, folder: str, at: dict[str, int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.folder, self.at = folder, at

    def step(self, action: Any) -> Any:
        for name, step in self.at.items():
            path = os.path.join(self.folder, name)
            is_next = all(os.path.exists(os.path.join(self.folder, other)) for other in self.at if other < name)
            if self.elapsed_steps + 1 == step and is_next and not os.path.exists(path):
                open(path, "x").close()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


@pytest.mark.extended
@pytest.mark.parametrize("env_id", [0, 1])
def test_replacement_that_dies_during_its_replay_is_replaced(env_id: int, implementation: str, tmp_path: Any) -> None:
    at = {"a": 5, "b": 3, "c": 5}
    env_fns = [functools.partial(toys.CountEnv, 10)] * 3
    expected = undisturbed(env_fns, 15)
    env_fns[env_id] = functools.partial(DiesInReplay, str(tmp_path), at, length=10)
    with recovering_pool(env_fns) as pool:
        got = play(pool, 15)
        assert pool.statistics()["restarts"] == 3
    assert got.rows == expected.rows
    assert [number for number, _ in got.marks[env_id]] == [5]


class DiesTwice(toys.CountEnv):
    """Kills its worker in its third step and in its fourth, once each."""

    def __init__(self, folder: Any) -> None:
        super().__init__()
        self.folder = folder

    def step(self, action: Any) -> Any:
        struck = self.folder / f"struck {self.elapsed_steps}"
        if self.elapsed_steps in (2, 3) and not struck.exists():
            struck.touch()
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().step(action)


@pytest.mark.extended
def test_isolated_env_keeps_its_running_step(implementation: str, tmp_path: Any) -> None:
    expected = undisturbed([toys.CountEnv] * 3, 8)
    with recovering_pool([toys.CountEnv, functools.partial(DiesTwice, tmp_path), toys.CountEnv], num_workers=1) as pool:
        got = play(pool, 8)
        assert pool.envs_of(1) == [1]
    assert got.rows == expected.rows


class DiesWhenBuilt(toys.CountEnv):
    """Kills its process in its second constructor and in its third, as a system short of memory might."""

    def __init__(self, folder: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        births = len(os.listdir(folder))
        open(os.path.join(folder, str(births)), "x").close()
        if births in (1, 2):
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.extended
def test_replacement_killed_while_it_builds_is_replaced(implementation: str, tmp_path: Any) -> None:
    env_fns = [functools.partial(toys.CountEnv, 10)] * 2
    expected = undisturbed(env_fns, 15)
    env_fns[0] = functools.partial(DiesWhenBuilt, str(tmp_path), length=10)
    with recovering_pool(env_fns) as pool:
        got = play(pool, 15, kills({6: 0}))
    assert got.rows == expected.rows


class StopsWhenBuilt(toys.CountEnv):
    """Stops its process in its second constructor: alive, and never done."""

    def __init__(self, folder: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        births = len(os.listdir(folder))
        open(os.path.join(folder, str(births)), "x").close()
        if births == 1:
            os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.extended
def test_replacement_that_hangs_while_it_builds_is_replaced(implementation: str, tmp_path: Any) -> None:
    env_fns = [functools.partial(toys.CountEnv, 10)] * 2
    expected = undisturbed(env_fns, 15)
    env_fns[0] = functools.partial(StopsWhenBuilt, str(tmp_path), length=10)
    with recovering_pool(env_fns, limits=Limits(construct=4.0)) as pool:
        got = play(pool, 15, kills({6: 0}))
        assert len(os.listdir(tmp_path)) == 3, "a first one, one that stopped, and one that took its place"
    assert got.rows == expected.rows


@pytest.mark.extended
@pytest.mark.parametrize("autoreset", [NEXT, SAME], ids=lambda mode: mode.name)
@pytest.mark.parametrize("moment", ["reset", "step", "autoreset"])
@pytest.mark.parametrize("fault", ["segfault", "hang in C"])  # the matrix has all
def test_fault_in_the_middle_of_a_call_costs_nothing(
    fault: str, moment: str, autoreset: Autoreset, tmp_path: Any
) -> None:
    at = {"reset": 1, "step": 3, "autoreset": 2}[moment]
    healthy = functools.partial(toys.FAULTS[fault], None, moment="close", length=4, once=str(tmp_path))
    faulty = functools.partial(toys.FAULTS[fault], at, moment=moment, length=4, once=tmp_path / "struck")
    expected = undisturbed([functools.partial(toys.Raises, None, moment="close", length=4, once=str(tmp_path))] * 3, 14)
    limits = Limits(reset=1.0, step=1.0, close=2.0)
    with recovering_pool([healthy, faulty, healthy], num_workers=1, autoreset=autoreset, limits=limits) as pool:
        got = play(pool, 14)
        assert pool.statistics()["restarts"] == 1
    if autoreset == SAME:
        expected = undisturbed(
            [functools.partial(toys.Raises, None, moment="close", length=4, once=str(tmp_path))] * 3, 14, autoreset=SAME
        )
    assert got.rows == expected.rows
    assert [mark for _, mark in got.marks[1]] == (["replayed"] if moment != "reset" else [])


class LookedAt(toys.ToyEnv):
    """Is slow enough for snapshots between its episodes, without any declaration in its class."""

    def __init__(self) -> None:
        super().__init__(8)

    def step(self, action: Any) -> Any:
        until = time.perf_counter() + 0.0005
        while time.perf_counter() < until:
            pass
        return super().step(action)


class Lurks(LookedAt):
    """Has hidden state that no snapshot contains and no unseeded reset clears; shows it late in an episode."""

    hidden = 0

    def step(self, action: Any) -> Any:
        self.hidden += 1
        obs, reward, *rest = super().step(action)
        return obs, reward + (self.hidden if self.elapsed_steps > 4 else 0), *rest


class Derails(LookedAt):
    """Draws once more when the first episode is replayed, and records where it was closed."""

    def __init__(self, folder: Any) -> None:
        super().__init__()
        self.folder = folder

    def close(self) -> None:
        with open(self.folder / "closed", "a") as file:
            file.write(f"{os.getpid()} ")

    def step(self, action: Any) -> Any:
        result = super().step(action)
        if self.elapsed_steps == 7 and is_replaying():
            self.np_random.random()
        return result


@pytest.mark.extended
def test_episode_is_not_restored_from_an_incomplete_state(implementation: str) -> None:
    """All answers so far agreed once, and the first one after the recovery differed."""
    expected = undisturbed([Lurks] * 2, 40)
    with recovering_pool([Lurks] * 2) as pool:
        got = play(pool, 40, before=kills({12: 0}))  # the second episode's third step
        assert pool.statistics()["unproven"] == 0
    assert got.rows == expected.rows and [mark for _, mark in got.marks[0]] == ["replayed"]


@pytest.mark.extended
def test_episode_restored_from_an_incomplete_state_is_marked_unproven(
    implementation: str, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    with recovering_pool([functools.partial(Derails, tmp_path)] * 2) as pool:
        got = play(pool, 14, before=kills({12: 0}))
        assert pool.statistics()["unproven"] == 1
        pids = pool.worker_pids
    closed = [int(pid) for pid in (tmp_path / "closed").read_text().split()]
    assert [closed.count(pid) for pid in pids] == [2, 1], "the env that went astray is closed too"
    assert [mark for _, mark in got.marks[0]] == ["unproven"]
    assert "go on from a state that may lack something" in caplog.text


@pytest.mark.extended
def test_first_reset_of_a_new_env_is_the_only_one_with_a_seed() -> None:
    """Later resets continue from the state of the env's own generator."""
    with recovering_pool([toys.CountEnv] * 2) as pool:
        pool.start()

        def has_seed() -> list[bool]:
            pool.reset()
            return [seed >= 0 for seed in pool.recv().seeds.tolist()]

        assert [has_seed(), has_seed()] == [[True, True], [False, False]]
        pool.restart(0)
        assert [has_seed(), has_seed()] == [[True, False], [False, False]]


def test_seed_among_the_arguments_of_a_reset_makes_a_restore_point() -> None:
    with recovering_pool([toys.CountEnv]) as pool:
        pool.start()
        for seed in (8, 9):
            pool.reset(kwargs=[{"seed": seed}])
            assert pool.recv().seeds.tolist() == [seed]
            pool.step(np.zeros(1, np.int64))
        (attempt,) = engine_of(pool).journal.history(0, ()).attempts
        assert [entry.op for entry in attempt.entries] == [Op.RESET, Op.STEP], "of the second episode alone"


@pytest.mark.extended
@pytest.mark.parametrize("env_ids", [None, [1, 0]], ids=["all", "some"])
def test_steps_that_are_sent_when_a_handler_raises_are_not_lost(env_ids: Any, implementation: str) -> None:
    """Python runs the handler of a signal that comes during a send right after the send."""
    with recovering_pool([functools.partial(toys.ToyEnv, None)] * 2) as pool:
        play(pool, 2)
        send = hub_of(pool).send

        def interrupted(*args: Any) -> Any:
            send(*args)
            raise KeyboardInterrupt

        before = pool.call(lambda env: env.action_sum)
        for number in range(4):
            if number == 1:
                hub_of(pool).send = interrupted
                with pytest.raises(KeyboardInterrupt):
                    pool.send(np.ones(2, np.int64), env_ids)
                hub_of(pool).send = send
            else:
                pool.send(np.full(2, number % 2), env_ids)
            pool.recv()
        kill(pool, 0)
        pool.send(np.zeros(2, np.int64))
        batch = pool.recv()
        assert not batch.truncated.any() and pool.statistics()["truncated"] == 0
        assert batch.obs[:, 1].tolist() == [total + 2 for total in before]


# ---- views --------------------------------------------------------------------------------------


@pytest.mark.extended
def test_views_stay_what_they_were_across_a_recovery(implementation: str) -> None:
    with recovering_pool([toys.CountEnv] * 4, depth=4) as pool:
        play(pool, 2)
        pool.send(np.zeros(4, np.int64))
        batch = pool.recv()
        view, kept = batch.obs, batch.obs.copy()
        for _ in range(3):
            np.testing.assert_array_equal(view, kept)
            kill(pool, 0)
            pool.send(np.zeros(4, np.int64))
            pool.recv()
        np.testing.assert_array_equal(view, kept)


def test_recovered_mark_is_once_and_only_for_envs_of_the_worker(implementation: str) -> None:
    with recovering_pool([toys.CountEnv] * 4) as pool:
        got = play(pool, 8, kills({5: 1}))
    assert got.marks[:2] == [[], []]
    for marks in got.marks[2:]:  # an env that had answered when its worker was killed is asked again in the next round
        assert marks in ([(5, "replayed")], [(6, "replayed")])


@pytest.mark.parametrize("autoreset", [Autoreset.NEXT_STEP, Autoreset.SAME_STEP])
def test_recovered_mark_is_on_the_first_row_after_a_call(implementation: str, autoreset: Any) -> None:
    """The call restores the env, so the next step is a plain one."""

    def kill_and_call(pool: Any, number: int) -> None:
        if number == 5:
            kill(pool, 1)
            pool.call(lambda env: None, pure=True)

    with recovering_pool([toys.CountEnv] * 4, autoreset=autoreset) as pool:
        got = play(pool, 8, before=kill_and_call)
    assert got.marks == [[], [], [(5, "replayed")], [(5, "replayed")]]


class WritesSteps(toys.CountEnv):
    """Writes down each step and whether it ran in a replay."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def step(self, action: Any) -> Any:
        with open(self.path, "a") as file:
            file.write(f"{self.elapsed_steps + 1}{'r' if os.environ.get('VECENV_REPLAYING') else ' '}")
        return super().step(action)


def test_env_can_see_that_it_is_replayed(tmp_path: Any) -> None:
    with recovering_pool([functools.partial(WritesSteps, str(tmp_path / "steps"))]) as pool:
        play(pool, 5, before=kills({4: 0}))
    assert (tmp_path / "steps").read_text() == "1 2 3 1r2r3r4 5 "


@pytest.mark.extended
@pytest.mark.parametrize("context", ["forkserver", "spawn", "fork"])
def test_workers_are_replaced_with_every_start_method(context: str) -> None:
    expected = undisturbed([toys.CountEnv] * 4, 24)
    with recovering_pool([toys.CountEnv] * 4, context=context) as pool:
        got = play(pool, 24, kills({0: 1, 11: 0, 15: (0, 1)}))
    assert got.rows == expected.rows


@pytest.mark.extended
def test_worker_killed_within_a_payload_is_noticed(implementation: str) -> None:
    """A flag of the dead worker once kept the parent in a loop that polled messages but not deaths."""
    load_of = b"x" * (1 << 20)
    with recovering_pool([toys.CountEnv] * 2) as pool:
        play(pool, 3)
        with stopped(pool.worker_pids):  # else they may have read all that is written before the parent has written all
            pool.submit_calls([lambda env: len(load_of)] * 2)
        if implementation == "native":  # the parent writes no more of the payloads now
            wait_until(lambda: all(hub_of(pool).state(slot).blocked for slot in range(2)))
        kill(pool, 0)
        kill(pool, 1)
        assert pool.collect_calls() == [1 << 20, 1 << 20]


@pytest.mark.extended
@pytest.mark.parametrize("context", ["spawn", "fork"])
def test_worker_reaped_by_the_program_is_replaced(context: str) -> None:
    """Programs that reap all their children leave no exit code; descriptors were once left open."""
    expected = undisturbed([toys.CountEnv] * 4, 12)
    with recovering_pool([toys.CountEnv] * 4, context=context) as pool:
        got = play(pool, 12, lambda pool, number: number == 6 and os.waitpid(kill(pool, 0), 0))
    assert got.rows == expected.rows
