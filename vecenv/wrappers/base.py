"""Base classes of all wrappers: they adapt any env, save their state and compute how they change shapes."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from vecenv.envs.adapt import adapt, find_attr, reward_space_of
from vecenv.errors import ConfigError, SpaceError
from vecenv.registry import ENV_WRAPPER_REGISTRY
from vecenv.values.own_attributes import get_listed_state, set_listed_state

Env = gymnasium.Env[Any, Any]


class EnvWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Base of vecenv's wrappers: a `gymnasium.Wrapper` around any env that `envs.adapt` accepts.

    An env with old calls is adapted first, so a wrapper's own calls are always Gymnasium's. There is one
    exception. If the env is a `GymToGymnasiumWrapper`, the new wrapper is put inside it, and the constructor
    returns a `GymToGymnasiumWrapper`. So programs with old calls can add more wrappers.
    """

    state_names: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes that last from one step or episode to the next, beside those of base classes;
    `get_state` returns them."""

    def __new__(cls, env: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(env, GymToGymnasiumWrapper) and not issubclass(cls, GymToGymnasiumWrapper):
            return env.wrap_inside(lambda inner: cls(inner, *args, **kwargs))
        return super().__new__(cls)

    def __init__(self, env: Any) -> None:
        super().__init__(adapt(env))

    def get_state(self) -> dict[str, Any]:
        """Return a picklable copy of this layer's own state, without the state of the env inside."""
        return get_listed_state(self)

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `get_state` returned; it is copied."""
        set_listed_state(self, state)

    @staticmethod
    def new_shape(obs_shape: Any, act_shape: Any, rew_shape: Any) -> tuple[Any, Any, Any]:
        """Return the shapes of observation, action and reward after this wrapper, given those before it."""
        return obs_shape, act_shape, rew_shape


class ObsMixin:
    """Part of the wrappers that convert each observation by itself; subclasses implement `observation`.

    A wrapper names this class before `EnvWrapper` in its list of bases.
    """

    env: Any

    def observation(self, obs: Any) -> Any:
        """Convert one observation. The None of an abnormal timestep is passed on without a call."""
        raise NotImplementedError

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self.observation(obs), info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if obs is not None:
            obs = self.observation(obs)
        return obs, reward, terminated, truncated, info


class ObsWrapper(ObsMixin, EnvWrapper):
    """Base of the wrappers that convert each observation by itself; subclasses implement `observation`."""


@ENV_WRAPPER_REGISTRY.register("gym_to_gymnasium")
class GymToGymnasiumWrapper(EnvWrapper):
    """A Gymnasium env behind old Gym's calls: `reset` returns the observation, `step` four values; has `seed`.

    The name is DI-engine's. Infos contain `terminated`, `truncated` and `TimeLimit.truncated`. All other attributes
    are read from the env and the wrappers around it.

    Example:
        >>> env = GymToGymnasiumWrapper(gymnasium.make("CartPole-v1"))
        >>> env.seed(1)
        >>> obs = env.reset()
        >>> obs, reward, done, info = env.step(0)
        >>> done, info["truncated"]
        (False, False)
    """

    state_names: ClassVar[tuple[str, ...]] = ("_next_seed",)
    uses_old_calls: ClassVar[bool] = True
    is_old_api_adapter: ClassVar[bool] = True

    def __init__(self, env: Any) -> None:
        """Wrap; ConfigError if `env` is not a Gymnasium env."""
        if not isinstance(env, gymnasium.Env):
            raise ConfigError(f"GymToGymnasiumWrapper: expected a gymnasium.Env, got {type(env).__name__}")
        super().__init__(env)
        self._next_seed: int | None = None

    def seed(self, seed: int) -> None:
        """Set the seed of the next reset; later resets continue the random numbers, as in old Gym."""
        self._next_seed = int(seed)

    def reset(self, options: dict[str, Any] | None = None) -> Any:  # type: ignore[override]  # old Gym's call
        seed, self._next_seed = self._next_seed, None
        obs, _ = self.env.reset(seed=seed, options=options)
        return obs

    def step(self, action: Any) -> Any:
        """Apply one action and return (obs, reward, done, info)."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        terminated, truncated = bool(terminated), bool(truncated)
        info = {**info, "terminated": terminated, "truncated": truncated}
        info["TimeLimit.truncated"] = truncated and not terminated
        return obs, reward, terminated or truncated, info

    def wrap_inside(self, wrap: Any) -> GymToGymnasiumWrapper:
        """Return a new `GymToGymnasiumWrapper` around `wrap(env)`; a seed set for the next reset is kept."""
        outer = GymToGymnasiumWrapper(wrap(self.env))
        outer._next_seed = self._next_seed
        return outer

    def __getattr__(self, name: str) -> Any:
        if name == "env" or name.startswith("__"):
            raise AttributeError(name)
        return self.env.get_wrapper_attr(name)


def reward_range(env: Env) -> tuple[float, float]:
    """Return the reward bounds of one step that the outermost declaring layer declares, else (-inf, inf)."""
    low, high = find_attr(env, "reward_range", (-np.inf, np.inf))
    return float(low), float(high)


def summed_reward_space(env: Env, count: int, *, from_zero: bool = False) -> spaces.Space[Any] | None:
    """Return the space of the sum of 1 to `count` rewards; None if the env does not declare a Box as reward space.

    For a `count` of 0 and 1 it is the env's own space. With `from_zero` it also contains 0, the sum of zero rewards.
    """
    declared = reward_space_of(env)
    if count <= 1:
        return declared
    if not isinstance(declared, spaces.Box):
        return None
    low, high = declared.low.astype(np.float64), declared.high.astype(np.float64)
    low = np.minimum(0.0 if from_zero else low, low * count)
    high = np.maximum(0.0 if from_zero else high, high * count)
    dtype = declared.dtype if np.issubdtype(declared.dtype, np.floating) else np.dtype(np.float64)
    with np.errstate(over="ignore"):  # a bound outside float32's range becomes infinity
        return spaces.Box(low.astype(dtype), high.astype(dtype), declared.shape, dtype.type)


def require_box(space: spaces.Space[Any], owner: str) -> spaces.Box:
    """Return the space, which must be a Box; else raise SpaceError, which names `owner`."""
    if not isinstance(space, spaces.Box):
        raise SpaceError(f"{owner}: expected a Box space, got {space}", expected="Box", got=type(space).__name__)
    return space


def own_generator(seed: int | None, tag: str) -> np.random.Generator:
    """Make a wrapper's own generator from the seed of a reset, or from fresh entropy if the seed is None.

    Different tags give different random numbers for one seed, so wrappers do not draw the same numbers as each other
    or as the env.
    """
    if seed is None:
        return np.random.default_rng()
    return np.random.default_rng([seed, *tag.encode()])
