"""SB3VecEnv keeps the contract of Stable-Baselines3's VecEnv: it gives the results of DummyVecEnv."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import pickle
import signal

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

pytest.importorskip("stable_baselines3")

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecMonitor, VecNormalize

from tests.scripted import Plain
from tests.vector.comparison import assert_same
from tests.vector.test_batched import GivesOptions, InfoEnv
from vecenv import (
    ClosedError,
    ConfigError,
    SpaceError,
    StateError,
    VectorEnv,
    WorkerDiedError,
    WorkerTimeoutError,
    evaluate,
)
from vecenv.envs.toys import AliasedObs, HangAtStep, RaiseAtStep, SegfaultAtStep, SpaceEnv, ToyEnv
from vecenv.integrations.sb3 import SB3VecEnv

pytestmark = pytest.mark.sb3

BACKENDS = ["serial", "process"]
CARTPOLE = functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=20)


def compare(env_fns, num_steps=60, options=None, **kwargs):
    """Step both with the same actions from the same seeds and compare every result."""
    with (
        contextlib.closing(DummyVecEnv(env_fns)) as theirs,
        contextlib.closing(SB3VecEnv(env_fns, **kwargs)) as ours,
    ):
        assert ours.observation_space == theirs.observation_space
        assert ours.action_space == theirs.action_space
        assert ours.render_mode == theirs.render_mode
        actions = copy.deepcopy(ours.action_space)
        actions.seed(3)
        for envs in (ours, theirs):
            assert list(envs.seed(5)) == list(range(5, 5 + len(env_fns)))
            envs.set_options(options)
        assert_same(ours.reset(), theirs.reset(), "reset")
        assert_same(ours.reset_infos, theirs.reset_infos, "reset_infos")
        for i in range(num_steps):
            action = np.stack([actions.sample() for _ in env_fns])
            assert_same(ours.step(action), theirs.step(action), f"step {i}")
            assert_same(list(ours.reset_infos), list(theirs.reset_infos), f"reset_infos {i}")
        assert_same(ours.reset(), theirs.reset(), "second reset")


@pytest.mark.parametrize("backend", BACKENDS)
def test_cartpole_equals_dummy_vec_env(backend):
    compare([CARTPOLE] * 3, num_steps=200, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_infos_equal_dummy_vec_env(backend):
    compare([functools.partial(InfoEnv, length) for length in (3, 4, 5)], backend=backend)


@pytest.mark.parametrize(
    "observations",
    [
        Box(-1, 1, (2, 3), np.float32),
        Box(0, 255, (4, 4, 3), np.uint8),
        Discrete(5),
        MultiDiscrete([3, 4]),
        MultiBinary(3),
        Dict(camera=Box(0, 255, (2, 2), np.uint8), speed=Box(-1, 1, (1,), np.float32)),
        Tuple((Box(-1, 1, (2,), np.float32), Discrete(3))),
    ],
    ids=lambda space: type(space).__name__,
)
@pytest.mark.parametrize("actions", [Box(-1, 1, (2,), np.float32), MultiDiscrete([2, 3])], ids=["box", "multi"])
def test_spaces_are_accepted(observations, actions):
    compare(
        [functools.partial(SpaceEnv, observations, actions, length=n) for n in (3, 4)], num_steps=12, backend="serial"
    )


class EchoEnv(gymnasium.Env):
    """Its infos contain the action that it received."""

    def __init__(self, action_space):
        self.observation_space, self.action_space = Box(-1, 1, (2,), np.float32), action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {"action": copy.deepcopy(action)}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "space",
    [Tuple((Discrete(4), Discrete(4))), Dict(a=Discrete(4), b=Box(-1, 1, (2,), np.float32))],
    ids=["tuple", "dict"],
)
def test_actions_of_several_parts_are_split_per_env(space, backend):
    env_fns = [functools.partial(EchoEnv, space)] * 2
    space.seed(1)
    with (
        contextlib.closing(DummyVecEnv(env_fns)) as theirs,
        contextlib.closing(SB3VecEnv(env_fns, backend=backend, num_workers=2)) as ours,
    ):
        for envs in (ours, theirs):
            envs.reset()
        for _ in range(5):
            actions = [space.sample() for _ in env_fns]
            assert_same(ours.step(actions), theirs.step(actions))
        with pytest.raises(SpaceError):
            ours.step(actions[:1])


def test_actions_may_be_a_dict_of_columns():
    with contextlib.closing(SB3VecEnv([functools.partial(EchoEnv, Dict(a=Discrete(4)))] * 2, backend="serial")) as envs:
        envs.reset()
        infos = envs.step({"a": np.array([1, 3])})[3]
        assert [info["action"] for info in infos] == [{"a": 1}, {"a": 3}]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (MultiBinary(3), [[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]]),
        (Discrete(3), [2.0, 1.0]),
        (Box(0, 9, (2,), np.int64), [[0.5, 3.0], [2.0, 8.75]]),
        (Box(0, 255, (1,), np.uint8), [[0.0], [7.0]]),
    ],
    ids=["binary", "discrete", "box", "bytes"],
)
def test_float_actions_for_integer_spaces(space, actions, backend):
    with contextlib.closing(SB3VecEnv([functools.partial(EchoEnv, space)] * 2, backend=backend)) as envs:
        envs.reset()
        infos = envs.step(np.array(actions, np.float32))[3]
        np.testing.assert_array_equal([info["action"] for info in infos], np.array(actions, np.float32))
        assert {np.asarray(info["action"]).dtype.kind for info in infos} == {"f" if isinstance(space, Box) else "i"}


def test_float_actions_are_refused_by_a_strict_vec_env():
    with contextlib.closing(
        SB3VecEnv([functools.partial(EchoEnv, Discrete(3))] * 2, backend="serial", checks="strict")
    ) as envs:
        envs.reset()
        with pytest.raises(SpaceError):
            envs.step(np.zeros(2, np.float32))


@pytest.mark.extended
@pytest.mark.parametrize("space", [MultiBinary(3), Box(0, 9, (2,), np.int64)], ids=["binary", "box"])
def test_float_policies_learn(space):
    with contextlib.closing(SB3VecEnv([functools.partial(EchoEnv, space)] * 2, backend="serial")) as envs:
        PPO("MlpPolicy", envs, n_steps=4, batch_size=8, n_epochs=1, seed=1, device="cpu").learn(8)


class OwnDict(dict):
    """A dict class of the test."""


class OddInfoEnv(ToyEnv):
    """Its resets have a time-limit info, and parts of its infos are dicts of another class."""

    def reset(self, *, seed=None, options=None):
        obs, _ = super().reset(seed=seed, options=options)
        return obs, {"TimeLimit.truncated": "mine", "x": 1}

    def step(self, action):
        obs, reward, terminated, truncated, _ = super().step(action)
        frozen = np.full(50, reward)  # too large for a column
        frozen.flags.writeable = False
        return obs, reward, terminated, truncated, {"own": OwnDict(a="text"), "inner": {"frozen": frozen}}


@pytest.mark.parametrize("backend", BACKENDS)
def test_reset_and_final_infos_are_unchanged(backend):
    with (
        contextlib.closing(DummyVecEnv([OddInfoEnv] * 2)) as theirs,
        contextlib.closing(SB3VecEnv([OddInfoEnv] * 2, backend=backend)) as ours,
    ):
        for envs in (ours, theirs):
            envs.seed(5)
            envs.reset()
        num_ends = 0
        for _ in range(12):
            result, expected = ours.step([0, 1]), theirs.step([0, 1])
            assert_same(result, expected)
            assert [type(info["own"]) for info in result[3]] == [OwnDict, OwnDict]
            assert all(info["inner"]["frozen"].flags.writeable for info in result[3]), "as SubprocVecEnv's"
            assert_same(list(ours.reset_infos), list(theirs.reset_infos))
            num_ends += int(result[2].sum())
        assert num_ends > 0


def test_vec_env_has_the_statistics_of_its_pool():
    with SB3VecEnv([ToyEnv] * 2, backend="serial") as envs:
        envs.reset()
        envs.step(np.zeros(2, np.int64))
        assert envs.statistics().steps == 2 and envs.statistics().envs.step.num.tolist() == [1, 1]


def test_vec_env_reports_waiting_and_closed():
    envs = SB3VecEnv([ToyEnv] * 2, backend="serial")
    envs.reset()
    assert not envs.closed and not envs.waiting
    envs.step_async([0, 1])
    assert envs.waiting
    envs.step_wait()
    assert not envs.waiting
    envs.close()
    assert envs.closed and not envs.waiting


class Truncating(ToyEnv):
    """Ends its episodes by a time limit."""

    def step(self, action):
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, False, terminated, info


@pytest.mark.parametrize("backend", BACKENDS)
def test_time_limits_and_terminal_observations_are_marked_and_owned_by_the_caller(backend):
    env_fns = [functools.partial(Truncating, 3), functools.partial(AliasedObs, 2)]
    with contextlib.closing(SB3VecEnv(env_fns, backend=backend)) as envs:
        envs.seed(0)
        envs.reset()
        results = [envs.step([1, 1]) for _ in range(6)]
    assert [list(dones) for _, _, dones, _ in results][:3] == [[False, False], [False, True], [True, False]]
    assert results[2][3][0]["TimeLimit.truncated"] is True
    assert results[1][3][1]["TimeLimit.truncated"] is False
    assert all(("terminal_observation" in info) == done for r in results for done, info in zip(r[2], r[3]))
    first, second = (results[i][3][1]["terminal_observation"] for i in (1, 3))
    assert not np.shares_memory(first, second)
    assert not any(np.shares_memory(one[0], other[0]) for one in results for other in results if one is not other)


@pytest.mark.parametrize("backend", BACKENDS)
def test_large_observations_stay_owned_by_the_caller(backend):
    """They are lent while the caller keeps few of them, and copied after that; see tests/vector/test_leases.py."""
    env_fns = [functools.partial(SpaceEnv, Dict(frame=Box(0, 255, (64, 64), np.uint8), more=Discrete(3)))] * 6
    with (
        contextlib.closing(DummyVecEnv(env_fns)) as theirs,
        contextlib.closing(SB3VecEnv(env_fns, backend=backend)) as ours,
    ):
        ours.seed(5)
        theirs.seed(5)
        batches = [(ours.reset(), theirs.reset())]
        for _ in range(20):
            mine, expected = ours.step(np.zeros(6, np.int64)), theirs.step(np.zeros(6, np.int64))
            batches.append((mine[0], copy.deepcopy(expected[0])))
        for i, pair in enumerate(batches):
            assert_same(*pair, f"batch {i}")


def test_options_reach_the_envs_once():
    compare([functools.partial(GivesOptions, 3)] * 2, num_steps=8, options={"level": 1}, backend="process")
    compare([functools.partial(GivesOptions, 3)] * 2, num_steps=8, options=[{"level": 1}, {}], backend="serial")


# ---- calls ------------------------------------------------------------------------------------


class Marked(gymnasium.Wrapper):
    """A wrapper with an attribute and methods for the tests."""

    def __init__(self, env, number):
        super().__init__(env)
        self.number = number

    def plus(self, other, *, times=1):
        return self.number + other * times

    def fail(self):
        raise LookupError(f"number {self.number}")


@pytest.fixture(params=BACKENDS)
def marked(request):
    env_fns = [functools.partial(lambda n: Marked(gymnasium.make("CartPole-v1"), n), n) for n in range(4)]
    with contextlib.closing(SB3VecEnv(env_fns, backend=request.param)) as envs:
        yield envs


@pytest.mark.parametrize(
    "indices, expected",
    [(None, [0, 1, 2, 3]), (2, [2]), ([3, 1], [3, 1]), (range(2), [0, 1]), (-1, [3]), ([1, 1], [1, 1]), ([], [])],
    ids=repr,
)
def test_indices_select_envs_in_order(marked, indices, expected):
    assert marked.get_attr("number", indices) == expected
    assert marked.env_method("plus", 10, indices=indices, times=2) == [20 + number for number in expected]
    assert marked.env_is_wrapped(Marked, indices) == [True] * len(expected)
    marked.set_attr("number", 7, indices)
    assert marked.get_attr("number") == [7 if n in expected else n for n in range(4)]


def test_attributes_are_found_in_inner_envs_and_tested_without_pickling(marked):
    assert marked.get_attr("spec", 0)[0].id == "CartPole-v1"
    assert marked.get_attr("gravity") == [9.8] * 4
    assert marked.has_attr("gravity")
    assert marked.has_attr("plus")
    assert not marked.has_attr("no_such_thing")
    with pytest.raises(AttributeError, match="no_such_thing"):
        marked.get_attr("no_such_thing")
    with pytest.raises(IndexError):
        marked.get_attr("number", 4)


def test_attributes_of_an_old_env_are_set_on_the_env_itself():
    with contextlib.closing(SB3VecEnv([Plain] * 2, backend="serial")) as envs:
        envs.reset()
        envs.set_attr("length", 1)
        assert envs.step([0, 0])[2].tolist() == [True, True]


@pytest.mark.extended
def test_attributes_set_by_the_caller_outlast_episodes_and_workers():
    """SB3's callbacks set attributes during training, where resets have no seed."""
    with contextlib.closing(SB3VecEnv([functools.partial(ToyEnv, 3)] * 2, num_workers=2)) as envs:
        envs.reset()
        envs.set_attr("truncate", True, indices=[1])
        for _ in range(4):
            envs.step([0, 0])
        for worker_pid in envs.vector_env.worker_pids:
            os.kill(worker_pid, signal.SIGKILL)
        assert envs.get_attr("truncate") == [False, True]


def test_exception_of_a_method_keeps_its_type(marked):
    with pytest.raises(LookupError, match="number 2") as caught:
        marked.env_method("fail", indices=[2, 3])
    assert "in fail" in str(caught.value.__cause__)
    assert marked.get_attr("number") == [0, 1, 2, 3]


def test_wrappers_are_known_by_class_and_base_class(marked):
    assert marked.env_is_wrapped(gymnasium.wrappers.TimeLimit) == [True] * 4
    assert marked.env_is_wrapped(gymnasium.Wrapper) == [True] * 4
    assert marked.env_is_wrapped(Monitor) == [False] * 4
    assert marked.env_is_wrapped(CartPoleEnv) == [False] * 4  # the env itself is not a wrapper


# ---- with Stable-Baselines3's own ------------------------------------------------------------------


@pytest.mark.extended
def test_make_vec_env_builds_with_monitors():
    kwargs = {"n_envs": 3, "seed": 4, "env_kwargs": {"max_episode_steps": 15}}
    ours = make_vec_env("CartPole-v1", vec_env_cls=SB3VecEnv, vec_env_kwargs={"num_workers": 2}, **kwargs)
    with contextlib.closing(ours), contextlib.closing(make_vec_env("CartPole-v1", **kwargs)) as theirs:
        assert isinstance(ours, VecEnv)
        assert ours.env_is_wrapped(Monitor) == [True] * 3
        assert_same(ours.reset(), theirs.reset())
        episodes = 0
        for _ in range(40):
            got, expected = ours.step([1, 0, 1]), theirs.step(np.array([1, 0, 1]))
            for info, other in zip(got[3], expected[3]):
                assert ("episode" in info) == ("episode" in other)
                if "episode" in info:
                    episodes += 1
                    info["episode"].pop("t"), other["episode"].pop("t")  # seconds
            assert_same(got, expected)
        assert episodes > 3


class TenthsEnv(ToyEnv):
    """Gives rewards of tenths, whose sums have rounding errors."""

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, 0.1, *rest


@pytest.mark.extended
@pytest.mark.parametrize("is_built", [False, True])
def test_episode_statistics_equal_monitors(is_built):
    env_fns = [functools.partial(TenthsEnv, length) for length in (3, 4)]
    options = {"episode_statistics": True, "num_workers": 1}
    envs = SB3VecEnv(VectorEnv(env_fns, autoreset_mode="SameStep", **options) if is_built else env_fns,
                     **{} if is_built else options)  # fmt: skip
    monitors = DummyVecEnv([functools.partial(_monitored, env_fn) for env_fn in env_fns])
    with contextlib.closing(envs), contextlib.closing(monitors):
        for one in (envs, monitors):
            one.seed(1), one.reset()
        episodes = 0
        for _ in range(12):
            got, expected = (one.step(np.zeros(2, np.int64)) for one in (envs, monitors))
            for info, other in zip(got[3], expected[3]):
                if "episode" in other:
                    episodes += 1
                    seconds, others = info["episode"].pop("t"), other["episode"].pop("t")
                    assert type(seconds) is float and 0 < seconds < others and seconds == round(seconds, 6)
                    assert [type(value) for value in info["episode"].values()] == [float, int]
            assert_same(got, expected)
        assert episodes == 4 + 3


def _monitored(env_fn):
    return Monitor(env_fn())


def test_statistics_of_two_sources_are_refused():
    with contextlib.closing(
        SB3VecEnv([lambda: _monitored(CARTPOLE)], backend="serial", episode_statistics=True)
    ) as envs:
        envs.reset()
        with pytest.raises(ConfigError, match="'episode' already"):
            for _ in range(20):
                envs.step([1])


@pytest.mark.extended
def test_monitors_write_their_files(tmp_path):
    kwargs = {"env_kwargs": {"max_episode_steps": 10}, "monitor_dir": str(tmp_path), "vec_env_cls": SB3VecEnv}
    with contextlib.closing(make_vec_env("CartPole-v1", 2, **kwargs)) as envs:
        envs.reset()
        num_episodes = sum(int(envs.step([0, 1])[2].sum()) for _ in range(40))
    files = sorted(tmp_path.glob("*.monitor.csv"))
    assert [file.name for file in files] == ["0.monitor.csv", "1.monitor.csv"]
    # Two lines precede the episodes: a description of the file, and the columns.
    assert sum(len(file.read_text().splitlines()) - 2 for file in files) == num_episodes > 4


@pytest.mark.parametrize("wrap", [VecMonitor, VecNormalize, functools.partial(VecFrameStack, n_stack=3)], ids=repr)
def test_vec_env_wrappers_work_on_top(wrap):
    wrapped = []
    for vec_env in (SB3VecEnv([CARTPOLE] * 3), DummyVecEnv([CARTPOLE] * 3)):
        envs = wrap(vec_env)
        envs.seed(2)
        first = envs.reset()
        results = [envs.step(np.array([1, 0, 1])) for _ in range(30)]
        for _, _, _, infos in results:
            for info in infos:
                info.get("episode", {}).pop("t", None)  # seconds
        wrapped.append((first, results))
        envs.close()
    assert_same(*wrapped)


@pytest.mark.extended
def test_learner_learns_the_same_and_evaluates():
    weights = []
    for vec_env in (SB3VecEnv([CARTPOLE] * 2, num_workers=1), DummyVecEnv([CARTPOLE] * 2)):
        with contextlib.closing(vec_env):
            model = PPO("MlpPolicy", VecMonitor(vec_env), n_steps=16, batch_size=16, n_epochs=2, seed=1, device="cpu")
            model.learn(64)
            weights.append([parameter.detach().numpy().copy() for parameter in model.policy.parameters()])
            returns, lengths = evaluate_policy(model, model.get_env(), 4, return_episode_rewards=True)
            assert len(returns) == 4 and max(lengths) <= 20
    assert_same(*weights)


# ---- rendering -------------------------------------------------------------------------------------


class Drawing(ToyEnv):
    """Renders its number as a grey level."""

    def __init__(self, number, render_mode=None):
        super().__init__(5)
        self.number, self.render_mode, self.rendered = number, render_mode, 0

    def render(self):
        self.rendered += 1
        return np.full((2, 2, 3), self.number, np.uint8) if self.render_mode == "rgb_array" else None


def drawings(*modes):
    return [functools.partial(Drawing, 10 + i, mode) for i, mode in enumerate(modes)]


@pytest.mark.extended
def test_images_are_tiled():
    with contextlib.closing(SB3VecEnv(drawings(*["rgb_array"] * 3))) as envs:
        assert envs.render_mode == "rgb_array"
        assert envs.metadata == {"render_modes": ["human", "rgb_array"]}
        assert [int(image.max()) for image in envs.get_images()] == [10, 11, 12]
        assert envs.render().shape == (4, 4, 3)


def test_video_recorder_finds_the_frame_rate():
    env_fn = functools.partial(gymnasium.make, "CartPole-v1", render_mode="rgb_array")
    with contextlib.closing(SB3VecEnv([env_fn], backend="serial")) as envs:
        assert envs.metadata["render_fps"] == envs.get_attr("metadata")[0]["render_fps"] == 50


@pytest.mark.extended
def test_get_images_without_images_is_an_error():
    with contextlib.closing(SB3VecEnv(drawings(None, None))) as envs:
        for vec_env in (envs, VecMonitor(envs)):
            with pytest.warns(UserWarning, match="rgb_array") as caught:
                assert vec_env.get_images() == [None, None]
            assert caught[0].filename == __file__
        with pytest.warns(UserWarning, match="no `render_mode`"):
            assert envs.render() is None


def test_human_rendering_is_left_to_the_envs():
    with contextlib.closing(SB3VecEnv(drawings("human", "human"), backend="serial")) as envs:
        assert envs.render() is None
        assert envs.get_attr("rendered") == [1, 1]


@pytest.mark.extended
def test_render_modes_must_be_the_same():
    with pytest.raises(AssertionError, match="same"):
        SB3VecEnv(drawings("human", None))


# ---- around a vector env, mistakes, end --------------------------------------------------------------


def test_vector_env_may_be_wrapped():
    vector_env = VectorEnv([CARTPOLE] * 2, autoreset_mode="SameStep", copy=False)
    with contextlib.closing(SB3VecEnv(vector_env)) as ours, contextlib.closing(DummyVecEnv([CARTPOLE] * 2)) as theirs:
        ours.seed(1), theirs.seed(1)
        results = [[envs.reset(), *(envs.step(np.array([0, 1])) for _ in range(30))] for envs in (ours, theirs)]
        assert_same(*results)
    assert vector_env.closed


def test_unseeded_first_reset_reports_its_seeds():
    with contextlib.closing(SB3VecEnv([CARTPOLE] * 2)) as envs:
        first = envs.reset()
        envs.seed(envs.vector_env.seeds[0])
        assert_same(envs.reset(), first)


def test_constructor_refuses_wrong_arguments():
    with contextlib.closing(VectorEnv([CARTPOLE])) as vector_env:
        with pytest.raises(ConfigError, match="SAME_STEP"):
            SB3VecEnv(vector_env)
        with pytest.raises(ConfigError, match="num_workers"):
            SB3VecEnv(vector_env, num_workers=2)
    with pytest.raises(ConfigError, match="SAME_STEP"):
        SB3VecEnv([CARTPOLE], autoreset_mode="NextStep")
    with (
        contextlib.closing(gymnasium.make_vec("CartPole-v1", 2, "sync")) as foreign,
        pytest.raises(ConfigError, match="SyncVectorEnv"),
    ):
        SB3VecEnv(foreign)


@pytest.mark.parametrize("backend", BACKENDS)
def test_constructor_refuses_one_env_given_twice(backend):
    env = ToyEnv(3)
    with pytest.raises(ValueError, match="envs 0 and 1 returned the same env"):
        SB3VecEnv([lambda: env] * 2, backend=backend, num_workers=1)


def test_start_method_has_the_name_of_subproc_vec_env():
    with contextlib.closing(SB3VecEnv([CARTPOLE], start_method="fork")) as envs:
        assert envs.reset().shape == (1, 4)


def test_calls_at_the_wrong_moment_are_refused():
    with contextlib.closing(SB3VecEnv([CARTPOLE] * 2)) as envs:
        envs.seed(3)
        first = envs.reset()
        with pytest.raises(StateError, match="step_async first"):
            envs.step_wait()
        envs.step_async([0, 1])
        with pytest.raises(StateError, match="call step_wait first, or reset$"):
            envs.step_async([0, 1])
        envs.seed(3)
        assert_same(envs.reset(), first)  # the pending step is abandoned
        with pytest.raises(StateError, match="step_async first"):
            envs.step_wait()
        with pytest.raises(SpaceError, match="actions|action"):
            envs.step([0, 1, 1])
        assert envs.step([0, 1])[0].shape == (2, 4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_exception_of_an_env_keeps_its_type(backend):
    with contextlib.closing(SB3VecEnv([RaiseAtStep] * 2, backend=backend)) as envs:
        envs.reset()
        with pytest.raises(ZeroDivisionError):
            for _ in range(10):
                envs.step([0, 0])
        assert envs.reset().shape == (2, 4)  # the workers are alive


@pytest.mark.extended
def test_dead_worker_is_named():
    with contextlib.closing(SB3VecEnv([SegfaultAtStep, ToyEnv], num_workers=2, failures="raise")) as envs:
        envs.reset()
        with pytest.raises(WorkerDiedError, match=r"worker 0 .*SIGSEGV"):
            for _ in range(10):
                envs.step([0, 0])


@pytest.mark.extended
def test_hanging_env_is_a_timeout():
    limits = {"step": 0.2, "close": 0.2}
    with contextlib.closing(SB3VecEnv([HangAtStep] * 2, failures="raise", timeouts=limits)) as envs:
        envs.reset()
        with pytest.raises(WorkerTimeoutError, match="step"):
            for _ in range(10):
                envs.step([0, 0])


def test_close_is_idempotent_and_later_calls_raise():
    envs = SB3VecEnv([CARTPOLE])
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(envs)
    with pytest.raises(TypeError, match="cannot be pickled"):
        copy.deepcopy(envs)
    envs.reset()
    envs.close()
    envs.close()
    for call in (envs.reset, envs.step_wait, lambda: envs.step([0]), lambda: envs.get_attr("spec")):
        with pytest.raises(ClosedError, match=r"^(reset|step_wait|step_async|get_attr): the vec env is closed$"):
            call()


def test_with_statement_closes():
    with SB3VecEnv([CARTPOLE]) as envs:
        assert envs.reset().shape == (1, 4)
    assert envs.closed


@pytest.mark.parametrize("seed", ["x", 1.5, -1, True], ids=repr)
def test_seed_of_wrong_type_is_refused_at_once(seed):
    with (
        SB3VecEnv([ToyEnv], backend="serial") as envs,
        pytest.raises(ConfigError, match="^seed: expected a whole number"),
    ):
        envs.seed(seed)


@pytest.mark.parametrize("options", [5, "x", [{}], [{}, {}, {}], [{}, 5]], ids=repr)
def test_options_of_wrong_type_are_refused_at_once(options):
    with SB3VecEnv([ToyEnv] * 2, backend="serial") as envs:
        with pytest.raises(ConfigError, match="^options: expected a dict, or 2 of them, got"):
            envs.set_options(options)
        for good in (None, {}, [{}, {}]):
            envs.set_options(good)
            envs.reset()


def test_env_is_wrapped_refuses_a_non_class():
    with SB3VecEnv([ToyEnv], backend="serial") as envs, pytest.raises(TypeError, match="expected a class, got 5"):
        envs.env_is_wrapped(5)


def test_wrong_start_method_is_refused_by_its_name():
    with pytest.raises(ConfigError, match="^start_method: expected one of .*, got 'foo'") as caught:
        SB3VecEnv([ToyEnv], start_method="foo")
    assert caught.value.key == "start_method"
    with (
        contextlib.closing(VectorEnv([ToyEnv], backend="serial", autoreset_mode="SameStep")) as envs,
        pytest.raises(ConfigError, match="start_method: the vector env has been built"),
    ):
        SB3VecEnv(envs, start_method="fork")


@pytest.mark.extended
def test_conflicting_option_names_are_refused():
    with pytest.raises(ConfigError, match="start_method='fork' and context='spawn': two names of one option") as caught:
        SB3VecEnv([ToyEnv], start_method="fork", context="spawn")
    assert caught.value.key == "start_method"
    with contextlib.closing(SB3VecEnv([ToyEnv], start_method="spawn", context="spawn")) as envs:
        assert envs.reset().shape == (1, 4)


# ---- spare envs --------------------------------------------------------------------------------------------


class Repeats(ToyEnv):
    """All episodes begin alike, so that it does not matter which env begins them."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=self.length)


@pytest.mark.parametrize("backend", BACKENDS)
def test_spare_envs_change_no_result(backend):
    env_fns = [functools.partial(Repeats, 2 + env_id) for env_id in range(3)]
    compare(env_fns, 20, backend=backend, num_spare_envs=3)


def test_calls_reach_spare_envs_and_return_rows():
    with SB3VecEnv([functools.partial(Repeats, 1)] * 2, backend="serial", num_spare_envs=2) as envs:
        envs.reset()
        envs.set_attr("mark", 5)
        envs.env_method("__setattr__", "other", 6)
        for _ in range(3):
            assert envs.get_attr("mark") == envs.get_attr("mark", [0, 1]) == [5, 5]
            assert envs.get_attr("other") == [6, 6] and envs.has_attr("other")
            envs.step([0, 0])
        envs.set_attr("mark", 7, indices=[1])
        for _ in range(2):
            assert envs.get_attr("mark") == [5, 7]
            envs.step([0, 0])


def test_models_are_evaluated_as_the_policies_that_they_are():
    """A model was no callable; its `predict` got the env ids as states of a recurrent policy."""
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=16, seed=0, device="cpu")
    wanted = evaluate("CartPole-v1", lambda obs, _: model.predict(obs, deterministic=True)[0], seeds=range(4))
    for policy in (model, model.policy, model.predict):
        assert evaluate("CartPole-v1", policy, seeds=range(4)).lengths.tolist() == wanted.lengths.tolist()


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_continues_after_load_state_dict(backend):
    """The envs are used otherwise between the save and the load; the weights are those of an undisturbed run."""
    weights = []
    for is_disturbed in (False, True):
        with contextlib.closing(SB3VecEnv([CARTPOLE] * 4, backend=backend)) as envs:
            model = PPO("MlpPolicy", envs, n_steps=32, batch_size=32, n_epochs=1, seed=3, device="cpu")
            model.learn(256)
            if is_disturbed:
                state, infos = envs.state_dict(), envs.reset_infos
                envs.seed(9)
                envs.reset()
                envs.step([0] * 4)
                envs.load_state_dict(state)
                assert envs.reset_infos == infos
            model.learn(256, reset_num_timesteps=False)
            weights.append([value.numpy().tolist() for value in model.policy.state_dict().values()])
    assert weights[0] == weights[1]


def test_saved_file_continues_in_another_vec_env(tmp_path):
    actions = np.random.default_rng(0).integers(0, 2, (40, 3))
    with contextlib.closing(SB3VecEnv([CARTPOLE] * 3, num_workers=2)) as envs:
        envs.seed(1)
        envs.reset()
        for row in actions[:25]:
            envs.step(row)
        envs.save(tmp_path / "state")
        expected = [envs.step(row)[:3] for row in actions[25:]]
    with contextlib.closing(SB3VecEnv([CARTPOLE] * 3, backend="serial", resume=tmp_path / "state")) as envs:
        envs.step_async(actions[25])
        with pytest.raises(StateError, match="save: a step is under way"):
            envs.save(tmp_path / "state")
        assert_same([envs.step_wait()[:3], *(envs.step(row)[:3] for row in actions[26:])], expected)
