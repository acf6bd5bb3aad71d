"""`load`: a registered Gymnasium env as a single `AlfEnvironment`, with wrappers in this order, innermost first.

gymnasium.make -> gym_env_wrappers -> ImageChannelFirst -> NormalizedAction -> ContinuousActionClip
    -> AlfGymWrapper -> TimeLimit -> alf_env_wrappers
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
from gymnasium import spaces

from vecenv.alf.base.environment import AlfEnvironment
from vecenv.alf.gym.actions import ContinuousActionClip, NormalizedAction, is_continuous
from vecenv.alf.gym.frames import ImageChannelFirst, is_image
from vecenv.alf.gym.wrapper import AlfGymWrapper
from vecenv.alf.wrappers.base import TimeLimit
from vecenv.envs.gym_registry import find_spec
from vecenv.errors import ConfigError
from vecenv.values.checks import check_callables, check_flag, check_whole

#: Value with which `gymnasium.make` adds no time limit; `TimeLimit` does that here.
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
    """Load a registered Gymnasium env as a single `AlfEnvironment`.

    Args:
        environment_name: registered name, as for `gymnasium.make`.
        env_id: value of the field `env_id` in time steps. None (default): 0.
        discount: discount of MID steps, and of LAST steps at the time limit; 1.0 by default.
        max_episode_steps: number of steps after which an episode is truncated. None (default): the limit with which
            the env was registered. 0: no limit.
        gym_env_wrappers: functions applied to the Gymnasium env in this order.
        alf_env_wrappers: functions applied to the AlfEnvironment in this order.
        image_channel_first: whether images (H, W, C) become (C, H, W) in observations. Default: True.
        normalize_action: whether continuous actions are scaled from -1 .. 1 to their bounds, which must be finite.
            Default: True.
        clip_action: whether continuous actions are clipped to their bounds. Default: True.
        gym_kwargs: passed to `gymnasium.make`.

    Returns:
        The outermost wrapper. Its time steps have no batch axis and contain NumPy arrays.

    Example:
        >>> env = load("Pendulum-v1")
        >>> env.action_spec()
        BoundedTensorSpec(shape=(1,), dtype=float32, minimum=-1.0, maximum=1.0)
        >>> env.duration
        200
        >>> env.close()

    Raises:
        gymnasium.error.Error: there is no such env.
        DependencyError: the env is an Atari game and ale-py is not installed.
        ConfigError: an argument is wrong, such as a negative max_episode_steps.
        SpaceError: a space has no fixed layout, or actions without finite bounds cannot be normalized.
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
    env = apply_wrappers("gym_env_wrappers", gym_wrappers, env)
    if is_channel_first and _has(env.observation_space, is_image):
        env = ImageChannelFirst(env)
    if _has(env.action_space, is_continuous):
        env = NormalizedAction(env) if is_normalized else env
        env = ContinuousActionClip(env) if is_clipped else env
    alf_env: AlfEnvironment = AlfGymWrapper(env, env_id, discount)
    if max_episode_steps > 0:
        alf_env = TimeLimit(alf_env, max_episode_steps)
    wrapped: AlfEnvironment = apply_wrappers("alf_env_wrappers", alf_wrappers, alf_env)
    return wrapped


def apply_wrappers(name: str, wrappers: Sequence[Callable[[Any], Any]], env: Any) -> Any:
    """Apply wrappers to an env in their order; `name` is the argument that contains them, for errors.

    Raises:
        ConfigError: a result has no `step`, for example because the wrapper returns nothing.
    """
    for wrap in wrappers:
        env = wrap(env)
        if not callable(getattr(env, "step", None)):
            raise ConfigError(f"{name}: expected callables that return an env, but {wrap!r} gave {env!r}", key=name)
    return env


def _has(space: spaces.Space[Any], test: Callable[[spaces.Space[Any]], bool]) -> bool:
    if isinstance(space, spaces.Dict):
        return any(_has(part, test) for part in space.spaces.values())
    if isinstance(space, spaces.Tuple):
        return any(_has(part, test) for part in space.spaces)
    return test(space)
