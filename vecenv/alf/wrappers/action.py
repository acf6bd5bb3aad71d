"""Wrappers on time steps that change what an action is; for one env and, but for noise, for batches, of tensors too."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from vecenv.alf.base import tensors
from vecenv.alf.base.actions import fit_actions
from vecenv.alf.base.environment import AlfEnvironment, check_single
from vecenv.alf.base.spec import BoundedTensorSpec, zeros_of
from vecenv.alf.base.timestep import TimeStep
from vecenv.alf.wrappers.base import AlfEnvironmentBaseWrapper
from vecenv.checks import check_whole
from vecenv.errors import SpaceError
from vecenv.nested import map_structure
from vecenv.wrappers.base import own_generator

__all__ = ["DiscreteActionWrapper", "NormalizedActionWrapper", "TemporallyCorrelatedNoiseWrapper"]


class _ActionWrapper(AlfEnvironmentBaseWrapper):
    """A wrapper that maps actions by `_translate`, arrays to arrays, and shows its own as previous ones."""

    _spec: Any

    def action_spec(self) -> Any:
        """Return the specs of what this wrapper takes."""
        return self._spec

    def _translate(self, action: Any) -> Any:
        raise NotImplementedError

    def _reset(self) -> TimeStep:
        time_step = self._env.reset()
        return time_step._replace(prev_action=self._no_action(time_step))

    def _step(self, action: Any) -> TimeStep:
        outer = (self.batch_size,) if self.batched else ()
        own = fit_actions(self._spec, tensors.to_arrays(action), outer)
        inner = self._translate(own)
        time_step = self._env.step(tensors.to_tensors(inner) if self.is_tensor_based else inner)
        is_first = tensors.to_arrays(time_step.is_first())
        if np.any(is_first):
            map_structure(lambda leaf: leaf.__setitem__(is_first, 0), own)
        own = map_structure(lambda leaf: leaf[()], own)  # scalars, as everywhere else
        return time_step._replace(prev_action=tensors.to_tensors(own) if self.is_tensor_based else own)

    def _no_action(self, time_step: TimeStep) -> Any:
        zeros = zeros_of(self._spec, tuple(np.shape(tensors.to_arrays(time_step.step_type))))
        return tensors.to_tensors(zeros) if self.is_tensor_based else zeros


class DiscreteActionWrapper(_ActionWrapper):
    """One whole number for a vector of continuous actions, each cut into evenly spaced values, ends included.

    With n values for each of d dimensions there are n**d actions; the first dimension counts highest.
    """

    def __init__(self, env: AlfEnvironment, actions_num: int) -> None:
        """Wrap.

        Args:
            env: with one bounded continuous action of shape (d,).
            actions_num: n, at least 2.

        Raises:
            ConfigError: actions_num is no whole number, or below 2.
            SpaceError: other actions.
        """
        super().__init__(env)
        actions_num = check_whole("actions_num", actions_num, 2)
        spec = env.action_spec()
        if not isinstance(spec, BoundedTensorSpec) or not spec.is_continuous or spec.ndim != 1:
            raise SpaceError(f"DiscreteActionWrapper: expected a bounded vector, got {spec}")
        low, high = _finite_bounds(spec)
        self._spec = BoundedTensorSpec((), np.int64, 0, actions_num ** spec.shape[0] - 1)
        self._values = np.linspace(low, high, actions_num, dtype=spec.dtype)  # (n, d)
        self._powers = actions_num ** np.arange(spec.shape[0])[::-1]

    def _translate(self, action: Any) -> Any:
        count = int(self._spec.maximum) + 1
        if np.any(action < 0) or np.any(action >= count):
            raise SpaceError(f"action: expected 0 .. {count - 1}, got {action}", path="action")
        digits = np.asarray(action, np.int64)[..., None] // self._powers % len(self._values)
        return self._values[digits, np.arange(len(self._powers))]


class NormalizedActionWrapper(_ActionWrapper):
    """Actions from -1 to 1, stretched to the bounds of the action spec."""

    def __init__(self, env: AlfEnvironment) -> None:
        """Wrap.

        Raises:
            SpaceError: an action without finite bounds.
        """
        super().__init__(env)
        self._inner_spec = env.action_spec()
        map_structure(_finite_bounds, self._inner_spec)
        self._spec = map_structure(lambda spec: BoundedTensorSpec(spec.shape, spec.dtype, -1, 1), self._inner_spec)

    def _translate(self, action: Any) -> Any:
        return map_structure(_stretch, self._inner_spec, action)


class TemporallyCorrelatedNoiseWrapper(AlfEnvironmentBaseWrapper):
    """Adds noise to actions that lasts for two steps (arXiv:2202.01312); the result stays within bounds.

    The env gets action + past_noise_weight * last noise + new noise, and `prev_action` is what it
    got. Noise is drawn from a generator of its own, seeded by `seed`.
    """

    state_names: ClassVar[tuple[str, ...]] = ("_generator",)

    def __init__(self, env: AlfEnvironment, sigma: float = 0.5, past_noise_weight: float = 1.0) -> None:
        """Wrap.

        Args:
            env: with one continuous action; not batched.
            sigma: standard deviation of the noise.
            past_noise_weight: at least 0; a negative one counts as 0.

        Raises:
            ConfigError: a batch.
            SpaceError: other actions.
        """
        super().__init__(env)
        check_single(env, "TemporallyCorrelatedNoiseWrapper")
        spec = env.action_spec()
        if not isinstance(spec, BoundedTensorSpec) or not spec.is_continuous:
            raise SpaceError(f"TemporallyCorrelatedNoiseWrapper: expected one continuous action, got {spec}")
        self._spec = spec
        self._sigma = sigma
        self._weight = max(past_noise_weight, 0.0)
        self._generator = own_generator(None, "action_noise")
        self._noise: Any = None

    def seed(self, seed: Any) -> Any:
        """Seed the noise and the environment inside."""
        self._generator = own_generator(seed, "action_noise")
        return self._env.seed(seed)

    def _draw(self, shape: tuple[int, ...]) -> Any:
        return self._generator.normal(0.0, self._sigma, shape)

    def _reset(self) -> TimeStep:
        self._noise = None
        return self._env.reset()

    def _step(self, action: Any) -> TimeStep:
        if self._noise is None:
            self._noise = self._draw(np.shape(action))
        noise = self._draw(np.shape(action))
        moved = action + self._weight * self._noise + noise
        self._noise = noise
        time_step = self._env.step(np.clip(moved, self._spec.minimum, self._spec.maximum).astype(self._spec.dtype))
        if bool(time_step.is_first()):
            self._noise = None
        return time_step


def _finite_bounds(spec: Any) -> tuple[Any, Any]:
    if not isinstance(spec, BoundedTensorSpec) or not np.isfinite([*spec.minimum.flat, *spec.maximum.flat]).all():
        raise SpaceError(f"action: expected finite bounds, got {spec}", path="action")
    return np.broadcast_to(spec.minimum, spec.shape), np.broadcast_to(spec.maximum, spec.shape)


def _stretch(spec: BoundedTensorSpec, action: Any) -> Any:
    half = (spec.maximum - spec.minimum) / 2
    return np.asarray(action * half + (spec.minimum + half), spec.dtype)
