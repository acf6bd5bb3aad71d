"""The Gymnasium face: `VectorEnv`, a drop-in for `gymnasium.vector.AsyncVectorEnv`, and what makes it.

    env        Gymnasium's tuples: steps and resets
    calling    calls, attributes, the end, and Gymnasium's rules about which call may follow which
    results    a batch becomes what a step returns
    infos      info dicts of N envs to arrays
    nested     nested observations, in batches and row by row
    inside     what is sent to the workers
    make       by name, also by Gymnasium's `make_vec`
    by_id      where Gymnasium finds that

Stands above the waist: a batch of the pool comes in, Gymnasium's five-tuple goes out.
"""

from __future__ import annotations

from .env import VectorEnv
from .make import make_vec, register_vec

__all__ = ["VectorEnv", "make_vec", "register_vec"]
