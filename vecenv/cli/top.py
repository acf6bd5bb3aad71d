"""`vecenv top`: watch a running pool of this user from another terminal.

`top` reads the counters of the pool in shared memory (`pool_reader`), so the pool need not answer: it may compute, hang
or be stopped. The key for stacks is the only one that acts on a process: it sends the worker a signal.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from vecenv.cli.options import AddArgument, count, seconds
from vecenv.errors import ConfigError, require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vecenv.cli.pool_load import PoolLoad
    from vecenv.cli.pool_reader import PoolFile, PoolReader
    from vecenv.cli.top_screen import View

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "run"]

HELP = "watch a running pool: steps per second, workers, slow and hanging envs"
DESCRIPTION = (
    "Watch a running pool of this user: steps per second, busy shares and memory of workers, the "
    "slowest envs, and what each env does now. Keys: s sorts, d shows the Python stacks of a worker, q quits."
)


def add_arguments(add: AddArgument) -> None:
    add("pid", nargs="?", type=count, metavar="PID", help="process of the pool (default: the only one that runs)")
    add("--pool", type=count, metavar="N", help="the N-th pool of that process")
    add("--once", action="store_true", help="show the numbers of one interval and end")
    add("--json", action="store_true", help="one line of JSON per interval")
    add("--interval", type=seconds, default=1.0, metavar="S", help="seconds between two lines (default: %(default)g)")


def run(options: argparse.Namespace) -> int:
    """Watch the pool until it ends or the user quits; return exit code 0."""
    from vecenv.cli.pool_reader import PoolReader

    if not options.json:
        require("rich", "cli")
        if not options.once and not sys.stdout.isatty():
            raise ConfigError("standard output is no terminal; use --once or --json")
    found = _find(options.pid, options.pool)
    if isinstance(found, list):
        return _list(found, is_json=options.json)
    reader = PoolReader(found)
    if options.json:
        _print_json(reader, options.interval, is_once=options.once)
    elif options.once:
        _print_once(reader, options.interval)
    else:
        _watch(reader, options.interval)
    return 0


def _find(pid: int | None, number: int | None) -> PoolFile | list[PoolFile]:
    from vecenv.cli.pool_reader import find_pool, running_pools

    if pid is not None:
        return find_pool(pid, number)
    pools = running_pools()
    if not pools:
        raise ConfigError("no pool of this user is running")
    if number is not None:
        pools = [pool for pool in pools if pool.number == number]
        if not pools:
            raise ConfigError(f"no running process has a pool {number}")
    return pools[0] if len(pools) == 1 else pools


def _list(pools: Sequence[PoolFile], *, is_json: bool) -> int:
    if is_json:
        names = ", ".join(f"{pool.pid} --pool {pool.number}" for pool in pools)
        raise ConfigError(f"{len(pools)} pools are running; name one of them: {names}")
    print(f"{len(pools)} pools are running; name one of them:")
    for pool in pools:
        print(f"  vecenv top {pool.pid} --pool {pool.number}    {pool.num_envs} x {pool.name}, {pool.backend}")
    return 0


def _print_json(reader: PoolReader, interval: float, *, is_once: bool) -> None:
    from vecenv.cli.pool_load import measure_load
    from vecenv.values.json_text import json_text

    before, due = reader.read(), time.monotonic()
    while True:
        due = max(due + interval, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        after = reader.read()
        print(json_text(measure_load(reader, before, after).as_dict(reader), indent=None), end="", flush=True)
        if is_once:
            return
        before = after


def _print_once(reader: PoolReader, interval: float) -> None:
    from rich.console import Console

    from vecenv.cli.top_screen import View, draw

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)
    console.print(draw(reader, _load_of(reader, interval), View()))


def _load_of(reader: PoolReader, interval: float) -> PoolLoad:
    from vecenv.cli.pool_load import measure_load

    before = reader.read()
    time.sleep(interval)
    return measure_load(reader, before, reader.read())


def _watch(reader: PoolReader, interval: float) -> None:
    """Show the screen, once per interval and after each key, until `q`."""
    from rich.console import Console
    from rich.live import Live

    from vecenv.cli.pool_load import measure_load
    from vecenv.cli.top_keys import Keys
    from vecenv.cli.top_screen import View, draw

    console, view = Console(highlight=False), View()
    before = reader.read()
    load = measure_load(reader, before, before)
    with Keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        due = time.monotonic() + min(interval, 0.2)  # the first numbers come soon
        while True:
            live.update(draw(reader, load, view, console.height), refresh=True)
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
    from vecenv.cli.top_screen import SORTS

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
    elif key in "sS":
        names = list(SORTS)
        view.sort = names[(names.index(view.sort) + 1) % len(names)]
    elif key in "dD":
        view.digits = ""
    elif key == "\x1b":
        view.title = view.stack = ""


def _show_stack(view: View, reader: PoolReader, load: PoolLoad) -> None:
    """Ask the worker whose number was typed for its stacks, and show them with the signal that was sent."""
    from vecenv.core.system.stack_dump import signal_name

    typed = int(view.digits or 0)
    workers = [one.process for one in load.workers if one.process.worker_id == typed]
    if not workers:
        view.title, view.stack = f"worker {typed}", "no stack: there is no such worker"
        return
    view.stack = reader.request_stack(workers[0])
    view.title = f"worker {typed}, pid {workers[0].pid}"
    if not view.stack.startswith("no stack"):
        view.title = f"{signal_name()} was sent to {view.title}; its Python stacks"
