"""`save`, `state_dict`, `load_state_dict` and the config key `resume` of managers."""

from __future__ import annotations

import functools
import math
import multiprocessing
import os
import re
import signal
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from tests.managers.fakes import IN_PROCESS, WITH_WORKERS, ActorEnv
from vecenv import ClosedError, ConfigError, StateError, VectorEnv
from vecenv.ding import (
    AsyncSubprocessEnvManager,
    BaseEnvManager,
    BaseEnvManagerV2,
    EnvState,
    GymVectorEnvManager,
    SyncSubprocessEnvManager,
    create_env_manager,
)
from vecenv.envs.toys import ToyEnv
from vecenv.saved_state import SavedState

ENVS = [functools.partial(ToyEnv, 4), functools.partial(ToyEnv, 7), functools.partial(ToyEnv, 9)]
MANAGERS = [*IN_PROCESS, *WITH_WORKERS, GymVectorEnvManager]


class UnknownEnv(ToyEnv):
    """An env whose state is unknown, so that its steps are made again."""

    get_state = set_state = None  # type: ignore[assignment]


def plain(value: Any) -> str:
    return str(value if isinstance(value, dict) else [tree.json() for tree in value])


def play(manager: Any, num_steps: int) -> list[str]:
    """Return the results of steps of all ready envs with drawn actions."""
    results = []
    for number in range(num_steps):
        actions = manager.random_action()
        is_tree = isinstance(manager, BaseEnvManagerV2)
        results.append(plain(manager.step(list(actions.values()) if is_tree else actions)))
        if number % 6 == 5 and not isinstance(manager, GymVectorEnvManager):
            manager.reset({1: {}})
        obs = manager.ready_obs
        results.append(str(obs if isinstance(obs, dict) else obs.tolist()))
        results.append(str((manager.env_states, manager.env_episode_count)))
    return results


def launched(manager_cls: Any, env_fns: Any = ENVS, dynamic_seed: bool | None = None, **cfg: Any) -> Any:
    manager = manager_cls(env_fns, cfg)
    manager.seed(5, dynamic_seed)
    manager.launch()
    return manager


@pytest.mark.parametrize("others", [{}, {"max_retry": 2}, {"auto_reset": False}], ids=str)
@pytest.mark.parametrize("first", [BaseEnvManager, SyncSubprocessEnvManager])
@pytest.mark.parametrize("second", [BaseEnvManager, SyncSubprocessEnvManager])
def test_managers_continue_each_others_states(second: Any, first: Any, others: Any, tmp_path: Path) -> None:
    cfg = {"episode_num": 6, **others}
    with launched(first, num_workers=2, **cfg) as manager:
        play(manager, 3 if "auto_reset" in others else 13)
        manager.seed({0: 3}, False)  # waits for the next reset
        manager.save(tmp_path / "state")
        obs = str(manager.ready_obs)
        expected = play(manager, 15)
    with second(ENVS, {"num_workers": 3, **cfg, "resume": tmp_path / "state"}) as manager:
        manager.seed(9)
        manager.launch()
        assert str(manager.ready_obs) == obs
        assert play(manager, 15) == expected
        manager.close()
        manager.launch()  # without the state
        assert set(manager.env_episode_count.values()) == {0}


@pytest.mark.parametrize("manager_cls", WITH_WORKERS)
def test_spare_envs_of_managers_are_saved(manager_cls: Any, tmp_path: Path) -> None:
    cfg = {"num_spare_envs": 3, "episode_num": 6}
    if issubclass(manager_cls, AsyncSubprocessEnvManager):
        cfg["wait_num"] = 3  # timing decides nothing
    with launched(manager_cls, **cfg) as manager:
        play(manager, 9)
        manager.save(tmp_path / "state")
        expected = play(manager, 15)
    with manager_cls(ENVS, {**cfg, "num_workers": 2, "resume": tmp_path / "state"}) as manager:
        manager.launch()
        os.kill(manager.worker_pids[0], signal.SIGKILL)
        assert [re.sub(r"(, )?'recovered': 'replayed'", "", one) for one in play(manager, 15)] == expected


@pytest.mark.parametrize("manager_cls", [*IN_PROCESS, *WITH_WORKERS[::2], GymVectorEnvManager])
def test_manager_goes_back_to_a_state(manager_cls: Any) -> None:
    with launched(manager_cls, num_workers=2) as manager:
        space = manager.action_space
        play(manager, 11)
        state = manager.state_dict()
        expected = play(manager, 12)
        for _ in range(2):
            manager.load_state_dict(state)
            assert manager.action_space is space and play(manager, 12) == expected
    if manager_cls is not GymVectorEnvManager:
        with manager_cls(ENVS) as other:  # launches it
            other.load_state_dict(state)
            assert play(other, 12) == expected


@pytest.mark.parametrize("dynamic_seed", [True, False])
def test_repeated_steps_and_killed_workers_change_nothing(dynamic_seed: bool, tmp_path: Path) -> None:
    env_fns = [functools.partial(UnknownEnv, 5), functools.partial(UnknownEnv, 8)]
    with launched(SyncSubprocessEnvManager, env_fns, dynamic_seed=dynamic_seed, num_workers=1) as manager:
        play(manager, 9)
        manager.save(tmp_path / "state")
        expected = play(manager, 4), play(manager, 16)
    for kills_at in range(2):
        with SyncSubprocessEnvManager(env_fns, {"num_workers": 2, "resume": str(tmp_path / "state")}) as manager:
            manager.launch()
            for part, results in enumerate(expected):
                if part == kills_at:
                    os.kill(manager.worker_pids[1], signal.SIGKILL)
                found = play(manager, len(results) // 3)
                assert [re.sub(r"(, )?'recovered': 'replayed'", "", one) for one in found] == results


@pytest.mark.parametrize("is_loaded", [False, True])
def test_outstanding_steps_and_resets_of_the_asynchronous_manager_are_made_again(
    is_loaded: bool, tmp_path: Path
) -> None:
    def finish(manager: Any) -> Any:
        answers: dict[int, list[str]] = {0: [], 1: [], 2: []}
        while any(len(one) < 9 for one in answers.values()):
            ready = [env_id for env_id in manager.ready_obs if len(answers[env_id]) < 9]
            for env_id, timestep in manager.step(dict.fromkeys(ready, 1)).items():
                answers[env_id].append(str(timestep))
        return answers

    cfg = {"num_workers": 3, "wait_num": 1, "step_wait_timeout": 1e-6}
    with launched(AsyncSubprocessEnvManager, **cfg) as manager:
        while not manager.active_env or EnvState.RESET not in manager.env_states.values():
            received = manager.step(dict.fromkeys(manager.ready_obs_id, 0))
        active, states = manager.active_env, manager.env_states
        assert not set(received) & set(active)
        manager.save(tmp_path / "state")
        expected = finish(manager)
        if is_loaded:
            manager.load_state_dict(SavedState.read(tmp_path / "state").as_dict())
            assert finish(manager) == expected
    with AsyncSubprocessEnvManager(ENVS, {**cfg, "num_workers": 1, "resume": tmp_path / "state"}) as manager:
        manager.launch()
        assert (manager.active_env, manager.env_states) == (active, states)
        assert finish(manager) == expected


@pytest.mark.parametrize(("before", "after"), [(2, 9), (9, 2), (2, math.inf)])
def test_number_of_episodes_may_differ(before: float, after: float) -> None:
    """Workers would make autoresets by the old number."""

    def results(num_steps: int, *numbers: float) -> list[Any]:
        found, state = [], None
        for number in numbers:
            with SyncSubprocessEnvManager(ENVS[:1], {"episode_num": number}) as manager:
                manager.seed(0)
                if state is None:
                    manager.launch()
                else:
                    manager.load_state_dict(state)
                while len(found) < num_steps and not manager.done:
                    found.append(str(manager.step({0: 1})))
                state = manager.state_dict()
            num_steps = 16
        return found

    expected = results(16, after)
    assert results(2, before, after) == expected and len(expected) == (8 if after == 2 else 16)


def test_reset_parameters_and_static_seeds_are_kept(tmp_path: Path) -> None:
    def results(manager: Any) -> list[Any]:
        found = [str(manager.step({0: 0, 1: 0})) for _ in range(8)]
        manager.reset()
        return [*found, str(manager.ready_obs)]

    env_fns = [functools.partial(ActorEnv, {"number": number}) for number in range(2)]
    with SyncSubprocessEnvManager(env_fns, {"num_workers": 1}) as manager:
        manager.seed(3, False)
        manager.launch({0: {"stat": None}, 1: {}})
        manager.step({0: 0, 1: 1})
        manager.seed([7, 8], True)
        manager.save(tmp_path / "state")
        expected, seeds = results(manager), manager.last_seed
    with SyncSubprocessEnvManager(env_fns, {"resume": tmp_path / "state"}) as manager:
        manager.launch()
        assert results(manager) == expected and manager.last_seed == seeds == [7, 8]


def test_created_manager_takes_the_key_resume() -> None:
    cfg = {"type": "subprocess", "num_workers": 1}
    with create_env_manager(cfg, ENVS) as manager:
        manager.seed(0)
        manager.launch()
        state = manager.state_dict()
        expected = play(manager, 5)
    with create_env_manager({**cfg, "resume": state}, ENVS) as manager:
        manager.launch()
        assert play(manager, 5) == expected


@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_state_that_does_not_fit_is_refused(manager_cls: Any, tmp_path: Path) -> None:
    with launched(manager_cls, num_workers=1) as manager:
        state = manager.state_dict()
        with VectorEnv(ENVS, backend="serial") as envs:
            envs.reset()
            envs.save(tmp_path / "other")
        kind = {GymVectorEnvManager: "GymVectorEnvManager", AsyncSubprocessEnvManager: "AsyncSubprocessEnvManager"}
        expected = f"it was saved by VectorEnv, and this is {kind.get(manager_cls, 'BaseEnvManager')}"
        with pytest.raises(ConfigError, match=expected):
            manager.load_state_dict(SavedState.read(tmp_path / "other").as_dict())
        with pytest.raises(ConfigError, match="damaged"):
            manager.load_state_dict({**state, "data": state["data"][:-1]})
        with pytest.raises(ConfigError, match="expected a file or the result of state_dict"):
            manager.load_state_dict(3)
        assert not manager.closed and manager.step(dict.fromkeys(manager.ready_obs_id, 0))  # nothing has changed
    others = [gymnasium.make, "CartPole-v1"]
    for env_fns, text in (
        (ENVS[:2], "it contains 3 envs, and there are 2 env_fns"),
        ([functools.partial(*others)] * 3, "it was saved with the observation_space"),
    ):
        manager = manager_cls(env_fns, {"num_workers": 1, "resume": state})
        with pytest.raises(ConfigError, match=text):
            manager.launch()
        assert manager.closed
        manager.close()
    with pytest.raises(ConfigError, match="and this is VectorEnv"):
        VectorEnv(ENVS, resume=state)


def test_states_of_synchronous_and_asynchronous_managers_differ() -> None:
    with launched(SyncSubprocessEnvManager, num_workers=1) as manager:
        state = manager.state_dict()
    with AsyncSubprocessEnvManager(ENVS, {"resume": state}) as manager:
        with pytest.raises(ConfigError, match="saved by BaseEnvManager, and this is AsyncSubprocessEnvManager"):
            manager.launch()
        assert manager.closed


@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_wrong_moments_of_a_save_are_errors(manager_cls: Any, tmp_path: Path) -> None:
    manager = manager_cls(ENVS, {"num_workers": 1})
    for _ in range(2):
        with pytest.raises(ClosedError, match="save: .*closed"):
            manager.save(tmp_path / "state")
        with pytest.raises(ClosedError, match="state_dict: .*closed"):
            manager.state_dict()
        if manager_cls is not GymVectorEnvManager:
            manager.launch()
        manager.close()


def save_in_a_child(manager: Any, sender: Any) -> None:
    try:
        manager.state_dict()
    except Exception as error:
        sender.send((type(error), str(error)))


def test_forked_process_cannot_save() -> None:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    with launched(SyncSubprocessEnvManager, num_workers=1) as manager:
        child = multiprocessing.get_context("fork").Process(target=save_in_a_child, args=(manager, sender))
        child.start()
        kind, text = receiver.recv()
        child.join()
        manager.state_dict()
    assert issubclass(kind, StateError) and "process" in text


def test_reasons_without_a_state_are_named() -> None:
    with launched(BaseEnvManager, [UnknownEnv]) as manager, pytest.raises(StateError, match="env 0: .*is not known"):
        manager.state_dict()
    with (
        launched(SyncSubprocessEnvManager, [UnknownEnv], num_workers=1, on_failure="raise") as manager,
        pytest.raises(StateError, match="env 0: .*is not known"),
    ):
        manager.state_dict()
    with GymVectorEnvManager(gymnasium.make_vec("CartPole-v1", 2, "sync")) as manager:
        manager.reset()
        with pytest.raises(StateError, match="only vector envs of vecenv have a state"):
            manager.state_dict()


def test_vector_env_that_was_passed_in_is_saved(tmp_path: Path) -> None:
    for mode in ("NextStep", "SameStep", "Disabled"):
        with GymVectorEnvManager(VectorEnv(ENVS, autoreset_mode=mode, backend="serial"), {"episode_num": 4}) as manager:
            manager.seed(1)
            manager.launch()
            play(manager, 8)
            manager.save(tmp_path / "state")
            expected = play(manager, 12)
        vector_env = VectorEnv(ENVS, autoreset_mode=mode, num_workers=1)
        with GymVectorEnvManager(vector_env, {"episode_num": 4, "resume": tmp_path / "state"}) as manager:
            manager.launch()
            assert play(manager, 12) == expected


def test_manager_with_other_retries_is_saved_again(tmp_path: Path) -> None:
    """The workers' resets become commands of their own, in the pool of the first manager."""
    path, cfg = tmp_path / "state", {"retry_waiting_time": 0}
    with launched(BaseEnvManager, **cfg) as manager:
        play(manager, 6)
        manager.save(path)
        expected = play(manager, 6), play(manager, 12)
    for max_retry, results in zip((2, 1), expected):
        with BaseEnvManager(ENVS, {**cfg, "max_retry": max_retry, "resume": path}) as manager:
            manager.launch()
            assert play(manager, len(results) // 3) == results
            manager.save(path)
