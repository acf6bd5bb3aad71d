"""The private parts that tests watch or disturb; each private name stands here once, in a typed function."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing import forkserver, resource_tracker
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest

from vecenv import VectorEnv
from vecenv.core.advice.sizing import Setting
from vecenv.core.advice.waiting import WaitingCheck
from vecenv.core.layout.commands import Entry
from vecenv.core.operations.engine import OpenedEnvs
from vecenv.core.operations.requests import Requests
from vecenv.core.operations.waiter import Waiter
from vecenv.core.pool import process, starting, waiting_constructors
from vecenv.core.pool.pool import Pool
from vecenv.core.processes.worker_group import WorkerGroup
from vecenv.core.recovery.action_pages import Page
from vecenv.core.recovery.journal import Journal
from vecenv.core.shards import shard_counters
from vecenv.core.shards.shard_status import ShardStatus
from vecenv.core.system import fork_server
from vecenv.envs.remote import CallEnvMethod
from vecenv.report import Verdict

# ---- pools ---------------------------------------------------------------------------------


def pool_of(envs: Any) -> Pool:
    """Return the pool of an ALF environment or of a launched manager; a vector env has the public `pool`."""
    pool: Pool = envs._pool
    return pool


def vector_env_of(manager: Any) -> VectorEnv:
    """Return the vector env of a `GymVectorEnvManager`."""
    envs: VectorEnv = manager._vector_env
    return envs


def engine_of(pool: Pool) -> Any:
    """Return the engine of a pool: an `Engine`, whose kind has further methods."""
    return pool._engine


def shard_status_of(pool: Pool, shard: int) -> ShardStatus:
    """Return the state of a shard, as the driver knows it."""
    status: ShardStatus = engine_of(pool)._shards[shard]
    return status


def show_starts_after(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the first line of the log about a long start come after this time."""
    monkeypatch.setattr(starting, "_FIRST_LINE_SECONDS", seconds)


def send_all_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have shards that live in this process, or in forks of it, send their counters with each reply."""
    monkeypatch.setattr(shard_counters, "_PERIOD_NS", 0)


def worker_group_of(pool: Pool) -> WorkerGroup:
    """Return the workers of a process pool and their descriptors."""
    group: WorkerGroup = engine_of(pool)._group
    return group


def opened_envs(pool: Pool) -> OpenedEnvs:
    """Return the plan, the memory and the counters of an open pool."""
    return pool._envs


def timings_of(pool: Pool) -> np.ndarray[Any, Any] | None:
    """Return the counted times of each env in the pool's memory; None with `timings=False`."""
    envs = opened_envs(pool)
    return envs.plan.counters.timings(envs.counters)


def force_spreading(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Let pools without `num_workers` begin with two workers, and find at a later request that their envs wait.

    Args:
        after: number of requests before that one.
    """
    requests: WeakKeyDictionary[WaitingCheck, int] = WeakKeyDictionary()

    def is_due(check: WaitingCheck) -> bool:
        requests[check] = requests.get(check, 0) + 1
        return requests[check] > after

    cause = "the envs wait for 99% of their time"
    verdict = Verdict("waiting envs", cause, 0.99, "share", "num_workers=...", 50.0, 50.0)
    monkeypatch.setattr(process, "usable_cores", lambda: 2)
    monkeypatch.setattr(WaitingCheck, "is_due", is_due)
    monkeypatch.setattr(WaitingCheck, "find", lambda check: (verdict, Setting(1000)))
    monkeypatch.setattr("vecenv.core.pool.spreading._PAUSE_NS", 0)


def set_least_wait(monkeypatch: pytest.MonkeyPatch, nanoseconds: int) -> None:
    """Set how long constructors that are not begun must wait before other workers build their envs."""
    monkeypatch.setattr(waiting_constructors, "_LEAST_GAIN_NS", nanoseconds)


def hub_of(pool: Pool) -> Any:
    """Return the hub of an open pool: a `Hub`, whose kind has further methods."""
    return pool._hub


def note_calls_of_native_hub(hub: Any) -> list[str]:
    """Return a list to which a hub adds the name of each method of the C extension that its Python code calls."""
    native, names = hub._hub, []

    class Noting:
        def __getattr__(self, name: str) -> Any:
            names.append(name)
            return getattr(native, name)

    hub._hub = Noting()
    return names


def waiter_of(pool: Pool) -> Waiter:
    """Return the part of an open pool that has its inbox and its watchdog."""
    return pool._waiter


def requests_of(pool: Pool) -> Requests:
    """Return the part of an open pool that sends commands."""
    return pool._requests


# ---- fork servers and the resource tracker -------------------------------------------------


def own_fork_servers() -> list[fork_server.ForkServer]:
    """Return the fork servers that pools have started, import servers included."""
    return [server for server in fork_server.servers if not server.is_stopped]


def program_fork_server_ids() -> tuple[int | None, int | None, int | None]:
    """Return the pid of the fork server of `multiprocessing`, and this process's ends of the pipes that it reads."""
    server: Any = forkserver._forkserver
    return server._forkserver_pid, server._forkserver_alive_fd, getattr(server, "_forkserver_authkey_fd", None)


def resource_tracker_ids() -> tuple[int | None, int | None]:
    """Return the pid of the resource tracker, and the descriptor of this process that it reads from."""
    tracker: Any = resource_tracker._resource_tracker
    return tracker._pid, tracker._fd


# ---- managers and envs of DI-engine --------------------------------------------------------


def config_of(owner: Any) -> Any:
    """Return the config of a manager or of an env, merged over its defaults."""
    return owner._cfg


def call_envs(manager: Any, name: str, *args: Any, env_ids: Sequence[int] | None = None) -> list[Any]:
    """Call a method of these envs of a launched manager (default: all); it is not checked first that they have it."""
    return list(manager._call_envs(CallEnvMethod(name, args, {}), name, env_ids))


def set_step_timeout(manager: Any, seconds: float) -> None:
    """Change the limit of steps of a manager that may be running, as programs for DI-engine do."""
    manager._step_timeout = seconds


def seed_of(env: Any) -> tuple[Any, Any]:
    """Return the seed of an env of DI-engine and whether it is a dynamic one; of a manager, lists of these by env."""
    return env._seed, env._dynamic_seed


# ---- journals ------------------------------------------------------------------------------


def journal_of(pool: Pool) -> Journal:
    """Return the journal of an open pool that recovers its workers."""
    journal = opened_envs(pool).journal
    assert journal is not None, "the pool does not recover its workers"
    return journal


def entries_of(journal: Journal, env_id: int, first: int = 1) -> list[Entry]:
    """Return the commands of an env that are kept, from step_id `first` on."""
    return journal._entries(env_id, first)


def pages_of(journal: Journal) -> Sequence[Page]:
    """Return the pages that hold steps."""
    return journal._pages


def spare_pages_of(journal: Journal) -> Sequence[Page]:
    """Return the dropped pages that the next steps may use again."""
    return journal._free_pages


def prune(journal: Journal) -> None:
    """Drop the commands that no restore point needs, as the journal does now and then."""
    journal._prune()


def compact(journal: Journal) -> None:
    """Keep only the rows of pages that an env needs, and count the size from the start."""
    journal._compact()
