"""Prometheus: the counters of pools over HTTP, read from shared memory when Prometheus asks for them.

    workers -- counters in shared memory            Prometheus -- GET /metrics --> thread of the exporter
                        \\                                                               |
                         \\---------------------- statistics() <------------------ PoolCollector

Between two requests nothing runs. A request takes no lock of a pool and sends nothing to workers, so the thread that
uses the pool continues; it only shares Python's interpreter lock with the request.
"""

from __future__ import annotations

import contextlib
import io
import math
import operator
import os
import socket
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ..errors import ConfigError, StateError, require
from ..statistics import Durations, Statistics
from ..values.checks import check_whole

__all__ = ["Exporter", "PoolCollector", "exporter"]

prometheus_client: Any = require("prometheus_client", "metrics")
_core: Any = require("prometheus_client.core", "metrics")
_float_to_text: Any = require("prometheus_client.utils", "metrics").floatToGoString

_MAX_PORT = 65535
#: Seconds after which a request ends whose client sends nothing.
_REQUEST_SECONDS = 5.0
#: Number of buckets of `Durations` that become one: four buckets are an octave.
_BUCKETS_PER_OCTAVE = 4

_Table = Sequence[tuple[str, str, str | Callable[[Statistics], float]]]
#: Name, help text, and a count of `Statistics` or a function of it, for each counter; NaN: the value is not known.
_COUNTERS: _Table = (
    ("vecenv_env_steps", "Steps of envs.", "steps"),
    ("vecenv_worker_restarts", "Workers that were replaced because they died or hung.", "restarts"),
    ("vecenv_workers_recycled", "Workers that were replaced because of recycle_after.", "recycled"),
    ("vecenv_workers_added", "Workers that were added for envs that fail often or wait.", "workers_added"),
    ("vecenv_episodes_replayed", "Episodes that were restored after a failure.", "replayed"),
    ("vecenv_episodes_unproven", "Episodes that were restored from a state that may be incomplete.", "unproven"),
    ("vecenv_episodes_truncated", "Episodes that a failure ended.", "truncated"),
    ("vecenv_env_exceptions", "Exceptions of envs that ended only an episode.", "exceptions"),
    ("vecenv_steps_replayed", "Commands that were repeated to restore episodes.", "steps_replayed"),
    ("vecenv_replay_seconds", "Seconds in which episodes were restored.", "replay_seconds"),
    # Whole microseconds: a counter must never decrease, and a share times a time may do so in its last digit.
    (
        "vecenv_caller_seconds",
        "Seconds since the caller first waited for envs.",
        lambda found: round(found.caller.seconds, 6) if found.caller.seconds else math.nan,
    ),
    (
        "vecenv_caller_waiting_seconds",
        "Seconds in which the caller waited for envs.",
        lambda found: round(found.caller.seconds * found.caller.waiting_share, 6),
    ),
)
#: The same of each gauge.
_GAUGES: _Table = (
    (
        "vecenv_oldest_answer_age_seconds",
        "Seconds since the last answer of the env that has been silent for longest.",
        lambda found: max(_known(found.envs.answer_age), default=math.nan),
    ),
    (
        "vecenv_env_cpu_ratio",
        "Share of steps and resets in which envs compute, mean over envs.",
        lambda found: float(np.mean(_known(found.envs.cpu_share) or math.nan)),
    ),
    ("vecenv_recovery_log_bytes", "Memory of the commands that are kept to restore envs.", "log_nbytes"),
    (
        "vecenv_workers",
        "Worker processes; 0 if the envs live in the process of the caller.",
        lambda found: len(found.workers.pid),
    ),
)
#: The same of each gauge with a value per worker.
_WORKER_GAUGES = (
    ("vecenv_worker_busy_ratio", "Share of the time since the start in which a worker ran envs.", "busy_share"),
    ("vecenv_worker_resident_memory_bytes", "Memory of a worker in RAM, shared memory included.", "rss_nbytes"),
)


class _HasStatistics(Protocol):
    def statistics(self) -> Statistics: ...


class PoolCollector:
    """Collects the metrics of pools for a registry of prometheus_client, such as `prometheus_client.REGISTRY`.

    All metrics have the label `pool`. Durations are seconds, memory is in bytes, shares are ratios from 0 to 1:

        vecenv_env_steps_total                      counter
        vecenv_worker_restarts_total                counter; also vecenv_workers_recycled_total, _workers_added_total
        vecenv_episodes_replayed_total              counter; also _episodes_unproven_total, _episodes_truncated_total
        vecenv_env_exceptions_total                 counter, see `FailurePolicy.on_exception`
        vecenv_steps_replayed_total                 counter; also vecenv_replay_seconds_total
        vecenv_step_duration_seconds                histogram of all envs, each bucket twice as wide as the one before
        vecenv_reset_duration_seconds               the same for resets
        vecenv_caller_seconds_total                 counter: since the caller first waited for envs
        vecenv_caller_waiting_seconds_total         counter: the part in which the caller waited for envs
        vecenv_oldest_answer_age_seconds            gauge: since the answer of the env that has been silent for longest
        vecenv_env_cpu_ratio                        gauge: the CPU share of steps and resets, mean over envs
        vecenv_recovery_log_bytes                   gauge: memory of the commands that are kept to restore envs
        vecenv_workers                              gauge: worker processes; 0 with the serial backend
        vecenv_worker_busy_ratio                    gauge with the label `worker`: since the start
        vecenv_worker_resident_memory_bytes         gauge with the label `worker`

    A metric that is not known has no sample, such as durations with `timings=False`. A pool that is closed, not
    launched yet, or garbage has no samples at all, so Prometheus ends its series. Any thread may collect, at any time.

    Args:
        pools: envs by the value of the label `pool`; anything of vecenv that has `statistics()`.

    Raises:
        ConfigError: a value has no `statistics()`, or a name is no text.

    Example:
        >>> import gymnasium, prometheus_client, vecenv
        >>> envs = vecenv.VectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2, backend="serial")
        >>> registry = prometheus_client.CollectorRegistry()
        >>> registry.register(PoolCollector({"train": envs}))
        >>> obs, infos = envs.reset(seed=0)
        >>> result = envs.step(envs.action_space.sample())
        >>> registry.get_sample_value("vecenv_env_steps_total", {"pool": "train"})
        2
        >>> envs.close()
    """

    def __init__(self, pools: Mapping[str, _HasStatistics]) -> None:
        for name, envs in pools.items():
            if not isinstance(name, str):
                raise ConfigError(f"envs: expected names of pools that are text, got {name!r}", key="envs")
            if not callable(getattr(envs, "statistics", None)):
                raise ConfigError(
                    f"envs: {type(envs).__name__} has no statistics(); pass the envs of vecenv themselves, without "
                    "wrappers around them",
                    key="envs",
                )
        self._pools = {name: weakref.ref(envs) for name, envs in pools.items()}

    def collect(self) -> Iterator[Any]:
        """Yield the metric families of prometheus_client, with the present samples of all open pools."""
        pools = dict(self._read())
        for table, kind in ((_COUNTERS, _core.CounterMetricFamily), (_GAUGES, _core.GaugeMetricFamily)):
            for metric, text, value_of in table:
                read = operator.itemgetter(value_of) if isinstance(value_of, str) else value_of
                yield _family(kind, metric, text, {(name,): read(found) for name, found in pools.items()})
        for metric, text, attribute in _WORKER_GAUGES:
            columns = {name: getattr(found.workers, attribute).tolist() for name, found in pools.items()}
            values: dict[tuple[str, ...], float] = {
                (name, str(i)): value for name, column in columns.items() for i, value in enumerate(column)
            }
            yield _family(_core.GaugeMetricFamily, metric, text, values, "worker")
        steps = {name: found.envs.step for name, found in pools.items()}
        resets = {name: found.envs.reset for name, found in pools.items()}
        yield _histogram("vecenv_step_duration_seconds", "Wall time of steps, of all envs together.", steps)
        yield _histogram("vecenv_reset_duration_seconds", "Wall time of resets, of all envs together.", resets)

    def _read(self) -> Iterator[tuple[str, Statistics]]:
        for name, reference in self._pools.items():
            envs = reference()
            try:
                found = None if envs is None else envs.statistics()
            except StateError:  # a manager that is not launched
                continue
            # A closed pool has no workers, times and steps.
            if found is not None and (len(found.workers.pid) or len(found.envs.step.num) or found.steps):
                yield name, found


class Exporter:
    """An HTTP server that answers GET /metrics with the metrics of pools; `exporter` makes it.

    Attributes:
        addr: the address that it listens on.
        port: the port that it listens on, also if port 0 was asked for.
    """

    addr: str
    port: int

    def __init__(self, collector: PoolCollector, port: int, addr: str) -> None:
        registry = prometheus_client.CollectorRegistry()
        registry.register(collector)
        try:
            # Releases before 0.19 return nothing.
            self._server, self._thread = prometheus_client.start_http_server(port, addr, registry)
        except OSError as error:
            where = f"exporter: cannot listen on port {port} of {addr}"
            why = error.strerror or str(error)
            raise ConfigError(f"{where}: {why}; choose another port, or 0 for any free one", key="port") from error
        self._pid = os.getpid()
        self._connections: set[socket.socket] = set()
        self._server.RequestHandlerClass = _bounded(self._server.RequestHandlerClass, self._connections)
        self._server.daemon_threads = False  # `server_close` waits for them
        self.addr, self.port = self._server.server_address[:2]

    def close(self) -> None:
        """Stop listening, cut off the requests under way, and end all threads; may be repeated.

        In a forked child it has no effect.
        """
        if self._pid != os.getpid() or not self._thread.is_alive():
            return
        self._server.shutdown()
        # Forked workers have copies of the descriptor. Without this call they would keep the port in use.
        self._server.socket.shutdown(socket.SHUT_RDWR)
        for connection in tuple(self._connections):
            with contextlib.suppress(OSError):  # its client has ended it
                connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Exporter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(addr={self.addr!r}, port={self.port})"


def _bounded(handler: Any, connections: set[socket.socket]) -> type:
    """Return a handler of requests that waits for its client for some seconds only, else it would keep its thread.

    A lost client is not an error of the program, so nothing is written to standard error. `connections` are the open
    connections of all handlers; each handler adds and removes its own.
    """

    class BoundedHandler(handler):
        timeout = _REQUEST_SECONDS

        def setup(self) -> None:
            super().setup()
            connections.add(self.connection)
            self.wfile = _Writer(self.connection)

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):
                super().handle()

        def finish(self) -> None:
            connections.discard(self.connection)
            super().finish()

    return BoundedHandler


class _Writer(io.RawIOBase):
    """Writes to a connection. A client that reads nothing is a lost one, which `wsgiref` does not log."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self._connection = connection

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        try:
            self._connection.sendall(data)
        except TimeoutError as error:
            raise ConnectionAbortedError("the client reads nothing") from error
        return len(data)


def exporter(
    envs: _HasStatistics | Mapping[str, _HasStatistics], port: int, *, addr: str = "127.0.0.1", name: str = "envs"
) -> Exporter:
    """Serve the metrics of one or several pools to Prometheus; `PoolCollector` lists them.

    A thread answers requests until `Exporter.close`, or until the program ends. When a pool is closed, its series are
    left out of the answers; envs and exporter may be closed in any order. Another program on the same machine can
    read the metrics. Other machines can do so only if `addr` is an address that they reach, such as '0.0.0.0'.

    Args:
        envs: a `VectorEnv`, `BatchedVectorEnv`, `SB3VecEnv`, manager or `ParallelAlfEnvironment`; or several of them
            by name, as {'train': envs, 'test': other_envs}.
        port: to listen on; 0: any free port, see `Exporter.port`.
        addr: the address to listen on.
        name: the value of the label `pool`, if `envs` is a single one.

    Returns:
        The running exporter, also a context manager that closes it.

    Raises:
        ConfigError: the port is in use, forbidden, or out of range; or one of `envs` has no `statistics()`.
        DependencyError: prometheus-client is not installed (when this module is imported).

    Example:
        >>> import gymnasium, urllib.request, vecenv
        >>> envs = vecenv.VectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2, backend="serial")
        >>> with exporter(envs, 0) as served:
        ...     text = urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics").read().decode()
        >>> 'vecenv_env_steps_total{pool="envs"}' in text
        True
        >>> envs.close()
    """
    number = check_whole("port", port, 0)
    if number > _MAX_PORT:
        raise ConfigError(f"port: expected a number from 0 to {_MAX_PORT}, got {port!r}", key="port")
    return Exporter(PoolCollector(envs if isinstance(envs, Mapping) else {name: envs}), number, addr)


def _family(kind: Any, name: str, text: str, values: Mapping[tuple[str, ...], float], *labels: str) -> Any:
    """Return a family of metrics; `values` are by the values of the label `pool` and of further labels."""
    family = kind(name, text, labels=["pool", *labels])
    for of_labels, value in values.items():
        if not math.isnan(value):
            family.add_metric(of_labels, value)
    return family


def _histogram(name: str, text: str, durations: Mapping[str, Durations]) -> Any:
    family = _core.HistogramMetricFamily(name, text, labels=["pool"])
    for pool, of_envs in durations.items():
        if len(of_envs.num):
            together = of_envs.together()
            up_to = together.buckets[0].cumsum()
            uppers = together.bounds[1:]
            ends = [*range(0, len(uppers) - 1, _BUCKETS_PER_OCTAVE), len(uppers) - 1]
            buckets = [(_float_to_text(uppers[end]), int(up_to[end])) for end in ends]
            family.add_metric([pool], buckets, float(together.sum[0]))
    return family


def _known(values: Any) -> list[float]:
    """Return the values that are not NaN."""
    found: list[float] = values[~np.isnan(values)].tolist()
    return found
