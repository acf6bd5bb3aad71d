"""Front ends: every way to step envs, behind one interface that records the rows of each env.

with FRONT_ENDS["ALF"](env_fns, context="spawn") as front_end:
    front_end.play(9, before=lambda number: front_end.kill(0) if number == 4 else None)
front_end.rows[env_id]          (observation, reward, done) of each answer; equal means equal in every bit
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from tests.collection.sharded import ShardedVectorEnv
from tests.faults.traces import end, frozen
from tests.inside import call_envs, pool_of, vector_env_of
from vecenv import BatchedVectorEnv, VectorEnv, collect, evaluate
from vecenv.alf import AlfGymWrapper, ParallelAlfEnvironment
from vecenv.ding import (
    AsyncSubprocessEnvManager,
    BaseEnvManager,
    BaseEnvManagerV2,
    GymVectorEnvManager,
    SubprocessEnvManagerV2,
    SyncSubprocessEnvManager,
)

#: Called with the number of a round, from 0 on.
Hook = Callable[[int], object]
Rows = list[list[Any]]


def row_of(obs: Any, reward: Any, done: Any) -> Any:
    """Return an answer of an env in the form of `FrontEnd.rows`."""
    return frozen(obs), np.asarray(reward).reshape(-1).tolist(), bool(done)


class FrontEnd:
    """One front end: a `VectorEnv`. Subclasses are the others.

    The actions of a round are 0 and 1 alternately.

    Args:
        env_fns: constructors of Gymnasium envs.
        seed: of the first reset of `play`; None: without seeds.
        options: of the front end, such as `context` and `backend`.

    Attributes:
        envs: the front end, from `open` on; None before.
        rows: the answers of each env.
    """

    make: Any = VectorEnv

    def __init__(self, env_fns: Sequence[Callable[[], Any]], *, seed: int | None = 10, **options: Any) -> None:
        self.env_fns, self.num_envs, self.seed = list(env_fns), len(env_fns), seed
        self.options: dict[str, Any] = {"num_workers": 2, **options}
        self.envs: Any = None
        self.rows: Rows = [[] for _ in env_fns]

    def __enter__(self) -> FrontEnd:
        self.open()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def open(self) -> None:
        """Start the workers; a manager does that in `reset`."""
        self.envs = self.make(self.env_fns, **self.options)

    def close(self) -> None:
        """Close the front end, if it was opened."""
        if self.envs is not None:
            self.envs.close()

    def play(self, rounds: int = 9, before: Hook | None = None) -> None:
        """Reset all envs and step each of them `rounds` times; `before` is called before each round."""
        self.reset(self.seed)
        for number in range(rounds):
            if before is not None:
                before(number)
            self.step(number)

    def reset(self, seed: int | None) -> None:
        """Begin an episode in every env."""
        obs, _ = self.envs.reset(seed=seed)
        self.note_batch(obs, np.zeros(self.num_envs), np.zeros(self.num_envs, bool))

    def step(self, number: int) -> None:
        """Step every env with the action of this round."""
        obs, rewards, terminated, truncated, _ = self.envs.step(self.actions(number))
        self.note_batch(obs, rewards, terminated | truncated)

    def finish_rounds(self, number: int) -> None:
        """Step all envs until each has made this number of steps; for managers, whose envs need not be in step."""

    def call(self, name: str, *args: Any) -> list[Any]:
        """Call a method of every env; return the results."""
        return list(self.pool_owner.call(name, *args))

    def kill(self, worker_id: int) -> None:
        """Kill a worker, and wait for its end."""
        end(self.worker_pids[worker_id])

    @property
    def pool_owner(self) -> Any:
        """The object with the workers and the statistics."""
        return getattr(self.envs, "vector_env", self.envs)

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process id of each worker."""
        pids: tuple[int, ...] = self.pool_owner.worker_pids
        return pids

    def num_restarts(self) -> int:
        """Return how many workers were replaced."""
        return int(self.pool_owner.statistics()["restarts"])

    @functools.cached_property
    def action_space(self) -> Any:
        """A copy of the action space of one env."""
        return copy.deepcopy(self.pool_owner.single_action_space)

    def action(self, number: int) -> Any:
        """Return the action of one env in this round."""
        return np.full(self.action_space.shape, number % 2, self.action_space.dtype)

    def actions(self, number: int) -> Any:
        """Return the actions of all envs in this round."""
        return np.stack([self.action(number)] * self.num_envs)

    def note(self, env_id: int, obs: Any, reward: Any, done: Any) -> None:
        """Add an answer of one env."""
        self.rows[env_id].append(row_of(obs, reward, done))

    def note_batch(self, obs: Any, rewards: Any, dones: Any) -> None:
        """Add an answer of every env; `obs` are an array, a dict or a sequence."""
        for env_id in range(self.num_envs):
            self.note(env_id, pick(obs, env_id), rewards[env_id], dones[env_id])


def pick(obs: Any, row: int) -> Any:
    """Return one row of a batch of observations."""
    return {key: pick(part, row) for key, part in obs.items()} if isinstance(obs, dict) else obs[row]


class Batched(FrontEnd):
    """Two batches of envs, or one per env."""

    def open(self) -> None:
        size = max(1, self.num_envs // 2)
        batches = [self.env_fns[first : first + size] for first in range(0, self.num_envs, size)]
        make = [functools.partial(SyncVectorEnv, batch) for batch in batches]
        self.envs = BatchedVectorEnv(make, **self.options)


class Shards(FrontEnd):
    """Two shards of one worker each; a kill ends a shard."""

    make = ShardedVectorEnv

    def open(self) -> None:
        self.options["num_workers"] = 1
        super().open()

    @property
    def worker_pids(self) -> tuple[int, ...]:
        return tuple(self.envs.carrier.pid_of(shard) for shard in range(2))


class SB3(FrontEnd):
    """Notes the last observations of episodes, too."""

    def open(self) -> None:
        self.make = pytest.importorskip("vecenv.integrations.sb3", exc_type=ImportError).SB3VecEnv
        super().open()

    def reset(self, seed: int | None) -> None:
        self.envs.seed(seed)
        self.note_batch(self.envs.reset(), np.zeros(self.num_envs), np.zeros(self.num_envs, bool))

    def step(self, number: int) -> None:
        obs, rewards, dones, infos = self.envs.step(self.actions(number))
        for env_id, info in enumerate(infos):
            seen = pick(obs, env_id), info.get("terminal_observation")
            self.note(env_id, seen, rewards[env_id], dones[env_id])


class Tianshou(FrontEnd):
    """Envs that have ended are reset by a second call."""

    def open(self) -> None:
        self.make = pytest.importorskip("vecenv.integrations.tianshou", exc_type=ImportError).VecenvVectorEnv
        super().open()

    def reset(self, seed: int | None) -> None:
        if seed is not None:
            self.envs.seed(seed)
        self.note_batch(self.envs.reset()[0], np.zeros(self.num_envs), np.zeros(self.num_envs, bool))

    def step(self, number: int) -> None:
        obs, rewards, terminated, truncated, _ = self.envs.step(self.actions(number))
        self.note_batch(obs, rewards, terminated | truncated)
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            for env_id, first in zip(ended, self.envs.reset(ended)[0]):
                self.note(env_id, first, 0.0, False)


class TorchRL(FrontEnd):
    """Tensors; discrete actions are numbers."""

    def open(self) -> None:
        make = pytest.importorskip("vecenv.integrations.torchrl", exc_type=ImportError).VecenvEnv
        self.envs = make(self.env_fns, categorical_action_encoding=True, **self.options)

    def reset(self, seed: int | None) -> None:
        if seed is not None:
            self.envs.set_seed(seed)
        self.tensors = self.envs.reset()

    def step(self, number: int) -> None:
        import torch

        self.tensors["action"] = torch.from_numpy(self.actions(number))
        stepped, self.tensors = self.envs.step_and_maybe_reset(self.tensors)
        parts = {".".join(np.atleast_1d(key)): value.numpy() for key, value in stepped["next"].items(True, True)}
        self.note_batch(parts, parts["reward"], parts["done"])


class Alf(FrontEnd):
    """A step after the last one of an episode begins the next one."""

    def open(self) -> None:
        make = [functools.partial(_alf_env, env_fn) for env_fn in self.env_fns]
        self.envs = ParallelAlfEnvironment(make, tensors=False, **self.options)

    def reset(self, seed: int | None) -> None:
        if seed is not None:
            self.envs.seed(seed)
        self.note_time_step(self.envs.reset())

    def step(self, number: int) -> None:
        self.note_time_step(self.envs.step(self.actions(number)))

    def note_time_step(self, time_step: Any) -> None:
        self.note_batch(time_step.observation, time_step.reward, time_step.is_last())

    def call(self, name: str, *args: Any) -> list[Any]:
        return list(self.envs.call_envs_with_same_args(name, *args))

    @functools.cached_property
    def action_space(self) -> Any:
        return copy.deepcopy(pool_of(self.envs).spaces.action_space)


def _alf_env(env_fn: Any, env_id: int = 0) -> Any:
    return AlfGymWrapper(env_fn(), env_id)


class Manager(FrontEnd):
    """A manager of DI-engine: each env has its own count of steps, which gives its actions."""

    make: Any = SyncSubprocessEnvManager
    serial: Any = BaseEnvManager

    def open(self) -> None:
        options, make = self.options, self.make
        if options.pop("backend", "process") == "serial":
            options, make = {key: options[key] for key in options if key not in ("num_workers", "context")}, self.serial
        self.envs = make(self.env_fns, options)

    def play(self, rounds: int = 9, before: Hook | None = None) -> None:
        self.reset(self.seed)
        turn = 0
        while min(self.counts) < rounds:
            if before is not None:
                before(turn)
            self.step(rounds)
            turn += 1

    def reset(self, seed: int | None) -> None:
        self.counts = [0] * self.num_envs
        if seed is not None:
            self.envs.seed(seed)
        self.envs.launch() if self.envs.closed else self.envs.reset()

    def finish_rounds(self, number: int) -> None:
        while min(self.counts) < number:
            self.step(number)

    def step(self, number: int) -> None:
        """Step the envs that are ready, except those that have made this number of steps."""
        ready = [int(env_id) for env_id in self.envs.ready_obs_id if self.counts[env_id] < number]
        actions = {env_id: self.action(self.counts[env_id]) for env_id in ready}
        for env_id, timestep in self.pairs(self.envs.step(actions)):
            self.counts[env_id] += 1
            self.note(env_id, timestep.obs, timestep.reward, timestep.done)

    def pairs(self, timesteps: Any) -> list[tuple[int, Any]]:
        """Return (env id, timestep) of what a step has returned."""
        return list(timesteps.items())

    @property
    def pool_owner(self) -> Any:
        return self.envs

    def call(self, name: str, *args: Any) -> list[Any]:
        return call_envs(self.envs, name, *args)

    @functools.cached_property
    def action_space(self) -> Any:
        return copy.deepcopy(self.envs.action_space)


class Async(Manager):
    """A step returns the timesteps that have arrived; `wait_num` is an option."""

    make = AsyncSubprocessEnvManager


class V2(Manager):
    """A step returns a list of timesteps."""

    make = SubprocessEnvManagerV2
    serial = BaseEnvManagerV2

    def pairs(self, timesteps: Any) -> list[tuple[int, Any]]:
        return [(int(timestep.env_id.item()), timestep) for timestep in timesteps]


class GymVector(Manager):
    """The manager over a `VectorEnv`."""

    make = GymVectorEnvManager

    def open(self) -> None:
        self.envs = self.make(self.env_fns, self.options)

    @property
    def pool_owner(self) -> Any:
        return vector_env_of(self.envs)

    def call(self, name: str, *args: Any) -> list[Any]:
        return list(self.pool_owner.call(name, *args))


class Collect(FrontEnd):
    """Each round is a `collect` of one transition per env."""

    def reset(self, seed: int | None) -> None:
        self.next_seed = seed

    def step(self, number: int) -> None:
        seed, self.next_seed = self.next_seed, None
        found = collect(self.envs, lambda obs, env_id: self.actions(number)[env_id], steps=self.num_envs, seed=seed)
        for row, env_id in enumerate(found.env_id.tolist()):
            done = found.terminated[row] or found.truncated[row]
            self.note(env_id, pick(found.obs, row), found.rewards[row], done)


class Evaluate(FrontEnd):
    """One `evaluate` of three episodes per env; its answers are those of env 0. A round is a call of the policy."""

    def play(self, rounds: int = 9, before: Hook | None = None) -> None:
        number = 0

        def policy(obs: Any, env_id: Any) -> Any:
            nonlocal number
            if before is not None:
                before(number)
            number += 1
            return self.actions(number)[env_id]

        seeds = np.arange(3 * self.num_envs) + (0 if self.seed is None else self.seed)
        found = evaluate(self.envs, policy, seeds=seeds.tolist())
        for length, total in zip(found.lengths.tolist(), found.returns.tolist()):
            self.note(0, length, total, True)


FRONT_ENDS: dict[str, type[FrontEnd]] = {
    "VectorEnv": FrontEnd,
    "sync": Manager,
    "async": Async,
    "V2": V2,
    "gym_vector": GymVector,
    "BatchedVectorEnv": Batched,
    "SB3VecEnv": SB3,
    "ALF": Alf,
    "collect": Collect,
    "evaluate": Evaluate,
    "Tianshou": Tianshou,
    "TorchRL": TorchRL,
    "shards": Shards,
}
#: Those that step envs in the program's own process with `backend="serial"`.
SERIAL = [name for name in FRONT_ENDS if name not in ("async", "shards")]
#: The managers that start workers of their own.
MANAGERS = ["sync", "async", "V2"]


def play(name: str, env_fns: Sequence[Callable[[], Any]], before: Any = None, rounds: int = 9, **options: Any) -> Rows:
    """Play with a front end; return the rows. `before` is called with the front end and the number of each round."""
    with FRONT_ENDS[name](env_fns, **options) as front_end:
        front_end.play(rounds, None if before is None else functools.partial(before, front_end))
    return front_end.rows
