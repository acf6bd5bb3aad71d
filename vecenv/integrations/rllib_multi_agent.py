"""RLlib's env runner for multi-agent envs, with the envs in vecenv's worker processes.

    config.env_runners(env_runner_cls=MultiAgentRunner, num_envs_per_env_runner=16)

RLlib itself steps the envs of a runner one after the other. Observations, rewards and ends are dicts by agent, whose
agents change from step to step:

    obs, actions    a column per agent with its arrays or numbers
    the remainder   names of the agents, rewards and ends, pickled in a column of bytes; infos, if there are any, and
                    rows that do not fit travel as messages
"""

from __future__ import annotations

import copy
import functools
import io
import logging
import pickle
import statistics
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar
from unittest import mock

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Tuple

from ..core.advice.auto import workload_of
from ..core.advice.sizing import Setting, round_ns
from ..core.options import AUTO, PoolOptions
from ..core.pool.backends import measure_first_env
from ..core.processes.worker import usable_cores
from ..envs.adapt import adapt_and_build
from ..envs.state.state import SNAPSHOTTER
from ..errors import converted, require
from ..statistics import time_text
from ..vector.env import VectorEnv, check_options
from ..vector.options import move_options
from .rllib import assigned_workers

__all__ = ["MultiAgentRunner", "ParallelMultiAgentEnv", "multi_agent_runner"]

_runner_module: Any = require("ray.rllib.env.multi_agent_env_runner", "rllib")
_sync_module: Any = require("ray.rllib.env.vector.sync_vector_multi_agent_env", "rllib")

_LOG = logging.getLogger("vecenv")
_ALL = "__all__"
#: Time that a row takes in the process of the runner, and that it takes a worker longer than the loop, as multiples of
#: the time to pack actions and to unpack an answer; measured for two agents.
_CALLERS_SHARE, _WORKERS_SHARE = 1.5, 0.5
#: The key of the remainder of a row in the infos of `_AnswerEnv`.
_LEFT = "left"
#: Spaces whose values are arrays or numbers.
_ARRAY_SPACES = (Box, Discrete, MultiBinary, MultiDiscrete)
#: Rows have room for all values in their remainder if these are shorter than this.
_SHORT_NBYTES = 1024
#: The first bytes of the remainder of a row.
_MARK = b"vecenv/1"
#: Workers are chosen only if they are faster by this factor.
_MARGIN = 1.2
_REPEATS = 100
_NO_LEAF = (0, None, None, None)


class _AgentRows:
    """Turns dicts by agent, and further objects, into rows of a fixed layout, and back.

    Args:
        spaces: the space of each agent.
        rest: objects like those that each row contains beside the dict; the column for them has twice their size.

    Attributes:
        space: the space of a row: a part per agent whose values are arrays or numbers, and uint8 (R,) for the
            remainder.
    """

    def __init__(self, spaces: Mapping[Any, Any], *rest: Any) -> None:
        self._leaves: dict[Any, tuple[int, Any, Any, Any]] = {}  # index, type, dtype and shape of the values
        self._blanks: list[Any] = []  # values of agents that are not in a row
        values: dict[Any, Any] = {}
        parts: list[Any] = []
        for agent, space in copy.deepcopy(dict(spaces)).items():
            space.seed(0)  # rows of equal envs are equal in each run
            value = values[agent] = space.sample()
            if type(space) in _ARRAY_SPACES and isinstance(value, np.ndarray) == bool(space.shape):
                self._leaves[agent] = len(parts), type(value), value.dtype, value.shape
                self._blanks.append(value)
                parts.append(space)
        sizes = [len(_dump((tuple(values), others, *rest))) for others in (values, self._split(values)[1])]
        self._nbytes = 2 * (sizes[0] if sizes[0] < _SHORT_NBYTES else sizes[1])  # short values of other dtypes fit, too
        self.space = Tuple([*parts, Box(0, 255, (self._nbytes,), np.uint8)])

    def _split(self, values: Mapping[Any, Any]) -> tuple[list[Any], dict[Any, Any]]:
        """Return the columns of all agents, and the values that do not fit into them."""
        columns, others = self._blanks.copy(), {}
        for agent, value in values.items():
            index, kind, dtype, shape = self._leaves.get(agent, _NO_LEAF)
            if type(value) is kind and value.dtype == dtype and value.shape == shape:
                columns[index] = value
            else:
                others[agent] = value
        return columns, others

    def pack(self, values: Mapping[Any, Any], *rest: Any, may_fit: bool = True) -> tuple[tuple[Any, ...], Any]:
        """Return a row, and None; or, if the remainder does not fit, a row without it, and the remainder."""
        columns, others = self._split(values)
        left = tuple(values), others, *rest
        data = b""
        if may_fit:
            try:
                data = _dump(left)
            except Exception:  # the class of a value may raise any exception; that of the message names the value
                pass
        fits = 0 < len(data) <= self._nbytes
        data = (data if fits else b"").ljust(self._nbytes, b"\0")
        return (*columns, np.frombuffer(data, np.uint8)), None if fits else left

    def unpack(self, row: Sequence[Any], left: Any = None) -> tuple[Any, ...] | None:
        """Return the dict and the remainder as copies; None if the row lacks the remainder, and `left` is None."""
        if left is None:
            data = row[-1].tobytes()
            if not data.startswith(_MARK):  # zeros, or a sample of the space
                return None
            left = pickle.loads(data[len(_MARK) :])
        agents, others, *rest = left
        leaves = self._leaves
        values = {agent: others[agent] if agent in others else row[leaves[agent][0]].copy() for agent in agents}
        return values, *rest


def _dump(value: Any) -> bytes:
    """Pickle a value without memo: equal values have equal pickles, which the digests of recovery need."""
    with io.BytesIO() as file:
        file.write(_MARK)
        pickler = pickle.Pickler(file, 4)  # later protocols keep arrays read-only
        pickler.fast = True
        pickler.dump(value)
        return file.getvalue()


class _AnswerEnv(gymnasium.Env[Any, Any]):
    """A multi-agent env whose observation is the whole answer of a step: five dicts by agent, in a row.

    The info contains the remainder of the row if it does not fit, or if an agent has an info: digests are of
    observations, and infos may contain times.
    """

    def __init__(self, env_fn: Callable[[], Any], obs: _AgentRows, actions: _AgentRows) -> None:
        self._env = env_fn()
        self._obs, self._actions = obs, actions
        self._agents: Sequence[Any] = ()  # agents that have an observation
        self.observation_space, self.action_space = obs.space, actions.space

    @property
    def unwrapped(self) -> Any:
        return self._env.unwrapped

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, infos = self._env.reset(seed=seed, options=options)
        return self._pack(obs, *_first_ends(self.unwrapped.possible_agents), infos)

    def step(self, action: Any) -> Any:
        """Step all agents; the env has ended when "__all__" has.

        The action is a row, or a dict if it does not fit. A sample of the space is for the agents that may act.
        """
        if type(action) is tuple:
            found = self._actions.unpack(action) or self._actions.unpack(action, (self._agents, {}))
            assert found is not None
            action = found[0]
        answer = self._env.step(action)
        terminated, truncated = answer[2].get(_ALL, False), answer[3].get(_ALL, False)
        row, info = self._pack(*answer)
        return row, 0.0, bool(terminated), bool(truncated), info

    def _pack(self, obs: Any, rewards: Any, terminated: Any, truncated: Any, infos: Any) -> tuple[Any, dict[str, Any]]:
        self._agents = tuple(obs)
        may_fit = not any(infos.values())
        row, left = self._obs.pack(obs, rewards, terminated, truncated, infos, may_fit=may_fit)
        return row, {} if left is None else {_LEFT: left}

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        self._env.close()


def _first_ends(agents: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Return rewards and both ends of the first step of an episode, as RLlib makes them."""
    ends = dict.fromkeys([*agents, _ALL], False)
    return dict.fromkeys(agents, 0.0), ends, dict(ends)


def _rows_of(envs: Any) -> tuple[_AgentRows, _AgentRows]:
    """Return the rows of observations and of actions for the envs of a vector env of RLlib."""
    ends = _first_ends(list(envs.single_observation_spaces))
    obs = _AgentRows(envs.single_observation_spaces, *ends, {agent: {} for agent in ends[0]})
    return obs, _AgentRows(envs.single_action_spaces)


class ParallelMultiAgentEnv(_sync_module.SyncVectorMultiAgentEnv):
    """N multi-agent envs in worker processes; results are those of RLlib's `SyncVectorMultiAgentEnv`.

    Args:
        env_fn: builds one env, a `MultiAgentEnv`; it is pickled.
        num_envs: the number of envs.
        options: options of `VectorEnv`, such as `num_workers`.

    Attributes:
        envs: one env of this process, N times; RLlib reads its spaces and agents, and never steps it.
        vector_env: the `VectorEnv` that steps the envs. Its observations are whole answers.
    """

    def __init__(self, env_fn: Callable[[], Any], num_envs: int, **options: Any) -> None:
        env = env_fn()
        super().__init__([lambda: env])
        self.envs = [env] * num_envs
        self.num_envs = num_envs
        self._obs, self._actions = _rows_of(self)
        self._answers: list[Any] = [({},) * 5] * num_envs  # the last answer of each env
        env_fns = [functools.partial(_AnswerEnv, env_fn, self._obs, self._actions)] * num_envs
        self.vector_env = VectorEnv(env_fns, copy=False, infos="all", **options)

    def reset(self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset all envs.

        Args:
            seed: an int s gives env i the seed s + i; or one per env.
            options: passed to each env.

        Returns:
            Observations and infos: lists of N dicts by agent.
        """
        return converted(self._first_of, self.vector_env.reset, seed=seed, options=options)

    def _first_of(self, result: Any) -> tuple[list[Any], list[Any]]:
        """Return observations and infos of a reset; {} for an env that raised before its first answer."""
        answers = self._answers_of(*result)
        return [answer[0] for answer in answers], [answer[4] for answer in answers]

    def _answers_of(self, columns: Any, infos: Mapping[str, Any]) -> list[Any]:
        """Return an answer per env. A row without the remainder repeats the last answer."""
        left = infos.get(_LEFT, [None] * self.num_envs)
        found = [self._obs.unpack(row, rest) for row, rest in zip(zip(*columns), left)]
        self._answers = [last if answer is None else answer for answer, last in zip(found, self._answers)]
        return self._answers

    def step(self, actions: Sequence[Mapping[Any, Any]]) -> Any:
        """Step all envs; an env whose episode has ended is reset instead, with rewards 0.0.

        Args:
            actions: N dicts by agent.

        Returns:
            Observations, rewards, terminations, truncations and infos: lists of N dicts by agent. The dicts of ends
            contain "__all__".
        """
        return converted(self._by_part, self._step, actions)

    def _step(self, actions: Sequence[Mapping[Any, Any]]) -> Any:
        rows, left = zip(*map(self._actions.pack, actions))
        if not any(left):
            return self.vector_env.step(tuple(map(np.array, zip(*rows))))
        self.vector_env.pool.send_objects(list(map(dict, actions)), range(self.num_envs))
        return self.vector_env.recv()

    def _by_part(self, result: Any) -> tuple[list[Any], ...]:
        """Return the five lists of a step. An episode that the engine has truncated repeats the last answer."""
        columns, _, _, truncated, infos = result
        answers = zip(self._answers_of(columns, infos), truncated.tolist())
        return tuple(map(list, zip(*(_end(answer) if cut else answer for answer, cut in answers))))

    def render(self) -> tuple[Any, ...]:
        return self.vector_env.call("render")

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env, or read an attribute; return N values."""
        return self.vector_env.call(name, *args, **kwargs)

    def close_extras(self, **kwargs: Any) -> None:
        """End the workers, and close the env of this process."""
        self.envs[0].close()
        self.vector_env.close()


def _end(answer: Any) -> Any:
    obs, rewards, terminated, truncated, infos = answer
    if terminated.get(_ALL, False) or truncated.get(_ALL, False):
        return answer
    no, yes = dict.fromkeys(terminated, False), dict.fromkeys(truncated, True)
    return obs, dict.fromkeys(rewards, 0.0), no, {**yes, _ALL: True}, infos


class MultiAgentRunner(_runner_module.MultiAgentEnvRunner):
    """An env runner of RLlib for multi-agent envs in worker processes.

    Samples equal those of RLlib's own runner, except for random actions (`random_actions=True`). By default a runner
    starts a worker process for each CPU that Ray has assigned to it. `multi_agent_runner` sets other options.

    Attributes:
        options: options of `VectorEnv`.
    """

    options: ClassVar[Mapping[str, Any]] = {}

    def make_env(self) -> None:
        """Make the vector env, as RLlib does it, which has no other hook for the kind of vector env."""
        make_own = _runner_module.make_vec
        with mock.patch.object(_runner_module, "make_vec", functools.partial(self.make_vec_env, make_own)):
            super().make_env()

    def make_vec_env(self, make_own: Callable[..., Any], name: str, num_envs: int, vectorization_mode: Any) -> Any:
        """Return a vector env; `make_own` is RLlib's own function for that, which has the other arguments."""
        options = {"num_workers": assigned_workers(), **self.options}
        env_fn = functools.partial(gymnasium.make, name)
        if options.get("backend") == AUTO:
            del options["backend"]
            if _is_loop_faster(env_fn, num_envs, options["num_workers"]):
                return make_own(name, num_envs=num_envs, vectorization_mode=vectorization_mode)
        return ParallelMultiAgentEnv(env_fn, num_envs, **options)


def _is_loop_faster(env_fn: Callable[[], Any], num_envs: int, num_workers: int | None) -> bool:
    """Measure one env in a worker of its own; return whether RLlib's loop over N envs takes less time than workers."""
    env = env_fn()
    own = _sync_module.SyncVectorMultiAgentEnv([lambda: env])
    obs_rows, action_rows = _rows_of(own)
    actions, obs = (
        {agent: copy.deepcopy(space).sample() for agent, space in spaces.items()}
        for spaces in (own.single_action_spaces, own.single_observation_spaces)
    )
    env.close()
    row, left = obs_rows.pack(obs, *_first_ends(list(obs)), {})

    def pack_and_unpack() -> None:
        action_rows.pack(actions)
        obs_rows.unpack(row, left)

    times = timeit.repeat(pack_and_unpack, number=_REPEATS, timer=time.thread_time)
    row_ns = statistics.median(times) / _REPEATS * 1e9
    answer_fn = functools.partial(_AnswerEnv, env_fn, obs_rows, action_rows)
    found = measure_first_env([answer_fn], PoolOptions(), adapt=adapt_and_build, snapshotter=SNAPSHOTTER)
    workload = workload_of(found)
    if workload is None:
        _LOG.info("auto: workers for %d envs; env 0 cannot be measured: %s", num_envs, found.failure)
        return False
    cores = usable_cores()
    setting = Setting(min(num_envs, num_workers or cores))
    workers_ns = round_ns(workload, num_envs, setting, cores) + num_envs * _CALLERS_SHARE * row_ns
    loop_ns = num_envs * (workload.step_ns - _WORKERS_SHARE * row_ns)
    is_faster = loop_ns < _MARGIN * workers_ns
    _LOG.info(
        "auto: %s for %d envs; a step of all takes about %s in RLlib's own loop, %s with workers%s",
        "the loop" if is_faster else setting,
        num_envs,
        time_text(loop_ns / 1e9),
        time_text(workers_ns / 1e9),
        ". There neither a segmentation fault nor a hang of an env can be survived" if is_faster else "",
    )
    return is_faster


def multi_agent_runner(**options: Any) -> type[MultiAgentRunner]:
    """Return a `MultiAgentRunner` with options of `VectorEnv`, such as `num_workers` or `timeouts`.

    With `backend="auto"` one env is measured in a worker first. RLlib's own loop steps the envs unless workers are
    estimated to be 1.2 times as fast. The loop survives neither a segmentation fault nor a hang, and has no time
    limits. The choice is in the log.

    Raises:
        ConfigError: an unknown option.
    """
    check_options("multi_agent_runner", options)
    return type("MultiAgentRunner", (MultiAgentRunner,), {"options": move_options(options)})
