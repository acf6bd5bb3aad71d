"""Gymnasium's expectations of `AsyncVectorEnv`, tested on it and on `VectorEnv` with the same code."""

from __future__ import annotations

import functools
import inspect
import multiprocessing
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Tuple
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from tests.releases import GYMNASIUM
from tests.vector.comparison import assert_same
from vecenv import VectorEnv
from vecenv.envs.toys import CountEnv, HangAtReset, HangAtStep, SpaceEnv, ToyEnv

CLASSES: dict[str, Any] = {
    "gymnasium": AsyncVectorEnv,
    "process": functools.partial(VectorEnv, backend="process", num_workers=2, timeouts={"close": 0.2}),
    "serial": functools.partial(VectorEnv, backend="serial"),
}
MODES = [pytest.param(mode, id=mode.value) for mode in AutoresetMode]

cartpole = functools.partial(gymnasium.make, "CartPole-v1")
pendulum = functools.partial(gymnasium.make, "Pendulum-v1")


@pytest.fixture(scope="module", autouse=True)
def memory_of_multiprocessing():
    """The standard library never frees the arenas of AsyncVectorEnv's shared memory, so create one at the start."""
    multiprocessing.RawArray("b", 1 << 20)


@pytest.fixture(autouse=True)
def no_log(monkeypatch):
    """Ignore AsyncVectorEnv's log warnings about errors of workers and about pending calls at close."""
    monkeypatch.setattr(gymnasium.logger, "min_level", gymnasium.logger.ERROR + 1)


@pytest.fixture(params=CLASSES)
def make(request):
    opened = []

    def open_envs(env_fns, *args, **kwargs):
        envs = CLASSES[request.param](env_fns, *args, **kwargs)
        opened.append(envs)
        return envs

    open_envs.name = request.param
    yield open_envs
    for envs in opened:
        envs.close(terminate=True)
    opened.clear()  # the last reference frees pipes and memory


@pytest.fixture
def as_of_1_4(make):
    """Skip before 1.4 for Gymnasium's own class; ours supports this with all releases."""
    if make.name == "gymnasium" and GYMNASIUM < (1, 4):
        pytest.skip("an earlier AsyncVectorEnv")


class Custom(gymnasium.Space):
    """A space class that Gymnasium does not know."""

    def __init__(self):
        super().__init__(None, None)

    def sample(self, mask=None, probability=None):
        return "a"

    def contains(self, x):
        return x == "a"

    def __eq__(self, other):
        return isinstance(other, Custom)

    __hash__ = None


# ---- the whole of it ------------------------------------------------------------------------


def public(cls):
    return [name for name in dir(cls) if not name.startswith("_")]


@pytest.mark.parametrize("name", ["__init__", *public(AsyncVectorEnv)])
def test_members_exist_with_the_same_arguments(name):
    theirs, ours = getattr(AsyncVectorEnv, name), getattr(VectorEnv, name, None)
    assert hasattr(VectorEnv, name)
    assert isinstance(ours, property) == isinstance(theirs, property)
    if not callable(theirs):
        return
    given, taken = inspect.signature(theirs).parameters, inspect.signature(ours).parameters
    order = [key for key in taken if taken[key].kind != inspect.Parameter.KEYWORD_ONLY]
    for i, (key, parameter) in enumerate(given.items()):
        if name != "call_async" or GYMNASIUM >= (1, 4):  # it had no positional-only arguments in 1.1
            assert taken[key].kind == parameter.kind, f"{name}({key})"
        assert taken[key].default == parameter.default, f"{name}({key})"
        if parameter.kind == inspect.Parameter.POSITIONAL_OR_KEYWORD:
            assert order.index(key) == i, f"{name}({key}) stands elsewhere"
    for key in taken.keys() - given.keys():
        extra = taken[key]
        assert extra.default is not inspect.Parameter.empty or extra.kind == inspect.Parameter.VAR_KEYWORD


#: Internal parts of AsyncVectorEnv, which do not exist here.
INSIDE = {"parent_pipes", "processes", "error_queue"}


@pytest.mark.extended
@pytest.mark.parametrize("backend", ["process", "serial"])
def test_attributes_exist(backend):
    envs = {"theirs": AsyncVectorEnv([CountEnv] * 2), "ours": VectorEnv([CountEnv] * 2, backend=backend)}
    try:
        for one in envs.values():
            one.reset(seed=1)
        names = {name for name in {*vars(envs["theirs"]), *AsyncVectorEnv.__annotations__} if name[0] != "_"}
        for name in names - INSIDE:
            ours, theirs = getattr(envs["ours"], name), getattr(envs["theirs"], name)
            assert_same(list(ours) if name == "env_fns" else ours, theirs, name)
    finally:
        for one in envs.values():
            one.close()


# ---- results --------------------------------------------------------------------------------


def test_create_vector_env(make):
    envs = make([cartpole] * 8)
    assert envs.num_envs == 8
    assert envs.observation_space.shape == (8, 4) and envs.action_space == MultiDiscrete([2] * 8)


@pytest.mark.usefixtures("as_of_1_4")
def test_positional_arguments(make):
    envs = make([CountEnv] * 2, False, True, None, False, None, "same", "SameStep", 1)
    assert envs.copy and envs.autoreset_mode is AutoresetMode.SAME_STEP and envs.max_concurrency == 1
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


def test_reset(make):
    envs = make([cartpole] * 4)
    obs, infos = envs.reset()
    assert obs.dtype == np.float32 and obs.shape == (4, 4) and obs in envs.observation_space and infos == {}
    alike = [envs.reset(seed=seed)[0] for seed in (1, [1, 2, 3, 4])]
    assert np.array_equal(*alike)
    assert not np.array_equal(alike[0], envs.reset()[0])
    assert envs.np_random_seed == (1, 2, 3, 4)


@pytest.mark.parametrize("how", ["batch", "list", "tuple"])
def test_step(make, how):
    envs = make([cartpole] * 4)
    envs.reset(seed=0)
    actions = [envs.single_action_space.sample() for _ in range(4)]
    actions = {"batch": np.array(actions), "list": actions, "tuple": tuple(actions)}[how]
    obs, rewards, terminations, truncations, infos = envs.step(actions)
    assert obs in envs.observation_space
    for array, dtype in ((rewards, np.float64), (terminations, np.bool_), (truncations, np.bool_)):
        assert isinstance(array, np.ndarray) and array.dtype == dtype and array.shape == (4,)


def test_render(make):
    pytest.importorskip("pygame")
    envs = make([functools.partial(cartpole, render_mode="rgb_array")] * 2)
    envs.reset(seed=0)
    frames = envs.render()
    assert envs.render_mode == "rgb_array" and isinstance(frames, tuple) and len(frames) == 2
    assert all(frame.dtype == np.uint8 and frame.shape[2] == 3 for frame in frames)


def test_call_get_and_set(make):
    envs = make([pendulum] * 4)
    envs.reset(seed=0)
    assert envs.get_attr("g") == envs.call("g") == (10.0,) * 4
    envs.set_attr("g", [9.81, 3.72, 8.87, 1.62])
    assert envs.get_attr("g") == (9.81, 3.72, 8.87, 1.62)
    envs.set_attr("g", 1.5)
    assert envs.get_attr("g") == (1.5,) * 4
    envs.call_async("get_wrapper_attr", "g")
    assert envs.call_wait() == (1.5,) * 4
    with pytest.raises(ValueError, match="values"):
        envs.set_attr("g", [1.0])
    with pytest.raises(AttributeError):
        envs.get_attr("no_such_thing")


@pytest.mark.parametrize("name", ["step", "reset", "close"])
def test_call_refuses_step_reset_and_close(make, name):
    envs = make([CountEnv] * 2)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=name):
        envs.call(name)


def test_copy_true_returns_separate_arrays(make):
    envs = make([cartpole] * 2, copy=True)
    obs, _ = envs.reset(seed=0)
    obs[0] = 0
    assert not np.array_equal(obs, envs.observations)


def test_copy_false_returns_shared_arrays(make):
    envs = make([cartpole] * 2, copy=False)
    obs, _ = envs.reset(seed=0)
    obs[0] = 128
    assert np.array_equal(obs, envs.observations)


def test_custom_spaces(make):
    envs = make([functools.partial(SpaceEnv, Custom(), Custom())] * 2, shared_memory=False)
    assert isinstance(envs.single_observation_space, Custom) and envs.observation_space == Tuple([Custom()] * 2)
    assert envs.reset(seed=0)[0] == ("a", "a")
    assert envs.step(("b", "c"))[0] == ("a", "a")


@pytest.mark.parametrize("mode", MODES)
def test_autoreset(make, mode):
    """The columns of CountEnv's observation are steps of the episode and episodes."""
    envs = make([functools.partial(CountEnv, length) for length in (2, 4)], autoreset_mode=mode)
    envs.reset(seed=0)
    seen = []
    for _ in range(6):
        obs, rewards, terminations, _, infos = envs.step(np.array([0, 0]))
        if mode == AutoresetMode.DISABLED and terminations.any():
            obs, _ = envs.reset(options={"reset_mask": terminations})
        seen.append(obs[:, :2].tolist())
        if mode == AutoresetMode.SAME_STEP and terminations[0]:
            assert infos["final_obs"][0][:2].tolist() == [2, len(seen) // 2]
            assert infos["final_info"]["steps"][0] == 2 and infos["_final_info"].tolist() == terminations.tolist()
    if mode == AutoresetMode.NEXT_STEP:
        assert [steps for (steps, _), _ in seen] == [1, 2, 0, 1, 2, 0]
        assert [steps for _, (steps, _) in seen] == [1, 2, 3, 4, 0, 1]
    else:
        assert [steps for (steps, _), _ in seen] == [1, 0, 1, 0, 1, 0]
        assert [steps for _, (steps, _) in seen] == [1, 2, 3, 0, 1, 2]
    assert seen[-1][0][1] == (3 if mode == AutoresetMode.NEXT_STEP else 4)


def test_masked_resets_leave_other_envs_unchanged(make):
    envs = make([functools.partial(CountEnv, None)] * 3, autoreset_mode=AutoresetMode.DISABLED)
    envs.reset(seed=0)
    envs.step(np.zeros(3, np.int64))
    obs, infos = envs.reset(seed=[7, None, 9], options={"reset_mask": np.array([True, False, False])})
    assert obs[:, 0].tolist() == [0, 1, 1] and obs[:, 2].tolist() == [7, 1, 2]
    assert infos["_seed"].tolist() == [True, False, False]
    assert envs.get_attr("num_resets") == (2, 1, 1)


@pytest.mark.parametrize(
    "mask, error",
    [
        ([True, False], TypeError),
        (np.array([1, 0]), TypeError),
        (np.array([True, False, True]), ValueError),
        (np.array([False, False]), ValueError),
    ],
)
@pytest.mark.usefixtures("as_of_1_4")
def test_bad_masks_are_refused(make, mask, error):
    envs = make([CountEnv] * 2, autoreset_mode=AutoresetMode.DISABLED)
    envs.reset(seed=0)
    with pytest.raises(error, match="reset_mask"):
        envs.reset(options={"reset_mask": mask})


@pytest.mark.usefixtures("as_of_1_4")
@pytest.mark.parametrize("seed", [[1], [1, 2, 3]])
def test_seed_count_must_match(make, seed):
    with pytest.raises(ValueError, match="seeds"):
        make([CountEnv] * 2).reset(seed=seed)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_sync_and_async_vector_env_give_equal_results(make, mode):
    """Both classes give equal steps over many episodes with the same seeds and actions."""
    envs = [make([cartpole] * 3), SyncVectorEnv([cartpole] * 3)]
    resets = [one.reset(seed=3) for one in envs]
    assert_same(*resets)
    envs[1].action_space.seed(2)
    for i in range(100):
        actions = envs[1].action_space.sample()
        if mode == "async":
            envs[0].step_async(actions)
            ours = envs[0].step_wait()
        else:
            ours = envs[0].step(actions)
        assert_same(ours, envs[1].step(actions), f"step {i}")
    envs[1].close()


class NotesOptions(ToyEnv):
    """The info of a reset has its `options`, whose default is not None."""

    def reset(self, *, seed=None, options="default"):
        obs, _ = super().reset(seed=seed)
        return obs, {"options": str(options)}


class NeedsOptions(NotesOptions):
    """`options` has no default."""

    def reset(self, *, seed, options):
        return super().reset(seed=seed, options=options)


class PassesOn(gymnasium.Wrapper):
    """A wrapper that passes all arguments on."""

    def reset(self, **kwargs):
        return self.env.reset(**kwargs)


class TakesNoOptions(ToyEnv):
    """`reset` has no parameter `options`."""

    def reset(self, *, seed=None):
        return super().reset(seed=seed)


def test_options_are_passed_also_if_they_are_none(make):
    """The env's own default was used."""
    envs = make([NotesOptions, NeedsOptions, lambda: PassesOn(NeedsOptions())], autoreset_mode=AutoresetMode.DISABLED)
    assert envs.reset(seed=0)[1]["options"].tolist() == ["None"] * 3
    assert envs.reset()[1]["options"].tolist() == ["None"] * 3
    assert envs.reset(options={"a": 1})[1]["options"].tolist() == ["{'a': 1}"] * 3
    mask = np.array([True, False, True])
    assert envs.reset(options={"reset_mask": mask})[1]["options"].tolist() == ["{}", None, "{}"]


@pytest.mark.parametrize("mode", [mode for mode in AutoresetMode if mode != AutoresetMode.DISABLED])
def test_autoresets_pass_no_options(make, mode):
    """As in Gymnasium, autoresets have no arguments."""
    envs = make([functools.partial(NotesOptions, length=1)], autoreset_mode=mode)
    envs.reset()
    infos = [envs.step(np.zeros(1, np.int64))[4] for _ in range(3)]
    assert "default" in str(infos) and "'None'" not in str(infos)


@pytest.mark.extended
@pytest.mark.parametrize("backend", ["process", "serial"])
def test_env_without_the_parameter_options_is_reset(backend):
    with VectorEnv([TakesNoOptions, lambda: PassesOn(TakesNoOptions())], backend=backend) as envs:
        assert envs.reset(seed=3)[0].shape == envs.reset()[0].shape


# ---- states ---------------------------------------------------------------------------------

BEGIN = {
    "reset": lambda envs: envs.reset_async(),
    "step": lambda envs: envs.step_async(np.zeros(envs.num_envs, np.int64)),
    "call": lambda envs: envs.call_async("make_info"),
}
END = {name: (lambda envs, name=name: getattr(envs, f"{name}_wait")()) for name in BEGIN}


@pytest.mark.extended
@pytest.mark.parametrize("pending", BEGIN)
def test_calls_out_of_order_are_errors(make, pending):
    envs = make([ToyEnv] * 2)
    envs.reset(seed=0)
    for name in BEGIN:
        with pytest.raises(NoAsyncCallError) as nothing:
            END[name](envs)
        assert nothing.value.name == name
    BEGIN[pending](envs)
    for begin in BEGIN.values():
        with pytest.raises(AlreadyPendingCallError) as caught:
            begin(envs)
        assert caught.value.name == pending
    with pytest.raises(AlreadyPendingCallError):
        envs.set_attr("length", 3)
    for name in BEGIN.keys() - {pending}:
        with pytest.raises(NoAsyncCallError):
            END[name](envs)
    END[pending](envs)
    BEGIN["step"](envs)
    END["step"](envs)


def test_calls_after_close_are_errors(make):
    envs = make([ToyEnv] * 2)
    envs.reset(seed=0)
    envs.close()
    assert envs.closed
    for call in [*BEGIN.values(), *END.values(), lambda envs: envs.set_attr("length", 2), lambda envs: envs.render()]:
        with pytest.raises(ClosedEnvironmentError):
            call(envs)
    envs.close()


def test_timeouts_are_raised(make):
    if make.name == "serial":
        env_fns = [functools.partial(HangAtStep, at=1)]  # the env's own limit can interrupt it in this thread
        envs = make(env_fns, timeouts={"step": 0.1})
        envs.reset(seed=0)
        with pytest.raises(multiprocessing.TimeoutError):
            envs.step(np.array([0]))
        return
    envs = make([ToyEnv, HangAtStep])
    envs.reset(seed=0)
    envs.step_async(np.array([0, 0]))
    with pytest.raises(multiprocessing.TimeoutError):
        envs.step_wait(timeout=0.1)
    envs = make([ToyEnv, functools.partial(HangAtReset, at=2)])
    envs.reset(seed=0)
    envs.reset_async()
    with pytest.raises(multiprocessing.TimeoutError):
        envs.reset_wait(timeout=0.1)


# ---- bad input ------------------------------------------------------------------------------


def test_different_spaces_are_refused(make):
    def of(space, actions=None):
        return functools.partial(SpaceEnv, space, actions)

    with pytest.raises(RuntimeError):
        make([of(Box(0, 1, (2,))), of(Box(0, 2, (2,)))])
    with pytest.raises(RuntimeError):
        make([of(Box(0, 1, (2,)), Discrete(2)), of(Box(0, 1, (2,)), Discrete(3))])


@pytest.mark.usefixtures("as_of_1_4")
def test_observation_modes_equal_gymnasium(make):
    env_fns = [functools.partial(SpaceEnv, Box(0, high, (2,), np.float32)) for high in (1, 2)]
    envs = make(env_fns, observation_mode="different")
    assert envs.single_observation_space == Box(0, 1, (2,), np.float32)
    assert envs.observation_space == Box(0, np.array([[1, 1], [2, 2]]), (2, 2), np.float32)
    assert envs.reset(seed=0)[0] in envs.observation_space
    with pytest.raises(ValueError, match="observation_mode"):
        make(env_fns, observation_mode="unknown")
    with pytest.raises(TypeError):
        make(env_fns, observation_mode=("one", "two"))


@pytest.mark.usefixtures("as_of_1_4")
@pytest.mark.parametrize("count", [0, -1, 1.5, "two"])
def test_bad_concurrency_is_refused(make, count):
    with pytest.raises(ValueError, match="max_concurrency"):
        make([ToyEnv], max_concurrency=count)


def test_bad_autoreset_mode_is_refused(make):
    with pytest.raises(ValueError, match="Sometimes"):
        make([ToyEnv], autoreset_mode="Sometimes")


@pytest.mark.usefixtures("as_of_1_4")
def test_worker_argument_is_refused(make):
    with pytest.raises(ValueError, match="worker"):
        make([ToyEnv], worker=lambda: None)


def test_env_exception_keeps_its_type(make):
    class Raises(ToyEnv):
        def step(self, action):
            raise ZeroDivisionError("out of luck")

    envs = make([ToyEnv, Raises])
    envs.reset(seed=0)
    with pytest.raises(ZeroDivisionError, match="out of luck"):
        envs.step(np.array([0, 0]))
