"""The Gymnasium face: `VectorEnv`, a drop-in for `gymnasium.vector.AsyncVectorEnv`, and what makes it.

    env        Gymnasium's tuples: steps and resets
    calls      calls and attributes
    base       the start, the end, and Gymnasium's rules about which call may follow which
    seeds      what resets are given, and were
    results    a batch becomes what a step returns
    infos      info dicts of N envs to arrays; dtypes: dtypes that hold several
    nested     nested observations, in batches and row by row
    arguments  what a caller gives, checked
    errors     vecenv's and Gymnasium's at once
    make       by name, also by Gymnasium's `make_vec`
    by_id      where Gymnasium finds that
    batched    a vector env of vector envs, `BatchedVectorEnv`; batched_calls, batched_data: its calls, its reshaping

Stands above the waist: a batch of the pool comes in, Gymnasium's five-tuple goes out.
"""

from __future__ import annotations

from .batched import BatchedVectorEnv
from .env import VectorEnv
from .make import make_vec, register_vec

__all__ = ["BatchedVectorEnv", "VectorEnv", "make_vec", "register_vec"]
