"""ShardTask: the driver's end of a task that runs in every shard of a vector env, with a policy of its own there.

make_policy, arguments -> pickles -> ShardTask.operation -> TaskCall -> shard
                                     ShardTask.locate    <- exceptions of the shard
"""

from __future__ import annotations

import functools
import itertools
import pickle
import weakref
from collections.abc import Callable
from typing import Any

from ..core.processes.worker_main import describe_envs
from ..core.shards.requests import RunTask
from ..core.shards.task_calls import TaskCall
from ..errors import ConfigError, WorkerError, add_notes, locate, place_of
from ..statistics import ShardInfo
from ..values.id_ranges import node_text
from ..values.pickling import dump_by_value, dump_with_main
from .env import VectorEnv

__all__ = ["ShardTask", "check_make_policy", "check_shards", "dump_for_shards"]

#: Numbers of tasks.
_NUMBERS = itertools.count(1)


class ShardTask:
    """A task in all shards of a vector env.

    Args:
        envs: with shards.
        what: the name of the function that has the task, for errors.
        make_task: called in each shard with the pickled `make_policy`, a `RecordedPool` and `arguments`; returns the
            task.
        make_policy: as for `Collector`.
        arguments: keywords of `make_task` that pickle.

    Raises:
        ConfigError: `make_policy` does not pickle.
    """

    def __init__(
        self, envs: VectorEnv, what: str, make_task: Callable[..., Any], make_policy: Any, **arguments: Any
    ) -> None:
        self._envs = envs
        self._id = next(_NUMBERS)
        pickled = dump_for_shards(what, "make_policy", make_policy, dump_with_main)
        self._factory = dump_by_value(functools.partial(make_task, pickled, **arguments))
        weakref.finalize(self, envs.pool.forget_task, self._id).atexit = False

    def operation(self, argument: Any, *, is_new: bool, is_shared: bool = False) -> RunTask:
        """Return the operation that runs the task.

        Args:
            argument: of the task; pickled.
            is_new: whether the process of the shard may lack the task.
            is_shared: whether a shared value is the second argument of the task.
        """
        factory = self._factory if is_new else None
        return RunTask(self._id, factory, pickle.dumps(argument, protocol=5), is_shared)

    def locate(self, error: Exception, call: TaskCall) -> Exception:
        """Add a shard to an exception that was raised there."""
        info = self._envs.shards()[call.shard]
        vars(error)["shard"] = info
        if isinstance(error, WorkerError):  # the workers of the pool are the shards
            locate(error, **{**place_of(error), "worker_id": call.shard})
        if not call.is_lost:  # else its text names the shard
            add_notes(error, [f"raised in {_describe(info)}"])
        return error


def _describe(info: ShardInfo) -> str:
    node = node_text(info.node_ip, info.node_id)
    return f"shard {info.shard} ({describe_envs(info.env_ids)}), {node and f'node {node}, '}process {info.pid}"


def dump_for_shards(what: str, name: str, value: Any, dump: Callable[[Any], bytes] = dump_by_value) -> bytes:
    """Return the pickle of an argument; ConfigError if it does not pickle. `what` names the function that got it."""
    try:
        return dump(value)
    except Exception as error:
        raise ConfigError(f"{what}: {name} cannot be sent to shards: {error}", key=name) from error


def check_make_policy(what: str, policy: Any, make_policy: Any) -> None:
    """Raise ConfigError unless `make_policy` is a function and `policy` is None; `what` begins the errors."""
    if policy is not None:
        raise ConfigError(
            f"{what}: give make_policy=..., which makes a policy in each shard, in the place of `policy`", key="policy"
        )
    if not callable(make_policy):
        raise ConfigError(f"{what}: make_policy: expected a callable, got {make_policy!r}", key="make_policy")


def check_shards(what: str, envs: VectorEnv, other: str) -> None:
    """Raise ConfigError unless tasks can run in the shards of a vector env.

    Args:
        what: begin of the errors.
        envs: checked.
        other: the call for envs without shards.
    """
    if not envs.shards():
        raise ConfigError(
            f"{what} needs envs with backend='ray'; for these, use {other}, which calls the policy in this process",
            key="where",
        )
    if envs.num_spare_envs:
        raise ConfigError(f"{what}: spare envs are not supported there; leave num_spare_envs out", key="where")
