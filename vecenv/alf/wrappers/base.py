"""Base classes of the wrappers above time steps, and TimeLimit."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from vecenv.alf.base.environment import AlfEnvironment, check_environment
from vecenv.alf.base.steps import with_step_type
from vecenv.alf.base.timestep import StepType, TimeStep
from vecenv.errors import ConfigError
from vecenv.saved_state import SavedState
from vecenv.values.checks import check_whole


def forwarded(name: str, inner: Callable[[Any], Any] = operator.attrgetter("_env")) -> Any:
    """Make a property that returns the value of an environment inside, or of its description."""
    return property(lambda self: getattr(inner(self), name), doc=getattr(AlfEnvironment, name).__doc__)


class AlfEnvironmentBaseWrapper(AlfEnvironment):
    """An environment that wraps another one and forwards every call to it.

    A subclass that changes every time step overrides `_changed`, others `_reset` and `_step`; and the specs of the
    changed fields.

    Example:
        >>> from vecenv.alf import load
        >>> class Doubled(AlfEnvironmentBaseWrapper):
        ...     def _changed(self, time_step):
        ...         return time_step._replace(reward=time_step.reward * 2)
        >>> env = Doubled(load("CartPole-v1"))
        >>> _ = env.reset()
        >>> float(env.step(0).reward)
        2.0
        >>> env.close()
    """

    def __init__(self, env: AlfEnvironment) -> None:
        """Wrap an environment; ConfigError if `env` is not an AlfEnvironment."""
        check_environment(env, type(self).__name__)
        self._env = env

    def wrapped_env(self) -> AlfEnvironment:
        """Return the wrapped environment."""
        return self._env

    def _reset(self) -> TimeStep:
        return self._changed(self._env.reset())

    def _step(self, action: Any) -> TimeStep:
        return self._changed(self._env.step(action))

    def _changed(self, time_step: TimeStep) -> TimeStep:
        """Return a time step of the wrapped environment as this wrapper returns it."""
        return time_step

    def observation_spec(self) -> Any:
        return self._env.observation_spec()

    def action_spec(self) -> Any:
        return self._env.action_spec()

    def reward_spec(self) -> Any:
        return self._env.reward_spec()

    def env_info_spec(self) -> Any:
        return self._env.env_info_spec()

    batched = forwarded("batched")
    batch_size = forwarded("batch_size")
    is_tensor_based = forwarded("is_tensor_based")
    num_tasks = forwarded("num_tasks")
    task_names = forwarded("task_names")
    can_seed = forwarded("can_seed")
    metadata = forwarded("metadata")

    def get_info(self) -> Any:
        return self._env.get_info()

    def seed(self, seed: Any) -> Any:
        return self._env.seed(seed)

    def render(self, mode: str = "rgb_array") -> Any:
        return self._env.render(mode)

    def sync_progress(self) -> None:
        self._env.sync_progress()

    def _save_state(self, what: str) -> SavedState:
        return self._env._save_state(what).around(type(self).__name__, self.get_state())

    def _check_state(self, saved: SavedState) -> None:
        saved.check(kind=type(self).__name__)
        saved.check_spaces(*self._state_spaces(), saved.header["implementation"])

    def _load_state(self, saved: SavedState) -> None:
        inner, own = SavedState.read(saved.value[0]), saved.value[1]
        self._env._check_state(inner)
        self._env._load_state(inner)
        self.set_state(own)

    def _state_spaces(self) -> tuple[Any, Any]:
        return self._env._state_spaces()

    def close(self) -> None:
        self._env.close()

    def __getattr__(self, name: str) -> Any:
        # Unpickling also reads attributes, before `_env` exists.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}; private names are not forwarded")
        return getattr(self._env, name)


if TYPE_CHECKING:  # the mixin calls methods of the wrapper that it is a part of
    _Wrapper = AlfEnvironmentBaseWrapper
else:
    _Wrapper = object


class TruncatingMixin(_Wrapper):
    """Counts the steps of each episode and truncates it if `_must_truncate` returns True.

    A wrapper names this class before `AlfEnvironmentBaseWrapper` in its list of bases.

    The step after a LAST step, and a step before the first reset, begin an episode. A FIRST step within an episode,
    from an inner `MultitaskWrapper` that changes the task, counts as a step. So an episode is truncated even if its
    task changes again and again. A FIRST step itself is not truncated; the step after it is.
    """

    state_names: ClassVar[tuple[str, ...]] = ("_num_steps",)

    def __init__(self, env: AlfEnvironment) -> None:
        super().__init__(env)
        self._num_steps: int | None = None  # None: the next step starts an episode

    def _must_truncate(self, num_steps: int) -> bool:
        """Return whether to truncate an episode after this number of steps. Called once per step that is not FIRST."""
        raise NotImplementedError

    def _reset(self) -> TimeStep:
        self._num_steps = 0
        return self._env.reset()

    def _step(self, action: Any) -> TimeStep:
        if self._num_steps is None:
            return self.reset()
        time_step = self._env.step(action)
        self._num_steps += 1
        if not bool(time_step.is_first()) and self._must_truncate(self._num_steps):
            time_step = with_step_type(time_step, StepType.LAST)
        if bool(time_step.is_last()):
            self._num_steps = None
        return time_step


class TimeLimit(TruncatingMixin, AlfEnvironmentBaseWrapper):
    """Truncates an episode after `duration` steps: step type LAST, with the discount unchanged.

    The discount is 1 then, unless the env terminates at the same step. If an env terminates at its own limit of N
    steps, a TimeLimit of N - 1 truncates the episode before that.

    Example:
        >>> from vecenv.alf import load
        >>> env = TimeLimit(load("CartPole-v1", max_episode_steps=0), 2)
        >>> _ = env.reset(), env.step(0)
        >>> step = env.step(1)
        >>> bool(step.is_last()), float(step.discount), bool(env.step(0).is_first())
        (True, 1.0, True)
        >>> env.close()
    """

    def __init__(self, env: AlfEnvironment, duration: int) -> None:
        """Wrap a single environment, or a batch of one.

        Raises:
            ConfigError: duration is not a whole number of at least 1, or env is not an AlfEnvironment or is a batch
                of more than one (an AssertionError too).
        """
        super().__init__(env)
        self.duration = check_whole("duration", duration, 1)
        if env.batched and env.batch_size != 1:
            raise ConfigError(f"TimeLimit: expected one env, got a batch of {env.batch_size}; limit each env instead")

    def _must_truncate(self, num_steps: int) -> bool:
        return num_steps >= self.duration

    def as_gym_env(self) -> Any:
        """Return the wrapped environment's Gymnasium env with this limit, or None; None as for `AlfGymWrapper`."""
        is_plain = type(self) is TimeLimit and not self.has_own_methods()
        inner = self._env.as_gym_env() if is_plain else None
        return None if inner is None else _LimitedGymEnv(self, inner)


class _LimitedGymEnv:
    """A time limit for an env that workers step without time steps; it counts in the `TimeLimit`."""

    def __init__(self, limit: TimeLimit, inner: Any) -> None:
        self.gym = inner.gym
        self.layers: tuple[AlfEnvironment, ...] = (limit, *inner.layers)
        self.discount = inner.discount
        self.steps_by = self
        self._inner = inner
        self._limit = limit

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._limit._num_steps = 0
        return self._inner.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        limit = self._limit
        limit._num_steps = num_steps = (limit._num_steps or 0) + 1
        if num_steps < limit.duration:
            return self._inner.steps_by.step(action)
        observation, reward, terminated, _, info = self._inner.steps_by.step(action)
        return observation, reward, terminated, True, info
