"""Prometheus: the counters of pools over HTTP, read from shared memory when Prometheus asks for them.

    workers -- counters in shared memory            Prometheus -- GET /metrics --> thread of the exporter
                        \\                                                               |
                         \\---------------------- statistics() <------------------ PoolCollector

Between two requests nothing runs. A request takes no lock of a pool and sends nothing to workers, so the thread that
uses the pool goes on; it only shares Python's interpreter lock with the request.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import socket
import weakref
from collections.abc import Iterator, Mapping
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

#: Name of a count in `Statistics` -> name and help text of the counter.
_COUNTERS = {
    "steps": ("vecenv_env_steps", "Steps of envs."),
    "restarts": ("vecenv_worker_restarts", "Workers that were replaced because they died or hung."),
    "recycled": ("vecenv_workers_recycled", "Workers that were replaced because of recycle_after."),
    "workers_added": ("vecenv_workers_added", "Workers that were added for envs that fail often."),
    "replayed": ("vecenv_episodes_replayed", "Episodes that were restored after a failure."),
    "unproven": ("vecenv_episodes_unproven", "Episodes that were restored from a state that may be incomplete."),
    "truncated": ("vecenv_episodes_truncated", "Episodes that a failure ended."),
    "exceptions": ("vecenv_env_exceptions", "Exceptions of envs that ended only an episode."),
    "steps_replayed": ("vecenv_steps_replayed", "Commands that were repeated to restore episodes."),
    "replay_seconds": ("vecenv_replay_seconds", "Seconds in which episodes were restored."),
}


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
    launched yet, or garbage has no samples at all, so Prometheus ends its series. The collector does not keep a pool
    alive. Any thread may collect, at any time.

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
        for count, (metric, text) in _COUNTERS.items():
            values = {name: found[count] for name, found in pools.items()}
            yield _family(_core.CounterMetricFamily, metric, text, values)
        steps = {name: found.envs.step for name, found in pools.items()}
        resets = {name: found.envs.reset for name, found in pools.items()}
        yield _histogram("vecenv_step_duration_seconds", "Wall time of steps, of all envs together.", steps)
        yield _histogram("vecenv_reset_duration_seconds", "Wall time of resets, of all envs together.", resets)
        yield from _caller_families(pools)
        yield from _gauge_families(pools)
        yield from _worker_families(pools)

    def _read(self) -> Iterator[tuple[str, Statistics]]:
        for name, reference in self._pools.items():
            envs = reference()
            try:
                found = None if envs is None else envs.statistics()
            except StateError:  # a manager that is not launched
                continue
            if found is not None and _is_open(found):
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
    """Return a handler of requests that waits for its client for some seconds only.

    A client that connects and sends or reads nothing would keep a thread for ever. A lost client is not an error of
    the program, so nothing is written to standard error.

    Args:
        handler: the class of handlers of prometheus_client.
        connections: the open connections of all handlers; each handler adds and removes its own.
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
        ConfigError: the port is in use, may not be used by this user, or is out of range; or something among `envs`
            has no `statistics()`.
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


def _is_open(found: Statistics) -> bool:
    """Return whether a pool is open: a closed one has no workers, times and steps."""
    return bool(len(found.workers.pid) or len(found.envs.step.num) or found.steps)


def _family(kind: Any, name: str, text: str, values: Mapping[str, float]) -> Any:
    family = kind(name, text, labels=["pool"])
    for pool, value in values.items():
        if not math.isnan(value):
            family.add_metric([pool], value)
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


def _caller_families(pools: Mapping[str, Statistics]) -> Iterator[Any]:
    callers = {pool: found.caller for pool, found in pools.items() if found.caller.seconds}
    # Whole microseconds: a counter must never decrease, and a share times a time may do so in its last digit.
    yield _family(
        _core.CounterMetricFamily,
        "vecenv_caller_seconds",
        "Seconds since the caller first waited for envs.",
        {pool: round(caller.seconds, 6) for pool, caller in callers.items()},
    )
    yield _family(
        _core.CounterMetricFamily,
        "vecenv_caller_waiting_seconds",
        "Seconds in which the caller waited for envs.",
        {pool: round(caller.seconds * caller.waiting_share, 6) for pool, caller in callers.items()},
    )


def _gauge_families(pools: Mapping[str, Statistics]) -> Iterator[Any]:
    gauge = _core.GaugeMetricFamily
    yield _family(
        gauge,
        "vecenv_oldest_answer_age_seconds",
        "Seconds since the last answer of the env that has been silent for longest.",
        {pool: _max(found.envs.answer_age) for pool, found in pools.items()},
    )
    yield _family(
        gauge,
        "vecenv_env_cpu_ratio",
        "Share of steps and resets in which envs compute, mean over envs.",
        {pool: _mean(found.envs.cpu_share) for pool, found in pools.items()},
    )
    yield _family(
        gauge,
        "vecenv_recovery_log_bytes",
        "Memory of the commands that are kept to restore envs.",
        {pool: found.log_nbytes for pool, found in pools.items()},
    )
    yield _family(
        gauge,
        "vecenv_workers",
        "Worker processes; 0 if the envs live in the process of the caller.",
        {pool: len(found.workers.pid) for pool, found in pools.items()},
    )


def _worker_families(pools: Mapping[str, Statistics]) -> Iterator[Any]:
    for name, text, attribute in (
        ("vecenv_worker_busy_ratio", "Share of the time since the start in which a worker ran envs.", "busy_share"),
        ("vecenv_worker_resident_memory_bytes", "Memory of a worker in RAM, shared memory included.", "rss_nbytes"),
    ):
        family = _core.GaugeMetricFamily(name, text, labels=["pool", "worker"])
        for pool, found in pools.items():
            for worker_id, value in enumerate(getattr(found.workers, attribute).tolist()):
                if not math.isnan(value):
                    family.add_metric([pool, str(worker_id)], value)
        yield family


def _max(values: Any) -> float:
    return float(max(values[~np.isnan(values)], default=math.nan))


def _mean(values: Any) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan
