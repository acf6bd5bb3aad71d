"""The screen of `vecenv top`: a summary, a table of workers, a table of envs, and the keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vecenv.cli.pool_load import EnvLoad, PoolLoad, WorkerLoad
from vecenv.cli.pool_reader import PoolReader

__all__ = ["SORTS", "View", "draw"]

#: Names of the orders of envs, in the order of the key `s` -> the value that the largest comes first of.
SORTS: dict[str, Callable[[EnvLoad], float]] = {
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
    """The choices of the user.

    Attributes:
        sort: a key of `SORTS`.
        digits: the number of a worker that is being typed; None: no number is asked for.
        title, stack: of the stacks that are shown; '' if none are.
    """

    sort: str = "slowest"
    digits: str | None = None
    title: str = ""
    stack: str = ""


def draw(reader: PoolReader, load: PoolLoad, view: View, height: int | None = None) -> Any:
    """Return the screen, for `rich.console.Console.print`, of `height` lines (None: as many as 20 envs need)."""
    from rich.console import Group
    from rich.markup import escape
    from rich.panel import Panel
    from rich.text import Text

    workers = sorted(load.workers, key=lambda one: (-_known(one.busy_share), one.process.worker_id))[:_MOST_WORKERS]
    stack_lines = view.stack.count("\n") + 3 if view.stack else 0
    rows = 20 if height is None else max(_FEWEST_ROWS, height - _FIXED_LINES - len(workers) - stack_lines)
    envs = sorted(load.envs, key=lambda env: (-_known(SORTS[view.sort](env)), env.env_id))[:rows]
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
        parts += ["", _keys(view)]
    return Group(*parts)


def _summary(reader: PoolReader, load: PoolLoad) -> Any:
    from rich.text import Text

    pool = reader.pool
    state = f", {load.owner_state}" if load.owner_state else ""
    envs_nbytes = sum(one.rss_nbytes for one in load.workers if not math.isnan(one.rss_nbytes))
    memory = f"{_mib(load.owner_nbytes)} + {_mib(envs_nbytes)} in workers"
    if pool.backend == "serial":
        memory = _mib(load.owner_nbytes)
    episodes = f"episodes {load.num_episodes:,}, mean return {_number(load.mean_return)}"
    recent = "" if math.isnan(load.recent_return) else f" (newest: {_number(load.recent_return)})"
    pool_line = f"vecenv pool {pool.number} of process {pool.pid}{state}: {reader.num_envs} x {pool.name}"
    num_exceptions = sum(one.num_exceptions for one in load.envs)
    exceptions = f", exceptions {num_exceptions:,}" if num_exceptions else ""
    lines = [
        f"{pool_line}, up {_time(load.age)}",
        f"{load.steps_per_second:,.0f} steps/s, {load.num_steps:,} steps, restarts {load.num_replaced}{exceptions}",
        *([episodes + recent] if reader.is_timed else []),
        f"memory {memory}",
    ]
    text = Text("\n".join(lines))
    text.stylize("bold", 0, len(lines[0]))
    return text


def _worker_table(workers: Sequence[WorkerLoad]) -> Any:
    table = _table("worker", "pid", "envs", "busy", "RSS", "state")
    for one in workers:
        table.add_row(
            str(one.process.worker_id),
            str(one.process.pid),
            _ids(one.process.env_ids),
            "-" if math.isnan(one.busy_share) else f"{one.busy_share:.0%}",
            _mib(one.rss_nbytes),
            one.state or "running",
            style="red" if one.state else None,
        )
    return table


def _env_table(envs: Sequence[EnvLoad]) -> Any:
    has_exceptions = any(env.num_exceptions for env in envs)
    names = ["steps", "mean", "p99", "max", "reset", "episodes", "return", *(["exceptions"] if has_exceptions else [])]
    table = _table("env", "worker", "doing", "since", *names)
    for env in envs:
        table.add_row(
            str(env.env_id),
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
    if env.doing == "idle":
        return False
    usual = _LONG_FACTOR * (0.0 if math.isnan(env.p99) else env.p99)
    return env.doing == "dead" or env.since > max(_LONG_SECONDS, usual)


def _keys(view: View) -> Any:
    from rich.text import Text

    if view.digits is not None:
        return Text(f"stacks of worker: {view.digits}_   (Enter sends it a signal, Esc cancels)", style="reverse")
    return Text(f"s sort ({view.sort})   d stacks of a worker   Esc close them   q quit", style="reverse")


def _table(*names: str) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        table.add_column(name, justify="left" if name in ("doing", "envs", "state") else "right", no_wrap=True)
    return table


def _known(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def _ids(env_ids: Sequence[int]) -> str:
    ends = [i for i in range(1, len(env_ids)) if env_ids[i] != env_ids[i - 1] + 1]
    runs = [env_ids[start:stop] for start, stop in zip([0, *ends], [*ends, len(env_ids)])]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs if run)


def _mib(nbytes: float) -> str:
    return "-" if math.isnan(nbytes) else f"{nbytes / 2**20:,.0f} MiB"


def _number(value: float) -> str:
    return "-" if not math.isfinite(value) else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _time(seconds: float) -> str:
    if math.isnan(seconds):
        return "-"
    if seconds >= 120:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
