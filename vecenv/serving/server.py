"""EnvServer: the loop of `vecenv serve`, in one thread.

    worker  building -> idle -> leased -> idle        its envs are as new
                             leased -> ending         they are not: it closes them, and another worker is started
                                       (dies at any time: another worker is started)
    client  asks -> waits -> has workers -> ends: closes its connection, or its process ends, or `max_seconds` are over

If the server ends, idle workers end at once, and leased ones with their lease.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pickle
import resource
import selectors
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from multiprocessing import Pipe
from typing import Any

from ..core.layout import messages
from ..core.processes.leased_workers import build_of_program
from ..core.processes.standby import Built, EndLease, Lease, Returned, StandbyBoot, standby_main
from ..core.processes.worker import START_ERRORS
from ..core.system.clock import Deadline, now_ns
from ..core.system.descriptor import Descriptor
from ..core.system.message_socket import BadMessage, MessageSocket
from ..core.system.monitor_files import check_private
from ..core.system.process_stat import started_at
from ..core.system.process_tree import kill_tree, new_mark
from ..core.system.start_process import disown, open_end, start_process
from ..core.system.worker_socket import ControlSocket
from ..envs.state.state import SNAPSHOTTER
from ..errors import ConfigError, describe_exit
from ..values.checks import nearest
from ..values.pickling import dump_with_main
from .catalog import CatalogEntry
from .quotas import WorkerRequest, find_grantable, refusal_of

__all__ = ["EnvServer"]

_LOG = logging.getLogger("vecenv.serve")
#: Most connections at the same time.
_MOST_CLIENTS = 512
#: Seconds that a worker has to kill itself before the server does it.
_MARGIN_SECONDS = 1.0
#: Seconds before a worker whose constructor has failed is started again; doubled with each failure in a row.
_RETRY_SECONDS, _MOST_RETRY_SECONDS = 1.0, 60.0
#: Most envs of a pool.
_MOST_ENVS = 65_535
#: Longest name of a client, and longest list of env names in an error, in characters.
_LONGEST_NAME, _LONGEST_LIST = 200, 1000
#: Seconds in which no connection is accepted, after one for which there was no descriptor.
_PAUSE_SECONDS = 1.0
_NS = 1_000_000_000
#: Number of the capability that lets a process lower niceness.
_CAP_SYS_NICE = 23


class _Worker:
    """One worker process.

    Attributes:
        number: of the worker; a successor has another one.
        state: 'building', 'idle', 'leased' or 'ending'.
        client: that has leased the worker, until its connection ends.
        deadline: when the worker is killed.
    """

    def __init__(self, number: int, entry: CatalogEntry, factory: bytes) -> None:
        self.number = number
        self.entry = entry
        self.state = "building"
        self.client: _Client | None = None
        self.deadline = Deadline(None)
        self.mark = new_mark()
        ours, theirs = Pipe()
        try:
            self.process = start_process("spawn", standby_main, (theirs,), f"vecenv standby {number}")
        finally:
            theirs.close()
        self.pid: int = self.process.pid
        self.started = started_at(self.pid)
        try:
            self.end = open_end(self.process)
        except OSError:  # no descriptor is left
            self.process.kill()
            self.process.join()
            raise
        self.socket = ControlSocket(ours)
        renewer = dump_with_main(SNAPSHOTTER)
        close_seconds = entry.close_seconds
        self.send(
            StandbyBoot(entry.name, factory, entry.envs_per_worker, entry.rebuild, renewer, self.mark, close_seconds)
        )

    def send(self, message: Any, descriptors: Sequence[Descriptor] = ()) -> None:
        """Send a message, and close these descriptors; if the worker is dead, its `end` is readable.

        The socket of a worker has room for the few messages of a lease; one without room does not work any more.
        """
        try:
            self.socket.send_frame(pickle.dumps(message), descriptors)
            if self.socket.has_unsent():
                self.kill()
        finally:
            for descriptor in descriptors:
                descriptor.close()

    def kill(self) -> None:
        """Kill the process and those that it has started; `end` is readable then."""
        self.process.kill()

    def release(self) -> int | None:
        """Return how the process has ended, after its end, and close everything."""
        self.process.join()
        code: int | None = self.process.exitcode
        kill_tree(0, self.mark, self.started or "0")
        self.end.close()
        self.socket.close()
        self.process.close()
        return code


class _Client:
    """One connection.

    Attributes:
        request: the workers that it waits for, or has got; None: it has not asked.
        num_owed: successors that it waits for.
        deadline: the end of its lease.
    """

    def __init__(self, socket: MessageSocket, pid: int, process: Descriptor) -> None:
        self.socket = socket
        self.pid = pid
        self.process = process
        self.entry: CatalogEntry | None = None
        self.request: WorkerRequest | None = None
        self.is_granted = False
        self.num_owed = 0
        self.max_seconds: float | None = None
        self.since_ns = now_ns()
        self.deadline = Deadline(None)
        self.outbox: deque[tuple[dict[str, Any], list[Descriptor]]] = deque()

    def close(self) -> None:
        """Close the descriptors of this connection."""
        for _, descriptors in self.outbox:
            for descriptor in descriptors:
                descriptor.close()
        self.outbox.clear()
        self.socket.close()
        self.process.close()


class EnvServer:
    """Builds envs in workers, and lends these to the programs of this user.

    Args:
        entries: the envs.
        path: of the socket; its folder must exist, with access for this user only.

    Raises:
        ConfigError: another server answers at this path, an env is unknown, or the system has no pidfds.
    """

    def __init__(self, entries: Sequence[CatalogEntry], path: str) -> None:
        with closing(Descriptor.of_process(os.getpid())) as process:
            if process.closed:
                raise ConfigError("env servers need pidfds (Linux 5.3), and this system, or a sandbox, refuses them")
        self._build = build_of_program()
        self._can_lower_niceness = _can_lower_niceness()  # read now: later there may be no descriptor for it
        self._entries = {entry.name: entry for entry in entries}
        self._factories = {entry.name: dump_with_main(entry.env_fn()) for entry in entries}
        self._path = path
        self._workers: dict[int, _Worker] = {}
        self._clients: list[_Client] = []
        self._failures = Counter[str]()  # constructors that have failed in a row
        self._starts: list[tuple[Deadline, CatalogEntry]] = []  # workers to start
        self._number = 0
        self._is_stopping = False
        self._pause = Deadline(None)  # connections are accepted again after it
        self._selector = selectors.DefaultSelector()
        self._listener = _listen(path)
        self._watch(self._listener, self._accept)

    # ---- the loop ----------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until `stop` is requested; an exception such as KeyboardInterrupt ends the server as well."""
        try:
            for entry in self._entries.values():
                self._starts += [(Deadline(0.0), entry)] * entry.workers
            while not self._is_stopping:
                self._start_workers()
                self._grant()
                for key, _ in self._selector.select(self._seconds_left()):
                    if self._is_watched(key.fileobj):  # else an earlier event has closed it
                        key.data()
                self._end_overdue()
        finally:
            self.close()

    def close(self) -> None:
        """End idle workers, and leave leased ones to their clients; remove the socket."""
        with contextlib.suppress(OSError):  # before the next server can take this path
            os.unlink(self._path)
        self._listener.close()
        for client in list(self._clients):
            client.close()
        self._clients.clear()
        left = [worker for worker in self._workers.values() if worker.state != "leased"]
        for worker in self._workers.values():
            worker.socket.close()  # an idle worker ends; a leased one ends with its lease
            if worker.state == "leased":
                disown(worker.process)
        deadline = Deadline(max((worker.entry.close_seconds for worker in left), default=0.0) + _MARGIN_SECONDS)
        for worker in left:
            worker.process.join(deadline.seconds_left())
            worker.kill()
            worker.release()
        self._workers.clear()
        self._selector.close()

    def _watch(self, end: Any, handle: Callable[[], None]) -> None:
        self._selector.register(end, selectors.EVENT_READ, handle)

    def _is_watched(self, end: Any) -> bool:
        return end.fileno() >= 0 and end in self._selector.get_map()

    def _unwatch(self, *ends: Any) -> None:
        for end in ends:
            if self._is_watched(end):
                self._selector.unregister(end)

    def _deadlines(self) -> Iterator[Deadline]:
        yield from (worker.deadline for worker in self._workers.values())
        yield from (client.deadline for client in self._clients)
        yield from (deadline for deadline, _ in self._starts)
        yield self._pause

    def _seconds_left(self) -> float | None:
        left = [seconds for one in self._deadlines() if (seconds := one.seconds_left()) is not None]
        return min(left, default=None)

    def _end_overdue(self) -> None:
        if self._pause.is_over():
            self._pause = Deadline(None)
            self._watch(self._listener, self._accept)
        for worker in self._workers.values():
            if worker.deadline.is_over():
                _LOG.warning("%s: worker %d does not return; it is killed", worker.entry.name, worker.pid)
                worker.deadline = Deadline(None)
                worker.kill()
        for client in [one for one in self._clients if one.deadline.is_over()]:
            self._send(client, {"over": f"its {client.max_seconds:g} seconds are over (max_seconds)"})
            self._end_client(client)

    # ---- workers -----------------------------------------------------------------------------

    def _start_workers(self) -> None:
        due = [start for start in self._starts if start[0].is_over()]
        self._starts = [start for start in self._starts if not start[0].is_over()]
        for _, entry in due:
            self._number += 1
            try:
                worker = _Worker(self._number, entry, self._factories[entry.name])
            except START_ERRORS as error:
                _LOG.warning("%s: a worker cannot be started: %s", entry.name, error)
                self._start_later(entry)
                continue
            self._workers[worker.number] = worker
            self._watch(worker.end, functools.partial(self._on_end, worker))
            self._watch(worker.socket, functools.partial(self._on_message, worker))

    def _start_later(self, entry: CatalogEntry) -> None:
        """Start another worker after a pause, because the last one was of no use."""
        seconds = min(_MOST_RETRY_SECONDS, _RETRY_SECONDS * 2 ** self._failures[entry.name])
        self._failures[entry.name] += 1
        self._starts.append((Deadline(seconds), entry))

    def _on_message(self, worker: _Worker) -> None:
        while (frame := worker.socket.take_frame()) is not None:
            message = messages.load(frame)
            if isinstance(message, Built):
                self._on_built(worker, message)
            elif isinstance(message, Returned):
                self._on_returned(worker, message)
        if worker.socket.is_at_eof():
            self._unwatch(worker.socket)

    def _on_built(self, worker: _Worker, built: Built) -> None:
        entry = worker.entry
        if built.error:
            _LOG.error("%s: its constructor has failed:\n%s", entry.name, built.error)
            self._start_later(entry)
            self._retire(worker)
            return
        self._failures[entry.name] = 0
        worker.state = "idle"
        if not any(one.state == "building" and one.entry is entry for one in self._workers.values()):
            _LOG.info("%s: %d workers are ready", entry.name, self._count(entry, "idle"))

    def _on_returned(self, worker: _Worker, returned: Returned) -> None:
        client, worker.client = worker.client, None
        worker.deadline = Deadline(None)
        if returned.is_fresh:
            worker.state = "idle"
            if client is not None and worker.entry.nice.get(_name_of(client)):
                os.setpriority(os.PRIO_PGRP, worker.pid, _niceness())
        else:
            self._starts.append((Deadline(0.0), worker.entry))
            self._retire(worker)

    def _retire(self, worker: _Worker) -> None:
        """Wait for the end of a worker that ends by itself."""
        worker.state = "ending"
        worker.deadline = Deadline(worker.entry.close_seconds + _MARGIN_SECONDS)

    def _on_end(self, worker: _Worker) -> None:
        self._on_message(worker)  # its last message explains its end
        self._unwatch(worker.socket, worker.end)
        del self._workers[worker.number]
        code = worker.release()
        if worker.client is not None:
            self._send(worker.client, {"exit": worker.number, "code": code})
        if worker.state == "building":
            _LOG.warning("%s: a worker has died while it built its envs: %s", worker.entry.name, describe_exit(code))
            self._start_later(worker.entry)
        elif worker.state != "ending":
            _LOG.info("%s: worker %d has died: %s", worker.entry.name, worker.pid, describe_exit(code))
            self._starts.append((Deadline(0.0), worker.entry))

    def _count(self, entry: CatalogEntry, state: str) -> int:
        return sum(worker.entry is entry and worker.state == state for worker in self._workers.values())

    # ---- clients -----------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            end, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # the client has gone
            return
        except OSError as error:  # no descriptor is left, and the listener stays readable
            _LOG.warning("a connection cannot be accepted: %s", error.strerror)
            self._unwatch(self._listener)
            self._pause = Deadline(_PAUSE_SECONDS)
            return
        connection = MessageSocket(end)
        pid, uid = connection.peer()
        try:
            if uid != os.geteuid():
                raise PermissionError(f"the server belongs to user {os.geteuid()}, not to user {uid}")
            if len(self._clients) >= _MOST_CLIENTS:
                raise BlockingIOError(f"the server has {_MOST_CLIENTS} connections")
            process = Descriptor.of_process(pid)
        except OSError as error:
            _refuse(connection, str(error))
            connection.close()
            return
        client = _Client(connection, pid, process)
        self._clients.append(client)
        self._watch(connection, lambda: self._on_client(client))
        self._watch(process, lambda: self._end_client(client))

    def _on_client(self, client: _Client) -> None:
        """Read the messages of a client, and send those that did not fit into its socket."""
        try:
            self._flush(client)
            while True:
                message, descriptors = client.socket.receive()
                for descriptor in descriptors:
                    descriptor.close()
                refusal = self._answer(client, message)
                if refusal:
                    _refuse(client.socket, refusal)
                    self._end_client(client)
                    return
        except BlockingIOError:
            return
        except BadMessage as error:
            _refuse(client.socket, str(error))
            self._end_client(client)
        except (EOFError, OSError):
            self._end_client(client)

    def _answer(self, client: _Client, message: dict[str, Any]) -> str:
        """Handle a request; return why it is refused, '' if it is not."""
        do = message.get("do")
        if do == "lease" and client.request is None:
            return self._ask(client, message)
        if do == "replace" and client.is_granted:
            assert client.request is not None
            if client.num_owed >= client.request.num_workers:
                return "more successors are asked for than the lease has workers"
            client.num_owed += 1
        elif do == "list":
            for part in self._describe():
                self._send(client, part)
            self._send(client, {"done": True})
        elif do == "stop":
            self._is_stopping = True
            self._send(client, {"done": True})
        else:
            return f"unknown request {do!r:.40}"
        return ""

    def _ask(self, client: _Client, message: dict[str, Any]) -> str:
        name, num_envs, who, seconds, build = map(message.get, ("env", "num_envs", "client", "max_seconds", "build"))
        if not isinstance(name, str) or not isinstance(who, str):
            return "env and client: expected texts"
        if len(who) > _LONGEST_NAME:
            return f"client: expected a name of at most {_LONGEST_NAME} characters, got {len(who)}"
        if type(num_envs) is not int or not 1 <= num_envs <= _MOST_ENVS:
            return f"num_envs: expected a number from 1 to {_MOST_ENVS}"
        if seconds is not None and (type(seconds) not in (int, float) or not seconds > 0):
            return "max_seconds: expected a number above 0, or null"
        if build != self._build:
            return f"the server has {_build_text(self._build)}, and the client {_build_text(build):.200}"
        entry = self._entries.get(name)
        if entry is None:
            guess, known = nearest(name, self._entries), ", ".join(self._entries)
            others = f"did you mean {guess!r}?" if guess else f"the server has {known:.{_LONGEST_LIST}}"
            return f"unknown env {name!r:.80}; {others}"
        request = WorkerRequest(who, -(-num_envs // entry.envs_per_worker))
        limits = [limit for limit in (seconds, entry.max_seconds) if limit is not None]
        client.entry, client.request = entry, request
        client.max_seconds = min(limits, default=None)
        return refusal_of(entry, request)

    def _send(self, client: _Client, message: dict[str, Any], *descriptors: Descriptor) -> None:
        """Send a message and these descriptors, which are closed then; both are kept until the client reads."""
        client.outbox.append((message, list(descriptors)))
        try:
            self._flush(client)
        except OSError:  # it has gone, which its process shows
            return

    def _flush(self, client: _Client) -> None:
        while client.outbox:
            message, descriptors = client.outbox[0]
            try:
                client.socket.send(message, descriptors)
            except BlockingIOError:
                break
            client.outbox.popleft()
            for descriptor in descriptors:
                descriptor.close()
        if self._is_watched(client.socket):
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.outbox else 0)
            self._selector.modify(client.socket, events, self._selector.get_key(client.socket).data)

    def _end_client(self, client: _Client) -> None:
        """End the connection and the lease of a client: its workers return, or are killed."""
        if client not in self._clients:
            return
        self._clients.remove(client)
        self._unwatch(client.socket, client.process)
        client.close()
        workers = [worker for worker in self._workers.values() if worker.client is client]
        for worker in workers:
            worker.send(EndLease())
            worker.deadline = Deadline(worker.entry.close_seconds + _MARGIN_SECONDS)
        if client.is_granted and client.entry is not None:
            _LOG.info("%s: the lease of %s (process %d) is over", client.entry.name, _name_of(client), client.pid)

    # ---- leases ------------------------------------------------------------------------------

    def _grant(self) -> None:
        for client in list(self._clients):
            while client.num_owed and client.entry is not None and self._count(client.entry, "idle"):
                client.num_owed -= 1
                self._lend(client, client.entry)
        for entry in self._entries.values():
            while (next_one := self._next_client(entry)) is not None:
                self._begin_lease(next_one, entry)

    def _begin_lease(self, client: _Client, entry: CatalogEntry) -> None:
        assert client.request is not None
        count = client.request.num_workers
        client.is_granted = True
        client.since_ns, client.deadline = now_ns(), Deadline(client.max_seconds)
        _LOG.info("%s: %s (process %d) has %d workers", entry.name, _name_of(client), client.pid, count)
        self._send(client, {"granted": count, "envs_per_worker": entry.envs_per_worker})
        for _ in range(count):
            if client in self._clients:
                self._lend(client, entry)

    def _next_client(self, entry: CatalogEntry) -> _Client | None:
        clients = [one for one in self._clients if one.entry is entry and one.request is not None]
        waiting = [one for one in clients if not one.is_granted]
        leased = Counter[str]()
        for one in clients:
            if one.is_granted and one.request is not None:
                leased[one.request.client] += one.request.num_workers
        requests = [one.request for one in waiting if one.request is not None]
        found = find_grantable(entry, self._count(entry, "idle"), leased, requests)
        return None if found is None else waiting[found]

    def _lend(self, client: _Client, entry: CatalogEntry) -> None:
        """Give one idle worker to a client; without descriptors for that, the client's lease ends."""
        worker = next(one for one in self._workers.values() if one.entry is entry and one.state == "idle")
        try:
            with contextlib.ExitStack() as made:
                ours, theirs = (made.enter_context(closing(Descriptor(end.detach()))) for end in socket.socketpair())
                process, end = (made.enter_context(closing(one.duplicate())) for one in (client.process, worker.end))
                made.pop_all()
        except OSError as error:
            _refuse(client.socket, f"the server cannot lend a worker: {error.strerror}")
            self._end_client(client)
            return
        niceness = entry.nice.get(_name_of(client), 0)
        is_last = False
        if niceness:
            os.setpriority(os.PRIO_PGRP, worker.pid, _niceness() + niceness)  # the system takes 19 for more
            is_last = not self._can_lower_niceness
        worker.state, worker.client = "leased", client
        worker.send(Lease(is_last), [theirs, process])
        self._send(client, {"worker": worker.number, "pid": worker.pid}, ours, end)

    def _describe(self) -> Iterator[dict[str, Any]]:
        """Yield the parts of the answer to `list`: workers by env, leases, and requests that wait."""
        for name, entry in self._entries.items():
            counts = {state: self._count(entry, state) for state in ("idle", "leased", "building", "ending")}
            yield {"envs": [{"env": name, **counts}], "leases": []}
        now = now_ns()
        for client in self._clients:
            if client.entry is not None and client.request is not None:
                lease = {
                    "env": client.entry.name,
                    "client": _name_of(client),
                    "pid": client.pid,
                    "workers": client.request.num_workers,
                    "seconds": (now - client.since_ns) // _NS,
                    "is_granted": client.is_granted,
                    "is_marked": client.entry.rebuild == "never",
                }
                yield {"envs": [], "leases": [lease]}


def _name_of(client: _Client) -> str:
    return "" if client.request is None else client.request.client


def _build_text(build: Any) -> str:
    return ", ".join(f"{key} {value}" for key, value in build.items()) if isinstance(build, dict) else "no releases"


def _niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


def _can_lower_niceness() -> bool:
    """Return whether this process may set the niceness of its workers back to its own; root in a container may not."""
    return bool(_capabilities() >> _CAP_SYS_NICE & 1) or resource.getrlimit(resource.RLIMIT_NICE)[0] >= 20 - _niceness()


def _capabilities() -> int:
    with open("/proc/self/status") as status:
        return next((int(line.split()[1], 16) for line in status if line.startswith("CapEff:")), 0)


def _refuse(connection: MessageSocket, reason: str) -> None:
    with contextlib.suppress(OSError):  # the client has gone
        connection.send({"refused": reason})


def _listen(path: str) -> socket.socket:
    """Return the listening socket at a path, with access for this user only; a socket without a server is replaced.

    Raises:
        ConfigError: a server answers there, other users have access to the folder, or the socket cannot be made.
    """
    folder = os.path.dirname(os.path.abspath(path))
    try:
        check_private(folder)
    except OSError as error:
        raise ConfigError(f"the folder of the socket, {folder}: {error.strerror}") from error
    try:
        MessageSocket.connect(path).close()
    except FileNotFoundError:
        pass
    except ConnectionRefusedError:  # its server was killed
        os.unlink(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; a socket's path has at most 107 bytes") from error
    else:
        raise ConfigError(f"an env server answers at {path} already; give --socket, or end it by vecenv serve --stop")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mask = os.umask(0o177)
    try:
        listener.bind(path)
        listener.listen(128)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigError(f"{path}: {error.strerror}; a socket's path has at most 107 bytes") from error
    finally:
        os.umask(mask)
    return listener
