"""AlfGymWrapper: one Gymnasium env as an `AlfEnvironment`; its specs are derived from the env's spaces.

Gymnasium                 time step
reset                     FIRST, discount 1
neither flag              MID, the constructor's discount (1 by default)
terminated                LAST, discount 0
truncated only            LAST, discount 1
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from vecenv.alf.base.actions import fit_actions
from vecenv.alf.base.environment import AlfEnvironment, FixedSpecs
from vecenv.alf.base.known_infos import TIME_LIMIT_KEY, KnownInfos
from vecenv.alf.base.spec import TensorSpec, tensor_spec_from_gym_space
from vecenv.alf.base.steps import info_arrays, restart, scalar_of, transition, with_step_type
from vecenv.alf.base.timestep import StepType, TimeStep, check_discount
from vecenv.envs.adapt import adapt, find_attr, reward_space_of
from vecenv.envs.seeding import check_seed
from vecenv.errors import ConfigError, StateError
from vecenv.values.checks import check_flag, check_whole
from vecenv.values.nested import map_structure


class AlfGymWrapper(FixedSpecs, AlfEnvironment):
    """A Gymnasium env, or one with an older interface, as an environment of time steps.

    The constructor does not call the env. Observation, action and reward specs come from its spaces. The env_info spec
    comes from `info_space`, a Dict space, if the env or a wrapper has that attribute. The keys of this spec are always
    in `env_info`, as zeros if the info lacks them. Other numeric keys stay in the same way once they have appeared.
    Strings and objects are present only in the steps whose infos contain them.

    Example:
        >>> env = AlfGymWrapper(gymnasium.make("CartPole-v1"))
        >>> env.seed(3)
        >>> first, second = env.reset(), env.step(np.int64(1))
        >>> second.observation.dtype.name, float(second.reward), int(second.prev_action)
        ('float32', 1.0, 1)
        >>> env.close()

    Attributes:
        discount: the discount of MID steps.
        done: whether the episode is over.
    """

    state_names: ClassVar[tuple[str, ...]] = ("_seed", "_info", "_known_infos", "done")

    def __init__(
        self,
        gym_env: Any,
        env_id: int | None = None,
        discount: float = 1.0,
        auto_reset: bool = True,
        simplify_box_bounds: bool = True,
    ) -> None:
        """Wrap an env, without calling it.

        Args:
            env_id: value of the field `env_id` in time steps. None (default): 0.
            discount: discount of MID steps, 1.0 by default.
            auto_reset: whether the step after a LAST step starts the next episode. Default: True.
            simplify_box_bounds: whether boxes whose bounds are all equal get scalar bounds. Default: True.

        Raises:
            ConfigError: an argument is wrong.
            SpaceError: a space has no fixed layout (a ValueError).
        """
        if isinstance(gym_env, AlfEnvironment):
            raise ConfigError(f"gym_env: is an AlfEnvironment already: {gym_env!r}", key="gym_env")
        self.discount = check_discount(discount)
        self._env: Any = adapt(gym_env)
        self._env_id = np.int32(0 if env_id is None else check_whole("env_id", env_id, 0))
        self._auto_reset = check_flag("auto_reset", auto_reset)
        self._seed: int | None = None
        self._info: Any = None
        self.done = False
        reward_space, info_space = reward_space_of(self._env), find_attr(self._env, "info_space")
        self._specs = TimeStep(
            observation=tensor_spec_from_gym_space(self._env.observation_space, simplify_box_bounds),
            prev_action=tensor_spec_from_gym_space(self._env.action_space, simplify_box_bounds),
            reward=TensorSpec(())
            if reward_space is None
            else tensor_spec_from_gym_space(reward_space, simplify_box_bounds),
            env_info=tensor_spec_from_gym_space(info_space) if isinstance(info_space, spaces.Dict) else {},
        )
        self._env_action_spec = tensor_spec_from_gym_space(self._env.action_space, float_dtype=None)
        self._known_infos = KnownInfos(self._specs.env_info)

    # ---- episodes ----------------------------------------------------------------------------

    def _reset(self) -> TimeStep:
        seed, self._seed = self._seed, None
        observation, info = self._env.reset(seed=seed)
        self.done = False
        env_info = self._read_info(info)
        observation = map_structure(_to_array, self._specs.observation, observation)
        return restart(observation, self._specs.prev_action, self._specs.reward, self._env_id, env_info)

    def _step(self, action: Any) -> TimeStep:
        if self.done:
            if self._auto_reset:
                return self.reset()
            raise StateError("step: the episode is over and auto_reset is False; call reset() first")
        given = map_structure(scalar_of, fit_actions(self._env_action_spec, action))
        observation, reward, terminated, truncated, info = self._env.step(given)
        self.done = bool(terminated or truncated)
        specs = self._specs
        what = (
            map_structure(_to_array, specs.observation, observation),
            map_structure(_to_array, specs.prev_action, action),
            map_structure(_to_array, specs.reward, reward),
        )
        discount = 0.0 if terminated else 1.0 if truncated else self.discount
        step = transition(*what, specs.reward, discount, self._env_id, self._read_info(info))
        return with_step_type(step, StepType.LAST) if self.done else step

    def _read_info(self, info: Mapping[str, Any]) -> dict[str, Any]:
        self._info = info
        arrays: dict[str, Any] = info_arrays({key: value for key, value in info.items() if key != TIME_LIMIT_KEY})
        return self._known_infos.complete(arrays)

    # ---- further ------------------------------------------------------------------------------

    @property
    def gym(self) -> gymnasium.Env[Any, Any]:
        """The wrapped Gymnasium env."""
        env: gymnasium.Env[Any, Any] = self._env
        return env

    @property
    def metadata(self) -> dict[str, Any]:
        return dict(self._env.metadata or {})

    @property
    def task_names(self) -> list[str]:
        """A list of one name: the env's registered name, or the name of its class."""
        spec = getattr(self._env, "spec", None)
        return [spec.id if spec is not None else type(self._env.unwrapped).__name__]

    def get_info(self) -> Any:
        """Return the env's own info of the last step, or None before the first reset."""
        return self._info

    def seed(self, seed: int) -> None:
        """Set the seed, an integer of at least 0, for the next reset; later resets continue with the generator."""
        self._seed = check_seed(seed)

    def render(self, mode: str = "rgb_array") -> Any:
        """Return the result of the env's `render`; StateError if it was made with another `render_mode`."""
        if self._env.render_mode != mode:
            raise StateError(
                f"render: the env was made with render_mode={self._env.render_mode!r}, not {mode!r}; "
                f"make it with render_mode={mode!r}"
            )
        return self._env.render()

    def close(self) -> None:
        self._env.close()

    def as_gym_env(self) -> Any:
        """Return the wrapped env; a seed set by `seed` is kept.

        None for subclasses, for objects with methods of their own, and if `auto_reset` is False.
        """
        is_plain = type(self) is AlfGymWrapper and not self.has_own_methods()
        return _GymEnv(self) if is_plain and self._auto_reset else None

    def begin_episode(self) -> int | None:
        """Return the seed that was set for the next reset, or None; the object of `as_gym_env` makes that reset."""
        seed, self._seed, self.done = self._seed, None, False
        return seed

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        missing = object()
        value = find_attr(self._env, name, missing)
        if value is missing:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}, and neither has its env")
        return value


class _GymEnv:
    """The env below an AlfGymWrapper, for workers; `layers` are the environments above it, outermost first."""

    def __init__(self, wrapper: AlfGymWrapper) -> None:
        self._wrapper = wrapper
        self.layers: tuple[AlfEnvironment, ...] = (wrapper,)
        self.gym = wrapper.gym
        self.steps_by = self.gym
        self.discount = wrapper.discount

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode with this seed, or if None with the one set by the wrapper's `seed`."""
        waiting = self._wrapper.begin_episode()
        return self.gym.reset(seed=waiting if seed is None else seed, options=options)


def _to_array(spec: TensorSpec, value: Any) -> Any:
    """Return a value as a new array, or a NumPy scalar, in the dtype of its spec."""
    with np.errstate(over="ignore"):
        array = np.array(value, dtype=spec.dtype)
    if array.shape != spec.shape and {array.shape, spec.shape} == {(), (1,)}:  # one number, as () or (1,)
        array = array.reshape(spec.shape)
    return scalar_of(array)
