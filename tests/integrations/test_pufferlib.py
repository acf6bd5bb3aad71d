"""VecenvBackend keeps the contract of PufferLib's backends: it gives the results of `Serial`."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import signal

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

pytest.importorskip("pufferlib", exc_type=ImportError)

import pufferlib
import pufferlib.vector
from pufferlib.emulation import GymnasiumPufferEnv, PettingZooPufferEnv

from tests.vector.comparison import assert_same
from vecenv import ConfigError
from vecenv.envs.toys import RaiseAtStep, SpaceEnv, ToyEnv
from vecenv.integrations.pufferlib import VecenvBackend

NUM_STEPS = 60
#: Without workers, each of which would import torch.
SERIAL = functools.partial(VecenvBackend, backend="serial")


def creator_of(env_fn, wrapper=GymnasiumPufferEnv):
    """Return a creator, as PufferLib expects it."""
    return functools.partial(emulate, env_fn, wrapper)


def emulate(env_fn, wrapper, buf=None, seed=0):
    return wrapper(env_fn(), buf=buf, seed=seed)


class EpisodeReturn(gymnasium.Wrapper):
    """Return the sum of rewards in the info of the last step."""

    def reset(self, **kwargs):
        self.total = 0.0
        return self.env.reset(**kwargs)

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.total += reward
        return obs, reward, terminated, truncated, info | ({"total": self.total} if terminated or truncated else {})


def make_cartpole():
    return EpisodeReturn(gymnasium.make("CartPole-v1", max_episode_steps=20))


class Walkers:
    """Three agents of PettingZoo's ParallelEnv, of which one leaves after the other."""

    possible_agents = ("a", "b", "c")

    def observation_space(self, agent):
        return Dict(place=Box(-np.inf, np.inf, (2,)), steps=Discrete(100))

    def action_space(self, agent):
        return Discrete(3)

    def reset(self, seed=None):
        self.rng = np.random.default_rng(seed) if seed is not None else self.rng
        self.steps, self.agents = 0, list(self.possible_agents)
        self.places = {agent: self.rng.random(2, np.float32) for agent in self.agents}
        return self._observe(), {}

    def step(self, actions):
        self.steps += 1
        assert list(actions) == self.agents
        for agent, action in actions.items():
            self.places[agent] = self.places[agent] + np.float32(action)
        rewards = {agent: float(self.places[agent].sum()) for agent in self.agents}
        ends = {agent: self.steps > 3 * (1 + self.possible_agents.index(agent)) for agent in self.agents}
        cuts = dict.fromkeys(self.agents, self.steps == 8)
        obs = self._observe()
        infos = {agent: {"steps": self.steps} for agent in self.agents}
        self.agents = [agent for agent in self.agents if not ends[agent] and not cuts[agent]]
        return obs, rewards, ends, cuts, infos

    def _observe(self):
        return {agent: {"place": self.places[agent], "steps": self.steps} for agent in self.agents}

    def close(self):
        pass


class Counters(pufferlib.PufferEnv):
    """A native env with two agents, which resets them by itself and returns a list of infos."""

    def __init__(self, size=3, buf=None, seed=0):
        self.single_observation_space = Box(-1000, 1000, (size,), np.int16)
        self.single_action_space = MultiDiscrete([3, 2])
        self.num_agents = 2
        super().__init__(buf)
        self.rng, self.notes = np.random.default_rng(seed), 0

    def reset(self, seed=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.observations[:] = self.rng.integers(5, size=self.observations.shape)
        self.rewards[:], self.terminals[:], self.truncations[:], self.masks[:] = 0, False, False, True
        return self.observations, []

    def step(self, actions):
        self.observations[:, 0] += actions[:, 0]
        self.observations[:, 1:] -= actions[:, 1:]
        self.rewards[:] = self.observations.sum(1)
        self.terminals[:] = self.observations[:, 0] > 9
        self.truncations[:] = self.observations[:, 1] < -8
        self.masks[:] = self.rng.random(2) < 0.8
        ended = self.terminals | self.truncations
        infos = [{"score": float(reward), "notes": self.notes} for reward in self.rewards[ended]]
        self.observations[ended] = 0
        return self.observations, self.rewards, self.terminals, self.truncations, infos

    def notify(self):
        self.notes += 1

    def close(self):
        pass


class PlainCounters(Counters):
    """Without the buffer that pufferlib-core has added."""

    def __init__(self, buf=None, seed=0):
        super().__init__(buf=buf, seed=seed)
        del self.teacher_actions


class Undetermined(ToyEnv):
    """Observations depend on the number of envs that were built before, so its episodes cannot be repeated."""

    def __init__(self, file):
        super().__init__(100)
        with open(file, "ab") as built:
            built.write(b".")
            self.offset = built.tell()

    def step(self, action):
        obs, *rest = super().step(action)
        return obs + self.offset, *rest


def make(creator, backend=VecenvBackend, num_envs=4, **kwargs):
    return contextlib.closing(pufferlib.vector.make(creator, backend=backend, num_envs=num_envs, **kwargs))


def own(value):
    """Return copies of the arrays that a backend returned."""
    return tuple(part.copy() if isinstance(part, np.ndarray) else part for part in value)


def draw_actions(envs, count):
    """Return actions of all agents, whole numbers as int32: GymnasiumPufferEnv misreads others of nested spaces."""
    space = envs.action_space
    space.seed(3)
    dtype = np.int32 if space.dtype == np.int64 else space.dtype
    return [space.sample().astype(dtype) for _ in range(count)]


def record(envs, actions, seeds=(7, None, 11)):
    """Return all outputs of resets and of steps with these actions."""
    found = []
    for seed in seeds:
        found.append(own(envs.reset(seed)))
        for action in actions:
            envs.send(action)
            found.append(own(envs.recv()))
    return found


SPACES = {
    "cartpole": creator_of(make_cartpole),
    "continuous": creator_of(functools.partial(gymnasium.make, "Pendulum-v1", max_episode_steps=15)),
    "nested spaces": creator_of(
        functools.partial(
            SpaceEnv,
            Dict(a=Box(-1, 1, (2,)), b=Tuple((Discrete(3), Box(0, 255, (2, 2), np.uint8)))),
            Dict(a=Discrete(2), b=Discrete(3)),
        )
    ),
    "agents": creator_of(Walkers, PettingZooPufferEnv),
    "native": Counters,
}


@pytest.mark.parametrize("creator", SPACES.values(), ids=SPACES)
def test_all_outputs_equal_serial(creator):
    with make(creator, pufferlib.vector.Serial) as theirs, make(creator, SERIAL) as ours:
        for name in ("num_agents", "agents_per_batch", "num_envs", "single_observation_space", "emulated"):
            assert getattr(ours, name) == getattr(theirs, name)
        assert ours.action_space == theirs.action_space
        assert ours.observation_space == theirs.observation_space
        actions = draw_actions(theirs, NUM_STEPS)
        assert_same(record(ours, actions), record(theirs, actions))


def test_batches_are_blocks_of_envs_in_turns():
    """Each block has contiguous agent ids, and gives what Serial gives for its envs."""
    num_envs, agents_per_block = 6, 2 * 3
    creator = SPACES["agents"]
    with make(creator, pufferlib.vector.Serial, num_envs) as serial:
        actions = draw_actions(serial, NUM_STEPS)
        expected = record(serial, actions, seeds=[7])[1:]
    with make(creator, num_envs=num_envs, num_workers=3, batch_size=2) as envs:
        assert (envs.num_environments, envs.num_agents, envs.agents_per_batch) == (num_envs, 18, agents_per_block)
        blocks = [slice(start, start + agents_per_block) for start in (0, 6, 12)]
        envs.async_reset(7)
        for rows in blocks:
            assert envs.recv()[-2].tolist() == list(range(rows.start, rows.stop))
            envs.send(actions[0][rows])
        for step, (*buffers, _, _, masks) in enumerate(expected):
            infos = []
            for rows in blocks:
                *own_buffers, own_infos, agent_ids, own_masks = envs.recv()
                assert agent_ids.tolist() == list(range(rows.start, rows.stop))
                for mine, of_all in zip((*own_buffers, own_masks), (*buffers, masks)):
                    assert_same(mine, of_all[rows], f"step {step}")
                infos += own_infos
                envs.send(actions[(step + 1) % NUM_STEPS][rows])
            assert_same(infos, expected[step][-3])


def test_async_reset_abandons_steps_under_way():
    with make(SPACES["cartpole"], SERIAL, batch_size=2) as envs:
        first = own(envs.reset(7))
        envs.send(np.zeros(2, np.int64))
        envs.recv()
        for seed in (8, 7):  # after a step of the first block, and while all are reset
            envs.async_reset(seed)
        assert_same(own(envs.recv())[0], first[0])
        envs.send(np.zeros(2, np.int64))
        assert envs.recv()[-2].tolist() == [2, 3]


def test_results_of_workers_equal_serial_also_when_one_is_killed():
    creator = SPACES["cartpole"]
    with make(creator, pufferlib.vector.Serial) as serial:
        actions = draw_actions(serial, NUM_STEPS)
        expected = record(serial, actions, seeds=[7])
    with make(creator, num_workers=2) as envs:
        assert_same(own(envs.reset(7)), expected[0])
        for step, action in enumerate(actions):
            if step == 25:
                os.kill(envs.vector_env.worker_pids[0], signal.SIGKILL)
            envs.send(action)
            *buffers, infos, agent_ids, masks = own(envs.recv())
            kept = [info for info in infos if not info.pop("recovered", None) or info]
            assert_same((*buffers, kept, agent_ids, masks), expected[1 + step], f"step {step}")
        assert envs.statistics()["replayed"] == 2


def test_episode_that_cannot_be_restored_ends_truncated(tmp_path):
    creator = creator_of(functools.partial(Undetermined, str(tmp_path / "built")))
    with make(creator, num_envs=2, num_workers=2) as envs:
        envs.reset(7)
        for _ in range(3):
            envs.step(np.zeros(2, np.int64))
        os.kill(envs.vector_env.worker_pids[1], signal.SIGKILL)
        obs, rewards, terminals, truncations, infos = envs.step(np.zeros(2, np.int64))
        assert truncations.tolist() == [False, True] and not terminals.any()
        assert rewards[1] == 0 and infos[-1]["recovered"] == "truncated"


def test_native_env_without_teacher_actions_gives_the_values_of_pufferlib_3_0_0():
    """PufferLib 3.0.0 has no such buffer, and its `recv` returns seven values; pufferlib-core has added one."""
    with make(PlainCounters, SERIAL) as envs:
        envs.async_reset(1)
        obs, rewards, terminals, truncations, infos, agent_ids, masks = envs.recv()
        assert obs.shape == (8, 3) and masks.all() and agent_ids.tolist() == list(range(8))


def test_notify_reaches_every_env():
    with make(Counters, pufferlib.vector.Serial) as theirs, make(Counters, SERIAL) as ours:
        actions = draw_actions(theirs, NUM_STEPS)
        for envs in (theirs, ours):
            envs.reset(3)
            envs.notify()
        assert_same(record(ours, actions, [5]), record(theirs, actions, [5]))


def test_exception_of_an_env_reaches_the_caller():
    with make(creator_of(RaiseAtStep), SERIAL) as envs:
        envs.reset(1)
        with pytest.raises(ZeroDivisionError):
            for _ in range(NUM_STEPS):
                envs.step(np.zeros(4, np.int64))
        envs.reset(1)  # continues


def test_wrong_order_of_calls_is_refused_as_by_serial():
    with make(SPACES["cartpole"], SERIAL) as envs:
        with pytest.raises(pufferlib.APIUsageError, match="reset"):
            envs.recv()
        with pytest.raises(pufferlib.APIUsageError, match="reset"):
            envs.send(np.zeros(4, np.int64))
        envs.async_reset(1)
        envs.recv()
        with pytest.raises(pufferlib.APIUsageError, match="action space"):
            envs.send(np.zeros(3, np.int64))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"batch_size": 3}, "batch_size: expected a divisor of num_envs=4, got 3"),
        ({"infos": "none"}, "'infos' has no effect on PufferLib"),
        ({"mark_autoreset": True}, "'mark_autoreset' has no effect"),
        ({"num_worker": 2}, "did you mean 'num_workers'"),
    ],
)
def test_wrong_options_are_refused(options, message):
    creator = SPACES["cartpole"]
    with pytest.raises(ConfigError, match=message):
        VecenvBackend([creator] * 4, [()] * 4, [{}] * 4, 4, **options)


def test_envs_of_other_libraries_are_refused():
    with pytest.raises(pufferlib.APIUsageError):
        make(lambda buf=None, seed=0: make_cartpole())


def test_options_of_vector_env_by_partial_and_no_pickle():
    backend = functools.partial(VecenvBackend, backend="serial", timeouts={"step": 10.0})
    with make(SPACES["cartpole"], backend) as envs:
        assert "backend='serial'" in repr(envs)
        envs.reset(1)
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(envs)
        assert envs.statistics()["steps"] == 0 and not envs.report().verdicts
