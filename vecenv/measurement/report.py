"""The output of a benchmark: header, progress bar and table for the terminal, JSON and a bar chart for files.

Results go to standard output, progress to standard error. Everything but the progress bar and the chart is plain text.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from vecenv.values.json_text import json_text

if TYPE_CHECKING:
    from vecenv.measurement.measure import Result

__all__ = [
    "TableColumn",
    "draw_plot",
    "number_text",
    "results_json",
    "print_header",
    "print_table",
    "print_text",
    "progress",
    "rate_digits",
    "rate_text",
    "table_lines",
    "width_of",
]

#: A lockstep reaches this share even with uneven envs; below it the machine is the cause.
_EVEN = 0.9
#: Below this stolen share of its cores' time, the numbers of a machine are good.
_MOST_STOLEN = 0.02

#: Most columns of a line of the table, in a file, too.
_TABLE_WIDTH = 60
#: A rate has at least this number of digits, so that quotients of printed rates are exact to two decimals.
_RATE_DIGITS = 4
_GAP = "  "
_OURS, _OTHERS = "tab:orange", "lightgray"
#: Line length of the chart's title and notes.
_CHARACTERS_PER_LINE = 90


class TableColumn(NamedTuple):
    """A column of the table; `read` returns a cell. The highest ranks are left out first in a narrow terminal."""

    header: tuple[str, str]
    rank: int
    read: Callable[[Any], str]


def print_header(settings: dict[str, Any], machine: dict[str, Any], file: TextIO | None = None) -> None:
    """Print the settings of the run and the machine to `file` (None: standard output)."""
    print_text(_title(settings), file)
    print_text(_machine_line(machine), file)


def print_text(text: str, file: TextIO | None = None) -> None:
    """Print a sentence to `file` (None: standard output), wrapped at words to the width of a terminal."""
    file = file or sys.stdout
    width = width_of(file)
    print(textwrap.fill(text, width, break_on_hyphens=False) if width else text, file=file, flush=True)


@contextlib.contextmanager
def progress(total: float, *, is_wanted: bool = True) -> Iterator[Callable[..., None]]:
    """Show a progress bar on standard error if that is a terminal; without rich, a line of text.

    The value is a function `advance(text, amount=1)` to call after each part of the work; `total` is the sum. It does
    nothing without a terminal, or if no bar `is_wanted`.
    """
    if not is_wanted or sys.stderr is None or not sys.stderr.isatty():
        yield lambda text, amount=1.0: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        with _text_progress(total) as advance:
            yield advance
        return
    columns = (
        TextColumn("{task.description:<16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    # No refresh thread: it would wake up inside the windows.
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("starting", total=total)
        bar.refresh()
        yield lambda text, amount=1.0: bar.update(task, advance=amount, description=text, refresh=True)


@contextlib.contextmanager
def _text_progress(total: float) -> Iterator[Callable[..., None]]:
    done, width = 0.0, width_of(sys.stderr) or 80

    def show(text: str) -> None:
        sys.stderr.write("\r" + text[: width - 1].ljust(width - 1))
        sys.stderr.flush()

    def advance(text: str, amount: float = 1.0) -> None:
        nonlocal done
        done += amount
        show(f"{done:.0f}/{total:.0f} {text}")

    try:
        yield advance
    finally:
        show("")
        sys.stderr.write("\r")


def print_table(results: Sequence[Result], stolen: float = 0.0, file: TextIO | None = None) -> None:
    """Print one line per mode, and a note to repeat the run if the share `stolen` of the cores' time was lost."""
    file = file or sys.stdout
    width = min(width_of(file) or _TABLE_WIDTH, _TABLE_WIDTH)
    print("", *table_lines(results, width), "", sep="\n", file=file, flush=True)
    for result in results:
        if result.lockstep is not None and result.lockstep < _EVEN:
            print_text(
                "The cores were uneven while this ran: loops that wait for each other after each round of their envs "
                f"reach {result.lockstep:.2f} of the {result.name} at most, whatever makes them wait.",
                file,
            )
    if stolen > _MOST_STOLEN:
        print_text(
            f"The machine below this virtual one took {stolen:.0%} of its cores' time while this ran: those who sleep "
            "and are woken often lost most of it.",
            file,
        )


def table_lines(
    results: Sequence[Any], width: int | None = None, table: Sequence[TableColumn] | None = None
) -> list[str]:
    """Return the table as lines of equal length, at most `width` if it is given: columns are left out until they fit.

    The first two columns always remain. `table` are the columns; None: those of `vecenv bench`.
    """
    table = table or _COLUMNS
    columns = [[*column.header, *(column.read(result) for result in results)] for column in table]
    widths = [max(map(len, cells)) for cells in columns]
    shown = sorted(range(len(columns)), key=lambda index: table[index].rank)
    while width and len(shown) > 2 and sum(widths[index] + len(_GAP) for index in shown) - len(_GAP) > width:
        shown.pop()
    shown.sort()
    lines = [
        _GAP.join(
            columns[index][row].rjust(widths[index]) if index else columns[index][row].ljust(widths[index])
            for index in shown
        )
        for row in range(len(columns[0]))
    ]
    lines.insert(2, "─" * len(lines[0]))
    return lines


def results_json(settings: dict[str, Any], machine: dict[str, Any], results: Sequence[Any], **more: Any) -> str:
    """Return settings, machine, the `as_dict()` of all results, and `more` as JSON."""
    content = {"settings": settings, "machine": machine, "results": [result.as_dict() for result in results], **more}
    return json_text(content)


def draw_plot(settings: dict[str, Any], machine: dict[str, Any], results: Sequence[Result]) -> Any:
    """Return a figure of matplotlib: env steps per second, one bar per mode, a dot per round.

    vecenv's bars have a colour of their own. Numbers and ratios stand at the right edge, outside the bars.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    figure = Figure(figsize=(10, 1.8 + 0.5 * len(results)), layout="constrained")
    axes = figure.subplots()
    rows = range(len(results))
    axes.barh(
        rows,
        [result.steps_per_second for result in results],
        color=[_OURS if _is_ours(result) else _OTHERS for result in results],
    )
    for row, result in zip(rows, results):
        axes.plot(result.rounds, [row] * len(result.rounds), ".", color="black", markersize=4)
        axes.annotate(
            _number_and_ratios(result),
            (1.0, row),
            xycoords=axes.get_yaxis_transform(),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
        )
    axes.set_yticks(rows, [result.name for result in results])
    for label, result in zip(axes.get_yticklabels(), results):
        label.set_fontweight("bold" if _is_ours(result) else "normal")
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    note = f"env steps per second: median (bar) and each (dot) of {settings['rounds']} rounds"
    axes.set_xlabel("\n".join([note, *textwrap.wrap(_machine_line(machine), _CHARACTERS_PER_LINE)]))
    figure.suptitle("\n".join(textwrap.wrap(_title(settings), _CHARACTERS_PER_LINE)), fontsize="medium")
    return figure


def _is_ours(result: Result) -> bool:
    return result.name.startswith("vecenv")


def _number_and_ratios(result: Result) -> str:
    ratios = {"plain": result.ratio_to_plain, "gymnasium": result.ratio_to_gymnasium}
    known = [f"{ratio:.2f} x {name}" for name, ratio in ratios.items() if ratio is not None]
    return "   ".join([f"{result.steps_per_second:,.0f}", *known])


def width_of(file: TextIO) -> int | None:
    """Return the number of columns of a terminal (the variable COLUMNS goes first), or None for another file."""
    if not file.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    with contextlib.suppress(OSError):
        return int(columns) if columns.isdecimal() and int(columns) else os.get_terminal_size(file.fileno()).columns
    return None


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


def number_text(value: float | None, digits: int) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:,.{digits}f}"


def rate_digits(rate: float) -> int:
    """Return how many decimals of a rate are printed: whole numbers from 1,000 on."""
    return max(0, _RATE_DIGITS - 1 - math.floor(math.log10(rate))) if rate > 0 else 0


def rate_text(rate: float) -> str:
    """Return env steps per second as tables show them."""
    return number_text(rate, rate_digits(rate))


_COLUMNS = (
    TableColumn(("", "mode"), 0, lambda result: result.name),
    TableColumn(("env steps", "per second"), 1, lambda result: rate_text(result.steps_per_second)),
    TableColumn(("x plain", "loop"), 2, lambda result: number_text(result.ratio_to_plain, 2)),
    TableColumn(("x", "gymnasium"), 3, lambda result: number_text(result.ratio_to_gymnasium, 2)),
    TableColumn(("x", "ceiling"), 4, lambda result: number_text(result.ratio_to_ceiling, 2)),
)
