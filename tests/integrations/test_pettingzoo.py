"""PettingZoo's envs: rows per agent, joint envs and turns give what stepping the envs by hand gives."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import signal
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.vector import AutoresetMode

pytest.importorskip("pettingzoo", exc_type=ImportError)

from pettingzoo.utils.conversions import parallel_to_aec
from pettingzoo.utils.wrappers import BaseWrapper

from tests.integrations.zoo import SPACES, Count, Walk, rows
from tests.vector.comparison import assert_same
from vecenv import BatchedVectorEnv, ConfigError, SpaceError, StateError, VectorEnv
from vecenv.ding import AsyncSubprocessEnvManager, BaseEnvManager
from vecenv.integrations.pettingzoo import JointEnv, PettingZooVectorEnv, TurnEnv

BACKENDS = ["serial", "process"]
DEATHS = functools.partial(Walk, (3, 5, 2))


def actions_of(envs: Any, num_steps: int, seed: int = 3) -> list[Any]:
    """Return sampled actions for steps of a vector env."""
    space = pickle.loads(pickle.dumps(envs.action_space))
    space.seed(seed)
    return [space.sample() for _ in range(num_steps)]


def compare_with_loop(env_fn, plain_fn=None, *, num_envs=2, num_steps=12, seed=5, **kwargs):
    """Compare all rows of a vector env with those of a loop over the envs, or over ParallelEnvs of `plain_fn`."""
    plain_fn = plain_fn or env_fn
    with PettingZooVectorEnv(env_fn, num_envs, **kwargs) as envs:
        actions = actions_of(envs, num_steps)
        expected = rows([plain_fn() for _ in range(num_envs)], [seed + w for w in range(num_envs)], actions)
        obs, infos = envs.reset(seed=seed)
        for i, (theirs, rewards, terminations, truncations, alive, finals) in enumerate(expected):
            if i:
                obs, *found, infos = envs.step(actions[i - 1])
                ends = terminations | truncations
                assert_same(found, [rewards.astype(np.float64), terminations, truncations], f"step {i}")
                assert (envs.alive | ends)[list(finals)].all()
            assert_same(obs, theirs, f"observations {i}")
            assert_same(infos["alive"], alive, f"alive {i}")
            assert infos["alive"] is not envs.alive and envs.alive.tolist() == alive.tolist()
            for row, one in enumerate(infos.get("final_obs", ())):
                assert_same(one, finals.get(row), f"final_obs {i}")
            assert ("final_obs" in infos) == bool(finals)


# ---- rows ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_equal_those_of_a_loop(backend):
    compare_with_loop(Walk, backend=backend)
    box = functools.partial(Walk, actions=Box(-1, 1, (2,), np.float32))
    compare_with_loop(box, backend=backend, copy=False)


@pytest.mark.parametrize(
    "env_fn", [DEATHS, functools.partial(Walk, (4, 2, 9, 1) * 3), functools.partial(Walk, (2, 3), first=1)]
)
def test_rows_of_dead_and_absent_agents_are_zeros(env_fn):
    compare_with_loop(env_fn, black_death=True, num_workers=2)


def test_aec_env_is_converted():
    compare_with_loop(lambda: BaseWrapper(parallel_to_aec(Walk())), Walk, backend="serial")


def test_agents_that_leave_need_black_death():
    with PettingZooVectorEnv(DEATHS, backend="serial") as envs:
        envs.reset(seed=1)
        envs.step([0] * 3)
        with pytest.raises(StateError, match=r"agents \['walker_2'\] are not in the env.*black_death=True"):
            envs.step([0] * 3)
    late = functools.partial(Walk, first=1)
    with (
        PettingZooVectorEnv(late, backend="serial") as envs,
        pytest.raises(AssertionError, match=r"agents \['walker_0'\]"),
    ):
        envs.reset()


def test_nested_observations():
    with PettingZooVectorEnv(functools.partial(Walk, (1, 2), "dict"), 2, black_death=True, backend="serial") as envs:
        assert envs.single_observation_space == SPACES["dict"] and envs.action_space == MultiDiscrete([3] * 4)
        envs.reset(seed=1)
        envs.step([1, 2, 1, 2])
        obs, *_, infos = envs.step([1, 1, 1, 1])
        assert obs["image"].shape == (4, 2, 2) and not obs["image"].any(), "a new episode"
        assert infos["final_obs"][1]["image"].tolist() == [[3, 3], [3, 3]]
        assert infos["_final_obs"].tolist() == [False, True] * 2, "agent 0 has ended before"


def test_names_and_spaces():
    with PettingZooVectorEnv([Walk, Walk], backend="serial") as envs:
        assert envs.agents == ("walker_0", "walker_1", "walker_2") and envs.num_envs == len(envs) == 6
        assert envs.single_action_space == Discrete(3) and envs.observation_space.shape == (6, 3)
        assert isinstance(envs, gymnasium.vector.VectorEnv)
        assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP and envs.metadata["name"] == "walk_v0"
        envs.reset()
        assert envs.render_mode == "rgb_array" and len(envs.render()) == 6
        assert envs.statistics()["steps"] == 0 and envs.batched.batch_size == 3


def test_calls_and_attributes_are_those_of_envs():
    with PettingZooVectorEnv(Walk, 2, backend="serial") as envs:
        envs.reset()
        envs.set_attr("gravity", [2.0, 3.0])
        assert envs.get_attr("gravity") == (2.0, 3.0)
        envs.set_attr("gravity", 4.0)
        assert envs.get_attr("gravity") == (4.0, 4.0)
        assert envs.call("place_of", "walker_0") == (0.0, 0.0)
        with pytest.raises(ConfigError, match="expected 2 values"):
            envs.set_attr("gravity", [1.0])
        with pytest.raises(AttributeError):
            envs.get_attr("levity")


# ---- infos -----------------------------------------------------------------------------------


def test_infos_in_gymnasiums_form():
    env_fn = functools.partial(Walk, (1, 2), has_infos=True)
    with PettingZooVectorEnv(env_fn, black_death=True, backend="serial") as envs:
        _, infos = envs.reset(seed=1)
        assert infos["start"].tolist() == infos["alive"].tolist() == [True, True]
        *_, infos = envs.step([0, 0])
        assert infos["steps"].tolist() == [1, 1] and infos["name"].tolist() == ["walker_0", "walker_1"]
        assert infos["alive"].tolist() == [False, True]
        *_, infos = envs.step([0, 0])
        assert infos["final_info"]["steps"].tolist() == [0, 2] and infos["_final_info"].tolist() == [False, True]
        assert infos["start"].tolist() == [True, True] and "steps" not in infos


def test_infos_as_a_list():
    """That of the reset is added to that of the step, as in SuperSuit."""
    env_fn = functools.partial(Walk, (2, 2), has_infos=True)
    with PettingZooVectorEnv(env_fn, 2, infos="list", backend="serial") as envs:
        assert envs.reset(seed=1)[1] == [{"start": True}] * 4
        assert envs.step([0] * 4)[4] == [{"steps": 1, "name": "walker_0"}, {"steps": 1, "name": "walker_1"}] * 2
        obs, *_, infos = envs.step([1] * 4)
        assert [info.pop("terminal_observation")[0] for info in infos] == [1.0] * 4
        assert infos[1] == {"steps": 2, "name": "walker_1", "start": True}
        assert obs[:, 0].tolist() == [0.0] * 4
    with PettingZooVectorEnv(Walk, infos="list", backend="serial") as envs:
        assert envs.reset()[1] == envs.step([0] * 3)[4] == [{}, {}, {}]


@pytest.mark.parametrize("infos", ["gymnasium", "list"])
def test_episode_statistics(infos):
    options = {"infos": infos, "episode_statistics": True, "backend": "serial"}
    with PettingZooVectorEnv(DEATHS, 2, black_death=True, **options) as envs:
        envs.reset(seed=1)
        returns, found = np.zeros(6), {}
        for step in range(1, 6):
            _, rewards, terminations, truncations, told = envs.step([0] * 6)
            returns += rewards
            ended = np.flatnonzero(terminations | truncations).tolist()
            if infos == "gymnasium":
                assert np.flatnonzero(told.get("_episode", [])).tolist() == ended
                episodes = {i: {key: told["episode"][key][i] for key in ("r", "l", "t")} for i in ended}
            else:
                episodes = {i: info["episode"] for i, info in enumerate(told) if "episode" in info}
            assert sorted(episodes) == ended
            for i, episode in episodes.items():
                assert episode["r"] == returns[i] and episode["l"] == step and episode["t"] > 0
                found[i] = episode
        assert len(found) == 6


def test_wrappers_of_gymnasium_stand_around_rows():
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(PettingZooVectorEnv(Walk, 2, backend="serial"))
    with contextlib.closing(envs):
        envs.reset(seed=1)
        infos = [envs.step([0] * 6)[4] for _ in range(4)]
        assert infos[-1]["episode"]["l"].tolist() == [4] * 6


# ---- resets ----------------------------------------------------------------------------------


def test_seeds_of_envs():
    with PettingZooVectorEnv(Walk, 2, backend="serial") as envs:
        first = envs.reset()
        assert len(envs.seeds) == 2 and None not in envs.seeds
        later = envs.step([0] * 6)
        assert_same(envs.reset(seed=list(envs.seeds)), first)
        assert_same(envs.step([0] * 6), later)
        envs.reset(seed=[7, None])
        assert envs.seeds[0] == 7
        for wrong in ([1, 2, 3], [1] * 6):
            with pytest.raises(ConfigError, match="expected 2 seeds"):
                envs.reset(seed=wrong)


@pytest.mark.parametrize("infos", ["gymnasium", "list"])
def test_reset_of_some_envs(infos):
    with PettingZooVectorEnv(DEATHS, 3, black_death=True, infos=infos, backend="serial") as envs:
        envs.reset(seed=1, options={"level": 2})
        assert envs.get_attr("options") == ({"level": 2},) * 3
        for _ in range(2):
            envs.step([1] * 9)
        alive = [True, True, False]
        assert envs.alive.tolist() == alive * 3
        obs, told = envs.reset([2, 0], seed=[4, 5, 6])
        assert obs.shape == (6, 3) and not obs[:, 0].any()
        assert len(told) == 6 if infos == "list" else told["alive"].all()
        assert envs.alive.tolist() == [True] * 3 + alive + [True] * 3
        assert envs.seeds == (4, 2, 6)
        assert envs.step([0] * 9)[0][3, 0] == 2.0
        with pytest.raises(ConfigError, match="env_id 3 is not in"):
            envs.reset(3)


@pytest.mark.extended
def test_asynchronous_calls():
    with PettingZooVectorEnv(Walk, 2) as envs, PettingZooVectorEnv(Walk, 2, backend="serial") as twin:
        envs.reset_async(seed=1)
        assert_same(envs.reset_wait(), twin.reset(seed=1))
        for action in actions_of(envs, 9):
            envs.step_async(action)
            assert_same(envs.step_wait(), twin.step(action))


# ---- failures --------------------------------------------------------------------------------


class Irritable(Walk):
    """Its first agent must not choose action 2."""

    def step(self, actions):
        if actions.get("walker_0") == 2:
            raise ZeroDivisionError
        return super().step(actions)


def test_exception_of_an_env_hides_no_leaving_agent():
    env_fns = [functools.partial(Irritable, (9, 9)), functools.partial(Irritable, (9, 1))]
    with PettingZooVectorEnv(env_fns, black_death=True, backend="serial") as envs:
        envs.reset(seed=1)
        with pytest.raises(ZeroDivisionError):
            envs.step([2, 0, 1, 0])  # an agent of the second env leaves in this step
        obs, *_, infos = envs.step([0, 0, 0, 0])
        assert infos["alive"].tolist() == [True, True, True, False]
        assert obs[:, 0].tolist() == [0.0, 0.0, 1.0, 0.0]


@pytest.mark.native
@pytest.mark.parametrize("infos", ["gymnasium", "list"])
def test_killed_worker_is_restored(infos):
    options = {"black_death": True, "infos": infos}
    with (
        PettingZooVectorEnv(DEATHS, 4, num_workers=2, **options) as envs,
        PettingZooVectorEnv(DEATHS, 4, backend="serial", **options) as twin,
    ):
        assert_same(envs.reset(), twin.reset(seed=list(envs.seeds)))
        for i, action in enumerate(actions_of(envs, 30)):
            if i == 17:
                os.kill(envs.batched.worker_pids[1], signal.SIGKILL)
            result, expected = envs.step(action), twin.step(action)
            if i == 17:
                if infos == "gymnasium":
                    marks, _ = result[4].pop("recovered"), result[4].pop("_recovered")
                else:
                    marks = [one.pop("recovered", None) for one in result[4]]
                assert list(marks) == [None] * 6 + ["replayed"] * 6
            assert_same(result, expected, f"step {i}")
            assert envs.alive.tolist() == twin.alive.tolist()


class Fickle(Walk):
    """Gives other observations in each process, so that it cannot be restored."""

    def _observe(self, agent):
        return super()._observe(agent) + os.getpid()


@pytest.mark.native
@pytest.mark.extended
@pytest.mark.parametrize("infos", ["gymnasium", "list"])
def test_episodes_that_are_lost_are_truncated(infos):
    with PettingZooVectorEnv(functools.partial(Fickle, (9, 9)), 2, num_workers=2, infos=infos) as envs:
        envs.reset(seed=1)
        obs, *_ = envs.step([0] * 4)
        os.kill(envs.batched.worker_pids[1], signal.SIGKILL)
        obs, rewards, terminations, truncations, told = envs.step([0] * 4)
        assert truncations.tolist() == [False, False, True, True] and not terminations.any()
        if infos == "list":
            assert [one.get("recovered") for one in told[:2]] == [None, None]
            assert all(one["recovered"] and "terminal_observation" in one for one in told[2:])
        else:
            assert told["_final_obs"].tolist() == [False, False, True, True]
        assert envs.alive.all()


# ---- mistakes --------------------------------------------------------------------------------


class Unequal(Walk):
    """Its agents have different action spaces."""

    def action_space(self, agent):
        return Discrete(2 if agent == "walker_1" else 3)


def same(env):
    return env


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda: PettingZooVectorEnv(Unequal), SpaceError, "supersuit.pad_action_space_v0"),
        (lambda: PettingZooVectorEnv(Count), ConfigError, "its agents take turns.*TurnEnv"),
        (lambda: PettingZooVectorEnv(dict), TypeError, "expected an env of PettingZoo, got dict"),
        (lambda: PettingZooVectorEnv(Walk()), ConfigError, "expected a function.*got Walk, a PettingZoo env"),
        (lambda: PettingZooVectorEnv([Walk], 2), ConfigError, "num_envs"),
        (lambda: PettingZooVectorEnv([functools.partial(same, Walk())] * 2, backend="serial"), ValueError, "twice"),
        (lambda: PettingZooVectorEnv(Walk, 0), ConfigError, "num_envs"),
        (lambda: PettingZooVectorEnv(Walk, infos="lists"), ConfigError, "infos: expected one of"),
        (lambda: PettingZooVectorEnv(Walk, black_death=1), ConfigError, "black_death"),
        (lambda: PettingZooVectorEnv(Walk, mark_autoreset=True), ConfigError, "mark_autoreset"),
        (lambda: PettingZooVectorEnv(Walk, num_worker=1), TypeError, "num_worker"),
        (lambda: PettingZooVectorEnv([Walk, functools.partial(Walk, (1, 2))]), SpaceError, "env 1"),
        (lambda: BatchedVectorEnv([Walk]), TypeError, "got Walk, a PettingZoo env.*use PettingZooVectorEnv"),
        (lambda: JointEnv(Count()), ConfigError, "TurnEnv"),
        (lambda: JointEnv(Unequal(), form="stack"), SpaceError, "JointEnv"),
        (lambda: JointEnv(Walk(), form="list"), ConfigError, "form"),
        (lambda: TurnEnv(Walk()), TypeError, "expected an AECEnv of PettingZoo, got Walk"),
        (lambda: TurnEnv(Count(), rewards="sum"), ConfigError, "rewards"),
    ],
)
def test_wrong_arguments_are_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_masks_cannot_part_the_agents_of_an_env():
    with PettingZooVectorEnv(Walk, 2, backend="serial") as envs:
        envs.reset()
        with pytest.raises(ConfigError, match="reset_mask"):
            envs.reset([0], options={"reset_mask": np.ones(6, np.bool_)})
        with pytest.raises(ConfigError, match="the agents of one env begin together"):
            envs.batched.reset(options={"reset_mask": np.arange(6) < 1})


# ---- one env ---------------------------------------------------------------------------------


def test_joint_env_in_a_vector_env():
    env_fns = [lambda: JointEnv(DEATHS())] * 2
    with VectorEnv(env_fns, autoreset_mode="SameStep", backend="serial") as envs:
        obs, infos = envs.reset(seed=1)
        plain = DEATHS()
        expected, _ = plain.reset(seed=1)
        assert_same({agent: one[0] for agent, one in obs.items()}, expected)
        for i in range(5):
            given = dict.fromkeys(plain.agents, i % 3)
            obs, rewards, terminations, truncations, infos = envs.step(dict.fromkeys(obs, [i % 3] * 2))
            expected, each, *_ = plain.step(given)
            assert rewards[0] == np.float32(list(each.values())).sum()
            assert terminations[0] == (i == 4) and not truncations.any()
            if i < 4:
                for agent, one in obs.items():
                    assert_same(one[0], expected.get(agent, np.zeros(3, np.float32)), f"step {i} {agent}")
                assert infos["alive"][0].tolist() == [agent in plain.agents for agent in plain.possible_agents]
        assert infos["alive"].all() and infos["final_info"]["alive"].tolist() == [[False] * 3] * 2


def test_joint_env_with_arrays_and_rewards_of_each_agent():
    def build():
        return JointEnv(Walk((2, 2), has_infos=True), form="stack", rewards="each")

    with (
        VectorEnv([build] * 3, backend="serial") as envs,
        PettingZooVectorEnv(functools.partial(Walk, (2, 2)), 3, backend="serial") as flat,
    ):
        assert envs.single_action_space == MultiDiscrete([3, 3])
        obs, _ = envs.reset(seed=4)
        assert_same(obs.reshape(6, 3), flat.reset(seed=4)[0])
        actions = np.array([[0, 1], [2, 1], [1, 1]])
        obs, rewards, *_, infos = envs.step(actions)
        expected = flat.step(actions.reshape(-1))
        assert_same(obs.reshape(6, 3), expected[0])
        assert_same(rewards.astype(np.float64).reshape(6), expected[1])
        assert infos["agent_infos"]["walker_1"]["steps"].tolist() == [1, 1, 1]


@pytest.mark.native
@pytest.mark.extended
@pytest.mark.parametrize("build", [lambda: JointEnv(Walk((4, 2, 3)), form="stack"), lambda: TurnEnv(Count())])
def test_killed_worker_of_one_env_is_restored(build):
    """In a later episode, although the generator of the env is unknown to the engine."""
    with VectorEnv([build] * 2, num_workers=2) as envs, VectorEnv([build] * 2, backend="serial") as twin:
        assert_same(envs.reset(seed=1), twin.reset(seed=1))
        for i, action in enumerate(actions_of(envs, 20)):
            if i == 13:
                os.kill(envs.worker_pids[1], signal.SIGKILL)
            result = envs.step(action)
            if i == 13:
                assert result[4].pop("recovered").tolist() == [None, "replayed"]
                del result[4]["_recovered"]
            assert_same(result, twin.step(action), f"step {i}")


def test_unseeded_run_of_one_env_is_repeated_by_its_seed():
    for build in (lambda: JointEnv(Walk()), lambda: TurnEnv(Count())):
        with VectorEnv([build], backend="serial") as envs:
            first = envs.reset()[0]
            assert_same(envs.reset(seed=envs.get_attr("np_random_seed")[0])[0], first)


@pytest.mark.parametrize("kind", [BaseEnvManager, AsyncSubprocessEnvManager])
@pytest.mark.parametrize(
    "build, action, num_steps",
    [
        (lambda: JointEnv(Walk((2, 2)), form="stack", rewards="each"), np.array([1, 2]), 2),
        (lambda: JointEnv(Walk((2, 2))), {"walker_0": 1, "walker_1": 2}, 2),
        (lambda: TurnEnv(Count((1, 2))), 0, 3),
    ],
)
def test_managers_host_one_env(kind, build, action, num_steps):
    manager = kind([build] * 2, {**kind.default_config(), "episode_num": 1})
    with contextlib.closing(manager):
        manager.seed([1, 2])
        manager.launch()
        for _ in range(num_steps):
            found = {}
            while len(found) < 2:
                ready = [env_id for env_id in manager.ready_obs if env_id not in found]
                found.update(manager.step(dict.fromkeys(ready, action)))
        assert all(timestep.done for timestep in found.values()) and manager.done


def test_turns_in_a_vector_env():
    with VectorEnv([lambda: TurnEnv(Count((1, 3)))] * 2, autoreset_mode="SameStep", num_workers=1) as envs:
        obs, infos = envs.reset(seed=1)
        total = obs["observation"][:, 0].copy()
        assert obs["agent"].tolist() == [0, 0] and infos["total"].tolist() == total.tolist()
        movers, ends = [], []
        for _ in range(4):
            assert_same(obs["action_mask"], np.stack([np.ones(2), total % 2], 1).astype(np.int8))
            movers.append(obs["agent"].tolist())
            obs, rewards, terminations, truncations, infos = envs.step([0, 1])
            total += [1, 2]
            assert_same(rewards, total.astype(np.float64))
            ends.append(terminations.tolist())
            if not terminations.any():
                assert obs["observation"][:, 0].tolist() == total.tolist()
            else:
                assert [one["observation"][0] for one in infos["final_obs"]] == total.tolist()
        assert movers == [[0, 0], [1, 1], [1, 1], [1, 1]], "agent 0 has one move only"
        assert ends == [[False] * 2] * 3 + [[True] * 2] and not truncations.any()


def test_rewards_of_each_agent_in_turns():
    with VectorEnv([lambda: TurnEnv(Count((1, 3), masked=False), rewards="each")] * 2, backend="serial") as envs:
        obs, _ = envs.reset(seed=[1, 1])
        assert obs["action_mask"].tolist() == [[1, 1]] * 2, "the env has no mask"
        _, rewards, *_ = envs.step([0, 1])
        assert rewards[:, 1].tolist() == [-1.0, -1.0] and (rewards[:, 0] > 0).all()
        _, rewards, *_ = envs.step([0, 1])
        assert rewards[:, 0].tolist() == [-1.0, -1.0] and (rewards[:, 1] > 0).all()
        _, rewards, *_ = envs.step([0, 1])
        assert rewards[:, 0].tolist() == [0.0, 0.0], "agent 0 has left"


def test_board_game_of_the_library():
    """The mask stands in the observation; an illegal move ends the game."""
    tictactoe = pytest.importorskip("pettingzoo.classic.tictactoe.tictactoe", exc_type=ImportError)
    with VectorEnv([lambda: TurnEnv(tictactoe.env())] * 2, backend="serial") as envs:
        obs, _ = envs.reset(seed=0)
        assert obs["observation"].shape == (2, 3, 3, 2)
        obs, *_ = envs.step([4, 0])
        assert obs["action_mask"][:, [0, 4]].tolist() == [[1, 0], [0, 1]]
        assert [mask.tolist() for mask in envs.call("action_masks")] == obs["action_mask"].astype(bool).tolist()
        _, rewards, terminations, *_ = envs.step([4, 1])
        assert rewards.tolist() == [-1.0, 0.0] and terminations.tolist() == [True, False]
