"""Spaces that Gymnasium lacks, and maps over nested spaces and their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from gymnasium import Space, spaces

__all__ = ["LooseSpace", "NoneSpace", "ObjectSpace"]


def map_space(change: Callable[[Space[Any]], Space[Any]], space: Space[Any]) -> Space[Any]:
    """Return a space in which `change` was applied to each part that is not a Dict or Tuple; key order is kept.

    >>> map_space(lambda part: spaces.Discrete(part.n + 1), spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]))
    Tuple(Discrete(3), Discrete(4))
    """
    if isinstance(space, spaces.Dict):
        return spaces.Dict([(key, map_space(change, part)) for key, part in space.spaces.items()])
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([map_space(change, part) for part in space.spaces])
    return change(space)


def map_by_space(change: Callable[[Space[Any], Any], Any], space: Space[Any], value: Any) -> Any:
    """Apply change(part of the space, part of the value) to each part; return the results, nested like the space.

    Parts are those that are not a Dict or Tuple. The value has dicts with at least the keys of the space, and sequences
    of the same length; else KeyError or ValueError is raised.
    """
    if isinstance(space, spaces.Dict):
        return {key: map_by_space(change, part, value[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map_by_space(change, part, own) for part, own in zip(space.spaces, value, strict=True))
    return change(space, value)


class NoneSpace(Space[None]):
    """A space whose only value is None, such as the action mask of an env with continuous actions.

    Its values need no column in a row and no message. A batch of B values is a tuple of B Nones, as for all
    spaces that Gymnasium does not batch as arrays.

    Example:
        >>> space = NoneSpace()
        >>> space.contains(None), space.contains(0), space.sample() is None
        (True, False, True)
    """

    #: Read by `core.layout.spec`, which does not import this class.
    holds_only_none: ClassVar[bool] = True

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(None, None, seed)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> None:
        """Return None; the arguments have no effect."""

    def contains(self, x: Any) -> bool:
        return x is None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NoneSpace)

    def __hash__(self) -> int:
        return hash(NoneSpace)

    def __repr__(self) -> str:
        return "NoneSpace()"


class ObjectSpace(Space[Any]):
    """Replaces a declared space that the env's values do not fit; values are then sent as pickled objects.

    Attributes:
        declared: the declared space; None if the env declares none.
    """

    def __init__(self, declared: Space[Any] | None) -> None:
        super().__init__(None, None)
        self.declared = declared

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        """Return a sample of the declared space, or None without one."""
        return None if self.declared is None else self.declared.sample()

    def contains(self, x: Any) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectSpace) and bool(self.declared == other.declared)

    def __hash__(self) -> int:
        return hash(ObjectSpace)

    def __repr__(self) -> str:
        return f"ObjectSpace({self.declared!r})"


#: The former name, kept for one release.
LooseSpace = ObjectSpace
