"""Under all wrappers: they accept any env dialect, can save their state, and know how they change shapes."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from vecenv.envs.adapt import adapt, find_attr, reward_space_of
from vecenv.errors import ConfigError, SpaceError
from vecenv.registry import ENV_WRAPPER_REGISTRY

Env = gymnasium.Env[Any, Any]


class EnvWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Base of vecenv's wrappers: a `gymnasium.Wrapper` around an env of any dialect.

    An env with old calls is translated by `envs.adapt`, so a wrapper's own calls are always Gymnasium's. One
    exception: around a `GymToGymnasiumWrapper` the wrapper slips inside, and what comes back is that old face
    again, so programs with old calls can go on stacking wrappers.
    """

    state_names: ClassVar[tuple[str, ...]] = ()
    """Attributes that carry over from one step or episode to the next."""

    def __new__(cls, env: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(env, GymToGymnasiumWrapper) and not issubclass(cls, GymToGymnasiumWrapper):
            return env.wrap_inside(lambda inner: cls(inner, *args, **kwargs))
        return super().__new__(cls)

    def __init__(self, env: Any) -> None:
        super().__init__(adapt(env))

    def get_state(self) -> dict[str, Any]:
        """Give a picklable copy of this layer's own state; the env's is not in it."""
        return {name: copy.deepcopy(getattr(self, name)) for name in self.state_names}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take back a state of `get_state`; the argument is not kept."""
        for name in self.state_names:
            setattr(self, name, copy.deepcopy(state[name]))

    @staticmethod
    def new_shape(obs_shape: Any, act_shape: Any, rew_shape: Any) -> tuple[Any, Any, Any]:
        """Give the shapes that observation, action and reward have after this wrapper."""
        return obs_shape, act_shape, rew_shape


class ObsWrapper(EnvWrapper):
    """A wrapper that maps each observation on its own, by `observation`."""

    def observation(self, obs: Any) -> Any:
        """Give the changed observation; not asked for None, which an abnormal timestep has and keeps."""
        raise NotImplementedError

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self.observation(obs), info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if obs is not None:
            obs = self.observation(obs)
        return obs, reward, terminated, truncated, info


@ENV_WRAPPER_REGISTRY.register("gym_to_gymnasium")
class GymToGymnasiumWrapper(EnvWrapper):
    """A Gymnasium env behind old Gym's calls: bare observation from reset, four values from step, `seed`.

    The name is the original's. Infos say `terminated`, `truncated` and `TimeLimit.truncated`. Other attributes,
    wrappers' included, are reached directly.

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
        """Wrap.

        Raises:
            ConfigError: not a Gymnasium env.
        """
        if not isinstance(env, gymnasium.Env):
            raise ConfigError(f"GymToGymnasiumWrapper: expected a gymnasium.Env, got {type(env).__name__}")
        super().__init__(env)
        self._next_seed: int | None = None

    def seed(self, seed: int) -> None:
        """Seed the next reset; later ones continue its random numbers, as in old Gym."""
        self._next_seed = int(seed)

    def reset(self, options: dict[str, Any] | None = None) -> Any:  # type: ignore[override]  # old Gym's call
        """Start an episode and give its first observation alone."""
        seed, self._next_seed = self._next_seed, None
        obs, _ = self.env.reset(seed=seed, options=options)
        return obs

    def step(self, action: Any) -> Any:
        """Give (obs, reward, done, info)."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        terminated, truncated = bool(terminated), bool(truncated)
        info = {**info, "terminated": terminated, "truncated": truncated}
        info["TimeLimit.truncated"] = truncated and not terminated
        return obs, reward, terminated or truncated, info

    def wrap_inside(self, wrap: Any) -> GymToGymnasiumWrapper:
        """Give the old face over `wrap(env)`, with a seed that waits for the next reset carried over."""
        outer = GymToGymnasiumWrapper(wrap(self.env))
        outer._next_seed = self._next_seed
        return outer

    def __getattr__(self, name: str) -> Any:
        if name == "env" or name.startswith("__"):
            raise AttributeError(name)
        return self.env.get_wrapper_attr(name)


def reward_range(env: Env) -> tuple[float, float]:
    """Give the bounds of one step's reward as far as any layer declares them, else (-inf, inf)."""
    low, high = find_attr(env, "reward_range", (-np.inf, np.inf))
    return float(low), float(high)


def summed_reward_space(env: Env, count: int, *, from_zero: bool = False) -> spaces.Space[Any] | None:
    """Give the space of the sum of one to `count` rewards of the env; None where none is declared or it is no Box.

    Args:
        env: whose rewards are summed.
        count: 0 and 1 give the env's own space.
        from_zero: a sum of no reward at all, 0, is possible too.
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
    with np.errstate(over="ignore"):  # beyond float32's range it is infinity, which is what it means
        return spaces.Box(low.astype(dtype), high.astype(dtype), declared.shape, dtype.type)


def require_box(space: spaces.Space[Any], owner: str) -> spaces.Box:
    """Give the space if it is a Box.

    Raises:
        SpaceError: it is not.
    """
    if not isinstance(space, spaces.Box):
        raise SpaceError(f"{owner}: expected a Box space, got {space}", expected="Box", got=type(space).__name__)
    return space


def own_generator(seed: int | None, tag: str) -> np.random.Generator:
    """Make a wrapper's own generator from the seed of a reset, or from fresh entropy.

    The tag keeps two wrappers, or a wrapper and the env, from drawing the same numbers from one seed.
    """
    if seed is None:
        return np.random.default_rng()
    return np.random.default_rng([seed, *tag.encode()])
