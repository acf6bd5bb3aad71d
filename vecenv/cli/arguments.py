"""Arguments of all commands; the module of a command is imported when the command runs."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from vecenv.cli.options import count, integer, key_value, milliseconds, natural, seconds, seed_list

__all__ = ["BENCH_MODES", "COMMANDS", "DEFAULT_ENV", "STDOUT", "Subcommand"]

#: `ArgumentParser.add_argument`.
AddArgument: TypeAlias = Callable[..., argparse.Action]
#: The environment of `vecenv bench` if none is given, and its modes.
DEFAULT_ENV = "CartPole-v1"
BENCH_MODES = ("plain", "ceiling", "gymnasium", "serial", "sync", "async")
#: The value of `--json` that means standard output.
STDOUT = "-"
#: Types of `--envs`, `--workers` and `--rounds`; a pool sets the first two limits.
_NUM_ENVS, _NUM_WORKERS, _NUM_ROUNDS = (functools.partial(integer, low=1, high=high) for high in (65_535, 1024, 10_000))


class Subcommand(NamedTuple):
    """A command of the program: a function that adds its arguments by `ArgumentParser.add_argument`, and its texts."""

    add_arguments: Callable[[AddArgument], None]
    help: str
    description: str


class _AddItem(argparse.Action):
    """Adds KEY=VALUE to the dict of an option."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, type=key_value, default={})

    def __call__(self, _parser: Any, namespace: argparse.Namespace, item: Any, _option: str | None = None) -> None:
        key, value = item
        setattr(namespace, self.dest, {**getattr(namespace, self.dest), key: value})


_SHARED: dict[str, dict[str, Any]] = {
    "env": dict(metavar="ENV", help="registered id, or module:factory (a function or class that builds the env)"),
    "--envs": dict(type=_NUM_ENVS, default=64, metavar="N", help="number of envs (default: %(default)s)"),
    "--workers": dict(type=_NUM_WORKERS, metavar="W", help="worker processes (default: one per usable core)"),
    "--policy-ms": dict(
        type=milliseconds,
        default=0.0,
        metavar="X",
        help="milliseconds in which one thread computes the actions of all envs (default: %(default)s)",
    ),
    "--env-kwarg": dict(dest="env_kwargs", action=_AddItem, metavar="KEY=VALUE", help="repeatable"),
    "--json": dict(
        metavar="FILE", help="write every number; - is standard output, and the table goes to standard error"
    ),
    "--overwrite": dict(action="store_true", help="replace the file of --json if it exists"),
    "--socket": dict(metavar="PATH", help="of the server (default: in the folder of this user)"),
    "--max-steps": dict(type=count, metavar="N", help="cut episodes after N steps (default: no limit)"),
}


def _add(add: AddArgument, *names: str, **changes: Any) -> None:
    """Add arguments of `_SHARED` by their names, with these changes."""
    for name in names:
        add(name, **{**_SHARED[name], **changes})


def _add_bench(add: AddArgument) -> None:
    about = f"registered id, or module:factory, a function or class that builds the env (default: {DEFAULT_ENV})"
    _add(add, "env", nargs="?", help=about)
    add("--env", dest="env_option", metavar="ENV", help="old form of ENV")
    about = "worker processes (default: as many as fit one measured env)"
    _add(add, "--envs")
    _add(add, "--workers", help=about)
    about = "answers that the async mode waits for (default: half the envs)"
    add("--wait-num", type=count, metavar="K", help=about)
    add("--seconds", type=seconds, default=3.0, metavar="S", help="time for each mode (default: %(default)s)")
    about = "windows per mode, in turns (default: %(default)s); fewer ones of at least ten resets if resets are slow"
    add("--rounds", type=_NUM_ROUNDS, default=5, metavar="R", help=about)
    _add(add, "--env-kwarg", "--policy-ms")
    add("--atari", action="store_true", help="84x84 grey frames in stacks of 4, of a registered id")
    add("--copy", action=argparse.BooleanOptionalAction, default=True, help="hand out copies (default) or views")
    add("--skip", action="append", choices=BENCH_MODES, default=[], help="leave a mode out; repeatable")
    add("--only", choices=BENCH_MODES, help="leave all other modes out")
    about = "on the cluster that `ray.init()` joins (RAY_ADDRESS) or a local Ray, and print when to use it"
    add("--ray", action="store_true", help=f"measure backend='ray', too, {about}")
    _add(add, "--json")
    add("--plot", type=Path, metavar="FILE.png", help="draw a bar chart")
    _add(add, "--overwrite", help="replace files of --json and --plot that exist")


def _add_check(add: AddArgument) -> None:
    _add(add, "env")
    add("--seed", type=natural, default=0, metavar="S", help="of the runs that must be equal (default: %(default)s)")
    add("--episodes", type=count, default=3, metavar="K", help="episodes to play through (default: %(default)s)")
    _add(add, "--max-steps", default=10_000, help="longer is endless (default: %(default)s)")
    _add(add, "--env-kwarg")
    add("--no-spawn", action="store_true", help="leave out building the env in a fresh interpreter")
    about = "an env whose reset or step takes longer hangs (default: %(default)s)"
    add("--step-timeout", type=seconds, default=30.0, metavar="S", help=about)
    add("--determinism", action="store_true", help="also say whether episodes can be recovered after a crash")


def _add_completion(add: AddArgument) -> None:
    add("shell", choices=("bash", "zsh", "tcsh"), help="the shell that reads the script")


def _add_evaluate(add: AddArgument) -> None:
    _add(add, "env")
    about = "random, or a function or an object with `predict`; a class is instantiated without arguments"
    add("--policy", required=True, metavar="MODULE:NAME", help=about)
    add("--seeds", type=seed_list, metavar="A:B", help="seeds A to B - 1; or a list such as 3,5,100:200")
    add("--episodes", type=count, metavar="K", help="in place of --seeds: seeds 0 to K - 1")
    _add(add, "--envs", default=8, help="envs at once (default: %(default)s)")
    _add(add, "--workers")
    add("--timeout", type=seconds, metavar="S", help="cut episodes whose steps take longer (default: no limit)")
    _add(add, "--max-steps")
    add("--rng", choices=("per-episode",), help="give the policy a random generator per row as a third argument")
    add("--batch-rows", type=count, metavar="K", help="call the policy with exactly K rows, padded")
    add("--resume", metavar="FILE", help="keep ended episodes in FILE; after a kill, the same command plays the others")
    add("--videos", type=natural, default=0, metavar="K", help="record the episodes of the first K seeds")
    add("--out", type=Path, default=Path("video"), metavar="DIR", help="folder of the videos (default: %(default)s)")
    about = "write all results to a file; without FILE or with -, to standard output, and the table to standard error"
    _add(add, "--json", nargs="?", const=STDOUT, help=about)
    _add(add, "--overwrite", help="replace videos and files of --json that exist")
    _add(add, "--env-kwarg")


def _add_record(add: AddArgument) -> None:
    _add(add, "env")
    add("--episodes", type=count, default=1, metavar="K", help="how many (default: %(default)s)")
    add("--out", type=Path, default=Path("video"), metavar="DIR", help="folder, made if missing (default: %(default)s)")
    add("--seed", type=natural, metavar="S", help="repeat a run exactly (default: a new one every time)")
    add("--policy", metavar="MODULE:FUNCTION", help="policy(obs, env_id) (default: random actions)")
    _add(add, "--max-steps", help="with --policy: cut episodes after N steps")
    _add(add, "--overwrite", help="with --policy: replace videos that exist")
    _add(add, "--env-kwarg")


def _add_inspect(add: AddArgument) -> None:
    add("file", metavar="FILE", type=Path, help="as `save` of a vector env has written it")


def _add_replay(add: AddArgument) -> None:
    add("file", metavar="FILE", type=Path, help="as named by the error or the warning")
    add("--until", type=natural, metavar="COMMAND", help="stop before the command with this number")
    add("--pdb", action="store_true", help="debug the env from its last command on, or from the one of --until")
    add("--quiet", action="store_true", help="print no line per command")


def _add_serve(add: AddArgument) -> None:
    about = "a TOML file with the envs and their quotas; or one env: a registered id, or module:factory"
    add("source", nargs="?", metavar="FILE.toml|ENV", help=about)
    _add(add, "--workers", default=1, help="of one env: worker processes (default: %(default)s)")
    about = "of one env: envs in each worker (default: %(default)s)"
    add("--envs-per-worker", type=_NUM_ENVS, default=1, metavar="K", help=about)
    about = "of one env: whether used envs are replaced by new ones (default: %(default)s)"
    add("--rebuild", choices=("if-needed", "always", "never"), default="if-needed", help=about)
    about = "of one env: N workers that only this client gets; repeatable"
    add("--reserve", action=_AddItem, metavar="CLIENT=N", help=about)
    _add(add, "--env-kwarg", "--socket")
    add("--stop", action="store_true", help="end the server; leased workers end with their leases")


def _add_leases(add: AddArgument) -> None:
    _add(add, "--socket")
    add("--json", action="store_true", help="one line of JSON")


def _add_top(add: AddArgument) -> None:
    add("pid", nargs="?", type=count, metavar="PID", help="process of the pool (default: the only one that runs)")
    add("--pool", type=count, metavar="N", help="the N-th pool of that process")
    add("--once", action="store_true", help="show the numbers of one interval and end")
    add("--json", action="store_true", help="one line of JSON per interval")
    add("--interval", type=seconds, default=1.0, metavar="S", help="seconds between two lines (default: %(default)g)")


def _add_tune(add: AddArgument) -> None:
    _add(add, "env", "--envs", "--policy-ms")
    add("--seconds", type=seconds, default=30.0, metavar="S", help="time for the search (default: %(default)s)")
    add("--lockstep", action="store_true", help="try step() only, not send() and recv()")
    _add(add, "--env-kwarg")
    about = "option of VectorEnv that all settings have, such as infos=all; repeatable"
    add("--option", dest="options", action=_AddItem, metavar="KEY=VALUE", help=about)
    _add(add, "--json", "--overwrite")


COMMANDS = {
    "bench": Subcommand(
        _add_bench,
        "steps per second of an env: plain loop, Gymnasium's AsyncVectorEnv, vecenv",
        "Step an env in a plain loop, in gymnasium.vector.AsyncVectorEnv and in vecenv, in "
        "windows that take turns, and compare medians. The ceiling is one plain loop per usable core, all at once. "
        "For one mode of vecenv with workers alone, also print its times, and one line per cause of lost time: the "
        "measured number, the setting to change, and the gain to expect.",
    ),
    "check": Subcommand(
        _add_check,
        "every rule an env breaks: spaces, dtypes, bounds, aliasing, seeds, pickling, endless episodes",
        "Play a few episodes of an env with random actions and print every rule that it breaks. "
        "Exit code 1 if there is one.",
    ),
    "completion": Subcommand(
        _add_completion,
        "script with which a shell completes commands and options",
        'Print a script for a shell. For bash: eval "$(vecenv completion bash)" in ~/.bashrc.',
    ),
    "doctor": Subcommand(
        lambda add: None,
        "what this machine has for vecenv, and what each missing thing costs",
        "Print cores, memory, limits, features of the system, versions and extras, and what each missing one "
        "costs. Start two workers. Exit code 1 if they do not run.",
    ),
    "evaluate": Subcommand(
        _add_evaluate,
        "returns of a policy: exactly one episode per seed, the same for any number of envs",
        "Play exactly one episode per seed with a policy, and print a table and a histogram of the "
        "returns. The policy is a function policy(obs, env_id) that returns one action per row.",
    ),
    "inspect": Subcommand(
        _add_inspect,
        "what a saved state of a vector env contains",
        "Check the file of a saved state, and print its header: the envs, their spaces, versions, and the number of "
        "commands that a load repeats. The pickle in the file is not run.",
    ),
    "leases": Subcommand(
        _add_leases,
        "the leases of the env server",
        "Print the envs of the env server of this user, their workers, and which client has how many since when.",
    ),
    "record": Subcommand(
        _add_record,
        "videos of an env's episodes",
        "Play episodes of an env with random actions or a policy, write a video of each, and print the "
        "files. With a policy they are named by env and seed.",
    ),
    "replay": Subcommand(
        _add_replay,
        "run a failed episode again",
        "Run the episode of a reproducer file again, in this process: if the env crashed, this crashes. "
        "The file is a pickle and can run any code; use it on your own files.",
    ),
    "serve": Subcommand(
        _add_serve,
        "keep slow envs warm, and lend them to programs",
        "Build envs in worker processes once, and lend these to the programs of this user, one after the other: "
        "VectorEnv(vecenv.lease(NAME, N)). The server has no part in steps.",
    ),
    "top": Subcommand(
        _add_top,
        "watch a running pool: steps per second, workers, slow and hanging envs",
        "Watch a running pool of this user: steps per second, busy shares and memory of workers, the "
        "slowest envs, and what each env does now. Keys: s sorts, d shows the Python stacks of a worker, q quits.",
    ),
    "tune": Subcommand(
        _add_tune,
        "the fastest options of VectorEnv for an env, and the call to paste",
        "Step an env with different backends, workers, threads, calls and options of VectorEnv, in windows "
        "that take turns; the better half goes on with longer windows. Print a table and the call to paste.",
    ),
}
