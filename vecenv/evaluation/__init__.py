"""Evaluation: plays one episode per seed with a policy, and summarises the episodes.

    evaluate, compare        seeds, policy --> `Episodes` --> EpisodeResult per seed --> `Evaluation`, `Comparison`

Files, in the order in which a call passes them:

    run            `evaluate` and `compare`: read the arguments, build the envs, collect the results
    seeds          check the seeds
    videos         the seeds that are recorded, and their files
    envs           the caller's vector env, or one that is built
    policy_rows    call the policy with the rows of the envs that need an action
    observations   the last observation of each env
    episodes       the loop: resets with seeds, steps, ends, cuts
    result         the results of one policy
    comparison     the differences between policies
    bootstrap      confidence intervals

It stands above the vector envs and beside the collectors.
"""

from __future__ import annotations

from .comparison import Comparison
from .result import EpisodeResult, Evaluation
from .run import compare, evaluate

__all__ = ["Comparison", "EpisodeResult", "Evaluation", "compare", "evaluate"]
