"""`evaluate` and `compare`: read the arguments, build the envs, play the episodes, collect the results."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from ..core.system.clock import limit_of
from ..errors import ConfigError, add_notes
from ..policies import check_policy, evaluation_mode
from ..values.checks import check_callable, check_choice, check_seconds, check_whole
from ..vector.env import check_options
from .envs import Videos, open_envs
from .episodes import Episodes
from .policy_rows import PolicyRows
from .result import Comparison, EpisodeResult, Evaluation
from .seeds import read_seeds

__all__ = ["compare", "evaluate"]


def evaluate(
    env: Any,
    policy: Any,
    *,
    seeds: Iterable[int] | None = None,
    episodes: int | None = None,
    num_envs: int = 8,
    timeout: float | None = None,
    max_steps: int | None = None,
    videos: int | Iterable[int] | None = None,
    out: Any = "video",
    overwrite: bool = False,
    rng: str | None = None,
    batch_rows: int | None = None,
    on_episode: Callable[[EpisodeResult], object] | None = None,
    **options: Any,
) -> Evaluation:
    """Play exactly one episode per seed with a policy, in several envs at once, and return all results.

    A free env takes the next seed. Envs without a seed are not stepped. Short episodes count as much as long ones.

    Each episode begins with `reset(seed=...)`. Its result does not depend on the number of envs and workers if two
    conditions hold. First, the env's episode is a function of its seed and the actions: state that survives a reset,
    such as running means of a wrapper, breaks that. Second, the policy's answer to a row depends on that row alone.
    Networks meet this up to the last bits only: BLAS libraries choose other kernels for other batch sizes.
    `batch_rows=K` gives each call the same number of rows, which most libraries answer alike; `batch_rows=1` is exact.
    With the same `num_envs` and without `timeout` the batches are always the same, so a repeated run on the same
    machine gives the same bits.

    Args:
        env: the id of a registered env, a function that builds an env, or a `VectorEnv` of any autoreset mode. A vector
            env of the caller stays open. Reset it before its next use.
        policy: any callable `policy(obs, env_id) -> actions` or `(actions, extras)`, see `vecenv.policies`. Torch
            modules are in evaluation mode until the end: the policy, the object whose method it is, the attributes of
            that object, and the variables that a function uses. Extras are dropped.
        seeds: one per episode: distinct whole numbers from 0 to 2**31 - 1. The results have this order.
        episodes: a number of episodes in place of `seeds`; their seeds are 0, 1, ..., episodes - 1.
        num_envs: number of envs that are built, at most one per seed. Not used with a vector env of the caller.
        timeout: seconds that the steps of an episode may take, from each request to the receipt of its answer. Resets
            and the policy do not count. An episode over this limit is cut: its result is marked 'timeout', and its env
            is reset by force. Envs that are built here also get it as their limit of a step, so that a hung
            worker is replaced. None (default): no limit. Episodes that are cut by time differ from run to run.
        max_steps: largest number of steps of an episode. Longer ones are cut and marked 'max_steps'. None (default): no
            limit, and one RuntimeWarning when an episode lasts 100,000 steps.
        videos: seeds whose episodes are recorded, or a number K for the first K seeds. The envs must be built here, and
            render RGB arrays; envs that are given by id are made with `render_mode='rgb_array'`. Files are
            `<out>/<env>-seed<seed>.mp4`. Writing a file is part of the last step.
        out: folder of the videos, made if missing.
        overwrite: replace video files that exist. If False (default), they are refused before the first step.
        rng: 'per-episode' calls `policy(obs, env_id, generators)` with a list of one `numpy.random.Generator` per row,
            made from the seed of its episode. So a stochastic policy gives the same results for any number of envs. The
            generators are independent of those of the envs. A torch module gets arrays then, not tensors. None
            (default): no generators.
        batch_rows: number of rows of each call of the policy. Missing rows repeat the first row with its env id, and
            their actions are dropped. So a policy with a state per env has to compute the new states of all rows from
            the old ones. None (default): one row per env that needs an action.
        on_episode: called with each `EpisodeResult` when its episode has ended, for example by a progress bar.
        **options: options of `VectorEnv` for the envs that are built here, such as `num_workers` or `backend`.

    Returns:
        The results in the order of the seeds.

    Raises:
        ConfigError: an argument is wrong, a seed is given twice, or a video exists. No env was stepped.
        SpaceError: the policy's actions do not fit: wrong shape or dtype, too few, or NaN.
        StateError: results of `send` or `step_async` of the vector env are outstanding, or the policy or `on_episode`
            has stepped or reset it.
        DependencyError: videos need a package that is missing.
        Exception: an exception of the policy or of an env.

    All exceptions from the first reset on, Ctrl-C included, have an attribute `result`: the `Evaluation` of the
    episodes that had ended.

    Example:
        >>> import numpy as np, vecenv
        >>> class Upright:
        ...     def __call__(self, obs, env_id):
        ...         return (obs[:, 2] > 0).astype(np.int64)
        >>> result = vecenv.evaluate("CartPole-v1", Upright(), seeds=range(4), num_envs=2, backend="serial")
        >>> result.lengths.tolist(), bool(result.terminated.all())
        ([41, 51, 35, 36], True)
    """
    check_options("evaluate", options, inspect.signature(evaluate).parameters)
    chosen = read_seeds(seeds, episodes)
    check_policy(policy, "evaluate")
    if on_episode is not None:
        check_callable("on_episode", on_episode)
    check_choice("rng", rng, (None, "per-episode"))
    timeout = None if timeout is None else limit_of(check_seconds("timeout", timeout))
    max_steps = None if max_steps is None else check_whole("max_steps", max_steps, 1)
    batch_rows = None if batch_rows is None else check_whole("batch_rows", batch_rows, 1)
    num_envs = min(check_whole("num_envs", num_envs, 1), len(chosen))
    files = Videos(videos, chosen, out, overwrite)
    found: dict[int, EpisodeResult] = {}
    with open_envs(env, num_envs, timeout=timeout, max_steps=max_steps, videos=files, options=options) as envs:
        name = str(envs.pool.properties["name"])
        rows = PolicyRows(
            policy, envs.pool.spaces.action_space, "evaluate", has_generators=rng is not None, batch_rows=batch_rows
        )
        try:
            with evaluation_mode(policy):
                for episode in Episodes(envs, rows, chosen, timeout=timeout, max_steps=max_steps).play():
                    found[episode.seed] = episode
                    if on_episode is not None:
                        on_episode(episode)
        except BaseException as error:  # Ctrl-C, too
            vars(error)["result"] = Evaluation.of(name, chosen, found, files.paths)
            add_notes(error, [f"{len(found)} of {len(chosen)} episodes had ended; their results are error.result"])
            raise
    return Evaluation.of(name, chosen, found, files.paths)


def compare(
    env: Any,
    *policies: Any,
    seeds: Iterable[int] | None = None,
    episodes: int | None = None,
    num_envs: int = 8,
    timeout: float | None = None,
    max_steps: int | None = None,
    rng: str | None = None,
    batch_rows: int | None = None,
    on_episode: Callable[[EpisodeResult], object] | None = None,
    **options: Any,
) -> Comparison:
    """Evaluate two or more policies on the same episodes, and return the paired differences of their returns.

    Args:
        env, seeds, episodes, num_envs, timeout, max_steps, rng, batch_rows, on_episode, **options: as for `evaluate`.
            The envs are built once.
        *policies: at least two, each as for `evaluate`. The others are compared with the first one.

    Raises:
        ConfigError, SpaceError, Exception: as from `evaluate`. From the first reset on, exceptions have an attribute
            `results`: a tuple with one `Evaluation` for each policy that was begun.
    """
    check_options("compare", options, inspect.signature(compare).parameters)
    if len(policies) < 2:
        raise ConfigError(f"compare: expected at least two policies, got {len(policies)}", key="policies")
    chosen = read_seeds(seeds, episodes)
    for policy in policies:
        check_policy(policy, "compare")
    limit = None if timeout is None else limit_of(check_seconds("timeout", timeout))
    num_envs = min(check_whole("num_envs", num_envs, 1), len(chosen))
    no_videos = Videos(None, chosen, ".", False)
    arguments: dict[str, Any] = {"timeout": timeout, "max_steps": max_steps, "rng": rng, "batch_rows": batch_rows}
    results: list[Evaluation] = []
    with open_envs(env, num_envs, timeout=limit, max_steps=max_steps, videos=no_videos, options=options) as envs:
        try:
            for policy in policies:
                results.append(evaluate(envs, policy, seeds=chosen, on_episode=on_episode, **arguments))
        except BaseException as error:  # Ctrl-C, too
            if "result" in vars(error):
                vars(error)["results"] = (*results, vars(error)["result"])
            raise
    names = tuple(str(getattr(policy, "__name__", type(policy).__name__)) for policy in policies)
    return Comparison(names, tuple(results))
