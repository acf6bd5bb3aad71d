"""Constructors that wait are run at the same time by further workers, also if some fail; those that compute are not."""

from __future__ import annotations

import errno
import functools
import itertools
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.descriptors import open_descriptors
from tests.faults import front_ends
from tests.faults.four_step_env import FourStepEnv
from tests.faults.front_ends import FRONT_ENDS
from tests.faults.test_interrupts import ctrl_c_in
from tests.faults.traces import end, wait_until
from tests.inside import engine_of, set_least_wait
from vecenv import FailurePolicy, VectorEnv
from vecenv.core.host import global_rngs
from vecenv.core.pool import process, waiting_constructors, worker_starts
from vecenv.core.pool.worker_starts import WorkerStarts
from vecenv.core.processes import worker as worker_module
from vecenv.core.processes.worker import Worker
from vecenv.core.system.tokens import Tokens
from vecenv.errors import WorkerDiedError, WorkerTimeoutError

NUM_ENVS = 6


@pytest.fixture(autouse=True)
def two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start two workers at first, and further ones for constructors that wait for any time.

    All pools have the same global random generators.
    """
    monkeypatch.setattr(process, "usable_cores", lambda: 2)
    set_least_wait(monkeypatch, 1)
    monkeypatch.setattr(global_rngs, "_pool_numbers", itertools.repeat(0))


class Built(FourStepEnv):
    """An env whose rewards are random; its constructor calls a function."""

    def __init__(self, construct: Callable[[], object] | None = None) -> None:
        super().__init__()
        self.drawn = np.random.random()
        if construct is not None:
            construct()

    def reward(self, action: Any) -> float:
        return super().reward(action) + self.drawn


def meet(folder: Path, env_id: int, count: int, then: Callable[[Path], object] | None = None) -> None:
    """Arrive, and wait until `count` constructors have arrived; then call `then`."""
    (folder / str(env_id)).touch()
    deadline = time.monotonic() + 60.0
    while len(list(folder.iterdir())) < count:
        assert time.monotonic() < deadline, "the others have not come"
        time.sleep(0.01)
    if then is not None:
        then(folder)


def env_fns(
    folder: Path, count: int = NUM_ENVS, then: dict[int, Callable[[Path], object]] | None = None
) -> list[Callable[[], Any]]:
    """Return constructors that wait for `count` of them; `then`: further functions of some envs."""
    folder.mkdir(exist_ok=True)
    return [
        functools.partial(Built, functools.partial(meet, folder, env_id, count, (then or {}).get(env_id)))
        for env_id in range(NUM_ENVS)
    ]


def envs_of(envs: VectorEnv) -> list[list[int]]:
    """Return the envs of each worker, after a check that each env has one."""
    engine = engine_of(envs.pool)
    found = [engine.envs_of(worker_id) for worker_id in range(len(engine.worker_pids))]
    assert sorted(env_id for env_ids in found for env_id in env_ids) == list(range(NUM_ENVS))
    return found


def rows_of(fns: Sequence[Callable[[], Any]], **options: Any) -> Any:
    """Play with a `VectorEnv`; return the rows and the number of workers."""
    with FRONT_ENDS["VectorEnv"](fns, num_workers=None, **options) as front_end:
        front_end.play()
        return front_end.rows, len(front_end.worker_pids)


def expected_rows() -> Any:
    """Return the rows of `rows_of` with constructors that return at once."""
    rows, num_workers = rows_of([Built] * NUM_ENVS)
    assert num_workers == 2
    return rows


def test_waiting_constructors_run_at_the_same_time(
    start_method: str, implementation: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "vecenv"), VectorEnv(env_fns(tmp_path / "met"), context=start_method) as envs:
        found = envs.statistics()
        assert envs_of(envs)[:2] == [[0], [3]]
    assert found["num_workers"] == NUM_ENVS
    assert found["choice"].startswith(f"constructors wait: {NUM_ENVS} workers for {NUM_ENVS} envs, which build")
    lines = [record.getMessage() for record in caplog.records if record.levelname == "INFO"]
    assert lines == [found["choice"]]


def test_waiting_constructors_change_no_stream(tmp_path: Path) -> None:
    assert rows_of(env_fns(tmp_path / "met")) == (expected_rows(), NUM_ENVS)


@pytest.mark.parametrize("name", [name for name in FRONT_ENDS if name not in ("BatchedVectorEnv", "shards")])
def test_waiting_constructors_run_at_the_same_time_in_front_ends(name: str, tmp_path: Path) -> None:
    fns, options = env_fns(tmp_path / "met"), {"num_workers": None, "context": "fork"}
    ours = front_ends.play(name, fns, **options)
    assert ours == front_ends.play(name, fns, **{**options, "num_workers": 2}), "they have all arrived before"


# ---- one after the other -------------------------------------------------------------------------


def _compute(seconds: float = 0.3) -> None:
    stop = time.thread_time() + seconds
    while time.thread_time() < stop:
        pass


def _compute_in_a_child() -> None:
    program = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-S", "-c", program], check=True)


@pytest.mark.parametrize("construct", [_compute, _compute_in_a_child])
def test_computing_constructors_get_no_further_workers(construct: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    set_least_wait(monkeypatch, 200_000_000)
    with VectorEnv([functools.partial(Built, construct)] * NUM_ENVS) as envs:
        assert (envs.statistics()["num_workers"], envs.statistics()["choice"]) == (2, "")


class _Alone:
    """Waits, and raises if more than two constructors have run at the same time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self) -> None:
        mine = self.folder / f"{os.getpid()} {threading.get_native_id()}"
        mine.touch()
        time.sleep(0.3)  # the wait of a constructor for a server, say
        assert len(list(self.folder.iterdir())) <= 2
        mine.unlink()


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"engine": {"build": "serial"}}], ids=str)
def test_waiting_constructors_get_no_further_workers_with(options: Any, tmp_path: Path) -> None:
    with VectorEnv([functools.partial(Built, _Alone(tmp_path))] * NUM_ENVS, **options) as envs:
        assert (envs.statistics()["num_workers"], envs.statistics()["choice"]) == (2, "")


def test_short_waits_get_no_further_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_least_wait(monkeypatch, 60_000_000_000)
    with VectorEnv([functools.partial(Built, _Alone(tmp_path))] * NUM_ENVS) as envs:
        assert envs.statistics()["num_workers"] == 2


# ---- failures ------------------------------------------------------------------------------------


def _die_once(name: str, folder: Path) -> None:
    if not (folder.parent / name).exists():
        (folder.parent / name).touch()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("dying", [[0], [3], [5], [0, 3, 5], list(range(NUM_ENVS))], ids=str)
def test_death_after_envs_were_given_to_other_workers_is_repaired(dying: list[int], tmp_path: Path) -> None:
    deaths = {env_id: functools.partial(_die_once, f"died-{env_id}") for env_id in dying}
    assert rows_of(env_fns(tmp_path / "met", then=deaths), context="fork") == (expected_rows(), NUM_ENVS)
    assert len(list(tmp_path.glob("died-*"))) == len(dying)


@pytest.mark.parametrize("dying", [[0], [3], [0, 3]], ids=str)
def test_death_before_envs_are_given_to_other_workers_is_repaired(dying: list[int], tmp_path: Path) -> None:
    fns = env_fns(tmp_path / "met")
    for env_id in dying:
        fns[env_id] = functools.partial(_build_after_death, tmp_path / f"died-{env_id}", fns[env_id])
    assert rows_of(fns, context="fork") == (expected_rows(), NUM_ENVS)
    assert len(list(tmp_path.glob("died-*"))) == len(dying)


def _build_after_death(file: Path, env_fn: Callable[[], Any]) -> Any:
    _die_once(file.name, file.parent / "met")
    return env_fn()


def test_successor_builds_the_envs_that_its_worker_has_kept(tmp_path: Path) -> None:
    with FRONT_ENDS["VectorEnv"](env_fns(tmp_path / "met"), num_workers=None) as front_end:
        front_end.play(3)
        for pid in front_end.worker_pids:
            end(pid)
        front_end.step(3)
        assert front_end.num_restarts() == NUM_ENVS
        assert sorted(map(tuple, envs_of(front_end.envs))) == [(env_id,) for env_id in range(NUM_ENVS)]


def _raise(folder: Path) -> None:
    raise ArithmeticError("no licence is left")


def _hang(folder: Path) -> None:
    signal.pause()


@pytest.mark.parametrize("env_id", [0, 5])
def test_error_of_a_waiting_constructor_names_its_env(env_id: int, tmp_path: Path) -> None:
    with pytest.raises(ArithmeticError, match="no licence is left") as caught:
        VectorEnv(env_fns(tmp_path / "met", then={env_id: _raise}))
    assert any(f"constructor of env {env_id}" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("env_id", [0, 5])
def test_waiting_constructor_over_its_limit_is_named(env_id: int, tmp_path: Path) -> None:
    with pytest.raises(WorkerTimeoutError, match=f"did not finish construct of env {env_id},") as caught:
        VectorEnv(env_fns(tmp_path / "met", then={env_id: _hang}), timeouts={"construct": 5.0})
    assert caught.value.env_ids == (env_id,)


def test_death_in_a_further_worker_is_raised_without_recovery(tmp_path: Path) -> None:
    then = {5: functools.partial(_die_once, "died")}
    with pytest.raises(WorkerDiedError, match="construct of env 5"):
        VectorEnv(env_fns(tmp_path / "met", then=then), failures=FailurePolicy(on_failure="raise"))


@pytest.mark.parametrize("function", [WorkerStarts._start_further, Worker.take_last_env, Worker.send_boot])
def test_ctrl_c_while_further_workers_start_leaves_nothing(function: Any, tmp_path: Path) -> None:
    with ctrl_c_in(function):
        VectorEnv(env_fns(tmp_path / "met"))


# ---- limits --------------------------------------------------------------------------------------


@pytest.fixture
def both_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let further workers be started when the constructors of both workers wait."""
    find_waiting = waiting_constructors.ConstructorWatch.find_waiting

    def find_both(*args: Any) -> list[Worker]:
        found = find_waiting(*args)
        return found if len(found) == 2 else []

    monkeypatch.setattr(waiting_constructors.ConstructorWatch, "find_waiting", find_both)


@pytest.mark.usefixtures("both_wait")
@pytest.mark.parametrize(("room", "num_workers", "longest"), [(4, 6, 1), (3, 5, 2), (2, 2, 3), (0, 2, 3)])
def test_limit_of_descriptors_holds_for_further_workers(
    room: int, num_workers: int, longest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    find = worker_starts.room_for

    def room_for(workers: Sequence[Worker]) -> tuple[int, str]:
        """Lower the limit to the room for that number of workers, and count it."""
        num_open = len(os.listdir("/proc/self/fd"))
        most = num_open + worker_module.START_DESCRIPTORS + room * worker_module._WORKER_DESCRIPTORS
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))
        (tmp_path / "met" / "asked").touch()
        return find(workers)

    monkeypatch.setattr(worker_starts, "room_for", room_for)
    try:
        with VectorEnv(env_fns(tmp_path / "met", num_workers + 1)) as envs:
            found = envs.statistics()
            assert max(map(len, envs_of(envs))) == longest
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert found["num_workers"] == num_workers
    assert ("limited by descriptors" in found["choice"]) == (room == 3)


@pytest.mark.parametrize("name", ["processes", "memory"])
def test_limits_of_the_system_hold_for_further_workers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def left() -> float:
        (tmp_path / "met" / "asked").touch()
        return 1.0

    monkeypatch.setattr(waiting_constructors, f"{name}_left", left)
    with VectorEnv(env_fns(tmp_path / "met", 3)) as envs:
        assert envs.statistics()["num_workers"] == 2


class _Refuses:
    """Starts a number of processes, and raises instead of starting others."""

    def __init__(self, most: int) -> None:
        self.num_left = most
        self.start: Callable[..., Any] = worker_module.start_process

    def __call__(self, *args: Any) -> Any:
        if not self.num_left:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        self.num_left -= 1
        return self.start(*args)


@pytest.mark.usefixtures("both_wait")
def test_envs_stay_where_they_were_if_no_further_worker_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = expected_rows()
    monkeypatch.setattr(worker_module, "start_process", _Refuses(3))
    assert rows_of(env_fns(tmp_path / "met", 3)) == (expected, 3)


@pytest.mark.usefixtures("both_wait")
def test_env_that_is_given_back_too_late_gets_a_further_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, folder, give_back = expected_rows(), tmp_path / "met", Worker.give_back_env
    refuses = _Refuses(5)
    monkeypatch.setattr(worker_module, "start_process", refuses)

    def give_back_late(worker: Worker, env_id: int) -> None:
        """Give the last env back when its worker has ended its constructors, and let processes start again."""
        (folder / "refused").touch()
        wait_until(lambda: [note and note.phase for note in worker.notes()] == ["pause"])
        refuses.num_left = 1
        give_back(worker, env_id)

    monkeypatch.setattr(Worker, "give_back_env", give_back_late)
    assert rows_of(env_fns(folder, NUM_ENVS)) == (expected, NUM_ENVS)


# ---- nothing is left -----------------------------------------------------------------------------


def test_tokens_of_workers_are_closed_when_they_have_reported(start_method: str, tmp_path: Path) -> None:
    found = []
    for options in ({"num_workers": NUM_ENVS}, {"num_workers": None}):
        folder = tmp_path / str(options["num_workers"])
        with VectorEnv(env_fns(folder), context=start_method, **options) as envs:
            targets = [target for pid in envs.worker_pids for target, _ in open_descriptors(pid).values()]
            found.append((len(os.listdir("/proc/self/fd")), sum("pipe:" in target for target in targets)))
    assert found[0] == found[1]


def test_token_is_taken_once() -> None:
    tokens = Tokens.of(2)
    other = Tokens(tokens.descriptor.duplicate())
    assert [tokens.take(), other.take(), tokens.take(), other.take()] == [True, True, False, False]
    tokens.give_back()
    assert other.take() and not tokens.take()
    tokens.close()
    other.close()
    assert not tokens.take()
