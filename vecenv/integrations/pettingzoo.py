"""PettingZooVectorEnv: N envs of PettingZoo in worker processes as one vector env with a row per agent.

    PettingZooVectorEnv(parallel_fn, N)      in place of SuperSuit's pettingzoo_env_to_vec_env_v1 and concat_vec_envs_v1
    row w * A + j                            agent j of env w, in the order of `possible_agents`

A batch of the `BatchedVectorEnv` below is the agents of one env. `JointEnv` and `TurnEnv` adapt one env for
`VectorEnv`, the managers and `SB3VecEnv`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from ..core.layout.spec import Array
from ..envs.multi_agent.joint import JointEnv
from ..envs.multi_agent.rows import ROWS, AgentRowsEnv
from ..envs.multi_agent.turns import TurnEnv
from ..errors import ConfigError, converted
from ..values.checks import check_choice, check_flag, check_whole, describe_wrong_env_fn
from ..vector.arguments import check_without_mask, one_of, read_env_ids, read_seeds
from ..vector.batched import BatchedVectorEnv
from ..vector.results import Step
from ..vector.saved_adapter import SavedAdapter

__all__ = ["JointEnv", "PettingZooVectorEnv", "TurnEnv"]

#: Observations, rewards, terminations, truncations (N * A, ...), and infos in one of the two forms.
Result = tuple[Any, Array, Array, Array, Any]


class PettingZooVectorEnv(SavedAdapter, gymnasium.vector.VectorWrapper):
    """N envs of PettingZoo in worker processes, stepped together, with one row per agent.

    Row w * A + j is agent j of env w, in the order of `possible_agents`. The same seeds and actions give the
    observations, rewards and ends of SuperSuit's `MarkovVectorEnv` and `ConcatVecEnv`. Rewards are float64 with float32
    values, terminations and truncations bool. An env is reset in the step in which the last of its agents ends. Its
    rows then have the first observations of the next episode.

    With `black_death=True`, rows of agents that are not in the env have observations of zeros, reward 0 and False for
    both ends, and their actions are ignored. `alive` tells which rows count.

    Recovery and all other methods are those of `BatchedVectorEnv`, such as `statistics`; `get_attr` and `call` return
    one item per env.

    Example:
        >>> from pettingzoo.classic.rps import rps
        >>> envs = PettingZooVectorEnv(rps.parallel_env, 2, backend="serial")
        >>> envs.agents, envs.num_envs
        (('player_0', 'player_1'), 4)
        >>> obs, infos = envs.reset(seed=0)
        >>> obs, rewards, terminations, truncations, infos = envs.step([0, 1, 1, 0])
        >>> rewards.tolist(), infos["alive"].tolist()
        ([-1.0, 1.0, 1.0, -1.0], [True, True, True, True])
        >>> envs.close()

    Attributes:
        agents: names of the A agents of an env.
        alive: bool (N * A,), True for the rows whose agents act in the next step. It is new after each step.
        batched: the `BatchedVectorEnv` that hosts the envs.
    """

    vector_env: BatchedVectorEnv
    _saved = ("alive",)

    def __init__(
        self,
        parallel_fn: Callable[[], Any] | Sequence[Callable[[], Any]],
        num_envs: int | None = None,
        *,
        black_death: bool = False,
        infos: str = "gymnasium",
        episode_statistics: bool = False,
        **options: Any,
    ) -> None:
        """Start the workers and build all envs.

        Args:
            parallel_fn: builds one ParallelEnv, or an AECEnv that PettingZoo can convert; or a list with a constructor
                per env.
            num_envs: N, the number of envs that one constructor builds, 1 by default.
            black_death: whether agents may be absent or leave before the others. If False (default) this is a
                StateError.
            infos: 'gymnasium' (default): a dict of arrays (N * A, ...), in the form of SAME_STEP mode, with `final_obs`
                and `final_info` where an env was reset, and always `alive`. 'list': a list of N * A dicts as from
                SuperSuit, with `terminal_observation` where an env was reset.
            episode_statistics: add "episode" to the infos of agents that end in a step: return "r", length "l" and
                seconds "t". In infos in Gymnasium's form these are arrays, with the mask `_episode`.
            **options: options of `BatchedVectorEnv`, such as `num_workers`, `backend`, `timeouts` and `failures`.

        Raises:
            ConfigError: an argument is wrong, a constructor returned one env twice, or the agents must take turns
                (`TurnEnv` is for such envs).
            SpaceError: the agents of an env have different spaces, or the envs have.
            TypeError: an env is not one of PettingZoo, or an option is unknown.
            Exception: as `BatchedVectorEnv`.
        """
        check_choice("infos", infos, ("gymnasium", "list"))
        if "mark_autoreset" in options:
            raise ConfigError("mark_autoreset: no step is only a reset here; leave it out", key="mark_autoreset")
        make = functools.partial(
            _make_rows,
            black_death=check_flag("black_death", black_death),
            as_lists=infos == "list",
            has_statistics=check_flag("episode_statistics", episode_statistics),
        )
        env_fns = [functools.partial(make, fn) for fn in _read_functions(parallel_fn, num_envs)]
        self.vector_env = self.batched = BatchedVectorEnv(env_fns, **options)
        super().__init__(self.batched)
        try:
            self.agents: tuple[Any, ...] = tuple(self.batched.get_attr("possible_agents")[0])
            self._check_distinct()
        except BaseException:
            self.batched.close()
            raise
        self._num_parts = self.batched.num_envs // self.batched.batch_size  # N
        self._as_lists = infos == "list"
        self.alive: Array = np.zeros(self.num_envs, np.bool_)
        self._continue_own(options.get("resume"))

    def _check_distinct(self) -> None:
        """Raise ConfigError if two envs are one; they would undo each other's resets."""
        found = self.batched.get_attr("identity")
        if len(set(found)) < len(found):
            raise ConfigError(
                "parallel_fn: it returned the same env twice. A constructor has to build a new env, with its wrappers, "
                "at each call: `lambda: pistonball.parallel_env()`, not `lambda: env`",
                key="parallel_fn",
            )

    @property
    def seeds(self) -> tuple[int | None, ...]:
        """The seed that each env was given last; N items.

        The first reset without seeds draws them, so that `reset(seed=list(envs.seeds))` repeats a run.
        """
        return tuple(one[0] if isinstance(one, list) else one for one in self.batched.seeds)

    # ---- stepping ----------------------------------------------------------------------------

    def step(self, actions: Any) -> Result:
        """Step all envs by one action per row, and wait; see `BatchedVectorEnv.step`, except for the infos."""
        return converted(self._finish_step, self.batched.step, actions)

    def step_async(self, actions: Any) -> None:
        """Begin a step of all envs; `step_wait` returns its results."""
        self.batched.step_async(actions)

    def step_wait(self, timeout: float | None = None) -> Result:
        """Wait for the step that `step_async` began; see `BatchedVectorEnv.step_wait`."""
        return converted(self._finish_step, self.batched.step_wait, timeout)

    def _finish_step(self, result: Step) -> Result:
        obs, rewards, terminations, truncations, infos = result
        return obs, rewards, terminations, truncations, self._finish_infos(infos, slice(None))

    def _finish_infos(self, infos: Any, rows: Any) -> Any:
        """Return the infos in the form that was asked for; `rows` are their rows."""
        alive = self.alive.copy()  # the caller may have the last one
        alive[rows] = np.where(infos.pop("_alive", True), infos.pop("alive", True), True)
        self.alive = alive
        if not self._as_lists:
            return {**infos, "alive": alive[rows]}
        found: list[dict[str, Any]] = [dict(one or {}) for one in infos.pop(ROWS, [None] * len(alive[rows]))]
        # Marks of replaced workers.
        for key, name in (("recovered", "recovered"), ("final_obs", "terminal_observation")):
            if key in infos:
                for i in np.flatnonzero(infos[f"_{key}"]).tolist():
                    found[i][name] = infos[key][i]
        return found

    # ---- resetting ---------------------------------------------------------------------------

    def reset(
        self, env_id: Any = None, *, seed: Any = None, options: dict[str, Any] | None = None, env_ids: Any = None
    ) -> tuple[Any, Any]:
        """Begin an episode in every env, or in some of them.

        Args:
            env_id, env_ids: distinct numbers w of the envs to reset, or a single one. The result has the rows of their
                agents only, in this order. None (default): all envs.
            seed: an int s gives env w the seed s + w; or a list with an int or None for each of the N envs. None
                (default): generators continue; the first reset draws seeds, see `seeds`.
            options: passed to every env.

        Returns:
            The observations, and infos in the form of the constructor's `infos`.

        Raises:
            StateError: agents are missing, and `black_death` is False; or only some envs are reset, and not all have
                been reset before.
            Exception: as `BatchedVectorEnv.reset`.
        """
        ids = read_env_ids("reset", one_of("reset", env_id, env_ids), self._num_parts)
        check_without_mask("reset", options)
        rows = None if ids is None else (ids[:, None] * len(self.agents) + np.arange(len(self.agents))).reshape(-1)
        finish = functools.partial(self._finish_reset, rows=slice(None) if rows is None else rows)
        return converted(finish, self.batched.reset, rows, seed=self._read_seeds(seed), options=options)

    def _finish_reset(self, result: tuple[Any, Any], rows: Any = slice(None)) -> tuple[Any, Any]:
        obs, infos = result
        return obs, self._finish_infos(infos, rows)

    def reset_async(self, seed: Any = None, options: dict[str, Any] | None = None) -> None:
        """Begin a reset of all envs; `reset_wait` returns its results. Arguments are those of `reset`."""
        check_without_mask("reset_async", options)
        self.batched.reset_async(self._read_seeds(seed), options)

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, Any]:
        """Wait for the reset that `reset_async` began; see `BatchedVectorEnv.reset_wait`."""
        return converted(self._finish_reset, self.batched.reset_wait, timeout)

    def _read_seeds(self, seed: Any) -> list[int | None]:
        """Return the seed of each row: all agents of an env have that of the env."""
        return [one for one in read_seeds(seed, self._num_parts) for _ in self.agents]

    # ---- attributes --------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the `BatchedVectorEnv`."""
        if name.startswith("_") or "batched" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.batched, name)

    @property  # type: ignore[misc]  # an attribute in Gymnasium
    def closed(self) -> bool:  # type: ignore[override]
        return self.batched.closed

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every env, below PettingZoo's wrappers: to one value, or to those of a list.

        Raises:
            ConfigError: the list does not have one value per env.
        """
        if isinstance(values, list | tuple):
            if len(values) != self._num_parts:
                raise ConfigError(
                    f"set_attr: expected {self._num_parts} values, one per env, got {len(values)}", key=name
                )
            values = [value for value in values for _ in self.agents]
        self.batched.set_attr(name, values)

    # ---- end ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.num_envs

    def __enter__(self) -> PettingZooVectorEnv:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _read_functions(parallel_fn: Any, num_envs: int | None) -> list[Callable[[], Any]]:
    """Return one constructor per env; ConfigError if there is none, or the number of envs is given twice."""
    if isinstance(parallel_fn, list | tuple):
        if num_envs is not None:
            raise ConfigError("num_envs: a list of constructors determines the number of envs", key="num_envs")
        return list(parallel_fn)
    if not callable(parallel_fn):
        raise ConfigError(
            f"parallel_fn: expected a function that builds an env, {describe_wrong_env_fn(parallel_fn)}",
            key="parallel_fn",
        )
    return [parallel_fn] * (1 if num_envs is None else check_whole("num_envs", num_envs, 1))


def _make_rows(parallel_fn: Callable[[], Any], **settings: bool) -> AgentRowsEnv:
    return AgentRowsEnv(parallel_fn(), **settings)
