"""DMAtariPreprocessing: the observations of a policy, frame by frame."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from vecenv.alf import AlfGymWrapper, DMAtariPreprocessing

cv2 = pytest.importorskip("cv2")
ale_py = pytest.importorskip("ale_py")


def make(game="Breakout", **kwargs):
    gymnasium.register_envs(ale_py)
    options = {"frameskip": 1, "repeat_action_probability": 0.0, **kwargs}
    return gymnasium.make(f"ALE/{game}-v5", **options)


@pytest.mark.extended
@pytest.mark.parametrize("gray_scale", [True, False])
def test_atari_preprocessing_matches_the_dqn_papers(gray_scale):
    pytest.importorskip("cv2")
    ale_py = pytest.importorskip("ale_py")
    gymnasium.register_envs(ale_py)
    inner = gymnasium.make("ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0)
    env = DMAtariPreprocessing(inner, frame_skip=4, noop_max=5, gray_scale=gray_scale)
    shape = (84, 84, 1 if gray_scale else 3)
    assert env.observation_space.shape == shape
    obs, _ = env.reset(seed=1)
    lives = []
    for _ in range(5000):
        obs, _, terminated, truncated, info = env.step(0)  # only the wrapper fires, not this policy
        lives.append(info["lives"])
        if terminated or truncated:
            break
    assert env.observation_space.contains(obs) and obs.any()
    assert lives[0] == 5 and lives[-1] == 0, "FIRE is pressed after each lost life, else the game would stand still"
    env.close()


def screen_of(env, gray_scale):
    ale = env.unwrapped.ale
    return ale.getScreenGrayscale() if gray_scale else ale.getScreenRGB()


def shrunk(screen):
    small = cv2.resize(screen, (84, 84), interpolation=cv2.INTER_AREA)
    return small[:, :, None] if small.ndim == 2 else small


@pytest.mark.extended
@pytest.mark.parametrize("gray_scale", [True, False])
@pytest.mark.parametrize("skip", [1, 3, 4])
def test_lost_life_ends_the_skip_and_starts_a_new_frame_stack(gray_scale, skip):
    env, raw = DMAtariPreprocessing(make(), skip, noop_max=0, gray_scale=gray_scale), make()

    def fire():
        for action in (1, 2):
            raw.step(action)

    obs, _ = env.reset(seed=1)
    raw.reset(seed=1)
    fire()
    np.testing.assert_array_equal(obs, shrunk(screen_of(raw, gray_scale)))
    lives, lost, cut = 5, 0, 0
    rng = np.random.default_rng(0)
    while lost < 4:  # the fifth lost life ends the game
        action = int(rng.integers(2, 4))
        screens, is_lost = [], False
        while len(screens) < skip and not is_lost:
            *_, info = raw.step(action)
            screens.append(screen_of(raw, gray_scale))
            is_lost, lives = info["lives"] < lives, info["lives"]
        num_frames, seen = len(screens), np.max(screens[-2:] if skip > 1 else screens[-1:], axis=0)
        if is_lost:
            lost, cut = lost + 1, cut + (num_frames < skip)
            fire()
            seen = screen_of(raw, gray_scale)
        obs, _, terminated, truncated, info = env.step(action)
        assert not (terminated or truncated) and info["lives"] == lives
        assert info["num_env_frames"] == num_frames
        np.testing.assert_array_equal(obs, shrunk(seen))
    assert cut or skip == 1, "some skips end early"
    env.close()
    raw.close()


def test_frame_count_is_in_every_info():
    env = AlfGymWrapper(DMAtariPreprocessing(make("Pong"), frame_skip=4, noop_max=2))
    assert env.env_info_spec().keys() == {"num_env_frames"}
    assert env.reset().env_info["num_env_frames"] == 0
    assert env.step(0).env_info["num_env_frames"] == 4
    env.close()


@pytest.mark.extended
def test_atari_preprocessing_refuses_unfit_envs():
    for name, value in (("frame_skip", 0), ("screen_size", 0)):
        with pytest.raises(ValueError, match=name):
            DMAtariPreprocessing(make(), **{name: value})
    with pytest.raises(ValueError, match="frameskip=1"):
        DMAtariPreprocessing(make(frameskip=4))
