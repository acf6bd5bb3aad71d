"""collect and Collector: batches of transitions from a vector env and a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import ConfigError
from ..policies import PolicyCaller
from ..values.checks import check_choice, check_flag, check_whole
from ..vector import VectorEnv
from ..vector.env import describe_wrong_vector_env
from ..vector.shard_tasks import check_make_policy, check_shards
from .batch_filler import BatchFiller
from .columns import Columns
from .interrupts import DelayedInterrupts
from .plans import EpisodePlan, FlatPlan, Plan, TimeMajorPlan
from .progress import Progress, prepare, progress_of, reset_envs
from .shard_work import ShardWork
from .transitions import Transitions

__all__ = ["Collector", "collect"]

#: Rows per episode before the lengths of episodes are known; the columns grow.
_ROWS_PER_EPISODE = 64


def collect(
    envs: VectorEnv,
    policy: Any,
    *,
    steps: int | None = None,
    episodes: int | None = None,
    time_major: bool = False,
    min_count: int | None = None,
    overlap: bool = False,
    seed: int | Sequence[int | None] | None = None,
) -> Transitions:
    """Step envs with a policy and return the transitions.

    The first call resets the envs. Later calls, and collectors of the same envs, continue where the last one stopped,
    in the middle of episodes. If other calls have stepped or reset the envs in between, all envs are reset.

    Example:
        >>> import gymnasium, vecenv
        >>> envs = vecenv.VectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2, backend="serial")
        >>> def policy(obs, env_id):
        ...     return (obs[:, 2] > 0).astype(int)
        >>> batch = vecenv.collect(envs, policy, steps=100, seed=0)
        >>> batch.obs.shape, float(batch.rewards.sum())
        ((100, 4), 100.0)
        >>> vecenv.collect(envs, policy, episodes=3).episode_lengths.shape
        (3,)
        >>> envs.close()

    Args:
        envs: with any backend and autoreset mode; no step or reset is outstanding.
        policy: a callable `policy(obs, env_id)` that returns actions, or (actions, extras) with a dict of further
            columns, arrays (B, ...); see `vecenv.policies`. It is asked once for each transition, so it never gets
            final observations. Torch modules stay in the mode that they are in, training or evaluation. A method
            `begin(env_ids)` is also called for envs in the middle of an episode that another policy began. A method
            `bootstrap(obs, env_id)` is for `Transitions.bootstrap`.
        steps: number of transitions of all envs together. Either `steps` or `episodes` must be given.
        episodes: number of whole episodes: the first ones that begin during this call, so short episodes are not
            preferred. Envs in the middle of an episode are reset first: the first min(episodes, N) of them. At the end,
            envs wait for the last ones.
        time_major: return columns (T, N), with T = steps / N consecutive transitions of each env, for on-policy
            methods. An env that has its T transitions waits for the others. If False (default), columns are (B,): one
            round after the other, each in the order of env ids.
        min_count: None (default): each round waits for all envs, and the rows are a function of the seed. A number: a
            round begins as soon as this number of envs have finished; the order of rows depends on timing.
        overlap: True: the envs of even and of odd ids are two groups, and the policy computes the actions of one group
            while the other one steps. The rows are a function of the seed, too. This pays if the time of a policy
            depends on the number of rows, and if the policy leaves cores to the envs.
        seed: resets all envs first, as `VectorEnv.reset(seed=seed)`. None (default): no reset without need.

    Raises:
        ConfigError: the arguments do not fit together.
        SpaceError: the policy's answer has wrong shapes or dtypes, too few rows, or NaN among the actions.
        StateError: results of `send` or `step_async` are outstanding, or the policy has stepped or reset `envs`.
        ClosedEnvironmentError: the vector env is closed.
        Exception: an exception of the policy or of an env. All exceptions during the collection, KeyboardInterrupt
            included, have an attribute `collected`: a flat `Transitions` of all complete transitions of this call.
            After an exception of the policy, the next call continues there. After an exception of an env or worker, it
            begins with a reset; the results of the interrupted round are lost.
    """
    if (steps is None) == (episodes is None):
        raise ConfigError(
            f"collect: expected either steps or episodes, got steps={steps!r}, episodes={episodes!r}", key="steps"
        )
    work = _Work(envs, policy, "collect", min_count, overlap, seed)
    if episodes is not None:
        if check_flag("time_major", time_major):
            raise ConfigError("collect: time-major batches have `steps`; episodes differ in length", key="time_major")
        return work.collect_episodes(check_whole("episodes", episodes, 1))
    return work.collect_steps(*check_steps("steps", steps, time_major, work.num_envs))


class Collector:
    """An endless iterator over batches of transitions.

    Each batch continues where the last one stopped. Between two batches the program can change the policy or use the
    envs. If it steps or resets the envs, the next batch begins with a reset of all envs. With `sync=False` rollouts are
    under way, and other calls of the envs wait for them.

    Example:
        >>> import gymnasium, itertools, vecenv
        >>> envs = vecenv.VectorEnv([lambda: gymnasium.make("CartPole-v1")] * 4, backend="serial")
        >>> def policy(obs, env_id):
        ...     return (obs[:, 2] > 0).astype(int), {"angle": obs[:, 2]}
        >>> collector = vecenv.Collector(envs, policy, batch_steps=64, time_major=True, seed=0)
        >>> for batch in itertools.islice(collector, 2):
        ...     print(batch.obs.shape, batch.extras["angle"].shape)
        (16, 4, 4) (16, 4)
        (16, 4, 4) (16, 4)
        >>> envs.close()
    """

    def __init__(
        self,
        envs: VectorEnv,
        policy: Any = None,
        *,
        batch_steps: int,
        time_major: bool = False,
        min_count: int | None = None,
        overlap: bool = False,
        seed: int | Sequence[int | None] | None = None,
        where: str = "caller",
        make_policy: Callable[[], Any] | None = None,
        sync: bool = True,
        returns_only: bool = False,
    ) -> None:
        """Check the arguments; the envs are not used before the first batch.

        Args:
            envs, time_major, min_count, overlap: as for `collect`.
            policy: as for `collect`; always this very object, in this process.
            batch_steps: number of transitions in a batch, of all envs together.
            seed: resets all envs before the first batch; see `collect`.
            where: 'caller' (default) calls `policy` here, once per round. 'shards': each shard of `backend="ray"` has a
                policy of its own, made by `make_policy`, and sends a whole rollout back; see docs/ray.md.
            make_policy: for where='shards', without arguments; pickled by value, and called once in each shard. It
                returns a policy as for `collect`, which gets the ids of all envs. Further methods of the policy are
                optional: `set_weights(weights)` for `Collector.set_weights`. `get_state()` and `set_state(state)`, for
                any object that pickles, repeat a rollout exactly if its shard is lost: generators, recurrent states.
            sync: for where='shards'. True (default): a batch has one rollout of every shard, of batch_steps / N steps
                of each env, ordered by env id. False: a batch has one rollout of one shard, in the order in which they
                finish, and its columns are the envs of that shard. The shard has begun the next rollout then.
            returns_only: for where='shards'. True: observations and actions stay in the shards, and only rewards, flags
                and the returns of episodes travel. `obs`, `actions`, `next_obs` and `bootstrap` of the batches are
                None, and there are no `extras`. False (default): whole transitions travel.

        With where='shards', all rollouts of a batch use the weights that were set before it was begun. If the answer of
        the policy for a row depends on that row alone, a time-major batch equals that of `Collector(envs, policy)`, bit
        for bit. Flat batches are the same rows, one round after the other, so `batch_steps` is a multiple of N here.
        Ctrl-C ends the wait, and no transition is lost: the next call returns the same batch.

        Raises:
            ConfigError: the arguments do not fit together, or `make_policy` does not pickle.
        """
        check_choice("where", where, ("caller", "shards"))
        check_flag("sync", sync)
        check_flag("returns_only", returns_only)
        if where == "caller":
            if make_policy is not None or not sync or returns_only:
                name = "make_policy" if make_policy is not None else "returns_only=True" if sync else "sync=False"
                raise ConfigError(f"Collector: {name} needs where='shards'", key=name.partition("=")[0])
            self._work: _Work | ShardWork = _Work(envs, policy, "Collector", min_count, overlap, seed)
        else:
            _check_shards(envs, policy, make_policy, min_count)
            check_flag("overlap", overlap)
            self._work = ShardWork(envs, make_policy, seed, sync=sync, overlap=overlap, returns_only=returns_only)
        self._steps, self._is_time_major = check_steps("batch_steps", batch_steps, time_major, self._work.num_envs)
        if where == "shards":
            check_steps("batch_steps", batch_steps, True, self._work.num_envs)

    def __iter__(self) -> Iterator[Transitions]:
        return self

    def __next__(self) -> Transitions:
        """Collect the next batch; raises as `collect` does. It never raises StopIteration.

        With where='shards', an exception of a policy has the class that it has there. Its notes name the shard and its
        place, and `collected` has the transitions of all shards in this batch.
        """
        return self._work.collect_steps(self._steps, self._is_time_major)

    def set_weights(self, weights: Any) -> int:
        """Send weights to the policies of all shards, for the rollouts that begin later; return their version.

        Args:
            weights: any object that pickles, such as nested arrays; passed to `set_weights` of each policy, once.

        Returns:
            1 for the first weights, and so on: `Transitions.version` of the batches that are made with them.

        Raises:
            ConfigError: the collector calls a policy in this process, or the weights do not pickle. A policy without
                `set_weights` is an error of the next batch.
        """
        if isinstance(self._work, ShardWork):
            return self._work.set_weights(weights)
        raise ConfigError(
            "Collector.set_weights: this collector calls the policy in this process, so change that object; "
            "where='shards' has policies elsewhere",
            key="where",
        )


def _check_shards(envs: Any, policy: Any, make_policy: Any, min_count: Any) -> None:
    what = "Collector: where='shards'"
    _check_vector_env("Collector", envs)
    check_make_policy(what, policy, make_policy)
    if min_count is not None:
        raise ConfigError(f"{what}: min_count is for policies in this process; leave it out", key="min_count")
    check_shards(what, envs, "Collector(envs, policy)")


def check_steps(name: str, steps: Any, time_major: Any, num_envs: int) -> tuple[int, bool]:
    """Return the checked number of transitions and `time_major`; ConfigError if they do not fit together."""
    steps, time_major = check_whole(name, steps, 1), check_flag("time_major", time_major)
    if time_major and steps % num_envs:
        raise ConfigError(
            f"{name}: expected a multiple of the {num_envs} envs, which get equally many transitions each, got {steps}",
            key=name,
        )
    return steps, time_major


def _check_vector_env(what: str, envs: Any) -> None:
    if not isinstance(envs, VectorEnv):
        got = describe_wrong_vector_env(envs)
        raise ConfigError(f"{what}: envs: expected a vecenv.VectorEnv, {got}", key="envs")


class _Work:
    def __init__(self, envs: Any, policy: Any, what: str, min_count: Any, overlap: Any, seed: Any) -> None:
        _check_vector_env(what, envs)
        self._what = what
        self._envs = envs
        self.num_envs = envs.num_envs
        spaces = envs.pool.spaces
        self._policy = PolicyCaller(policy, spaces.action_space, what, reward_shape=spaces.reward_shape)
        self._min_count = None if min_count is None else check_whole("min_count", min_count, 1)
        self._overlap = check_flag("overlap", overlap)
        if self._min_count is not None and self._min_count > self.num_envs:
            raise ConfigError(f"min_count: there are {self.num_envs} envs, got {min_count}", key="min_count")
        if self._min_count is not None and self._overlap:
            raise ConfigError(f"{what}: overlap has fixed groups; min_count has none", key="overlap")
        self._seed = seed
        progress_of(envs)  # raises the error of observations without columns

    @property
    def _progress(self) -> Progress:
        return progress_of(self._envs)  # `load_state_dict` replaces it

    def collect_steps(self, steps: int, is_time_major: bool) -> Transitions:
        self._prepare()
        if not is_time_major:
            return self._fill(FlatPlan(self.num_envs, steps, self._progress.first), steps, None)
        return self._fill(TimeMajorPlan(self.num_envs, steps // self.num_envs), steps, self.num_envs)

    def collect_episodes(self, episodes: int) -> Transitions:
        self._prepare()
        progress = self._progress
        is_needed = np.arange(self.num_envs) < episodes
        env_ids = np.flatnonzero(is_needed & ~progress.is_fresh & ~progress.has_ended)
        if len(env_ids):
            reset_envs(self._envs, progress, env_ids)
        return self._fill(EpisodePlan(self.num_envs, episodes), episodes * _ROWS_PER_EPISODE, None)

    def _prepare(self) -> None:
        prepare(self._envs, self._progress, self._what, self._seed)
        self._seed = None

    def _fill(self, plan: Plan, num_rows: int, num_columns: int | None) -> Transitions:
        envs, progress = self._envs, self._progress
        columns = Columns(progress, self._policy.spec, num_rows, num_columns is not None and self._policy.can_bootstrap)
        with DelayedInterrupts() as interrupts:
            filler = BatchFiller(envs, self._policy, progress, plan, columns, interrupts)
            try:
                if self._min_count is not None:
                    filler.run_by_finish(self._min_count)
                else:
                    filler.run_ordered(overlap=self._overlap)
                if columns.has_bootstrap:
                    filler.estimate_last_rows()
                interrupts.allow()
            except BaseException as error:
                filler.settle(error)
                if not filler.is_consistent:
                    progress.is_known, progress.is_broken = False, True
                complete = columns.complete_rows(filler.incomplete_rows)
                vars(error)["collected"] = columns.finish(progress, complete)
                progress.num_batches = envs.num_batches
                raise
            progress.num_batches = envs.num_batches
            if isinstance(plan, FlatPlan):
                progress.first = plan.first
            return columns.finish(progress, plan.num_rows, num_columns)
