"""BatchedVectorEnv when workers die or hang: batches are restored, or their episodes are truncated and marked."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.error import AlreadyPendingCallError
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import NormalizeObservation, RecordEpisodeStatistics

from tests.faults.traces import stopped
from tests.vector.comparison import assert_same
from vecenv import BatchedVectorEnv, WorkerDiedError, WorkerTimeoutError
from vecenv.core.recovery.reproducer import load
from vecenv.envs.toys import CountEnv, HangAtStep, SegfaultAtStep, ToyEnv
from vecenv.vector import batched as batched_module

NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
MODES = [pytest.param(mode, id=mode.value) for mode in (NEXT, SAME, DISABLED)]

EnvFn = Callable[[], Any]


def cart_poles() -> Any:
    return CartPoleVectorEnv(8, max_episode_steps=20)


def wrapped() -> Any:
    return RecordEpisodeStatistics(NormalizeObservation(cart_poles()))


def toys(mode: AutoresetMode) -> EnvFn:
    return functools.partial(SyncVectorEnv, [functools.partial(ToyEnv, n) for n in (5, 6, 7)], autoreset_mode=mode)


class SumEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Adds up its actions and never ends. `get_state` carries the sum; a reset does not change it."""

    def __init__(self, num_envs: int = 3) -> None:
        self.num_envs = num_envs
        self.single_observation_space = gymnasium.spaces.Box(0, np.inf, (), np.int64)
        self.single_action_space = gymnasium.spaces.Discrete(5)
        self.observation_space = gymnasium.spaces.Box(0, np.inf, (num_envs,), np.int64)
        self.action_space = gymnasium.spaces.MultiDiscrete([5] * num_envs)
        self.sum = np.zeros(num_envs, np.int64)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.sum.copy(), {}

    def step(self, actions: Any) -> Any:
        self.sum += actions
        no = np.zeros(self.num_envs, np.bool_)
        return self.sum.copy(), np.asarray(actions, np.float64), no, no, {}

    def get_state(self) -> Any:
        return self.sum

    def set_state(self, state: Any) -> None:
        self.sum = state


class MaskedSumEnv(SumEnv):
    """Sets the sums of the envs in the reset mask to 0."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.sum[(options or {}).get("reset_mask", slice(None))] = 0
        return super().reset()


@contextlib.contextmanager
def opened(env_fns: Sequence[EnvFn], **kwargs: Any) -> Iterator[BatchedVectorEnv]:
    with contextlib.closing(BatchedVectorEnv(env_fns, **kwargs)) as envs:
        yield envs


def kill(envs: BatchedVectorEnv, worker_id: int) -> None:
    os.kill(envs.worker_pids[worker_id], signal.SIGKILL)


def play(
    envs: BatchedVectorEnv,
    num_steps: int,
    deaths: dict[int, int],
    *,
    seed: Any = 5,
    reseed: dict[int, Any] | None = None,
) -> tuple[list[Any], list[str]]:
    """Step, kill a worker before the steps in `deaths`, and reset ended envs if the mode does not.

    Returns:
        All results without the `recovered` infos; the `recovered` marks of each step that has any, joined.
    """
    results, marks = [], []
    actions = np.random.default_rng(0)
    obs, infos = envs.reset(seed=seed)
    results.append((obs.copy(), infos))
    for i in range(num_steps):
        if i in deaths:
            kill(envs, deaths[i])
        if reseed and i in reseed:
            results.append(envs.reset(**reseed[i]))
        obs, *rest, infos = envs.step(actions.integers(envs.single_action_space.n, size=envs.num_envs))
        infos.get("episode", {}).pop("t", None)
        mark = infos.pop("recovered", None)
        infos.pop("_recovered", None)
        if mark is not None:
            marks.append("".join(sorted(set(filter(None, mark)))))
        results.append((obs.copy(), *(array.copy() for array in rest), infos))
        ended = rest[1] | rest[2]
        if envs.metadata.get("autoreset_mode") == DISABLED and ended.any():
            obs, infos = envs.reset(options={"reset_mask": ended})
            results.append((obs.copy(), infos))
    return results, marks


def assert_lossless(env_fns: Sequence[EnvFn], num_steps: int, deaths: dict[int, int], **how: Any) -> dict[str, Any]:
    played = {key: how.pop(key) for key in ("seed", "reseed") if key in how}
    with opened(env_fns, **how) as envs:
        expected, _ = play(envs, num_steps, {}, **played)
    with opened(env_fns, **how) as envs:
        got, marks = play(envs, num_steps, deaths, **played)
        counts = envs.statistics()
    assert_same(got, expected)
    assert counts["restarts"] == len(deaths) and counts["truncated"] == 0
    assert marks == ["replayed"] * len(deaths)
    return counts


@pytest.mark.extended
@pytest.mark.parametrize("copy", [True, False], ids=["copy", "views"])
@pytest.mark.parametrize("mode", MODES)
def test_crash_recovery_is_exact(mode: AutoresetMode, copy: bool) -> None:
    assert_lossless([toys(mode)] * 2, 40, {0: 1, 9: 0, 23: 1, 39: 0}, copy=copy)


@pytest.mark.extended
@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_crash_recovery_of_vectorised_envs_is_exact(context: str) -> None:
    counts = assert_lossless([cart_poles] * 3, 60, {10: 0, 50: 1}, num_workers=2, context=context)
    assert counts["steps_replayed"] >= 10


@pytest.mark.extended
def test_wrappers_of_vector_envs_are_restored() -> None:
    """The second seeded reset is not a restore point, because the running mean continues over it."""
    assert_lossless([wrapped] * 2, 60, {10: 0, 50: 1}, reseed={30: {"seed": 8}})


@pytest.mark.extended
@pytest.mark.parametrize(
    "reseed",
    [
        {"seed": [4, 3, 2, 1, 0, 9]},
        {"seed": [4, None, 2, 1, 0, None]},
        {"seed": 7, "options": {"reset_mask": np.array([True, False, True, False, False, False])}},
        {"seed": 7, "options": {"reset_mask": np.array([True] * 3 + [False] * 3)}},
        {},
    ],
    ids=["list", "some", "mask", "mask of a batch", "none"],
)
def test_partial_resets_are_replayed(reseed: dict[str, Any]) -> None:
    assert_lossless([toys(DISABLED)] * 2, 30, {12: 0, 25: 1}, reseed={10: reseed}, seed=[1, 2, 3, 4, 5, 6])


@pytest.mark.extended
@pytest.mark.parametrize("seed", [None, [None] * 6, [1, None, 3, None, None, None]], ids=["none", "nones", "some"])
def test_first_reset_without_seeds_can_be_replayed(seed: Any) -> None:
    with opened([toys(NEXT)] * 2, num_workers=2) as envs:
        _, marks = play(envs, 5, {2: 0, 4: 1}, seed=seed)
    assert marks == ["replayed"] * 2


@pytest.fixture
def keeps_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched_module, "_SNAPSHOT_INTERVAL", 10)


@pytest.mark.extended
@pytest.mark.usefixtures("keeps_often")
@pytest.mark.parametrize("env_fn", [cart_poles, wrapped, SumEnv], ids=lambda fn: fn.__name__)
def test_steps_before_a_snapshot_are_not_replayed(env_fn: EnvFn) -> None:
    """The run has one seeded reset and far more steps than fit into the log."""
    failures = {"max_log_bytes": 40_000}
    counts = assert_lossless([env_fn] * 2, 600, {500: 0, 550: 1, 551: 1, 590: 0}, failures=failures)
    assert counts["steps_replayed"] < 500 + 550 + 551 + 590


@pytest.mark.extended
def test_crashes_right_after_a_snapshot_are_recovered() -> None:
    """The replayed replies that are compared begin with the first one after the snapshot."""
    zeros = np.zeros(8, np.int64)
    with opened([cart_poles], failures={"max_log_bytes": 4000}) as envs, contextlib.closing(cart_poles()) as twin:
        envs.reset(seed=5), twin.reset(seed=5)
        for i in range(1, 46):
            if i in (20, 40):
                envs.pool.take_snapshots()  # the log is half full, so snapshots are taken at once
            with stopped([envs.worker_pids[0]] if i in (20, 21, 40) else []):
                envs.step_async(zeros)
                if i in (20, 21, 40):
                    kill(envs, 0)
            got = envs.step_wait()
            assert_same(got[0], twin.step(zeros)[0])
            assert ("recovered" in got[4]) == (i in (20, 21, 40))
        counts = envs.statistics()
    assert counts["replayed"] == 3 and counts["steps_replayed"] < 20


@pytest.mark.extended
@pytest.mark.usefixtures("keeps_often")
def test_incomplete_snapshots_are_not_kept() -> None:
    """A single env's state during an episode is unknown, so every step since the seeded reset is replayed."""
    counts = assert_lossless([toys(NEXT)] * 2, 120, {110: 0})
    assert counts["steps_replayed"] == 111  # the reset and 110 steps


LOST = {"failures": {"max_log_bytes": 2000}}


def lose(envs: BatchedVectorEnv, num_steps: int = 60) -> tuple[Any, Any]:
    """Step until the log is empty, then kill the first worker; return the last step before and the first after."""
    last = play(envs, num_steps, {})[0][-1]
    kill(envs, 0)
    return last, envs.step(np.zeros(envs.num_envs, np.int64))


@pytest.mark.extended
@pytest.mark.parametrize("copy", [True, False], ids=["copy", "views"])
def test_lost_batch_is_truncated_and_reset_in_the_next_step(copy: bool) -> None:
    with opened([toys(NEXT)] * 2, copy=copy, **LOST) as envs:
        last, (obs, rewards, terminations, truncations, infos) = lose(envs)
        np.testing.assert_array_equal(obs[:3], last[0][:3])
        np.testing.assert_array_equal(truncations[:3], True)
        assert not terminations[:3].any() and not rewards[:3].any()
        assert infos["recovered"].tolist()[:3] == ["truncated"] * 3
        assert infos["_recovered"].tolist() == [True] * 3 + [False] * 3
        obs, rewards, terminations, truncations, infos = envs.step(np.zeros(6, np.int64))
        assert not rewards[:3].any() and not truncations[:3].any()
        assert infos["recovered"].tolist()[:3] == ["restarted"] * 3
        lengths = envs.call("get_wrapper_attr", "elapsed_steps")
        assert lengths[:3] == (0, 0, 0) and max(lengths[3:]) > 0
        assert envs.statistics()["truncated"] == 1


@pytest.mark.extended
@pytest.mark.parametrize("copy", [True, False], ids=["copy", "views"])
@pytest.mark.parametrize("lengths", [(5, 5, 5), (5, 60, 60)], ids=["all", "some"])
def test_lost_batch_does_not_truncate_envs_that_had_ended(lengths: Sequence[int], copy: bool) -> None:
    env_fns = [functools.partial(ToyEnv, n) for n in lengths]
    lost = functools.partial(SyncVectorEnv, env_fns, autoreset_mode=NEXT)
    zeros = np.zeros(6, np.int64)
    with opened([lost, toys(NEXT)], copy=copy, failures={"max_log_bytes": 1}) as envs:
        envs.reset(seed=1)
        for _ in range(5):
            last, _, ended, *_ = (array.copy() for array in envs.step(zeros)[:4])
        assert ended[:3].tolist() == [n == 5 for n in lengths]
        kill(envs, 0)
        obs, rewards, terminations, truncations, infos = envs.step(zeros)
        assert not terminations[:3].any() and not rewards[:3].any()
        assert truncations[:3].tolist() == [n != 5 for n in lengths]
        if all(ended[:3]):
            assert infos["recovered"].tolist() == ["restarted"] * 3 + [None] * 3
        else:
            np.testing.assert_array_equal(obs[:3], last[:3])
            assert envs.step(zeros)[4]["recovered"].tolist() == ["restarted"] * 3 + [None] * 3
        assert envs.call("get_wrapper_attr", "elapsed_steps")[:3] == (0, 0, 0)
        assert envs.step(zeros)[1][:3].tolist() == [1, 1, 1]


@pytest.mark.extended
def test_lost_batch_resets_in_the_same_step_in_same_step_mode() -> None:
    with opened([toys(SAME)] * 2, **LOST) as envs:
        last, (obs, _, terminations, truncations, infos) = lose(envs)
        assert truncations[:3].all() and not terminations[:3].any()
        assert envs.call("get_wrapper_attr", "elapsed_steps")[:3] == (0, 0, 0)
        assert infos["_final_obs"].tolist()[:3] == [True] * 3
        for i in range(3):
            np.testing.assert_array_equal(infos["final_obs"][i], last[0][i])
        assert infos["final_info"]["recovered"].tolist()[:3] == ["truncated"] * 3
        assert infos["recovered"].tolist()[:3] == ["restarted"] * 3
        assert (obs[:3] != last[0][:3]).any(axis=-1).all(), "these are the first observations of new episodes"
        envs.step(np.zeros(6, np.int64))
        assert envs.call("get_wrapper_attr", "elapsed_steps")[:3] == (1, 1, 1)


class CannotRestart(ToyEnv):
    """Cannot begin an episode, with or without a seed, while the file exists."""

    def __init__(self, length: int, path: Any) -> None:
        super().__init__(length)
        self.path = path

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if self.path.exists():
            raise ValueError("no new start")
        return super().reset(seed=seed, options=options)


@pytest.mark.extended
def test_lost_batch_resets_in_the_next_step_if_the_same_step_is_impossible(tmp_path: Any) -> None:
    path = tmp_path / "there"
    env_fns = [functools.partial(CannotRestart, n, path) for n in (50, 60, 70)]
    with opened([functools.partial(SyncVectorEnv, env_fns, autoreset_mode=SAME)] * 2, **LOST) as envs:
        play(envs, 45, {})
        kill(envs, 0)
        path.touch()
        with pytest.raises(ValueError, match="no new start"):
            envs.step(np.zeros(6, np.int64))
        path.unlink()
        _, rewards, terminations, truncations, infos = envs.step(np.zeros(6, np.int64))
        assert not rewards[:3].any() and not terminations.any() and not truncations.any()
        assert infos["recovered"].tolist() == ["restarted"] * 3 + [None] * 3
        assert envs.call("get_wrapper_attr", "elapsed_steps") == (0, 0, 0, 47, 47, 47)
        envs.step(np.zeros(6, np.int64))
        assert envs.call("get_wrapper_attr", "elapsed_steps") == (1, 1, 1, 48, 48, 48)


@pytest.mark.extended
def test_lost_batch_waits_for_its_reset_in_disabled_mode() -> None:
    with opened([toys(DISABLED)] * 2, **LOST) as envs:
        _, (_, _, terminations, truncations, _) = lose(envs)
        assert truncations[:3].all()
        obs, _ = envs.reset(seed=3, options={"reset_mask": terminations | truncations})
        with contextlib.closing(toys(DISABLED)()) as twin:
            np.testing.assert_array_equal(obs[:3], twin.reset(seed=3)[0])
        assert envs.call("get_wrapper_attr", "elapsed_steps")[:3] == (0, 0, 0)


@pytest.mark.extended
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_reported", [True, False], ids=["after its end", "at once"])
def test_lost_batch_resets_all_envs_whatever_the_mask(mode: AutoresetMode, is_reported: bool) -> None:
    with opened([toys(mode)] * 2, **LOST) as envs:
        play(envs, 60, {})
        kill(envs, 0)
        if is_reported:
            envs.step(np.zeros(6, np.int64))
        mask = np.array([False, True, False] + [True] * 3)
        _, infos = envs.reset(options={"reset_mask": mask})
        if not (is_reported and mode == SAME):  # the step has reset all of them then
            assert infos["recovered"].tolist()[:3] == ["restarted"] * 3
            assert envs.call("get_wrapper_attr", "elapsed_steps") == (0,) * 6
        assert not envs.step(np.zeros(6, np.int64))[3].any()
        assert envs.call("get_wrapper_attr", "elapsed_steps")[:3] == (1, 1, 1)


@pytest.mark.usefixtures("keeps_often")
def test_batch_restored_from_a_snapshot_is_reset_in_part() -> None:
    with opened([MaskedSumEnv], failures={"max_log_bytes": 3000}) as envs:
        envs.reset(seed=1)
        for _ in range(200):  # more steps than the log holds, so the batch is restored from a snapshot
            envs.step(np.ones(3, np.int64))
        kill(envs, 0)
        obs, infos = envs.reset(options={"reset_mask": np.array([False, True, False])})
        assert obs.tolist() == [200, 0, 200] and infos["recovered"].tolist() == ["replayed"] * 3


@pytest.mark.usefixtures("keeps_often")
def test_step_is_refused_at_once_while_one_is_pending() -> None:
    """The same holds before a step that would take snapshots, for which the pool calls the workers."""
    with opened([SumEnv], failures={"max_restarts": 0}, timeouts={"step": 3.0}) as envs:
        envs.reset(seed=1)
        for _ in range(8):
            envs.step(np.ones(3, np.int64))
        with stopped(envs.worker_pids):
            envs.step_async(np.ones(3, np.int64))
            with pytest.raises(WorkerTimeoutError):
                envs.step_wait(timeout=0)
            with pytest.raises(AlreadyPendingCallError):
                envs.step(np.ones(3, np.int64))
        assert envs.reset(seed=1)[0].tolist() in ([8] * 3, [9] * 3)


@pytest.mark.extended
def test_crash_after_a_loss_replays_only_the_new_episode() -> None:
    with opened([cart_poles] * 2, failures={"max_log_bytes": 5000}) as envs:
        lose(envs)
        assert envs.statistics()["truncated"] == 1
        first = envs.step(np.zeros(16, np.int64))
        kill(envs, 0)
        second = envs.step(np.ones(16, np.int64))
        assert second[4]["recovered"].tolist() == ["replayed"] * 8 + [None] * 8
        assert not second[3].any() and np.abs(second[0][:8] - first[0][:8]).max() < 1


@pytest.mark.extended
def test_hang_is_recovered_like_a_crash() -> None:
    hangs = [functools.partial(SyncVectorEnv, [functools.partial(HangAtStep, at=3), functools.partial(CountEnv, 9)])]
    with opened(hangs, timeouts={"step": 1.0, "close": 0.3}) as envs:
        envs.reset(seed=1)
        for _ in range(2):
            envs.step(np.zeros(2, np.int64))
        *_, truncations, infos = envs.step(np.zeros(2, np.int64))  # it hangs again when it is replayed
        assert truncations.tolist() == [True, True] and infos["recovered"].tolist() == ["truncated"] * 2
        assert infos["_recovered"].tolist() == [True, True]
        obs, *_ = envs.step(np.zeros(2, np.int64))
        assert envs.statistics()["restarts"] == 2


@pytest.mark.extended
def test_repeated_crash_writes_a_reproducer(tmp_path: Any) -> None:
    crash = functools.partial(SyncVectorEnv, [functools.partial(SegfaultAtStep, at=3)] * 2)
    with opened([crash], failures={"on_repeat": "raise", "reproducer_dir": str(tmp_path)}) as envs:
        envs.reset(seed=1)
        for _ in range(2):
            envs.step(np.zeros(2, np.int64))
        with pytest.raises(WorkerDiedError, match="SIGSEGV") as caught:
            envs.step(np.ones(2, np.int64))
    assert caught.value.seed == 1
    assert [action.tolist() for action in caught.value.actions] == [[0, 0], [0, 0], [1, 1]]
    episode = load(caught.value.reproducer)
    kinds = [(event.op, event.obs[0].shape) for event in episode.run(until=episode.step_id)]
    assert [kind for kind, _ in kinds] == ["reset", "step", "step"]


@pytest.mark.extended
def test_on_failure_raise() -> None:
    with opened([cart_poles] * 2, failures="raise") as envs:
        envs.reset(seed=1)
        kill(envs, 1)
        with pytest.raises(WorkerDiedError, match="SIGKILL"):
            envs.step(np.zeros(16, np.int64))


@pytest.mark.extended
def test_attribute_set_by_the_caller_outlasts_the_next_reset() -> None:
    """The replay begins at that reset; without the recorded call the attribute would have its initial value."""
    env_fn = functools.partial(SyncVectorEnv, [functools.partial(ToyEnv, None)] * 2)
    with opened([env_fn, env_fn], num_workers=2) as envs:
        envs.reset(seed=5)
        envs.set_attr("length", [3, 4, 5, 6])
        envs.set_attr("length", [6, 5, 4, 3])
        envs.set_attr("truncate", True)
        envs.reset(seed=6)
        for worker_id in (0, 1):
            kill(envs, worker_id)
        assert envs.get_attr("length") == (6, 5, 4, 3)
        assert envs.get_attr("truncate") == (True,) * 4
