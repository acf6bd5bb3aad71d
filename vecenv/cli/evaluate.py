"""`vecenv evaluate`: play one episode per seed with a policy, print a table and a histogram of the returns."""

from __future__ import annotations

import argparse
import functools
import itertools
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from vecenv.cli.exit_codes import wrap_foreign_errors
from vecenv.cli.json_output import STDOUT, JsonOutput
from vecenv.cli.options import AddArgument, add_shared, check_workers, count, natural, seconds, seed_list
from vecenv.errors import ConfigError

if TYPE_CHECKING:
    from vecenv.evaluation import Evaluation

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "play", "run"]

_NUM_BINS = 10
#: Width of a histogram, if the output is no terminal.
_WIDTH = 80

HELP = "returns of a policy: exactly one episode per seed, the same for any number of envs"
DESCRIPTION = (
    "Play exactly one episode per seed with a policy, and print a table and a histogram of the "
    "returns. The policy is a function policy(obs, env_id) that returns one action per row."
)


def add_arguments(add: AddArgument) -> None:
    add_shared(add, "env")
    add("--policy", required=True, metavar="MODULE:FUNCTION", help="a class is instantiated without arguments")
    add("--seeds", type=seed_list, metavar="A:B", help="seeds A to B - 1; or a list such as 3,5,100:200")
    add("--episodes", type=count, metavar="K", help="in place of --seeds: seeds 0 to K - 1")
    add_shared(add, "--envs", default=8, help="envs at once (default: %(default)s)")
    add_shared(add, "--workers")
    add("--timeout", type=seconds, metavar="S", help="cut episodes whose steps take longer (default: no limit)")
    add_shared(add, "--max-steps")
    add("--rng", choices=("per-episode",), help="give the policy a random generator per row as a third argument")
    add("--batch-rows", type=count, metavar="K", help="call the policy with exactly K rows, padded")
    add("--videos", type=natural, default=0, metavar="K", help="record the episodes of the first K seeds")
    add("--out", type=Path, default=Path("video"), metavar="DIR", help="folder of the videos (default: %(default)s)")
    about = "write all results to a file; without FILE or with -, to standard output, and the table to standard error"
    add_shared(add, "--json", nargs="?", const=STDOUT, help=about)
    add_shared(add, "--overwrite", help="replace videos and files of --json that exist")
    add_shared(add, "--env-kwarg")


def run(options: argparse.Namespace) -> int:
    """Evaluate, print, write; return exit code 0. After a failure, the episodes that had ended are printed, too."""
    from vecenv.evaluation.seeds import read_seeds

    if (options.seeds is None) == (options.episodes is None):
        raise ConfigError("expected either --seeds or --episodes")
    seeds = read_seeds(options.seeds, options.episodes, name="--seeds")
    check_workers(options)
    with JsonOutput(options.json, overwrite=options.overwrite) as output:
        _evaluate(options, seeds, output)
    return 0


def _evaluate(options: argparse.Namespace, seeds: tuple[int, ...], output: JsonOutput) -> None:
    from vecenv.cli.display import draw_without_display
    from vecenv.cli.policy_names import find_policy
    from vecenv.measurement.env_names import find_env_fn
    from vecenv.measurement.target import check_env

    if options.videos:
        draw_without_display()
    policy = find_policy(options.policy)
    rendering = {"render_mode": "rgb_array"} if options.videos else None
    env_fn = check_env(find_env_fn(options.env, dict(options.env_kwarg), rendering), options.env)
    start = time.perf_counter()

    def show(result: Evaluation) -> None:
        if result.num_episodes:
            text = functools.partial(_json_text, result, options)
            output.write(text, functools.partial(_show, result, time.perf_counter() - start, output.text_file))

    play(
        env_fn,
        options.policy,
        policy,
        seeds,
        show,
        num_envs=options.envs,
        timeout=options.timeout,
        max_steps=options.max_steps,
        videos=options.videos,
        out=options.out,
        overwrite=options.overwrite,
        rng=options.rng,
        batch_rows=options.batch_rows,
        **({} if options.workers is None else {"num_workers": options.workers}),
    )


def play(
    env_fn: Callable[[], Any],
    policy_name: str,
    policy: Any,
    seeds: Sequence[int],
    show: Callable[[Evaluation], None],
    **arguments: Any,
) -> None:
    """Evaluate a policy with a progress bar, and show the result; after a failure, that of the episodes that had ended.

    Args:
        policy_name: for errors.
        show: called with the result, if there is one. Its errors are not those of the policy.
        **arguments: as for `vecenv.evaluate`.

    Raises:
        EnvError: the env or the policy raised an exception.
        VecenvError, KeyboardInterrupt: as from `vecenv.evaluate`.
    """
    from vecenv.evaluation import evaluate
    from vecenv.measurement import report

    result: Evaluation | None = None
    try:
        with wrap_foreign_errors(policy_name):
            try:
                with report.progress(len(seeds)) as advance:
                    result = evaluate(
                        env_fn,
                        policy,
                        seeds=seeds,
                        on_episode=lambda episode: advance(f"seed {episode.seed}"),
                        **arguments,
                    )
            except BaseException as error:  # Ctrl-C and SIGTERM, too
                result = vars(error).get("result")
                raise
    finally:
        if result is not None:
            show(result)


def _show(result: Evaluation, duration: float, file: TextIO) -> None:
    steps = int(result.lengths.sum())
    print(
        result,
        "",
        *_histogram_lines(result, file),
        "",
        f"{result.num_episodes} episodes, {steps:,} steps in {duration:.1f} s",
        *result.videos,
        sep="\n",
        file=file,
        flush=True,
    )


def _json_text(result: Evaluation, options: argparse.Namespace) -> str:
    from vecenv.values.json_text import json_text

    settings = {"policy": options.policy, "env_kwargs": dict(options.env_kwarg), "max_steps": options.max_steps}
    content = {**result.as_dict(), **settings, "complete": result.num_episodes == result.num_planned}
    return json_text(content)


def _histogram_lines(result: Evaluation, file: TextIO) -> list[str]:
    """Return a histogram of the returns, one line per range, as wide as the terminal; [] if they are no numbers."""
    import numpy as np

    returns = result.returns[np.isfinite(result.returns)]
    if result.returns.ndim > 1 or not len(returns):
        return []
    counts, edges = np.histogram(returns, bins=_NUM_BINS if returns.min() < returns.max() else 1)
    if len(counts) == 1:
        edges = returns[[0, 0]]
    ranges = [f"{low:.6g} to {high:.6g}" for low, high in itertools.pairwise(edges)]
    margin, numbers = max(map(len, ranges)), [f"{number:,}" for number in counts]
    width = shutil.get_terminal_size().columns if file.isatty() else _WIDTH
    longest = max(1, width - margin - max(map(len, numbers)) - 5)
    bars = ["█" * round(longest * number / counts.max()) for number in counts]
    lines = [f"{text:>{margin}}  {bar} {number}".rstrip() for text, bar, number in zip(ranges, bars, numbers)]
    return ["returns", *lines]
