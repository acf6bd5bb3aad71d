"""Wrappers above time steps that change actions, for single envs and batches, of arrays or tensors.

Only the noise wrapper is limited to single envs of arrays.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from vecenv.alf.base import tensors
from vecenv.alf.base.actions import fit_actions
from vecenv.alf.base.environment import AlfEnvironment, check_single
from vecenv.alf.base.spec import BoundedTensorSpec, zeros_of
from vecenv.alf.base.timestep import TimeStep
from vecenv.alf.wrappers.base import AlfEnvironmentBaseWrapper
from vecenv.errors import SpaceError
from vecenv.values.checks import check_whole
from vecenv.values.nested import map_structure
from vecenv.wrappers.base import own_generator


class _ActionMixin:
    """Maps actions by `_translate`, arrays to arrays; `prev_action` contains the actions before the mapping.

    A wrapper names this class before `AlfEnvironmentBaseWrapper` in its list of bases.
    """

    _env: AlfEnvironment
    _spec: Any

    def action_spec(self) -> Any:
        """Return the specs of the actions that this wrapper accepts."""
        return self._spec

    def _translate(self, action: Any) -> Any:
        raise NotImplementedError

    def _reset(self) -> TimeStep:
        time_step = self._env.reset()
        zeros = zeros_of(self._spec, tuple(np.shape(tensors.to_arrays(time_step.step_type))))
        return time_step._replace(prev_action=tensors.to_tensors(zeros) if self._env.is_tensor_based else zeros)

    def _step(self, action: Any) -> TimeStep:
        outer = (self._env.batch_size,) if self._env.batched else ()
        own = fit_actions(self._spec, tensors.to_arrays(action), outer)
        inner = self._translate(own)
        time_step = self._env.step(tensors.to_tensors(inner) if self._env.is_tensor_based else inner)
        is_first = tensors.to_arrays(time_step.is_first())
        if np.any(is_first):
            map_structure(lambda leaf: leaf.__setitem__(is_first, 0), own)
        own = map_structure(lambda leaf: leaf[()], own)  # arrays without axes become scalars
        return time_step._replace(prev_action=tensors.to_tensors(own) if self._env.is_tensor_based else own)


class DiscreteActionWrapper(_ActionMixin, AlfEnvironmentBaseWrapper):
    """Replaces a vector of continuous actions by one discrete action.

    Each of d dimensions has n evenly spaced values, bounds included, so there are n**d actions. The first dimension is
    the most significant digit.
    """

    def __init__(self, env: AlfEnvironment, actions_num: int) -> None:
        """Wrap an environment.

        Raises:
            ConfigError: actions_num, the number n, is not a whole number of at least 2.
            SpaceError: the env does not have one continuous action of shape (d,) with finite bounds.
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


class NormalizedActionWrapper(_ActionMixin, AlfEnvironmentBaseWrapper):
    """Accepts actions from -1 to 1, and scales them to the bounds of the env's action spec."""

    def __init__(self, env: AlfEnvironment) -> None:
        """Wrap an environment; SpaceError if an action has no finite bounds."""
        super().__init__(env)
        self._inner_spec = env.action_spec()
        map_structure(_finite_bounds, self._inner_spec)
        self._spec = map_structure(lambda spec: BoundedTensorSpec(spec.shape, spec.dtype, -1, 1), self._inner_spec)

    def _translate(self, action: Any) -> Any:
        return map_structure(_stretch, self._inner_spec, action)


class TemporallyCorrelatedNoiseWrapper(AlfEnvironmentBaseWrapper):
    """Adds noise to actions, correlated over two steps (arXiv:2202.01312), and clips the result to the bounds.

    The env receives action + past_noise_weight * last noise + new noise; `prev_action` is that received action. Noise
    is drawn from the wrapper's own generator, which `seed` seeds.
    """

    state_names: ClassVar[tuple[str, ...]] = ("_generator", "_noise")

    def __init__(self, env: AlfEnvironment, sigma: float = 0.5, past_noise_weight: float = 1.0) -> None:
        """Wrap a single environment.

        Args:
            sigma: standard deviation of the noise, 0.5 by default.
            past_noise_weight: weight of the last step's noise, 1.0 by default; negative values count as 0.

        Raises:
            ConfigError: the env is batched.
            SpaceError: the env does not have one bounded continuous action.
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
        """Seed the noise and the wrapped environment."""
        self._generator = own_generator(seed, "action_noise")
        return self._env.seed(seed)

    def _draw(self, shape: tuple[int, ...]) -> Any:
        return self._generator.normal(0.0, self._sigma, shape)

    def _step(self, action: Any) -> TimeStep:
        if self._noise is None:
            self._noise = self._draw(np.shape(action))
        noise = self._draw(np.shape(action))
        moved = action + self._weight * self._noise + noise
        self._noise = noise
        return super()._step(np.clip(moved, self._spec.minimum, self._spec.maximum).astype(self._spec.dtype))

    def _changed(self, time_step: TimeStep) -> TimeStep:
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
