"""Wrappers around one env, grouped by actions, observations, rewards and episodes, and their construction by name.

Every class is a `gymnasium.Wrapper` and takes any env that `envs.adapt` accepts. The names used by older programs
are aliases: `NoopResetEnv` is `NoopResetWrapper`, and so on.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from vecenv.registry import ENV_WRAPPER_REGISTRY
from vecenv.wrappers.action import ActionRepeatWrapper, GymHybridDictActionWrapper, MaxAndSkipWrapper
from vecenv.wrappers.base import EnvWrapper, GymToGymnasiumWrapper
from vecenv.wrappers.create import create_env_wrapper
from vecenv.wrappers.episode import EpisodicLifeWrapper, FireResetWrapper, NoopResetWrapper, TimeLimitWrapper
from vecenv.wrappers.lightzero import ActionDiscretizationEnvWrapper, LightZeroEnvWrapper, get_wrappered_env
from vecenv.wrappers.norm import ObsNormWrapper, RewardNormWrapper, RunningMeanStd, StaticObsNormWrapper
from vecenv.wrappers.observation import (
    AllinObsWrapper,
    FlatObsWrapper,
    FrameStackWrapper,
    ObsPlusPrevActRewWrapper,
    ObsTransposeWrapper,
    RamWrapper,
    ScaledFloatFrameWrapper,
    TransposeWrapper,
    WarpFrameWrapper,
)
from vecenv.wrappers.record import RecordVideo
from vecenv.wrappers.reward import ClipRewardWrapper, DelayRewardWrapper, EvalEpisodeReturnWrapper

NoopResetEnv = NoopResetWrapper
MaxAndSkipEnv = MaxAndSkipWrapper
WarpFrame = WarpFrameWrapper
ScaledFloatFrame = ScaledFloatFrameWrapper
ClipRewardEnv = ClipRewardWrapper
FrameStack = FrameStackWrapper
ObsNormEnv = ObsNormWrapper
RewardNormEnv = RewardNormWrapper
EpisodicLifeEnv = EpisodicLifeWrapper
FireResetEnv = FireResetWrapper

__all__ = [
    "ActionDiscretizationEnvWrapper",
    "ActionRepeatWrapper",
    "AllinObsWrapper",
    "ClipRewardEnv",
    "ClipRewardWrapper",
    "DelayRewardWrapper",
    "EnvWrapper",
    "EpisodicLifeEnv",
    "EpisodicLifeWrapper",
    "EvalEpisodeReturnWrapper",
    "FireResetEnv",
    "FireResetWrapper",
    "FlatObsWrapper",
    "FrameStack",
    "FrameStackWrapper",
    "GymHybridDictActionWrapper",
    "GymToGymnasiumWrapper",
    "LightZeroEnvWrapper",
    "MaxAndSkipEnv",
    "MaxAndSkipWrapper",
    "NoopResetEnv",
    "NoopResetWrapper",
    "ObsNormEnv",
    "ObsNormWrapper",
    "ObsPlusPrevActRewWrapper",
    "ObsTransposeWrapper",
    "RamWrapper",
    "RecordVideo",
    "RewardNormEnv",
    "RewardNormWrapper",
    "RunningMeanStd",
    "ScaledFloatFrame",
    "ScaledFloatFrameWrapper",
    "StaticObsNormWrapper",
    "TimeLimitWrapper",
    "TransposeWrapper",
    "WarpFrame",
    "WarpFrameWrapper",
    "create_env_wrapper",
    "get_wrappered_env",
    "update_shape",
]


def update_shape(
    obs_shape: Any, act_shape: Any, rew_shape: Any, wrapper_names: Iterable[str | Mapping[str, Any]]
) -> tuple[Any, Any, Any]:
    """Compute the shapes of observation, action and reward after several wrappers, given innermost first.

    Args:
        obs_shape, act_shape, rew_shape: shapes before the wrappers; a number is the length of a vector.
        wrapper_names: registered names or class names; unknown names are skipped. If a wrapper's arguments
            matter, give its config, as for `create_env_wrapper`, instead of the name.

    Example:
        >>> update_shape((210, 160, 3), (), (1,), ["max_and_skip", "WarpFrameWrapper", "frame_stack"])
        ((4, 84, 84), (), (1,))
    """
    for entry in wrapper_names:
        name, kwargs = (entry, {}) if isinstance(entry, str) else (entry["type"], entry.get("kwargs") or {})
        new_shape = getattr(_find_wrapper(name), "new_shape", None)
        if new_shape is not None:
            known = inspect.signature(new_shape).parameters
            relevant = {key: value for key, value in kwargs.items() if key in known}
            obs_shape, act_shape, rew_shape = new_shape(obs_shape, act_shape, rew_shape, **relevant)
    return obs_shape, act_shape, rew_shape


def _find_wrapper(name: str) -> Any:
    """Return a wrapper class by registered name, name in this module, or class name; None if there is none."""
    if name in ENV_WRAPPER_REGISTRY:
        return ENV_WRAPPER_REGISTRY.get(name)
    if name in __all__:
        return globals()[name]
    classes = {wrapper.__name__: wrapper for wrapper in map(ENV_WRAPPER_REGISTRY.get, ENV_WRAPPER_REGISTRY)}
    return classes.get(name)
