"""Spaces that Gymnasium lacks, and maps over nested spaces and their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from gymnasium import Space, spaces

__all__ = ["LooseSpace", "NoneSpace", "ObjectSpace"]


def map_space(change: Callable[[Space[Any]], Space[Any]], space: Space[Any]) -> Space[Any]:
    """Return a space with each part changed that is neither Dict nor Tuple; the order of keys stays.

    >>> map_space(lambda part: spaces.Discrete(part.n + 1), spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]))
    Tuple(Discrete(3), Discrete(4))
    """
    if isinstance(space, spaces.Dict):
        return spaces.Dict([(key, map_space(change, part)) for key, part in space.spaces.items()])
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([map_space(change, part) for part in space.spaces])
    return change(space)


def map_by_space(change: Callable[[Space[Any], Any], Any], space: Space[Any], value: Any) -> Any:
    """Return a value with change(part of the space, part of the value) for each part; nested as the space is.

    Args:
        change: called with each part of the space that is neither Dict nor Tuple.
        space: the structure.
        value: dicts with at least the keys of the space, and sequences of as many parts.

    Raises:
        KeyError, ValueError: a dict lacks a key; a sequence has another length.
    """
    if isinstance(space, spaces.Dict):
        return {key: map_by_space(change, part, value[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map_by_space(change, part, own) for part, own in zip(space.spaces, value, strict=True))
    return change(space, value)


class NoneSpace(Space[None]):
    """The space whose one value is None, such as the action mask of an env with continuous actions.

    On its way out of a worker it takes no column and no mail. In a batch of B it is a tuple of B Nones, as
    Gymnasium batches every space without arrays.

    Example:
        >>> space = NoneSpace()
        >>> space.contains(None), space.contains(0), space.sample() is None
        (True, False, True)
    """

    holds_only_none: ClassVar[bool] = True
    """Read by `core.spec`, which knows no space of ours."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(None, None, seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: there is nothing to make an array of."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> None:
        """Give None; the arguments are those of every space and have no effect."""

    def contains(self, x: Any) -> bool:
        """Tell whether the value is None."""
        return x is None

    def to_jsonable(self, sample_n: Any) -> list[Any]:
        """Give the samples as they are."""
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[Any]:
        """Give the samples as they are."""
        return list(sample_n)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NoneSpace)

    def __hash__(self) -> int:
        return hash(NoneSpace)

    def __repr__(self) -> str:
        return "NoneSpace()"


class ObjectSpace(Space[Any]):
    """Stands for a space that an env declares and its values do not keep to: they travel as objects, as they are.

    Attributes:
        declared: the space; None if the env declares none.
    """

    def __init__(self, declared: Space[Any] | None) -> None:
        super().__init__(None, None)
        self.declared = declared

    @property
    def is_np_flattenable(self) -> bool:
        """False: nothing is known of what values look like."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        """Sample the declared space; None without one."""
        return None if self.declared is None else self.declared.sample()

    def contains(self, x: Any) -> bool:
        """True."""
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectSpace) and bool(self.declared == other.declared)

    def __hash__(self) -> int:
        return hash(ObjectSpace)

    def __repr__(self) -> str:
        return f"ObjectSpace({self.declared!r})"


#: The former name, for one release.
LooseSpace = ObjectSpace
