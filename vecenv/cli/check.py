"""`vecenv check`: play an env and print every rule it breaks; say whether its episodes survive a crash.

Only the options are here; the rules stand in `envs.check` and `envs.check_recovery`, imported when the command runs.
"""

from __future__ import annotations

import argparse
from typing import Any

from vecenv.cli.options import AddArgument, add_shared, count, natural
from vecenv.errors import ConfigError

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "run"]

_BROKEN = 1

HELP = "every rule an env breaks: spaces, dtypes, bounds, aliasing, seeds, pickling, endless episodes"
DESCRIPTION = (
    "Play a few episodes of an env with random actions and print every rule that it breaks. "
    "Exit code 1 if there is one."
)


def add_arguments(add: AddArgument) -> None:
    add_shared(add, "env")
    add("--seed", type=natural, default=0, metavar="S", help="of the runs that must be equal (default: %(default)s)")
    add("--episodes", type=count, default=3, metavar="K", help="episodes to play through (default: %(default)s)")
    add_shared(add, "--max-steps", default=10_000, help="longer is endless (default: %(default)s)")
    add_shared(add, "--env-kwarg")
    add("--no-spawn", action="store_true", help="leave out building the env in a fresh interpreter")
    add("--determinism", action="store_true", help="also say whether episodes can be recovered after a crash")


def run(options: argparse.Namespace) -> int:
    """Check, print; return 0 if no rule is broken, else 1."""
    from vecenv.envs.check.check import CheckError, check_all
    from vecenv.envs.check.data import lacks_spaces
    from vecenv.measurement.env_names import find_env_fn
    from vecenv.measurement.target import build_env

    env_fn = find_env_fn(options.env, dict(options.env_kwarg))
    env = build_env(env_fn, options.env)
    violations: list[Any] = []
    try:
        check_all(
            env,
            seed=options.seed,
            episodes=options.episodes,
            max_steps=options.max_steps,
            spawn=not options.no_spawn,
            report=print,
            env_fn=env_fn,
        )
    except CheckError as error:
        violations.extend(error.violations)
    finally:
        violations.extend(_close(env))
    if options.determinism and lacks_spaces(violations):
        print("recovery after a crash: cannot be tried without proper spaces")
    elif options.determinism:
        violations.extend(_print_recovery(env_fn, options.seed))
    for violation in violations:
        print(f"  {violation}")
    count = len(violations)
    print(f"{options.env}: " + (f"{count} rule{'s' * (count > 1)} broken" if count else "keeps every rule"))
    return _BROKEN if violations else 0


def _close(env: Any) -> list[Any]:
    from vecenv.envs.adapt import adapt
    from vecenv.envs.check.data import Violation

    try:
        adapt(env).close()  # which not every env has
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # of any class; earlier findings must be reported, too
        return [Violation("close", f"{type(error).__name__} raised: {error}")]
    return []


def _print_recovery(env_fn: Any, seed: int) -> list[Any]:
    from vecenv.envs.check.data import Violation
    from vecenv.envs.check.recovery import check_recovery

    try:
        report = check_recovery(env_fn, seed=seed)
    except (ConfigError, KeyboardInterrupt):
        raise
    except BaseException as error:  # of the env, of any class: reported after the rules that it breaks
        return [Violation("recovery", f"{type(error).__name__} raised: {error}")]
    for line in report.lines():
        print(line)
    return [] if report.seeded is None else [Violation("recovery", f"not reproducible: {report.seeded}")]
