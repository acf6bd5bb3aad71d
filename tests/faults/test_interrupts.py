"""Handlers that raise while a request is recorded or a reply is sent: no command is lost, and none has two replies."""

from __future__ import annotations

import itertools
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tests.core.recovery.journals import repeated, steps, two_envs
from tests.faults.traces import kill, recovering_pool
from vecenv.core.fallback.local import LocalHub
from vecenv.core.fallback.slot import FallbackSlot
from vecenv.core.host.host import Host
from vecenv.core.layout.commands import RestorePoint
from vecenv.core.pool.serial import SerialPool
from vecenv.core.recovery.action_pages import Page
from vecenv.core.recovery.journal import Journal
from vecenv.envs import toys


@contextmanager
def ctrl_c_in(function: Callable[..., Any]) -> Iterator[None]:
    """Have a signal come when this function is entered for the first time, and expect it to be heard."""

    def look(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is function.__code__:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        sys.setprofile(look)
        try:
            yield
        finally:
            sys.setprofile(None)


class Alarm(Exception):
    """Raised by the handler of a signal."""


@contextmanager
def alarm_after(name: str, fallback: type = FallbackSlot) -> Iterator[None]:
    """Have an `Alarm` raised where a method of the slot returns for the first time, and not with False.

    Args:
        name: of the method.
        fallback: the class without C that has it.
    """

    def ring(signum: int, frame: Any) -> None:
        raise Alarm

    def look(frame: Any, event: str, argument: Any) -> None:
        is_native = event == "c_return" and argument.__qualname__ == f"Slot.{name}"  # its result is not known
        is_fallback = event == "return" and frame.f_code is getattr(fallback, name).__code__
        if is_native or (is_fallback and argument is not False):
            sys.setprofile(None)
            signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, ring)
    sys.setprofile(look)
    try:
        yield
    finally:
        assert sys.getprofile() is None, f"{name} has not returned"
        signal.signal(signal.SIGUSR1, before)


class Heeds(toys.CountEnv):
    """Adds the action to its observation, so that a step replayed with another action is noticed."""

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        obs[3] += action
        return obs, *rest


@pytest.mark.extended
@pytest.mark.parametrize("some", [False, True])
@pytest.mark.parametrize("place", ["note_steps", "add", "_add"])
def test_ctrl_c_while_a_step_is_recorded_costs_at_most_one_episode(place: str, some: bool) -> None:
    """If it comes before anything was recorded, it costs nothing."""
    function = Journal.__dict__.get(place) or (Page.add_rows if some else Page.add)
    actions = itertools.count()

    def send() -> None:
        if some:
            pool.send(np.full(3, next(actions)), [1, 2, 3])
        else:
            pool.send(np.full(4, next(actions)))

    with recovering_pool([Heeds] * 4) as pool:
        pool.start()
        pool.reset(seeds=range(4))
        pool.recv()
        with ctrl_c_in(function):
            send()
        batch = pool.recv()
        assert batch.lengths.tolist() == [1] * len(batch.env_ids) == [1] * (3 if some else 4)
        kill(pool, 0)
        send()
        batch = pool.recv()
        how = "replayed" if place == "note_steps" else "truncated"
        assert [info.get("recovered") for info in batch.infos()] == [how] * (1 if some else 2) + [None] * 2
        pool.reset(seeds=range(4))
        pool.recv().raise_errors()
        send()
        pool.recv().raise_errors()
        kill(pool, 0)
        send()
        batch = pool.recv()
        assert batch.lengths.tolist() == [2] * len(batch.env_ids)
        assert [info.get("recovered") for info in batch.infos()] == ["replayed"] * (1 if some else 2) + [None] * 2


def test_steps_are_recorded_if_they_were_sent() -> None:
    journal = two_envs()
    with ctrl_c_in(Journal.note_steps):
        steps(journal, [13, 23])
    leaves = (np.array([13, 23]),)
    journal.note_interrupted(7, leaves, None, 0)  # the last command sent to the env is an earlier one
    assert repeated(journal, 0) == [(1, ["reset 1", 10, 11, 12])]
    journal.note_interrupted(9, leaves, None, 0)
    assert repeated(journal, 0) == [(1, ["reset 1", 10, 11, 12, 13])]


def test_states_before_unrecorded_steps_are_not_restore_points() -> None:
    """A state read only now may be older, and the entries after it are incomplete."""
    journal = two_envs()
    with ctrl_c_in(Page.add):
        steps(journal, [13, 23])
    journal.note_interrupted(9, (np.array([13, 23]),), None, 0)
    journal.note_restore_point(0, RestorePoint(7, b"state"), True)
    assert repeated(journal, 0) == []
    journal.note_restore_point(0, RestorePoint(11, b"state"), True)
    steps(journal, [14, 24])
    assert repeated(journal, 0) == [(11, [14])]


def test_unread_payload_is_not_given_to_the_next_command(implementation: str) -> None:
    with SerialPool([toys.CountEnv] * 2) as pool:
        pool.start()
        with ctrl_c_in(Host._handle):
            pool.call(str)
        assert pool.call(callable) == [False, False]


# ---- replies -------------------------------------------------------------------------------------------------


class Silent(toys.CountEnv):
    """Returns no infos, so that a row is sent by one call of `publish`."""

    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0], {}


class Worded(toys.CountEnv):
    """Returns infos without a column, so that the host sends the rows."""

    def step(self, action: Any) -> Any:
        *rest, _ = super().step(action)
        return *rest, {"words": ["a", "step"]}


def test_publish_without_a_command_under_way(implementation: str) -> None:
    """This error once hid the exception of a handler that ran right after a row was sent."""
    with SerialPool([Silent] * 2) as pool:
        pool.start()
        pool.reset(seeds=[1, 2])
        with pytest.raises(Alarm), alarm_after("publish"):
            pool.recv()
        batch = pool.recv()
        batch.raise_errors()
        assert batch.env_ids.tolist() == [0, 1] and batch.seeds.tolist() == [1, 2]


def test_exception_of_a_handler_after_a_call_ends_that_call_only(implementation: str) -> None:
    with SerialPool([toys.CountEnv] * 2) as pool:
        pool.start()
        with pytest.raises(Alarm), alarm_after("finish"):
            pool.call(str)
        assert pool.call(callable) == [False, False]


def test_exception_of_a_handler_between_steps_is_raised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VECENV_IMPLEMENTATION", "native")
    with SerialPool([toys.CountEnv] * 2) as pool:
        pool.start()
        pool.reset(seeds=[1, 2])
        pool.recv()
        pool.send(np.zeros(2, np.int64))
        with pytest.raises(Alarm), alarm_after("serve"):  # all steps are made
            pool.recv()
        assert pool.recv().lengths.tolist() == [1, 1]


def test_exception_of_a_handler_before_the_host_replies_is_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of the env is lost. Its step was once made a second time."""
    monkeypatch.setenv("VECENV_IMPLEMENTATION", "native")
    with SerialPool([Worded] * 2) as pool:
        pool.start()
        pool.reset(seeds=[1, 2])
        pool.recv()
        pool.send(np.zeros(2, np.int64))
        with alarm_after("serve"):
            batch = pool.recv()
        assert {env_id: type(error) for env_id, error in batch.errors().items()} == {0: Alarm}
        assert pool.call(get_num_steps) == [1, 1]


def test_exception_of_a_handler_loses_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without C, a command was once removed from its queue before it had begun, and its env owed an answer forever."""
    monkeypatch.setenv("VECENV_IMPLEMENTATION", "python")
    with SerialPool([Silent] * 2) as pool:
        pool.start()
        pool.reset(seeds=[1, 2])
        with pytest.raises(Alarm), alarm_after("next", LocalHub):
            pool.recv()
        assert pool.recv(timeout=20.0).seeds.tolist() == [1, 2]


def get_num_steps(env: Any) -> int:
    return int(env.num_steps)
