"""`evaluate` and `compare`: read the arguments, build the envs, play the episodes, collect the results."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..core.system.clock import limit_of
from ..errors import ConfigError, add_notes
from ..policies import check_policy, evaluation_mode
from ..saved_state import fingerprint
from ..values.checks import check_callable, check_choice, check_flag, check_seconds, check_whole
from ..vector.env import VectorEnv, check_options
from ..vector.shard_tasks import check_make_policy, check_shards
from .envs import Videos, open_envs
from .episode_log import EpisodeLog
from .episodes import Episodes
from .policy_rows import PolicyRows
from .result import Comparison, EpisodeResult, Evaluation
from .seeds import read_seeds
from .sharded_episodes import ShardedEpisodes

__all__ = ["compare", "evaluate"]

_IN_SHARDS = "evaluate: where='shards'"


@dataclasses.dataclass(frozen=True)
class _Settings:
    """Arguments of `evaluate` and `compare`; `read` checks them."""

    timeout: float | None
    max_steps: int | None
    rng: str | None
    batch_rows: int | None
    on_episode: Callable[[EpisodeResult], object] | None
    is_in_shards: bool

    @classmethod
    def read(cls, timeout: Any, max_steps: Any, rng: Any, batch_rows: Any, on_episode: Any, where: Any) -> _Settings:
        check_choice("where", where, ("caller", "shards"))
        if on_episode is not None:
            check_callable("on_episode", on_episode)
        check_choice("rng", rng, (None, "per-episode"))
        timeout = None if timeout is None else check_seconds("timeout", timeout)
        max_steps = None if max_steps is None else check_whole("max_steps", max_steps, 1)
        batch_rows = None if batch_rows is None else check_whole("batch_rows", batch_rows, 1)
        if timeout is not None and where == "shards":
            raise ConfigError(
                f"{_IN_SHARDS}: timeout is for policies in this process; use max_steps, or timeouts=... for steps",
                key="timeout",
            )
        return cls(timeout, max_steps, rng, batch_rows, on_episode, where == "shards")

    @property
    def limits(self) -> dict[str, Any]:
        """The limits of an episode."""
        return {"timeout": None if self.timeout is None else limit_of(self.timeout), "max_steps": self.max_steps}

    def check_envs(self, envs: VectorEnv) -> None:
        """Raise ConfigError if policies of shards cannot play in these envs."""
        if self.is_in_shards:
            check_shards(_IN_SHARDS, envs, "evaluate(env, policy)")

    def describe(self, envs: VectorEnv, policies: Sequence[Any]) -> dict[str, Any]:
        """Return what the episodes of an `EpisodeLog` have in common."""
        spaces = envs.pool.spaces.observation_space, envs.pool.spaces.action_space
        return {
            "env": _name_of(envs),
            "policies": [_policy_name(policy) for policy in policies],
            "observation_space": str(spaces[0]),
            "action_space": str(spaces[1]),
            "spaces": fingerprint(*spaces),
            "max_steps": self.max_steps,
            "timeout": self.timeout,
            "rng": self.rng,
            "batch_rows": self.batch_rows,
        }


def evaluate(
    env: Any,
    policy: Any = None,
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
    resume: str | os.PathLike[str] | None = None,
    where: str = "caller",
    make_policy: Callable[[], Any] | None = None,
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
        resume: a file for the results of ended episodes. If it exists, its episodes are not played again, so a program
            that was killed continues by the same call. The policy must be the same; the seeds may be more, and
            `num_envs` and **options may differ. The file contains pickles, so load only files that you trust. None
            (default): no file.
        where: 'caller' (default) calls `policy` here, once per round. 'shards': each shard of `backend="ray"` plays a
            part of the seeds with a policy of its own, made by `make_policy`, and only results travel; see docs/ray.md.
            Results are the same under the conditions above; each shard is a program with fewer envs. `timeout` is not
            supported there. Recurrent policies need no `get_state`: if a shard is lost, its successor plays the
            episodes that had not arrived from their beginning.
        make_policy: for where='shards', in the place of `policy`, without arguments; pickled by value, and called once
            in each shard. It returns a policy, which gets the ids of all envs.
        **options: options of `VectorEnv` for the envs that are built here, such as `num_workers` or `backend`.

    Returns:
        The results in the order of the seeds.

    Raises:
        ConfigError: an argument is wrong, a seed is given twice, a video exists, or the file `resume` is damaged or of
            another evaluation. No env was stepped.
        SpaceError: the policy's actions do not fit: wrong shape or dtype, too few, or NaN.
        StateError: results of `send` or `step_async` of the vector env are outstanding, or the policy or `on_episode`
            has stepped or reset it.
        DependencyError: videos need a package that is missing.
        Exception: an exception of the policy or of an env.

    All exceptions from the first reset on, Ctrl-C included, have an attribute `result`: the `Evaluation` of the
    episodes that had ended. Those that a shard has raised name it in their notes.

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
    settings = _Settings.read(timeout, max_steps, rng, batch_rows, on_episode, where)
    if settings.is_in_shards:
        check_make_policy(_IN_SHARDS, policy, make_policy)
        policy = make_policy
    elif make_policy is not None:
        raise ConfigError("evaluate: make_policy needs where='shards'", key="make_policy")
    else:
        check_policy(policy, "evaluate")
    log = EpisodeLog(resume, chosen)
    num_left = len(set(chosen) - log.seeds(0))
    num_envs = min(check_whole("num_envs", num_envs, 1), max(num_left, 1))
    files = Videos(videos, chosen, out, check_flag("overwrite", overwrite) or log.is_continued)
    with open_envs(env, num_envs, **settings.limits, videos=files, options=options) as envs:
        settings.check_envs(envs)
        with log.opened(settings.describe(envs, [policy])):
            found = _play(envs, policy, chosen, settings, log, 0, files)
        name = _name_of(envs)
    return Evaluation.of(name, chosen, found, files.paths)  # the last videos are written when the envs are closed


def _play(
    envs: VectorEnv,
    policy: Any,
    seeds: tuple[int, ...],
    settings: _Settings,
    log: EpisodeLog,
    number: int,
    files: Videos,
) -> dict[int, EpisodeResult]:
    """Play the episodes that the log lacks; `number` is the index of the policy there. Return all by seed.

    In shards, `policy` is the function that makes it.
    """
    found = log.results(number)
    left = tuple(seed for seed in seeds if seed not in found)
    calls: dict[str, Any] = {"has_generators": settings.rng is not None, "batch_rows": settings.batch_rows}
    episodes: Episodes | ShardedEpisodes
    if settings.is_in_shards:
        episodes = ShardedEpisodes(envs, policy, left, max_steps=settings.max_steps, **calls)
    else:
        rows = PolicyRows(policy, envs.pool.spaces.action_space, "evaluate", **calls)
        episodes = Episodes(envs, rows, left, **settings.limits)
    try:
        with contextlib.nullcontext() if settings.is_in_shards else evaluation_mode(policy):
            for episode in episodes.play():
                found[episode.seed] = episode
                log.add(number, episode)
                if settings.on_episode is not None:
                    settings.on_episode(episode)
    except BaseException as error:  # Ctrl-C, too
        vars(error)["result"] = Evaluation.of(_name_of(envs), seeds, found, files.paths)
        add_notes(error, [f"{len(found)} of {len(seeds)} episodes had ended; their results are error.result"])
        raise
    return found


def _name_of(envs: VectorEnv) -> str:
    return str(envs.pool.properties["name"])


def _policy_name(policy: Any) -> str:
    """Return the name of a policy, or of the function that makes it."""
    if isinstance(policy, functools.partial):
        policy = policy.func
    return str(getattr(policy, "__name__", type(policy).__name__))


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
    resume: str | os.PathLike[str] | None = None,
    where: str = "caller",
    make_policies: Sequence[Callable[[], Any]] | None = None,
    **options: Any,
) -> Comparison:
    """Evaluate two or more policies on the same episodes, and return the paired differences of their returns.

    Args:
        env, seeds, episodes, num_envs, timeout, max_steps, rng, batch_rows, on_episode, resume, where, **options: as
            for `evaluate`. The envs are built once, and `resume` is one file for all policies.
        *policies: at least two, each as for `evaluate`. The others are compared with the first one.
        make_policies: for where='shards', in the place of `policies`: at least two functions, each as `make_policy` of
            `evaluate`. The names of the policies are those of the functions.

    Raises:
        ConfigError, SpaceError, Exception: as from `evaluate`. From the first reset on, exceptions have an attribute
            `results`: a tuple with one `Evaluation` for each policy that was begun.
    """
    check_options("compare", options, inspect.signature(compare).parameters)
    settings = _Settings.read(timeout, max_steps, rng, batch_rows, on_episode, where)
    if make_policies is not None and not settings.is_in_shards:
        raise ConfigError("compare: make_policies needs where='shards'", key="make_policies")
    key = "make_policies" if settings.is_in_shards else "policies"
    if settings.is_in_shards:
        if policies:
            raise ConfigError(f"compare: where='shards': give {key}=[...] in the place of the policies", key="policies")
        policies = tuple(make_policies or ())
    if len(policies) < 2:
        raise ConfigError(f"compare: expected at least two {key}, got {len(policies)}", key=key)
    chosen = read_seeds(seeds, episodes)
    for policy in policies:
        if settings.is_in_shards:
            check_make_policy("compare: where='shards'", None, policy)
        else:
            check_policy(policy, "compare")
    log = EpisodeLog(resume, chosen)
    num_envs = min(check_whole("num_envs", num_envs, 1), len(chosen))
    no_videos = Videos(None, chosen, ".", False)
    limits: dict[str, Any] = {**settings.limits, "videos": no_videos}
    results: list[Evaluation] = []
    with open_envs(env, num_envs, **limits, options=options) as envs:
        settings.check_envs(envs)
        try:
            with log.opened(settings.describe(envs, policies)):
                for number, policy in enumerate(policies):
                    with open_envs(envs, num_envs, **limits, options={}):  # drops the results of episodes that were cut
                        found = _play(envs, policy, chosen, settings, log, number, no_videos)
                    results.append(Evaluation.of(_name_of(envs), chosen, found))
        except BaseException as error:  # Ctrl-C, too
            if "result" in vars(error):
                vars(error)["results"] = (*results, vars(error)["result"])
            raise
    return Comparison(tuple(_policy_name(policy) for policy in policies), tuple(results))
