"""An observation of another form than its space is a SpaceError that names the keys, in every front end."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import vecenv
from vecenv.alf.batched.parallel import ParallelAlfEnvironment
from vecenv.alf.batched.thread import ThreadEnvironment
from vecenv.alf.gym.wrapper import AlfGymWrapper
from vecenv.ding import create_env_manager
from vecenv.errors import SpaceError, VecenvError

pytestmark = pytest.mark.usefixtures("implementation")

VALUE = np.zeros(2, np.float32)
GOOD = {"pose": VALUE, "mode": 1}
DICT = spaces.Dict({"pose": spaces.Box(-9, 9, (2,), np.float32), "mode": spaces.Discrete(3)})
TUPLE = spaces.Tuple([spaces.Box(-9, 9, (2,), np.float32), spaces.Discrete(3)])
KEYS = r"expected a dict with keys \['mode', 'pose'\], got"

OTHERS: dict[str, Any] = {
    "tuple": (VALUE, 1),
    "list": [VALUE, 1],
    "tuple of one": (VALUE,),
    "array": np.zeros((2, 2)),
    "array without axes": np.array(1.0),
    "array of objects": np.array([VALUE, None], object),
    "reset result": (GOOD, {}),
    "string": "ab",
    "set": {"pose", "mode"},
    "None": None,
}


class Changes(gymnasium.Env[Any, Any]):
    """Episodes of two steps. At one moment, (reset, steps since), the observation is another value."""

    action_space = spaces.Discrete(2)

    def __init__(self, other: Any, moment: tuple[int, int], space: Any = DICT, good: Any = GOOD) -> None:
        self.other, self.moment, self.good = other, moment, good
        self.observation_space = space
        self.at = [0, 0]

    def observe(self) -> Any:
        return self.other if tuple(self.at) == self.moment else self.good

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = [self.at[0] + 1, 0]
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.at[1] += 1
        return self.observe(), 1.0, self.at[1] == 2, False, {}


def play(envs: Any, actions: Any) -> None:
    envs.reset()
    for _ in range(5):
        envs.step(actions)


def play_manager(manager: Any) -> None:
    manager.launch()
    for _ in range(5):
        manager.step(dict.fromkeys(manager.ready_obs_id, 0))


@contextlib.contextmanager
def vector_env(env_fn: Callable[[], Any], **options: Any) -> Iterator[Callable[[], None]]:
    with contextlib.closing(vecenv.VectorEnv([env_fn], **options)) as envs:
        yield lambda: play(envs, np.zeros(1, np.int64))


@contextlib.contextmanager
def manager(env_fn: Callable[[], Any], kind: str) -> Iterator[Callable[[], None]]:
    with create_env_manager({"type": kind, "retry_waiting_time": 0.0}, [env_fn]) as one:
        yield lambda: play_manager(one)


@contextlib.contextmanager
def sb3(env_fn: Callable[[], Any]) -> Iterator[Callable[[], None]]:
    sb3_module = pytest.importorskip("vecenv.integrations.sb3", exc_type=ImportError)
    with contextlib.closing(sb3_module.SB3VecEnv([env_fn], backend="serial")) as envs:
        yield lambda: play(envs, np.zeros(1, np.int64))


@contextlib.contextmanager
def alf(env_fn: Callable[[], Any], has_thread: bool) -> Iterator[Callable[[], None]]:
    def constructor(env_id: int = 0) -> Any:
        return AlfGymWrapper(env_fn())

    build: Any = ThreadEnvironment if has_thread else lambda one: ParallelAlfEnvironment([one], backend="serial")
    with contextlib.closing(build(constructor)) as envs:
        yield lambda: play(envs, np.zeros(1, np.int64))


FRONT_ENDS: dict[str, Any] = {
    "serial": functools.partial(vector_env, backend="serial"),
    "process": vector_env,
    "same step": functools.partial(vector_env, backend="serial", autoreset_mode="SameStep"),
    "same step, process": functools.partial(vector_env, autoreset_mode="SameStep"),
    "base manager": functools.partial(manager, kind="base"),
    "subprocess manager": functools.partial(manager, kind="subprocess"),
    "V2 manager": functools.partial(manager, kind="subprocess_v2"),
    "SB3": sb3,
    "ALF": functools.partial(alf, has_thread=False),
    "ALF, thread": functools.partial(alf, has_thread=True),
}
MOMENTS = {"reset": (1, 0), "step": (1, 1), "final": (1, 2), "autoreset": (2, 0)}


@pytest.mark.parametrize("name", OTHERS)
def test_observation_of_another_form_than_its_dict_space_names_the_keys(name: str) -> None:
    with (
        vector_env(functools.partial(Changes, OTHERS[name], (1, 0)), backend="serial") as run,
        pytest.raises(SpaceError, match=f"^obs: {KEYS}") as caught,
    ):
        run()
    assert caught.value.path == "obs"


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_tuple_in_the_place_of_a_dict_names_the_keys_at_any_moment(front_end: str, moment: str) -> None:
    with (
        FRONT_ENDS[front_end](functools.partial(Changes, OTHERS["tuple"], MOMENTS[moment])) as run,
        pytest.raises(VecenvError, match=KEYS),
    ):
        run()


@pytest.mark.parametrize(
    "other", [np.zeros((2, 2)), np.array(1.0), {"pose": VALUE, "mode": 1}, "ab", (VALUE,)], ids=repr
)
def test_observation_of_another_form_than_its_tuple_space_names_the_length(other: Any) -> None:
    with (
        vector_env(functools.partial(Changes, other, (1, 0), TUPLE, (VALUE, 1)), backend="serial") as run,
        pytest.raises(SpaceError, match="^obs: expected a tuple of 2, got"),
    ):
        run()


def test_nested_dict_of_another_form_is_named_by_its_path() -> None:
    env_fn = functools.partial(Changes, {"inner": (VALUE, 1)}, (1, 1), spaces.Dict({"inner": DICT}), {"inner": GOOD})
    with vector_env(env_fn, backend="serial") as run, pytest.raises(SpaceError, match=f"^obs/inner: {KEYS} tuple of 2"):
        run()


class NumPyCannotConvert:
    """Like a tensor on a device, or one with a gradient."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [TypeError, RuntimeError])
def test_leaf_that_numpy_cannot_convert_is_named_by_its_path(error: type[Exception]) -> None:
    other = {"pose": NumPyCannotConvert(error("move it to the CPU")), "mode": 1}
    with (
        vector_env(functools.partial(Changes, other, (1, 1)), backend="serial") as run,
        pytest.raises(SpaceError, match="^obs/pose: move it to the CPU"),
    ):
        run()
