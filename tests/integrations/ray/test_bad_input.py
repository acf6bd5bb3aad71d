"""Wrong arguments and clusters without room: each one is an error that says what to do, and nothing is started."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import pytest

from tests.integrations.ray.cluster import SimulatedCluster, reserve, run_program
from vecenv import ConfigError, RayOptions, VectorEnv
from vecenv.envs.toys import RaiseAtInit, ToyEnv

ray = pytest.importorskip("ray", exc_type=ImportError)

pytestmark = [pytest.mark.ray, pytest.mark.extended]


def open_envs(ray: Any = None, env_fns: Any = None, **options: Any) -> None:
    envs = VectorEnv(env_fns or [ToyEnv] * 4, backend=ray or "ray", **options)
    envs.close()


@pytest.mark.parametrize(
    "given, message",
    [
        ({"num_workers": 2}, r"num_workers: with backend='ray' each shard has `cpus_per_shard` workers"),
        ({"num_workers": "auto"}, r"num_workers: with backend='ray'"),
        ({"context": "thread"}, "context: expected one of"),
        (
            {"ray": RayOptions(placement_group="mine")},
            "placement_group: expected a PlacementGroup of Ray, got 'mine'",
        ),
        (
            {"ray": RayOptions(cpus_per_shard=64)},
            r"no living node has the resources of a shard \(CPU 64\); node .* of 2",
        ),
        ({"ray": RayOptions(resources={"carla": 1})}, "no living node has .*CPU 1, carla 1"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(cluster: SimulatedCluster, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_envs(**given)


def test_placement_group_that_is_too_small_is_refused(cluster: SimulatedCluster) -> None:
    group = reserve([{"CPU": 1}, {"CPU": 2}])
    try:
        with pytest.raises(ConfigError, match="3 shards need as many bundles from bundle 0 on, and there are 2"):
            open_envs(RayOptions(placement_group=group, num_shards=3))
        with pytest.raises(ConfigError, match="from bundle 2 on, and there are 0"):
            open_envs(RayOptions(placement_group=group, first_bundle=2))
        with pytest.raises(ConfigError, match="a shard needs CPU 2, and bundle 0 has CPU 1"):
            open_envs(RayOptions(placement_group=group, cpus_per_shard=2))
    finally:
        ray.util.remove_placement_group(group)


def test_reserved_nodes_are_an_error_without_a_number_of_shards(cluster: SimulatedCluster) -> None:
    group = reserve([{"CPU": 2}] * 2)
    try:
        with pytest.raises(ConfigError, match=r"\(CPU 2\); node .*CPU 0 free of 2.* Set num_shards to wait for them"):
            open_envs(RayOptions(cpus_per_shard=2))
        with pytest.raises(
            ConfigError, match=r"no place within 1 s.*CPU 2 of bundle 0; there is node.*CPU 0 free of 2"
        ):
            open_envs(RayOptions(cpus_per_shard=2, num_shards=1), timeouts={"construct": 1.0})
    finally:
        ray.util.remove_placement_group(group)


def test_more_shards_than_fit_are_an_error_with_their_number(cluster: SimulatedCluster) -> None:
    """The error named one CPU that was missing, and four that were free."""
    says = r"CPU 1 of bundle 0; there is node.*CPU 2 free of 2.*; 8 bundles of the group .* same time \(SPREAD, PENDING"
    with pytest.raises(ConfigError, match=says):
        open_envs(RayOptions(cpus_per_shard=1, num_shards=8), env_fns=[ToyEnv] * 8, timeouts={"construct": 1.0})


def test_constructor_that_does_not_pickle_is_named(cluster: SimulatedCluster) -> None:
    with pytest.raises(ConfigError, match=r"env_fns\[1\]"):
        open_envs(env_fns=[ToyEnv, functools.partial(ToyEnv, (one for one in ()))], ray=RayOptions(num_shards=1))


def test_exception_of_a_constructor_names_shard_and_node(cluster: SimulatedCluster) -> None:
    with pytest.raises(RuntimeError, match="toy env cannot be built") as found:
        open_envs(env_fns=[ToyEnv, RaiseAtInit], ray=RayOptions(num_shards=2, cpus_per_shard=1))
    assert "shard 1 (env 1), node " in "\n".join(found.value.__notes__)


def test_module_that_a_node_lacks_is_an_error_with_the_remedy(
    cluster: SimulatedCluster, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("from vecenv.envs import toys\nclass Env(toys.ToyEnv): pass")
    monkeypatch.syspath_prepend(str(tmp_path))
    env = importlib.import_module("only_here").Env
    with pytest.raises(ModuleNotFoundError, match="only_here") as found:
        open_envs(env_fns=[env])
    assert "ship it by RayOptions(runtime_env=...), or install it there" in "\n".join(found.value.__notes__)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("None", r"node .*, process \d+ has no vecenv \(ModuleNotFoundError: .*vecenv.*\), and here is vecenv [\d.]+"),
        ("fake", r"node .* has vecenv 0.0.1, which fails \(ModuleNotFoundError: .*\), and here is vecenv [\d.]+ "),
    ],
    ids=["missing", "other release"],
)
def test_node_without_this_vecenv_is_an_error_with_both_versions(
    cluster: SimulatedCluster, tmp_path: Any, module: str, message: str
) -> None:
    fake = "import sys\nfake = type(sys)('vecenv')\nfake.__version__ = '0.0.1'\n"
    (tmp_path / "sitecustomize.py").write_text(f"{fake}sys.modules['vecenv'] = {module}\n")
    runtime_env = {"env_vars": {"PYTHONPATH": str(tmp_path)}}
    with pytest.raises(ConfigError, match=message):
        open_envs(RayOptions(num_shards=1, cpus_per_shard=1, runtime_env=runtime_env))


def test_ray_client_is_refused(cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray.util.client.ray, "is_connected", lambda: True)
    with pytest.raises(ConfigError, match=r"does not work over Ray Client \(ray://...\).*submit the program as a job"):
        open_envs()


_NOT_INITIALISED = """
import vecenv, ray
try:
    vecenv.VectorEnv([None], backend="ray")
except vecenv.ConfigError as error:
    print(error)
print(ray.is_initialized())
"""


def test_program_without_ray_init_is_an_error(cluster: SimulatedCluster) -> None:
    program = _NOT_INITIALISED.replace("[None]", "[object]")
    lines = run_program(cluster, program).splitlines()
    assert lines == [
        "backend='ray': Ray is not initialised; call ray.init() first: vecenv starts no cluster",
        "False",
    ]
