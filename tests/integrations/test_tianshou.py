"""VecenvVectorEnv keeps the contract of Tianshou's BaseVectorEnv: it gives the results of DummyVectorEnv."""

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
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple

pytest.importorskip("tianshou", exc_type=ImportError)

from tianshou.algorithm.algorithm_base import Policy
from tianshou.data import AsyncCollector, Batch, Collector, VectorReplayBuffer
from tianshou.env import BaseVectorEnv, DummyVectorEnv, VectorEnvNormObs

from tests.vector.comparison import assert_same
from vecenv import ClosedError, ConfigError, FailurePolicy, SpaceError, StateError, WorkerTimeoutError
from vecenv.envs.toys import HangAtStep, KeepsAction, RaiseAtStep, SpaceEnv, ToyEnv
from vecenv.integrations.tianshou import VecenvVectorEnv

BACKENDS = ["serial", "process"]
CARTPOLE = functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=20)


class InfoEnv(ToyEnv):
    """Gives infos of several types; their keys differ from step to step and from env to env."""

    def make_info(self):
        draw = int(self.np_random.integers(4))
        info: dict[str, Any] = {"steps": self.elapsed_steps, "half": self.elapsed_steps / 2, "flag": draw > 1}
        if draw & 1:
            info.update(small=np.float32(draw), name=f"env {draw}", nested={"array": np.arange(draw)})
        return info if draw else {}


class GatedEnv(ToyEnv):
    """Wait in each step with action 1 until something is written to a named pipe."""

    def __init__(self, gate):
        super().__init__()
        self.gate = gate

    def step(self, action):
        if action == 1:
            with open(self.gate, "rb") as file:
                file.read()
        return super().step(action)


class RenderEnv(ToyEnv):
    """Render the arguments of `render`."""

    render_mode = "rgb_array"

    def render(self, **kwargs):
        return kwargs


@pytest.fixture
def gate(tmp_path):
    """Return a path; an env of `gated` that steps with action 1 waits until `open_gate`."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return str(path)


@pytest.fixture
def gated(gate):
    """Return a function that makes three envs, each in a worker of its own, and resets them."""
    with contextlib.ExitStack() as stack:

        def make(**kwargs):
            envs = VecenvVectorEnv([functools.partial(GatedEnv, gate)] * 3, num_workers=3, **kwargs)
            stack.callback(envs.close)
            envs.seed(0)
            return envs

        yield make


def open_gate(path):
    os.close(os.open(path, os.O_WRONLY))  # returns when the env waits there


def ids_of(infos):
    return sorted(info["env_id"] for info in infos)


def compare(env_fns, num_steps=40, **kwargs):
    """Step both with the same actions from the same seeds, reset the envs that ended, and compare every result."""
    with (
        contextlib.closing(DummyVectorEnv(env_fns)) as theirs,
        contextlib.closing(VecenvVectorEnv(env_fns, **kwargs)) as ours,
    ):
        assert len(ours) == len(theirs)
        assert ours.action_space == theirs.action_space
        assert ours.observation_space == theirs.observation_space
        actions = theirs.action_space[0]
        actions.seed(3)
        seeds = [[5 + i] if one is None else one for i, one in enumerate(theirs.seed(5))]  # None of a PettingZooEnv
        assert_same(ours.seed(5), seeds, "seed")
        assert_same(ours.reset(), theirs.reset(), "reset")
        rng = np.random.default_rng(1)
        for i in range(num_steps):
            ids = rng.permutation(len(env_fns))[: 1 + i % len(env_fns)].tolist()
            action = np.array([actions.sample() for _ in ids], object if isinstance(actions, Dict) else None)
            results = theirs.step(action, ids)
            assert_same(ours.step(action, ids), results, f"step {i}")
            ended = [ids[row] for row in np.flatnonzero(results[2] | results[3])]
            if ended:
                assert_same(ours.reset(ended), theirs.reset(ended), f"reset after step {i}")
        for env_id in (None, 1, np.array([2, 0])):
            assert_same(ours.reset(env_id, seed=4), theirs.reset(env_id, seed=4), f"reset {env_id}")


@pytest.mark.parametrize("backend", BACKENDS)
def test_infos_and_partial_resets_equal_dummy_vector_env(backend):
    compare([functools.partial(InfoEnv, length) for length in (3, 4, 5)], backend=backend)


@pytest.mark.parametrize(
    "env_fn",
    [
        CARTPOLE,
        functools.partial(SpaceEnv, Dict(a=Box(-1, 1, (2,)), b=Dict(c=Discrete(3)))),
        functools.partial(SpaceEnv, Discrete(5)),
        functools.partial(KeepsAction, Box(-1, 1, (2,))),
        functools.partial(KeepsAction, MultiBinary(3)),
        functools.partial(SpaceEnv, action_space=Dict(a=Box(-1, 1, (2,)), b=Discrete(3))),
    ],
    ids=["cartpole", "dict observations", "discrete observations", "box actions", "bits", "dict actions"],
)
def test_spaces_equal_dummy_vector_env(env_fn):
    compare([env_fn] * 3)


# ---- observations and rewards of any form ----------------------------------------------------


class RaggedEnv(ToyEnv):
    """Its observations grow with each step, and its rewards are lists that it changes afterwards."""

    def __init__(self, length=4, is_ragged=True):
        super().__init__(length)
        self.is_ragged, self.rewards = is_ragged, [0, 0]

    def reset(self, **kwargs):
        _, info = super().reset(**kwargs)
        return self.grown(), info

    def step(self, action):
        _, _, *others = super().step(action)
        self.rewards[action] = self.elapsed_steps
        return self.grown(), self.rewards, *others

    def grown(self):
        return np.full((1 + self.elapsed_steps * self.is_ragged, 2), self.action_sum, np.float16)


def turn_based():
    """Return Tianshou's env of a game of two players; its observations are not those of its space."""
    classic = pytest.importorskip("pettingzoo.classic", exc_type=ImportError)
    from tianshou.env import PettingZooEnv

    return PettingZooEnv(classic.tictactoe_v3.env())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "env_fn", [turn_based, RaggedEnv, functools.partial(RaggedEnv, is_ragged=False), CARTPOLE, InfoEnv]
)
@pytest.mark.filterwarnings("ignore:The old environment creation API has been deprecated:DeprecationWarning")
def test_objects_of_any_form_equal_those_of_dummy_vector_env(env_fn, backend):
    env_fn()  # skips the test if PettingZoo is missing
    compare([env_fn] * 3, backend=backend, shared_memory=False)


class SpacelessEnv(gymnasium.Env):
    """Has no spaces; each reset takes the next item of a list."""

    def __init__(self):
        self.items = iter([[1, 2], [3], [4, 5, 6]] * 9)

    def reset(self, *, seed=None, options=None):
        self.left = list(next(self.items))
        return np.array(self.left), {}

    def step(self, action):
        self.left.pop()
        return np.array(self.left), 1.0, not self.left, False, {"action": action}


class NamesSpaces(SpacelessEnv):
    """Has the attributes that DummyVectorEnv reads."""

    observation_space = action_space = None


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shared_memory", [True, False])
def test_envs_without_spaces_equal_those_of_dummy_vector_env(backend, shared_memory):
    """They were refused. The reset in which vecenv looks for spaces must not be seen."""
    options = {"backend": backend, "shared_memory": shared_memory}
    with (
        contextlib.closing(DummyVectorEnv([NamesSpaces] * 3)) as theirs,
        contextlib.closing(VecenvVectorEnv([SpacelessEnv] * 3, **options)) as ours,
    ):
        assert_same(ours.reset(), theirs.reset(), "reset")
        for i in range(8):
            actions = np.array(["left", {"right": i}, 7], object)
            results = theirs.step(actions)
            assert_same(ours.step(actions), results, f"step {i}")
            ended = np.flatnonzero(results[2]).tolist()
            if ended:
                assert_same(ours.reset(ended), theirs.reset(ended), f"reset after step {i}")


def test_envs_may_differ_in_the_bounds_of_observations():
    compare([functools.partial(SpaceEnv, Box(0, high, (2,))) for high in (1, 2, 3)])


def test_whole_numbers_that_are_floats_are_actions():
    """Tianshou's AsyncCollector keeps discrete actions as float64."""
    with contextlib.closing(VecenvVectorEnv([ToyEnv] * 2, backend="serial")) as envs:
        envs.reset()
        assert envs.step(np.array([1.0, 0.0]))[1].shape == (2,)
        with pytest.raises(SpaceError, match="expected int64"):
            envs.step(np.array([0.5, 0.0]))


@pytest.mark.parametrize("kwargs", [{"wait_num": 1}, {"timeout": 9.0}])
def test_envs_that_are_not_waited_for_have_workers_of_their_own(kwargs):
    with contextlib.closing(VecenvVectorEnv([ToyEnv] * 3, **kwargs)) as envs:
        assert len(set(envs.vector_env.worker_pids)) == 3


def test_errors_of_forms_name_the_option_that_accepts_them():
    with contextlib.closing(VecenvVectorEnv([RaggedEnv], backend="serial")) as envs:
        with pytest.raises(SpaceError, match="obs: expected") as caught:
            envs.reset()
        assert any("shared_memory=False takes observations" in note for note in caught.value.__notes__)


@pytest.mark.extended
@pytest.mark.native
@pytest.mark.parametrize("is_restored", [True, False])
def test_objects_after_a_killed_worker(is_restored):
    """A restored episode continues; one that is not ends with its last observation and rewards of zero."""
    failures = FailurePolicy() if is_restored else FailurePolicy(max_log_bytes=0)
    options = {"shared_memory": False, "num_workers": 2, "failures": failures}
    with contextlib.closing(VecenvVectorEnv([functools.partial(RaggedEnv, 9)] * 2, **options)) as envs:
        envs.seed(1)
        for _ in range(3):
            envs.step([1, 1])
        os.kill(envs.vector_env.worker_pids[1], signal.SIGKILL)
        obs, rewards, _, truncations, infos = envs.step([1, 1])
        assert truncations.tolist() == [False, not is_restored]
        assert infos[1]["recovered"] == ("replayed" if is_restored else "truncated")
        assert [len(one) for one in obs] == [5, 5 if is_restored else 4]
        assert rewards.tolist() == [[0, 4], [0, 4] if is_restored else [0, 0]]


class DyingEnv(RaggedEnv):
    """Ends its process in the first step of an episode, if its number is 1."""

    def __init__(self, number):
        super().__init__(9)
        self.number = number

    def step(self, action):
        if self.number == 1 and self.elapsed_steps == 0:
            os._exit(3)
        return super().step(action)


@pytest.mark.extended
@pytest.mark.native
def test_objects_after_an_episode_without_any_step(tmp_path):
    """There is no reward of this env whose form a lost row could have."""
    failures = FailurePolicy(reproducer_dir=str(tmp_path))
    env_fns = [functools.partial(DyingEnv, number) for number in range(2)]
    with contextlib.closing(VecenvVectorEnv(env_fns, shared_memory=False, failures=failures)) as envs:
        envs.reset()
        _, rewards, _, truncations, _ = envs.step([1, 1])
        assert truncations.tolist() == [False, True] and rewards.tolist() == [[0, 1], [0, 0]]


# ---- collectors ------------------------------------------------------------------------------


class SignPolicy(Policy):
    """Push the cart to the side to which the pole leans; the hidden state is never read."""

    def forward(self, batch, state=None, **kwargs):
        obs = np.asarray(batch.obs)
        return Batch(act=(obs[:, 2] > 0).astype(np.int64), state=Batch(hidden=np.zeros((len(obs), 1))))


def collector_of(envs, make=Collector, **kwargs):
    envs.seed(3)
    policy = SignPolicy(action_space=envs.action_space[0], action_bound_method=None)
    collector = make(policy, envs, VectorReplayBuffer(300, len(envs)), **kwargs)
    collector.reset()
    return collector


def collected(collector):
    """Return all transitions in the buffer, in its order, as a dict of arrays."""
    buffer = collector.buffer
    transitions, indices = buffer.sample(0)
    return {"indices": indices, **transitions.to_dict()}


def collect(make_envs, wrap=lambda envs: envs, **kwargs):
    """Collect twice, and return the buffer and the statistics of both."""
    with contextlib.closing(wrap(make_envs([CARTPOLE] * 3))) as envs:
        collector = collector_of(envs)
        found = [collector.collect(**kwargs) for _ in range(2)]
        return collected(collector), [(stats.returns, stats.lens) for stats in found]


@pytest.mark.parametrize("wrap", [lambda envs: envs, VectorEnvNormObs], ids=["plain", "norm obs"])
@pytest.mark.parametrize("kwargs", [{"n_step": 60}, {"n_episode": 4}], ids=["steps", "episodes"])
def test_buffer_of_collector_equals_that_of_dummy_vector_env(wrap, kwargs):
    assert_same(collect(VecenvVectorEnv, wrap, **kwargs), collect(DummyVectorEnv, wrap, **kwargs))


def test_buffer_of_random_actions_equals_that_of_dummy_vector_env():
    assert_same(collect(VecenvVectorEnv, n_step=60, random=True), collect(DummyVectorEnv, n_step=60, random=True))


def test_buffer_of_async_collector_has_the_transitions_of_dummy_vector_env():
    """The envs finish in any order, so each env's transitions are the first ones of a longer run."""
    with (
        contextlib.closing(DummyVectorEnv([CARTPOLE] * 3)) as theirs,
        contextlib.closing(VecenvVectorEnv([CARTPOLE] * 3, wait_num=2)) as ours,
    ):
        expected = collector_of(theirs)
        expected.collect(n_step=240)
        with pytest.warns(UserWarning, match="async"):
            found = collector_of(ours, AsyncCollector)
        found.collect(n_step=90)
        assert len(found.buffer) in (90, 91, 92)
        for mine, longer in zip(found.buffer.buffers, expected.buffer.buffers):
            count = len(mine)
            assert 0 < count <= len(longer)
            for key in ("obs", "rew", "terminated", "truncated", "obs_next"):
                assert_same(mine[:count][key], longer[:count][key], key)
            assert mine.act[:count].tolist() == longer.act[:count].tolist()  # AsyncCollector keeps them as float64
        found.reset()  # while envs may be stepping
        assert ours.waiting_id == []


def test_resets_of_ended_envs_take_spare_envs():
    with contextlib.closing(VecenvVectorEnv([functools.partial(ToyEnv, 4)] * 2, num_spare_envs=2)) as envs:
        envs.seed(0)
        for _ in range(4):
            *_, terminations, _, _ = envs.step([1, 1])
        assert terminations.all()
        obs, _ = envs.reset([1, 0])
        assert obs[:, :2].tolist() == [[0.0, 0.0]] * 2
        assert envs.get_env_attr("num_steps") == [0, 0], "these envs have never been stepped"


@pytest.mark.native
def test_buffer_after_a_killed_worker_equals_that_of_dummy_vector_env():
    with (
        contextlib.closing(DummyVectorEnv([CARTPOLE] * 3)) as theirs,
        contextlib.closing(VecenvVectorEnv([CARTPOLE] * 3, num_workers=3)) as ours,
    ):
        expected = collector_of(theirs)
        expected.collect(n_step=90)
        steps = iter(range(1000))

        def kill_once(*_):
            if next(steps) == 13:
                os.kill(ours.vector_env.worker_pids[1], signal.SIGKILL)

        found = collector_of(ours, on_step_hook=kill_once)
        found.collect(n_step=90)
        got = collected(found)
        assert ours.vector_env.statistics()["restarts"] == 1
        assert list(got["info"].pop("recovered")).count("replayed") == 1
        assert_same(got, collected(expected))


# ---- asynchronous steps ----------------------------------------------------------------------


def test_step_returns_the_first_envs(gated, gate):
    envs = gated(wait_num=2)
    assert envs.is_async
    obs, rewards, _, _, infos = envs.step([1, 0, 0])
    assert ids_of(infos) == [1, 2] and obs.shape == (2, 4) and rewards.tolist() == [1.0, 1.0]
    assert envs.waiting_id == [0] and envs.ready_id == [1, 2]
    with pytest.raises(AssertionError, match=r"envs \[0\] are stepping"):
        envs.step([0, 0], [0, 1])
    with pytest.raises(StateError, match=r"envs \[0\] are stepping"):
        envs.render()
    open_gate(gate)
    *_, infos = envs.step(None)  # fewer envs step than wait_num
    assert ids_of(infos) == [0] and envs.ready_id == [0, 1, 2]
    with pytest.raises(StateError, match="no env is stepping"):
        envs.step(None)


def test_step_returns_after_the_timeout(gated, gate):
    envs = gated(timeout=0.2)
    assert envs.is_async and envs.wait_num == 3
    *_, infos = envs.step([1, 0, 0])
    assert ids_of(infos) == [1, 2] and envs.waiting_id == [0]
    open_gate(gate)
    *_, infos = envs.step(None)
    assert ids_of(infos) == [0]


def test_partial_reset_keeps_the_results_of_other_envs(gated, gate):
    envs = gated(wait_num=1)
    envs.step([0, 0, 0])  # one result arrives, or more
    while envs.waiting_id:
        envs.step(None)
    envs.step([1, 0], [0, 1])
    obs, infos = envs.reset(2)
    assert obs.shape == (1, 4) and obs[0, 0] == 0.0 and infos.tolist() == [{}]
    open_gate(gate)
    obs, *_, infos = envs.step(None)
    assert ids_of(infos) == [0] and obs[0, 0] == 2.0, "the second step of its episode"


def test_reset_abandons_steps(gated, gate):
    envs = gated(wait_num=2)
    envs.step([1, 0, 0])
    open_gate(gate)
    obs, _ = envs.reset()
    assert obs[:, 0].tolist() == [0.0] * 3 and envs.ready_id == [0, 1, 2]
    *_, infos = envs.step([0, 0, 0])
    assert len(infos) >= 2


def test_limit_of_an_env_is_not_the_timeout_of_step():
    options = {"timeout": 60.0, "timeouts": {"step": 0.1, "close": 0.1}, "failures": "raise"}
    with contextlib.closing(VecenvVectorEnv([functools.partial(HangAtStep, at=1)], **options)) as envs:
        envs.reset()
        with pytest.raises(WorkerTimeoutError, match="step"):
            envs.step([0])


# ---- attributes, arguments, end --------------------------------------------------------------


def test_attributes_and_rendering():
    wrapped = functools.partial(gymnasium.wrappers.TimeLimit, RenderEnv(), 9)
    with contextlib.closing(VecenvVectorEnv([wrapped, RenderEnv], backend="serial")) as envs:
        assert isinstance(envs, BaseVectorEnv)
        assert envs.observation_space == [RenderEnv().observation_space] * 2
        assert envs.reward_range == [None] * 2, "as in SubprocVectorEnv: there is none"
        assert envs.render() == [{}, {}]
        envs.set_env_attr("color", "red", 0)
        assert envs.get_env_attr("color", [1, 0]) == [None, "red"]
        assert envs.vector_env.envs[0].unwrapped.color == "red"
        assert envs.get_env_attr("_max_episode_steps") == [9, None]
        assert "num_envs=2" in repr(envs)
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(envs)


def test_closed_vector_env_refuses_calls():
    envs = VecenvVectorEnv([ToyEnv], backend="serial")
    envs.close()
    envs.close()
    assert envs.is_closed
    for call in (envs.reset, envs.seed, envs.render, lambda: envs.step([0]), lambda: envs.get_env_attr("spec")):
        with pytest.raises(ClosedError, match="the vector env is closed") as caught:
            call()
        assert isinstance(caught.value, AssertionError)


def test_exception_of_an_env_is_raised():
    with contextlib.closing(VecenvVectorEnv([functools.partial(RaiseAtStep, at=1)], backend="serial")) as envs:
        envs.reset()
        with pytest.raises(Exception, match="raised on purpose|step"):
            envs.step([0])


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda envs: envs.step(None), ValueError, "actions are needed"),
        (lambda envs: envs.step([0]), AssertionError, "expected 2 actions"),
        (lambda envs: envs.step(0), SpaceError, "expected 2 actions"),
        (lambda envs: envs.step([0], 5), ConfigError, "^step: env_id 5 is not in 0..1"),
        (lambda envs: envs.step([0, 0], [1, 1]), ConfigError, "^step: env_id: an env is named twice"),
        (lambda envs: envs.reset([0, 5]), ConfigError, "env_id 5 is not in 0..1"),
        (lambda envs: envs.seed([1]), ValueError, "expected 2 seeds"),
    ],
)
def test_wrong_calls_are_refused(call, error, text):
    with contextlib.closing(VecenvVectorEnv([ToyEnv] * 2, backend="serial")) as envs:
        envs.reset()
        with pytest.raises(error, match=text):
            call(envs)


@pytest.mark.parametrize(
    "kwargs, error, text",
    [
        ({"wait_num": 3}, AssertionError, "wait_num: expected a whole number of at least 1 and at most 2"),
        ({"timeout": 0}, AssertionError, "timeout"),
        ({"num_worker": 1}, ConfigError, "did you mean 'num_workers'"),
        ({"autoreset_mode": "SameStep"}, ConfigError, "'autoreset_mode' has no effect on Tianshou"),
    ],
)
def test_wrong_arguments_are_refused(kwargs, error, text):
    with pytest.raises(error, match=text):
        VecenvVectorEnv([ToyEnv] * 2, **kwargs)


def test_tuple_observations_are_refused():
    with pytest.raises(TypeError, match="does not support observations that are tuples"):
        VecenvVectorEnv([functools.partial(SpaceEnv, Tuple([Discrete(2), Discrete(2)]))], backend="serial")
