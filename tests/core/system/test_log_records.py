"""Log records of workers reach the loggers of the caller, within bounds, and never block a worker."""

from __future__ import annotations

import functools
import logging
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from typing import Any

import pytest

from vecenv.core.options import RECOVERING, PoolOptions
from vecenv.core.pool.process import ProcessPool
from vecenv.core.system import log_records
from vecenv.core.system.log_records import LogCollector, LogLevels, LogSender, emit_frame, is_log_frame
from vecenv.core.system.worker_socket import ControlSocket
from vecenv.envs.toys import ToyEnv
from vecenv.errors import WorkerDiedError

Log = pytest.LogCaptureFixture


class LoggingEnv(ToyEnv):
    """Calls a function with the name of the call in its constructor, `step` and `close`."""

    def __init__(self, act: Callable[[str], Any]) -> None:
        super().__init__()
        self.act = act
        act("construct")

    def step(self, action: Any) -> Any:
        self.act("step")
        return super().step(action)

    def close(self) -> None:
        self.act("close")


def make(act: Callable[[str], Any], count: int = 1, **options: Any) -> ProcessPool:
    pool = ProcessPool([functools.partial(LoggingEnv, act)] * count, PoolOptions(num_workers=count, **options))
    pool.start()
    return pool


def step(pool: ProcessPool, count: int = 1) -> None:
    pool.reset(seeds=[0] * pool.num_envs)
    pool.recv()
    for _ in range(count):
        pool.send([0] * pool.num_envs)
        pool.recv()


@pytest.fixture
def levels() -> Iterator[None]:
    """Undo changes of levels."""
    loggers = [logging.getLogger(name) for name in ("simulator", "simulator.gear")]
    yield
    for logger in loggers:
        logger.setLevel(logging.NOTSET)
    logging.disable(logging.NOTSET)


def test_log_records_of_workers_reach_the_callers_loggers(
    caplog: Log, start_method: str, implementation: str, levels: None
) -> None:
    def act(call: str) -> None:
        logging.getLogger("simulator.gear").warning("%s of %s", call, "a gear", extra={"gear": 3})
        logging.getLogger("simulator.gear").info("too detailed")
        logging.getLogger("simulator").info("%s begins", call)

    logging.getLogger("simulator").setLevel(logging.INFO)
    logging.getLogger("simulator.gear").setLevel(logging.WARNING)
    with make(act, context=start_method) as pool:
        step(pool)
    found = [record for record in caplog.records if record.name.startswith("simulator")]
    assert [(record.name, record.levelname, record.getMessage()) for record in found] == [
        entry
        for call in ("construct", "step", "close")
        for entry in [("simulator.gear", "WARNING", f"{call} of a gear"), ("simulator", "INFO", f"{call} begins")]
    ]
    assert found[0].gear == 3 and found[0].funcName == "act"  # type: ignore[attr-defined]
    assert found[0].processName == "vecenv worker 0" and found[0].process != os.getpid()


def test_log_record_has_the_traceback_of_its_exception(caplog: Log) -> None:
    def act(call: str) -> None:
        try:
            raise KeyError("gear")
        except KeyError:
            logging.exception("no such part")

    with make(act):
        pass
    assert "no such part" in caplog.text and "KeyError: 'gear'" in caplog.text


@pytest.mark.extended
def test_log_records_arrive_while_the_caller_never_waits_for_envs(caplog: Log, implementation: str) -> None:
    """The rows are there when they are asked for, so that the caller does not sleep."""
    with make(lambda call: logging.warning(call)) as pool:
        pool.reset(seeds=[0])
        pool.recv()
        for _ in range(3):
            pool.send([0])
            time.sleep(0.1)
            pool.recv()
        assert caplog.messages == ["construct", "step", "step", "step"]


@pytest.mark.extended
def test_log_records_arrive_during_a_long_step(caplog: Log, implementation: str) -> None:
    def act(call: str) -> None:
        if call == "step":
            logging.warning("step")
            time.sleep(2.0)

    times = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            times.append(time.time() - record.created)

    handler = Handler()
    logging.root.addHandler(handler)
    try:
        with make(act) as pool:
            step(pool)
    finally:
        logging.root.removeHandler(handler)
    assert len(times) == 1 and times[0] < 1.0


@pytest.mark.extended
def test_log_records_of_threads_and_of_several_workers_arrive(caplog: Log) -> None:
    def act(call: str) -> None:
        threads = [threading.Thread(target=logging.warning, args=(f"{call} {number}",)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with make(act, 3) as pool:
        step(pool)
    expected = [f"{call} {number}" for call in ("construct", "step", "close") for number in range(5)]
    assert Counter(caplog.messages) == dict.fromkeys(expected, 3)


@pytest.mark.extended
def test_log_records_before_a_crash_arrive(caplog: Log, implementation: str) -> None:
    def act(call: str) -> None:
        logging.warning(call)
        if call == "step":
            os.kill(os.getpid(), signal.SIGSEGV)

    with make(act) as pool, pytest.raises(WorkerDiedError):
        step(pool)
    assert caplog.messages[:2] == ["construct", "step"]


def test_log_records_before_a_crash_in_a_constructor_arrive(caplog: Log) -> None:
    def act(call: str) -> None:
        logging.error("the licence is missing")
        os._exit(3)

    with pytest.raises(WorkerDiedError):
        make(act)
    assert "the licence is missing" in caplog.text


@pytest.mark.extended
def test_log_records_of_a_replaced_worker_arrive(caplog: Log) -> None:
    with make(lambda call: logging.warning("mine"), failures=RECOVERING) as pool:
        step(pool)
        os.kill(pool.worker_pids[0], signal.SIGKILL)
        step(pool)
    assert caplog.messages.count("mine") >= 5


@pytest.mark.extended
def test_log_records_beyond_the_bound_are_counted(caplog: Log, implementation: str) -> None:
    def act(call: str) -> None:
        if call == "step":
            for number in range(1000):
                logging.warning("record %d", number)

    with make(act) as pool:
        step(pool)
    texts = caplog.messages
    num_sent = sum(text.startswith("record") for text in texts)
    dropped = [text for text in texts if "log records were dropped" in text]
    assert 1 <= num_sent <= 300
    assert sum(int(text.split(": ")[-1].split()[0]) for text in dropped) == 1000 - num_sent


@pytest.mark.extended
def test_env_that_floods_the_log_does_not_wait_for_the_caller(implementation: str) -> None:
    """The caller reads no messages during the flood."""

    def act(call: str) -> None:
        if call == "step":
            for _ in range(20):
                time.sleep(0.01)
                for _ in range(50):
                    logging.warning("x" * 2000)

    with make(act) as pool:
        pool.reset(seeds=[0])
        pool.recv()
        pool.send([0])
        time.sleep(3.0)
        began = time.monotonic()
        pool.recv()
        assert time.monotonic() - began < 2.0


# ---- the sender -----------------------------------------------------------------------------------


def close(sender: LogSender) -> None:
    sender._socket.close()  # a worker has it until its end
    sender.close()


@pytest.fixture
def ends() -> Iterator[tuple[LogSender, ControlSocket]]:
    """A sender, and the end from which its frames are read."""
    ours, theirs = Pipe()
    sender, end = LogSender(theirs), ControlSocket(ours)
    yield sender, end
    close(sender)
    theirs.close()
    end.close()


def record(text: str, *args: Any) -> logging.LogRecord:
    return logging.LogRecord("simulator", logging.WARNING, "file.py", 7, text, args, None)


def test_sender_counts_records_for_which_the_socket_has_no_room(
    ends: tuple[LogSender, ControlSocket], caplog: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_records, "_MOST_PER_SECOND", 10_000)
    sender, end = ends
    for number in range(5000):
        sender.emit(record("record %d", number))
    while (frame := end.take_frame()) is not None:
        assert is_log_frame(frame)
        emit_frame(frame, "worker 0")
    num_sent = len(caplog.records)
    assert 10 < num_sent < 500
    sender.report_dropped()
    emit_frame(end.take_frame() or b"", "worker 0")
    assert caplog.messages[-1].endswith(f"{5000 - num_sent} log records were dropped, for there were too many at once")


def test_sender_shortens_long_records(ends: tuple[LogSender, ControlSocket], caplog: Log) -> None:
    sender, end = ends
    sender.emit(record("ä" * 1_000_000))
    emit_frame(end.take_frame() or b"", "worker 0")
    assert 1000 < len(caplog.messages[0]) < 5000


def test_sender_does_not_wait_while_another_message_is_written(ends: tuple[LogSender, ControlSocket]) -> None:
    sender, end = ends
    with sender.socket_lock:
        sender.emit(record("within"))
    assert end.take_frame() is None
    sender.report_dropped()
    assert end.take_frame() is not None


def test_sender_without_a_parent_drops_records() -> None:
    ours, theirs = socket.socketpair()
    sender = LogSender(theirs)  # type: ignore[arg-type]
    ours.close()
    sender.emit(record("nobody reads this"))
    close(sender)
    theirs.close()


def test_collector_keeps_a_bounded_number_of_records(caplog: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_records, "_MOST_PER_SECOND", 10_000)
    collector = LogCollector()
    assert collector.take() == []
    for number in range(1000):
        collector.handle(record("record %d", number))
    frames = collector.take()
    collector.handle(record("later"))
    collector.close()
    for frame in frames + collector.take():
        emit_frame(frame, "shard 0", names_worker=True)
    assert caplog.messages[:2] == ["shard 0: record 0", "shard 0: record 1"]
    assert caplog.messages[300:] == [
        "vecenv: shard 0: 700 log records were dropped, for there were too many at once",
        "shard 0: later",
    ]


def test_levels_contain_those_that_are_set(levels: None) -> None:
    logging.getLogger("simulator").setLevel(5)
    logging.getLogger("simulator.gear")
    logging.disable(logging.DEBUG)
    found = LogLevels.now()
    assert found.levels["simulator"] == 5 and "" in found.levels and "simulator.gear" not in found.levels
    assert found.disabled == logging.DEBUG
