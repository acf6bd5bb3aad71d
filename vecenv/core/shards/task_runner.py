"""TaskRunner: runs the tasks of a shard, one after the other, in a thread of its own.

So the shard can answer requests while a task runs, which is its heartbeat.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from ..layout.messages import pack_error
from .recorded_pool import RecordedPool, Task
from .requests import PackedError, RunTask

__all__ = ["TaskRunner"]


class TaskRunner:
    """The tasks of one shard, and their thread.

    Args:
        pool: of the shard. No other thread uses it while a task runs.
        pack: makes the attachment of a reply of the value or the exception of a task; called in the thread.
    """

    def __init__(self, pool: RecordedPool, pack: Callable[[Any, PackedError | None], bytes]) -> None:
        self._pool = pool
        self._pack = pack
        self._tasks: dict[int, Task] = {}
        self._thread = ThreadPoolExecutor(1, "vecenv task")
        self._running: deque[Future[bytes]] = deque()

    @property
    def is_running(self) -> bool:
        """Whether a task runs, or its result was not taken."""
        return bool(self._running)

    def begin(self, op: RunTask, shared: Any) -> None:
        """Run a task, after those that run now."""
        self._running.append(self._thread.submit(self._run, op, shared))

    def forget(self, task_id: int) -> None:
        """Drop a task, once those that run now have ended."""
        self._thread.submit(self._tasks.pop, task_id, None)

    def take(self, seconds: float) -> bytes | None:
        """Return the attachment of the oldest task; None if it has not ended within this number of seconds."""
        if not wait([self._running[0]], seconds).done:
            return None
        return self._running.popleft().result()

    def close(self) -> None:
        """Begin to end the thread: tasks that wait are not run."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _run(self, op: RunTask, shared: Any) -> bytes:
        try:
            self._pool.begin(op.first)
            task = self._tasks.get(op.task_id)
            if task is None:
                task = self._tasks[op.task_id] = pickle.loads(op.factory or b"")(self._pool)
            value = task(pickle.loads(op.argument), shared)
            return self._pack(value, None)
        except BaseException as error:  # also an exit: it must not end the thread, and the driver raises it
            packed = pack_error(error)
        self._pool.finish()
        return self._pack(None, packed)
