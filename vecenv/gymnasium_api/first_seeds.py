"""Seeds for the generators of envs whose first reset has no seed.

    Pool.reset without seeds -> CommandFlag.DRAWN -> seed_generators -> env.reset(seed=None) -> is_seeded_by -> the row

An unseeded reset reaches the env as such. So that it can be repeated, an env that has no generator yet gets one from
a seed that the parent drew, as the property `np_random` of Gymnasium would make it. A generator that exists is kept.

Most envs have one generator, in `env.unwrapped`. An adapter whose env has it elsewhere defines the method
`generator_owners(first)`, which returns the envs with the generators. If these will only be built by the reset, it
keeps the drawn seed `first`, seeds them then, and returns [].
"""

from __future__ import annotations

from typing import Any

from gymnasium.utils import seeding

from ..values.own_attributes import MISSING, get_own_attr

__all__ = ["is_seeded_by", "seed_generators"]


def seed_generators(env: Any, first: int) -> bool:
    """Make the generators that an env lacks, number i from the seed `first + i`; return whether it lacked one."""
    has_made = False
    for seed, owner in enumerate(_owners(env, first), first):
        if get_own_attr(owner, "_np_random", MISSING) is None:
            owner._np_random, owner._np_random_seed = seeding.np_random(seed)
            has_made = True
    return has_made


def is_seeded_by(env: Any, first: int) -> bool:
    """Return whether all generators of an env were made from the seeds that `seed_generators` gives."""
    owners = _owners(env, first)
    return bool(owners) and all(get_own_attr(one, "_np_random_seed") == seed for seed, one in enumerate(owners, first))


def _owners(env: Any, first: int) -> list[Any]:
    """Return the objects whose attribute `_np_random` is the generator of an env."""
    if hasattr(type(env), "generator_owners"):
        return [owner for part in env.generator_owners(first) for owner in _owners(part, first)]
    base = getattr(env, "unwrapped", env)
    return [base] if base is env else _owners(base, first)
