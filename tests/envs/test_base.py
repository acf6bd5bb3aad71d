"""BaseEnv, its timestep, and the way from a config to env classes."""

from __future__ import annotations

import pickle
from abc import ABC

import gymnasium
import pytest

from tests.inside import seed_of
from tests.scripted import Ding
from vecenv import ConfigError
from vecenv.ding import ENV_REGISTRY, BaseEnv, BaseEnvTimestep, Config, DingEnvWrapper, get_env_cls, get_vec_env_setting


@pytest.fixture
def registered():
    ENV_REGISTRY.register("test_base_env", Ding, force_overwrite=True)
    return "test_base_env"


def test_timestep_has_four_fields_in_order():
    assert BaseEnvTimestep._fields == ("obs", "reward", "done", "info")
    obs, reward, done, info = BaseEnvTimestep(1, 2, True, {})
    assert (obs, reward, done, info) == (1, 2, True, {})


def test_timestep_is_immutable_replaceable_and_pickles():
    timestep = BaseEnvTimestep(1, 2, False, {"a": 1})
    with pytest.raises(AttributeError):
        timestep.obs = 3
    assert timestep._replace(done=True).done is True
    assert pickle.loads(pickle.dumps(timestep)) == timestep


def test_base_env_is_a_gymnasium_env_and_abstract():
    assert issubclass(BaseEnv, gymnasium.Env) and issubclass(BaseEnv, ABC)
    assert BaseEnv.__abstractmethods__ == {"__init__", "reset", "step", "close"}
    with pytest.raises(TypeError):
        BaseEnv({})


def test_timestep_class_is_reachable_from_the_env():
    assert BaseEnv.timestep is BaseEnvTimestep


def test_defaults_of_the_optional_members():
    env = Ding()
    assert env.random_action() is None
    with pytest.raises(NotImplementedError):
        env.enable_save_replay("somewhere")


def test_default_seed_is_remembered():
    class Minimal(Ding):
        seed = BaseEnv.seed

    env = Minimal()
    env.seed(7, dynamic_seed=False)
    assert seed_of(env) == (7, False)


def test_repr_and_str_name_the_env():
    env = Ding({"env_id": "Some-v0"})
    assert repr(env) == str(env) == "Ding(Some-v0)"


def test_default_config_is_a_deep_copy_with_cfg_type():
    config = Ding.default_config()
    assert config.length == 3 and config.cfg_type == "DingDict"
    config.length = 9
    assert Ding.config == {"length": 3}


@pytest.mark.parametrize("factory, key", [("collector", "collector_env_num"), ("evaluator", "evaluator_env_num")])
@pytest.mark.parametrize("env_cls", [Ding, DingEnvWrapper])
def test_w1_env_cfg_factories_do_not_mutate_or_alias(env_cls, factory, key):
    cfg = {key: 2, "nested": {"a": [1]}, "env_id": "CartPole-v1"}
    kept = {key: 2, "nested": {"a": [1]}, "env_id": "CartPole-v1"}
    first, second = getattr(env_cls, f"create_{factory}_env_cfg")(cfg)
    assert cfg == kept
    assert key not in first
    first.nested.a.append(2)
    assert second.nested.a == [1] and cfg == kept


def test_ding_wrapper_cfgs_say_whether_they_train():
    cfg = {"collector_env_num": 1, "evaluator_env_num": 1, "env_id": "CartPole-v1"}
    assert DingEnvWrapper.create_collector_env_cfg(cfg)[0].is_train is True
    assert DingEnvWrapper.create_evaluator_env_cfg(cfg)[0].is_train is False


def test_env_cfg_factories_keep_an_easydict():
    easydict = pytest.importorskip("easydict")
    cfg = easydict.EasyDict({"collector_env_num": 1, "a": {"b": 1}})
    (one,) = Ding.create_collector_env_cfg(cfg)
    assert isinstance(one, easydict.EasyDict) and one.a.b == 1
    assert "collector_env_num" not in one and not hasattr(one, "collector_env_num")
    assert cfg.collector_env_num == 1


@pytest.mark.parametrize("count", [None, -1, "two", True])
def test_bad_count_is_a_config_error(count):
    with pytest.raises(ConfigError, match="collector_env_num"):
        Ding.create_collector_env_cfg({} if count is None else {"collector_env_num": count})


def test_get_env_cls(registered):
    assert get_env_cls({"type": registered}) is Ding
    with pytest.raises(KeyError, match="no_such_env"):
        get_env_cls({"type": "no_such_env"})
    with pytest.raises(ConfigError, match="type"):
        get_env_cls({})


def test_import_names_are_imported_first(tmp_path, monkeypatch):
    (tmp_path / "my_env_module.py").write_text(
        "from vecenv.ding import ENV_REGISTRY\nENV_REGISTRY.register('by_import', dict, force_overwrite=True)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert get_env_cls({"type": "by_import", "import_names": ["my_env_module"]}) is dict


def test_get_vec_env_setting_gives_class_and_cfgs(registered):
    cfg = Config(type=registered, collector_env_num=2, evaluator_env_num=3)
    env_cls, collectors, evaluators = get_vec_env_setting(cfg)
    assert env_cls is Ding and len(collectors) == 2 and len(evaluators) == 3
    assert cfg == {"type": registered, "collector_env_num": 2, "evaluator_env_num": 3}


def test_get_vec_env_setting_leaves_out_unwanted_parts(registered):
    cfg = {"type": registered, "collector_env_num": 2}
    assert get_vec_env_setting(cfg, eval_=False)[2] is None
    assert get_vec_env_setting({"type": registered, "evaluator_env_num": 1}, collect=False)[1] is None


def test_env_factory_that_pops_does_not_change_the_callers_config():
    class Pops(Ding):
        @staticmethod
        def create_collector_env_cfg(cfg):
            return [cfg] * cfg.pop("collector_env_num")

    ENV_REGISTRY.register("test_pops", Pops, force_overwrite=True)
    cfg = {"type": "test_pops", "collector_env_num": 2}
    get_vec_env_setting(cfg, eval_=False)
    assert cfg["collector_env_num"] == 2
