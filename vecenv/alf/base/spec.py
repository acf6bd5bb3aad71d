"""Tensor specs: shape, dtype and bounds of the leaves of observations, actions and rewards.

    Gymnasium space                   spec
    Discrete(n, start)                BoundedTensorSpec((), int64, start, start + n - 1)
    MultiDiscrete, MultiBinary        BoundedTensorSpec(shape, dtype, ...)
    Box                               BoundedTensorSpec(shape, float32 for floats, low, high)
    Dict, Tuple                       dict, tuple of specs, with the same options at every depth

Bounds are inclusive. Specs contain NumPy dtypes. `torch_dtype` and methods that return or draw tensors need torch. All
environments and wrappers of `vecenv.alf` describe their data by specs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv.alf.base import tensors
from vecenv.errors import ConfigError, SpaceError
from vecenv.values.checks import check_whole
from vecenv.values.nested import map_structure

#: Axes in front of a spec's shape; None means ().
Outer = Sequence[int] | None


class TensorSpec:
    """Shape and dtype of an array, without its batch axis.

    Example:
        >>> spec = TensorSpec((2, 3), "int64")
        >>> spec.numpy_zeros((4,)).shape, spec.is_discrete
        ((4, 2, 3), True)
        >>> spec
        TensorSpec(shape=(2, 3), dtype=int64)

    Attributes:
        shape: tuple of int.
        dtype: a NumPy dtype, also if a torch dtype was given; `torch_dtype` is torch's.
    """

    def __init__(self, shape: Any, dtype: Any = np.float32) -> None:
        """Create a spec.

        Args:
            shape: number of elements along each axis; () for a scalar.
            dtype: a dtype of NumPy or torch, or its name; float32 by default.

        Raises:
            ConfigError: the shape is not a list of whole numbers.
        """
        if isinstance(shape, str) or not np.iterable(shape):
            raise ConfigError(f"shape: expected whole numbers, got {shape!r}", key="shape")
        self.shape: tuple[int, ...] = tuple(check_whole("shape", size, 0) for size in shape)
        self.dtype: np.dtype[Any] = _numpy_dtype(dtype)

    @classmethod
    def from_array(cls, array: Any, from_dim: int = 0) -> TensorSpec:
        """Return the spec, without bounds, of an array or tensor; its shape starts at axis `from_dim`."""
        array = np.asarray(tensors.to_arrays(array))
        return TensorSpec(array.shape[from_dim:], array.dtype)

    from_tensor = from_array

    @classmethod
    def from_spec(cls, spec: TensorSpec) -> TensorSpec:
        """Return a copy of a spec without its bounds."""
        return TensorSpec(spec.shape, spec.dtype)

    @classmethod
    def is_bounded(cls) -> bool:
        """Return whether specs of this class have bounds."""
        return False

    def replace(self, **changes: Any) -> TensorSpec:
        """Return a copy of this spec with some arguments of its constructor changed, given by name."""
        return type(self)(**{**self._arguments(), **changes})

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def numel(self) -> int:
        """Number of elements, the product of the shape."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def is_discrete(self) -> bool:
        """Whether values are whole numbers or bool."""
        return self.dtype.kind in "iub"

    @property
    def is_continuous(self) -> bool:
        """Whether values are floats."""
        return self.dtype.kind == "f"

    @property
    def torch_dtype(self) -> Any:
        """The torch dtype of the same name."""
        return getattr(tensors.torch(), self.dtype.name)

    @property
    def dtype_str(self) -> str:
        """Name of the dtype, such as 'float32'."""
        return self.dtype.name

    def numpy_zeros(self, outer_dims: Outer = None) -> np.ndarray[Any, Any]:
        """Return an array of zeros, of shape (*outer_dims, *shape)."""
        return np.zeros(self._shape(outer_dims), self.dtype)

    def numpy_ones(self, outer_dims: Outer = None) -> np.ndarray[Any, Any]:
        """Return an array of ones, of shape (*outer_dims, *shape)."""
        return np.ones(self._shape(outer_dims), self.dtype)

    def numpy_constant(self, value: Any, outer_dims: Outer = None) -> np.ndarray[Any, Any]:
        """Return an array (*outer_dims, *shape) filled with one number; SpaceError if `value` is not a scalar."""
        value = np.asarray(tensors.to_arrays(value))
        if value.ndim:
            raise SpaceError(f"value: expected a number, got shape {value.shape}", path="value")
        return np.full(self._shape(outer_dims), value.astype(self.dtype))

    def zeros(self, outer_dims: Outer = None) -> Any:
        """Return `numpy_zeros` as a tensor."""
        return tensors.to_tensors(self.numpy_zeros(outer_dims))

    def ones(self, outer_dims: Outer = None) -> Any:
        """Return `numpy_ones` as a tensor."""
        return tensors.to_tensors(self.numpy_ones(outer_dims))

    def constant(self, value: Any, outer_dims: Outer = None) -> Any:
        """Return `numpy_constant` as a tensor."""
        return tensors.to_tensors(self.numpy_constant(value, outer_dims))

    def rand(self, outer_dims: Outer = None) -> Any:
        """Return a tensor of random floats in [0, 1), from torch's generator; bounds are ignored."""
        return tensors.torch().rand(self._shape(outer_dims), dtype=self.torch_dtype)

    def randn(self, outer_dims: Outer = None) -> Any:
        """Return a tensor of normally distributed floats (mean 0, standard deviation 1); bounds are ignored."""
        return tensors.torch().randn(self._shape(outer_dims), dtype=self.torch_dtype)

    def contains(self, value: Any) -> bool:
        """Return whether an array or tensor has this shape and dtype."""
        array = np.asarray(tensors.to_arrays(value))
        return bool(array.shape == self.shape and array.dtype == self.dtype)

    def _shape(self, outer_dims: Outer) -> tuple[int, ...]:
        return (*(outer_dims or ()), *self.shape)

    def _arguments(self) -> dict[str, Any]:
        return {"shape": self.shape, "dtype": self.dtype}

    def _key(self) -> tuple[Any, ...]:
        return self.shape, self.dtype.str

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._key() == self._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype})"


class BoundedTensorSpec(TensorSpec):
    """A spec with inclusive bounds.

    Example:
        >>> BoundedTensorSpec((), "int64", 0, 3).contains(np.int64(3))
        True
        >>> BoundedTensorSpec((2,), "float32", [-1, -2], [1, 2]).maximum
        array([1., 2.], dtype=float32)

    Attributes:
        minimum, maximum: read-only arrays of the spec's dtype, of the shape in which they were given.
    """

    def __init__(self, shape: Any, dtype: Any = np.float32, minimum: Any = 0, maximum: Any = 1) -> None:
        """Create a spec.

        Args:
            shape, dtype: as for `TensorSpec`.
            minimum, maximum: lowest and highest values, inclusive; numbers, or arrays that broadcast to `shape`. 0 and
                1 by default.

        Raises:
            SpaceError: a bound does not broadcast to the shape (a ValueError).
            ConfigError: a minimum is above its maximum (an AssertionError too).
        """
        super().__init__(shape, dtype)
        self.minimum = self._bound("minimum", minimum)
        self.maximum = self._bound("maximum", maximum)
        if not (self.minimum <= self.maximum).all():
            raise ConfigError(f"minimum {self.minimum} is above maximum {self.maximum}", key="minimum")

    def _bound(self, name: str, value: Any) -> np.ndarray[Any, Any]:
        with np.errstate(over="ignore"):  # a float64 bound beyond float32 becomes infinite
            bound = np.array(tensors.to_arrays(value)).astype(self.dtype)
        try:
            np.broadcast_to(bound, self.shape)
        except ValueError:
            raise SpaceError(f"{name}: shape {bound.shape} does not broadcast to {self.shape}", path=name) from None
        bound.flags.writeable = False
        return bound

    @classmethod
    def from_spec(cls, spec: TensorSpec) -> BoundedTensorSpec:
        """Return a copy of a spec with bounds; ConfigError (a ValueError) if it has none."""
        if not isinstance(spec, BoundedTensorSpec):
            raise ConfigError(f"spec: expected one with bounds, got {spec}", key="spec")
        return BoundedTensorSpec(**spec._arguments())

    @classmethod
    def is_bounded(cls) -> bool:
        return True

    def _arguments(self) -> dict[str, Any]:
        return {**super()._arguments(), "minimum": self.minimum, "maximum": self.maximum}

    def numpy_sample(
        self, outer_dims: Outer = None, generator: np.random.Generator | None = None
    ) -> np.ndarray[Any, Any]:
        """Return random values, uniform between the bounds, as an array of shape (*outer_dims, *shape).

        Bounds of floats beyond -1e3 .. 1e3, infinite ones included, count as -1e3 and 1e3.

        `generator` is the source of randomness. None (default): a new generator with a random seed.
        """
        rng = np.random.default_rng() if generator is None else generator
        shape = self._shape(outer_dims)
        drawn: Any
        if self.is_discrete:
            drawn = rng.integers(self.minimum.astype(np.int64), self.maximum.astype(np.int64), shape, endpoint=True)
        else:
            drawn = rng.uniform(np.maximum(self.minimum, -_FAR), np.minimum(self.maximum, _FAR), shape)
        return np.asarray(drawn).astype(self.dtype)

    def sample(self, outer_dims: Outer = None, generator: np.random.Generator | None = None) -> Any:
        """Return `numpy_sample` as a tensor."""
        return tensors.to_tensors(self.numpy_sample(outer_dims, generator))

    def contains(self, value: Any) -> bool:
        """Return whether an array or tensor has this shape and dtype and all its values are within the bounds."""
        array = np.asarray(tensors.to_arrays(value))
        return super().contains(array) and bool(((array >= self.minimum) & (array <= self.maximum)).all())

    def _key(self) -> tuple[Any, ...]:
        bounds = [np.broadcast_to(bound, self.shape) for bound in (self.minimum, self.maximum)]
        if self.is_continuous:
            bounds = [bound + self.dtype.type(0) for bound in bounds]  # -0.0 becomes 0.0
        return (*super()._key(), *(bound.tobytes() for bound in bounds))

    def __repr__(self) -> str:
        start = super().__repr__()[:-1]
        return f"{start}, minimum={self.minimum.tolist()}, maximum={self.maximum.tolist()})"


#: Bound of random samples where a float has none.
_FAR = 1e3


def tensor_spec_from_gym_space(
    space: spaces.Space[Any], simplify_box_bounds: bool = True, float_dtype: Any = np.float32
) -> Any:
    """Return the nest of specs that describes a space.

    Args:
        space: Discrete, MultiDiscrete, MultiBinary, Box, or Dict and Tuple of these.
        simplify_box_bounds: whether a Box whose lower bounds are all equal, and upper bounds too, gets scalar bounds.
            Default: True.
        float_dtype: dtype for all floats, float32 by default. None: floats keep their dtypes.

    Raises:
        SpaceError: the space is of another type (a ValueError).
    """
    if isinstance(space, spaces.Dict):
        return {
            key: tensor_spec_from_gym_space(part, simplify_box_bounds, float_dtype)
            for key, part in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        return tuple(tensor_spec_from_gym_space(part, simplify_box_bounds, float_dtype) for part in space.spaces)
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return BoundedTensorSpec((), space.dtype, start, start + int(space.n) - 1)
    if isinstance(space, spaces.MultiDiscrete):
        return BoundedTensorSpec(space.shape, space.dtype, space.start, space.start + space.nvec - 1)
    if isinstance(space, spaces.MultiBinary):
        return BoundedTensorSpec(space.shape, space.dtype, 0, 1)
    if isinstance(space, spaces.Box):
        is_float = np.issubdtype(space.dtype, np.floating)
        dtype = float_dtype if is_float and float_dtype is not None else space.dtype
        low, high = space.low, space.high
        if simplify_box_bounds and low.size and (low == low.flat[0]).all() and (high == high.flat[0]).all():
            low, high = low.flat[0], high.flat[0]
        return BoundedTensorSpec(space.shape, dtype, low, high)
    raise SpaceError(f"expected a space with a fixed layout, got {space}", got=str(space))


def space_of_specs(nest: Any) -> spaces.Space[Any]:
    """Return the Gymnasium space that a nest of specs describes; lists become Tuple spaces, leaves Box spaces."""
    if isinstance(nest, dict):
        return spaces.Dict([(key, space_of_specs(part)) for key, part in nest.items()])
    if isinstance(nest, (tuple, list)):
        return spaces.Tuple([space_of_specs(part) for part in nest])
    if isinstance(nest, BoundedTensorSpec):
        low, high = (np.broadcast_to(bound, nest.shape) for bound in (nest.minimum, nest.maximum))
    elif nest.dtype.kind == "f":
        low, high = (np.full(nest.shape, bound, nest.dtype) for bound in (-np.inf, np.inf))
    elif nest.dtype.kind == "b":
        low, high = np.zeros(nest.shape, np.bool_), np.ones(nest.shape, np.bool_)
    else:
        limits = np.iinfo(nest.dtype)
        low, high = (np.full(nest.shape, bound, nest.dtype) for bound in (limits.min, limits.max))
    return spaces.Box(low, high, nest.shape, nest.dtype.type)


def zeros_of(nest: Any, outer_dims: tuple[int, ...] = ()) -> Any:
    """Return arrays of zeros, of shapes (*outer_dims, *S), nested like the specs."""
    return map_structure(lambda spec: spec.numpy_zeros(outer_dims), nest)


def _numpy_dtype(dtype: Any) -> np.dtype[Any]:
    name = str(dtype)
    return np.dtype(name.removeprefix("torch.") if name.startswith("torch.") else dtype)
