"""Snapshots within episodes: each class whose state is known continues exactly, in all rows and attributes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import pickle
import pkgutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces, wrappers
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.wrappers import vector as vector_wrappers

import vecenv.alf.gym
import vecenv.wrappers
from tests.envs.state.test_state import HAS_ATARI, needs_atari
from tests.faults.traces import frozen
from vecenv.alf.gym import actions as alf_actions
from vecenv.alf.gym import frames as alf_frames
from vecenv.alf.gym.atari import DMAtariPreprocessing
from vecenv.ding import DingEnvWrapper
from vecenv.envs.adapt import adapt
from vecenv.envs.agents import HybridEnv, TwoAgentEnv
from vecenv.envs.batched import BatchedEnv
from vecenv.envs.remote import without_bounds
from vecenv.envs.state import state as state_module
from vecenv.envs.state.adapters import HOOK_LIFETIMES, STATE_ADAPTERS
from vecenv.envs.state.state import SNAPSHOTTER, dotted_name
from vecenv.envs.toys import AliasedObs, CountEnv, SpaceEnv, ToyEnv
from vecenv.envs.video import Recordable, SeedRecorder
from vecenv.errors import DependencyError
from vecenv.integrations.envpool.atari import AtariTask
from vecenv.values.content import content_of
from vecenv.wrappers import (
    ActionDiscretizationEnvWrapper,
    ActionRepeatWrapper,
    AllinObsWrapper,
    ClipRewardWrapper,
    DelayRewardWrapper,
    EnvWrapper,
    EpisodicLifeWrapper,
    EvalEpisodeReturnWrapper,
    FireResetWrapper,
    FlatObsWrapper,
    FrameStackWrapper,
    GymHybridDictActionWrapper,
    GymToGymnasiumWrapper,
    LightZeroEnvWrapper,
    MaxAndSkipWrapper,
    NoopResetWrapper,
    ObsNormWrapper,
    ObsPlusPrevActRewWrapper,
    ObsTransposeWrapper,
    RamWrapper,
    RecordVideo,
    RewardNormWrapper,
    ScaledFloatFrameWrapper,
    StaticObsNormWrapper,
    TimeLimitWrapper,
    TransposeWrapper,
    WarpFrameWrapper,
)

HAS_VIDEO = importlib.util.find_spec("moviepy") is not None

#: Steps before the snapshot: none, within the first and within a later episode.
NUMS_STEPS = (0, 8, 33)
#: Steps after it, over several episodes.
NUM_MORE = 60

IMAGE = spaces.Box(0, 255, (12, 12, 3), np.uint8)


# ---- one maker or more for each class ----------------------------------------------------------


def make(name: str, **kwargs: Any) -> Any:
    return gymnasium.make(name, **kwargs)


def cart_pole() -> Any:
    return make("CartPole-v1")


def pendulum() -> Any:
    return make("Pendulum-v1", max_episode_steps=25)


def breakout(**kwargs: Any) -> Any:
    return make("ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0, **kwargs)


def filmed() -> Any:
    return breakout(render_mode="rgb_array")


def images() -> SpaceEnv:
    return SpaceEnv(IMAGE)


def texts() -> SpaceEnv:
    image = spaces.Box(0, 255, (3,), np.uint8)
    return SpaceEnv(spaces.Dict({"image": image, "mission": spaces.Text(5, charset="abc")}))


def envpool_atari() -> Any:
    spec = dataclasses.replace(
        gymnasium.registry["ALE/Breakout-v5"], order_enforce=False, disable_env_checker=True, id="Breakout"
    )
    game = make(spec, frameskip=1, repeat_action_probability=0.0)  # type: ignore[arg-type]
    options = {"episodic_life": True, "reward_clip": True, "use_fire_reset": True}
    return AtariTask(wrappers.AtariPreprocessing(game), max_episode_steps=60, **options)


def double(value: Any) -> Any:
    return value * 2


def counting() -> Callable[[Any], Any]:
    """Return a function that counts its calls in an outer variable."""
    count = 0

    def add_count(value: Any) -> Any:
        nonlocal count
        count += 1
        return value + count

    return add_count


def replaced(env: Any) -> Any:
    """Return the env with a step that counts in a variable of its own."""
    step, counts = env.step, iter(range(10**6))
    env.step = lambda action: (*step(action)[:4], {"count": next(counts)})
    return env


KNOWN: dict[str, Callable[[], Any]] = {
    "AllinObsWrapper": lambda: adapt(AllinObsWrapper(cart_pole())),
    "DingEnvWrapper": lambda: adapt(DingEnvWrapper(cfg={"env_id": "CartPole-v1"})),
    # ---- gymnasium.wrappers ----
    "TimeLimit": lambda: wrappers.TimeLimit(ToyEnv(), 7),
    "Autoreset": lambda: wrappers.Autoreset(cart_pole()),
    "PassiveEnvChecker": lambda: wrappers.PassiveEnvChecker(ToyEnv()),
    "OrderEnforcing": lambda: wrappers.OrderEnforcing(ToyEnv()),
    "RecordEpisodeStatistics": lambda: wrappers.RecordEpisodeStatistics(cart_pole()),
    "DelayObservation": lambda: wrappers.DelayObservation(AliasedObs(), 3),
    "TimeAwareObservation": lambda: wrappers.TimeAwareObservation(cart_pole()),
    "FrameStackObservation": lambda: wrappers.FrameStackObservation(AliasedObs(), 4),
    "FrameStackObservation of zeros": lambda: wrappers.FrameStackObservation(cart_pole(), 4, padding_type="zero"),
    "NormalizeObservation": lambda: wrappers.NormalizeObservation(cart_pole()),
    "MaxAndSkipObservation": lambda: wrappers.MaxAndSkipObservation(ToyEnv(7), 3),
    "NormalizeReward": lambda: wrappers.NormalizeReward(pendulum()),
    "StickyAction": lambda: wrappers.StickyAction(cart_pole(), 0.5, (2, 4)),
    "RepeatAction": lambda: wrappers.RepeatAction(cart_pole(), 3),
    "TransformObservation": lambda: wrappers.TransformObservation(cart_pole(), double, None),
    "DiscretizeObservation": lambda: wrappers.DiscretizeObservation(make("MountainCar-v0", max_episode_steps=20), 5),
    "DtypeObservation": lambda: wrappers.DtypeObservation(cart_pole(), np.float64),
    "FilterObservation": lambda: wrappers.FilterObservation(texts(), ["image"]),
    "FlattenObservation": lambda: wrappers.FlattenObservation(images()),
    "GrayscaleObservation": lambda: wrappers.GrayscaleObservation(images()),
    "RescaleObservation": lambda: wrappers.RescaleObservation(images(), np.float32(0), np.float32(1)),
    "ReshapeObservation": lambda: wrappers.ReshapeObservation(images(), (12 * 12 * 3,)),
    "ResizeObservation": lambda: wrappers.ResizeObservation(images(), (6, 6)),
    "TransformAction": lambda: wrappers.TransformAction(pendulum(), double, None),
    "ClipAction": lambda: wrappers.ClipAction(pendulum()),
    "DiscretizeAction": lambda: wrappers.DiscretizeAction(pendulum(), 5),
    "RescaleAction": lambda: wrappers.RescaleAction(pendulum(), np.float32(-1), np.float32(1)),
    "TransformReward": lambda: wrappers.TransformReward(cart_pole(), double),
    "ClipReward": lambda: wrappers.ClipReward(pendulum(), -1, 0),
    # ---- envs ----
    "AcrobotEnv": lambda: make("Acrobot-v1", max_episode_steps=20),
    "Continuous_MountainCarEnv": lambda: make("MountainCarContinuous-v0", max_episode_steps=20),
    "BlackjackEnv": lambda: make("Blackjack-v1"),
    "CliffWalkingEnv": lambda: make("CliffWalking-v1", max_episode_steps=20),
    "TaxiEnv": lambda: make("Taxi-v4" if "Taxi-v4" in gymnasium.registry else "Taxi-v3", max_episode_steps=20),
    "FrozenLakeEnv": lambda: make("FrozenLake-v1"),
    "HybridEnv": lambda: HybridEnv(12),
    "CountEnv": lambda: CountEnv(9),
    "ShapeOnlyEnv": lambda: without_bounds(cart_pole()),
    # ---- vecenv.wrappers ----
    "ActionRepeatWrapper": lambda: ActionRepeatWrapper(ToyEnv(), 3),
    "MaxAndSkipWrapper": lambda: MaxAndSkipWrapper(ToyEnv(), 3),
    "GymHybridDictActionWrapper": lambda: GymHybridDictActionWrapper(HybridEnv(12)),
    "TimeLimitWrapper": lambda: TimeLimitWrapper(ToyEnv(), 6),
    "ObsNormWrapper": lambda: ObsNormWrapper(pendulum()),
    "ObsNormWrapper over a window": lambda: ObsNormWrapper(cart_pole(), 20),
    "StaticObsNormWrapper": lambda: StaticObsNormWrapper(cart_pole(), 0.0, 1.0),
    "RewardNormWrapper": lambda: RewardNormWrapper(pendulum(), 0.9),
    "RewardNormWrapper over a window": lambda: RewardNormWrapper(pendulum(), 0.9, 20),
    "ScaledFloatFrameWrapper": lambda: ScaledFloatFrameWrapper(images()),
    "WarpFrameWrapper": lambda: WarpFrameWrapper(images(), 6),
    "FrameStackWrapper": lambda: FrameStackWrapper(AliasedObs(), 3),
    "ObsTransposeWrapper": lambda: ObsTransposeWrapper(images()),
    "TransposeWrapper": lambda: TransposeWrapper(images()),
    "RamWrapper": lambda: RamWrapper(SpaceEnv(spaces.Box(0, 255, (128,), np.uint8))),
    "ObsPlusPrevActRewWrapper": lambda: ObsPlusPrevActRewWrapper(pendulum()),
    "FlatObsWrapper": lambda: FlatObsWrapper(texts()),
    "ClipRewardWrapper": lambda: ClipRewardWrapper(pendulum()),
    "DelayRewardWrapper": lambda: DelayRewardWrapper(pendulum(), 3),
    "EvalEpisodeReturnWrapper": lambda: EvalEpisodeReturnWrapper(pendulum()),
    "GymToGymnasiumWrapper": lambda: GymToGymnasiumWrapper(cart_pole()),
    "LightZeroEnvWrapper": lambda: LightZeroEnvWrapper(cart_pole(), {"is_train": True}),
    "ActionDiscretizationEnvWrapper": lambda: ActionDiscretizationEnvWrapper(pendulum(), {"each_dim_disc_size": 4}),
    "Recordable": lambda: Recordable(cart_pole(), "token"),
    # ---- vecenv.alf.gym ----
    "ObservationClipWrapper": lambda: alf_frames.ObservationClipWrapper(cart_pole(), -0.01, 0.01),
    "ImageChannelFirst": lambda: alf_frames.ImageChannelFirst(images()),
    "FrameStack": lambda: alf_frames.FrameStack(AliasedObs()),
    "FrameResize": lambda: alf_frames.FrameResize(images(), 6, 6),
    "FrameGrayScale": lambda: alf_frames.FrameGrayScale(images()),
    "FrameCrop": lambda: alf_frames.FrameCrop(images(), 0, 0, 5, 5),
    "EpisodicRandomFrameCrop": lambda: alf_frames.EpisodicRandomFrameCrop(images()),
    "FrameFlip": lambda: alf_frames.FrameFlip(images()),
    "ContinuousActionMapping": lambda: alf_actions.ContinuousActionMapping(pendulum(), -1, 1),
    "NormalizedAction": lambda: alf_actions.NormalizedAction(pendulum()),
    "ContinuousActionClip": lambda: alf_actions.ContinuousActionClip(pendulum()),
    "FrameSkip": lambda: alf_actions.FrameSkip(ToyEnv(), 3),
    "NonEpisodicEnv": lambda: alf_actions.NonEpisodicEnv(ToyEnv()),
    "SparseReward": lambda: alf_actions.SparseReward(pendulum()),
}

ATARI: dict[str, Callable[[], Any]] = {
    "AtariEnv with random frame skips": lambda: make("ALE/Pong-v5", frameskip=(2, 5), repeat_action_probability=0.0),
    "AtariPreprocessing": lambda: wrappers.AtariPreprocessing(breakout(), terminal_on_life_loss=True),
    "AddRenderObservation": lambda: wrappers.AddRenderObservation(filmed()),
    "NoopResetWrapper": lambda: NoopResetWrapper(breakout(), 5),
    "FireResetWrapper": lambda: FireResetWrapper(breakout()),
    "EpisodicLifeWrapper": lambda: EpisodicLifeWrapper(breakout()),
    "DMAtariPreprocessing": lambda: DMAtariPreprocessing(breakout()),
    "AtariTask": envpool_atari,
    **{
        name: functools.partial(lambda name, *args: getattr(wrappers, name)(filmed(), *args), name, *args)
        for name, *args in (("AddWhiteNoise", 0.5), ("ObstructView", 0.5, 16))
        if hasattr(wrappers, name)
    },
}

#: Envs whose state is never known within an episode, so that their commands are repeated from the reset on.
UNKNOWN: dict[str, Callable[[], Any]] = {
    "AdaptedEnv": lambda: adapt(TwoAgentEnv()),
    "counting Transform": lambda: wrappers.TransformReward(cart_pole(), counting()),
    "replaced step": lambda: replaced(cart_pole()),
    "replaced step in a batch": lambda: BatchedEnv(replaced(CartPoleVectorEnv(3))),
    "drawn frames": lambda: wrappers.AddRenderObservation(make("CartPole-v1", render_mode="rgb_array")),
}

VECTORS: dict[str, Callable[[Any], Any]] = {
    "CartPoleVectorEnv": lambda env: env,
    "RecordEpisodeStatistics": vector_wrappers.RecordEpisodeStatistics,
    "NormalizeObservation": vector_wrappers.NormalizeObservation,
    "NormalizeReward": vector_wrappers.NormalizeReward,
}

if not HAS_ATARI:
    ATARI.clear()
if importlib.util.find_spec("mujoco"):
    for name in ("Ant", "HalfCheetah", "Humanoid", "Pusher", "Reacher"):
        KNOWN[name] = functools.partial(make, f"{name}-v5", max_episode_steps=25)
for name in ("RepeatAction", "DiscretizeObservation", "DiscretizeAction"):
    if not hasattr(wrappers, name):  # not in every release
        del KNOWN[name]
KNOWN.update(ATARI)


def batched(name: str) -> BatchedEnv:
    return BatchedEnv(VECTORS[name](CartPoleVectorEnv(3, max_episode_steps=12)))


# ---- rows and attributes ------------------------------------------------------------------------


def actions_of(env: Any, count: int) -> list[Any]:
    space = pickle.loads(pickle.dumps(env.action_space))
    space.seed(2)
    return [space.sample() for _ in range(count)]


def begin(env: Any) -> None:
    if isinstance(env, GymToGymnasiumWrapper):
        env.seed(5)
        env.reset()
    else:
        env.reset(seed=5)


def row_of(env: Any, action: Any) -> Any:
    """Step, and reset at an end; return all results without measured times."""
    *others, info = env.step(action)
    if isinstance(info.get("episode"), dict):
        info = {**info, "episode": {**info["episode"], "t": 0}}
    is_end = others[2] if len(others) == 3 else others[2] is True or others[3] is True
    return frozen((*others, info)), frozen(env.reset()) if is_end else None


#: Caches, buffers that are written before they are read, such as MuJoCo's memory of contacts, and descriptions with
#: spaces in them.
UNCOMPARED = {"_coded", "stacked_obs", "inner", "__parameters__", "data", "mujoco_renderer"}


def attributes_of(env: Any) -> dict[tuple[int, str], Any]:
    """Return the attributes of all layers that can be compared, by (depth, name)."""
    layers = list(state_module._layers(env))
    found: dict[tuple[int, str], Any] = {}
    for depth, layer in enumerate(layers):
        for name, value in vars(layer).items():
            if isinstance(value, np.random.Generator):
                found[depth, name] = repr(value.bit_generator.state)
            elif isinstance(value, spaces.Space):
                found[depth, name] = repr(value)
            elif name not in UNCOMPARED and value is not None and not callable(value) and not hasattr(value, "reset"):
                with contextlib.suppress(TypeError, pickle.PicklingError, AttributeError):
                    found[depth, name] = repr(content_of(pickle.dumps(value)))
    return found


@contextlib.contextmanager
def skipped_without_packages() -> Iterator[None]:
    """Skip the test if an env or a wrapper needs a package that is not installed."""
    try:
        yield
    except (gymnasium.error.DependencyNotInstalled, DependencyError):
        pytest.skip("needs ale-py and OpenCV")


def after(make_env: Callable[[], Any], num_steps: int, opened: contextlib.ExitStack) -> tuple[Any, list[Any]]:
    """Return an env after this number of steps, and the next actions."""
    with skipped_without_packages():
        env = make_env()
        opened.callback(env.close)
        begin(env)
    actions = actions_of(env, num_steps + NUM_MORE)
    for action in actions[:num_steps]:
        row_of(env, action)
    return env, actions[num_steps:]


@pytest.fixture
def opened() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def assert_continues(make_env: Callable[[], Any], env: Any, actions: list[Any], opened: contextlib.ExitStack) -> None:
    """Check that a new env that is restored from a snapshot within the episode has the same attributes and rows."""
    snapshot = SNAPSHOTTER.capture(env, within_episode=True)
    assert snapshot is not None and snapshot.is_complete
    twin = make_env()
    opened.callback(twin.close)
    SNAPSHOTTER.restore(twin, snapshot.state)
    assert attributes_of(twin) == attributes_of(env)
    for action in actions:
        assert row_of(twin, action) == row_of(env, action)


@pytest.mark.parametrize("num_steps", NUMS_STEPS)
@pytest.mark.parametrize("name", KNOWN)
def test_env_continues_within_an_episode(name: str, num_steps: int, opened: contextlib.ExitStack) -> None:
    env, actions = after(KNOWN[name], num_steps, opened)
    assert_continues(KNOWN[name], env, actions, opened)


@pytest.mark.parametrize("name", VECTORS)
def test_vector_env_continues_within_its_episodes(name: str, opened: contextlib.ExitStack) -> None:
    env, actions = after(functools.partial(batched, name), 17, opened)
    assert_continues(functools.partial(batched, name), env, actions, opened)


@pytest.mark.parametrize("name", KNOWN)
def test_env_continues_with_a_reset_without_seed(name: str, opened: contextlib.ExitStack) -> None:
    env, actions = after(KNOWN[name], 33, opened)
    twin = KNOWN[name]()
    opened.callback(twin.close)
    snapshot = SNAPSHOTTER.capture(env)
    assert snapshot is not None
    SNAPSHOTTER.restore(twin, snapshot.state)
    assert frozen(twin.reset()) == frozen(env.reset())
    for action in actions:
        assert row_of(twin, action) == row_of(env, action)


@pytest.mark.parametrize("num_steps", [0, 8])
@pytest.mark.parametrize("name", UNKNOWN)
def test_state_within_an_episode_is_unknown(name: str, num_steps: int, opened: contextlib.ExitStack) -> None:
    env, _ = after(UNKNOWN[name], num_steps, opened)
    if name == "drawn frames":
        with skipped_without_packages():
            env.render()
    assert SNAPSHOTTER.capture(env, within_episode=True) is None


# ---- videos ------------------------------------------------------------------------------------


def is_second(episode: int) -> bool:
    return episode == 1


@pytest.mark.skipif(not (HAS_ATARI and HAS_VIDEO), reason="needs ale-py and moviepy")
@pytest.mark.parametrize("cls", [wrappers.RecordVideo, RecordVideo, SeedRecorder, wrappers.RenderCollection])
def test_frames_are_kept_or_a_gap(cls: Any, tmp_path: Path, opened: contextlib.ExitStack) -> None:
    """The frame of the reset was lost, and with it the video of the episode."""

    def make_env() -> Any:
        if cls is wrappers.RenderCollection:
            return cls(filmed())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the folder exists
            return cls(filmed(), str(tmp_path), *([{7}] if cls is SeedRecorder else [is_second]))

    env, actions = after(make_env, 8, opened)
    if cls is wrappers.RenderCollection:
        assert SNAPSHOTTER.capture(env, within_episode=True) is None
        return
    assert_continues(make_env, env, [], opened)
    env.reset(seed=7)
    assert len(env.recorded_frames) == 1
    assert_continues(make_env, env, [], opened)
    env.step(actions[0])
    assert SNAPSHOTTER.capture(env, within_episode=True) is None


# ---- every class is in a table -----------------------------------------------------------------

#: Bases that are never a layer, classes that only draw, and classes that need other libraries.
OTHERS = {
    *("gymnasium.core.Wrapper", "gymnasium.core.ObservationWrapper", "gymnasium.core.ActionWrapper"),
    "gymnasium.core.RewardWrapper",
    *(f"gymnasium.vector.vector_env.Vector{kind}Wrapper" for kind in ("", "Observation", "Action", "Reward")),
    *("gymnasium.wrappers.array_conversion.ArrayConversion", "gymnasium.wrappers.jax_to_numpy.JaxToNumpy"),
    *("gymnasium.wrappers.jax_to_torch.JaxToTorch", "gymnasium.wrappers.numpy_to_torch.NumpyToTorch"),
    "gymnasium.wrappers.rendering.HumanRendering",
    *(f"gymnasium.wrappers.rendering.{name}" for name in ("RecordVideo", "RenderCollection")),
    "gymnasium.envs.mujoco.mujoco_env.MujocoEnv",
    *("vecenv.envs.video.EpisodeRecorder", "vecenv.envs.toys.plain.ToyEnv", "vecenv.envs.board.env.BoardEnv"),
    *("vecenv.wrappers.base.EnvWrapper", "vecenv.wrappers.base.ObsWrapper", "vecenv.wrappers.action.RepeatWrapper"),
    "vecenv.alf.gym.frames.BaseObservationWrapper",
}


def subclasses_of(cls: Any) -> Iterator[Any]:
    for one in cls.__subclasses__():
        yield one
        yield from subclasses_of(one)


def classes_with_state() -> set[str]:
    """Return the names of the classes in vecenv's tables, and of all wrappers of vecenv."""
    for package in (vecenv.wrappers, vecenv.alf.gym):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    names = {dotted_name(cls) for cls in subclasses_of(EnvWrapper) if cls.__module__.startswith("vecenv.")}
    return {
        name
        for name in {*STATE_ADAPTERS, *HOOK_LIFETIMES, *names}
        if not name.startswith("vecenv.alf.") or "gym" in name
    }


def classes_in_tables(opened: contextlib.ExitStack) -> set[Any]:
    makers = [*KNOWN.values(), *UNKNOWN.values(), *(functools.partial(batched, name) for name in VECTORS)]
    envs = [make_env() for make_env in makers]
    for env in envs:
        opened.callback(env.close)
    return {type(layer) for env in envs for layer in state_module._layers(env)}


@needs_atari
def test_every_class_with_state_is_in_a_table(opened: contextlib.ExitStack) -> None:
    """A new wrapper must be added to KNOWN, where a state that is not complete fails, or to UNKNOWN."""
    shown = {dotted_name(cls) for cls in classes_in_tables(opened)}
    missing = classes_with_state() - shown - OTHERS
    assert not {name for name in missing if not is_of_another_release(name)}


def is_of_another_release(name: str) -> bool:
    module, _, cls = name.rpartition(".")
    return name.startswith("gymnasium.") and not hasattr(importlib.import_module(module), cls)


@needs_atari
def test_subclass_of_a_user_is_not_known_within_an_episode(opened: contextlib.ExitStack) -> None:
    for cls in classes_in_tables(opened):
        mine = type(cls.__name__, (cls,), {"__module__": __name__})
        plan = state_module._make_plan(mine)
        assert plan.gap is not None or not plan.is_built_in, cls


# ---- single faults -----------------------------------------------------------------------------


class Limit(TimeLimitWrapper):
    """A user's wrapper that adds state to that of its base."""

    state_names = ("num_resets",)
    num_resets = 0

    def reset(self, **kwargs: Any) -> Any:
        self.num_resets += 1
        return super().reset(**kwargs)


def test_state_of_a_base_class_is_kept_beside_that_of_a_users_class() -> None:
    """state_names of the class replaced those of its base."""
    env, twin = (Limit(ToyEnv(), 9) for _ in range(2))
    env.reset()
    env.step(0)
    twin.set_state(env.get_state())
    assert (twin.num_resets, twin.time_count) == (1, 1)


class Forgetful(ToyEnv):
    """Has None in an attribute of which a new env has a number."""

    __module__ = "vecenv.envs.toys.plain"

    def reset(self, **kwargs: Any) -> Any:
        self.num_resets = None  # type: ignore[assignment]
        return self.observe(), {}


def test_none_replaces_the_value_of_a_new_env() -> None:
    env, twin = Forgetful(), Forgetful()
    env.reset()
    snapshot = SNAPSHOTTER.capture(env, within_episode=True)
    assert snapshot is not None
    SNAPSHOTTER.restore(twin, snapshot.state)
    assert twin.num_resets is None
