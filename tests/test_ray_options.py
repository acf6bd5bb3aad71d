"""RayOptions, and the argument `ray` of front ends; without Ray."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import numpy as np
import pytest

from vecenv import BatchedVectorEnv, ConfigError, DependencyError, RayOptions, VectorEnv
from vecenv.ding import create_env_manager
from vecenv.envs.toys import ToyEnv
from vecenv.ray_options import read_ray_options


def test_options_have_pythons_types_and_pickle() -> None:
    options = RayOptions(num_shards=np.int64(2), num_gpus=np.float32(0.5), resources={"carla": 1})
    assert type(options.num_shards) is int and type(options.num_gpus) is float
    assert options.cpus_per_shard is None and options.placement == "SPREAD" and options.replace_timeout == 300.0
    assert pickle.loads(pickle.dumps(options)) == options
    hash(options)
    assert read_ray_options({"num_shards": 2}) == RayOptions(num_shards=2)
    assert read_ray_options(None) == RayOptions()


@pytest.mark.parametrize(
    "given, message",
    [
        ({"num_shards": 0}, "num_shards: expected a whole number of at least 1, got 0"),
        ({"num_shards": True}, "num_shards: expected a whole number"),
        ({"cpus_per_shard": 1.5}, "cpus_per_shard: expected a whole number of at least 1, got 1.5"),
        ({"num_workers": 4}, "num_workers: expected 'auto' or None, got 4; cpus_per_shard sets the number of workers"),
        ({"placement": "spred"}, r"placement: expected one of .*, got 'spred'; did you mean 'SPREAD'\?"),
        ({"placement": 3}, r"placement: expected one of .*, got 3$"),
        ({"first_bundle": -1}, "first_bundle: expected a whole number of at least 0"),
        ({"first_bundle": 1}, "first_bundle: only with a placement_group"),
        ({"placement": "PACK", "placement_group": "one of the program"}, "placement: not with placement_group"),
        ({"resources": ["carla"]}, "resources: expected a dict"),
        ({"resources": {"CPU": 2}}, "resources: 'CPU' has an option of its own, cpus_per_shard"),
        ({"resources": {"carla": 0}}, r"resources\['carla'\]: expected a number above 0, got 0"),
        ({"num_gpus": -1}, "num_gpus: expected a number of at least 0, got -1"),
        ({"runtime_env": "conda"}, "runtime_env: expected a dict or None"),
        ({"shard_timeout": 0}, "shard_timeout: expected seconds above 0, got 0"),
        ({"replace_timeout": None}, "replace_timeout: expected seconds above 0, got None"),
    ],
    ids=str,
)
def test_wrong_values_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^RayOptions: {message}") as found:
        RayOptions(**given)
    assert found.value.key in given


@pytest.mark.parametrize(
    "given, message",
    [
        ({"shards": 2}, "ray: unknown key 'shards'; did you mean 'num_shards'"),
        (3, "ray: expected a RayOptions or a dict, got 3"),
    ],
)
def test_wrong_arguments_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_ray_options(given)
    with pytest.raises(ConfigError, match=message):
        create_env_manager({"type": "ray", "ray": given}, [ToyEnv])


@pytest.mark.parametrize("make", [VectorEnv, BatchedVectorEnv])
@pytest.mark.filterwarnings("ignore:ray= has moved:DeprecationWarning")
def test_options_without_the_backend_are_refused(make: Any) -> None:
    with pytest.raises(ConfigError, match="ray: only with backend='ray', and backend is 'serial'"):
        make([ToyEnv], backend="serial", ray={"num_shards": 1})


def test_backend_without_ray_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DependencyError, match=r'run: pip install "ray>=2.50"') as found:
        VectorEnv([ToyEnv], backend="ray")
    assert found.value.extra == "ray"
