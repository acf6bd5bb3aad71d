"""Collect transitions from a vector env with a policy.

    collector     `collect` and the iterator `Collector`: arguments, batches, interrupts
    batch_filler  the rounds of one batch: policy, send, receive, store
    plans         which envs step next, and in which rows of the batch their transitions go
    progress      the state of the envs between two batches; the columns of observations
    columns       the arrays of a batch that is being filled
    transitions   a complete batch
    interrupts    Ctrl-C takes effect between two rounds

    shard_work    policies in shards: requests for rollouts, and batches that are made of them
    rollouts      the other end, in a shard: a policy and a `BatchFiller`

It stands above the vector envs and uses their public methods only.
"""

from __future__ import annotations

from .collector import Collector, collect
from .transitions import Transitions

__all__ = ["Collector", "Transitions", "collect"]
