"""The factory: managers from configs."""

from __future__ import annotations

import copy

import pytest

import vecenv
from tests.inside import config_of
from tests.managers.fakes import actors

NAMES = {
    "base": "BaseEnvManager",
    "base_v2": "BaseEnvManagerV2",
    "async_subprocess": "AsyncSubprocessEnvManager",
    "subprocess": "SyncSubprocessEnvManager",
    "subprocess_v2": "SubprocessEnvManagerV2",
    "gym_vector": "GymVectorEnvManager",
    "ray": "RayEnvManager",
}


@pytest.mark.parametrize("name, cls", NAMES.items())
def test_get_env_manager_cls_returns_each_registered_class(name, cls):
    assert vecenv.ding.get_env_manager_cls({"type": name}) is getattr(vecenv.ding, cls)


def test_create_env_manager_does_not_change_the_config():
    cfg = {"type": "base", "import_names": ["tests.managers.fakes"], "episode_num": 2, "mine": {"a": [1]}}
    before = copy.deepcopy(cfg)
    manager = vecenv.ding.create_env_manager(cfg, actors(2))
    config_of(manager).mine.a.append(2)
    assert cfg == before and config_of(manager).episode_num == 2


@pytest.mark.parametrize(
    "function", [vecenv.ding.get_env_manager_cls, lambda cfg: vecenv.ding.create_env_manager(cfg, [])]
)
def test_get_env_manager_cls_of_unknown_types_raises(function):
    with pytest.raises(KeyError, match="did you mean"):
        function({"type": "subproces"})
    with pytest.raises(ValueError, match="type"):
        function({})
    for cfg in (None, 5, "base"):
        with pytest.raises(vecenv.ConfigError, match=f"^cfg: expected a dict, got {cfg!r}$"):
            function(cfg)
