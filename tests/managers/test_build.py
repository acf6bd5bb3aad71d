"""Builders: the C extension and the Python code build the same objects."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest

from vecenv.core.layout.native import load
from vecenv.ding import BaseEnvTimestep, TreeArray
from vecenv.managers.build import builder_of, python_builder
from vecenv.managers.timesteps import mark_end


@pytest.fixture(params=["native", "python"])
def builder(request):
    if request.param == "native" and load() is None:
        pytest.skip("the extension was not built")
    return builder_of(request.param)


def test_timesteps_have_the_rows_of_their_columns(builder):
    batch = np.arange(6.0).reshape(3, 2)
    timesteps, infos, obs, rewards = builder.timesteps(batch, np.ones((3, 1), np.float32))
    assert [type(timestep) for timestep in timesteps] == [BaseEnvTimestep] * 3
    for row, timestep in enumerate(timesteps):
        assert (
            timestep.obs is obs[row]
            and np.shares_memory(obs[row], batch)
            and timestep.reward is rewards[row]
            and timestep.done is False
        )
        assert timestep.info is infos[row] and timestep.info == {}
    infos[0]["a"] = 1
    assert timesteps[1].info == {} and timesteps[0]._replace(done=True).done is True
    assert gc.is_tracked(timesteps[0])


def test_tree_numbers_are_writable_views(builder):
    numbers = np.arange(3)
    trees = builder.trees(3, ("name", "number"), (["a", "b", "c"], numbers))
    assert [type(tree) for tree in trees] == [TreeArray] * 3
    assert trees[1].name == "b" and trees[1].number.shape == () and trees[1].number.item() == 1
    numbers[1] = 7
    assert trees[1].number.item() == 7 and list(trees[0].keys()) == ["name", "number"]
    trees[1]["name"] = "d"
    assert trees[1].name == "d" and trees[2].name == "c"


def test_kind_of_returns_the_type_of_all_items(builder):
    assert builder.common_type([1, 2]) is int and builder.common_type([np.int64(1)]) is np.int64
    assert builder.common_type([1, True]) is None and builder.common_type([]) is None


def test_builders_accept_no_rows_and_no_names(builder):
    assert builder.timesteps([], []) == ([], [], [], [])
    assert builder.trees(2, (), ()) == [TreeArray(), TreeArray()] and builder.trees(0, ("a",), ([],)) == []


@pytest.mark.extended
def test_builders_leave_reference_counts_unchanged(builder):
    obs, rewards = [np.zeros(2)] * 5, [np.zeros(1, np.float32)] * 5
    gc.collect()  # managers of other tests refer to the class, too
    before = sys.getrefcount(obs[0]), sys.getrefcount(rewards[0]), sys.getrefcount(BaseEnvTimestep)
    for _ in range(3):
        timesteps = builder.timesteps(obs, rewards)
        trees = builder.trees(5, ("obs", "reward"), (obs, rewards))
    del timesteps, trees
    gc.collect()
    assert (sys.getrefcount(obs[0]), sys.getrefcount(rewards[0]), sys.getrefcount(BaseEnvTimestep)) == before


@pytest.mark.native
@pytest.mark.parametrize(
    "call",
    [
        lambda native: native.timesteps(dict, [], []),
        lambda native: native.timesteps(BaseEnvTimestep, [1], []),
        lambda native: native.timesteps(BaseEnvTimestep, 1, ()),
        lambda native: native.timesteps(BaseEnvTimestep, (), 1),
        lambda native: native.timesteps(BaseEnvTimestep, ()),
        lambda native: native.timesteps(1, (), ()),
        lambda native: native.common_type((1, 2)),
        lambda native: native.trees(TreeArray, None, 1, (), ()),
        lambda native: native.trees(TreeArray, TreeArray.__dict__["_children"], 2, ("a",), ([1],)),
        lambda native: native.trees(TreeArray, TreeArray.__dict__["_children"], 1, ("a",), ([1, 2],)),
        lambda native: native.trees(TreeArray, TreeArray.__dict__["_children"], -1, (), ()),
        lambda native: native.trees(TreeArray, TreeArray.__dict__["_children"], 1, ("a",), ()),
        lambda native: native.trees(dict, TreeArray.__dict__["_children"], 1, (), ()),
        lambda native: native.trees(TreeArray, TreeArray.__dict__["_children"], 3, ("a",), (np.arange(2),)),
    ],
)
def test_native_builders_refuse_wrong_arguments(call):
    native = load()
    if native is None:
        pytest.skip("the extension was not built")
    with pytest.raises((TypeError, ValueError, IndexError)):
        call(native)


def test_builder_of_python_is_python_builder():
    assert builder_of("python") is python_builder


def test_mark_end_keeps_items_of_the_env():
    info = {"truncated": "by us"}
    mark_end(info, True, True)
    assert info == {"terminated": True, "truncated": "by us", "TimeLimit.truncated": False}
