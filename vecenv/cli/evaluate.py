"""`vecenv evaluate`: play one episode per seed with a policy, print a table and a histogram of the returns."""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import numpy as np
from gymnasium.vector.utils import concatenate, create_empty_array

from vecenv.cli.display import draw_without_display
from vecenv.cli.exit_codes import wrap_foreign_errors
from vecenv.cli.options import check_workers
from vecenv.cli.result_file import JsonOutput
from vecenv.envs.adapt import adapt_and_build
from vecenv.errors import ConfigError
from vecenv.evaluation import Evaluation, evaluate
from vecenv.evaluation.seeds import MOST_SEED, read_seeds
from vecenv.measurement import report
from vecenv.measurement.env_names import did_you_mean, find_env_fn, import_module
from vecenv.measurement.target import check_env, foreign_errors
from vecenv.values.json_text import json_text

__all__ = ["play", "run"]

_NUM_BINS = 10
#: Width of a histogram, if the output is no terminal.
_WIDTH = 80
#: The name of the policy that draws actions at random.
_RANDOM = "random"


def run(options: argparse.Namespace) -> int:
    """Evaluate, print, write; return exit code 0. After a failure, the episodes that had ended are printed, too."""
    if (options.seeds is None) == (options.episodes is None):
        raise ConfigError("expected either --seeds or --episodes")
    seeds = read_seeds(options.seeds, options.episodes, name="--seeds")
    check_workers(options)
    with JsonOutput(options.json, overwrite=options.overwrite) as output:

        def show(result: Evaluation, duration: float) -> None:
            if result.num_episodes:
                text = functools.partial(_json_text, result, options)
                output.write(text, functools.partial(_show, result, duration, output.text_file))

        play(
            options,
            seeds,
            show,
            num_envs=options.envs,
            timeout=options.timeout,
            videos=options.videos,
            rng=options.rng,
            batch_rows=options.batch_rows,
            resume=options.resume,
            **({} if options.workers is None else {"num_workers": options.workers}),
        )
    return 0


def play(
    options: argparse.Namespace,
    seeds: Sequence[int],
    show: Callable[[Evaluation, float], None],
    *,
    videos: int,
    **arguments: Any,
) -> None:
    """Evaluate a policy with a progress bar, and show the result; after a failure, that of the episodes that had ended.

    Args:
        options: of the command.
        show: called with the result and the seconds that it took, if there is one; not to raise as the policy does.
        **arguments: as for `vecenv.evaluate`, as are the other arguments and exceptions.

    Raises:
        EnvError: the env or the policy raised an exception.
    """
    if videos:
        draw_without_display()
    policy = None if options.policy == _RANDOM else _find_policy(options.policy)
    rendering = {"render_mode": "rgb_array"} if videos else None
    env_fn = check_env(find_env_fn(options.env, options.env_kwargs, rendering), options.env)
    if policy is None:
        policy, arguments["rng"] = _RandomPolicy(env_fn), "per-episode"
    result: Evaluation | None = None
    start = time.perf_counter()
    try:
        with wrap_foreign_errors(options.policy):
            try:
                with report.progress(len(seeds)) as advance:
                    result = evaluate(
                        env_fn,
                        policy,
                        seeds=seeds,
                        max_steps=options.max_steps,
                        videos=videos,
                        out=options.out,
                        overwrite=options.overwrite,
                        on_episode=lambda episode: advance(f"seed {episode.seed}"),
                        **arguments,
                    )
            except BaseException as error:  # Ctrl-C and SIGTERM, too
                result = vars(error).get("result")
                raise
    finally:
        if result is not None:
            show(result, time.perf_counter() - start)


class _RandomPolicy:
    """Draws actions from the action space of an env, by the generator of each episode."""

    def __init__(self, env_fn: Callable[[], Any]) -> None:
        with contextlib.closing(adapt_and_build(env_fn())) as env:
            self._space = copy.deepcopy(env.action_space)

    def __call__(self, obs: Any, env_id: Any, generators: Sequence[np.random.Generator]) -> Any:
        actions = []
        for generator in generators:
            self._space.seed(int(generator.integers(MOST_SEED)))
            actions.append(self._space.sample())
        out: Any = create_empty_array(self._space, len(actions))
        return concatenate(self._space, actions, out)


def _find_policy(name: str) -> Any:
    """Return the policy called `module:function`, where function may be a dotted path; a class is instantiated.

    ConfigError is raised if the module cannot be imported, it has no such name, or the object is not callable.
    """
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        raise ConfigError(f"--policy {name}: expected {_RANDOM}, or module:function, such as my_policies:act")
    found: Any = import_module(name, module_name)
    for part in path.split("."):
        if not hasattr(found, part):
            hint = did_you_mean(part, [known for known in dir(found) if not known.startswith("_")])
            raise ConfigError(f"--policy {name}: {module_name!r} has no {path!r}{hint}")
        found = getattr(found, part)
    if isinstance(found, type):
        with foreign_errors(f"--policy {name}: cannot be made"):
            found = found()
    if not callable(found) and not hasattr(found, "predict"):
        raise ConfigError(f"--policy {name}: expected a function policy(obs, env_id), got {type(found).__name__}")
    return found


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
    settings = {name: getattr(options, name) for name in ("policy", "env_kwargs", "max_steps")}
    return json_text({**result.as_dict(), **settings, "complete": result.num_episodes == result.num_planned})


def _histogram_lines(result: Evaluation, file: TextIO) -> list[str]:
    """Return a histogram of the returns, one line per range, as wide as the terminal; [] if they are no numbers."""
    returns = result.returns[np.isfinite(result.returns)]
    if result.returns.ndim > 1 or not len(returns):
        return []
    counts, edges = np.histogram(returns, bins=_NUM_BINS if returns.min() < returns.max() else 1)
    if len(counts) == 1:
        edges = returns[[0, 0]]
    ranges = [f"{low:.6g} to {high:.6g}" for low, high in itertools.pairwise(edges)]
    margin, numbers = max(map(len, ranges)), [f"{number:,}" for number in counts]
    width = report.width_of(file) or _WIDTH
    longest = max(1, width - margin - max(map(len, numbers)) - 5)
    bars = ["█" * round(longest * number / counts.max()) for number in counts]
    lines = [f"{text:>{margin}}  {bar} {number}".rstrip() for text, bar, number in zip(ranges, bars, numbers)]
    return ["returns", *lines]
