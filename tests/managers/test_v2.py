"""V2 managers: batches of actions, trees as results."""

from __future__ import annotations

import functools
import sys

import gymnasium
import numpy as np
import pytest

from tests.managers.fakes import ActorEnv, actors
from vecenv import ConfigError, DependencyError
from vecenv.ding import AsyncSubprocessEnvManager, BaseEnvManager, BaseEnvManagerV2, SubprocessEnvManagerV2, TreeArray
from vecenv.envs.toys import SpaceEnv


@pytest.fixture(params=[BaseEnvManagerV2, SubprocessEnvManagerV2])
def launched(request, launch):
    return lambda env_fn=None, **cfg: launch(request.param, env_fn or actors(3), **cfg)


@pytest.mark.parametrize(
    "actions",
    [[0, 1, 0], (0, 1, 0), np.array([0, 1, 0]), {0: 0, 1: 1, 2: 0}, [np.array([0]), np.array([1]), np.array([0])]],
    ids=["list", "tuple", "array", "dict", "arrays"],
)
def test_step_takes_actions_in_every_form(launched, actions):
    manager = launched()
    trees = manager.step(actions)
    assert [tree.env_id.item() for tree in trees] == [0, 1, 2]
    assert all("name" in tree.info and tree.obs.shape == (3,) for tree in trees)
    assert [int(np.asarray(kept[0]).reshape(())) for kept in manager.kept] == [0, 1, 0]


@pytest.mark.parametrize("actions", [[0, 1], [0] * 4, np.zeros(2, np.int64), []], ids=len)
def test_step_with_a_wrong_number_of_actions_raises(launched, actions):
    """W35: other managers ignored actions, or envs, without an error."""
    manager = launched()
    with pytest.raises(ValueError, match="expected 3"):
        manager.step(actions)
    assert manager.data_count == [0, 0, 0]


def test_step_with_a_dict_steps_these_envs(launched):
    """W35: other managers took its keys for the actions."""
    manager = launched()
    trees = manager.step({2: 1, 0: 0})
    assert [tree.env_id.item() for tree in trees] == [2, 0]
    assert manager.kept == [[0], [], [1]]


def test_ready_obs_is_one_batch(launched):
    manager = launched(actors(3, length=2), episode_num=1)
    assert manager.ready_obs.shape == (3, 3)
    manager.step({1: 0})
    assert manager.ready_obs.tolist() == [[0, 0, 1], [1, 1, 1], [2, 0, 1]]
    manager.step({1: 0})
    assert manager.ready_obs.tolist() == [[0, 0, 1], [2, 0, 1]]
    for _ in range(2):
        manager.step([0, 0])
    assert manager.done and manager.ready_obs.shape == (0, 3)  # W34: IndexError


def test_ready_obs_beside_a_failed_env_is_the_newest(launched):
    manager = launched(on_step_error="error")
    manager.step([0, 0, 0])
    with pytest.raises((LookupError, RuntimeError), match="cannot step"):
        manager.step([0, "error", 0])
    assert manager.ready_obs.tolist() == [[0, 2, 1], [2, 2, 1]]


def test_ready_obs_of_all_envs_is_not_copied(launched):
    manager = launched()
    manager.step([0, 0, 0])
    assert manager.ready_obs is manager.ready_obs


def test_dict_observations_and_actions_are_trees(launched):
    space = gymnasium.spaces.Dict(a=gymnasium.spaces.Box(0, 1, (2,), np.float32), b=gymnasium.spaces.Discrete(3))
    manager = launched([functools.partial(SpaceEnv, space, space)] * 2)
    assert manager.ready_obs.a.shape == (2, 2)
    action = TreeArray(a=np.zeros((2, 2), np.float32), b=np.array([1, 2]))
    trees = manager.step(action)
    assert trees[1].obs.a.shape == (2,) and trees[1].obs.b.shape == ()
    assert manager.ready_obs.b.shape == (2,) and manager.ready_obs[1].a.shape == (2,)


class Echo(ActorEnv):
    """An env whose actions have tuples, also in a dict."""

    def __init__(self):
        super().__init__()
        box, choice = gymnasium.spaces.Box(0, 1, (2,), np.float32), gymnasium.spaces.Discrete(3)
        tuples = gymnasium.spaces.Tuple([choice, box])
        self.action_space = gymnasium.spaces.Tuple([tuples, gymnasium.spaces.Dict({"a": tuples, "b": choice})])


def as_stack(actions):
    return TreeArray.stack([TreeArray(_0=action[0], _1=action[1]) for action in actions])


def as_dict(actions):
    return {env_id: TreeArray(_0=action[0], _1=action[1]) for env_id, action in enumerate(actions)}


def as_treetensors(actions):
    pytest.importorskip("treetensor")
    return as_stack(actions).to_treetensor()


@pytest.mark.parametrize("form", [as_stack, as_dict, as_treetensors])
def test_tuple_actions_reach_the_env_as_tuples(launched, form):
    """Regression: the env got dicts with the keys '_0' and '_1'."""
    manager = launched([Echo] * 2)
    actions = [manager.action_space.sample() for _ in range(2)]
    manager.step(form(actions))
    for ((inner, rest),), (wanted, others) in zip(manager.kept, actions):
        assert type(inner) is tuple and type(rest) is dict and list(rest) == ["a", "b"] and type(rest["a"]) is tuple
        got, expected = (inner[0], rest["a"][0], rest["b"]), (wanted[0], others["a"][0], others["b"])
        assert [int(value) for value in got] == [int(value) for value in expected]
        assert np.array_equal(inner[1], wanted[1]) and np.array_equal(rest["a"][1], others["a"][1])


def test_info_keys_are_identifiers(launched):
    manager = launched(actors(3, length=1))
    tree = manager.step([0, 0, 0])[0]
    assert tree.done.item() is True and tree.done.shape == ()
    assert tree.info.TimeLimit_truncated.item() is False and tree.info.eval_episode_return.item() == 1.0


# ---- the option `trees` -----------------------------------------------------------------------------------

V2 = [BaseEnvManagerV2, SubprocessEnvManagerV2]
SPACE = gymnasium.spaces.Dict(a=gymnasium.spaces.Box(0, 1, (2,), np.float32), b=gymnasium.spaces.Discrete(3))


@pytest.mark.parametrize("manager_cls", V2)
def test_trees_option_is_checked(manager_cls):
    assert manager_cls.default_config().trees == "vecenv"
    with pytest.raises(ConfigError, match=r"trees: expected one of \('vecenv', 'treetensor'\), got 'torch'"):
        manager_cls(actors(1), {"trees": "torch"})


@pytest.mark.parametrize("manager_cls", V2)
def test_trees_option_needs_treetensor(manager_cls, monkeypatch):
    monkeypatch.setitem(sys.modules, "treetensor.numpy", None)
    with pytest.raises(DependencyError, match=r'pip install "DI-treetensor>=0.4"'):
        manager_cls(actors(1), {"trees": "treetensor"})


@pytest.mark.parametrize("manager_cls", [BaseEnvManager, AsyncSubprocessEnvManager])
def test_trees_option_is_accepted_by_other_managers(manager_cls, recwarn):
    manager_cls(actors(1), {"trees": "treetensor"})
    assert not recwarn.list


def test_treetensor_trees_have_the_same_values(launched):
    treetensor_torch = pytest.importorskip("treetensor.torch")
    import treetensor.numpy

    manager = launched([functools.partial(SpaceEnv, SPACE, gymnasium.spaces.Discrete(2))] * 2, trees="treetensor")
    ready = manager.ready_obs
    assert type(ready) is treetensor.numpy.ndarray and treetensor_torch.as_tensor(ready).a.shape == (2, 2)
    for tree in manager.step([0, 1]):
        tensors = tree.tensor()
        assert type(tree) is treetensor.numpy.ndarray and tensors.obs.a.shape == (2,) and not tensors.done.item()
    plain = launched(trees="treetensor")
    assert type(plain.ready_obs) is np.ndarray, "as treetensor itself stacks arrays"
    tree = plain.step([0, 0, 0])[0]
    assert "name" not in tree.info and tree.tensor().reward.tolist() == [1.0]
