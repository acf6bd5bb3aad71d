"""Every fault at every moment, in every front end, under every start method.

Env 1 of three has the fault; env 0 shares its worker, env 2 has another worker. The answers of the three
are compared with a run without the fault.
"""

from __future__ import annotations

import functools
import os
import time
from typing import Any

import psutil
import pytest

from tests.faults import fault_cases
from tests.faults.fault_cases import FaultCase
from tests.faults.front_ends import FRONT_ENDS, FrontEnd, Rows
from vecenv import Timeouts
from vecenv.envs import toys

FAULTY, NUM_ENVS, LENGTH = 1, 3, 3
#: Seconds allowed for an operation; only an env that hangs needs as long on any machine.
LIMIT, CONSTRUCT_LIMIT, CLOSE_LIMIT = 1.5, 3.0, 1.0


def build(fault: str, moment: str, at: int, once: str | None, parent: int) -> Any:
    """Build the faulty env; in the test's own process, where only spaces are read, build a healthy one."""
    if os.getpid() == parent:
        return toys.ToyEnv(LENGTH)
    return toys.FAULTS[fault](at=at, moment=moment, once=once, length=LENGTH)


def play(front_end: FrontEnd) -> Any:
    """Reset and step all envs, and call each of them once in between; return the results of the call."""
    called: list[Any] = []
    front_end.play(before=lambda number: called.extend(front_end.call("poke", 7)) if number == 5 else None)
    return called


@functools.cache
def undisturbed(name: str) -> Rows:
    healthy = functools.partial(toys.Raises, None, moment="construct", once="/", length=LENGTH)
    with FRONT_ENDS[name]([healthy] * NUM_ENVS) as front_end:
        play(front_end)
    assert all(len(rows) >= 9 for rows in front_end.rows)
    return front_end.rows


def fault_of(case: FaultCase, folder: Any) -> functools.partial[Any]:
    """Return the factory of the faulty env: the fault is in the second step, or in the first call of another kind."""
    is_temporary = case.promise == "recovers"
    moment, at = case.moment, 2 if case.moment == "step" else 1
    if moment == "autoreset" and case.front_end != "VectorEnv":
        moment, at = "reset", 2  # managers seed every episode
    once = str(folder / "struck") if is_temporary else None
    return functools.partial(build, case.fault, moment, at, once, os.getpid())


def run_case(case: FaultCase, folder: Any) -> None:
    expected = undisturbed(case.front_end)
    healthy = functools.partial(toys.Raises, None, moment="construct", once="/", length=LENGTH)
    env_fns = [healthy, fault_of(case, folder), healthy]
    construct = CONSTRUCT_LIMIT if case.moment == "construct" and case.fault in fault_cases.HANGS else 60.0
    limits = Timeouts(reset=LIMIT, step=LIMIT, call=LIMIT, construct=construct, close=CLOSE_LIMIT)
    front_end = FRONT_ENDS[case.front_end](env_fns, context=case.start, timeouts=limits)
    error: BaseException | None = None
    restarts = 0
    try:
        front_end.open()
        called = play(front_end)
        restarts = front_end.num_restarts()
    except Exception as raised:
        error = raised
    family = psutil.Process().children(recursive=True)
    began = time.monotonic()
    try:
        front_end.close()
    except Exception as raised:
        if case.moment != "close" or case.fault not in fault_cases.RAISERS:
            raise AssertionError("close raised") from raised
    assert time.monotonic() - began < CLOSE_LIMIT + 20.0
    assert [child for child in family if child.is_running() and _is_started_by_env(child)] == []
    if case.promise == "raises":
        assert error is not None, "it was to raise"
        assert_names(case, error)
        for got, wanted in zip(front_end.rows, expected):
            assert got == wanted[: len(got)], "what had been answered before"
        return
    if error is not None:
        raise error
    assert front_end.rows == expected
    assert restarts == (1 if case.promise == "recovers" else 0)
    assert len(called) == NUM_ENVS and called[0] == called[2] == 7


def _is_started_by_env(process: psutil.Process) -> bool:
    """Return whether an env started the process; the leak guard checks the workers."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.name() == "sleep"
    except psutil.Error:
        return False


def assert_names(case: FaultCase, error: BaseException) -> None:
    """Check that an error names the env, and has a class that callers expect."""
    texts: list[str] = []
    link: BaseException | None = error
    while link is not None:
        texts += [str(link), *getattr(link, "__notes__", ())]
        link = link.__cause__ or link.__context__
    text = "\n".join(texts)
    if case.moment == "construct" and case.fault in (*fault_cases.DEATHS, *fault_cases.HANGS):
        assert "worker 0 (envs 0-1)" in text, text
    elif case.moment == "construct":
        assert getattr(error, "env_ids", (FAULTY,)) or "env 1" in text
    else:
        assert "env 1" in text or getattr(error, "env_ids", ()) == (FAULTY,), text
    if case.fault in fault_cases.HANGS and case.moment in ("construct", "step", "call"):
        assert isinstance(error, TimeoutError), repr(error)
    if case.fault in fault_cases.DEATHS:
        expected = {"exit": "exit code 3", "abort": "SIGABRT", "segfault": "SIGSEGV"}[case.fault]
        assert expected in text
    if case.fault == "raise":
        assert "divides by zero" in text


def _params(chosen: list[FaultCase]) -> list[Any]:
    return [pytest.param(case, id=str(case)) for case in chosen]


# Observations of another dtype are converted, with one warning.
converts = pytest.mark.filterwarnings("ignore:.*float64.*:UserWarning")


@converts
@pytest.mark.extended
@pytest.mark.parametrize("case", _params(fault_cases.pairwise_cases()))
def test_matrix_pairwise(case: FaultCase, tmp_path: Any) -> None:
    run_case(case, tmp_path)


@converts
@pytest.mark.slow
@pytest.mark.parametrize("case", _params(fault_cases.possible_cases()))
def test_matrix_all(case: FaultCase, tmp_path: Any) -> None:
    run_case(case, tmp_path)


def test_matrix_cells_run_or_have_a_reason() -> None:
    everything = fault_cases.all_cases()
    assert len(everything) == len(toys.FAULTS) * len(toys.MOMENTS) * 4 * 3 == 1152
    impossible = [case for case in everything if case.reason]
    assert len(fault_cases.possible_cases()) + len(impossible) == len(everything)
    assert len(set(fault_cases.possible_cases())) == len(fault_cases.possible_cases()) == 1056
    for case in everything:  # the table of reasons and the envs agree
        assert bool(case.reason) == (case.moment not in toys.FAULTS[case.fault].moments), case


def test_matrix_subset_has_every_pair() -> None:
    chosen = fault_cases.pairwise_cases()
    assert len(chosen) < 130 and set(chosen) <= set(fault_cases.possible_cases())
    wanted = {pair for case in fault_cases.possible_cases() for pair in fault_cases.pairs_of(case)}
    assert {pair for case in chosen for pair in fault_cases.pairs_of(case)} == wanted
