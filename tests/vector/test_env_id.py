"""Resets, receives, calls and attributes of some envs of a VectorEnv, by `env_id`."""

from __future__ import annotations

import functools
import signal
import sys
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.faults.traces import kill
from vecenv import BatchedVectorEnv, ConfigError, StateError, VectorEnv, WrongTypeError
from vecenv.core.operations.waiter import Waiter
from vecenv.envs import toys

NUM_ENVS = 5
MODES = list(AutoresetMode)
COUNTERS = [functools.partial(toys.CountEnv, 3 + env_id) for env_id in range(NUM_ENVS)]


class ShowsSteps(toys.ToyEnv):
    """Shows the number of steps of its episode in its info and when it is rendered."""

    def make_info(self) -> dict[str, Any]:
        return {"steps": self.elapsed_steps}

    def render(self) -> Any:
        return self.elapsed_steps


def make(backend: str, **options: Any) -> VectorEnv:
    if backend == "process":
        options.setdefault("num_workers", 2)
    return VectorEnv(COUNTERS, backend=backend, **options)


def seeds_of(result: Any) -> list[int]:
    return result[0][:, 2].astype(int).tolist()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("copy", [True, False])
def test_loop_over_two_groups_equals_gymnasium(backend: str, copy: bool, mode: AutoresetMode) -> None:
    """Each group is received by its ids while the other is under way."""
    groups = [[3, 0], [1, 4, 2]]
    plain = SyncVectorEnv(COUNTERS, autoreset_mode=mode)
    with make(backend, autoreset_mode=mode, copy=copy) as envs:
        first, _ = envs.reset(seed=9)
        np.testing.assert_array_equal(first, plain.reset(seed=9)[0])
        for group in groups:
            envs.send(np.zeros(len(group), np.int64), group)
        for _ in range(12):
            obs, rewards, terminations, truncations, infos = plain.step(np.zeros(NUM_ENVS, np.int64))
            ended = terminations | truncations
            new = obs
            if mode == AutoresetMode.DISABLED and ended.any():
                new, _ = plain.reset(options={"reset_mask": ended})
            for group in groups:
                found = envs.recv(env_id=group)
                assert found[4]["env_id"].tolist() == group
                np.testing.assert_array_equal(found[0], obs[group])
                for ours, theirs in zip(found[1:4], (rewards, terminations, truncations)):
                    np.testing.assert_array_equal(ours, theirs[group])
                np.testing.assert_array_equal(found[4]["steps"], infos["steps"][group])
                over = [env_id for env_id in group if ended[env_id]]
                if mode == AutoresetMode.DISABLED and over:
                    again, _ = envs.reset(env_id=over)  # the other group is under way
                    np.testing.assert_array_equal(again, new[over])
                envs.send(np.zeros(len(group), np.int64), group)


@pytest.mark.parametrize("infos", ["all", "columns", "done", "none"])
def test_infos_of_given_envs_arrive_as_the_mode_says(infos: str, backend: str) -> None:
    env_fns = [functools.partial(ShowsSteps, 3 + env_id) for env_id in range(NUM_ENVS)]
    with VectorEnv(env_fns, backend=backend, infos=infos, episode_statistics=True) as envs:
        envs.reset(seed=0)
        for step in range(1, 4):
            envs.send(np.zeros(NUM_ENVS, np.int64))
            found = envs.recv(env_id=[4, 0])[4]
            has_steps = {"all": True, "columns": True, "done": step == 3, "none": False}[infos]
            assert ("steps" in found) == has_steps
            assert envs.recv()[4]["env_id"].shape == (3,)
        assert found["episode"]["l"].tolist() == [0, 3] and found["_episode"].tolist() == [False, True]


@pytest.mark.extended
def test_large_rows_of_given_envs_are_lent(implementation: str) -> None:
    with VectorEnv([toys.FrameEnv] * 4, num_workers=2) as envs:
        envs.reset(seed=0)
        kept = []
        for _ in range(8):
            envs.send(np.zeros(4, np.int64))
            kept.append(envs.recv(env_id=[2, 1])[0])
            kept.append(envs.recv()[0])
        copies = [obs.copy() for obs in kept]
        for _ in range(8):
            envs.send(np.zeros(4, np.int64))
            envs.recv(env_id=[0, 3])
            envs.recv()
        for obs, copy in zip(kept, copies):
            np.testing.assert_array_equal(obs, copy)


def test_reset_of_given_envs_returns_their_rows_in_order(backend: str) -> None:
    with make(backend) as envs:
        envs.reset(seed=100)
        envs.send(np.zeros(NUM_ENVS, np.int64))
        obs, infos = envs.reset([3, 0], seed=20)  # EnvPool's first positional argument
        assert obs[:, 2].tolist() == [23.0, 20.0] and infos["env_id"].tolist() == [3, 0]
        assert envs.seeds == (20, 101, 102, 23, 104)
        assert sorted(envs.recv()[4]["env_id"].tolist()) == [1, 2, 4], "the steps of others stay"
        obs, infos = envs.reset(env_id=2, seed=[None, None, 5, None, None])
        assert obs[:, 2].tolist() == [5.0] and infos["env_id"].tolist() == [2]
        envs.reset_async(env_ids=[4, 1])
        assert envs.reset_wait()[1]["env_id"].tolist() == [4, 1]


def test_options_of_resets_are_one_dict_or_a_list(backend: str) -> None:
    with VectorEnv([toys.KeepsOptions] * 3, backend=backend) as envs:
        for env_id, options, expected in (
            (None, {"a": 1}, [{"a": 1}] * 3),
            (None, [{"a": 1}, None, {"b": 2}], [{"a": 1}, None, {"b": 2}]),
            ([2, 0], [{"c": 3}, {"d": 4}], [{"d": 4}, None, {"c": 3}]),
            ([1], {"e": 5}, [{"d": 4}, {"e": 5}, {"c": 3}]),
        ):
            envs.reset(env_id=env_id, options=options)
            assert [kept[-1] for kept in envs.get_attr("kept")] == expected
        envs.async_reset([0, 1], options=[{"f": 6}, None])
        envs.recv()
        assert [kept[-1] for kept in envs.get_attr("kept")] == [{"f": 6}, None, {"c": 3}]


def test_attributes_and_calls_of_given_envs(backend: str) -> None:
    with VectorEnv([ShowsSteps] * NUM_ENVS, backend=backend) as envs:
        assert len(envs) == NUM_ENVS
        envs.set_attr("note", 0)
        envs.set_attr("note", [7, 8], env_id=[4, 1])
        envs.set_attr("note", 9, env_id=2)
        assert envs.get_attr("note") == (0, 8, 9, 0, 7)
        assert envs.get_attr("note", env_id=[1, 4]) == (8, 7)
        assert envs.call("note", env_id=4) == (7,)
        envs.call_async("note", env_id=[2, 0])
        assert envs.call_wait() == (9, 0)
        envs.reset(seed=0)
        envs.step([0, 0], env_id=[3, 1])
        assert envs.render(env_id=[3, 0]) == (1, 0)
        with pytest.raises(ConfigError, match="set_attr: expected 2 values, one per env, got 5"):
            envs.set_attr("note", [0] * NUM_ENVS, env_id=[1, 2])
        with pytest.raises(ConfigError, match=r"get_attr: env_id 5 is not in 0\.\.4"):
            envs.get_attr("note", env_id=5)


def test_wrong_ids_and_counts_are_refused(backend: str) -> None:
    with make(backend) as envs:
        envs.reset(seed=0)
        envs.send(np.zeros(2, np.int64), env_ids=[0, 1])
        for flag in (True, False, np.True_):
            with pytest.raises(WrongTypeError, match="min_count: expected a whole number or None, got"):
                envs.recv(flag)
        with pytest.raises(ConfigError, match="recv: env_id excludes min_count"):
            envs.recv(1, env_id=[0])
        with pytest.raises(StateError, match=r"recv: the envs \[3\] owe no answer"):
            envs.recv(env_id=[0, 3])
        calls: list[Any] = [envs.recv, envs.reset, envs.async_reset, envs.reset_async]
        calls += [functools.partial(call, np.zeros(1, np.int64)) for call in (envs.send, envs.step)]
        for call in calls:
            with pytest.raises(ConfigError, match="env_id and env_ids are two names of one argument; give one"):
                call(env_id=[2], env_ids=[2])
        for reset in (envs.reset, envs.async_reset):
            with pytest.raises(ConfigError, match=r"env_id: an env is named twice in \[2, 2\]"):
                reset([2, 2])
            with pytest.raises(ConfigError, match="options: expected a dict, or a list of 2, got 1 items"):
                reset([2, 3], options=[{}])
            with pytest.raises(ConfigError, match="options: expected a dict, got 'a'"):
                reset([2], options=["a"])
        with pytest.raises(ConfigError, match="reset: env_id and reset_mask both select envs"):
            envs.reset([2], options={"reset_mask": np.ones(NUM_ENVS, np.bool_)})
        assert sorted(envs.recv()[4]["env_id"].tolist()) == [0, 1], "nothing was lost"


@pytest.mark.extended
def test_worker_killed_during_a_receive_of_given_envs_loses_nothing(implementation: str) -> None:
    with make("process") as envs, make("serial") as quiet:
        for each in (envs, quiet):
            each.reset(seed=0)
        for number in range(7):
            found = []
            for each in (envs, quiet):
                each.send(np.zeros(NUM_ENVS, np.int64))
                if each is envs and number < 6:  # a death after the last answer is noticed in the next round
                    kill(envs.pool, number % 2)  # type: ignore[arg-type]
                one = each.recv(env_id=[4, 0])
                rest = each.recv()
                order = np.argsort(rest[4]["env_id"])
                found.append([*(part.tolist() for part in one[:4]), *(part[order].tolist() for part in rest[:4])])
            assert found[0] == found[1]
        assert envs.statistics()["restarts"] == 6


def test_ctrl_c_between_a_reset_of_given_envs_and_its_rows_loses_nothing(backend: str) -> None:
    def interrupt(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is Waiter.recv_envs.__code__:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    with make(backend) as envs:
        envs.reset(seed=0)
        envs.send(np.zeros(3, np.int64), [2, 3, 4])
        with pytest.raises(KeyboardInterrupt):
            sys.setprofile(interrupt)
            envs.reset([1, 0], seed=50)
        sys.setprofile(None)
        assert seeds_of(envs.recv(env_id=[0, 1])) == [50, 51]
        assert sorted(seeds_of(envs.recv())) == [2, 3, 4]
        with pytest.raises(KeyboardInterrupt):
            sys.setprofile(interrupt)
            envs.reset([1, 0], seed=60)
        sys.setprofile(None)
        assert seeds_of(envs.reset([1], seed=70)) == [71], "a new reset replaces the one that was not received"
        assert seeds_of(envs.recv()) == [60]


@pytest.mark.parametrize("copy", [True, False])
def test_batched_reset_of_given_envs_equals_that_of_single_envs(backend: str, copy: bool) -> None:
    mode = AutoresetMode.DISABLED
    env_fns = [functools.partial(SyncVectorEnv, COUNTERS[i : i + 2], autoreset_mode=mode) for i in (0, 2)]
    with (
        BatchedVectorEnv(env_fns, backend=backend, copy=copy) as envs,
        VectorEnv(COUNTERS[:4], backend="serial", autoreset_mode=mode) as single,
    ):
        for each in (envs, single):
            each.reset(seed=3)
            each.step(np.zeros(4, np.int64))
        for env_id in ([3, 0], 2, [1, 0]):
            obs, infos = envs.reset(env_id, seed=30)
            expected, expected_infos = single.reset(env_id, seed=30)
            np.testing.assert_array_equal(obs, expected)
            assert infos.keys() == expected_infos.keys()
            for key, value in expected_infos.items():
                np.testing.assert_array_equal(infos[key], value)
            one, other = (each.step(np.zeros(4, np.int64))[0] for each in (envs, single))
            np.testing.assert_array_equal(one, other)
        assert len(envs) == 4
        with pytest.raises(ConfigError, match="reset: env_id and reset_mask both select envs"):
            envs.reset([2], options={"reset_mask": np.ones(4, np.bool_)})
