"""Gym wrappers of ALF: their declared spaces match their data."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from tests.scripted import Scripted, numbers_env
from vecenv.alf import (
    BaseObservationWrapper,
    ContinuousActionClip,
    ContinuousActionMapping,
    EpisodicRandomFrameCrop,
    FrameCrop,
    FrameFlip,
    FrameGrayScale,
    FrameResize,
    FrameSkip,
    FrameStack,
    ImageChannelFirst,
    NonEpisodicEnv,
    NormalizedAction,
    ObservationClipWrapper,
    SparseReward,
)
from vecenv.envs.toys import AliasedObs, ToyEnv


def image_env(height=12, width=10, channels=3, dtype=np.uint8, count=5, nested=False):
    """Return an env that observes different images, alone or with other fields."""
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (height, width, channels)).astype(dtype) for _ in range(count + 1)]
    space = spaces.Box(0, 255, images[0].shape, dtype)
    if not nested:
        return Scripted(images, space=space)
    obs = [{"cam": {"left": image, "right": 255 - image}, "speed": np.zeros(2, np.float32)} for image in images]
    speed = spaces.Box(-1.0, 1.0, (2,), np.float32)
    return Scripted(obs, space=spaces.Dict(cam=spaces.Dict(left=space, right=space), speed=speed))


def run(env, action=0):
    """Play an episode; check each observation against the space, and return them all."""
    seen = [env.reset(seed=1)[0]]
    over = False
    while not over:
        obs, _, terminated, truncated, _ = env.step(action)
        over = terminated or truncated
        seen.append(obs)
    for obs in seen:
        assert env.observation_space.contains(obs)
    return seen


# ---- episodes and rewards --------------------------------------------------------------------------------


def test_declared_infos_stay_declared():
    inner = numbers_env()
    inner.info_space = spaces.Dict(speed=spaces.Box(0, 1, ()))
    assert set(FrameSkip(inner, 2).info_space) == {"speed", "num_env_frames"}


def test_non_episodic_env_never_ends():
    env = NonEpisodicEnv(numbers_env(2, truncate=True))
    env.reset()
    for _ in range(2):
        _, _, terminated, truncated, _ = env.step(0)
        assert terminated is False and truncated is False


def test_sparse_rewards_are_one_or_zero():
    env = SparseReward(numbers_env(4, rewards=[0.5, -3.0, 0.0, 9.0]))
    env.reset()
    assert [env.step(0)[1] for _ in range(4)] == [1.0, 0.0, 0.0, 1.0]


def test_skipped_frames_are_summed_and_counted():
    env = FrameSkip(numbers_env(5), 2)
    env.reset()
    results = [env.step(0) for _ in range(3)]
    assert [result[1] for result in results] == [2.0, 2.0, 1.0], "it stops where the episode ends"
    assert [result[4]["num_env_frames"] for result in results] == [2, 2, 1]
    nested = FrameSkip(FrameSkip(numbers_env(9), 2), 3)
    nested.reset()
    assert nested.step(0)[4]["num_env_frames"] == 6
    with pytest.raises(ValueError, match="skip"):
        FrameSkip(numbers_env(), 0)


# ---- actions ----------------------------------------------------------------------------------------------


def actor(space):
    return Scripted([np.zeros(1, np.float32)] * 9, actions=space)


def test_normalized_actions_cover_the_bounds():
    inner = actor(spaces.Box(np.array([0.0, -4.0]), np.array([10.0, 4.0]), dtype=np.float64))
    env = NormalizedAction(inner)
    assert env.action_space == spaces.Box(-1.0, 1.0, (2,), np.float64)
    env.reset()
    for action in ([-1.0, 1.0], [0.0, 0.0]):
        env.step(np.array(action, np.float32))
    assert [action.tolist() for action in inner.actions] == [[0.0, 4.0], [5.0, 0.0]]
    assert inner.actions[0].dtype == np.float64


def test_normalizing_unbounded_actions_is_an_error_with_advice():
    with pytest.raises(ValueError, match="do not normalize"):
        NormalizedAction(actor(spaces.Box(-np.inf, np.inf, (2,), np.float32)))


def test_normalized_actions_of_any_range_leave_other_parts_alone():
    space = spaces.Dict(push=spaces.Box(-2.0, 2.0, (1,), np.float32), gear=spaces.Discrete(3))
    inner = actor(space)
    env = ContinuousActionMapping(inner, 0.0, 10.0)
    assert env.action_space["gear"] is space["gear"] and env.action_space["push"].high == 10
    env.reset()
    env.step({"push": np.array([7.5], np.float32), "gear": 2})
    assert inner.actions[0]["push"].tolist() == [1.0] and inner.actions[0]["gear"] == 2
    with pytest.raises(ValueError, match="below high"):
        ContinuousActionMapping(inner, 1.0, 1.0)


def test_clipped_actions_and_nan():
    inner = actor(spaces.Tuple([spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(2)]))
    env = ContinuousActionClip(inner)
    env.reset()
    env.step((np.array([-3.0, 0.5], np.float32), 1))
    assert inner.actions[0][0].tolist() == [-1.0, 0.5]
    with pytest.raises(ValueError, match="expected numbers"):
        env.step((np.array([np.nan, 0.0], np.float32), 1))


def test_unbounded_actions_are_clipped_to_limits():
    inner = actor(spaces.Box(-np.inf, 1.0, (3,), np.float32))
    env = ContinuousActionClip(inner, min_v=-2.0, max_v=5.0)
    env.reset()
    env.step(np.array([-3.0, 4.0, 0.5], np.float32))
    assert inner.actions[0].tolist() == [-2.0, 1.0, 0.5] and env.action_space is inner.action_space
    env = ContinuousActionClip(inner)
    env.reset()
    env.step(np.full(3, -np.inf, np.float32))
    assert inner.actions[-1].tolist() == [-1e9] * 3
    with pytest.raises(ValueError, match="min_v"):
        ContinuousActionClip(inner, 1.0, 1.0)


# ---- observations ------------------------------------------------------------------------------------------


def test_clipped_observations_at_every_depth():
    space = spaces.Dict(a=spaces.Box(-np.inf, np.inf, (2,), np.float64), b=spaces.Tuple([spaces.Discrete(3)]))
    env = ObservationClipWrapper(Scripted([{"a": np.array([-1e9, 1.0]), "b": (2,)}] * 3, space=space))
    assert env.observation_space["a"].low[0] == -200 and env.observation_space["a"].dtype == np.float64
    assert run(env)[0]["a"].tolist() == [-200.0, 1.0]
    assert ObservationClipWrapper(numbers_env(), min_v=0, max_v=1).observation_space.high[0] == 1


def test_clipped_images_keep_their_dtype():
    env = ObservationClipWrapper(image_env())
    assert run(env)[0].dtype == np.uint8 and env.observation_space.high.max() == 200


@pytest.mark.parametrize("fields", [[], ["cam.left"], ["cam.left", "cam.right"]])
def test_named_fields_are_mapped_and_the_original_observation_is_unchanged(fields):
    inner = image_env(nested=True)
    before = inner.observations[0]["cam"]["left"].copy()
    env = FrameCrop(inner, sx=2, sy=1, width=4, height=5, fields=fields)
    first = run(env)[0]
    for side in ("left", "right"):
        expected = (5, 4, 3) if f"cam.{side}" in fields else (12, 10, 3)
        assert first["cam"][side].shape == expected
    np.testing.assert_array_equal(inner.observations[0]["cam"]["left"], before)
    np.testing.assert_array_equal(first["cam"]["left"], before[1:6, 2:6] if fields else before)


def test_missing_field_is_an_error():
    with pytest.raises(ValueError, match="no 'cam.top'"):
        ImageChannelFirst(image_env(nested=True), fields=["cam.top"])
    with pytest.raises(NotImplementedError):
        BaseObservationWrapper(numbers_env())


def test_channels_first_output_is_contiguous():
    inner = image_env()
    obs = run(ImageChannelFirst(inner))[0]
    assert obs.shape == (3, 12, 10) and obs.flags.c_contiguous
    np.testing.assert_array_equal(obs, inner.observations[0].transpose(2, 0, 1))
    nested = run(ImageChannelFirst(image_env(nested=True)))[0]
    assert nested["cam"]["right"].shape == (3, 12, 10) and nested["speed"].shape == (2,)


@pytest.mark.parametrize("order", ["channels_last", "channels_first"])
def test_frames_stack_on_the_channel_axis(order):
    inner = image_env(channels=1)
    env = FrameStack(inner if order == "channels_last" else ImageChannelFirst(inner), 3, order)
    seen = run(env)
    axis = -1 if order == "channels_last" else 0
    assert seen[0].shape == ((12, 10, 3) if axis else (3, 12, 10))
    frames = [np.moveaxis(obs, axis, 0) for obs in seen]
    images = [image[..., 0] for image in inner.observations]
    np.testing.assert_array_equal(frames[0], [images[0]] * 3)
    np.testing.assert_array_equal(frames[1], [images[0], images[0], images[1]])
    np.testing.assert_array_equal(frames[4], images[2:5])
    np.testing.assert_array_equal(np.moveaxis(env.reset()[0], axis, 0), [images[0]] * 3)


def test_frame_stack_of_each_field_and_of_vectors():
    seen = run(FrameStack(image_env(nested=True), 2, fields=["cam.left", "speed"]))
    assert seen[1]["cam"]["left"].shape == (12, 10, 6) and seen[1]["speed"].shape == (4,)
    counts = Scripted([np.array([1, 2])] * 4, space=spaces.MultiDiscrete([3, 4]))
    assert run(FrameStack(counts, 2))[0].tolist() == [1, 2, 1, 2]
    with pytest.raises(ValueError, match="channel_order"):
        FrameStack(numbers_env(), 2, "sideways")
    shifted = FrameStack(Scripted([np.array([6, 2])], space=spaces.MultiDiscrete([3, 4], start=[5, 1])), 2)
    assert shifted.observation_space.start.tolist() == [5, 1, 5, 1]
    with pytest.raises(ValueError, match="MultiDiscrete"):
        FrameStack(Scripted([0] * 4, space=spaces.Discrete(2)))


def test_frame_stack_of_an_env_that_reuses_its_array():
    reusing, plain = run(FrameStack(AliasedObs(4), 3)), run(FrameStack(ToyEnv(4), 3))
    np.testing.assert_array_equal(reusing, plain)
    assert len({*plain[-1][::4]}) == 3, "different frames"


def test_crop_declares_dtype_and_bounds():
    """The original declared uint8 0..255 for every input."""
    space = spaces.Box(-1.0, 1.0, (6, 6, 1), np.float32)
    env = FrameCrop(Scripted([np.full((6, 6, 1), -0.5, np.float32)] * 3, space=space), width=2, height=3)
    assert env.observation_space == spaces.Box(-1.0, 1.0, (3, 2, 1), np.float32)
    run(env)


def test_crop_outside_the_image_is_refused():
    with pytest.raises(AssertionError, match="not inside"):
        FrameCrop(image_env(), sx=5, width=6, height=4)
    with pytest.raises(ValueError, match="three axes"):
        FrameCrop(numbers_env())


def test_crops_of_channels_first_images():
    seen = run(FrameCrop(ImageChannelFirst(image_env()), 1, 2, 3, 4, "channels_first"))
    assert seen[0].shape == (3, 4, 3)


def test_random_crops_are_fixed_per_episode_and_follow_the_seed():
    def places(seed, **kwargs):
        inner = image_env(height=20, width=20)
        env = EpisodicRandomFrameCrop(inner, 0.5, **kwargs)
        assert env.observation_space.shape == (10, 10, 3)
        found = []
        for episode in range(6):
            obs, _ = env.reset(seed=seed if episode == 0 else None)
            second, *_ = env.step(0)
            where = find(obs, inner.observations[0])
            assert where == find(second, inner.observations[1]), "one place for the whole episode"
            found.append(where)
        return found

    def find(part, whole):
        spots = [(y, x) for y in range(11) for x in range(11) if (whole[y : y + 10, x : x + 10] == part).all()]
        assert len(spots) == 1
        return spots[0]

    assert places(1) == places(1) != places(2)
    assert len(set(places(3))) > 2
    with pytest.raises(ValueError, match="cropping_fraction"):
        EpisodicRandomFrameCrop(image_env(), 1.0)


def test_random_crops_reach_every_position_inside_the_image():
    env = EpisodicRandomFrameCrop(image_env(3, 3), 0.7)
    whole = env.env.observations[0]
    crops = {env.reset(seed=seed)[0].tobytes() for seed in range(40)}
    assert crops == {whole[y : y + 2, x : x + 2].tobytes() for y in (0, 1) for x in (0, 1)}


@pytest.mark.parametrize("shared", [True, False])
def test_crops_of_two_fields_may_share_a_position(shared):
    env = EpisodicRandomFrameCrop(
        image_env(40, 40, nested=True), 0.5, "channels_last", shared, ["cam.left", "cam.right"]
    )
    same = []
    for seed in range(5):
        obs, _ = env.reset(seed=seed)
        same.append((obs["cam"]["left"] == 255 - obs["cam"]["right"]).all())
    assert all(same) if shared else not all(same)


@pytest.mark.parametrize("order", ["channels_last", "channels_first"])
@pytest.mark.parametrize(("up", "left"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_flips_of_probability_one(order, up, left):
    inner = image_env()
    env = FrameFlip(inner if order == "channels_last" else ImageChannelFirst(inner), up, left, order)
    expected = inner.observations[1]
    expected = expected[::-1] if up else expected
    expected = expected[:, ::-1] if left else expected
    obs = run(env)[1]
    np.testing.assert_array_equal(obs if order == "channels_last" else obs.transpose(1, 2, 0), expected)


def test_random_flips_follow_the_seed():
    def axes(seed):
        env = FrameFlip(image_env())
        return [env.reset(seed=seed if i == 0 else None)[0].tobytes() for i in range(8)]

    assert axes(1) == axes(1) != axes(2) and len(set(axes(1))) > 1
    with pytest.raises(ValueError, match="ud_flip_prob"):
        FrameFlip(image_env(), 2.0)


def test_three_dimensional_masks_are_not_images():
    shape = (4, 5, 3)
    image, mask = np.arange(60, dtype=np.uint8).reshape(shape), np.ones(shape, np.int8)
    space = spaces.Dict(image=spaces.Box(0, 255, shape, np.uint8), pair=spaces.Tuple([spaces.MultiBinary(shape)]))
    env = ImageChannelFirst(Scripted([{"image": image, "pair": (mask,)}] * 3, space=space))
    seen = run(env)[0]
    assert seen["image"].shape == (3, 4, 5) and seen["pair"][0].shape == shape


def test_images_are_resized_to_the_given_size():
    cv2 = pytest.importorskip("cv2")
    areas, nearest = (run(FrameResize(image_env(), 6, 4, interpolation=how)) for how in (None, cv2.INTER_NEAREST))
    image = run(image_env())[0]
    np.testing.assert_array_equal(areas[0], cv2.resize(image, (6, 4), interpolation=cv2.INTER_AREA))
    np.testing.assert_array_equal(nearest[0], cv2.resize(image, (6, 4), interpolation=cv2.INTER_NEAREST))


def test_resized_and_grey_images():
    pytest.importorskip("cv2")
    seen = run(FrameResize(image_env(), width=6, height=4))
    assert seen[0].shape == (4, 6, 3) and seen[0].dtype == np.uint8
    grey = run(FrameResize(FrameGrayScale(image_env()), 6, 4))
    assert grey[0].shape == (4, 6, 1)
    floats = FrameResize(image_env(dtype=np.float32), 5, 6)
    assert floats.observation_space.dtype == np.float32 and run(floats)[0].dtype == np.float32
    with pytest.raises(ValueError, match="three channels"):
        FrameGrayScale(image_env(channels=1))
