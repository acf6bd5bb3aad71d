"""Episodes: the loop of an evaluation, exactly one episode per seed.

States of an env:

    free        reset with the next seed, if one is left      --> resetting
    resetting   first observation                             --> ready
    ready       policy, step                                  --> stepping
    stepping    answer                                        --> ready; free if the episode is over, or has `max_steps`
                no answer within `timeout`: reset by force    --> late
    late        first observation                             --> free

An env for which no seed is left stays free. A round of the loop sends resets and steps, and waits for the answers of
all these envs except late ones. So the batches of the policy are a function of the seeds and the number of envs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..core.layout.spec import Array
from ..core.system.clock import now_ns
from ..errors import StateError, WorkerTimeoutError, take_rows, warn_caller
from ..vector.env import VectorEnv
from ..vector.infos import pick_row
from ..vector.results import Step
from ..vector.shard_envs import ShardEnvs
from .policy_rows import Observations, PolicyRows
from .result import EpisodeResult, as_number

__all__ = ["MANY_STEPS", "Episodes"]

#: States of an env.
_FREE, _RESETTING, _READY, _STEPPING, _LATE = range(5)
#: The state of an env after an answer.
_ANSWERED = np.array([_FREE, _READY, _READY, _READY, _FREE])
#: Steps after which an episode is reported if there is no `max_steps`: it may never end.
MANY_STEPS = 100_000


class Episodes:
    """Plays one episode per seed; a free env takes the next one.

    Args:
        envs: any autoreset mode; no step or reset is outstanding.
        timeout: seconds that the steps of an episode may take; None: no limit.
        max_steps: largest number of steps of an episode; None: no limit.
        warn: called with the text and the class of a warning.
    """

    def __init__(
        self,
        envs: VectorEnv | ShardEnvs,
        policy: PolicyRows,
        seeds: Sequence[int],
        *,
        timeout: float | None,
        max_steps: int | None,
        warn: Callable[[str, type[Warning]], object] = warn_caller,
    ) -> None:
        count = envs.num_envs
        self._envs, self._policy = envs, policy
        self._timeout, self._max_steps, self._warn_caller = timeout, max_steps, warn
        self._seeds_left = list(reversed(seeds))
        self._observations = Observations(envs.pool.spaces.observation_space, count)
        self._has_warned = False
        self._num_batches = envs.num_batches
        self._states = np.full(count, _FREE)
        # By env: its episode.
        self._seeds = np.zeros(count, np.int64)
        self._returns = np.zeros((count, *envs.pool.spaces.reward_shape))
        self._lengths = np.zeros(count, np.int64)
        self._waited_ns = np.zeros(count, np.int64)  # time of waiting for answers to steps
        self._sent_ns = 0  # the steps of this round

    def play(self) -> Iterator[EpisodeResult]:
        """Yield each episode when it has ended; those of the same round in the order of env ids.

        Raises:
            StateError: other code has stepped or reset the envs.
        """
        while self.has_more:
            yield from self.play_round()

    @property
    def has_more(self) -> bool:
        """Whether episodes are under way, or have not begun."""
        return bool(self._seeds_left) or bool(((self._states != _FREE) & (self._states != _LATE)).any())

    def play_round(self) -> Iterator[EpisodeResult]:
        """Yield the episodes that end in one round; see `play`."""
        self._reset_free()
        self._step_ready()
        if self._count_asked():
            yield from self._receive_round()
        else:  # all envs are late
            yield from self._take(self._envs.recv(1))

    # ---- requests ----------------------------------------------------------------------------

    def _reset_free(self) -> None:
        env_ids = np.flatnonzero(self._states == _FREE)[: len(self._seeds_left)]
        if not len(env_ids):
            return
        for env_id in env_ids.tolist():
            self._seeds[env_id] = self._seeds_left.pop()
        self._states[env_ids] = _RESETTING
        self._returns[env_ids] = 0
        self._lengths[env_ids] = self._waited_ns[env_ids] = 0
        self._check_untouched()
        self._envs.async_reset(env_ids, seed=self._seeds.tolist())

    def _step_ready(self) -> None:
        env_ids = np.flatnonzero(self._states == _READY)
        if not len(env_ids):
            return
        begun = env_ids[self._lengths[env_ids] == 0]
        if len(begun):
            self._policy.begin(begun, self._seeds[begun].tolist())
        actions = self._policy.actions(self._observations, env_ids)
        self._check_untouched()
        self._sent_ns = now_ns()
        self._envs.send(actions, env_ids)
        self._states[env_ids] = _STEPPING

    def _check_untouched(self) -> None:
        """Raise StateError if other code has stepped or reset the envs since the last answers."""
        if self._envs.num_batches != self._num_batches:
            raise StateError(
                "evaluate: the policy or `on_episode` has stepped or reset the vector env that is evaluated; it needs "
                "a vector env of its own"
            )

    # ---- answers -----------------------------------------------------------------------------

    def _receive_round(self) -> Iterator[EpisodeResult]:
        while count := self._count_asked():
            try:
                # The time of each answer matters for a timeout only.
                step = self._envs.recv(count if self._timeout is None else 1, timeout=self._seconds_left())
            except WorkerTimeoutError:
                waited_ns = self._waited_ns + now_ns() - self._sent_ns
                late = np.flatnonzero((self._states == _STEPPING) & (waited_ns >= self._limit_ns))
                if not len(late):  # another limit
                    raise
                yield from self._cut_late(late)
            except Exception as error:
                yield from self._take_others(error)
                raise
            else:
                yield from self._take(step)

    def _count_asked(self) -> int:
        """Return how many envs are resetting or stepping."""
        return int(np.count_nonzero((self._states == _RESETTING) | (self._states == _STEPPING)))

    @property
    def _limit_ns(self) -> int:
        return 0 if self._timeout is None else int(self._timeout * 1e9)

    def _seconds_left(self) -> float | None:
        is_stepping = self._states == _STEPPING
        if self._timeout is None or not is_stepping.any():
            return None
        waited_ns = int(self._waited_ns[is_stepping].max()) + now_ns() - self._sent_ns
        return max(0.0, (self._limit_ns - waited_ns) / 1e9)

    def _cut_late(self, env_ids: Array) -> Iterator[EpisodeResult]:
        self._envs.async_reset(env_ids)
        self._waited_ns[env_ids] += now_ns() - self._sent_ns
        self._states[env_ids] = _LATE
        for env_id in env_ids.tolist():
            yield self._result(env_id, cut="timeout")

    def _take(self, step: Step) -> Iterator[EpisodeResult]:
        """Take the rows of these answers; rows of envs that were not asked are skipped."""
        self._num_batches = self._envs.num_batches
        obs, rewards, terminated, truncated, infos = step
        env_ids: Array = infos["env_id"]
        self._observations.put(obs, env_ids)
        states = self._states[env_ids]
        self._states[env_ids] = _ANSWERED[states]
        rows = np.flatnonzero(states == _STEPPING)
        if not len(rows):
            return
        stepped = env_ids[rows]
        self._returns[stepped] += rewards[rows]
        self._lengths[stepped] += 1
        self._waited_ns[stepped] += now_ns() - self._sent_ns
        is_over = terminated[rows] | truncated[rows]
        if self._max_steps is not None:
            is_over |= self._lengths[stepped] >= self._max_steps
        elif not self._has_warned and (self._lengths[stepped] >= MANY_STEPS).any():
            self._warn(stepped)
        if self._timeout is not None:
            is_over |= self._waited_ns[stepped] >= self._limit_ns
        for row in rows[is_over][np.argsort(stepped[is_over])].tolist():
            yield self._end(int(env_ids[row]), bool(terminated[row]), bool(truncated[row]), infos, row)

    def _take_others(self, error: Exception) -> Iterator[EpisodeResult]:
        """Take the rows of the envs that have answered when another one raised."""
        rows = take_rows(error)
        if rows is not None:
            raised = rows.result[4]["env_id"][~rows.mask]
            self._states[raised] = _FREE
            yield from self._take(rows.result)

    def _end(self, env_id: int, terminated: bool, truncated: bool, infos: dict[str, Any], row: int) -> EpisodeResult:
        self._states[env_id] = _FREE
        info = pick_row(infos, row)
        if "final_info" in info or "final_obs" in info:  # SAME_STEP mode; the other keys are those of the next episode
            # Those of the row itself: the mark of a lost episode, and the statistics of `episode_statistics`.
            own: dict[str, Any] = {key: info[key] for key in ("recovered", "episode") if key in info}
            info = {**own, **info.get("final_info", {})}
        if info.get("recovered") == "truncated":
            return self._result(env_id, cut="failure", info=info)
        if terminated or truncated:
            return self._result(env_id, terminated, truncated, info=info)
        is_long = self._max_steps is not None and self._lengths[env_id] >= self._max_steps
        return self._result(env_id, cut="max_steps" if is_long else "timeout", info=info)

    def _result(
        self,
        env_id: int,
        terminated: bool = False,
        truncated: bool = False,
        cut: str = "",
        info: dict[str, Any] | None = None,
    ) -> EpisodeResult:
        return EpisodeResult(
            seed=int(self._seeds[env_id]),
            episode_return=as_number(self._returns[env_id].copy()),
            length=int(self._lengths[env_id]),
            terminated=terminated,
            truncated=truncated,
            cut=cut,
            seconds=int(self._waited_ns[env_id]) / 1e9,
            info={} if info is None else info,
        )

    def _warn(self, env_ids: Array) -> None:
        self._has_warned = True
        env_id = env_ids[self._lengths[env_ids].argmax()]
        self._warn_caller(
            f"evaluate: the episode of seed {self._seeds[env_id]} has lasted {MANY_STEPS:,} steps; if it never ends, "
            "limit all episodes by max_steps",
            RuntimeWarning,
        )
