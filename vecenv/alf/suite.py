"""`load`: a registered Gymnasium env with its layers, innermost first, up to a single `AlfEnvironment`.

gymnasium.make -> gym_env_wrappers -> ImageChannelFirst -> NormalizedAction -> ContinuousActionClip
    -> AlfGymWrapper -> TimeLimit -> alf_env_wrappers
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
from gymnasium import spaces

from vecenv.alf.base.environment import AlfEnvironment
from vecenv.alf.gym.actions import ContinuousActionClip, NormalizedAction
from vecenv.alf.gym.frames import ImageChannelFirst
from vecenv.alf.gym.wrapper import AlfGymWrapper
from vecenv.alf.wrappers.base import TimeLimit
from vecenv.checks import check_callables, check_flag, check_whole
from vecenv.envs.gym_registry import find_spec
from vecenv.errors import ConfigError

__all__ = ["load"]

#: Tells `gymnasium.make` to leave the time limit to us.
_NO_LIMIT = -1


def load(
    environment_name: str,
    env_id: int | None = None,
    discount: float = 1.0,
    max_episode_steps: int | None = None,
    gym_env_wrappers: Sequence[Callable[[Any], Any]] = (),
    alf_env_wrappers: Sequence[Callable[[Any], AlfEnvironment]] = (),
    image_channel_first: bool = True,
    normalize_action: bool = True,
    clip_action: bool = True,
    **gym_kwargs: Any,
) -> AlfEnvironment:
    """Load a registered env.

    Args:
        environment_name: as `gymnasium.make` takes it.
        env_id: for the time steps; None: 0.
        discount: of MID steps, and of LAST ones at the limit.
        max_episode_steps: steps until an episode is cut off; None: what the env was registered
            with, 0: no limit.
        gym_env_wrappers: applied to the env in this order.
        alf_env_wrappers: applied to the environment of time steps in this order.
        image_channel_first: images (H, W, C) are observed as (C, H, W).
        normalize_action: continuous actions are taken from -1 to 1; needs finite bounds.
        clip_action: continuous actions beyond their bounds are clipped.
        gym_kwargs: passed to `gymnasium.make`.

    Example:
        >>> env = load("Pendulum-v1")
        >>> env.action_spec()
        BoundedTensorSpec(shape=(1,), dtype=float32, minimum=-1.0, maximum=1.0)
        >>> env.duration
        200
        >>> env.close()

    Raises:
        gymnasium.error.Error: no such env.
        DependencyError: one of Atari's games, and ale-py is missing.
        ConfigError: an argument is wrong, such as a negative max_episode_steps.
        SpaceError: a space without fixed layout, or unbounded actions that are to be normalized.
    """
    if not isinstance(environment_name, str):
        raise ConfigError(f"environment_name: expected a name, got {environment_name!r}", key="environment_name")
    gym_wrappers = check_callables("gym_env_wrappers", gym_env_wrappers)
    alf_wrappers = check_callables("alf_env_wrappers", alf_env_wrappers)
    is_channel_first = check_flag("image_channel_first", image_channel_first)
    is_normalized, is_clipped = check_flag("normalize_action", normalize_action), check_flag("clip_action", clip_action)
    spec = find_spec(environment_name, is_quiet=True)
    if max_episode_steps is None:
        max_episode_steps = spec.max_episode_steps or 0
    max_episode_steps = check_whole("max_episode_steps", max_episode_steps, 0)
    env: Any = gymnasium.make(spec, max_episode_steps=_NO_LIMIT, disable_env_checker=True, **gym_kwargs)
    for wrap in gym_wrappers:
        env = apply_wrapper("gym_env_wrappers", wrap, env)
    if is_channel_first and _has(env.observation_space, _is_image):
        env = ImageChannelFirst(env)
    if _has(env.action_space, _is_continuous):
        env = NormalizedAction(env) if is_normalized else env
        env = ContinuousActionClip(env) if is_clipped else env
    alf_env: AlfEnvironment = AlfGymWrapper(env, env_id, discount)
    if max_episode_steps > 0:
        alf_env = TimeLimit(alf_env, max_episode_steps)
    for wrap in alf_wrappers:
        alf_env = apply_wrapper("alf_env_wrappers", wrap, alf_env)
    return alf_env


def apply_wrapper(name: str, wrap: Callable[[Any], Any], env: Any) -> Any:
    """Return what a wrapper of the argument `name` makes of an env.

    Raises:
        ConfigError: it is no env, as of a wrapper that forgets to return.
    """
    wrapped = wrap(env)
    if not callable(getattr(wrapped, "step", None)):
        raise ConfigError(f"{name}: expected callables that give an env, but {wrap!r} gave {wrapped!r}", key=name)
    return wrapped


def _has(space: spaces.Space[Any], test: Callable[[spaces.Space[Any]], bool]) -> bool:
    if isinstance(space, spaces.Dict):
        return any(_has(part, test) for part in space.spaces.values())
    if isinstance(space, spaces.Tuple):
        return any(_has(part, test) for part in space.spaces)
    return test(space)


def _is_image(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) == 3


def _is_continuous(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and space.dtype is not None and space.dtype.kind == "f"
