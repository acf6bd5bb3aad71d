"""Cancelled commands: they do not run if they had not begun, are not answered, and do not block others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.traces import kill, recovering_pool, wait_until
from tests.inside import hub_of, waiter_of
from vecenv import VectorEnv
from vecenv.core.layout.flags import Op
from vecenv.core.options import Limits
from vecenv.envs import toys
from vecenv.errors import StateError, WorkerTimeoutError

GO_ON, HANG = 0, 1


class Waits(toys.CountEnv):
    """Writes its operations to a file; hangs in a step or reset that asks for it until the gate opens."""

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(100, num_actions=100)
        self._number = number
        self._gate, self._diary = folder / "gate", folder / f"diary{number}"

    def note(self, what: str) -> None:
        with open(self._diary, "a") as diary:
            diary.write(f"{what}\n")

    def step(self, action: Any) -> Any:
        self.note(f"step {action}")
        if action == HANG:
            self._gate.read_bytes()
        return super().step(action)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.note(f"reset {seed} {options}" if options else f"reset {seed}")
        if options == {"hang": self._number}:
            self._gate.read_bytes()
        return super().reset(seed=seed)

    def make_info(self) -> dict[str, Any]:
        return {"text": "travels as mail"}


class Site:
    """Envs that hang, and their gate."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        os.mkfifo(folder / "gate")

    def envs(self, count: int) -> list[Callable[[], Any]]:
        folder = self.folder
        return [lambda number=number: Waits(folder, number) for number in range(count)]

    def open_gate(self) -> None:
        (self.folder / "gate").write_bytes(b"")

    def diary(self, number: int) -> list[str]:
        return (self.folder / f"diary{number}").read_text().splitlines()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    return Site(tmp_path)


def open_pool(site: Site, count: int, **options: Any) -> Any:
    pool = recovering_pool(site.envs(count), **{"num_workers": 1, "limits": Limits(close=0.2), **options})
    pool.start()
    pool.reset(seeds=list(range(count)))
    pool.recv()
    return pool


def send(pool: Any, *actions: int, env_ids: list[int] | None = None, ordered: bool = False) -> None:
    pool.send(np.array(actions), env_ids, ordered=ordered)


def wait_for_hang(pool: Any, op: Op = Op.STEP, env_id: int = 0) -> None:
    wait_until(lambda: hub_of(pool).state(0)[:2] == (op, env_id))
    with pytest.raises(WorkerTimeoutError):
        pool.recv(timeout=0.0)


def test_cancelled_step_that_had_not_begun_does_not_run(implementation: str, site: Site) -> None:
    with open_pool(site, 2) as pool:
        send(pool, HANG, 5)
        wait_for_hang(pool)
        pool.cancel()
        assert pool.outstanding() == 0
        send(pool, 7, env_ids=[1])
        site.open_gate()
        batch = pool.recv()
        assert batch.env_ids.tolist() == [1] and batch.lengths.tolist() == [1]
        assert site.diary(1) == ["reset 1", "step 7"]


@pytest.mark.parametrize("next_has_options", [False, True])
@pytest.mark.parametrize("has_letter", [False, True])
def test_cancelled_reset_does_not_run_and_the_next_uses_its_seed(
    has_letter: bool, next_has_options: bool, implementation: str, site: Site
) -> None:
    with open_pool(site, 2) as pool:
        send(pool, HANG, env_ids=[0])
        wait_for_hang(pool)
        pool.reset([1], seeds=[55], kwargs=[{"options": {"a": 1}}] if has_letter else None, ordered=False)
        pool.cancel()
        if next_has_options:
            pool.reset(seeds=[None] * 2, kwargs=[{"options": {"b": 2}}] * 2, ordered=False)
        else:
            pool.reset(ordered=False)
        site.open_gate()
        batch = pool.recv()
        assert dict(zip(batch.env_ids.tolist(), batch.seeds.tolist())) == {0: -1, 1: 55}
        assert site.diary(1) == ["reset 1", "reset 55 {'b': 2}" if next_has_options else "reset 55"]
        pool.reset()
        assert pool.recv().seeds.tolist() == [-1, -1], "it is used once"


@pytest.mark.parametrize("count", [1, 20])
def test_cancelled_commands_write_no_answers(count: int, implementation: str, site: Site) -> None:
    with open_pool(site, 1) as pool:
        send(pool, HANG)
        wait_for_hang(pool)
        for action in range(count):
            pool.cancel()
            send(pool, action + 2)
        site.open_gate()
        assert pool.recv().obs[:, 0].tolist() == [2.0]
        assert site.diary(0) == ["reset 0", f"step {HANG}", f"step {count + 1}"]
        for _ in range(3):
            send(pool, GO_ON)
            pool.recv()
        assert hub_of(pool).num_stragglers() == 0


def test_queue_full_of_cancelled_commands_takes_no_more(implementation: str, site: Site) -> None:
    if implementation == "python":
        pytest.skip("its queues have no end")
    with open_pool(site, 1) as pool:
        send(pool, HANG)
        wait_for_hang(pool)
        with pytest.raises(StateError, match="full of commands that were cancelled"):
            for action in range(100):
                pool.cancel()
                send(pool, action)
        with pytest.raises(StateError, match="full of commands that were cancelled"):
            pool.reset()
        assert pool.outstanding() == 0
        site.open_gate()
        wait_until(lambda: hub_of(pool).pending(0)[0] == Op.NONE)
        pool.reset(seeds=[3])
        assert pool.recv().seeds.tolist() == [3]
        assert site.diary(0) == ["reset 0", f"step {HANG}", "reset 3"]


@pytest.mark.extended
@pytest.mark.parametrize("everything", [True, False])
def test_ordered_request_continues_without_cancelled_commands(
    everything: bool, implementation: str, site: Site
) -> None:
    with open_pool(site, 3, num_workers=3) as pool:
        send(pool, HANG, GO_ON, GO_ON, ordered=True)
        wait_for_hang(pool)
        pool.cancel(None if everything else [0])
        if everything:
            pool.reset([1, 2], ordered=False)
        batch = pool.recv(timeout=60)
        assert sorted(batch.env_ids.tolist()) == [1, 2]
        assert batch.lengths.tolist() == ([0, 0] if everything else [1, 1])
        send(pool, GO_ON, GO_ON, env_ids=[1, 2], ordered=True)
        assert pool.recv(timeout=60).env_ids.tolist() == [1, 2]
        site.open_gate()
        pool.reset([0], seeds=[9])
        assert pool.recv().seeds.tolist() == [9]


@pytest.mark.extended
@pytest.mark.parametrize("ordered", [True, False])
def test_cancelled_commands_are_not_run_by_a_successor(ordered: bool, implementation: str, site: Site) -> None:
    with open_pool(site, 2) as pool:
        send(pool, GO_ON, GO_ON)
        pool.recv()
        send(pool, HANG, 5, ordered=ordered)
        wait_for_hang(pool)
        wait_until(lambda: f"step {HANG}" in site.diary(0))
        pool.cancel()
        pool.reset(ordered=ordered)
        kill(pool, 0)
        batch = pool.recv()
        assert batch.lengths.tolist() == [0, 0]
        assert pool.statistics()["restarts"] == 1 and pool.statistics()["truncated"] == 0
        for number in range(2):
            hung = [f"step {HANG}"] if number == 0 else []
            first = [f"reset {number}", f"step {GO_ON}"]
            assert site.diary(number) == [*first, *hung, *first, "reset None"]


@pytest.mark.extended
def test_reset_after_a_cancelled_command_is_a_restore_point(implementation: str, site: Site) -> None:
    with open_pool(site, 2) as pool:
        send(pool, HANG, 5)
        wait_for_hang(pool)
        pool.cancel()
        pool.reset()
        site.open_gate()
        pool.recv()
        send(pool, 2, 3)
        pool.recv()
        kill(pool, 0)
        send(pool, 4, 4)
        batch = pool.recv()
        assert batch.lengths.tolist() == [2, 2]
        assert [info["recovered"] for info in batch.infos()] == ["unproven"] * 2, "from a state, not from the seed"
        for number in range(2):
            lines = site.diary(number)
            assert lines[-3:] == ["reset None", f"step {number + 2}", "step 4"]
            assert lines.count("step 5") == 0 and lines.count(f"step {HANG}") == (number == 0)


def test_cancelled_reset_leaves_no_message(implementation: str, site: Site) -> None:
    envs = VectorEnv(site.envs(2), num_workers=2, timeouts={"close": 0.2})
    try:
        envs.reset(seed=3)
        pool = envs.pool
        envs.reset_async(options={"hang": 1})
        wait_until(lambda: hub_of(pool).state(1)[0] == Op.RESET)
        with pytest.raises(WorkerTimeoutError):
            envs.reset_wait(timeout=0.0)
        wait_until(
            lambda: bool(waiter_of(pool).inbox.poll() or hub_of(pool).wait(0) is None or waiter_of(pool).inbox._replies)
        )
        envs.reset_async(seed=8)
        assert not waiter_of(pool).inbox._replies
        site.open_gate()
        envs.reset_wait(timeout=60)
        assert envs.seeds == (8, 9)
    finally:
        envs.close()


def test_superseded_step_does_not_delay_its_request(site: Site, implementation: str) -> None:
    """As with a cancelled step, the other rows of its ordered request are delivered."""
    with open_pool(site, 2, num_workers=2) as pool:
        send(pool, HANG, GO_ON, ordered=True)
        wait_for_hang(pool)
        pool.reset([0], ordered=False)
        try:
            assert pool.recv(1, timeout=10.0).env_ids.tolist() == [1]
        finally:
            site.open_gate()
        batch = pool.recv()
        assert batch.env_ids.tolist() == [0] and batch.lengths.tolist() == [0]
