"""Front ends over a simulated cluster: the results equal those of the other backends."""

from __future__ import annotations

import functools
import glob
import json
import math
import os
import re
import signal
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.faults.traces import play, undisturbed, wait_until
from tests.integrations.ray.cluster import ROOT, SimulatedCluster, reserve, run_program
from tests.integrations.ray.pools import ray_pool
from vecenv import BatchedVectorEnv, ConfigError, RayOptions, VectorEnv, alf
from vecenv.cli import main
from vecenv.core.layout.flags import Autoreset
from vecenv.ding import create_env_manager
from vecenv.envs.toys import FrameEnv, HugeInfo, ToyEnv

ray = pytest.importorskip("ray", exc_type=ImportError)

pytestmark = [pytest.mark.ray, pytest.mark.extended]

TWO = RayOptions(num_shards=2, cpus_per_shard=1)


def cartpole() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


@pytest.mark.parametrize("backend", [TWO, "ray"], ids=["options", "name"])
def test_vector_env_gives_the_results_of_the_serial_backend(cluster: Any, backend: Any) -> None:
    ours = VectorEnv([cartpole] * 5, backend=backend)
    theirs = VectorEnv([cartpole] * 5, backend="serial")
    try:
        actions = np.random.default_rng(0).integers(0, 2, (60, 5))
        np.testing.assert_array_equal(ours.reset(seed=3)[0], theirs.reset(seed=3)[0])
        for action in actions:
            for mine, other in zip(ours.step(action)[:4], theirs.step(action)[:4]):
                np.testing.assert_array_equal(mine, other)
        assert ours.call("spec")[0].id == "CartPole-v1"
        shards = ours.shards()
        assert [shard.state for shard in shards] == ["serving"] * len(shards)
        assert sorted(env_id for shard in shards for env_id in shard.env_ids) == [0, 1, 2, 3, 4]
        assert len({shard.node_id for shard in shards}) == len(shards) == 2
        found = ours.statistics()
        assert found.steps == theirs.statistics().steps > 200 and found.shards_replaced == 0
        assert found.num_workers == (2 if backend is TWO else 4)
        assert found.envs.step.num.tolist() == theirs.statistics().envs.step.num.tolist()
        assert found.workers.num_envs.sum() == 5
        assert f"num_shards={len(shards)}, num_workers={found.num_workers}, threads" in repr(ours)
        assert found.shard_calls >= 60 and found.bytes_up > 0 and found.bytes_down > 0
        assert theirs.shards() == []
    finally:
        ours.close()
        theirs.close()


def test_top_and_table_of_shards_name_nodes_and_ray_knows_the_reserved_cpus(
    cluster: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # the files of other pools are out of sight
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    free = ray.available_resources()["CPU"]
    with VectorEnv([cartpole] * 5, backend=RayOptions(num_shards=2, cpus_per_shard=2)) as envs:
        envs.reset(seed=0)
        num_workers = envs.statistics().num_workers
        assert num_workers == 4
        wait_until(lambda: free - ray.available_resources().get("CPU", 0.0) == num_workers)  # Ray shows it late
        envs.step(np.zeros(5, np.int64))
        assert main(["top", str(os.getpid()), "--json", "--once", "--interval", "0.01"]) == 0
        found = json.loads(capsys.readouterr().out)
        shards = envs.shards()
        assert [(one["pid"], one["node"]) for one in found["shards"]] == [
            (shard.pid, f"{shard.node_ip} ({shard.node_id[:8]})") for shard in shards
        ]
        assert [one["steps"] for one in found["shards"]] == [3, 2]
        assert re.search(rf"^shard 1 +{found['shards'][1]['node'].split()[0]} .* 3-4  serving +0$", str(shards), re.M)


@pytest.mark.parametrize("num_spare_envs", [0, 4])
def test_saved_envs_move_from_ray_to_this_machine_and_back(cluster: Any, num_spare_envs: int, tmp_path: Path) -> None:
    def play(backends: list[Any]) -> list[Any]:
        envs = VectorEnv([cartpole] * 4, backend=backends[0], num_spare_envs=num_spare_envs)
        rows, actions = [envs.reset(seed=3)[0].tolist()], np.random.default_rng(0).integers(0, 2, (60, 4))
        for number, action in enumerate(actions):
            if number and number % 15 == 0:
                envs.save(tmp_path / "state")
                envs.close()
                backend = backends[number // 15]
                envs = VectorEnv(
                    [cartpole] * 4, backend=backend, num_spare_envs=num_spare_envs, resume=tmp_path / "state"
                )
            if number == 32 and backend is TWO:
                os.kill(envs.shards()[0].pid, signal.SIGKILL)
            rows.append([array.tolist() for array in envs.step(action)[:4]])
        envs.close()
        return rows

    assert play([TWO, "serial", TWO, TWO]) == play(["serial", "process", "serial", "serial"])


def test_states_of_envs_move_from_ray_to_this_machine_and_back(cluster: Any) -> None:
    """The actor of every env is killed after its state was set."""
    ours = VectorEnv([cartpole] * 4, backend=TWO, episode_statistics=True)
    theirs = VectorEnv([cartpole] * 4, backend="serial", episode_statistics=True)
    try:
        actions = np.random.default_rng(0).integers(0, 2, (40, 4))

        def rows_of(envs: VectorEnv, first: int) -> list[Any]:
            return [[array.tolist() for array in envs.step(action)[:4]] for action in actions[first : first + 10]]

        ours.reset(seed=3)
        theirs.reset(seed=9)
        rows_of(ours, 0)
        states = ours.get_states()
        assert theirs.set_states(states[::-1]).tolist() == ours.observations[::-1].tolist()
        assert theirs.get_states() == states[::-1]
        expected = rows_of(theirs, 10)
        ours.set_states(states[::-1])
        for shard in ours.shards():
            os.kill(shard.pid, signal.SIGKILL)
        assert rows_of(ours, 10) == expected
        assert ours.get_states() == theirs.get_states()
        found = ours.statistics()
        assert found.shards_replaced == 2 and not found.truncated
        ours.set_states(theirs.get_states([2, 0]), [0, 1])
        assert ours.get_states([1, 0]) == theirs.get_states([0, 2])
    finally:
        ours.close()
        theirs.close()


def test_saved_envs_with_other_spaces_are_refused_over_ray(cluster: Any, tmp_path: Path) -> None:
    envs = VectorEnv([cartpole] * 4, backend="serial")
    envs.reset(seed=3)
    envs.save(tmp_path / "state")
    envs.close()
    with pytest.raises(ConfigError, match="it was saved with the observation_space"):
        VectorEnv([ToyEnv] * 4, backend=TWO, resume=tmp_path / "state")


@pytest.mark.parametrize("env", [HugeInfo, FrameEnv])
def test_streams_of_large_answers_equal_those_of_a_serial_pool(cluster: Any, env: Any) -> None:
    with ray_pool([env] * 4, autoreset=Autoreset.SAME_STEP) as pool:
        ours = play(pool, 12)
    assert ours == undisturbed([env] * 4, 12, autoreset=Autoreset.SAME_STEP)


def test_async_stream_equals_that_of_a_serial_pool(cluster: Any) -> None:
    with ray_pool([ToyEnv] * 5) as pool:
        assert play(pool, 20, in_order=False) == undisturbed([ToyEnv] * 5, 20)


def test_pool_opens_at_once_after_another_one_was_closed(cluster: Any) -> None:
    """Ray shows CPUs as reserved for a moment after a placement group was removed."""
    folders = set(glob.glob(os.path.join(tempfile.gettempdir(), "pymp-*")))
    for _ in range(3):
        envs = VectorEnv([ToyEnv] * 4, backend=RayOptions(shard_timeout=math.inf))
        try:
            assert len(envs.shards()) == 2
        finally:
            envs.close()
    assert set(glob.glob(os.path.join(tempfile.gettempdir(), "pymp-*"))) <= folders, "left by actors"


def test_manager_gives_the_timesteps_of_the_base_manager(cluster: Any) -> None:
    results = []
    for cfg in ({"type": "base"}, {"type": "ray", "ray": TWO}):
        with create_env_manager({**cfg, "auto_reset": True}, [cartpole] * 3) as manager:
            manager.seed(5)
            manager.launch()
            assert [shard.env_ids for shard in manager.shards()] == ([] if cfg["type"] == "base" else [(0, 1), (2,)])
            rng = np.random.default_rng(1)
            steps = []
            for _ in range(40):
                found = manager.step({env_id: int(rng.integers(2)) for env_id in manager.ready_obs})
                steps.append(
                    {key: (step.obs.tobytes(), step.reward.tobytes(), step.done) for key, step in found.items()}
                )
            results.append(steps)
    assert results[0] == results[1]


def test_sb3_vec_env_gives_the_results_of_the_serial_backend(cluster: Any) -> None:
    pytest.importorskip("stable_baselines3", exc_type=ImportError)
    from vecenv.integrations.sb3 import SB3VecEnv

    results = []
    for backend in ("serial", TWO):
        envs = SB3VecEnv([cartpole] * 4, backend=backend)
        try:
            envs.seed(3)
            rows = [envs.reset()]
            for action in np.random.default_rng(2).integers(0, 2, (40, 4)):
                obs, rewards, dones, infos = envs.step(action)
                rows += [obs, rewards, dones]
                assert len(infos) == 4
            results.append([row.tobytes() for row in rows])
        finally:
            envs.close()
    assert results[0] == results[1]


def test_batched_vector_env_survives_the_death_of_an_actor(cluster: Any) -> None:
    from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

    results = []
    for backend in ("serial", TWO):
        batches = BatchedVectorEnv([functools.partial(CartPoleVectorEnv, 3)] * 2, backend=backend)
        try:
            rows = [batches.reset(seed=0)[0].tobytes()]
            assert [shard.env_ids for shard in batches.shards()] == ([(0, 1, 2), (3, 4, 5)] if backend is TWO else [])
            for number, action in enumerate(np.random.default_rng(2).integers(0, 2, (15, 6))):
                if number == 10 and backend is TWO:
                    os.kill(batches.shards()[1].pid, signal.SIGKILL)
                rows += [column.tobytes() for column in batches.step(action)[:4]]
            results.append(rows)
        finally:
            batches.close()
    assert results[0] == results[1]


def test_alf_environment_steps_over_ray(cluster: Any) -> None:
    env = alf.create_environment("CartPole-v1", num_parallel_environments=4, tensors=False, backend="ray", ray=TWO)
    try:
        assert env.reset().observation.shape == (4, 4)
        assert env.step(np.zeros(4, np.int64)).observation.shape == (4, 4)
    finally:
        env.close()


def test_placement_group_of_the_program_is_used_and_stays(cluster: Any) -> None:
    group = reserve([{"CPU": 1}] * 3, strategy="PACK")
    try:
        given = RayOptions(placement_group=group, first_bundle=1)
        with ray_pool([ToyEnv] * 4, given) as pool:
            assert play(pool, 3) == undisturbed([ToyEnv] * 4, 3)
            assert len(pool.shards()) == 2
        assert ray.util.placement_group_table(group)["state"] == "CREATED"
    finally:
        ray.util.remove_placement_group(group)


def test_programs_of_the_page_run(cluster: SimulatedCluster) -> None:
    page = (ROOT / "docs" / "ray.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    stepping, collecting, evaluating = (block for block in blocks if "ray.init()" in block)
    lines = run_program(cluster, stepping).splitlines()
    assert lines[0].startswith("steps 6,")
    assert [line.split()[-2] for line in lines[-2:]] == ["serving"] * 2  # the table of the shards
    lines = run_program(cluster, collecting).splitlines()
    assert [line.split(")")[0] for line in lines] == [f"{version} (128, 64, 4" for version in range(1, 11)]
    assert run_program(cluster, evaluating).startswith("CartPole-v1: 1000 episodes")
