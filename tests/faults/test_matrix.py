"""Every fault at every moment, in every face, under every start method.

Env 1 of three commits it; env 0 shares its worker, env 2 has another one. What the three answer
is compared with a run in which nobody does anything wrong.
"""

from __future__ import annotations

import functools
import os
import time
import warnings
from typing import Any

import psutil
import pytest

from tests.faults import cells
from tests.faults.cells import Cell
from tests.faults.faces import FACE_CLASSES, Rows
from vecenv.envs import toys

GUILTY, NUM_ENVS, LENGTH = 1, 3, 3
#: Seconds that an operation may take; only an env that hangs takes as long on any machine.
LIMIT, CONSTRUCT_LIMIT, CLOSE_LIMIT = 1.5, 3.0, 1.0


def build(fault: str, moment: str, at: int, once: str | None, parent: int) -> Any:
    """Build the env that is guilty, unless it is wanted in the test's own process, to look at."""
    if os.getpid() == parent:
        return toys.ToyEnv(LENGTH)
    return toys.FAULTS[fault](at=at, moment=moment, once=once, length=LENGTH)


@functools.cache
def undisturbed(face: str) -> Rows:
    innocent = functools.partial(toys.Raises, None, moment="construct", once="/", length=LENGTH)
    player = FACE_CLASSES[face]([innocent] * NUM_ENVS, "forkserver")
    player.open()
    player.play()
    player.close()
    assert all(len(rows) >= player.rounds for rows in player.rows)
    return player.rows


def crime_of(cell: Cell, folder: Any) -> functools.partial[Any]:
    """Return the guilty constructor: the crime is in the second step, or in the first call of another kind."""
    is_temporary = cell.promise == "recovers"
    moment, at = cell.moment, 2 if cell.moment == "step" else 1
    if moment == "autoreset" and cell.face != "VectorEnv":
        moment, at = "reset", 2  # managers seed every episode
    once = str(folder / "struck") if is_temporary else None
    return functools.partial(build, cell.fault, moment, at, once, os.getpid())


def run_cell(cell: Cell, folder: Any) -> None:
    expected = undisturbed(cell.face)
    innocent = functools.partial(toys.Raises, None, moment="construct", once="/", length=LENGTH)
    env_fns = [innocent, crime_of(cell, folder), innocent]
    construct = CONSTRUCT_LIMIT if cell.moment == "construct" and cell.fault in cells.HANGS else 60.0
    limits = {f"{op}_timeout": LIMIT for op in ("reset", "step", "call")}
    limits.update(construct_timeout=construct, close_timeout=CLOSE_LIMIT)
    face = FACE_CLASSES[cell.face](env_fns, cell.start, limits)
    error: BaseException | None = None
    restarts = 0
    try:
        face.open()
        face.play()
        restarts = face.num_restarts()
    except Exception as raised:
        error = raised
    family = psutil.Process().children(recursive=True)
    began = time.monotonic()
    try:
        if hasattr(face, "env") or hasattr(face, "manager"):
            face.close()
    except Exception as raised:
        if cell.moment != "close" or cell.fault not in cells.RAISERS:
            raise AssertionError("close raised") from raised
    assert time.monotonic() - began < CLOSE_LIMIT + 20.0
    assert [child for child in family if child.is_running() and _is_started_by_env(child)] == []
    if cell.promise == "raises":
        assert error is not None, "it was to raise"
        assert_names(cell, error)
        for got, wanted in zip(face.rows, expected):
            assert got == wanted[: len(got)], "what had been answered before"
        return
    if error is not None:
        raise error
    assert face.rows == expected
    assert restarts == (1 if cell.promise == "recovers" else 0)
    assert len(face.called) == NUM_ENVS and face.called[0] == face.called[2] == 7


def _is_started_by_env(process: psutil.Process) -> bool:
    """Tell what an env has started; workers themselves are the leak guard's."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.name() == "sleep"
    except psutil.Error:
        return False


def assert_names(cell: Cell, error: BaseException) -> None:
    """Check that an error says who it was, and is of a class that callers expect."""
    told: list[str] = []
    link: BaseException | None = error
    while link is not None:
        told += [str(link), *getattr(link, "__notes__", ())]
        link = link.__cause__ or link.__context__
    text = "\n".join(told)
    if cell.moment == "construct" and cell.fault in (*cells.DEATHS, *cells.HANGS):
        assert "worker 0 (envs 0-1)" in text, text
    elif cell.moment == "construct":
        assert getattr(error, "env_ids", (GUILTY,)) or "env 1" in text
    else:
        assert "env 1" in text or getattr(error, "env_ids", ()) == (GUILTY,), text
    if cell.fault in cells.HANGS and cell.moment in ("construct", "step", "call"):
        assert isinstance(error, TimeoutError), repr(error)
    if cell.fault in cells.DEATHS:
        expected = {"exit": "exit code 3", "abort": "SIGABRT", "segfault": "SIGSEGV"}[cell.fault]
        assert expected in text
    if cell.fault == "raise":
        assert "divides by zero" in text


def _params(chosen: list[Cell]) -> list[Any]:
    return [pytest.param(cell, id=str(cell)) for cell in chosen]


def _ignore_conversions() -> None:
    # observations of another dtype are converted, with one warning
    warnings.filterwarnings("ignore", ".*float64.*", UserWarning)


@pytest.mark.parametrize("cell", _params(cells.pairwise_cells()))
def test_pairwise(cell: Cell, tmp_path: Any) -> None:
    with warnings.catch_warnings():
        _ignore_conversions()
        run_cell(cell, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("cell", _params(cells.possible_cells()))
def test_all(cell: Cell, tmp_path: Any) -> None:
    with warnings.catch_warnings():
        _ignore_conversions()
        run_cell(cell, tmp_path)


def test_every_cell_runs_or_has_a_reason() -> None:
    everything = cells.all_cells()
    assert len(everything) == len(toys.FAULTS) * len(toys.MOMENTS) * 4 * 3 == 1152
    impossible = [cell for cell in everything if cell.reason]
    assert len(cells.possible_cells()) + len(impossible) == len(everything)
    assert len(set(cells.possible_cells())) == len(cells.possible_cells()) == 1056
    for cell in everything:  # the table of reasons and the envs agree
        assert bool(cell.reason) == (cell.moment not in toys.FAULTS[cell.fault].moments), cell


def test_the_subset_has_every_pair() -> None:
    chosen = cells.pairwise_cells()
    assert len(chosen) < 130 and set(chosen) <= set(cells.possible_cells())
    wanted = {pair for cell in cells.possible_cells() for pair in cells.pairs_of(cell)}
    assert {pair for cell in chosen for pair in cells.pairs_of(cell)} == wanted
