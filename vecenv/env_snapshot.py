"""EnvSnapshot: the state of one env between two steps, which can be put into other envs of the same classes."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, fields

from .values.content import content_of

__all__ = ["EnvSnapshot"]


@dataclass(frozen=True, eq=False, repr=False)
class EnvSnapshot:
    """The state of one env between two steps; `VectorEnv.get_states` returns it, and `set_states` puts it into envs.

    It is immutable and can be pickled; load only pickles that you trust. Snapshots with equal contents are equal and
    have the same hash, so they can be keys of a dict. The contents are the state of the env, its random generators, its
    last observation, and the steps, the return and the seed of its episode. The generator of torch is part of them only
    if the process of the env has imported torch. The duration of the episode does not count.

    Attributes:
        layers: the names of the classes of the env and of the envs inside it, outermost first.
        spaces: a digest of its spaces.
        state: the state of the env and of its random generators.
        obs: the bytes of each leaf of its last observation.
        objects: the pickled values of its last observation without a fixed layout; b"" if there are none.
        length, seed: number of steps of its episode so far, and the seed of this episode, or -1.
        returns: the bytes of the sum of its rewards, float64 (*K).
        is_over: whether its episode is over.
        age_ns: duration of its episode so far in nanoseconds.
    """

    layers: tuple[str, ...]
    spaces: str
    state: bytes
    obs: tuple[bytes, ...]
    objects: bytes
    length: int
    seed: int
    returns: bytes
    is_over: bool
    age_ns: int

    @property
    def nbytes(self) -> int:
        """Size of the state and of the last observation in bytes."""
        return len(self.state) + len(self.objects) + sum(map(len, self.obs))

    @functools.cached_property
    def _digest(self) -> bytes:
        plain = self.layers, self.spaces, self.obs, self.length, self.seed, self.returns, self.is_over
        *rngs, state = content_of(self.state)
        parts = (plain, rngs, content_of(state), content_of(self.objects) if self.objects else None)
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EnvSnapshot):
            return NotImplemented
        return self is other or self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    def __getstate__(self) -> dict[str, object]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # a pickle needs no digest

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.layers[-1]}, length={self.length}, nbytes={self.nbytes})"
