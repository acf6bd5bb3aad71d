"""Objects of `multiprocessing` in constructors: workers and their successors share them with the program."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import multiprocessing
import os
import socket
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv

from tests.core.shards.local_pools import LocalPool
from tests.descriptors import open_descriptors
from tests.faults.front_ends import FRONT_ENDS
from tests.faults.traces import end
from vecenv import VectorEnv
from vecenv.envs.toys import CountEnv
from vecenv.errors import ConfigError

pytestmark = [
    pytest.mark.extended,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def heap() -> None:
    """Make the memory that `multiprocessing` keeps for values until this process ends."""
    multiprocessing.RawValue("q", 0)


class Value:
    """A value with a lock; subclasses share other objects."""

    def __init__(self, context: Any) -> None:
        self.value = context.Value("q", 0)

    def write(self, pid: int) -> None:
        """Pass on a process id, in an env."""
        with self.value.get_lock():
            self.value.value = pid

    def read(self) -> int:
        """Return a process id that an env has passed on, in the program."""
        return int(self.value.value)


class Array(Value):
    def __init__(self, context: Any) -> None:
        self.array = context.Array("q", 3)

    def write(self, pid: int) -> None:
        self.array[1] = pid

    def read(self) -> int:
        return int(self.array[1])


class Lock(Value):
    kind = "Lock"

    def __init__(self, context: Any) -> None:
        self.lock, self.value = getattr(context, self.kind)(), context.RawValue("q", 0)

    def write(self, pid: int) -> None:
        with self.lock:
            self.value.value = pid


class Semaphore(Lock):
    kind = "BoundedSemaphore"


class Condition(Lock):
    kind = "Condition"


class Event(Value):
    def __init__(self, context: Any) -> None:
        self.event, self.value = context.Event(), context.RawValue("q", 0)

    def write(self, pid: int) -> None:
        self.value.value = pid
        self.event.set()

    def read(self) -> int:
        assert self.event.wait(60)
        self.event.clear()
        return super().read()


class Queue(Value):
    kind = "Queue"

    def __init__(self, context: Any) -> None:
        self.queue = getattr(context, self.kind)()

    def write(self, pid: int) -> None:
        self.queue.put(pid)

    def read(self) -> int:
        pid = int(self.queue.get(timeout=60))
        with self.queue._wlock:  # the thread of a worker that has just ended would have kept it
            return pid


class JoinableQueue(Queue):
    kind = "JoinableQueue"


class SimpleQueue(Queue):
    kind = "SimpleQueue"

    def read(self) -> int:
        return int(self.queue.get())


class Pipe(Value):
    def __init__(self, context: Any) -> None:
        self.reader, self.writer = context.Pipe(duplex=False)

    def write(self, pid: int) -> None:
        self.writer.send(pid)

    def read(self) -> int:
        assert self.reader.poll(60)
        return int(self.reader.recv())


class Socket(Value):
    def __init__(self, context: Any) -> None:
        self.ours, self.theirs = socket.socketpair()

    def write(self, pid: int) -> None:
        self.theirs.send(pid.to_bytes(8, "big"))

    def read(self) -> int:
        return int.from_bytes(self.ours.recv(8), "big")

    def __del__(self) -> None:
        self.ours.close()
        self.theirs.close()


KINDS = {
    kind.__name__: kind
    for kind in (Value, Array, Lock, Semaphore, Condition, Event, Queue, JoinableQueue, SimpleQueue, Pipe, Socket)
}


class SharingEnv(CountEnv):
    """Passes on the id of its process in every step.

    Args:
        shared: passes it on.
        raises: whether the third step of an episode raises.
    """

    def __init__(self, shared: Value, raises: bool = False) -> None:
        super().__init__(length=5)
        self.shared = shared
        self.raises = raises

    def lock_id(self) -> int:
        return id(self.shared.lock)  # type: ignore[attr-defined]

    def step(self, action: Any) -> Any:
        self.shared.write(os.getpid())
        if self.raises and self.elapsed_steps == 2:
            raise ZeroDivisionError
        return super().step(action)


def share(kind: str, start_method: str) -> tuple[Value, Callable[[], SharingEnv]]:
    shared = KINDS[kind](multiprocessing.get_context(start_method))
    return shared, functools.partial(SharingEnv, shared)


ACTION = np.zeros(1, np.int64)


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_reaches_a_worker_and_its_successors(kind: str, start_method: str) -> None:
    shared, env_fn = share(kind, start_method)
    with contextlib.closing(VectorEnv([env_fn], num_workers=1, context=start_method)) as envs:
        envs.reset(seed=1)
        pids = []
        for _ in range(3):
            envs.step(ACTION)
            pids.append(shared.read())
            while pids[-1] in pids[:-1]:  # written before the end of that worker
                pids[-1] = shared.read()
            assert pids[-1] == envs.worker_pids[0]
            end(pids[-1])
        assert len(set(pids)) == 3


#: The objects that the other vector envs pass. Without a fork, their pickles have no descriptors and no memory.
OTHERS = [("fork", kind) for kind in KINDS] + [(method, "Event") for method in ("forkserver", "spawn")]


class BareEvent(Event):
    """An event alone: Gymnasium's pickles have no shared memory."""

    def __init__(self, context: Any) -> None:
        self.event = context.Event()

    def write(self, pid: int) -> None:
        self.event.set()

    def read(self) -> int:
        return int(self.event.wait(60))


@pytest.mark.parametrize("start_method, kind", OTHERS)
def test_an_object_passes_as_in_gymnasium_and_stable_baselines(start_method: str, kind: str) -> None:
    sb3 = pytest.importorskip("stable_baselines3.common.vec_env", exc_type=ImportError)
    found = []
    for make, name in ((AsyncVectorEnv, "context"), (sb3.SubprocVecEnv, "start_method"), (VectorEnv, "context")):
        context = multiprocessing.get_context(start_method)
        shared = KINDS[kind](context) if start_method == "fork" else BareEvent(context)
        with contextlib.closing(make([functools.partial(SharingEnv, shared)], **{name: start_method})) as envs:
            envs.reset()
            envs.step(ACTION)
            found.append(shared.read() not in (0, os.getpid()))
    assert found == [True, True, True]


@pytest.mark.parametrize("front_end", [name for name in FRONT_ENDS if name not in ("shards", "evaluate")])
def test_an_object_reaches_the_envs_of_every_front_end(front_end: str) -> None:
    shared, env_fn = share("Queue", "forkserver")
    with FRONT_ENDS[front_end]([env_fn] * 2) as played:
        played.play(2)
        assert {shared.read() for _ in range(4)} <= set(played.worker_pids)


def test_an_object_reaches_workers_of_the_fallback(implementation: str) -> None:
    shared, env_fn = share("Queue", "forkserver")
    with contextlib.closing(VectorEnv([env_fn] * 2, num_workers=2)) as envs:
        envs.reset(seed=1)
        envs.step(ACTION.repeat(2))
        assert {shared.read(), shared.read()} == set(envs.worker_pids)


def test_one_lock_in_two_envs_of_a_worker_is_one_lock() -> None:
    shared, env_fn = share("Lock", "forkserver")
    with contextlib.closing(VectorEnv([env_fn, env_fn], num_workers=1)) as envs:
        one, other = envs.call("lock_id")
        assert one == other


def test_an_object_reaches_the_worker_that_measures_an_env() -> None:
    shared, env_fn = share("Pipe", "forkserver")
    with contextlib.closing(VectorEnv([env_fn], num_workers="auto")) as envs:
        envs.reset(seed=1)
        envs.step(ACTION)
        while shared.read() != envs.worker_pids[0]:
            pass


@pytest.mark.usefixtures("recycles_at_once")
def test_an_object_reaches_recycled_workers() -> None:
    shared, env_fn = share("SimpleQueue", "forkserver")
    failures = {"recycle_after": {"episodes": 1}}
    with contextlib.closing(VectorEnv([env_fn], num_workers=1, failures=failures)) as envs:
        (first,) = envs.worker_pids
        envs.reset(seed=1)
        for _ in range(20):
            envs.step(ACTION)
        assert envs.worker_pids[0] != first
        while shared.read() != envs.worker_pids[0]:
            pass


def test_an_object_reaches_an_env_that_is_built_again_after_its_exception() -> None:
    shared, env_fn = share("SimpleQueue", "forkserver")
    failures = {"on_exception": "truncate"}
    raising = functools.partial(env_fn, raises=True)
    with contextlib.closing(VectorEnv([raising], num_workers=1, failures=failures)) as envs:
        envs.reset(seed=1)
        for _ in range(8):
            envs.step(ACTION)
        assert [shared.read() for _ in range(6)] == [*envs.worker_pids * 6]


def test_a_successor_has_no_more_descriptors_than_the_first_worker() -> None:
    _, env_fn = share("SimpleQueue", "forkserver")
    with contextlib.closing(VectorEnv([env_fn] * 2, num_workers=1)) as envs:
        envs.reset(seed=1)
        counts, ours = [], []
        for _ in range(3):
            envs.step(ACTION.repeat(2))
            counts.append(len(open_descriptors(envs.worker_pids[0])))
            ours.append(len(os.listdir("/proc/self/fd")))
            end(envs.worker_pids[0])
        assert len(set(counts)) == 1 and len(set(ours)) == 1


@pytest.mark.parametrize("kind", ["Lock", "Value", "Queue"])
def test_a_lock_for_fork_is_refused_elsewhere(kind: str) -> None:
    _, env_fn = share(kind, "fork")
    with pytest.raises(ConfigError, match=r"env_fns\[0\] .* multiprocessing.get_context\('forkserver'\)"):
        VectorEnv([env_fn], num_workers=1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_shard_refuses_an_object_of_this_machine(kind: str) -> None:
    _, env_fn = share(kind, "forkserver")
    pool = LocalPool([env_fn] * 2)
    with pytest.raises(ConfigError, match=r"env_fns\[0\] .* a shard may run on another one"):
        pool.start()


def test_an_ordinary_number_of_ctypes_travels_beside_a_shared_one() -> None:
    shared, _ = share("Value", "forkserver")
    with contextlib.closing(VectorEnv([functools.partial(CtypesEnv, shared, ctypes.c_longlong(7))])) as envs:
        assert envs.call("number") == (7,)


class CtypesEnv(SharingEnv):
    def __init__(self, shared: Value, number: Any) -> None:
        super().__init__(shared)
        self._number = number

    def number(self) -> int:
        return int(self._number.value)
