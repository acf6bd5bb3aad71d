"""`VectorEnv.get_states` and `set_states`: an env continues the episode of another env."""

from __future__ import annotations

import copy
import functools
import os
import pickle
import random
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, ResetNeeded

import vecenv
from tests.collection.sharded import ShardedVectorEnv
from vecenv import ConfigError, StateError, VectorEnv, WrongTypeError
from vecenv.envs.board import Connect4Env, GomokuEnv, TicTacToeEnv
from vecenv.envs.toys import ToyEnv

MODES = ["NextStep", "SameStep", "Disabled"]
ENGINES = {
    "process": {"num_workers": 2},
    "threads": {"num_workers": 1, "threads_per_worker": 2},
    "raise": {"num_workers": 2, "failures": "raise"},
    "serial": {"backend": "serial"},
    "shards": {"num_shards": 2},
}
KILLED = {"num_workers": 2, "failures": {"max_restarts": 1000}}
SHARDS_KILLED = {"num_shards": 2, "failures": {"max_restarts": 1000}}


def open_envs(env_fns: Any, **options: Any) -> VectorEnv:
    """Open a vector env, over shards in child processes if their number is given."""
    return (ShardedVectorEnv if "num_shards" in options else VectorEnv)(env_fns, **options)


def kill(envs: VectorEnv, kills_shards: bool = False) -> None:
    """Kill all workers, or all shards."""
    pids = list(envs.worker_pids)
    if isinstance(envs, ShardedVectorEnv):
        pids = [envs.carrier.pid_of(shard) for shard in range(len(envs.shards()))]
        if not kills_shards:
            pids = [child.pid for pid in pids for child in psutil.Process(pid).children()]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def cartpole() -> Any:
    return gymnasium.make("CartPole-v1", max_episode_steps=15)


class DrawingEnv(ToyEnv):
    """Its observations and infos contain numbers of all generators, and parts of its state share objects."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, info = super().reset(seed=seed, options=options)
        self.drawn = [np.zeros(2), np.zeros(2)]
        self.again = self.drawn
        return obs, info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        self.drawn[int(action)] = self.np_random.random(2)
        numbers = [random.random(), float(np.random.random()), *self.again[0]]
        return obs, reward + sum(numbers), terminated, truncated, {"numbers": np.array(numbers), "text": str(numbers)}


vecenv.register_pickled_state(DrawingEnv)


class HookedEnv(gymnasium.Env[Any, Any]):
    """An env with hooks; the attribute `raises` names the one that raises an exception."""

    observation_space = gymnasium.spaces.Dict(
        {"place": gymnasium.spaces.Box(-99, 99, (2,), np.float64), "name": gymnasium.spaces.Text(9)}
    )
    action_space = gymnasium.spaces.Discrete(3)
    raises = ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.place = np.zeros(2)
        return self.observe(), {}

    def observe(self) -> Any:
        return {"place": self.place.copy(), "name": "x" * int(self.place[0])}

    def step(self, action: Any) -> Any:
        self.place += action, 1
        return self.observe(), float(action), bool(self.place[0] > 8), False, {}

    def get_state(self) -> Any:
        if self.raises == "get":
            raise KeyError("no state today")
        return self.place.tolist()

    def set_state(self, state: Any) -> None:
        if self.raises == "set":
            raise KeyError("no change today")
        self.place = np.array(state)


class UnknownEnv(HookedEnv):
    get_state = set_state = None  # type: ignore[assignment]


def without_marks(step: Any) -> Any:
    *arrays, infos = step
    return *arrays, {key: value for key, value in infos.items() if key.strip("_") != "recovered"}


def rows_of(step: Any, rows: list[int]) -> Any:
    """Return the parts of a result that belong to some envs, without marks of recoveries and durations."""
    *arrays, infos = without_marks(step)
    if "episode" in infos:
        infos = {**infos, "episode": {key: infos["episode"][key] for key in "rl"}}

    def take(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: take(part) for key, part in value.items()}
        return np.asarray(value)[rows].tolist()

    known = {key: take(value) for key, value in infos.items() if not key.startswith("_")}
    shown = {key: value for key, value in known.items() if not key.startswith("_") and any_shown(infos, key, rows)}
    return [array[rows].tolist() for array in arrays], repr(shown)


def any_shown(infos: Any, key: str, rows: list[int]) -> bool:
    mask = infos.get(f"_{key}")
    return bool(mask is None or np.asarray(mask)[rows].any())


def play(envs: VectorEnv, actions: Any, rows: list[int], kill_at: int = -1, kills_shards: bool = False) -> list[Any]:
    """Return the rows of some envs for the same actions in all envs; before step `kill_at` all workers are killed."""
    found = []
    for number, action in enumerate(actions):
        if number == kill_at:
            kill(envs, kills_shards)
        step = envs.step([action] * envs.num_envs)
        found.append(rows_of(step, rows))
        ended = step[2] | step[3]
        if envs.metadata["autoreset_mode"].value == "Disabled" and ended.any():
            obs, _ = envs.reset(options={"reset_mask": ended})
            found += [obs[row].tolist() for row in rows if ended[row]]
    return found


ACTIONS = [0, 1, 1, 0, 1, 0, 0, 1] * 4


@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [cartpole, DrawingEnv], ids=["cartpole", "drawing"])
def test_envs_continue_as_the_env_of_their_state(
    make: Any, mode: str, options: dict[str, Any], implementation: str
) -> None:
    if make is DrawingEnv and "threads_per_worker" in options:
        make = cartpole  # numbers of the global generators depend on each other there
    with closing(open_envs([make] * 4, autoreset_mode=mode, episode_statistics=True, **options)) as envs:
        envs.reset(seed=3)
        play(envs, ACTIONS[:9], [0])
        for number in range(6):
            states = envs.get_states([1, 3])
            observations = envs.observations
            expected = play(envs, ACTIONS[number : number + 13], [1, 3])
            obs = envs.set_states(states, [0, 1])
            np.testing.assert_array_equal(obs, observations[[1, 3]])
            np.testing.assert_array_equal(envs.observations[[0, 1]], obs)
            assert envs.get_states([0, 1]) == states
            assert play(envs, ACTIONS[number : number + 13], [0, 1]) == expected


@pytest.mark.parametrize("kill_at", [0, 1, 3])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [cartpole, DrawingEnv], ids=["cartpole", "drawing"])
def test_rows_after_set_states_survive_kills(make: Any, mode: str, kill_at: int, implementation: str) -> None:
    check_kills(make, mode, kill_at, KILLED)


@pytest.mark.parametrize("kills_shards", [True, False], ids=["shards", "workers"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [cartpole, DrawingEnv], ids=["cartpole", "drawing"])
def test_rows_after_set_states_survive_kills_of_shards(make: Any, mode: str, kills_shards: bool) -> None:
    check_kills(make, mode, 1, SHARDS_KILLED, kills_shards)


def check_kills(make: Any, mode: str, kill_at: int, options: dict[str, Any], kills_shards: bool = False) -> None:
    with closing(open_envs([make] * 4, autoreset_mode=mode, episode_statistics=True, **options)) as envs:
        envs.reset(seed=3)
        for number in range(5):
            play(envs, ACTIONS[: 3 + number], [0])
            states = envs.get_states()
            expected = play(envs, ACTIONS[:10], [1, 0, 3, 2])
            envs.set_states([states[i] for i in (1, 0, 3, 2)])
            assert play(envs, ACTIONS[:10], [0, 1, 2, 3], kill_at, kills_shards) == expected
            later = envs.get_states()
            envs.set_states([states[i] for i in (1, 0, 3, 2)])
            play(envs, ACTIONS[:10], [0])
            assert envs.get_states() == later
        counts = envs.statistics()
        assert counts["shards_replaced" if kills_shards else "restarts"] >= 5
        assert not counts["truncated"] and not counts["unproven"]


@pytest.mark.parametrize(
    ("options", "kills_shards"),
    [(KILLED, False), (SHARDS_KILLED, False), (SHARDS_KILLED, True)],
    ids=["process", "workers of shards", "shards"],
)
def test_states_survive_kills_at_any_time(options: dict[str, Any], kills_shards: bool) -> None:
    with closing(open_envs([cartpole] * 4, **options)) as envs:
        envs.reset(seed=3)
        play(envs, ACTIONS[:4], [0])
        kill(envs, kills_shards)
        states = envs.get_states()
        kill(envs, kills_shards)
        envs.set_states(states[::-1])
        kill(envs, kills_shards)
        assert envs.get_states() == states[::-1]
        assert envs.get_states() == states[::-1]
        assert not envs.statistics()["truncated"]


class KillingEnv(HookedEnv):
    """Its `name` is a part of its state, and no reset sets it; the first `set_state` with this name kills the shard."""

    def __init__(self, folder: str) -> None:
        self.mark, self.name = Path(folder, "killed"), "old"

    def get_state(self) -> Any:
        return self.place.tolist(), self.name

    def set_state(self, state: Any) -> None:
        place, self.name = state
        self.place = np.array(place)
        if self.name == "new" and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getppid(), signal.SIGKILL)


def test_state_whose_shard_is_lost_while_it_is_put_lasts(tmp_path: Path) -> None:
    with closing(open_envs([functools.partial(KillingEnv, str(tmp_path))] * 2, **SHARDS_KILLED)) as envs:
        envs.reset(seed=1)
        envs.step([1, 2])
        envs.set_attr("name", ["new", "old"])
        (state,) = envs.get_states(0)
        obs = envs.set_states(state, 1)
        assert obs["place"].tolist() == [[1, 1]] and envs.statistics()["shards_replaced"] == 1
        envs.reset(seed=2)
        for kills_shards in (False, True):
            envs.step([1, 2])
            kill(envs, kills_shards)
            assert envs.get_attr("name") == ("new", "new")


class PlainEnvs:
    """Gymnasium envs that are copied where a vector env gets and sets states."""

    def __init__(self, num_envs: int, mode: str) -> None:
        self.mode = mode
        self.envs = [[cartpole(), False, np.zeros(4)] for _ in range(num_envs)]

    def reset(self, seed: int) -> Any:
        for number, env in enumerate(self.envs):
            env[1:] = False, env[0].reset(seed=seed + number)[0]
        return self.observations()

    def observations(self) -> Any:
        return np.array([env[2] for env in self.envs])

    def step(self, actions: Any) -> Any:
        rows = []
        for env, action in zip(self.envs, actions):
            if env[1]:
                env[1:] = False, env[0].reset()[0]
                rows.append((0.0, False, False))
                continue
            env[2], reward, terminated, truncated, _ = env[0].step(int(action))
            rows.append((float(reward), terminated, truncated))
            env[1] = terminated or truncated
            if env[1] and self.mode == "SameStep":
                env[1:] = False, env[0].reset()[0]
        if self.mode == "Disabled":
            for env in self.envs:
                if env[1]:
                    env[1:] = False, env[0].reset()[0]
        return self.observations(), rows

    def get(self, ids: Any) -> list[Any]:
        return [copy.deepcopy(self.envs[i]) for i in ids]

    def set(self, states: Any, ids: Any) -> None:
        for i, state in zip(ids, states):
            self.envs[i] = copy.deepcopy(state)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("options", [KILLED, {"backend": "serial"}, SHARDS_KILLED], ids=["process", "serial", "shards"])
def test_random_programs_equal_copies_of_plain_envs(seed: int, mode: str, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(seed)
    plain = PlainEnvs(4, mode)
    kept: list[Any] = []
    with closing(open_envs([cartpole] * 4, autoreset_mode=mode, **options)) as envs:
        np.testing.assert_array_equal(envs.reset(seed=seed)[0], plain.reset(seed).astype(np.float32))
        for _ in range(120):
            kind, ids = rng.random(), rng.permutation(4)[: rng.integers(1, 5)]
            if rng.random() < 0.03:
                kill(envs, kills_shards=bool(rng.integers(2)))
            if kind < 0.2:
                kept += zip(envs.get_states(ids), plain.get(ids))
            elif kind < 0.4 and kept:
                chosen = [kept[int(i)] for i in rng.integers(len(kept), size=len(ids))]
                obs = envs.set_states([state for state, _ in chosen], ids)
                plain.set([state for _, state in chosen], ids)
                np.testing.assert_array_equal(obs, plain.observations()[ids].astype(np.float32))
            else:
                actions = rng.integers(2, size=4)
                obs, rewards, terminated, truncated, _ = envs.step(actions)
                ended = terminated | truncated
                if mode == "Disabled" and ended.any():
                    obs, _ = envs.reset(options={"reset_mask": ended})
                expected, rows = plain.step(actions)
                np.testing.assert_array_equal(obs, expected.astype(np.float32))
                assert list(zip(rewards.tolist(), terminated.tolist(), truncated.tolist())) == rows
            np.testing.assert_array_equal(envs.observations, plain.observations().astype(np.float32))


def pong() -> Any:
    gymnasium.register_envs(pytest.importorskip("ale_py"))
    return gymnasium.make("ALE/Pong-v5", repeat_action_probability=0.0, obs_type="ram")


def ant() -> Any:
    return gymnasium.make("Ant-v5", max_episode_steps=12)


@pytest.mark.parametrize("options", [KILLED, {"backend": "serial"}], ids=["process", "serial"])
@pytest.mark.parametrize("make, package", [(pong, "ale_py"), (ant, "mujoco")], ids=["pong", "ant"])
def test_simulators_continue_as_the_env_of_their_state(make: Any, package: str, options: dict[str, Any]) -> None:
    pytest.importorskip(package)
    with closing(VectorEnv([make] * 3, **options)) as envs:
        envs.reset(seed=3)
        envs.action_space.seed(3)

        def step(actions: Any, row: int, others: int) -> Any:
            actions = actions.copy()
            actions[row] = actions[others]
            return rows_of(envs.step(actions), [row])

        actions = [envs.action_space.sample() for _ in range(30)]
        for action in actions[:10]:
            envs.step(action)
        (state,) = envs.get_states(1)
        expected = [step(action, 1, 1) for action in actions]
        (end,) = envs.get_states(1)
        envs.set_states(state, 0)
        for pid in envs.worker_pids:
            os.kill(pid, signal.SIGKILL)
        assert [step(action, 0, 1) for action in actions] == expected
        assert envs.get_states(0) == (end,)


# ---- snapshots -----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [cartpole, DrawingEnv], ids=["cartpole", "drawing"])
def test_snapshots_with_equal_contents_are_equal(make: Any) -> None:
    with (
        closing(VectorEnv([make] * 4, num_workers=2)) as envs,
        closing(VectorEnv([make] * 3, num_workers=1)) as others,  # this process may have imported torch
    ):
        envs.reset(seed=3)
        play(envs, ACTIONS[:4], [0])
        one, *_ = envs.get_states()
        assert envs.get_states(0) == (one,)
        others.reset(seed=9)
        others.set_states(one)
        envs.set_states(one, [2])
        for number, action in enumerate(ACTIONS[:20]):
            envs.step([action] * 4)
            others.step([action] * 3)
            first, _, third, _ = envs.get_states()
            found = {first, third, *others.get_states()}
            assert len(found) == 1, number
            assert found == {pickle.loads(pickle.dumps(first))}
            assert first != one and hash(first) != hash(one)
        assert first.length != one.length and first != "state"


@pytest.mark.parametrize("battle_mode", ["self_play_mode", "play_with_bot_mode"])
@pytest.mark.parametrize("game", [TicTacToeEnv, Connect4Env, GomokuEnv])
@pytest.mark.parametrize("options", [{"num_workers": 1}, {"backend": "serial"}], ids=["process", "serial"])
def test_board_games_continue_as_the_game_of_their_state(options: Any, game: Any, battle_mode: str) -> None:
    def play(envs: VectorEnv, seed: int, num_steps: int) -> list[Any]:
        rng, results = np.random.default_rng(seed), []
        for _ in range(num_steps):
            masks = envs.observations["action_mask"]
            moves = [int(rng.choice(np.flatnonzero(mask))) if mask.any() else 0 for mask in masks]
            obs, *arrays, _ = envs.step(moves)
            results.append((obs["observation"].tolist(), [array.tolist() for array in arrays]))
        return results

    with VectorEnv([functools.partial(game, {"battle_mode": battle_mode})] * 2, **options) as envs:
        envs.reset(seed=1)
        play(envs, 3, 3)
        states = envs.get_states()
        expected = play(envs, 4, 25)
        envs.set_states(states)
        if envs.worker_pids:
            os.kill(envs.worker_pids[0], signal.SIGKILL)
        assert play(envs, 4, 25) == expected


def test_snapshots_cannot_be_changed_and_are_small() -> None:
    with closing(VectorEnv([cartpole] * 64, num_workers=2)) as envs:
        envs.reset(seed=3)
        states = envs.get_states()
        with pytest.raises(AttributeError):
            states[0].length = 3  # type: ignore[misc]
        assert states[0].nbytes < 2000 and "CartPoleEnv" in repr(states[0])
        assert len(pickle.dumps(states)) < 64 * (states[0].nbytes + 200)
        assert len(pickle.dumps([states[0]] * 64)) < states[0].nbytes + 2000
        assert len(set(states)) == 64


def test_one_snapshot_goes_into_all_envs_of_another_vector_env() -> None:
    with (
        closing(VectorEnv([cartpole] * 2, num_workers=2)) as envs,
        closing(VectorEnv([cartpole] * 5, num_workers=2, autoreset_mode="SameStep")) as others,
    ):
        envs.reset(seed=3)
        expected = play(envs, ACTIONS[:4], [0])
        (state,) = envs.get_states(0)
        expected = play(envs, ACTIONS[4:8], [0])
        others.set_states(state)  # the first call of these envs
        (obs, *rest), infos = expected[0]
        assert play(others, ACTIONS[4:8], [0, 4]) == [
            ([part * 2 for part in arrays], infos) for arrays, infos in expected
        ]
        assert others.get_states(0) == envs.get_states(0)
        assert obs and rest and infos == "{}"


# ---- results -------------------------------------------------------------------------------------


def test_objects_of_observations_belong_to_the_state() -> None:
    with closing(VectorEnv([HookedEnv] * 3, num_workers=2)) as envs:
        envs.reset(seed=1)
        envs.step([0, 1, 2])
        envs.step([0, 1, 2])
        obs = envs.set_states(envs.get_states([2, 1]), [0, 2])
        assert obs["name"] == ("xxxx", "xx") and obs["place"].tolist() == [[4, 2], [2, 2]]
        assert envs.observations["name"] == ("xxxx", "xx", "xx")
        assert envs.step([1, 1, 1])[0]["name"] == ("xxxxx", "xxx", "xxx")


def test_exception_after_set_states_repeats_the_observation_of_the_state() -> None:
    class Raising(HookedEnv):
        def step(self, action: Any) -> Any:
            if action == 2 and self.raises == "step":
                raise KeyError("no step today")
            return super().step(action)

    failures = {"on_exception": "truncate"}
    with closing(VectorEnv([Raising] * 2, num_workers=1, failures=failures)) as envs:
        envs.reset(seed=1)
        envs.step([0, 1])
        (state,) = envs.get_states(0)
        envs.step([1, 1])
        envs.set_attr("raises", "step")
        envs.set_states(state, 1)
        obs, _, _, truncated, _ = envs.step([0, 2])
        assert truncated.tolist() == [False, True] and obs["place"][1].tolist() == [0, 1]


def test_outstanding_envs_keep_their_results() -> None:
    with closing(VectorEnv([cartpole] * 4, num_workers=2)) as envs:
        envs.reset(seed=3)
        states = envs.get_states()
        envs.send([0, 1], [0, 1])
        with pytest.raises(AlreadyPendingCallError, match="get_states: env 1 still owes the answer to a step"):
            envs.get_states([3, 1])
        with pytest.raises(AlreadyPendingCallError, match="set_states: env 0 still owes"):
            envs.set_states(states[:2], [0, 2])
        assert envs.get_states([3, 2]) == (states[3], states[2])
        obs = envs.set_states(states[:2], [2, 3])
        expected = envs.recv(env_id=[0, 1])[0]
        envs.send([0, 1], [2, 3])
        np.testing.assert_array_equal(envs.recv(env_id=[2, 3])[0], expected)
        assert obs.shape == (2, 4) and envs.observations is None


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
def test_wrong_arguments_change_nothing(options: dict[str, Any]) -> None:
    with closing(open_envs([cartpole, cartpole, HookedEnvOfCartPole], **options)) as envs:
        with pytest.raises(ResetNeeded, match="get_states: env 1 was never reset"):
            envs.get_states([1])
        envs.reset(seed=3)
        envs.step([0, 1, 0])
        before = envs.get_states()
        wrong: list[tuple[Any, Any, type[Exception], str]] = [
            (before[:2], None, ConfigError, "set_states: expected 3 states, got 2"),
            (before[0], 7, ConfigError, r"set_states: env_id 7 is not in 0\.\.2"),
            (before[:2], [1, 1], ConfigError, "set_states: env_id: an env is named twice"),
            ([before[1], "state"], [0, 1], WrongTypeError, "set_states: expected states of get_states, got str"),
            ((before[1], before[0], before[0]), None, ConfigError, "set_states: env 2 consists of .*HookedEnvOfCart"),
        ]
        for states, ids, error, text in wrong:
            with pytest.raises(error, match=text):
                envs.set_states(states, ids)
        with pytest.raises(ConfigError, match="get_states: env_id -1"):
            envs.get_states(-1)
        assert envs.get_states() == before
        with closing(VectorEnv([HookedEnv], backend="serial")) as others:
            others.reset()
            with pytest.raises(ConfigError, match="set_states: the state comes from an env with other spaces"):
                others.set_states(before[0])
        envs.step_async([0, 0, 0])
        with pytest.raises(AlreadyPendingCallError, match="step_wait first"):
            envs.get_states()
        with pytest.raises(AlreadyPendingCallError, match="step_wait first"):
            envs.set_states(before)
        envs.step_wait()
    with pytest.raises(ClosedEnvironmentError, match="get_states"):
        envs.get_states()
    with pytest.raises(ClosedEnvironmentError, match="set_states"):
        envs.set_states(before)


class HookedEnvOfCartPole(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self) -> None:
        super().__init__(cartpole())

    def get_state(self) -> Any:
        return None

    def set_state(self, state: Any) -> None:
        pass


@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
def test_unknown_class_names_the_remedy(options: dict[str, Any]) -> None:
    with closing(open_envs([HookedEnv, UnknownEnv], **options)) as envs:
        envs.reset(seed=3)
        text = "test_branches.UnknownEnv: unknown class.*get_state.*vecenv.register_pickled_state"
        with pytest.raises(StateError, match=text) as caught:
            envs.get_states()
        assert any("env 1" in note for note in caught.value.__notes__)
        envs.step([1, 1])
        assert len(envs.get_states([0])) == 1


@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
def test_exceptions_of_hooks_reach_the_caller(options: dict[str, Any]) -> None:
    with closing(open_envs([HookedEnv] * 3, **options)) as envs:
        envs.reset(seed=3)
        envs.step([1, 1, 1])
        state = envs.get_states(0)[0]
        envs.step([1, 2, 1])
        envs.set_attr("raises", ["", "get", "set"])
        with pytest.raises(KeyError, match="no state today") as caught:
            envs.get_states()
        assert any("env 1" in note for note in caught.value.__notes__)
        with pytest.raises(KeyError, match="no change today") as caught:
            envs.set_states(state)
        assert any("env 2" in note for note in caught.value.__notes__)
        assert envs.get_states(0) == (state,)
        assert envs.step([0, 0, 0])[0]["place"][:2].tolist() == [[1, 2], [1, 2]]
        envs.set_attr("raises", "")
        envs.set_states(state)
        assert envs.get_states() == (state,) * 3


def test_ended_episodes_fit_no_vector_env_that_has_none() -> None:
    with (
        closing(VectorEnv([cartpole], backend="serial")) as envs,
        closing(VectorEnv([cartpole], backend="serial", autoreset_mode="SameStep")) as others,
    ):
        envs.reset(seed=1)
        while not (envs.step([0])[2]).any():
            pass
        (state,) = envs.get_states()
        assert state.is_over
        with pytest.raises(ConfigError, match="autoreset_mode SAME_STEP"):
            others.set_states(state)


# ---- spare envs ----------------------------------------------------------------------------------


SPARES = {"num_spare_envs": 4}


def play_row(envs: VectorEnv, row: int, actions: Any, num_ends: int = 1) -> list[Any]:
    """Return the rows of an env until so many of its episodes have ended, with the observation after the last end."""
    found: list[Any] = []
    for action in actions:
        step = envs.step([action] * envs.num_envs)
        ended, mode = step[2] | step[3], envs.metadata["autoreset_mode"].value
        obs = step[0]
        if mode == "Disabled" and ended.any():
            obs[ended], _ = envs.reset(env_id=np.flatnonzero(ended))
        found.append((obs[row].tolist(), *(array[row].item() for array in step[1:4])))
        num_ends -= int(ended[row])
        if num_ends == 0 and (mode != "NextStep" or not ended[row]):
            return found
    raise AssertionError("the episode has not ended")


@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("num_spare_envs", [1, 4, 8])
@pytest.mark.parametrize("mode", MODES)
def test_episode_of_a_state_is_followed_by_that_of_the_next_spare_env(
    mode: str, num_spare_envs: int, options: dict[str, Any]
) -> None:
    """So it is also if the spare env has taken over already, or if its episode has begun in the background."""
    spares: dict[str, Any] = {"num_spare_envs": num_spare_envs, "autoreset_mode": mode, **options}
    num_ended = 0
    with (
        closing(VectorEnv([cartpole] * 4, backend="serial")) as donor,
        closing(open_envs([cartpole] * 4, **spares)) as undisturbed,
        closing(open_envs([cartpole] * 4, **spares)) as envs,
    ):
        donor.reset(seed=9)
        play(donor, ACTIONS[:3], [0])
        (state,) = donor.get_states(2)
        expected = play_row(donor, 2, ACTIONS)
        for number in range(3, 16):
            for one in (envs, undisturbed):
                one.reset(seed=3)
                play(one, ACTIONS[:number], [0])
            is_over = envs.get_states(1)[0].is_over
            num_ended += is_over
            obs = envs.set_states(state, 1)
            assert obs[0].tolist() == donor_obs_of(state)
            assert envs.get_states(1) == (state,)
            found, following = play_row(envs, 1, ACTIONS), play_row(undisturbed, 1, ACTIONS, 0 if is_over else 1)
            last = len(expected) - 2  # the donor resets an env in the step after the last one
            assert found[:last] == expected[:last] and found[last][1:] == expected[last][1:]
            if num_spare_envs != 1:  # else the order in which all episodes end decides
                assert found[-1][0] == following[-1][0]
    assert num_ended or mode != "NextStep"


def donor_obs_of(state: vecenv.EnvSnapshot) -> Any:
    return np.frombuffer(state.obs[0], np.float32).tolist()


@pytest.mark.parametrize("options", [{"backend": "serial"}, {"num_workers": 2}, {"num_shards": 2}], ids=str)
@pytest.mark.parametrize("mode", ["NextStep", "Disabled"])
def test_ended_episode_with_spare_envs_has_a_state_that_is_over(mode: str, options: dict[str, Any]) -> None:
    """The end of a row is put into other rows, where spare envs continue, and into an env without spare envs."""
    with (
        closing(open_envs([HookedEnv] * 2, autoreset_mode=mode, episode_statistics=True, **SPARES, **options)) as envs,
        closing(VectorEnv([HookedEnv] * 2, autoreset_mode="NextStep", backend="serial")) as plain,
    ):
        envs.reset(seed=3)
        plain.reset(seed=3)
        while not envs.step([2, 1])[2].any():
            pass
        over, running = envs.get_states()
        assert over.is_over and not running.is_over and over.length == running.length == 5
        assert np.frombuffer(over.returns) == 10.0 and np.frombuffer(running.returns) == 5.0
        obs = envs.set_states([running, over])
        assert obs["place"].tolist() == [[5, 5], [10, 5]] and obs["name"] == ("x" * 5, "x" * 10)
        assert envs.get_states() == (running, over)
        if mode == "NextStep":
            step = envs.step([1, 1])
            assert step[0]["place"].tolist() == [[6, 6], [0, 0]] and step[0]["name"] == ("x" * 6, "")
            assert step[1].tolist() == [1.0, 0.0]
        plain.set_states([running, over])
        assert plain.step([1, 1])[0]["place"].tolist() == [[6, 6], [0, 0]]


@pytest.mark.parametrize("options", [{"backend": "serial"}, KILLED], ids=["serial", "process"])
def test_states_are_the_first_request_of_rows_with_spare_envs(options: dict[str, Any]) -> None:
    with (
        closing(VectorEnv([cartpole] * 2, backend="serial")) as donor,
        closing(open_envs([cartpole] * 2, **SPARES, **options)) as envs,
    ):
        with pytest.raises(ResetNeeded, match="get_states: env 1 was never reset"):
            envs.get_states([1])
        donor.reset(seed=1)
        states = donor.get_states()
        envs.set_states(states)
        play(envs, ACTIONS, [0])
        envs.step_async([0, 0])
        with pytest.raises(AlreadyPendingCallError, match="step_wait first"):
            envs.set_states(states)
        envs.step_wait()
        envs.send([1], [1])
        with pytest.raises(AlreadyPendingCallError, match="set_states: env 1 still owes"):
            envs.set_states(states)
        envs.set_states(states[0], 0)
        assert envs.get_states(0) == states[:1]


def test_failed_state_with_spare_envs_is_followed_by_a_reset() -> None:
    with closing(VectorEnv([HookedEnv] * 2, num_workers=2, **SPARES)) as envs:
        envs.reset(seed=3)
        envs.step([1, 1])
        (state,) = envs.get_states(0)
        envs.call("__setattr__", "raises", "set", env_id=[1])
        with pytest.raises(KeyError, match="no change today"):
            envs.set_states(state)
        assert envs.get_states(0) == (state,)
        assert envs.step([1, 1])[0]["place"].tolist() == [[2, 2], [0, 0]]


@pytest.mark.parametrize("num_spare_envs", [1, 4, 8])
@pytest.mark.parametrize("mode", MODES)
def test_programs_with_states_and_spare_envs_equal_those_of_serial_envs(mode: str, num_spare_envs: int) -> None:
    """Workers and shards are killed at random instants."""

    def run(**options: Any) -> list[Any]:
        rng, kept, results = np.random.default_rng(num_spare_envs), [], []
        with closing(open_envs([cartpole] * 4, num_spare_envs=num_spare_envs, autoreset_mode=mode, **options)) as envs:
            results.append(envs.reset(seed=5)[0].tolist())
            for _ in range(150):
                kind, ids, actions = rng.random(), rng.permutation(4)[: rng.integers(1, 5)], rng.integers(2, size=4)
                chosen, kills_shards = rng.integers(1000, size=len(ids)), bool(rng.integers(2))
                if rng.random() < 0.04:
                    kill(envs, kills_shards)
                if kind < 0.2:
                    kept += envs.get_states(ids)
                elif kind < 0.4 and kept:
                    results.append(envs.set_states([kept[i % len(kept)] for i in chosen.tolist()], ids).tolist())
                    assert envs.get_states(ids) == tuple(kept[i % len(kept)] for i in chosen.tolist())
                else:
                    step = envs.step(actions)
                    results.append([array.tolist() for array in step[:4]])
                    ended = step[2] | step[3]
                    if mode == "Disabled" and ended.any():
                        results.append(envs.reset(env_id=np.flatnonzero(ended))[0].tolist())
                results.append(repr(envs.observations))
            # An env that was built again has not passed all checks of Gymnasium's checker, so its state differs.
            return [results, [(one.obs, one.length, one.returns, one.seed, one.is_over) for one in kept]]

    expected = run(backend="serial")
    assert run(**KILLED) == expected
    assert run(**SHARDS_KILLED) == expected
