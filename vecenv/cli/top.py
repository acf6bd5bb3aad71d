"""`vecenv top`: watch a running pool of this user from another terminal.

`top` reads the counters of the pool in shared memory (`pool_reader`), so the pool need not answer: it may compute, hang
or be stopped. The key for stacks is the only one that acts on a process: it sends the worker a signal.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence

from vecenv.cli.pool_load import PoolLoad, measure_load
from vecenv.cli.pool_reader import PoolFile, PoolReader, find_pool, running_pools
from vecenv.errors import ConfigError, require
from vecenv.values.json_text import json_text

__all__ = ["run"]


def run(options: argparse.Namespace) -> int:
    """Watch the pool until it ends or the user quits; return exit code 0."""
    if not options.json:
        require("rich", "cli")
        if not options.once and not sys.stdout.isatty():
            raise ConfigError("standard output is no terminal; use --once or --json")
    found = _find(options.pid, options.pool)
    if isinstance(found, list):
        return _list(found, is_json=options.json)
    reader = PoolReader(found)
    loads = _loads(reader, options.interval)
    if options.json:
        for load in loads:
            print(json_text(load.as_dict(reader), indent=None), end="", flush=True)
            if options.once:
                break
        return 0
    from vecenv.cli.top_screen import print_once, watch  # they need rich

    if options.once:
        print_once(reader, next(loads))
    else:
        watch(reader, options.interval)
    return 0


def _find(pid: int | None, number: int | None) -> PoolFile | list[PoolFile]:
    if pid is not None:
        return find_pool(pid, number)
    pools = running_pools()
    if not pools:
        raise ConfigError("no pool of this user is running")
    pools = [pool for pool in pools if number in (None, pool.number)]
    if not pools:
        raise ConfigError(f"no running process has a pool {number}")
    return pools[0] if len(pools) == 1 else pools


def _list(pools: Sequence[PoolFile], *, is_json: bool) -> int:
    if is_json:
        names = ", ".join(f"{pool.pid} --pool {pool.number}" for pool in pools)
        raise ConfigError(f"{len(pools)} pools are running; name one of them: {names}")
    print(f"{len(pools)} pools are running; name one of them:")
    for pool in pools:
        print(f"  vecenv top {pool.pid} --pool {pool.number}    {pool.envs}, {pool.backend}")
    return 0


def _loads(reader: PoolReader, interval: float) -> Iterator[PoolLoad]:
    before, due = reader.read(), time.monotonic()
    while True:
        due = max(due + interval, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        after = reader.read()
        yield measure_load(reader, before, after)
        before = after
