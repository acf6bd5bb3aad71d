"""The screen of `vecenv top`: a summary, a table of workers, a table of envs, and the keys; or a table of shards."""

from __future__ import annotations

import contextlib
import math
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from vecenv.cli.pool_load import EnvLoad, PoolLoad, ShardLoad, WorkerLoad, measure_load
from vecenv.cli.pool_reader import PoolReader
from vecenv.core.system.stack_dump import signal_name
from vecenv.statistics import time_text
from vecenv.values.id_ranges import ids_text

__all__ = ["print_once", "watch"]

#: Names of the orders of envs, in the order of the key `s` -> the value that the largest comes first of.
_SORTS: dict[str, Callable[[EnvLoad], float]] = {
    "slowest": lambda env: env.slowness,
    "mean": lambda env: env.mean,
    "max": lambda env: env.max,
    "since": lambda env: env.since if env.doing != "idle" else -1.0,
    "return": lambda env: -env.mean_return,
    "env": lambda env: -float(env.env_id),
}
#: An operation is marked above this multiple of the 99th percentile of its durations, and above these seconds.
_LONG_FACTOR, _LONG_SECONDS = 10.0, 1.0
#: Lines of the screen beside the rows of the tables, and the fewest rows of envs.
_FIXED_LINES, _FEWEST_ROWS = 13, 3
_MOST_WORKERS = 8


@dataclass
class View:
    """The choices of the user: a key of `_SORTS`, the stacks that are shown, '' if none are, and their title.

    `shows_envs` is whether the workers and envs of a pool of shards are shown, in place of its shards.
    `digits` is the number of a worker that is being typed; None: no number is asked for.
    """

    sort: str = "slowest"
    shows_envs: bool = False
    digits: str | None = None
    title: str = ""
    stack: str = ""


def print_once(reader: PoolReader, load: PoolLoad) -> None:
    """Print the screen without keys; a file gets lines of 100 characters."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)
    console.print(_draw(reader, load, View()))


class _Keys(contextlib.AbstractContextManager["_Keys"]):
    """Keys of standard input while the context lasts; no keys come if it is not a terminal."""

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else -1
        self._before: list[Any] = []

    def __enter__(self) -> _Keys:
        if self._fd >= 0:
            self._before = termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd)
        return self

    def __exit__(self, *_error: object) -> None:
        if self._fd >= 0:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def wait(self, until: float) -> str:
        """Return the keys that are pressed, as soon as there are any; '' at the time `until` of `time.monotonic`."""
        seconds = max(0.0, until - time.monotonic())
        ready, _, _ = select.select([self._fd] if self._fd >= 0 else [], [], [], seconds)
        if not ready:
            return ""
        data = os.read(self._fd, 64)
        if not data:  # the terminal is gone
            self._fd = -1
        return data.decode(errors="replace")


def watch(reader: PoolReader, interval: float) -> None:
    """Show the screen, once per interval and after each key, until `q`."""
    console, view = Console(highlight=False), View()
    before = reader.read()
    load = measure_load(reader, before, before)
    with _Keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        due = time.monotonic() + min(interval, 0.2)  # the first numbers come soon
        while True:
            live.update(_draw(reader, load, view, console.height), refresh=True)
            pressed = keys.wait(due)
            for key in pressed:
                if key in "qQ" and view.digits is None:
                    return
                _press(key, view, reader, load)
            if time.monotonic() >= due:
                after = reader.read()
                load, before = measure_load(reader, before, after), after
                due = time.monotonic() + interval


def _press(key: str, view: View, reader: PoolReader, load: PoolLoad) -> None:
    if view.digits is not None:
        if key.isdecimal():
            view.digits += key
        elif key in "\r\n":
            _show_stack(view, reader, load)
            view.digits = None
        elif key in "\x7f\b":
            view.digits = view.digits[:-1]
        elif key in "\x1bqQ":
            view.digits = None
    elif key in "eE" and reader.has_shards:
        view.shows_envs = not view.shows_envs
    elif key in "sS":
        names = list(_SORTS)
        view.sort = names[(names.index(view.sort) + 1) % len(names)]
    elif key in "dD" and not reader.has_shards:
        view.digits = ""
    elif key == "\x1b":
        view.title = view.stack = ""


def _show_stack(view: View, reader: PoolReader, load: PoolLoad) -> None:
    """Ask the worker whose number was typed for its stacks, and show them with the signal that was sent."""
    typed = int(view.digits or 0)
    workers = [one.process for one in load.workers if one.process.worker_id == typed]
    if not workers:
        view.title, view.stack = f"worker {typed}", "no stack: there is no such worker"
        return
    view.stack = reader.request_stack(workers[0])
    view.title = f"worker {typed}, pid {workers[0].pid}"
    if not view.stack.startswith("no stack"):
        view.title = f"{signal_name()} was sent to {view.title}; its Python stacks"


def _draw(reader: PoolReader, load: PoolLoad, view: View, height: int | None = None) -> Any:
    """Return the screen, for `rich.console.Console.print`, of `height` lines (None: the lines that 20 envs need)."""
    if reader.has_shards and not view.shows_envs:
        return _draw_shards(reader, load, height)
    workers = sorted(load.workers, key=_by_load)[:_MOST_WORKERS]
    stack_lines = view.stack.count("\n") + 3 if view.stack else 0
    rows = 20 if height is None else max(_FEWEST_ROWS, height - _FIXED_LINES - len(workers) - stack_lines)
    envs = sorted(load.envs, key=lambda env: (-_known(_SORTS[view.sort](env)), env.env_id))[:rows]
    parts: list[Any] = [_summary(reader, load), "", _worker_table(workers)]
    if len(load.workers) > len(workers):
        parts.append(Text(f"... and {len(load.workers) - len(workers)} workers that were less busy", style="dim"))
    parts += ["", _env_table(envs)]
    if len(load.envs) > len(envs):
        parts.append(Text(f"... and {len(load.envs) - len(envs)} envs, sorted by {view.sort}", style="dim"))
    if not reader.is_timed:
        parts.append(Text("this pool has timings=False: no times, returns and busy shares", style="dim"))
    if view.stack:
        parts.append(Panel(Text(view.stack), title=escape(view.title), title_align="left"))
    if height is not None:
        parts += ["", _keys(reader, view)]
    return Group(*parts)


def _by_load(worker: WorkerLoad) -> tuple[float, int, int]:
    """Return the key of the order of workers: the busiest ones first."""
    return -_known(worker.busy_share), worker.process.shard, worker.process.worker_id


def _draw_shards(reader: PoolReader, load: PoolLoad, height: int | None) -> Any:
    """Return the screen of a pool of shards, those that do not serve first."""
    rows = len(load.shards) if height is None else max(_FEWEST_ROWS, height - _FIXED_LINES)
    shards = sorted(load.shards, key=lambda one: (one.process.state == "serving", one.process.shard))
    parts: list[Any] = [_summary(reader, load), "", _shard_table(shards[:rows])]
    if len(shards) > rows:
        parts.append(Text(f"... and {len(shards) - rows} shards that serve", style="dim"))
    if height is not None:
        parts += ["", Text("e workers and envs   q quit", style="reverse")]
    return Group(*parts)


def _shard_table(shards: Sequence[ShardLoad]) -> Any:
    table = _table("shard", "node", "pid", "envs", "state", "restarts", "of workers", "steps/s", "last answer")
    for one in shards:
        process = one.process
        table.add_row(
            str(process.shard),
            process.node or "-",
            str(process.pid or "-"),
            ids_text(process.env_ids),
            process.state,
            f"{process.restarts:,}",
            f"{process.worker_restarts:,}",
            f"{one.steps_per_second:,.0f}",
            _time(process.since),
            style=None if process.state in ("serving", "ready") else "red",
        )
    return table


def _summary(reader: PoolReader, load: PoolLoad) -> Any:
    pool = reader.pool
    state = f", {load.owner_state}" if load.owner_state != "running" else ", starting" if load.is_starting else ""
    envs_nbytes = sum(one.rss_nbytes for one in load.workers if not math.isnan(one.rss_nbytes))
    in_workers = "" if pool.backend == "serial" else f" + {_mib(envs_nbytes)} in workers"
    episodes = f"episodes {load.episodes:,}, mean return {_number(load.mean_return)}"
    recent = "" if math.isnan(load.recent_mean_return) else f" (newest: {_number(load.recent_mean_return)})"
    pool_line = f"vecenv pool {pool.number} of process {pool.pid}{state}: {pool.envs}"
    exceptions = f", exceptions {load.exceptions:,}" if load.exceptions else ""
    lines = [
        f"{pool_line}, up {_time(load.age_seconds)}",
        f"{load.steps_per_second:,.0f} steps/s, {load.steps:,} steps, restarts {load.restarts}{exceptions}",
        *([episodes + recent] if reader.is_timed else []),
        f"memory {_mib(load.owner_rss_nbytes)}{in_workers}",
    ]
    text = Text("\n".join(lines))
    text.stylize("bold", 0, len(lines[0]))
    return text


def _worker_table(workers: Sequence[WorkerLoad]) -> Any:
    in_shards = any(one.process.shard >= 0 for one in workers)
    table = _table(*["shard"] * in_shards, "worker", "pid", "envs", "busy", "RSS", "state")
    for one in workers:
        table.add_row(
            *[str(one.process.shard)] * in_shards,
            str(one.process.worker_id),
            str(one.process.pid),
            ids_text(one.process.env_ids),
            "-" if math.isnan(one.busy_share) else f"{one.busy_share:.0%}",
            _mib(one.rss_nbytes),
            one.state or "running",
            style="red" if one.state else None,
        )
    return table


def _env_table(envs: Sequence[EnvLoad]) -> Any:
    has_exceptions = any(env.num_exceptions for env in envs)
    names = ["steps", "mean", "p99", "max", "reset", "episodes", "return", *(["exceptions"] if has_exceptions else [])]
    in_shards = any(env.shard >= 0 for env in envs)
    table = _table("env", *["shard"] * in_shards, "worker", "doing", "since", *names)
    for env in envs:
        table.add_row(
            str(env.env_id),
            *[str(env.shard)] * in_shards,
            "-" if env.worker_id < 0 else str(env.worker_id),
            env.doing,
            _time(env.since),
            f"{env.num_steps:,}",
            *(_time(seconds) for seconds in (env.mean, env.p99, env.max, env.reset_mean)),
            f"{env.num_episodes:,}",
            _number(env.mean_return),
            *([f"{env.num_exceptions:,}"] if has_exceptions else []),
            style="red" if _is_long(env) else None,
        )
    return table


def _is_long(env: EnvLoad) -> bool:
    if env.doing in ("idle", "asked"):
        return False
    usual = _LONG_FACTOR * (0.0 if math.isnan(env.p99) else env.p99)
    return env.doing == "dead" or env.since > max(_LONG_SECONDS, usual)


def _keys(reader: PoolReader, view: View) -> Any:
    if view.digits is not None:
        return Text(f"stacks of worker: {view.digits}_   (Enter sends it a signal, Esc cancels)", style="reverse")
    others = "e shards" if reader.has_shards else "d stacks of a worker   Esc close them"
    return Text(f"s sort ({view.sort})   {others}   q quit", style="reverse")


def _table(*names: str) -> Any:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        table.add_column(name, justify="left" if name in ("doing", "envs", "node", "state") else "right", no_wrap=True)
    return table


def _known(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def _mib(nbytes: float) -> str:
    return "-" if math.isnan(nbytes) else f"{nbytes / 2**20:,.0f} MiB"


def _number(value: float) -> str:
    return "-" if not math.isfinite(value) else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _time(seconds: float) -> str:
    if not seconds >= 120:
        return time_text(seconds)
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
