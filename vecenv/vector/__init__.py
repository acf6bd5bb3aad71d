"""The Gymnasium front end: `VectorEnv`, a drop-in for `gymnasium.vector.AsyncVectorEnv`.

It stands above the pool: the pool returns batches, and this package turns them into Gymnasium's five-tuples.

    env        VectorEnv
    base       start, close, and Gymnasium's rules about the order of calls, with their errors
    results    one batch of the pool as the result of a step
    infos      N info dicts as one dict of arrays, without loss of values
    nested     nested observations, as batches and as single rows
    options    how options become those of the pool; keywords that have moved
    arguments  checks and conversions of the caller's arguments
    make       make_vec, register_vec: vector envs by registered name
    by_id      the entry points that Gymnasium's registry uses
    batched    BatchedVectorEnv: a vector env of vector envs; batched_data: its reshaping

    shard_tasks   a task in each shard: the driver's end
    shard_envs    the envs of a shard, for tasks
"""

from __future__ import annotations

from .batched import BatchedVectorEnv
from .env import VectorEnv
from .make import make_vec, register_vec

__all__ = ["BatchedVectorEnv", "VectorEnv", "make_vec", "register_vec"]
