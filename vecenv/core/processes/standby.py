"""The main function of a worker of an env server: build envs once, and serve one pool after the other with them.

    server -> worker   StandbyBoot
    worker -> server   Built
    server -> worker   Lease, then the descriptors of a socket and of the client's process
    ...                over that socket: `Boot` and all later messages between a pool and a worker
    worker -> server   Returned
    server -> worker   EndLease, at any time during a lease

A lease ends when its pool stops, when its client or the server ends it, or when the client's process ends. The worker
then keeps its envs for the next lease, or ends because they are not as new ones; see `EnvStock`. If the server ends,
an idle worker ends, and a leased one ends with its lease.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from ...gymnasium_api.registrations import registry_kept
from ...values.class_cache import forget_classes
from ...values.pickling import adopt_main, load_with_main
from ..host.global_rngs import GlobalRngs, torch_imports
from ..layout import messages
from ..layout.native import load
from ..system.blas_threads import cap_loaded_libraries
from ..system.clock import Deadline, limit_of
from ..system.descriptor import Descriptor, WakeEvent
from ..system.log_records import LogSender
from ..system.module_files import note_modules
from ..system.module_paths import import_from, unload
from ..system.process_state import find_running, program_kept, state_kept
from ..system.process_title import set_title
from ..system.process_tree import kill_tree, set_mark
from ..system.shared_objects import receive_shared
from ..system.stack_dump import disable_stack_dumps, enable_stack_dumps, note_pause
from .builder import EnvThread
from .env_stock import EnvStock, use_stock
from .worker_main import (
    Boot,
    ExitReport,
    Served,
    SetUpFailure,
    prepare,
    recv_descriptor,
    send_exit,
    serve,
    show_title,
)

__all__ = ["Built", "EndLease", "Lease", "Returned", "StandbyBoot", "standby_main"]

#: How often a slot that may just fall asleep is stopped again, in seconds.
_STOP_SECONDS = 0.05
#: Longest time for a system call, in milliseconds: 24 days.
_MOST_MS = 2**31 - 1


@dataclass
class StandbyBoot:
    """The first message of an env server to a worker.

    Attributes:
        name: of the env at the server.
        factory: pickled function that builds one env.
        num_envs, rebuild: as for `EnvStock`.
        renewer: pickled `Renewer`.
        mark: shows which processes the worker has started; see `process_tree`.
        close_seconds: how long a step may take after the end of a lease, and `close` of the envs; None: no limit.
    """

    name: str
    factory: bytes
    num_envs: int
    rebuild: str
    renewer: bytes
    mark: str
    close_seconds: float | None


@dataclass
class Built:
    """The worker has built its envs; or the text of the exception of a constructor."""

    error: str = ""


@dataclass
class Lease:
    """A pool gets the worker. The descriptors of a socket to it, and of the process of its client, follow.

    Attributes:
        is_last: whether the worker ends after this lease, even if its envs are as new.
    """

    is_last: bool = False


@dataclass
class EndLease:
    """The lease is over; the worker returns after the step under way."""


@dataclass
class Returned:
    """A lease is over; if not `is_fresh`, the worker closes its envs and ends."""

    is_fresh: bool


def standby_main(server: Connection) -> None:
    """Run one worker of an env server from its `StandbyBoot` message until its envs are used up, or the server ends.

    Args:
        server: the worker's end of a socket to the server.
    """
    boot: StandbyBoot = server.recv()
    set_mark(boot.mark)
    set_title(f"vecenv server: worker of {boot.name}", "vecenv standby")
    cap_loaded_libraries()
    stock: EnvStock | None = None
    try:
        with _LeaseWatch(server, boot):
            stock = EnvStock(load_with_main(boot.factory), boot.num_envs, boot.rebuild, load_with_main(boot.renewer))
            try:
                stock.build()
            except BaseException as error:  # the server reports it, even SystemExit
                server.send(Built(messages.pack_error(error)[3]))
                return
        use_stock(stock)
        server.send(Built())
        while stock.is_fresh:
            lease = _await_lease(server)
            _serve_client(server, boot, stock)
            server.send(Returned(stock.is_fresh and not lease.is_last))
            if lease.is_last:
                break
    except (EOFError, ConnectionError):  # the server has ended
        pass
    try:
        if stock is not None:
            with _LeaseWatch(server, boot):
                stock.close()
    finally:
        kill_tree(0, boot.mark)


def _await_lease(server: Connection) -> Lease:
    while not isinstance(message := server.recv(), Lease):  # an `EndLease` may have crossed the end of the last lease
        pass
    return message


def _serve_client(server: Connection, boot: StandbyBoot, stock: EnvStock) -> None:
    """Serve one pool until its lease ends; everything that belongs to the lease is released again."""
    control, client = Connection(recv_descriptor(server).number), recv_descriptor(server)
    modules = dict(sys.modules)
    lease = _ClientPool(control)
    keeps_state = boot.rebuild == "never"  # then it belongs to the envs
    kept = contextlib.nullcontext() if keeps_state else state_kept()
    try:
        with kept, control, contextlib.closing(client), _LeaseWatch(server, boot, client, lease.stop):
            running = find_running()
            with program_kept(), registry_kept(), stock.registrations_kept():
                called = lease.serve()
            stock.take_back(called, lease.num_envs, has_more_running=not find_running() <= running)
    finally:
        note_modules(unload(lease.modules, modules))
        forget_classes()
        set_title(f"vecenv server: worker of {boot.name}", "vecenv standby")
        del lease
        gc.collect()  # the mappings of the arena


class _ClientPool:
    """The worker's side of one lease.

    Args:
        control: the socket to the pool of the client.

    Attributes:
        num_envs: that the pool has in this worker.
        modules: names of the modules that were loaded until its envs were built.
    """

    def __init__(self, control: Connection) -> None:
        self.num_envs = 0
        self.modules: set[str] = set()
        self._control = control
        self._served = Served([])

    def stop(self) -> None:
        """Have `serve` return after the step under way, or before the pool has attached. Any thread may call this."""
        for host in self._served.hosts:
            host.stop()
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._control.fileno())) as end:
            end.shutdown(socket.SHUT_RD)

    def serve(self) -> set[int]:
        """Serve the pool until it stops or is gone; return the envs that its calls may have changed."""
        called: set[int] = set()
        with contextlib.suppress(EOFError, ConnectionError):
            pool: Boot = self._control.recv()
            self._serve(pool)
        for host in self._served.hosts:
            called |= host.called
        self._served.wake.close()
        self._served = Served([])
        return called

    def _serve(self, boot: Boot) -> None:
        control = self._control
        self.num_envs = len(boot.env_ids)
        show_title(boot, boot.env_ids)
        stack = recv_descriptor(control)
        shared = [recv_descriptor(control) for _ in range(boot.num_shared)]
        receive_shared(shared, ())
        enable_stack_dumps(stack.number)
        note_pause()
        sys.path[:] = boot.path
        adopt_main()
        log, threads = LogSender(control), [EnvThread(0, boot.settings)]
        try:
            import_from(boot.sources)
            log.install(boot.log_levels)
            with GlobalRngs(boot.first_env_id, boot.rng_entropy) as rngs, torch_imports:
                rngs.fork_guard.install()
                try:
                    self._served = prepare(boot, threads, rngs, control, log)
                except (EOFError, ConnectionError):
                    raise
                except Exception as error:
                    control.send_bytes(messages.dump(SetUpFailure(messages.pack_error(error))))
                    raise EOFError from error
                finally:
                    self.modules = set(sys.modules)
                if self._served.hosts:
                    serve(threads, self._served.hosts, control, log)
                    send_exit(ExitReport(), control, log)
        finally:
            log.end()
            disable_stack_dumps()
            receive_shared((), ())
            for descriptor in (stack, *shared):
                descriptor.close()


class _LeaseWatch:
    """A thread that ends a lease for the server or with the client's process, and a lonely worker with its server.

    Used with `with`, around a lease, or around calls into envs without a client. Before the end of the context, the
    worker has `close_seconds` after the event; then the thread kills it.

    Args:
        server: the socket to the server; the thread reads from it during a lease.
        boot: of the worker.
        client: the client's process; None: there is no lease.
        stop: called again and again to end the lease.
    """

    def __init__(
        self,
        server: Connection,
        boot: StandbyBoot,
        client: Descriptor | None = None,
        stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._server, self._boot, self._client, self._stop = server, boot, client, stop
        self._over = WakeEvent()
        self._thread = threading.Thread(target=self._watch, name="lease", daemon=True)

    def __enter__(self) -> None:
        native: Any = load()
        if self._client is not None and native is not None:  # a step may hold the GIL for ever
            seconds = limit_of(self._boot.close_seconds)
            close_ms = -1 if seconds is None else min(int(1e3 * seconds), _MOST_MS)
            over = self._over.descriptor.number
            native.watch_lease(self._server.fileno(), self._client.number, over, close_ms, self._boot.mark)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.wake()
        self._thread.join()
        self._over.close()

    def _watch(self) -> None:
        if not self._await_end():
            return
        deadline = Deadline(self._boot.close_seconds)
        while not deadline.is_over():
            self._stop()
            if wait([self._over.descriptor.number], _STOP_SECONDS):
                return
        kill_tree(0, self._boot.mark)
        os.killpg(0, signal.SIGKILL)

    def _await_end(self) -> bool:
        """Wait for the end of the lease; return False if the context ends before."""
        poll = select.poll()
        poll.register(self._over.descriptor, select.POLLIN)
        poll.register(self._server, 0 if self._client is None else select.POLLIN)  # POLLHUP is always reported
        if self._client is not None:
            poll.register(self._client, select.POLLIN)
        while True:
            ready = {number for number, _ in poll.poll()}
            if self._over.descriptor.number in ready:
                return False
            if self._client is None or self._client.number in ready:
                return True
            try:
                self._server.recv()  # an `EndLease`
                return True
            except (EOFError, ConnectionError, pickle.UnpicklingError):  # the lease outlives the server
                poll.unregister(self._server)
