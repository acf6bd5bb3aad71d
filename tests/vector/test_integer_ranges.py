"""Integers in observations and actions: values in range arrive unchanged, others are refused."""

from __future__ import annotations

import contextlib
import functools
import warnings

import numpy as np
import pytest
from gymnasium import spaces

from vecenv import VectorEnv
from vecenv.envs.toys import ToyEnv
from vecenv.errors import SpaceError

pytestmark = pytest.mark.usefixtures("implementation")

#: (dtype of the space, a number out of range, a number in range)
NUMBERS = [
    (np.uint8, np.uint16(300), np.uint16(200)),
    (np.int8, np.uint8(200), np.uint8(100)),
    (np.int8, np.int64(-129), np.int64(-128)),
    (np.int32, np.uint32(2**31), np.uint32(9)),
    (np.int64, np.uint64(2**63), np.uint64(9)),
    (np.uint8, np.int8(-1), np.int8(1)),
]
IDS = [f"{number.dtype}({number}) into {np.dtype(dtype)}" for dtype, number, _ in NUMBERS]


def whole(dtype):
    limits = np.iinfo(dtype)
    return spaces.Box(limits.min, limits.max, (1,), dtype)


class Numbers(ToyEnv):
    """Observes `numbers` one by one; its infos contain the actions that it received."""

    def __init__(self, dtype, numbers=()):
        self.numbers = numbers
        super().__init__(length=None)
        self.observation_space = self.action_space = whole(dtype)

    def observe(self):
        if self.elapsed_steps < len(self.numbers):
            return self.numbers[self.elapsed_steps].reshape(1)
        return np.zeros(1, self.observation_space.dtype)

    def step(self, action):
        obs, *rest, _ = super().step(action)
        return obs, *rest, {"dtype": str(action.dtype), "given": int(action[0])}


@contextlib.contextmanager
def opened(*args):
    with (
        warnings.catch_warnings(),
        contextlib.closing(VectorEnv([functools.partial(Numbers, *args)] * 2, backend="serial")) as envs,
    ):
        warnings.filterwarnings("ignore", ".*is converted to the space's")
        yield envs


@pytest.mark.parametrize(("dtype", "wrong", "right"), NUMBERS, ids=IDS)
def test_observation_outside_its_space_is_refused(dtype, wrong, right):
    with opened(dtype, (right, right, wrong)) as envs:
        assert envs.reset(seed=0)[0].tolist() == [[int(right)]] * 2
        obs = envs.step(np.zeros((2, 1), dtype))[0]
        assert obs.tolist() == [[int(right)]] * 2 and obs.dtype == dtype
        with pytest.raises(SpaceError, match=rf"got {wrong.dtype} \(1,\) of {wrong} to {wrong}"):
            envs.step(np.zeros((2, 1), dtype))


@pytest.mark.parametrize("as_list", [False, True], ids=["array", "list of arrays"])
@pytest.mark.parametrize(("dtype", "wrong", "right"), NUMBERS, ids=IDS)
def test_action_outside_its_space_is_refused(dtype, wrong, right, as_list):
    def batch(number):
        return [number.reshape(1)] * 2 if as_list else np.full((2, 1), number)

    with opened(dtype) as envs:
        envs.reset(seed=0)
        for _ in range(2):
            with pytest.raises(SpaceError, match=f"of {wrong} to {wrong}"):
                envs.step(batch(wrong))
            infos = envs.step(batch(right))[4]
            assert infos["given"].tolist() == [int(right)] * 2
            assert infos["dtype"].tolist() == [np.dtype(dtype).name] * 2


@pytest.mark.parametrize("number", [np.uint64(2**63), np.uint64(2**64 - 1)])
def test_unsigned_number_outside_a_discrete_action_is_refused(number):
    with contextlib.closing(VectorEnv([ToyEnv] * 2, backend="serial")) as envs:
        envs.reset(seed=0)
        with pytest.raises(SpaceError, match=f"of {number} to {number}"):
            envs.step(np.full(2, number))
        with pytest.warns(UserWarning, match="uint64 is converted to the space's int64"):
            obs = envs.step(np.ones(2, np.uint64))[0]
        assert obs[:, :2].tolist() == [[1.0, 1.0]] * 2
