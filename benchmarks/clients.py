"""`python -m benchmarks.clients`: each framework's own vector envs beside vecenv's, measured alternately in one run.

    Tianshou    round 1: VecenvVectorEnv | SubprocVectorEnv | DummyVectorEnv     round 2: the same     ratios per round

A ratio is the speed of vecenv divided by that of the framework's own class in the same round; the table contains the
median and the quartiles of all rounds. Each class runs in a process of its own, as in `benchmarks.peers`. With
--markdown the output ends with the table of docs/first-program.md: its last cells contain the ratio to worker processes
and, behind a slash, the ratio to a loop in one process.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import statistics
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from benchmarks.peer_modes import PEERS, Peer, Task
from benchmarks.peer_process import PeerProcess, open_peers
from benchmarks.peers import find_installed, machine_line, parse_measuring
from vecenv.cli.exit_codes import run_command
from vecenv.cli.options import check_file
from vecenv.envs.toys import BusyEnv
from vecenv.measurement import machine, measure, report
from vecenv.measurement.report import TableColumn
from vecenv.measurement.target import registered_env

#: Peers by name, each with its interpreter.
InstalledPeers: TypeAlias = dict[str, tuple[Peer, str]]

_NUM_ENVS = 16
#: The tasks, by the name for --row.
_TASKS = {
    "cartpole": Task(f"CartPole-v1, {_NUM_ENVS} envs", registered_env("CartPole-v1"), _NUM_ENVS, "CartPole-v1"),
    "busy": Task(f"busy 50 us, {_NUM_ENVS} envs", functools.partial(BusyEnv, busy_us=50), _NUM_ENVS),
}


class Client(NamedTuple):
    """A framework, and its line of the table in docs/first-program.md.

    Attributes:
        framework: as shown in tables.
        page: the page in docs/, '' if there is none.
        before, after: the line to change, before and after.
        equal: the results that are equal for the same seeds.
        ours: the peer that is vecenv's, '' if the framework is not measured.
        processes: the peer with worker processes that it replaces, '' if there is none.
        loop: the peer that is a loop in one process, '' if there is none.
    """

    framework: str
    page: str
    before: str
    after: str
    equal: str
    ours: str = ""
    processes: str = ""
    loop: str = ""

    @property
    def theirs(self) -> tuple[str, ...]:
        """The peers of the framework itself."""
        return tuple(filter(None, (self.processes, self.loop)))

    @property
    def cells(self) -> list[str]:
        """The first four cells of its line."""
        name = f"[{self.framework}]({self.page})" if self.page else self.framework
        return [name, f"`{self.before}`", f"`{self.after}`", self.equal]


CLIENTS = (
    Client(
        "Gymnasium",
        "",
        "AsyncVectorEnv(env_fns)",
        "VectorEnv(env_fns)",
        "all outputs",
        "vecenv VectorEnv",
        "gymnasium async",
        "gymnasium sync",
    ),
    Client(
        "Gymnasium, few cheap envs",
        "",
        "SyncVectorEnv(env_fns)",
        'VectorEnv(env_fns, backend="auto")',
        "all outputs",
        "vecenv VectorEnv, auto",
        "gymnasium async",
        "gymnasium sync",
    ),
    Client(
        "CleanRL",
        "cleanrl.md",
        "SyncVectorEnv(env_fns)",
        'VectorEnv(env_fns, infos="legacy", autoreset_mode="SameStep")',
        "all outputs",
    ),
    Client(
        "Stable-Baselines3",
        "sb3.md",
        "make_vec_env(..., vec_env_cls=SubprocVecEnv)",
        "make_vec_env(..., vec_env_cls=SB3VecEnv)",
        "all outputs, trained weights",
        "vecenv SB3VecEnv",
        "sb3 SubprocVecEnv",
        "sb3 DummyVecEnv",
    ),
    Client(
        "RLlib",
        "rllib.md",
        '.environment("CartPole-v1")',
        '.environment(register("fast-cartpole", "CartPole-v1"))',
        "returns of iterations",
        "vecenv in RLlib",
        "rllib async",
        "rllib sync",
    ),
    Client(
        "Tianshou",
        "tianshou.md",
        "SubprocVectorEnv(env_fns)",
        "VecenvVectorEnv(env_fns)",
        "buffers of a `Collector`",
        "vecenv VecenvVectorEnv",
        "tianshou SubprocVectorEnv",
        "tianshou DummyVectorEnv",
    ),
    Client(
        "TorchRL",
        "torchrl.md",
        "GymWrapper(AsyncVectorEnv(env_fns))",
        "VecenvEnv(env_fns)",
        "specs and rollouts",
        "vecenv VecenvEnv",
        "torchrl GymWrapper(AsyncVectorEnv)",
        "torchrl GymWrapper(SyncVectorEnv)",
    ),
    Client(
        "EnvPool, envs in C++",
        "envpool.md",
        "import envpool",
        "from vecenv.integrations import envpool",
        "calls and order of rows; spaces, infos and random numbers are Gymnasium's",
        "vecenv make of EnvPool",
        "",
        "envpool, envs in C++",
    ),
    Client(
        "PufferLib",
        "pufferlib.md",
        "make(..., backend=Multiprocessing)",
        "make(..., backend=VecenvBackend)",
        "all outputs of `Serial`",
        "vecenv VecenvBackend",
        "pufferlib Multiprocessing",
        "pufferlib Serial",
    ),
    Client(
        "DI-engine, LightZero",
        "managers.md",
        "from ding.envs import SyncSubprocessEnvManager",
        "from vecenv.ding import SyncSubprocessEnvManager",
        "timesteps, trained weights",
        "vecenv manager in DI-engine",
        "ding SyncSubprocessEnvManager",
        "ding BaseEnvManager",
    ),
    Client(
        "DI-engine's configurations",
        "ding.md",
        'env_manager=dict(type="subprocess")',
        'env_manager=dict(type="vecenv_subprocess", import_names=["vecenv.integrations.ding"])',
        "trained weights",
    ),
    Client(
        "PettingZoo, SuperSuit",
        "pettingzoo.md",
        "concat_vec_envs_v1(pettingzoo_env_to_vec_env_v1(env), N)",
        "PettingZooVectorEnv(parallel_fn, N)",
        "all outputs, trained weights",
    ),
    Client(
        "ALF",
        "alf.md",
        "ParallelAlfEnvironment(env_fns)",
        "vecenv.alf.ParallelAlfEnvironment(env_fns)",
        "time steps",
    ),
)


class Comparison(NamedTuple):
    """Vecenv's speed beside that of one class, in one task.

    Attributes:
        framework: its name.
        theirs: the peer of the framework.
        task: title of the task.
        their_rate, our_rate: env steps per second, medians.
        ratios: ours divided by theirs, one per round.
    """

    framework: str
    theirs: str
    task: str
    their_rate: float
    our_rate: float
    ratios: list[float]

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """The lower quartile, the median and the upper quartile of the ratios."""
        if len(self.ratios) == 1:
            return (self.ratios[0],) * 3
        low, middle, high = statistics.quantiles(self.ratios, n=4, method="inclusive")
        return low, middle, high

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return self._asdict()


_COLUMNS = (
    TableColumn(("", "framework"), 0, lambda row: row.framework),
    TableColumn(("", "compared with"), 1, lambda row: row.theirs),
    TableColumn(("its steps", "per second"), 4, lambda row: f"{row.their_rate:,.0f}"),
    TableColumn(("vecenv's", "per second"), 5, lambda row: f"{row.our_rate:,.0f}"),
    TableColumn(("", "ratio"), 2, lambda row: f"{row.quartiles[1]:.2f}"),
    TableColumn(("", "quartiles"), 3, lambda row: "{:.2f}-{:.2f}".format(*row.quartiles[::2])),
)


def main() -> None:
    """Measure each framework; print a table per task, and with --markdown that of docs/first-program.md."""
    options = _parse()
    if options.json:
        check_file("--json", options.json)
    clients = [client for client in CLIENTS if _is_chosen(client, options)]
    peers = find_peers(clients, options)
    about = machine.describe_machine()
    versions: dict[str, None] = {}
    found: list[Comparison] = []
    for task in (_TASKS[name] for name in options.row or _TASKS):
        report.print_text(f"{task.title}; {about['processor']}, {about['usable_cores']} usable cores")
        rows = [row for client in clients for row in _measure(client, task, peers, options, versions)]
        print("", *report.table_lines(rows, report.width_of(sys.stdout), _COLUMNS), "", sep="\n", flush=True)
        found += rows
    if options.markdown:
        print(*_markdown(found, about, list(versions)), sep="\n")
    if options.json:
        options.json.write_text(report.results_json(vars(options), {**about, "peers": list(versions)}, found))


def _is_chosen(client: Client, options: argparse.Namespace) -> bool:
    return not options.framework or any(part.lower() in client.framework.lower() for part in options.framework)


def find_peers(clients: Iterable[Client], options: argparse.Namespace) -> InstalledPeers:
    """Return the peers of these frameworks by name; print those that are missing."""
    names = {name for client in clients if client.ours for name in (client.ours, *client.theirs)}
    return {found[0].name: found for found in find_installed([one for one in PEERS if one.name in names], options)}


def open_client(client: Client, task: Task, peers: InstalledPeers, stack: contextlib.ExitStack) -> list[PeerProcess]:
    """Return vecenv's mode, then those of the framework; [] unless two or more are measured. `stack` closes them."""
    names = (client.ours, *client.theirs)
    modes = open_peers([peers[name] for name in names if name in peers], task, stack)
    return modes if len(modes) > 1 and modes[0].name == client.ours else []


def _measure(
    client: Client, task: Task, peers: InstalledPeers, options: argparse.Namespace, versions: dict[str, None]
) -> list[Comparison]:
    rates: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        modes = open_client(client, task, peers, stack)
        if not modes:
            return []
        versions |= dict.fromkeys(mode.version for mode in modes)
        with report.progress(len(modes) * options.rounds) as advance:
            for name, window in measure.interleave(modes, options.seconds / options.rounds, options.rounds):
                rates.setdefault(name, []).append(window.rate)
                advance(name)
    ours = rates.pop(client.ours)
    return [
        Comparison(
            client.framework,
            name,
            task.title,
            statistics.median(theirs),
            statistics.median(ours),
            [mine / other for mine, other in zip(ours, theirs, strict=True)],
        )
        for name, theirs in rates.items()
    ]


def _markdown(found: Sequence[Comparison], about: dict[str, Any], versions: Sequence[str]) -> list[str]:
    """Return the table of docs/first-program.md, and a line about the machine."""
    tasks = list(dict.fromkeys(row.task for row in found))
    header = ["framework", "the line before", "the line after", "equal for the same seeds", *tasks]
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    by_peer = {(row.framework, row.theirs, row.task): row for row in found}
    for client in CLIENTS:
        cells = []
        for task in tasks:
            of_peers = [by_peer.get((client.framework, peer, task)) for peer in (client.processes, client.loop)]
            cells.append(" / ".join(map(_ratio_text, of_peers)) if any(of_peers) else "-")
        lines.append(f"| {' | '.join([*client.cells, *cells])} |")
    return [*lines, "", machine_line(about, versions)]


def _ratio_text(row: Comparison | None) -> str:
    if row is None:
        return "-"
    low, middle, high = map(_two_digits, row.quartiles)
    return f"{middle} ({low}-{high})"


def _two_digits(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2g}"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.clients", description="Compare vecenv with the vector envs of each framework."
    )
    parser.add_argument("--framework", action="append", metavar="PART", help="only frameworks whose name contains PART")
    parser.add_argument("--row", action="append", choices=_TASKS, help="measure this task only; may be repeated")
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/first-program.md, too")
    return parse_measuring(parser)


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.clients", main))
