"""The Gymnasium face: `VectorEnv`, a drop-in for `gymnasium.vector.AsyncVectorEnv`, and `make_vec`.

    env        Gymnasium's tuples and its rules about which call may follow which
    infos      info dicts of N envs to arrays
    nested     nested observations, in batches and row by row
    inside     what is sent to the workers
    make       by name
    batched    a vector env of vector envs, `BatchedVectorEnv`; batched_data: its reshaping

Stands above the waist: a batch of the pool comes in, Gymnasium's five-tuple goes out.
"""

from __future__ import annotations

from .batched import BatchedVectorEnv
from .env import VectorEnv
from .make import make_vec

__all__ = ["BatchedVectorEnv", "VectorEnv", "make_vec"]
