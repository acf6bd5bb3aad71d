"""Evaluation: plays one episode per seed with a policy, and summarises the episodes.

    evaluate, compare        seeds, policy --> `Episodes` --> EpisodeResult per seed --> `Evaluation`, `Comparison`

Files, in the order in which a call passes them:

    run            `evaluate` and `compare`: read the arguments, build the envs, collect the results
    seeds          check the seeds
    envs           the caller's vector env, or one that is built; the files of videos
    policy_rows    the last observations; call the policy with those of the envs that need an action
    episodes       the loop: resets with seeds, steps, ends, cuts
    result         the results of one policy, the differences between policies, confidence intervals
    episode_log    the file of a call with `resume`

    sharded_episodes   policies in shards: seeds for the shards, and the episodes that arrive from them
    shard_player       the other end, in a shard: a policy and `Episodes`

It stands above the vector envs and beside the collectors.
"""

from __future__ import annotations

from .result import Comparison, EpisodeResult, Evaluation
from .run import compare, evaluate

__all__ = ["Comparison", "EpisodeResult", "Evaluation", "compare", "evaluate"]
