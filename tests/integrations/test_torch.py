"""Batches as tensors: the same bytes on the CPU, pinned and asynchronous with CUDA."""

from __future__ import annotations

import contextlib
import functools

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.spaces import Box, Dict, Discrete, Graph, Text

pytest.importorskip("torch")

import torch

from vecenv import BatchedVectorEnv, ConfigError, VectorEnv
from vecenv.envs.toys import CountEnv, SpaceEnv
from vecenv.integrations.torch import PinnedMemory, ToDevice, as_tensors, to_device

BACKENDS = ["serial", "process"]
NESTED = Dict(camera=Box(0, 255, (3, 4), np.uint8), speed=Discrete(4), note=Text(5))
WITHOUT_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA")


def lies_in(tensor, memory):
    """Return whether all bytes of a tensor are within an array's memory."""
    start = memory.ctypes.data
    return start <= tensor.data_ptr() and tensor.data_ptr() + tensor.nbytes <= start + memory.nbytes


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensors_share_memory_with_the_arena(backend):
    with contextlib.closing(VectorEnv([functools.partial(CountEnv, 3)] * 4, backend=backend, copy=False)) as envs:
        envs.reset(seed=1)
        for _ in range(5):
            result = envs.step([0, 1, 0, 1])
            tensors = as_tensors(result)
            for tensor, array in zip(tensors[:4], result[:4]):
                assert isinstance(tensor, torch.Tensor)
                assert tensor.data_ptr() == array.ctypes.data
                assert lies_in(tensor, envs.pool.memory) or not in_arena(envs)
                assert tensor.numpy().dtype == array.dtype
                np.testing.assert_array_equal(tensor.numpy(), array)
            assert isinstance(tensors[4]["steps"], torch.Tensor)
        tensors[1][0] = 7
        assert result[1][0] == 7


def in_arena(envs):
    """Return whether batches are views of the arena; the Python implementation assembles them elsewhere."""
    return envs.implementation == "native"


@pytest.mark.extended
def test_tensors_of_a_batched_env_share_memory():
    env_fns = [functools.partial(CartPoleVectorEnv, 8)] * 2
    with contextlib.closing(BatchedVectorEnv(env_fns, copy=False)) as envs:
        envs.reset(seed=1)
        obs = as_tensors(envs.step(np.zeros(16, np.int64)))[0]
        assert obs.shape == (16, 4) and (lies_in(obs, envs.pool.memory) or not in_arena(envs))


def test_tensors_of_nested_observations_skip_non_numbers():
    with contextlib.closing(VectorEnv([functools.partial(SpaceEnv, NESTED)] * 2, backend="serial")) as envs:
        obs, infos = as_tensors(envs.reset(seed=1))
        assert obs["camera"].dtype == torch.uint8 and obs["camera"].shape == (2, 3, 4)
        assert obs["speed"].dtype == torch.int64
        assert all(isinstance(text, str) for text in obs["note"])
        assert infos == {}
    kept = [np.array([None, "x"], object), "text", None, 3]
    assert all(one is other for one, other in zip(as_tensors(kept), kept))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float32", "complex128"])
def test_tensors_of_every_number_type(dtype):
    assert as_tensors(np.ones(2, dtype)).dtype == getattr(torch, dtype)


def test_cpu_device_makes_no_copy():
    array = np.arange(6.0).reshape(2, 3)
    moved = to_device({"a": (array,)}, "cpu")["a"][0]
    assert moved.data_ptr() == array.ctypes.data


@pytest.mark.parametrize("backend", BACKENDS)
def test_to_device_takes_a_batch_in_one_call(backend):
    env_fns = [functools.partial(CountEnv, 3)] * 2
    with contextlib.closing(VectorEnv(env_fns, backend=backend, copy=False)) as envs:
        wrapped = gymnasium.wrappers.vector.RecordEpisodeStatistics(envs, stats_key="stats")
        with ToDevice(wrapped, "cpu") as to_cpu:
            assert not to_cpu.is_pinned
            obs, _ = to_cpu(wrapped.reset(seed=1))
            assert lies_in(obs, envs.pool.memory) or not in_arena(envs)
            for _ in range(6):
                obs, rewards, terminations, truncations, _ = to_cpu(wrapped.step([0, 1]))
            assert obs.device.type == "cpu" and terminations.dtype == torch.bool
        to_cpu.close()


def test_named_tuples_keep_their_type():
    graph = Graph(Box(-1, 1, (2,)), None).sample()
    moved = to_device([graph], "cpu")[0]
    assert type(moved) is type(graph) and moved.edges is None
    assert moved.nodes.data_ptr() == graph.nodes.ctypes.data


@pytest.mark.parametrize("device", ["nonsense", "cuda:x", "mps", 3.5, None])
def test_unknown_device_is_an_error(device):
    with pytest.raises(ConfigError, match="^device.*$"):  # one line
        to_device(np.ones(2), device)


def test_pinned_memory_refuses_closed_envs_and_cpu():
    envs = VectorEnv([CountEnv], backend="serial")
    with pytest.raises(ConfigError, match="device 'cpu': only memory for CUDA"):
        PinnedMemory(envs, "cpu")
    envs.close()


@WITHOUT_CUDA
def test_pinning_without_cuda_is_an_error():
    with contextlib.closing(VectorEnv([CountEnv], backend="serial")) as envs:
        for call in (
            lambda: ToDevice(envs, "cuda"),
            lambda: PinnedMemory(envs),
            lambda: to_device(np.ones(2), "cuda:1"),
        ):
            with pytest.raises(
                ConfigError, match=r"device 'cuda.*': torch .* (without CUDA|no CUDA device); use 'cpu'"
            ):
                call()


def test_to_device_needs_a_vecenv_env():
    with (
        contextlib.closing(gymnasium.make_vec("CartPole-v1", 2, "sync")) as foreign,
        pytest.raises(ConfigError, match="expected a vector env of vecenv, got SyncVectorEnv"),
    ):
        ToDevice(foreign, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_pinned_copies_equal_the_rows(backend, depth):
    env_fns = [functools.partial(CountEnv, 5)] * 8
    with contextlib.closing(VectorEnv(env_fns, backend=backend, copy=False, engine={"depth": depth})) as envs:
        with ToDevice(envs, "cuda") as to_cuda:
            assert to_cuda.is_pinned == in_arena(envs)
            obs, _ = envs.reset(seed=1)
            assert as_tensors(obs).is_pinned() == in_arena(envs)
            expected, moved = [obs.copy()], [to_cuda(obs)]
            for _ in range(50):
                obs = envs.step([0] * 8)[0]
                expected.append(obs.copy())
                moved.append(to_cuda(obs))
            for one, other in zip(moved, expected):
                np.testing.assert_array_equal(one.cpu().numpy(), other)
        assert not as_tensors(obs).is_pinned()


@pytest.mark.gpu
def test_arrays_outside_the_arena_are_copied_at_once():
    with contextlib.closing(VectorEnv([CountEnv] * 2, backend="serial")) as envs, ToDevice(envs, "cuda") as to_cuda:
        assert not to_cuda.is_pinned
        obs, _ = envs.reset(seed=1)
        expected, moved = obs.copy(), to_cuda(obs)
        obs[...] = 0
        np.testing.assert_array_equal(moved.cpu().numpy(), expected)


@pytest.mark.gpu
def test_memory_is_registered_once_and_again_after_close():
    with contextlib.closing(VectorEnv([CountEnv] * 2, backend="serial", copy=False)) as envs:
        with PinnedMemory(envs), pytest.raises(RuntimeError, match="already"):
            PinnedMemory(envs)
        assert torch.ones(2, device="cuda").sum().item() == 2  # the refused call does not block others
        PinnedMemory(envs).close()
        with pytest.raises(ConfigError, match="torch sees"):
            PinnedMemory(envs, "cuda:99")
