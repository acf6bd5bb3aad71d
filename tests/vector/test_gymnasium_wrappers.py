"""Gymnasium's vector wrappers over a VectorEnv give the same results as over a SyncVectorEnv."""

from __future__ import annotations

import contextlib
import functools
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import transform_action, transform_observation, transform_reward
from gymnasium.wrappers import vector as wrappers

from tests.releases import GYMNASIUM
from tests.vector.comparison import assert_same
from vecenv import VectorEnv
from vecenv.envs.toys import CountEnv, SpaceEnv, ToyEnv

MODES = [pytest.param(mode, id=mode.value) for mode in AutoresetMode]

pendulum = functools.partial(gymnasium.make, "Pendulum-v1", max_episode_steps=6)
image = functools.partial(SpaceEnv, Box(0, 255, (8, 8, 3), np.uint8), length=4)
nested = functools.partial(SpaceEnv, Dict(a=Box(-1, 1, (2,)), b=Discrete(3)), length=4)
toy = functools.partial(ToyEnv, 5)
count = functools.partial(CountEnv, 4)

WRAPPERS: dict[str, tuple[Any, Any]] = {
    "RecordEpisodeStatistics": (toy, wrappers.RecordEpisodeStatistics),
    "NormalizeObservation": (pendulum, wrappers.NormalizeObservation),
    "NormalizeReward": (pendulum, wrappers.NormalizeReward),
    "DictInfoToList": (count, wrappers.DictInfoToList),
    "TransformObservation": (
        toy,
        functools.partial(wrappers.TransformObservation, func=lambda obs: 2 * obs, observation_space=None),
    ),
    "VectorizeTransformObservation": (
        toy,
        functools.partial(
            wrappers.VectorizeTransformObservation,
            wrapper=transform_observation.TransformObservation,
            func=lambda obs: 2 * obs,
            observation_space=Box(-np.inf, np.inf, (4,), np.float32),
        ),
    ),
    "FilterObservation": (nested, functools.partial(wrappers.FilterObservation, filter_keys=["a"])),
    "FlattenObservation": (nested, wrappers.FlattenObservation),
    "GrayscaleObservation": (image, wrappers.GrayscaleObservation),
    "ResizeObservation": (image, functools.partial(wrappers.ResizeObservation, shape=(4, 4))),
    "ReshapeObservation": (image, functools.partial(wrappers.ReshapeObservation, shape=(64, 3))),
    "RescaleObservation": (pendulum, functools.partial(wrappers.RescaleObservation, min_obs=0, max_obs=1)),
    "DtypeObservation": (toy, functools.partial(wrappers.DtypeObservation, dtype=np.float64)),
    "TransformAction": (pendulum, functools.partial(wrappers.TransformAction, func=lambda action: action / 2)),
    "VectorizeTransformAction": (
        pendulum,
        functools.partial(
            wrappers.VectorizeTransformAction,
            wrapper=transform_action.TransformAction,
            func=lambda action: action / 2,
            action_space=Box(-4, 4, (1,), np.float32),
        ),
    ),
    "ClipAction": (pendulum, wrappers.ClipAction),
    "RescaleAction": (pendulum, functools.partial(wrappers.RescaleAction, min_action=-1, max_action=1)),
    "TransformReward": (pendulum, functools.partial(wrappers.TransformReward, func=lambda reward: reward / 2)),
    "VectorizeTransformReward": (
        pendulum,
        functools.partial(
            wrappers.VectorizeTransformReward, wrapper=transform_reward.TransformReward, func=lambda reward: reward / 2
        ),
    ),
    "ClipReward": (pendulum, functools.partial(wrappers.ClipReward, min_reward=-1, max_reward=0)),
}

#: Tested below, or they need a library of their own.
ELSEWHERE = {"RecordVideo", "HumanRendering", "ArrayConversion", "JaxToNumpy", "JaxToTorch", "NumpyToTorch"}
#: Not in every release before 1.3.
NEWER = {"RecordVideo", "ArrayConversion"} if GYMNASIUM < (1, 3) else set()

#: Errors of wrapper constructors that do not support an autoreset mode.
REFUSALS = (ValueError,) if GYMNASIUM >= (1, 4) else (ValueError, AssertionError)


def test_gymnasium_wrappers_are_all_covered():
    known = WRAPPERS.keys() | ELSEWHERE
    assert known - NEWER <= set(wrappers.__all__) <= known


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", WRAPPERS)
def test_gymnasium_wrapper_gives_equal_results(name, mode):
    if name == "ResizeObservation":
        pytest.importorskip("cv2")
    env_fn, wrapper = WRAPPERS[name]
    with (
        contextlib.closing(SyncVectorEnv([env_fn] * 3, autoreset_mode=mode)) as sync,
        contextlib.closing(VectorEnv([env_fn] * 3, backend="serial", autoreset_mode=mode)) as envs,
    ):
        try:
            theirs = wrapper(sync)
        except REFUSALS as error:  # some support one mode only
            with pytest.raises(type(error), match=f"^{re.escape(str(error))}$"):
                wrapper(envs)
            return
        ours = wrapper(envs)
        assert ours.observation_space == theirs.observation_space
        assert_same(ours.reset(seed=5), theirs.reset(seed=5), "reset")
        theirs.action_space.seed(1)
        for i in range(20):
            actions = theirs.action_space.sample()
            results = [ours.step(actions), theirs.step(actions)]
            if name == "RecordEpisodeStatistics":
                for result in results:
                    result[4].get("episode", {}).pop("t", None)  # wall time
            assert_same(*results, f"step {i}")
            ended = results[0][2] | results[0][3]
            if mode == AutoresetMode.DISABLED and ended.any():
                mask = [{"reset_mask": ended.copy()} for _ in range(2)]
                assert_same(ours.reset(options=mask[0]), theirs.reset(options=mask[1]), f"reset after {i}")


@pytest.mark.extended
@pytest.mark.skipif("RecordVideo" in NEWER - set(wrappers.__all__), reason="newer than this Gymnasium")
@pytest.mark.parametrize("backend", ["serial", "process"])
def test_record_video_wrapper(backend, tmp_path):
    pytest.importorskip("moviepy")
    make = functools.partial(gymnasium.make, "CartPole-v1", render_mode="rgb_array", max_episode_steps=3)
    envs = wrappers.RecordVideo(
        VectorEnv([make] * 2, backend=backend), str(tmp_path / "videos"), episode_trigger=lambda episode: episode < 2
    )
    with contextlib.closing(envs):
        envs.reset(seed=0)
        for _ in range(8):
            envs.step(np.array([0, 1]))
    assert len(list(tmp_path.glob("videos/*.mp4"))) == 2


def test_human_rendering_wrapper(monkeypatch):
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    make = functools.partial(gymnasium.make, "CartPole-v1", render_mode="rgb_array")
    with contextlib.closing(wrappers.HumanRendering(VectorEnv([make] * 2, backend="serial"))) as envs:
        envs.reset(seed=0)
        envs.step(np.array([0, 1]))
        assert pygame.display.get_surface() is not None


def test_numpy_to_torch_wrapper():
    torch = pytest.importorskip("torch")
    pytest.importorskip("array_api_compat")
    with contextlib.closing(wrappers.NumpyToTorch(VectorEnv([toy] * 2, backend="serial"))) as envs:
        obs, _ = envs.reset(seed=0)
        assert isinstance(obs, torch.Tensor)
        obs, rewards, terminations, truncations, _ = envs.step(torch.tensor([1, 0]))
        assert obs[:, 1].tolist() == [1.0, 0.0] and rewards.tolist() == [1.0, 1.0]
        assert not terminations.any() and not truncations.any()
