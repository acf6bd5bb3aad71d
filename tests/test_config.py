"""Configs: access, conversion, merging, misspelt keys."""

import collections
import copy
import pickle
import threading
import types
import warnings

import numpy as np
import pytest
from gymnasium import spaces

from vecenv.config import Config, deep_merge_dicts, warn_unknown_keys
from vecenv.errors import ConfigError


def test_keys_are_attributes_at_every_depth():
    cfg = Config({"env": {"id": "CartPole-v1", "layers": [{"size": 3}, ({"size": 4},)]}}, num=2)
    assert cfg.num == cfg["num"] == 2
    assert cfg.env.id == "CartPole-v1"
    assert cfg.env.layers[0].size == 3
    assert cfg.env.layers[1][0].size == 4


def test_config_is_a_dict():
    cfg = Config(a=1, b={"c": 2})
    assert cfg == {"a": 1, "b": {"c": 2}}
    assert {**cfg} == cfg
    assert list(cfg) == ["a", "b"]
    assert repr(cfg) == "Config({'a': 1, 'b': Config({'c': 2})})"


@pytest.mark.parametrize(
    "mapping",
    [
        {"a": {"b": 1}},
        collections.OrderedDict(a=collections.defaultdict(int, b=1)),
        types.MappingProxyType({"a": types.MappingProxyType({"b": 1})}),
        [("a", {"b": 1})],
    ],
)
def test_config_accepts_any_mapping(mapping):
    assert Config(mapping).a.b == 1


def test_config_accepts_easydict():
    easydict = pytest.importorskip("easydict")
    cfg = Config(easydict.EasyDict(a=dict(b=[dict(c=1)])))
    assert type(cfg.a) is Config
    assert cfg.a.b[0].c == 1


def test_none_is_an_empty_config():
    assert Config(None) == {} == Config()


def test_other_values_stay_unchanged():
    space = spaces.Dict(a=spaces.Discrete(2))  # a Mapping, and yet no config
    array, numbers = np.zeros(3), [1, 2]
    point = collections.namedtuple("Point", "x")({"y": 1})
    cfg = Config(space=space, array=array, numbers=numbers, point=point)
    assert cfg.space is space
    assert cfg.array is array
    assert cfg.numbers is numbers
    assert cfg.point is point


def test_values_are_converted_by_every_way_to_set():
    cfg = Config()
    cfg.a = {"x": 1}
    cfg["b"] = {"x": 2}
    cfg.update({"c": {"x": 3}}, d={"x": 4})
    cfg.setdefault("e", {"x": 5})
    cfg |= {"f": {"x": 6}}
    assert [cfg[key].x for key in "abcdef"] == [1, 2, 3, 4, 5, 6]
    assert cfg.setdefault("a", None) == {"x": 1}


def test_or_operator_makes_a_new_config():
    cfg = Config(a=1)
    assert (cfg | {"b": {"c": 2}}).b.c == 2
    assert type({"a": 0, "z": 1} | cfg) is Config
    assert ({"a": 0, "z": 1} | cfg) == {"a": 1, "z": 1}
    assert cfg == {"a": 1}
    with pytest.raises(TypeError):
        cfg | 3


def test_attribute_set_later_is_an_item():
    cfg = Config()
    cfg.type = "base"
    assert cfg.pop("type") == "base"
    assert "type" not in cfg


def test_missing_attributes():
    cfg = Config(a=1)
    with pytest.raises(AttributeError, match="config has no key 'b'"):
        _ = cfg.b
    with pytest.raises(AttributeError, match="config has no key 'b'"):
        del cfg.b
    del cfg.a
    assert not hasattr(cfg, "a")


def test_names_of_dict_methods_are_items_only():
    cfg = Config({"copy": True})
    assert cfg["copy"] is True
    assert cfg.copy() == cfg
    with pytest.raises(AttributeError, match="'copy' is a method of dict"):
        cfg.copy = False


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda cfg: pickle.loads(pickle.dumps(cfg))])
def test_deep_clones_are_independent_configs(clone):
    cfg = Config(a={"b": [{"c": 1}]})
    cloned = clone(cfg)
    assert cloned == cfg
    assert type(cloned.a.b[0]) is Config
    cloned.a.b[0].c = 2
    assert cfg.a.b[0].c == 1


@pytest.mark.parametrize("clone", [copy.copy, Config.copy])
def test_shallow_copies_share_what_is_nested(clone):
    cfg = Config(a={"b": 1}, c=2)
    copied = clone(cfg)
    copied.c = 3
    assert type(copied) is Config
    assert cfg.c == 2
    assert copied.a is cfg.a


def test_merge_goes_key_by_key():
    merged = deep_merge_dicts({"a": 1, "b": {"c": 2, "d": 3}, "e": {"f": 4}}, {"b": {"c": 5}, "e": 6, "g": {"h": 7}})
    assert type(merged) is Config
    assert merged == {"a": 1, "b": {"c": 5, "d": 3}, "e": 6, "g": {"h": 7}}
    assert merged.g.h == 7


def test_merge_replaces_lists_and_lets_none_win():
    new = {"a": [3], "b": None, "c": {}}
    assert deep_merge_dicts({"a": [1, 2], "b": 1, "c": 1}, new) == new


def test_merge_changes_neither_argument_and_shares_no_container():
    original, new = {"a": {"b": [1]}, "x": [{"y": 1}]}, {"a": {"c": [2]}, "z": {"w": [3]}}
    before = copy.deepcopy((original, new))
    merged = deep_merge_dicts(original, new)
    merged.a.b.append(0)
    merged.a.c.append(0)
    merged.x[0].y = 0
    merged.z.w.append(0)
    assert (original, new) == before
    config = Config(original)
    deep_merge_dicts(config, None).x[0].y = 0
    assert config == before[0]


def test_merge_keeps_values_that_cannot_be_copied():
    lock = threading.Lock()
    assert deep_merge_dicts({"lock": lock}, {}).lock is lock


@pytest.mark.parametrize("original, new", [(None, None), ({}, None), (None, {})])
def test_merge_of_nothing(original, new):
    assert deep_merge_dicts(original, new) == {}


@pytest.mark.parametrize("original, new", [([], {}), ({}, 3), ({}, "text")])
def test_merge_refuses_values_that_are_not_mappings(original, new):
    with pytest.raises(ConfigError, match="expected a mapping to merge, got"):
        deep_merge_dicts(original, new)


KNOWN = ["episode_num", "max_retry", "retry_type", "auto_reset", "step_timeout", "reset_timeout", "wait_num"]


@pytest.mark.parametrize(
    "key, meant",
    [
        ("wait_nums", "wait_num"),
        ("step_timout", "step_timeout"),
        ("episodes_num", "episode_num"),
        ("retry_tpye", "retry_type"),
        ("autoreset", "auto_reset"),
        ("stepTimeout", "step_timeout"),
        ("step-timeout", "step_timeout"),
    ],
)
def test_misspelt_key_is_named(key, meant):
    text = f"^unknown key '{key}' for AsyncSubprocessEnvManager; did you mean '{meant}'\\?$"
    with pytest.warns(UserWarning, match=text) as caught:
        warn_unknown_keys({key: 1}, KNOWN, "AsyncSubprocessEnvManager")
    assert len(caught) == 1
    assert caught[0].filename == __file__


@pytest.mark.parametrize("key", ["wait_num", "cfg_type", "n_episode", "type", "manager", "env_id", "my_own", 3])
def test_unknown_keys_without_a_neighbour_pass_silently(key):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_unknown_keys({key: 1}, KNOWN, "BaseEnvManager")
