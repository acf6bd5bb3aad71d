"""The exporter for Prometheus: its metrics, several pools, closing, ports, and scrapes beside a pool that works."""

from __future__ import annotations

import gc
import os
import signal
import socket
import struct
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

import vecenv
from vecenv import VectorEnv
from vecenv.envs.toys import NullEnv
from vecenv.errors import ConfigError, DependencyError

prometheus_client = pytest.importorskip("prometheus_client", exc_type=ImportError)

from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

from vecenv.integrations.prometheus import Exporter, PoolCollector, exporter  # noqa: E402

_TIMEOUT = 30.0


def _fetch(served: Exporter) -> str:
    with urllib.request.urlopen(f"http://{served.addr}:{served.port}/metrics", timeout=_TIMEOUT) as answer:
        return str(answer.read().decode())


def _scrape(served: Exporter) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return the samples of an exporter, {(name, sorted labels): value}."""
    families = text_string_to_metric_families(_fetch(served))
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def _of(name: str, pool: str = "envs", **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return name, tuple(sorted({"pool": pool, **labels}.items()))


def _names(samples: Any) -> set[str]:
    return {name for name, _ in samples}


@pytest.fixture
def envs() -> Iterator[VectorEnv]:
    with VectorEnv([NullEnv] * 3, num_workers=2) as envs:
        envs.reset(seed=0)
        for _ in range(20):
            envs.step(np.zeros(3, np.int64))
        yield envs


@pytest.fixture
def served(envs: VectorEnv) -> Iterator[Exporter]:
    with exporter(envs, 0) as served:
        yield served


@pytest.mark.extended
def test_exporter_answers_with_the_statistics(envs: VectorEnv, served: Exporter) -> None:
    samples, found = _scrape(served), envs.statistics()
    assert samples[_of("vecenv_env_steps_total")] == found.steps == 60
    assert samples[_of("vecenv_step_duration_seconds_count")] == 60
    assert samples[_of("vecenv_reset_duration_seconds_count")] == 3
    assert samples[_of("vecenv_step_duration_seconds_sum")] == found.envs.step.sum.sum()
    assert samples[_of("vecenv_workers")] == 2
    assert samples[_of("vecenv_recovery_log_bytes")] == found.log_nbytes > 0
    for worker in ("0", "1"):
        assert 0 < samples[_of("vecenv_worker_busy_ratio", worker=worker)] <= 1
        assert samples[_of("vecenv_worker_resident_memory_bytes", worker=worker)] > 1 << 20
    waiting = samples[_of("vecenv_caller_waiting_seconds_total")]
    assert 0 < waiting < samples[_of("vecenv_caller_seconds_total")]
    assert samples[_of("vecenv_oldest_answer_age_seconds")] < _TIMEOUT


def test_histograms_are_cumulative_and_agree_with_the_quantiles(envs: VectorEnv, served: Exporter) -> None:
    samples, step = _scrape(served), envs.statistics().envs.step.together()
    buckets = {
        float(dict(labels)["le"]): value
        for (name, labels), value in samples.items()
        if name == "vecenv_step_duration_seconds_bucket"
    }
    assert list(buckets) == sorted(buckets) and list(buckets)[-1] == float("inf")
    counts = list(buckets.values())
    assert counts == sorted(counts) and counts[-1] == step.num[0] == 60
    widths = np.diff(np.log2(list(buckets)[:-1]))
    np.testing.assert_allclose(widths, 1.0, err_msg="each bucket is twice as wide as the one before")
    median = step.p50[0]
    assert next(bound for bound in buckets if buckets[bound] >= 30) >= median
    assert buckets[max(bound for bound in buckets if bound < median)] <= 30


@pytest.mark.extended
def test_names_units_and_help_follow_the_conventions(served: Exporter) -> None:
    families = list(text_string_to_metric_families(_fetch(served)))
    units = "seconds", "bytes", "ratio"
    without_unit = {"vecenv_env_steps", "vecenv_steps_replayed", "vecenv_workers", "vecenv_workers_recycled"}
    without_unit |= {"vecenv_workers_added", "vecenv_worker_restarts", "vecenv_env_exceptions"}
    for family in families:
        name = family.name.removesuffix("_total")
        assert name.startswith("vecenv_") and family.documentation.endswith(".")
        assert name.endswith(units) or name in without_unit or name.startswith("vecenv_episodes_")
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples)
    assert {family.type for family in families} == {"counter", "gauge", "histogram"}
    assert len({family.name for family in families}) == len(families)


def test_pools_are_told_apart_by_a_label() -> None:
    with VectorEnv([NullEnv] * 2, backend="serial") as train, VectorEnv([NullEnv], backend="serial") as test:
        train.reset()
        test.reset()
        train.step(np.zeros(2, np.int64))
        with exporter({"train": train, "test": test}, 0) as served:
            samples = _scrape(served)
            text = _fetch(served)
    assert samples[_of("vecenv_env_steps_total", "train")] == 2
    assert samples[_of("vecenv_env_steps_total", "test")] == 0
    assert text.count("# HELP vecenv_env_steps_total") == 1


@pytest.mark.extended
def test_closed_pool_has_no_samples_and_the_others_stay(envs: VectorEnv) -> None:
    with VectorEnv([NullEnv]) as other, exporter({"first": envs, "other": other}, 0) as served:
        assert _of("vecenv_workers", "first") in _scrape(served)
        envs.close()
        pools = {dict(labels)["pool"] for _, labels in _scrape(served)}
        assert pools == {"other"}
        other.close()
        assert _scrape(served) == {} and "# TYPE vecenv_workers gauge" in _fetch(served)


@pytest.mark.extended
def test_exporter_does_not_keep_envs_alive() -> None:
    envs = VectorEnv([NullEnv], backend="serial")
    with exporter(envs, 0) as served:
        assert _scrape(served)
        del envs
        gc.collect()
        assert _scrape(served) == {}


@pytest.mark.extended
def test_timings_false_leaves_out_the_times() -> None:
    with VectorEnv([NullEnv], engine={"timings": False}) as envs, exporter(envs, 0, name="plain") as served:
        names = _names(_scrape(served))
        envs.reset()
        envs.step(np.zeros(1, np.int64))
        assert _scrape(served)[_of("vecenv_env_steps_total", "plain")] == 1
    assert "vecenv_workers" in names and not any("duration" in name or "busy" in name for name in names)


@pytest.mark.extended
def test_restarts_are_counted(envs: VectorEnv, served: Exporter) -> None:
    os.kill(envs.worker_pids[0], signal.SIGKILL)
    envs.step(np.zeros(3, np.int64))
    samples = _scrape(served)
    assert samples[_of("vecenv_worker_restarts_total")] == 1
    assert samples[_of("vecenv_episodes_replayed_total")] >= 1


def _make_alf() -> Any:
    return vecenv.alf.create_environment("CartPole-v1", num_parallel_environments=2, tensors=False, backend="serial")


def _make_batched() -> Any:
    make = lambda: gymnasium.make_vec("CartPole-v1", 2)  # noqa: E731
    return vecenv.BatchedVectorEnv([make], backend="serial")


@pytest.mark.parametrize("make", [_make_alf, _make_batched])
def test_everything_with_statistics_can_be_exported(make: Callable[[], Any]) -> None:
    envs = make()
    with exporter(envs, 0) as served:
        envs.reset()
        envs.step(np.zeros(2, np.int64))
        assert _scrape(served)[_of("vecenv_env_steps_total")] == 2
        envs.close()
        assert _scrape(served) == {}


@pytest.mark.parametrize("kind", ["base", "gym_vector"])
def test_managers_have_samples_from_launch_to_close(kind: str) -> None:
    envs = vecenv.ding.create_env_manager({"type": kind}, [lambda: gymnasium.make("CartPole-v1")] * 2)
    with exporter(envs, 0) as served:
        if kind == "base":  # the other one builds its envs at once
            assert _scrape(served) == {}
        envs.launch()
        envs.step({0: 0, 1: 0})
        assert _scrape(served)[_of("vecenv_env_steps_total")] == 2
        envs.close()
        assert _scrape(served) == {}


@pytest.mark.sb3
def test_sb3_vec_env_can_be_exported() -> None:
    sb3 = pytest.importorskip("vecenv.integrations.sb3", exc_type=ImportError)
    envs = sb3.SB3VecEnv([lambda: gymnasium.make("CartPole-v1")] * 2, backend="serial")
    with exporter(envs, 0) as served:
        envs.reset()
        envs.step(np.zeros(2, np.int64))
        assert _scrape(served)[_of("vecenv_env_steps_total")] == 2
        envs.close()


@pytest.mark.extended
def test_collector_serves_a_registry_of_the_program(envs: VectorEnv) -> None:
    registry = prometheus_client.CollectorRegistry()
    registry.register(PoolCollector({"a": envs}))
    registry.register(later := PoolCollector({}))
    assert registry.get_sample_value("vecenv_env_steps_total", {"pool": "a"}) == 60
    registry.unregister(later)
    assert b'vecenv_workers{pool="a"} 2.0' in prometheus_client.generate_latest(registry)


# ---- the server ----------------------------------------------------------------------------------


@pytest.mark.extended
def test_port_zero_listens_on_this_machine_only(served: Exporter) -> None:
    assert served.addr == "127.0.0.1" and served.port > 0
    assert repr(served) == f"Exporter(addr='127.0.0.1', port={served.port})"


@pytest.mark.extended
def test_port_in_use_is_an_error_that_names_it(envs: VectorEnv, served: Exporter) -> None:
    threads = threading.active_count()
    with pytest.raises(ConfigError, match=f"port {served.port} of 127.0.0.1: .*in use; choose another port"):
        exporter(envs, served.port)
    assert threading.active_count() == threads
    assert _scrape(served)


@pytest.mark.parametrize("port", [-1, 65536, 9100.0, "9100", True])
def test_wrong_ports_are_refused(port: Any) -> None:
    with pytest.raises(ConfigError, match="port: expected a"):
        exporter({}, port)


def test_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot listen on port 0 of 192.0.2.1"):
        exporter({}, 0, addr="192.0.2.1")


def test_envs_without_statistics_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"object has no statistics\(\)"):
        exporter(object(), 0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="names of pools that are text, got 3"):
        PoolCollector({3: object()})  # type: ignore[dict-item]


@pytest.mark.extended
def test_close_frees_port_threads_and_descriptors(envs: VectorEnv) -> None:
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    served = exporter(envs, 0)
    port = served.port
    assert _scrape(served)
    silent = socket.create_connection((served.addr, port))  # a client that connects and says nothing
    silent.shutdown(socket.SHUT_WR)
    served.close()
    served.close()
    silent.close()
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT):
        pass
    with exporter(envs, port) as again:
        assert _scrape(again)


@pytest.mark.extended
@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\n\r\n" * 2000], ids=["sends nothing", "reads nothing"])
def test_client_that_hangs_delays_no_close(
    sent: bytes, envs: VectorEnv, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vecenv.integrations.prometheus._REQUEST_SECONDS", 3600.0)
    threads = threading.active_count()
    served = exporter(envs, 0)
    with socket.create_connection((served.addr, served.port)) as client:
        client.setblocking(False)
        if sent:
            client.send(sent)
        assert _scrape(served), "others are answered"
        served.close()
        assert threading.active_count() == threads
    assert capfd.readouterr() == ("", "")


@pytest.mark.extended
@pytest.mark.parametrize("is_reset", [False, True])
def test_client_that_is_lost_leaves_no_traceback(
    is_reset: bool, envs: VectorEnv, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vecenv.integrations.prometheus._REQUEST_SECONDS", 0.1)
    answer = b"x" * (64 << 20)  # more than the system buffers
    monkeypatch.setattr("prometheus_client.exposition.generate_latest", lambda *args, **kwargs: answer)
    with exporter(envs, 0) as served, socket.create_connection((served.addr, served.port)) as client:
        before = set(threading.enumerate())
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        client.recv(1)
        threads = set(threading.enumerate()) - before
        if is_reset:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        for thread in threads:
            thread.join(_TIMEOUT)
            assert not thread.is_alive()
    assert capfd.readouterr() == ("", "")


@pytest.mark.extended
def test_forked_workers_do_not_keep_the_port() -> None:
    with VectorEnv([NullEnv], context="fork") as envs:
        envs.reset(seed=0)
        with exporter(envs, 0) as served:
            os.kill(envs.worker_pids[0], signal.SIGKILL)
            envs.step(np.zeros(1, np.int64))  # the successor starts while the port is open
            assert _scrape(served)[_of("vecenv_worker_restarts_total")] == 1
        with exporter(envs, served.port) as again:
            assert _scrape(again)[_of("vecenv_env_steps_total")] >= 1


@pytest.mark.extended
def test_forked_child_cannot_close_the_exporter_of_its_parent(served: Exporter) -> None:
    pid = os.fork()
    if pid == 0:  # pragma: no cover
        served.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert _scrape(served)


@pytest.mark.extended
def test_scrapes_disturb_no_pool_that_opens_fails_and_closes() -> None:
    """A thread scrapes without a pause while another one makes pools, steps them, kills workers and closes them."""
    pools: dict[str, VectorEnv] = {}
    errors: list[BaseException] = []
    must_stop = threading.Event()
    num_scrapes = [0]

    def scrape() -> None:
        try:
            while not must_stop.is_set():
                prometheus_client.generate_latest(registry)
                num_scrapes[0] += 1
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    registry = prometheus_client.CollectorRegistry()
    try:
        for _ in range(3):
            pools = {"a": VectorEnv([NullEnv] * 2, num_workers=2)}
            registry.register(collector := PoolCollector(pools))
            must_stop.clear()
            thread = threading.Thread(target=scrape)
            thread.start()
            try:
                pools["a"].reset(seed=0)
                for step in range(60):
                    if step == 30:
                        os.kill(pools["a"].worker_pids[0], signal.SIGKILL)
                    pools["a"].step(np.zeros(2, np.int64))
                assert pools["a"].statistics().restarts == 1
                pools["a"].close()
            finally:
                must_stop.set()
                thread.join()
                pools["a"].close()
            registry.unregister(collector)
    finally:
        sys.setswitchinterval(interval)
    assert not errors and num_scrapes[0] > 10


def test_missing_library_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "vecenv.integrations.prometheus")
    with pytest.raises(DependencyError, match='pip install "prometheus-client>=0.19"'):
        __import__("vecenv.integrations.prometheus")


# ---- other loggers -------------------------------------------------------------------------------


def test_as_dict_fits_tensorboard(envs: VectorEnv, tmp_path: Any) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard", exc_type=ImportError)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = envs.statistics().as_dict()
    with tensorboard.SummaryWriter(tmp_path) as writer:
        for name, value in found.items():
            writer.add_scalar(f"vecenv/{name}", value, global_step=20)
    read = EventAccumulator(str(tmp_path)).Reload()
    assert set(read.Tags()["scalars"]) == {f"vecenv/{name}" for name in found}
    assert read.Scalars("vecenv/step/num")[0].value == 60


def test_as_dict_has_plain_numbers_by_text(envs: VectorEnv) -> None:
    """`wandb.log` takes such a dict as it is."""
    found = envs.statistics().as_dict()
    assert {type(name) for name in found} == {str} and {type(value) for value in found.values()} == {int, float}
