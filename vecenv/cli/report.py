"""The output of a benchmark: header, progress bar and table for the terminal, JSON and a bar chart for files.

Results go to standard output, progress to standard error; into a pipe or a file the table keeps its full width.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from vecenv.cli.measure import Result

__all__ = ["print_header", "print_table", "progress", "write_json", "write_plot"]

# A pipe has no width of its own, and rich would fold the table to 80 columns.
_PIPE_WIDTH = 160
# In a terminal that is narrower rich would cut digits off; the terminal folds the lines instead.
_TABLE_WIDTH = 80
# A lockstep reaches this share even with uneven envs; below it the machine is the cause.
_EVEN = 0.9
# The share of its cores that a machine can lose without its numbers being worse for it.
_MOST_STOLEN = 0.02

_COLUMNS = (
    "mode",
    "env steps\nper second",
    "us per\nbatch",
    "x plain\nloop",
    "x\nceiling",
    "implemen-\ntation",
    "CPU s per\n1000 steps",
)


def print_header(settings: dict[str, Any], machine: dict[str, Any]) -> None:
    """Print the settings of the run and the machine."""
    console = _stdout()
    console.print(_title(settings), highlight=False)
    console.print(_machine_line(machine), highlight=False)
    console.file.flush()


@contextlib.contextmanager
def progress(num_windows: int) -> Iterator[Callable[[str], None]]:
    """Show a progress bar; the value is a function to call with the mode's name after each window."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:<16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    # No refresh thread: it would wake up inside the windows.
    with Progress(
        *columns, console=console, transient=True, auto_refresh=False, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("starting", total=num_windows)
        bar.refresh()

        def advance(name: str) -> None:
            bar.update(task, advance=1, description=name, refresh=True)

        yield advance


def print_table(results: Sequence[Result], stolen: float = 0.0) -> None:
    """Print one line per mode, and a note to repeat the run if the machine lost a share of its cores.

    Args:
        stolen: the share of the cores' time that was taken from below while this ran.
    """
    table = Table(*_COLUMNS, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for column in table.columns:
        column.no_wrap = True
    for result in results:
        table.add_row(
            result.name,
            f"{result.steps_per_second:,.0f}",
            f"{result.us_per_batch:,.1f}",
            _ratio(result.ratio_to_plain),
            _ratio(result.ratio_to_ceiling),
            result.implementation or "-",
            f"{result.cpu_seconds_per_1000_steps:.4f}",
        )
    console = _stdout()
    _Console(width=max(console.width, _TABLE_WIDTH)).print(table)
    for result in results:
        if result.lockstep is not None and result.lockstep < _EVEN:
            console.print(
                "The cores were uneven while this ran: loops that wait for each other after each round of their envs "
                f"reach {result.lockstep:.2f} of the {result.name} at most, whatever makes them wait.",
                highlight=False,
            )
    if stolen > _MOST_STOLEN:
        console.print(
            f"The machine below this virtual one took {stolen:.0%} of its cores' time while this ran: those who sleep "
            "and are woken often lost most of it.",
            highlight=False,
        )


def write_json(path: Path, settings: dict[str, Any], machine: dict[str, Any], results: Sequence[Result]) -> None:
    """Write settings, machine and all results, the single rounds included."""
    content = {"settings": settings, "machine": machine, "results": [result.as_dict() for result in results]}
    path.write_text(json.dumps(content, indent=2, default=str) + "\n", encoding="utf-8")


def write_plot(path: Path, settings: dict[str, Any], machine: dict[str, Any], results: Sequence[Result]) -> None:
    """Draw env steps per second, one bar per mode, a dot per round."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.5 + 0.5 * len(results)), layout="constrained")
    axes = figure.subplots()
    names = [result.name for result in results]
    bars = axes.barh(names, [result.steps_per_second for result in results], color="tab:blue", alpha=0.6)
    axes.bar_label(bars, labels=[f" {result.steps_per_second:,.0f}" for result in results])
    for result in results:
        axes.plot(result.rounds, [result.name] * len(result.rounds), ".", color="black", markersize=4)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel(f"env steps per second, median of {settings['rounds']} rounds\n{_machine_line(machine)}")
    axes.set_title(_title(settings), fontsize="medium")
    figure.savefig(path, dpi=120)


class _Console(Console):
    """Lets `run_command` end a command whose output is closed; rich would end it with exit code 1."""

    def on_broken_pipe(self) -> NoReturn:
        """Raise what rich has caught."""
        raise  # noqa: PLE0704  # rich calls this while it handles the error


def _stdout() -> Console:
    console = _Console()
    return console if console.is_terminal else _Console(width=_PIPE_WIDTH)


def _title(settings: dict[str, Any]) -> str:
    kwargs = "".join(f", {key}={value!r}" for key, value in settings["env_kwargs"].items())
    atari = ", 84x84x4" if settings["atari"] else ""
    return (
        f"{settings['env']}{kwargs}{atari}: {settings['envs']} envs, {settings['workers']} workers, "
        f"async wait_num {settings['wait_num']}, copy={settings['copy']}"
    )


def _machine_line(machine: dict[str, Any]) -> str:
    return (
        f"{machine['processor']}, {machine['usable_cores']} usable cores, {machine['system']}, "
        f"Python {machine['python']}, gymnasium {machine['gymnasium']}"
    )


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
