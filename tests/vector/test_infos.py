"""Infos that Gymnasium truncates, overwrites or refuses: nothing is lost here."""

from __future__ import annotations

import contextlib
import functools

import gymnasium
import numpy as np
import pytest

from tests.vector.comparison import assert_same
from vecenv import VectorEnv
from vecenv.envs.toys import ToyEnv


class GivesInfos(ToyEnv):
    """Returns the given infos, one per step, and repeats the last one."""

    def __init__(self, *infos, **kwargs):
        super().__init__(**kwargs)
        self.infos = infos

    def make_info(self):
        return self.infos[min(self.elapsed_steps, len(self.infos) - 1)]


def infos_of(*infos, rounds=4, backend="serial"):
    """Return the infos of envs that give these dicts at every step, after their columns are known."""
    env_fns = [functools.partial(GivesInfos, info, length=None) for info in infos]
    with contextlib.closing(VectorEnv(env_fns, backend=backend)) as envs:
        seen = [envs.reset(seed=0)[1]]
        seen += [envs.step([0] * len(infos))[4] for _ in range(rounds)]
    for one in seen[1:]:
        assert_same(one, seen[0])  # pickles and columns give the same infos
    return seen[-1]


def array_of(dtype, *values):
    array = np.zeros(len(values), dtype)
    array[:] = values
    return array


@pytest.mark.parametrize(
    "values, expected",
    [
        ((1, 2), array_of(np.int64, 1, 2)),
        ((1, 0.5), array_of(np.float64, 1, 0.5)),
        ((1, 2.0), array_of(np.int64, 1, 2)),
        ((1.0, 2), array_of(np.float64, 1, 2)),
        ((True, False), array_of(np.bool_, True, False)),
        ((True, 1), array_of(np.bool_, True, True)),
        ((True, 5), array_of(np.int64, 1, 5)),
        ((np.float32(0.5), 0.25), array_of(np.float32, 0.5, 0.25)),
        ((np.float32(0.5), 0.1), array_of(np.float64, 0.5, 0.1)),
        ((np.uint8(3), 255), array_of(np.uint8, 3, 255)),
        ((np.uint8(3), 256), array_of(np.int64, 3, 256)),
        ((np.int8(3), np.float32(0.5)), array_of(np.float32, 3, 0.5)),
        ((1.0, float("nan")), array_of(np.float64, 1, np.nan)),
        ((1, float("nan")), array_of(np.float64, 1, np.nan)),
        ((np.bool_(True), np.bool_(False)), array_of(object, np.bool_(True), np.bool_(False))),
        ((1, None), array_of(object, 1, None)),
        ((1.5, "text"), array_of(object, 1.5, "text")),
        ((2**63 + 5,), array_of(np.uint64, 2**63 + 5)),
        ((1, np.uint64(2**64 - 1)), array_of(np.uint64, 1, 2**64 - 1)),
        ((np.uint64(3), -1), array_of(np.int64, 3, -1)),
        ((np.uint8(3), np.int8(-1)), array_of(np.int16, 3, -1)),
        ((-1, np.uint64(2**63 + 1)), array_of(object, -1, np.uint64(2**63 + 1))),
        ((2**60 + 1, 0.5), array_of(object, 2**60 + 1, 0.5)),
        ((0.5, 2**60 + 1), array_of(object, 0.5, 2**60 + 1)),
        ((np.uint64(3), 0.5), array_of(np.float64, 3, 0.5)),
        ((2**63 - 1, 2.0**63), array_of(object, 2**63 - 1, 2.0**63)),
        ((1, 1j), array_of(np.complex128, 1, 1j)),
        ((2**70, 1), array_of(object, 2**70, 1)),
        ((1, 2**70), array_of(object, 1, 2**70)),
        ((1, {"a": 1}), array_of(object, 1, {"a": 1})),
        (({"a": 1}, 1), array_of(object, {"a": 1}, 1)),
        ((1, 2, 0.5, None), array_of(object, 1.0, 2.0, 0.5, None)),
        ((True, None, 5), array_of(object, True, None, 5)),
        ((np.uint8(3), np.int8(-1), 300), array_of(np.int16, 3, -1, 300)),
        ((1, 0.5, 2**60 + 1), array_of(object, 1.0, 0.5, 2**60 + 1)),
    ],
    ids=repr,
)
def test_infos_of_mixed_types(values, expected):
    infos = infos_of(*({"key": value} for value in values))
    assert_same(infos, {"key": expected, "_key": np.ones(len(values), np.bool_)})


def test_infos_with_arrays_of_mixed_shapes_and_dtypes():
    infos = infos_of({"a": np.zeros(2, np.int8)}, {"a": np.full(2, 0.5)}, {"b": np.zeros(2)}, {"b": np.ones((1, 3))})
    assert_same(infos["a"], np.array([[0, 0], [0.5, 0.5], [0, 0], [0, 0]]))
    assert infos["b"].dtype == object and infos["b"][0] is None
    assert_same(list(infos["b"][2:]), [np.zeros(2), np.ones((1, 3))])


def test_infos_with_integer_arrays_of_mixed_dtypes():
    signed, unsigned = np.array([-1, 2**60 + 1]), np.array([1, 2**64 - 1], np.uint64)
    infos = infos_of({"a": np.abs(signed), "b": signed}, {"a": unsigned, "b": unsigned})
    assert_same(infos["a"], np.array([[1, 2**60 + 1], [1, 2**64 - 1]], np.uint64))
    assert infos["b"].dtype == object
    assert_same(list(infos["b"]), [signed, unsigned])


def test_infos_with_times_keep_their_units():
    """NumPy would cast them silently, and 5 ms would become 0 s."""
    second, tick, hour = np.timedelta64(3, "s"), np.timedelta64(5, "ms"), np.datetime64("2026-01-01T10")
    assert_same(infos_of({"a": second}, {"a": second + second})["a"], np.array([3, 6], "m8[s]"))
    assert_same(infos_of({"a": tick}, {"a": second})["a"], np.array([5, 3000], "m8[ms]"))
    assert_same(infos_of({"a": second}, {"a": tick})["a"], array_of(object, second, tick))
    day = np.array([hour.astype("M8[D]")])
    assert_same(list(infos_of({"a": day}, {"a": np.array([hour])})["a"]), [day, np.array([hour])])


def test_infos_with_records_keep_all_fields():
    whole, half = np.array([(1,)], [("a", np.int64)]), np.array([(0.5,)], [("a", np.float64)])
    assert_same(list(infos_of({"a": whole}, {"a": half})["a"]), [whole, half])


@pytest.mark.parametrize("first", ["columns", "mail"])
def test_infos_with_one_key_as_column_and_pickled(first):
    plain, mixed = {"key": 3}, {"key": 0.5, "text": "x"}
    order = (plain, mixed) if first == "columns" else (mixed, plain)
    infos = infos_of(*order, plain, rounds=6)
    values = [info["key"] for info in (*order, plain)]
    assert_same(infos["key"], np.array(values, np.float64))
    assert infos["_key"].all() and infos["_text"].tolist() == [info is mixed for info in (*order, plain)]
    assert [list(infos).index(f"_{key}") - list(infos).index(key) for key in ("key", "text")] == [1, 1]


@pytest.mark.parametrize("order", [[2, 1, 0], [1, 2, 0]])
def test_infos_dtype_is_decided_by_the_first_env_by_id(order):
    env_fns = [functools.partial(GivesInfos, {"key": value}, length=None) for value in (2.0, 1, 1)]
    with contextlib.closing(VectorEnv(env_fns, backend="serial")) as envs:
        envs.reset(seed=0)
        for _ in range(4):
            envs.send([0, 0, 0], order)
            infos = envs.recv()[4]
            assert infos["env_id"].tolist() == order
            assert_same(infos["key"], np.array([1.0, 1.0, 2.0]))


def test_infos_of_a_few_envs():
    """Rows without an info are zero and masked; earlier values of the columns do not matter."""
    values = {"a": 2.5, "pair": np.array([1, 2], np.int8), "flag": np.bool_(True), "deep": {"b": 3}}
    infos = infos_of({}, values, {}, values, {}, rounds=6)
    told = [False, True, False, True, False]
    masks = [infos[f"_{key}"] for key in values] + [infos["deep"]["_b"]]
    assert len(infos) == 8 and all(mask.tolist() == told for mask in masks)
    assert_same(infos["a"], np.array([0, 2.5, 0, 2.5, 0]))
    assert_same(infos["pair"], np.array([[0, 0], [1, 2]] * 2 + [[0, 0]], np.int8))
    assert_same(infos["flag"], array_of(object, None, np.bool_(True), None, np.bool_(True), None))
    assert_same(infos["deep"]["b"], np.array([0, 3, 0, 3, 0]))


def test_infos_at_ends_only_leave_nothing_behind():
    """Values of a row in an earlier batch do not appear again if another row has the same keys."""
    env_fns = [functools.partial(GivesInfos, {"key": 10 + i}, length=2 + i) for i in range(3)]
    with contextlib.closing(VectorEnv(env_fns, backend="serial", infos="done")) as envs:
        envs.reset(seed=0)
        for _ in range(12):
            _, _, terminations, truncations, infos = envs.step([0, 0, 0])
            ended = terminations | truncations
            if not ended.any():
                assert infos == {}
                continue
            assert_same(infos, {"key": np.where(ended, [10, 11, 12], 0), "_key": ended})


def test_infos_with_more_keys_than_columns():
    info = {f"key {i}": i for i in range(50)}
    infos = infos_of(info, {**info, "more": 1.5}, rounds=6)
    assert len(infos) == 102 and infos["key 49"].tolist() == [49, 49]


def test_infos_with_keys_that_are_not_identifiers():
    info = {"TimeLimit.truncated": True, "": 1, "schön": 2, "a" * 100: 3}
    assert set(infos_of(info)) == {*info, *(f"_{key}" for key in info)}


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_infos_may_be_huge(backend):
    infos = infos_of({"blob": np.arange(200_000)}, {"blob": np.arange(200_000) + 1}, rounds=2, backend=backend)
    assert infos["blob"].shape == (2, 200_000) and infos["blob"][1, -1] == 200_000


def test_infos_truncated_by_gymnasium():
    """FrozenLake's `prob` is 1 at resets and 0.33 at steps."""
    make = functools.partial(gymnasium.make, "FrozenLake-v1", max_episode_steps=5)
    make_short = functools.partial(gymnasium.make, "FrozenLake-v1", max_episode_steps=3)
    with contextlib.closing(VectorEnv([make_short, make], backend="serial")) as envs:
        envs.reset(seed=0)
        seen = [envs.step([3, 3])[4]["prob"] for _ in range(4)]
    assert all(set(prob.round(2)) <= {0.33, 1.0} for prob in seen)
    assert any(1.0 in prob for prob in seen)


@pytest.mark.extended
def test_infos_arrays_do_not_change_afterwards():
    env_fns = [functools.partial(GivesInfos, *({"key": i} for i in range(20)), length=None)] * 2
    with contextlib.closing(VectorEnv(env_fns, copy=False)) as envs:
        kept = [envs.reset(seed=0)[1]] + [envs.step([0, 0])[4] for _ in range(15)]
    assert [infos["key"].tolist() for infos in kept] == [[i, i] for i in range(16)]


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_infos_modified_by_the_caller_do_not_return(backend):
    env_fns = [functools.partial(GivesInfos, *({"key": i, "half": i / 2} for i in range(20)), length=None)] * 2
    with contextlib.closing(VectorEnv(env_fns, backend=backend)) as envs:
        envs.reset(seed=0)
        for i in range(1, 12):
            infos = envs.step([0, 0])[4]
            assert infos["key"].tolist() == [i, i] and infos["half"].tolist() == [i / 2, i / 2]
            assert infos["_key"].all() and infos["_half"].all()
            for array in infos.values():
                array[...] = 0
            infos["mine"] = 1
            del infos["key"]


def test_infos_key_with_the_name_of_a_mask():
    env_fns = [functools.partial(GivesInfos, *({"x": i, "_x": 7} for i in range(20)), length=None)] * 2
    with contextlib.closing(VectorEnv(env_fns, backend="serial")) as envs:
        envs.reset(seed=0)
        for i in range(1, 8):
            infos = envs.step([0, 0])[4]
            assert infos["_x"].tolist() == [7, 7] and infos["__x"].all() and infos["x"].tolist() == [i, i]


def test_infos_keys_that_come_and_go():
    steps = [{"x": 1}, {"x": 2}, {"x": 0.5}, {"x": 3, "late": 1}, {"x": 4}, {"x": 5}]
    env_fns = [
        functools.partial(GivesInfos, *steps, length=None),
        functools.partial(GivesInfos, *({"x": info["x"]} for info in steps), length=None),
    ]
    with contextlib.closing(VectorEnv(env_fns, backend="serial")) as envs:
        seen = [envs.reset(seed=0)[1]] + [envs.step([0, 0])[4] for _ in range(5)]
    assert [infos["x"].tolist() for infos in seen] == [[info["x"]] * 2 for info in steps]
    assert [sorted(infos) for infos in seen] == [
        ["_late", "_x", "late", "x"] if i == 3 else ["_x", "x"] for i in range(6)
    ]
    assert seen[3]["_late"].tolist() == [True, False]


# ---- as Gymnasium has them ----------------------------------------------------------------------


def objects(*values):
    array = np.empty(len(values), object)
    array[:] = values
    return array


AS_GYMNASIUM = {
    "dicts under numbers": ({0: {"score": 1.0}, 1: {"score": 2.0}}, {0: {"score": 3.0}}, {1: {"score": 4.0}}),
    "dicts under tuples and None": ({(1, 2): {"a": 1}, None: {"b": 2.5}}, {None: {"b": 3.5}}, {(1, 2): {"a": 5}}),
    "deep below a number": ({"team": {0: {"x": {"y": 1}}}}, {"team": {0: {"x": {"y": 2}}}}, {}),
    "a number below a name": ({"score": {0: 1.5, "own": 2}}, {"score": {0: 2.5, "own": 3}}, {"score": {"own": 4}}),
    "values under numbers": ({0: 1.5, (1,): "x", None: 3}, {0: 2.5}, {None: 4}),
    "final_obs, a dict": ({"final_obs": {"a": 1}}, {"final_obs": {"a": 2}}, {"final_obs": {"a": 3}}),
    "final_obs below a name": ({"last": {"final_obs": {"a": 1}, "b": 1}}, {"last": {"b": 2}}, {}),
    "final_obs, an array": ({"final_obs": np.arange(2)}, {"final_obs": np.arange(3)}, {}),
    "objects of one env": ({}, {"parts": objects("a", None)}, {}),
    "objects of one env, of two axes": ({"parts": objects("a", 1, {}, None).reshape(2, 2)}, {}, {}),
    "objects of all envs": ({"parts": objects(1, "b")}, {"parts": objects(2, None)}, {"parts": objects(3, {})}),
    "objects of one env below a name": ({}, {}, {"deep": {"parts": objects(1, 2, "c")}}),
}


@pytest.mark.parametrize(("mode", "backend"), [("NextStep", "serial"), ("SameStep", "serial"), ("NextStep", "process")])
@pytest.mark.parametrize("name", AS_GYMNASIUM)
def test_infos_equal_sync_vector_env(name, mode, backend, implementation):
    # Gymnasium reserves in SAME_STEP the key of the final observations at the end of an episode
    length = None if "final_obs" in name else 3
    env_fns = [functools.partial(GivesInfos, info, length=length) for info in AS_GYMNASIUM[name]]
    mode = gymnasium.vector.AutoresetMode(mode)
    with (
        contextlib.closing(gymnasium.vector.SyncVectorEnv(env_fns, autoreset_mode=mode)) as theirs,
        contextlib.closing(VectorEnv(env_fns, backend=backend, autoreset_mode=mode)) as ours,
    ):
        assert_same(ours.reset(seed=0), theirs.reset(seed=0), "reset")
        for number in range(7):
            assert_same(ours.step([0, 0, 0]), theirs.step(np.zeros(3, np.int64)), f"step {number}")


def test_infos_objects_of_one_env_are_zero_elsewhere():
    infos = infos_of({}, {"parts": objects("a", None)}, {})
    assert_same(infos["parts"], np.array([[0, 0], ["a", None], [0, 0]], object))
    assert infos["parts"].shape == (3, 2) and infos["_parts"].tolist() == [False, True, False]


def test_infos_key_below_a_number_has_its_own_mask():
    infos = infos_of({0: {"score": 1.0}}, {1: {"score": 2.0}})
    assert set(infos) == {0, "_0", 1, "_1"}
    assert infos[0]["score"].tolist() == [1.0, 0.0] and infos[1]["_score"].tolist() == [False, True]


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_infos_list_that_contains_itself_arrives_unchanged(backend):
    endless = [1]
    endless.append(endless)
    with contextlib.closing(
        VectorEnv([functools.partial(GivesInfos, {"endless": endless}, length=2)], backend=backend)
    ) as envs:
        found = envs.reset(seed=0)[1]["endless"][0]
        for _ in range(4):  # over an episode end, whose info is stored separately
            assert found[0] == 1 and found[1] is found
            found = envs.step([0])[4]["endless"][0]
