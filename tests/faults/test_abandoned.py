"""Episodes that cannot be restored: they end as truncated, the run continues, and a file reproduces the crash."""

from __future__ import annotations

import functools
import glob
import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.faults.traces import Traces, frozen, kill, play, recovering_pool, undisturbed, wait_until
from tests.programs import run_python
from vecenv import VectorEnv
from vecenv.core.layout.flags import Autoreset, RowFlag
from vecenv.core.options import Limits
from vecenv.core.recovery.reproducer import load as load_episode
from vecenv.ding import AsyncSubprocessEnvManager, SyncSubprocessEnvManager
from vecenv.envs import toys
from vecenv.errors import WorkerDiedError, WorkerTimeoutError

NEXT, SAME, DISABLED = Autoreset.NEXT_STEP, Autoreset.SAME_STEP, Autoreset.DISABLED


class Entropic(toys.ToyEnv):
    """Draws from the system's entropy, so that no episode can be repeated."""

    def observe(self) -> Any:
        obs = super().observe()
        obs[3] = float.fromhex(os.urandom(2).hex())
        return obs


def kill_at(number: int, worker_id: int = 0) -> Callable[[Any, int], None]:
    def inject(pool: Any, now: int) -> None:
        if now == number:
            kill(pool, worker_id)

    return inject


def counters_of(traces: Traces, env_id: int, number: int) -> tuple[int, int]:
    return traces.rows[env_id][number].place[:2]


# ---- episodes that cannot be repeated -------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("why", ["entropy", "log"])
def test_episode_that_cannot_be_repeated_ends_truncated(why: str, implementation: str) -> None:
    env_fn = Entropic if why == "entropy" else toys.ToyEnv
    options = {} if why == "entropy" else {"max_log_bytes": 100}
    with recovering_pool([env_fn] * 4, **options) as pool:
        got = play(pool, 14, before=kill_at(5))
        counts = pool.statistics()
    assert (counts["restarts"], counts["truncated"], counts["replayed"]) == (1, 2, 0)
    for env_id in (0, 1):
        rows = got.rows[env_id]
        assert rows[5].ended == (False, True) and rows[5].reward == np.float64(0.0).tobytes()
        assert rows[5].obs == rows[4].obs, "the last observation is shown"
        assert counters_of(got, env_id, 5) == (0, 5)
        assert rows[6].flags & RowFlag.AUTORESET and counters_of(got, env_id, 6) == (1, 0)
        assert [row.place[1] for row in rows[6:]] == list(range(9))
        assert got.marks[env_id] == [(5, "truncated"), (6, "restarted")]
    for env_id in (2, 3):
        assert [row.place[1] for row in got.rows[env_id]] == [*range(11), 0, 1, 2, 3]
        assert got.marks[env_id] == []
    if why == "log":
        assert got.rows[2:] == undisturbed([env_fn] * 4, 14).rows[2:]


@pytest.mark.extended
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_last_delivered_values_include_those_without_a_column(mode: str, implementation: str) -> None:
    space = spaces.Dict(
        word=spaces.Text(6), place=spaces.Box(-1, 1, (2,)), walk=spaces.Sequence(spaces.Box(-1, 1, (2,)))
    )
    env_fns = [functools.partial(toys.SpaceEnv, space)] * 2
    with VectorEnv(env_fns, num_workers=2, autoreset_mode=mode, failures={"max_log_bytes": 100}) as envs:
        envs.reset(seed=0)
        for _ in range(4):
            obs, *_ = envs.step([0, 0])
        last = {"word": obs["word"][0], "place": obs["place"][0].copy(), "walk": obs["walk"][0]}
        expected = frozen(last)
        for array in last["walk"]:
            array.fill(7)  # the caller's own reset
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        obs, _, _, truncations, infos = envs.step([0, 0])
        assert truncations.tolist() == [True, False]
        shown = {key: obs[key][0] for key in last} if mode == "NextStep" else infos["final_obs"][0]
        assert frozen(shown) == expected


@pytest.mark.extended
@pytest.mark.parametrize("moment", ["step", "call", "reset"])
@pytest.mark.parametrize("why", ["entropy", "log"])
def test_episode_that_has_ended_does_not_end_again(why: str, moment: str, implementation: str) -> None:
    env_fn = Entropic if why == "entropy" else toys.ToyEnv
    options = {} if why == "entropy" else {"max_log_bytes": 100}
    with recovering_pool([env_fn] * 4, **options) as pool:
        got = play(pool, 10)
        assert [row[10].ended for row in got.rows] == [(True, False)] * 4
        kill(pool, 0)
        if moment == "call":
            assert pool.call(lambda env: 7) == [7] * 4
        pool.reset() if moment == "reset" else pool.send(np.zeros(4, np.int64))
        batch = pool.recv()
        flag = RowFlag.RESET if moment == "reset" else RowFlag.AUTORESET
        assert (batch.row_flags & flag).all() and not batch.rewards.any() and not batch.truncated.any()
        assert batch.lengths.tolist() == [0] * 4 and batch.episodes.tolist() == [1] * 4
        assert [info.get("recovered") for info in batch.infos()] == ["restarted"] * 2 + [None] * 2
        for number in range(1, 11):
            pool.send(np.zeros(4, np.int64))
            batch = pool.recv()
            assert batch.flags & RowFlag.ERROR == 0 and batch.lengths.tolist() == [number] * 4
        assert batch.terminated.all()
        counts = pool.statistics()
    assert (counts["restarts"], counts["truncated"]) == (1, 0)


@pytest.mark.extended
def test_end_already_delivered_is_known_if_the_caller_resets(implementation: str) -> None:
    with recovering_pool([Entropic] * 2, autoreset=DISABLED) as pool:
        assert play(pool, 10).rows[0][10].ended == (True, False)
        kill(pool, 0)
        pool.reset()
        assert [info.get("recovered") for info in pool.recv().infos()] == ["restarted", None]
        kill(pool, 0)
        pool.send(np.zeros(2, np.int64))
        assert pool.recv().truncated.tolist() == [True, False], "this one had only begun"


@pytest.mark.extended
def test_autoreset_that_raised_is_retried_after_a_death(implementation: str, tmp_path: Any) -> None:
    path = tmp_path / "there"

    class Reluctant(Entropic):
        def reset(self, **kwargs: Any) -> Any:
            if path.exists():
                raise ValueError("no reset")
            return super().reset(**kwargs)

    with recovering_pool([Reluctant] * 2) as pool:
        play(pool, 10)
        path.touch()
        pool.send(np.zeros(2, np.int64))
        assert set(pool.recv().errors()) == {0, 1}
        kill(pool, 0)
        path.unlink()
        pool.send(np.zeros(2, np.int64))
        batch = pool.recv()
        assert (batch.row_flags & RowFlag.AUTORESET).all() and not batch.truncated.any()
        assert [info.get("recovered") for info in batch.infos()] == ["restarted", None]


@pytest.mark.extended
def test_episode_that_cannot_be_repeated_ends_truncated_in_same_step_mode(implementation: str) -> None:
    with recovering_pool([Entropic] * 2, autoreset=SAME) as pool:
        got = play(pool, 14, before=kill_at(5))
    row = got.rows[0][5]
    assert row.ended == (False, True) and row.flags & RowFlag.FINAL
    assert row.final_obs == got.rows[0][4].obs, "the last observation is shown"
    assert [row.place[1] for row in got.rows[0][6:]] == [*range(1, 10)]
    assert sorted(mark for _, mark in got.marks[0]) == ["restarted", "truncated"]
    assert got.marks[1] == []


@pytest.mark.extended
def test_episode_that_cannot_be_repeated_can_be_reset_by_hand(implementation: str) -> None:
    with recovering_pool([Entropic] * 2, autoreset=DISABLED) as pool:
        got = play(pool, 5, before=kill_at(5))
        assert got.rows[0][5].ended == (False, True)
        pool.reset([0], seeds=[3])
        batch = pool.recv()
        assert batch.lengths.tolist() == [0] and batch.errors() == {}
        pool.send(np.zeros(2, np.int64))
        assert pool.recv().errors() == {}


@pytest.mark.extended
@pytest.mark.parametrize("moment", ["reset", "call"])
def test_episode_loss_is_found_by_a_command_other_than_step(moment: str, implementation: str) -> None:
    with recovering_pool([Entropic] * 2) as pool:
        play(pool, 4)
        kill(pool, 0)
        if moment == "reset":  # a lost episode needs it
            pool.reset(seeds=[1, 2])
            batch = pool.recv()
            assert batch.errors() == {} and batch.lengths.tolist() == [0, 0]
        else:
            with pytest.warns(RuntimeWarning, match="env 0 answered after it was built again"):
                assert pool.call(lambda env: 7) == [7, 7]
        pool.send(np.zeros(2, np.int64))
        batch = pool.recv()
        assert batch.errors() == {}, "an env that was never reset has been stepped"
        assert batch.truncated.tolist() == [moment == "call", False]
        pool.send(np.zeros(2, np.int64))
        assert pool.recv().errors() == {}


@pytest.mark.extended
def test_episode_after_a_lost_one_is_restored(implementation: str) -> None:
    """A snapshot is taken at its start, so one loss is not followed by another."""

    class Drawn(toys.ToyEnv):
        pass

    def inject(pool: Any, now: int) -> None:
        if now == 5:
            kill(pool, 0)
        elif now == 3:
            pool.call(lambda env: env.unwrapped.np_random.bit_generator.advance(_ours()), [0], pure=True)
        elif now in (8, 18):
            kill(pool, 0)

    with recovering_pool([functools.partial(Drawn, 10)] * 2) as pool:
        got = play(pool, 20, before=inject)
        assert pool.statistics()["truncated"] == 1
    assert [mark for _, mark in got.marks[0]] == ["truncated", "restarted", "replayed", "replayed"]


class Unlucky(toys.ToyEnv):
    """Exits at steps that its generator chooses, and so at every attempt to repeat them."""

    def step(self, action: Any) -> Any:
        if self.np_random.random() < 0.25:
            os._exit(3)
        return super().step(action)


@pytest.mark.extended
def test_runs_with_the_same_lost_episodes_are_equal(implementation: str, tmp_path: Any) -> None:
    """The seed of the episode after a lost one was drawn from the system's entropy."""
    found = []
    for num_workers in (1, 2):
        policy = {"reproducer_dir": str(tmp_path), "max_restarts": 1000}
        with recovering_pool([Unlucky, toys.ToyEnv, Unlucky], num_workers=num_workers, **policy) as pool:
            traces = play(pool, 12)
            assert pool.statistics()["truncated"] >= 3
        found.append(traces)
        lost = [number for number, mark in traces.marks[0] if mark == "restarted"]
        first_obs = {traces.rows[0][number].obs for number in lost}
        assert len(first_obs) == len(lost) >= 2, "each lost episode is followed by another one"
    assert found[0].rows == found[1].rows


def _ours() -> int:
    return int.from_bytes(os.urandom(2), "little") + 1  # a call that claims to change nothing, but changes something


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_reset_too_large_to_keep_is_not_left_out(num_steps: int, implementation: str) -> None:
    """Otherwise an env that was never reset would be stepped, without any error."""
    options = {"map": b"x" * 50_000}
    with recovering_pool([toys.CountEnv] * 4, max_log_bytes=10_000) as pool:
        pool.start()
        pool.reset(seeds=[5, 6, 7, 8], kwargs=[{"options": options}] * 4)
        pool.recv().raise_errors()
        for _ in range(num_steps):
            pool.send(np.zeros(4, np.int64))
            shown = pool.recv().obs.copy()
        kill(pool, 0)
        pool.send(np.zeros(4, np.int64))
        batch = pool.recv()
        assert batch.errors() == {} and batch.truncated.tolist() == [True, True, False, False]
        assert [info.get("recovered") for info in batch.infos()] == ["truncated", "truncated", None, None]
        if num_steps:
            np.testing.assert_array_equal(batch.obs[:2], shown[:2])
        pool.send(np.zeros(4, np.int64))
        batch = pool.recv()
        assert [info.get("recovered") for info in batch.infos()] == ["restarted", "restarted", None, None]
        assert batch.obs[:, 0].tolist() == [0.0, 0.0, num_steps + 2, num_steps + 2]
        assert batch.obs[:, 1].tolist() == [1.0] * 4, "every env has been reset once"


@pytest.mark.parametrize("is_answered", [False, True])
def test_reset_too_large_to_keep_is_repeated_while_unanswered(is_answered: bool, implementation: str) -> None:
    with recovering_pool([toys.CountEnv] * 2, max_log_bytes=10_000) as pool:
        pool.start()
        kwargs = [{"options": {"map": b"x" * 50_000}}] * 2
        pool.reset(seeds=[5, 6], kwargs=kwargs)
        if is_answered:  # another reset makes sure that the answer has been recorded
            pool.recv().raise_errors()
            pool.reset(seeds=[7, 8], kwargs=kwargs)
        kill(pool, 0)
        batch = pool.recv()
        assert batch.errors() == {} and batch.obs[:, 0].tolist() == [0.0, 0.0]
        assert batch.seeds.tolist() == ([7, 8] if is_answered else [5, 6])
        assert batch.obs[:, 2].tolist() == batch.seeds.tolist()


def test_episode_with_untyped_observations_can_be_lost(implementation: str) -> None:
    """Untyped last delivered values are not kept: the row that ends the episode contains None."""
    space = spaces.Dict(text=spaces.Text(5), number=spaces.Discrete(9))
    with recovering_pool([functools.partial(toys.SpaceEnv, space, length=6)] * 2, max_log_bytes=1) as pool:
        got = play(pool, 9, before=kill_at(4))
    assert got.rows[0][4].ended == (False, True)
    assert [mark for _, mark in got.marks[0]] == ["truncated", "restarted"]
    assert [row.place[1] for row in got.rows[0][5:]] == list(range(5))


class RaisesAtFour(Entropic):
    """Raises in the fourth step, once."""

    def step(self, action: Any) -> Any:
        if self.elapsed_steps == 3 and not hasattr(self, "has_raised"):
            self.has_raised = True
            raise ValueError("no observation")
        return super().step(action)


@pytest.mark.extended
def test_last_delivered_row_is_not_one_without_an_observation(implementation: str) -> None:
    """The columns of a row whose step raised contain values of an earlier row."""
    with recovering_pool([RaisesAtFour] * 2) as pool:
        play(pool, 2)
        pool.send(np.zeros(2, np.int64))
        last = pool.recv().obs.copy()
        pool.send(np.zeros(2, np.int64))
        assert pool.recv().row_flags.tolist() == [RowFlag.ERROR | RowFlag.MESSAGE | RowFlag.REPEATS] * 2
        kill(pool, 0)
        pool.send(np.zeros(2, np.int64))
        batch = pool.recv()
        assert batch.truncated.tolist() == [True, False]
        assert batch.obs[0].tolist() == last[0].tolist()


@pytest.mark.extended
def test_replay_that_takes_too_long_is_abandoned(implementation: str) -> None:
    with recovering_pool([functools.partial(toys.SleepEnv, 20.0)] * 2, recovery_timeout=0.01) as pool:
        got = play(pool, 7, before=kill_at(6))
    assert got.rows[0][6].ended == (False, True)


# ---- the same call fails twice -----------------------------------------------------------------------


def draw_of_episode(seed: int, index: int) -> float:
    """Return a number that identifies an episode of an env, however the env got there."""
    env = healthy()
    env.reset(seed=seed)
    for _ in range(index):
        for _ in range(6):
            env.step(0)
        env.reset()
    return float(env.episode_draw)


class SegfaultsInEpisode(toys.Segfaults):
    """Crashes in the fifth step of each episode that begins with this draw."""

    def __init__(self, first_draw: float, **kwargs: Any) -> None:
        super().__init__(None, moment="call", **kwargs)
        self.first_draw = first_draw

    def step(self, action: Any) -> Any:
        if self.episode_draw == self.first_draw and self.elapsed_steps == 4:
            self.fail()
        return super().step(action)


def segfaulting(seed: int = 1, index: int = 2) -> Any:
    """Crashes in the third episode."""
    return functools.partial(SegfaultsInEpisode, draw_of_episode(seed, index), length=6)


def healthy() -> Any:
    return toys.Raises(None, moment="call", length=6)


@pytest.mark.extended
@pytest.mark.parametrize("autoreset", [NEXT, SAME], ids=lambda mode: mode.name)
def test_crash_on_every_attempt_costs_one_episode(autoreset: Autoreset, implementation: str, tmp_path: Any) -> None:
    expected = undisturbed([healthy] * 4, 30, autoreset=autoreset)
    with recovering_pool(
        [healthy, segfaulting(), healthy, healthy], autoreset=autoreset, reproducer_dir=str(tmp_path)
    ) as pool:
        got = play(pool, 30)
        counts = pool.statistics()
    assert counts["restarts"] == 2 and counts["truncated"] == 1
    for env_id in (0, 2, 3):
        assert got.rows[env_id] == expected.rows[env_id], env_id
    marks = dict(got.marks[1])
    assert "truncated" in marks.values()
    (lost,) = [number for number, mark in marks.items() if mark == "truncated"]
    assert got.rows[1][:lost] == expected.rows[1][:lost]
    assert got.rows[1][lost].ended == (False, True)
    assert any(row.ended == (True, False) for row in got.rows[1][lost + 1 :]), "it goes on with further episodes"
    (path,) = glob.glob(str(tmp_path / "*"))
    assert_reproduces(path, lost)


def assert_reproduces(path: str, lost: int) -> None:
    """Run the episode in a process of its own: it must end as the worker did, at the same command."""
    program = (
        "import sys; from vecenv.core.recovery.reproducer import load\n"
        "for event in load(sys.argv[1]).run(): print(event.op, event.step_id, flush=True)"
    )
    done = run_python("-c", program, path)
    assert done.returncode == -signal.SIGSEGV, done.stderr
    episode = load_episode(path)
    lines = done.stdout.split("\n")[:-1]
    assert len(lines) >= 4 and lines[-1].startswith("step ")
    assert episode.env_id == 1 and episode.entries[-1].step_id == episode.step_id
    assert int(lines[-1].split()[1]) == episode.entries[-2].step_id
    assert "SIGSEGV" in episode.why and "env 1" in episode.why


@pytest.mark.extended
def test_crash_on_every_attempt_can_raise(implementation: str, tmp_path: Any) -> None:
    env_fns = [healthy, segfaulting(), healthy, healthy]
    with recovering_pool(env_fns, on_repeat="raise", reproducer_dir=str(tmp_path)) as pool:
        with pytest.raises(WorkerDiedError) as caught:
            play(pool, 30)
        text, error = str(caught.value), caught.value
    (path,) = glob.glob(str(tmp_path / "*"))
    assert "worker 0 (envs 0-1) died during step of env 1 (command " in text and "SIGSEGV" in text
    assert "second time in this call" in text and f"vecenv replay {path}" in text
    assert (error.worker_id, error.env_ids, error.op, error.exitcode) == (0, (1,), "step", -signal.SIGSEGV)
    # seed 1, then two autoresets: the third episode has no known seed, and five steps were requested
    assert (error.signal, error.seed, error.reproducer) == (signal.SIGSEGV, None, path)
    assert len(error.actions) == 5 and f"last actions [{', '.join(map(str, error.actions))}]; it is" in text
    assert load_episode(path).why.partition("\n")[0] in text
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.actions, copy.reproducer, str(copy)) == (error.actions, path, text)


@pytest.mark.extended
def test_reset_that_crashes_every_time_raises(implementation: str, tmp_path: Any) -> None:
    says = r"reset of env 1 \(command \d+\): .*\n?[\s\S]*second time"
    pool = recovering_pool([healthy, toys.SegfaultAtReset], reproducer_dir=str(tmp_path))
    with pool, pytest.raises(WorkerDiedError, match=says):
        play(pool, 1)


class Fragile(toys.CountEnv):
    """Exits in the operation that the file `path` names: a reset with a seed, any reset, or a call of `touch`."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path, self.num_touches = path, 0

    def exit_in(self, *names: str) -> None:
        if os.path.exists(self.path) and Path(self.path).read_text() in names:
            os._exit(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.exit_in("any reset", *([] if seed is None else ["seeded reset"]))
        return super().reset(seed=seed, options=options)

    def touch(self) -> None:
        self.exit_in("call")
        self.num_touches += 1  # a call that changes nothing is not repeated


@pytest.mark.extended
@pytest.mark.parametrize("asked", ["step", "call", "reset"])
def test_crash_in_a_repeated_command_costs_the_episode(asked: str, implementation: str, tmp_path: Any) -> None:
    path, files = tmp_path / "what", tmp_path / "files"
    files.mkdir()
    env_fns = [toys.CountEnv, functools.partial(Fragile, str(path))]
    with recovering_pool(env_fns, reproducer_dir=str(files)) as pool:
        play(pool, 2)
        pool.call(lambda env: env.unwrapped.touch() if isinstance(env.unwrapped, Fragile) else None)
        path.write_text("seeded reset")
        kill(pool, 1)
        if asked == "call":
            with pytest.warns(RuntimeWarning, match="env 1 answered after it was built again"):
                assert pool.call(lambda env: 7) == [7, 7]
        if asked == "reset":
            pool.reset()
            batch = pool.recv()
            assert not batch.truncated.any() and (batch.row_flags & RowFlag.RESET).all()
        else:
            pool.send(np.zeros(2, np.int64))
            batch = pool.recv()
            assert batch.truncated.tolist() == [False, True]
            assert [info.get("recovered") for info in batch.infos()] == [None, "truncated"]
        pool.send(np.zeros(2, np.int64))
        assert not pool.recv().errors()
        counts = pool.statistics()
    assert (counts["restarts"], counts["truncated"], counts["replayed"]) == (3, 1, 0)
    (file,) = glob.glob(str(files / "*"))
    assert load_episode(file).env_id == 1


@pytest.mark.extended
def test_call_that_crashes_whenever_it_is_repeated_is_given_up(implementation: str, tmp_path: Any) -> None:
    path = tmp_path / "what"
    with recovering_pool([functools.partial(Fragile, str(path))], reproducer_dir=str(tmp_path)) as pool:
        play(pool, 2)
        pool.call(lambda env: env.unwrapped.touch())
        path.write_text("call")
        kill(pool, 0)
        pool.send(np.zeros(1, np.int64))
        assert [info["recovered"] for info in pool.recv().infos()] == ["unproven"]


@pytest.mark.extended
def test_next_episode_that_cannot_begin_raises(implementation: str, tmp_path: Any) -> None:
    path, files = tmp_path / "what", tmp_path / "files"
    files.mkdir()
    env_fns = [functools.partial(Fragile, str(path))] * 2
    with recovering_pool(env_fns, reproducer_dir=str(files)) as pool:
        play(pool, 2)
        path.write_text("any reset")
        kill(pool, 1)
        pool.send(np.zeros(2, np.int64))
        assert pool.recv().truncated.tolist() == [False, True]
        with pytest.raises(
            WorkerDiedError, match="step of env 1 .*second time in this call, its old episode abandoned"
        ):
            pool.send(np.zeros(2, np.int64))
            pool.recv()


class Neighbour(toys.CountEnv):
    """Envs of two threads: one exits in its third step each time; the other stays in its step until the third exit."""

    def __init__(self, path: str, exits: bool) -> None:
        super().__init__()
        self.path, self.exits = path, exits

    def step(self, action: Any) -> Any:
        if self.elapsed_steps == 2 and self.exits:
            wait_until(lambda: os.path.exists(f"{self.path}.begun"))
            with open(self.path, "a") as file:
                file.write("x")
            os._exit(3)
        if self.elapsed_steps == 2:
            Path(f"{self.path}.begun").touch()
            wait_until(lambda: Path(self.path).exists() and len(Path(self.path).read_text()) >= 3)
        return super().step(action)


@pytest.mark.extended
@pytest.mark.parametrize("on_repeat", ["truncate", "raise"])
def test_env_busy_in_another_thread_is_not_abandoned_with_the_crashed_one(
    on_repeat: str, implementation: str, tmp_path: Any
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    env_fns = [functools.partial(Neighbour, str(tmp_path / "exits"), exits) for exits in (False, True)]
    options = {"num_workers": 1, "threads_per_worker": 2, "on_repeat": on_repeat, "reproducer_dir": str(files)}
    with recovering_pool(env_fns, **options) as pool:
        play(pool, 2)
        pool.send(np.zeros(2, np.int64))
        if on_repeat == "raise":
            with pytest.raises(WorkerDiedError, match="died during step of env 1 .*third time in this call"):
                pool.recv()
        else:
            batch = pool.recv()
            assert batch.truncated.tolist() == [False, True] and batch.lengths.tolist() == [3, 3]
            assert [info.get("recovered") for info in batch.infos()] == ["replayed", "truncated"]
            counts = pool.statistics()
            assert (counts["restarts"], counts["workers_added"], counts["truncated"]) == (3, 1, 1)
    (file,) = glob.glob(str(files / "*"))
    assert load_episode(file).env_id == 1


class ExitsEverywhere(toys.CountEnv):
    """Exits once in each of its steps and leaves a file each time."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def step(self, action: Any) -> Any:
        path = os.path.join(self.folder, str(self.elapsed_steps))
        if not os.path.exists(path):
            open(path, "x").close()
            os._exit(3)
        return super().step(action)


@pytest.mark.extended
def test_too_many_failures_raise(implementation: str, tmp_path: Any) -> None:
    with recovering_pool([healthy, functools.partial(ExitsEverywhere, str(tmp_path))], max_restarts=3) as pool:
        with pytest.raises(WorkerDiedError, match=r"4 failures within 60 s with env 1 at work.*max_restarts=3"):
            play(pool, 9)
        assert pool.statistics()["restarts"] == 3


@pytest.mark.extended
def test_max_restarts_of_zero_raises(implementation: str) -> None:
    with recovering_pool([healthy] * 2, max_restarts=0) as pool, pytest.raises(WorkerDiedError, match="max_restarts=0"):
        play(pool, 3, before=kill_at(2))


@pytest.mark.extended
def test_on_failure_raise_replaces_no_worker(implementation: str) -> None:
    with recovering_pool([healthy] * 2, on_failure="raise") as pool:
        with pytest.raises(WorkerDiedError, match="SIGKILL") as caught:
            play(pool, 3, before=kill_at(2))
        assert "max_restarts" not in str(caught.value)
        assert pool.statistics()["restarts"] == 0


# ---- front ends ---------------------------------------------------------------------------------------


@pytest.mark.extended
def test_vector_env_marks_an_abandoned_episode(implementation: str, tmp_path: Any) -> None:
    env_fns = [healthy, segfaulting(), healthy]
    env = VectorEnv(env_fns, num_workers=2, failures={"reproducer_dir": str(tmp_path)})
    try:
        env.reset(seed=0)
        seen = []
        for _ in range(30):
            _, _, _, truncated, infos = env.step(np.zeros(3, np.int64))
            assert not truncated[[0, 2]].any()
            for env_id in range(3):
                if "recovered" in infos and infos["_recovered"][env_id]:
                    seen.append((env_id, infos["recovered"][env_id], bool(truncated[env_id])))
        assert (1, "truncated", True) in seen and (1, "restarted", False) in seen
        assert (0, "replayed", False) in seen and all(env_id != 2 for env_id, *_ in seen)
        assert env.statistics()["restarts"] == 2
    finally:
        env.close()


@pytest.mark.extended
@pytest.mark.parametrize("cls", [SyncSubprocessEnvManager, AsyncSubprocessEnvManager])
def test_managers_mark_an_abandoned_episode(cls: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    manager = cls([healthy, segfaulting(9, 0), healthy], {"num_workers": 2, "wait_num": 3})
    try:
        manager.seed(8, dynamic_seed=False)
        manager.launch()
        seen = []
        for _ in range(12):
            for env_id, timestep in manager.step(dict.fromkeys(manager.ready_obs, 0)).items():
                if "recovered" in timestep.info:
                    seen.append((env_id, timestep.info["recovered"], bool(timestep.done)))
        assert (1, "truncated", True) in seen, seen
        assert all(env_id != 2 for env_id, *_ in seen)
    finally:
        manager.close()


# ---- stacks ---------------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.usefixtures("patient_stacks")
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("segfault", r"SIGSEGV[\s\S]*Segmentation fault[\s\S]*in _fail_if_due"),
        ("abort", r"SIGABRT[\s\S]*in _fail_if_due"),
        ("hang", r"within 1\.0 s[\s\S]*in wait[\s\S]*in _fail_if_due"),
        ("hang in C", r"within 1\.0 s[\s\S]*in _fail_if_due"),
        ("stop", r"within 1\.0 s[\s\S]*stopped by a signal"),
    ],
)
def test_errors_show_what_the_worker_was_doing(fault: str, says: str, implementation: str) -> None:
    limits = Limits(step=1.0, close=0.3)
    env_fn = functools.partial(toys.FAULTS[fault], 2)
    pool = recovering_pool([healthy, env_fn], on_failure="raise", limits=limits)
    with pool, pytest.raises((WorkerDiedError, WorkerTimeoutError), match=says):
        play(pool, 3)


@pytest.mark.extended
@pytest.mark.usefixtures("patient_stacks")
def test_reproducer_of_a_recovered_hang_contains_the_stack(implementation: str, tmp_path: Any) -> None:
    limits = Limits(step=1.0, close=0.3)
    with recovering_pool(
        [healthy, functools.partial(toys.Hangs, 3)], limits=limits, reproducer_dir=str(tmp_path)
    ) as pool:
        play(pool, 4)
    (path,) = glob.glob(str(tmp_path / "*"))
    assert "in _fail_if_due" in load_episode(path).why


def test_frozen_values_differ_by_dtype() -> None:
    assert frozen(np.float32(0)) != frozen(np.float64(0)) and frozen({"a": (1,)}) == frozen({"a": (1,)})
