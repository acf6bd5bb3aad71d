"""Views of expired batches with `copy=False` and `debug=True`: values that show, and a warning that names the leaf."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from vecenv import BatchedVectorEnv, VectorEnv
from vecenv.envs.toys import ToyEnv

ZEROS = np.zeros(2, np.int64)


class ManyLeaves(gymnasium.Env):
    """Has a leaf of each kind of dtype; every value is 1."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Dict(
        camera=spaces.Box(0, 255, (2, 2), np.uint8),
        closed=spaces.Box(0, 1, (3,), np.bool_),
        half=spaces.Box(-1, 1, (2,), np.float16),
        number=spaces.Discrete(4),
        speed=spaces.Box(-1, 1, (), np.float32),
        nothing=spaces.Box(-1, 1, (0, 2), np.float32),
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {key: np.ones(space.shape, space.dtype) for key, space in self.observation_space.items()}, {}

    def step(self, action):
        return self.reset()[0], 1.0, False, False, {}


def warnings_of_steps(envs: Any, count: int) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(count):
            envs.step(envs.action_space.sample())
    assert all(one.category is RuntimeWarning and one.filename == __file__ for one in seen)
    return [str(one.message) for one in seen]


@pytest.mark.parametrize("depth", [2, 3, 5])
@pytest.mark.filterwarnings("ignore:.*arrays of an expired batch:RuntimeWarning")
def test_expired_views_show_by_their_values(backend, depth):
    with VectorEnv([ManyLeaves] * 2, backend=backend, copy=False, engine={"depth": depth}, checks="debug") as envs:
        envs.reset(seed=0)
        obs, rewards, terminations, truncations, _ = envs.step(ZEROS)
        for _ in range(depth - 2):
            envs.step(ZEROS)
            assert rewards.tolist() == [1.0, 1.0] and (obs["camera"] == 1).all()
        envs.step(ZEROS)
        for array in (obs["half"], obs["speed"], rewards):
            assert np.isnan(array).all()
        assert (obs["camera"] == 0xA5).all() and set(obs["number"].tobytes()) == {0xA5}
        for array in (obs["closed"], terminations, truncations):
            assert array.ravel().tolist() == ([True, False] * array.size)[: array.size]


def test_expired_env_ids_are_no_ids(backend):
    with VectorEnv([ToyEnv] * 2, backend=backend, copy=False, engine={"depth": 2}, checks="debug") as envs:
        envs.reset(seed=0)
        envs.send(ZEROS)
        env_ids = envs.recv()[4]["env_id"]
        envs.send(ZEROS)
        envs.recv()
        with pytest.raises(IndexError):
            ZEROS[env_ids]


@pytest.mark.parametrize("depth", [2, 3])
def test_view_in_use_is_named_when_its_memory_is_reused(backend, depth):
    with VectorEnv([ManyLeaves] * 2, backend=backend, copy=False, engine={"depth": depth}, checks="debug") as envs:
        envs.reset(seed=0)
        kept = envs.step(ZEROS)[0]["camera"][0]
        assert warnings_of_steps(envs, depth - 1) == []
        (text,) = warnings_of_steps(envs, 5)
        assert text.startswith("obs/camera: arrays of an expired batch are still referenced")
        assert "torch.Tensor, torch.from_numpy and torch.as_tensor share the memory" in text
        kept = envs.step(ZEROS)[0]["speed"]
        assert warnings_of_steps(envs, 5) == [], "one warning per pool"
        assert len(kept) == 2


@pytest.mark.parametrize("share", ["from_numpy", "as_tensor"])
def test_tensor_that_shares_memory_is_in_use(share):
    torch = pytest.importorskip("torch")
    with VectorEnv([ToyEnv] * 2, backend="serial", copy=False, checks="debug") as envs:
        envs.reset(seed=0)
        kept = getattr(torch, share)(envs.step(ZEROS)[0])
        (text,) = warnings_of_steps(envs, 5)
        assert text.startswith("obs: ") and len(kept) == 2
        cloned = torch.from_numpy(envs.step(ZEROS)[0]).clone()
        before = cloned.clone()
        envs.step(ZEROS)
        assert torch.equal(cloned, before)


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("copy", [True, False], ids=["copy", "views"])
@pytest.mark.parametrize("calls", ["step", "send", "reset"])
def test_loops_that_use_views_in_time_do_not_warn(backend, copy, depth, calls):
    """Variables of the caller refer to a batch until the next one has been received."""
    with (
        warnings.catch_warnings(),
        VectorEnv(
            [functools.partial(ToyEnv, 3)] * 2, backend=backend, copy=copy, engine={"depth": depth}, checks="debug"
        ) as envs,
    ):
        warnings.simplefilter("error")
        obs, infos = envs.reset(seed=0)
        for _ in range(12):
            if calls == "send":
                envs.send(ZEROS)
                obs, rewards, terminations, truncations, infos = envs.recv()
            else:
                obs, rewards, terminations, truncations, infos = envs.step(ZEROS)
            if calls == "reset":
                obs, infos = envs.reset(seed=1, options={"reset_mask": np.array([True, False])})
            assert not np.isnan(obs).any()


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("copy", [True, False], ids=["copy", "views"])
def test_batched_loops_do_not_warn_but_views_in_use_do(copy, depth):
    batch = functools.partial(SyncVectorEnv, [functools.partial(ToyEnv, 3)] * 2)
    with (
        warnings.catch_warnings(),
        BatchedVectorEnv([batch] * 2, copy=copy, engine={"depth": depth}, checks="debug", backend="serial") as envs,
    ):
        warnings.simplefilter("error")
        obs, _ = envs.reset(seed=0)
        for _ in range(8):
            obs = envs.step(np.zeros(4, np.int64))[0]
            assert not np.isnan(obs).any()
        kept = obs
        texts = warnings_of_steps(envs, depth + 2)
        assert [text.partition(":")[0] for text in texts] == ([] if copy else ["obs/0"]), kept.shape


def test_tensors_of_the_newest_batch_do_not_warn():
    pytest.importorskip("torch")
    from vecenv.integrations.torch import ToDevice

    with warnings.catch_warnings(), VectorEnv([ToyEnv] * 2, backend="serial", copy=False, checks="debug") as envs:
        warnings.simplefilter("error")
        with ToDevice(envs, "cpu") as to_device:
            obs, _ = to_device(envs.reset(seed=0))
            for _ in range(6):
                obs, *_ = to_device(envs.step(ZEROS))
                assert not obs.isnan().any()
