"""PoolRecipe: makes the pool of a front end, saves the front end together with its pool, and continues both.

    front end, pool -> PoolRecipe.save -> SavedState        the envs, and the values of the front end
    SavedState -> PoolRecipe.make -> Pool.start             the envs continue
    SavedState -> values_of -> front end                    the front end continues

A front end has one recipe, and its methods `state_dict`, `save` and `load_state_dict` consist of these calls.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from ...own_log import own_logger
from ...ray_options import RayOptions
from ...saved_state import SavedState, fingerprint
from ..host.replay import Snapshotter
from ..operations.engine import EnvSpaces
from ..options import PoolOptions
from ..recovery.resume import Resume
from ..spares.resets import SpareRule
from ..system.clock import now_ns
from .backends import make_pool
from .pool import Pool

__all__ = ["PoolRecipe", "SavedFrontEnd", "values_of"]

_LOG = own_logger()


@dataclasses.dataclass
class SavedFrontEnd:
    """The pickled part of a saved state.

    Attributes:
        resume: the envs.
        values: the values of the front end that the next results depend on.
    """

    resume: Resume
    values: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class PoolRecipe:
    """The arguments from which a front end makes its pool; see `make_pool`.

    Attributes:
        kind: a state is continued by front ends of the kind that has saved it. It is the name of a class.
    """

    kind: str
    backend: str | RayOptions
    env_fns: Sequence[Callable[[], Any]]
    options: PoolOptions
    snapshotter: Snapshotter
    adapt: Callable[[Any], Any] | None = None
    spares: SpareRule | None = None

    def make(self, saved: SavedState | None = None) -> Pool:
        """Make the pool, which continues a saved state if there is one.

        The spaces are compared, and the pickle of the state is read, when the pool starts.

        Raises:
            ConfigError: the state was saved by another kind, or with another number of envs or autoreset mode.
            Exception: as for `make_pool`.
        """
        options, resume = self.options, None
        if saved is not None:
            counts = {"num_envs": len(self.env_fns), "num_spare_envs": self._num_spare_envs}
            saved.check(kind=self.kind, **counts, autoreset_mode=options.autoreset.name)
            options = dataclasses.replace(options, rng_entropy=saved.header["rng_entropy"])
            resume = functools.partial(_read_resume, saved)
        parts: Any = {"adapt": self.adapt, "snapshotter": self.snapshotter, "spares": self.spares}
        return make_pool(self.backend, self.env_fns, options, resume=resume, **parts)

    def save(self, pool: Pool, get_values: Callable[[], dict[str, Any]]) -> SavedState:
        """Return the state of a pool of this recipe, and of its front end.

        Args:
            pool: open.
            get_values: returns the values of the front end, which can be pickled; called after the envs are saved.

        Raises:
            StateError: as for `Pool.save`.
        """
        began_ns = now_ns()
        resume = pool.save()
        num_repeated = sum(len(plan.entries) for job in resume.restore_jobs.values() for plan in job.attempts[:1])
        spaces = pool.spaces.observation_space, pool.spaces.action_space
        saved = SavedState.of(
            SavedFrontEnd(resume, get_values()),
            kind=self.kind,
            num_envs=pool.num_envs,
            num_spare_envs=self._num_spare_envs,
            autoreset_mode=self.options.autoreset.name,
            env=str(pool.properties.get("name")),
            observation_space=str(spaces[0]),
            action_space=str(spaces[1]),
            spaces=fingerprint(*spaces),
            implementation=pool.implementation,
            num_repeated=num_repeated,
            rng_entropy=pool.options.rng_entropy,
        )
        text = "saved %d envs: %d bytes, %d commands to repeat (%.3g s)"
        _LOG.info(text, pool.num_envs, len(saved.data), num_repeated, (now_ns() - began_ns) / 1e9)
        return saved

    @property
    def _num_spare_envs(self) -> int:
        return 0 if self.spares is None else self.spares.num_spares


def values_of(saved: SavedState) -> dict[str, Any]:
    """Return the values of the front end; the pool that continues the state must have started before."""
    values: dict[str, Any] = saved.value.values
    return values


def _read_resume(saved: SavedState, spaces: EnvSpaces | None, implementation: str) -> Resume:
    """Return the envs of a saved state if they have these spaces; no pickle is run before if the spaces are known."""
    if spaces is not None:
        saved.check_spaces(spaces.observation_space, spaces.action_space, implementation)
    resume: Resume = saved.value.resume
    return resume
