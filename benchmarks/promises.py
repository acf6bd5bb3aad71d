"""Rows with a promise: the asked value, the value that was reached, and whether the promise is kept."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
from rich.console import Console
from rich.table import Table

from benchmarks.rows import Readings
from vecenv.cli.options import check_file
from vecenv.errors import ConfigError, DependencyError
from vecenv.measurement import machine

__all__ = ["Row", "add_row_options", "choose_rows", "finish", "measure_row", "rows_to_measure"]


@dataclass(frozen=True)
class Row:
    """One promise.

    Attributes:
        asked: the least value if `at_least`, else the bound that the value must stay under.
        measure: returns one reading per repeat; its argument belongs to the table.
        unit: printed behind numbers.
    """

    name: str
    asked: float
    measure: Callable[[Any], list[float] | Readings]
    unit: str = "x ceiling"
    at_least: bool = True

    def is_met(self, reached: float) -> bool:
        """Say whether `reached` keeps the promise."""
        return reached >= self.asked if self.at_least else reached < self.asked


def add_row_options(parser: argparse.ArgumentParser) -> None:
    """Add --row, --list and --json, which `rows_to_measure` and `finish` need."""
    parser.add_argument("--row", action="append", default=[], metavar="PART", help="only rows with PART in their name")
    parser.add_argument("--list", action="store_true", help="print the names of the rows and stop")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number")


def choose_rows(rows: Sequence[Row], parts: Sequence[str]) -> list[Row]:
    """Return the rows whose name contains one of these parts; all rows if there is no part.

    Raises:
        ConfigError: no row does.
    """
    chosen = [row for row in rows if not parts or any(part in row.name for part in parts)]
    if not chosen:
        raise ConfigError(f"no row contains {' or '.join(map(repr, parts))}; try --list")
    return chosen


def rows_to_measure(rows: Sequence[Row], options: argparse.Namespace) -> list[Row]:
    """Return the rows that the options choose; with --list, print their names and return [].

    Raises:
        ConfigError: no row has such a name, or the file of --json cannot be written.
    """
    chosen = choose_rows(rows, options.row)
    if options.list:
        print(*(row.name for row in chosen), sep="\n")
        return []
    if options.json:
        check_file("--json", options.json)
    return chosen


def measure_row(row: Row, measure: Callable[[], list[float] | Readings]) -> dict[str, Any]:
    """Return a row with its readings, for `finish` and as JSON; print the median to standard error.

    Args:
        row: the row.
        measure: returns its readings. An exception is printed, and the row counts as not measured.
    """
    start, steal = time.monotonic(), machine.StealMeter()
    entry = {"name": row.name, "unit": row.unit, "asked": row.asked, "at_least": row.at_least, "repeats": []}
    try:
        found = measure()
    except (DependencyError, gymnasium.error.DependencyNotInstalled) as error:
        print(f"{row.name}: not measured: {error}", file=sys.stderr)
        return entry | {"reached": None, "met": False}
    except Exception:
        # The other rows are still worth having; this one reads "not measured" and says why on stderr.
        traceback.print_exc()
        return entry | {"reached": None, "met": False}
    readings, lockstep = found if isinstance(found, Readings) else (found, [])
    reached = statistics.median(readings)
    print(f"{row.name}: {reached:.3g} ({time.monotonic() - start:.0f} s)", file=sys.stderr, flush=True)
    entry |= {"reached": reached, "met": row.is_met(reached), "repeats": readings, "stolen": steal.share()}
    return entry | {"lockstep": statistics.median(lockstep)} if lockstep else entry


def finish(entries: Sequence[dict[str, Any]], about: dict[str, Any], file: Path | None) -> int:
    """Print the table and write the file, if there is one; return 1 if a promise is broken, else 0.

    Args:
        entries: of `measure_row`.
        about: the machine.
        file: for all numbers, as JSON.
    """
    Console(width=None if sys.stdout.isatty() else 140).print(_table(entries))
    if file:
        file.write_text(json.dumps({"machine": about, "rows": entries}, indent=2) + "\n", encoding="utf-8")
    return 0 if all(entry["met"] for entry in entries) else 1


def _table(entries: Sequence[dict[str, Any]]) -> Table:
    has_lockstep = any("lockstep" in entry for entry in entries)
    columns = ["row", "asked", "reached", "worst to best", "unit", "met"]
    table = Table(*columns, *(["lockstep"] if has_lockstep else []), "stolen")
    for entry in entries:
        reached, repeats = entry["reached"], sorted(entry["repeats"], reverse=not entry["at_least"])
        lockstep = [f"{entry['lockstep']:.3g}" if "lockstep" in entry else ""]
        table.add_row(
            entry["name"],
            f"{'>=' if entry['at_least'] else '<'} {entry['asked']:g}",
            "-" if reached is None else f"{reached:.3g}",
            f"{repeats[0]:.3g} to {repeats[-1]:.3g}" if repeats else "-",
            entry["unit"],
            "not measured" if reached is None else "yes" if entry["met"] else "NO",
            *(lockstep if has_lockstep else []),
            f"{entry['stolen']:.1%}" if "stolen" in entry else "",
        )
    return table
