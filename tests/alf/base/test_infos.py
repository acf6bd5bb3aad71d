"""Infos of unusual values: one array per key with a row per env, in every layout."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.alf.comparison import covered
from tests.faults.traces import kill
from tests.vector.comparison import assert_same
from vecenv.alf import AlfGymWrapper, BatchEnvironmentWrapper, ParallelAlfEnvironment, ThreadEnvironment, load
from vecenv.alf.base.infos import to_alf_infos
from vecenv.alf.wrappers.batch import stack
from vecenv.envs.toys import ToyEnv

NOTHING = object()

#: Name -> the values of three envs; NOTHING stands for a missing key.
ODD = {
    "arrays of different shapes": (np.zeros(2), np.ones(3), np.ones((1, 2))),
    "an array and a number": (np.zeros(2), 1, np.ones(2)),
    "None first": (None, 3, 0.5),
    "None last": (3, 4, None),
    "None only": (None, None, None),
    "strings": ("a", "bcd", ""),
    "a string among numbers": (1, "b", 2),
    "a dict and a number": ({"x": 1}, 5, {"x": 2}),
    "a number and a dict": (5, {"x": 1}, 6),
    "dicts with other keys": ({"x": 1}, {"y": "z"}, {}),
    "a dict in a dict": ({"x": {"y": 1}}, {"x": 2}, {"x": {"y": 3}}),
    "keys that are numbers": ({0: 1.5, 1: {"s": 2}}, {0: 2.5}, {1: {"s": 3}}),
    "lists": ([1, 2], [3], []),
    "a half among whole numbers": (1, 0.5, 2),
    "a flag among numbers": (True, 7, False),
    "arrays of objects": (np.array([None, "a"], object), np.array([1, 2], object), np.array([{}, 0], object)),
    "bytes": (b"a", b"b", b"c"),
    "flags": (True, NOTHING, False),
    "NumPy's flags": (NOTHING, np.True_, np.False_),
    "flags of both kinds": (np.True_, False, True),
    "a late key": (NOTHING, 1, NOTHING),
    "a late string": (NOTHING, "late", NOTHING),
    "a late array": (NOTHING, np.arange(3), NOTHING),
    "a late array of objects": (NOTHING, np.array([None, 1], object), NOTHING),
}


class GivesInfo(ToyEnv):
    """Gives the value in every info but the first of an episode."""

    def __init__(self, value, length):
        super().__init__(length)
        self.value = value

    def make_info(self):
        return {} if self.value is NOTHING or not self.elapsed_steps else {"key": self.value, "count": 1}


def info_env(name, env_id=0):
    return AlfGymWrapper(GivesInfo(ODD[name][env_id], 2 + env_id), env_id)


def run(make, **options):
    """Return the infos of three envs whose episodes end at different steps."""
    with ParallelAlfEnvironment([make] * 3, tensors=False, backend="serial", **options) as env:
        env.seed(1)
        steps = [env.reset(), *(env.step(np.zeros(3, np.int64)) for _ in range(9))]
    return [step.env_info for step in steps]


@pytest.mark.parametrize("name", ODD)
def test_infos_are_equal_in_lockstep_and_ahead(name):
    make = functools.partial(info_env, name)
    lockstep = run(make, reset_ahead=False)
    assert any("key" in infos for infos in lockstep) and "key" not in lockstep[0]
    assert_same(run(make, reset_ahead=True), lockstep)


@pytest.mark.parametrize("name", ODD)
def test_infos_behind_a_wrapper_are_equal_in_lockstep_and_ahead(name):
    """Behind a wrapper, workers send whole time steps, and their numbers are arrays already."""
    make = functools.partial(covered, make=functools.partial(info_env, name))
    assert_same(run(make, reset_ahead=True), run(make, reset_ahead=False))


@pytest.mark.parametrize(
    "name", ["flags", "NumPy's flags", "flags of both kinds", "a late key", "a half among whole numbers"]
)
def test_numbers_behind_a_wrapper_are_equal(name):
    make = functools.partial(info_env, name)
    assert_same(run(functools.partial(covered, make=make)), run(make))


#: Types that do not mix: the zeros of one env meet other envs' values of another type.
MIXED = {"an array and a number", "a dict and a number", "a number and a dict", "a dict in a dict"}


@pytest.mark.parametrize("name", [name for name in ODD if name not in MIXED])
def test_infos_of_a_batch_in_one_thread_have_the_same_form(name):
    env = BatchEnvironmentWrapper([info_env(name, env_id) for env_id in range(3)])
    steps = [env.reset(), *(env.step(np.zeros(3, np.int64)) for _ in range(9))]
    for mine, theirs in zip(steps, run(functools.partial(info_env, name), reset_ahead=False), strict=True):
        assert form_of(mine.env_info) == form_of(theirs)


def form_of(infos):
    return {
        key: form_of(value) if isinstance(value, dict) else (value.shape, value.dtype) for key, value in infos.items()
    }


def test_infos_that_make_no_array_become_objects():
    infos = run(functools.partial(info_env, "arrays of different shapes"), reset_ahead=True)[1]
    assert infos["key"].shape == (3,) and infos["key"].dtype == object
    assert_same(list(infos["key"]), list(ODD["arrays of different shapes"]))
    infos = run(functools.partial(info_env, "a dict and a number"), reset_ahead=True)[1]
    assert infos["key"].tolist() == [{"x": 1}, 5, {"x": 2}]


# ---- keys that come and go -----------------------------------------------------------------------


class GrowingInfos(ToyEnv):
    """Gives the info `place` at each reset, also `speed` and `text` in later steps, and a dict `episode` at the end."""

    def make_info(self):
        info = {"place": 4.5}
        if self.elapsed_steps:
            info |= {"speed": np.full(2, 1.5), "text": "far"}
        if self.elapsed_steps == self.length:
            info["episode"] = {"r": 2.0, "name": "done", "more": {"l": np.int64(3)}}
        return info


def telling(env_id=0):
    return AlfGymWrapper(GrowingInfos(2), env_id)


LAYOUTS = {
    "lockstep": lambda: ParallelAlfEnvironment([telling] * 2, tensors=False, backend="serial", reset_ahead=False),
    "ahead": lambda: ParallelAlfEnvironment([telling] * 2, tensors=False, backend="serial", reset_ahead=True),
    "behind a wrapper": lambda: ParallelAlfEnvironment(
        [functools.partial(covered, make=telling)] * 2, tensors=False, backend="serial"
    ),
    "batch in one thread": lambda: BatchEnvironmentWrapper([telling(), telling()]),
    "batches in workers": lambda: ParallelAlfEnvironment(
        [lambda env_id: BatchEnvironmentWrapper([telling(), telling()])] * 2, tensors=False, backend="serial"
    ),
    "thread": lambda: ThreadEnvironment(telling, tensors=False),
    "single": telling,
}


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
def test_numbers_seen_once_are_in_every_later_step(make):
    with make() as env:
        action = np.zeros((env.batch_size,) if env.batched else (), np.int64)
        steps = [env.reset()]
        steps += [env.step(action) if turn != 7 else env.reset() for turn in range(12)]
    assert "speed" not in steps[0].env_info, "nothing is known of it yet"
    outer = np.shape(steps[0].step_type)
    for step in steps[1:]:
        is_first = bool(np.all(step.is_first()))
        assert step.env_info["place"].shape == outer and (step.env_info["place"] == 4.5).all(), "as the env says"
        assert step.env_info["speed"].shape == (*outer, 2) and step.env_info["speed"].dtype == np.float32
        assert (step.env_info["speed"] == (0 if is_first else 1.5)).all()
        assert ("text" in step.env_info) is not is_first, "a string is not made up"
    for step in steps[2:]:
        is_last = bool(np.all(step.is_last()))
        assert (step.env_info["episode"]["more"]["l"] == (3 if is_last else 0)).all()
        assert ("name" in step.env_info["episode"]) is is_last
    stacked = np.stack([step.env_info["episode"]["r"] for step in steps[2:]])
    assert stacked.shape == (11, *outer) and stacked.dtype == np.float32


def test_infos_of_concatenated_batches_are_joined_row_by_row():
    infos = to_alf_infos({"rows": np.zeros((3, 2, 4)), "others": np.zeros((3, 4))}, rows_per_env=2)
    assert infos["rows"].shape == (6, 4) and infos["others"].shape == (3, 4)


def test_infos_of_a_whole_batch_are_repeated_for_each_row():
    mixed = np.empty(2, object)
    mixed[:] = [np.array([3, 4]), np.array([None, "x"], object)]
    infos = {"recovered": np.array([None, "replayed"], object), "number": np.array([1, 2]), "mixed": mixed}
    found = to_alf_infos({**infos, "nested": {"count": np.array([5, 6])}}, rows_per_env=2)
    assert found["recovered"].tolist() == [None, None, "replayed", "replayed"]
    assert found["number"].tolist() == [1, 1, 2, 2] and found["nested"]["count"].tolist() == [5, 5, 6, 6]
    assert found["mixed"].tolist() == [3, 4, None, "x"], "rows of their own"


class OneEnvGivesInfo(ToyEnv):
    """Only env 2 has an info."""

    def __init__(self, env_id):
        super().__init__(3)
        self.env_id = env_id

    def make_info(self):
        return {"word": "one"} if self.env_id == 2 else {}


@pytest.mark.parametrize("size", [1, 2, 4])
def test_missing_infos_of_a_batch_are_none_among_strings(size):
    """The other batches had zeros instead of None."""

    def make(env_id):
        envs = [AlfGymWrapper(OneEnvGivesInfo(size * env_id + row)) for row in range(size)]
        return BatchEnvironmentWrapper(envs)

    with ParallelAlfEnvironment([make] * (4 // size), tensors=False, backend="serial") as env:
        assert env.reset().env_info["word"].tolist() == [None, None, "one", None]


@pytest.mark.extended
def test_recovered_batches_are_marked_per_row():
    make = functools.partial(batch_of_two, functools.partial(info_env, "a late key"))
    with ParallelAlfEnvironment([make] * 2, tensors=False, num_workers=2) as env:
        env.reset()
        env.step(np.zeros(4, np.int64))
        kill(env, 1)
        infos = env.step(np.zeros(4, np.int64)).env_info
    assert infos["recovered"].tolist() == [None, None, "replayed", "replayed"]
    assert {len(value) for value in infos.values()} == {4}


def batch_of_two(make, env_id=0):
    return BatchEnvironmentWrapper([make(0), make(1)])


def test_zeros_are_separate_arrays():
    with LAYOUTS["lockstep"]() as env:
        env.reset()
        env.step(np.zeros(2, np.int64))
        for _ in range(2):
            first = env.reset()
            assert not first.env_info["speed"].any()
            first.env_info["speed"][:] = 7


# ---- one environment as a batch of one ---------------------------------------------------------


@pytest.mark.parametrize("value", ["text", b"raw", None, [1, 2], ("a", 1)], ids=repr)
def test_objects_have_a_batch_axis(value):
    with ThreadEnvironment(lambda: AlfGymWrapper(GivesInfo(value, 9)), tensors=False) as env:
        env.reset()
        key = env.step(np.zeros(1, np.int64)).env_info["key"]
    assert isinstance(key, np.ndarray) and key.shape == (1,) and key.dtype == object
    assert key[0] == value and type(key[0]) is type(value)


def test_numbers_and_arrays_have_a_batch_axis():
    with ThreadEnvironment(lambda: AlfGymWrapper(GivesInfo({"a": np.zeros((2, 3)), "b": 4}, 9)), tensors=False) as env:
        env.reset()
        key = env.step(np.zeros(1, np.int64)).env_info["key"]
    assert key["a"].shape == (1, 2, 3) and key["b"].tolist() == [4]


def test_infos_may_be_absent() -> None:
    steps = [load("CartPole-v1", env_id).reset()._replace(env_info=nothing) for env_id, nothing in enumerate(((), {}))]
    assert stack(steps).env_info == {} and stack(steps).env_id.tolist() == [0, 1]
