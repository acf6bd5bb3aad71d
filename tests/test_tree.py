"""TreeArray: building, access, stacking, splitting."""

import collections
import copy
import pickle
import sys

import numpy as np
import pytest

from vecenv.errors import ConfigError, DependencyError, SpaceError
from vecenv.tree import TreeArray


@pytest.fixture
def timestep():
    return TreeArray(
        {
            "obs": {"image": np.arange(6, dtype=np.uint8).reshape(2, 3), "pos": np.float32(0.5)},
            "reward": np.array([1.0], np.float32),
            "done": False,
            "info": {"abnormal": True, "name": "left", "score": 3},
            "env_id": 7,
        }
    )


def test_access_by_attribute_and_by_item(timestep):
    assert timestep.obs.image.shape == (2, 3)
    assert timestep["obs"]["image"] is timestep.obs.image
    assert "score" in timestep.info
    assert "other" not in timestep.info
    assert timestep.info.get("other", 0) == 0


@pytest.mark.parametrize(
    "value, dtype", [(True, np.bool_), (3, np.int64), (0.5, np.float64), (np.float32(0.5), np.float32)]
)
def test_numbers_become_arrays_that_have_item(value, dtype):
    leaf = TreeArray({"x": value}).x
    assert isinstance(leaf, np.ndarray)
    assert leaf.dtype == dtype
    assert leaf.shape == ()
    assert leaf.item() == value


def test_arrays_are_not_copied():
    array = np.zeros(3)
    assert TreeArray({"a": {"b": array}}).a.b is array


def test_strings_none_and_objects_stay():
    thing = object()
    tree = TreeArray(name="left", blob=b"x", nothing=None, thing=thing, ragged=[[1], [2, 3]], words=["a", "b"])
    assert (tree.name, tree.blob, tree.nothing) == ("left", b"x", None)
    assert tree.thing is thing
    assert tree.ragged == [[1], [2, 3]]
    assert tree.words == ["a", "b"]


def test_lists_of_numbers_become_arrays():
    assert TreeArray(x=[[1, 2], [3, 4]]).x.shape == (2, 2)


def test_tuples_become_trees():
    point = collections.namedtuple("Point", "x y")(1, 2)
    tree = TreeArray(pair=(1, {"a": 2}), point=point)
    assert tree.pair._0.item() == 1
    assert tree.pair._1.a.item() == 2
    assert tree.point.y.item() == 2
    assert TreeArray(point).x.item() == 1


def test_tree_builds_from_trees_and_objects_with_json(timestep):
    class Foreign:
        def json(self):
            return {"a": np.ones(2)}

    assert TreeArray(timestep) == timestep
    assert TreeArray(Foreign()).a.shape == (2,)
    assert len(TreeArray()) == 0


@pytest.mark.parametrize("value", [3, "text", np.zeros(2)])
def test_tree_refuses_values_that_are_not_mappings(value):
    with pytest.raises(ConfigError, match="expected a mapping to build a tree from, got"):
        TreeArray(value)


@pytest.mark.parametrize(
    "key, name",
    [
        ("TimeLimit.truncated", "TimeLimit_truncated"),
        ("0", "_0"),
        ("3d-pose", "_3d_pose"),
        ("class", "class_"),
        ("", "_"),
        (5, "_5"),
        ("größe", "größe"),
    ],
)
def test_info_keys_become_identifiers(key, name):
    tree = TreeArray({"info": {key: 1}}, identifiers=True)
    assert list(tree.info) == [name]
    assert name.isidentifier()


def test_identifiers_do_not_collide():
    tree = TreeArray({"a.b": 1, "a_b": 2, "a-b": 3}, identifiers=True)
    assert {key: leaf.item() for key, leaf in tree.items()} == {"a_b_": 1, "a_b": 2, "a_b__": 3}


def test_list_of_empty_trees_stays_a_list():
    trees = [TreeArray(), TreeArray()]
    assert TreeArray(infos=trees).infos is trees  # NumPy takes it for an array of floats, (2, 0)


def test_keys_of_trees_within_become_identifiers_too():
    tree = TreeArray({"info": TreeArray({"a.b": 1})}, identifiers=True)
    assert list(tree.info) == ["a_b"]


def test_keys_stay_as_they_are_without_identifiers():
    assert TreeArray({"a.b": 1})["a.b"].item() == 1


def test_index_applies_to_all_arrays():
    tree = TreeArray({"a": np.arange(6).reshape(3, 2), "b": {"c": np.arange(3)}, "name": "left"})
    assert tree[1] == TreeArray({"a": np.array([2, 3]), "b": {"c": np.array(1)}, "name": "left"})
    assert tree[1].b.c.item() == 1
    assert tree[:2].a.shape == (2, 2)
    assert tree[np.array([True, False, True])].b.c.tolist() == [0, 2]
    with pytest.raises(IndexError):
        tree[3]
    with pytest.raises(KeyError):
        tree["missing"]


def test_stack_and_split_are_inverse(timestep):
    other = copy.deepcopy(timestep)
    other.info.name = "right"
    other.env_id = 8
    batch = TreeArray.stack([timestep, other])
    assert batch.obs.image.shape == (2, 2, 3)
    assert batch.done.dtype == np.bool_
    assert batch.info.name.tolist() == ["left", "right"]
    assert batch.env_id.tolist() == [7, 8]
    assert batch.split() == [timestep, other]


def test_stack_takes_dicts_and_plain_arrays():
    assert TreeArray.stack([{"a": 1}, {"a": 2}]).a.tolist() == [1, 2]
    stacked = TreeArray.stack([np.zeros(3), np.ones(3)])
    assert isinstance(stacked, np.ndarray)
    assert stacked.shape == (2, 3)


def test_stack_keeps_none_and_lists_whole():
    batch = TreeArray.stack([{"a": None, "b": [[1], [2, 3]]}] * 2)
    assert batch.a.tolist() == [None, None]
    assert batch.b[1] == [[1], [2, 3]]


@pytest.mark.parametrize(
    "trees, says",
    [
        ([{"a": {"b": 1}}, {"a": {"c": 1}}], r"^a: expected keys \['b'\], got \['c'\]"),
        ([{"a": np.zeros(2)}, {"a": np.zeros(3)}], r"^a: expected shape \(2,\), got \(3,\)"),
        ([{"a": 1}, np.zeros(2)], r"^tree: expected keys \['a'\], got ndarray"),
    ],
)
def test_stack_names_where_trees_differ(trees, says):
    with pytest.raises(SpaceError, match=says):
        TreeArray.stack(trees)


def test_stack_of_nothing():
    with pytest.raises(ConfigError, match="expected at least one tree to stack, got none"):
        TreeArray.stack([])


@pytest.mark.parametrize("tree", [{"a": np.zeros(2), "b": np.zeros(3)}, {"a": 1}, {"name": "left"}])
def test_split_needs_one_length(tree):
    with pytest.raises(SpaceError, match="expected leaves of one length to split"):
        TreeArray(tree).split()


def test_split_of_an_empty_batch():
    assert TreeArray(a=np.zeros((0, 3))).split() == []


def test_map_applies_to_arrays_only(timestep):
    doubled = timestep.map(lambda leaf: leaf * 2)
    assert doubled.obs.pos.item() == 1.0
    assert doubled.info.name == "left"
    assert timestep.obs.pos.item() == 0.5
    assert TreeArray(a=np.arange(3)).map(np.sum).a.item() == 3


def test_json_gives_plain_dicts_with_the_same_leaves(timestep):
    plain = timestep.json()
    assert type(plain["obs"]) is dict
    assert plain["obs"]["image"] is timestep.obs.image
    assert plain["info"]["name"] == "left"


def test_set_converts():
    tree = TreeArray()
    tree.a = {"b": 1}
    tree["c"] = 2
    assert tree.a.b.item() == 1
    assert tree.c.item() == 2
    with pytest.raises(TypeError, match="expected the name of a child"):
        tree[0] = 1
    with pytest.raises(AttributeError, match="'stack' is taken by the class"):
        tree.stack = 1


def test_missing_children():
    tree = TreeArray(a=1)
    with pytest.raises(AttributeError, match="tree has no child 'b'"):
        _ = tree.b
    assert not hasattr(tree, "_children_of")
    assert "a" in dir(tree)


def test_tree_reads_like_a_dict():
    tree = TreeArray(a=np.zeros(2), b="x")
    assert (list(tree), len(tree), list(tree.keys())) == (["a", "b"], 2, ["a", "b"])
    assert dict(tree.items())["b"] == list(tree.values())[1] == "x"
    assert repr(tree) == "TreeArray(a=float64 (2,), b='x')"


@pytest.mark.parametrize(
    "other", [{"a": 1.0}, {"a": 2}, {"b": 1}, {"a": [1]}, {"a": {"a": 1}}, {"a": 1, "b": 1}, {"a": "1"}]
)
def test_trees_that_are_unequal(other):
    assert TreeArray(a=1) != TreeArray(other)
    assert TreeArray(a=1) != 1


def test_tree_has_no_hash():
    with pytest.raises(TypeError, match="unhashable"):
        hash(TreeArray())


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda tree: pickle.loads(pickle.dumps(tree))])
def test_deep_clones_are_independent(clone, timestep):
    cloned = clone(timestep)
    assert cloned == timestep
    cloned.obs.image[:] = 0
    cloned.info.score = 4
    assert timestep.obs.image.any()
    assert timestep.info.score.item() == 3


def test_shallow_copy_shares_leaves(timestep):
    copied = copy.copy(timestep)
    copied.env_id = 8
    assert timestep.env_id.item() == 7
    assert copied.reward is timestep.reward


def test_treetensor_is_imported_lazily(monkeypatch):
    made = []
    fake = type("module", (), {"array": staticmethod(lambda tree: made.append(tree) or "tree")})
    monkeypatch.setitem(sys.modules, "treetensor", fake)
    monkeypatch.setitem(sys.modules, "treetensor.numpy", fake)
    assert TreeArray(a={"b": 1}).to_treetensor() == "tree"
    assert list(made[0]["a"]) == ["b"]


def test_missing_treetensor_is_one_clear_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "treetensor.numpy", None)
    with pytest.raises(DependencyError, match=r'pip install "DI-treetensor>=0.4"'):
        TreeArray(a=1).to_treetensor()


def test_tensors_are_imported_lazily_and_have_numbers_only(monkeypatch):
    """The middleware of DI-engine does so with each result of a step."""
    made = []

    class Fake:
        def tensor(self):
            return "tensors"

    fake = type("module", (), {"array": staticmethod(lambda tree: made.append(tree) or Fake())})
    monkeypatch.setitem(sys.modules, "treetensor", fake)
    monkeypatch.setitem(sys.modules, "treetensor.numpy", fake)
    info = TreeArray.from_rows([{"agents": [TreeArray(score=1, name="left"), TreeArray(score=2)]}])[0]
    tree = TreeArray(obs={"a": [1.0], "text": "x"}, none=None, objects=np.array([None]), done=False, info=info)
    assert tree.tensor() == "tensors" and tree.to_treetensor().tensor() == "tensors"
    numbers, whole = made
    assert numbers == {
        "obs": {"a": np.array([1.0])},
        "done": np.array(False),
        "info": {"agents": {"_0": {"score": np.array(1)}, "_1": {"score": np.array(2)}}},
    }
    assert whole["obs"]["text"] == "x" and whole["info"]["agents"]["_0"]["name"] == "left"


def test_tensors_without_treetensor_raise_one_clear_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "treetensor.numpy", None)
    with pytest.raises(DependencyError, match=r'pip install "DI-treetensor>=0.4"'):
        TreeArray(a=1).tensor()


def test_tensors_of_treetensor_itself():
    pytest.importorskip("treetensor")
    import treetensor.torch

    tree = TreeArray(obs={"a": np.ones((2, 3), np.float32)}, done=True, info={"name": "left", "lives": 3})
    tensors = tree.tensor()
    assert type(tensors) is treetensor.torch.Tensor and tensors.obs.a.shape == (2, 3) and tensors.info.lives.item() == 3
    assert "name" not in tensors.info
    tree.obs.a[:] = 0
    assert tensors.obs.a.sum().item() == 6
    assert treetensor.torch.as_tensor(tree.obs.to_treetensor()).a.shape == (2, 3)
