"""`vecenv check`: play an env and print every rule it breaks; say whether its episodes survive a crash."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator

from vecenv.envs.adapt import adapt
from vecenv.envs.check.check import CheckError, check_all
from vecenv.envs.check.data import Violation, lacks_spaces
from vecenv.envs.check.recovery import RecoveryReport, check_recovery
from vecenv.errors import ConfigError
from vecenv.measurement.env_names import find_env_fn
from vecenv.measurement.target import build_env

__all__ = ["run"]

_BROKEN = 1


def run(options: argparse.Namespace) -> int:
    """Check, print; return 0 if no rule is broken, else 1."""
    env_fn = find_env_fn(options.env, options.env_kwargs)
    env = build_env(env_fn, options.env)
    violations: list[Violation] = []
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
        with _add_exceptions("close", violations):
            adapt(env).close()  # not every env has `close`
    if options.determinism and lacks_spaces(violations):
        print("recovery after a crash: cannot be tried without proper spaces")
    elif options.determinism:
        report: RecoveryReport | None = None
        with _add_exceptions("recovery", violations, ConfigError):
            report = check_recovery(env_fn, seed=options.seed)
        if report is not None:
            print(*report.lines(), sep="\n")
            if report.seeded is not None:
                violations.append(Violation("recovery", f"not reproducible: {report.seeded}"))
    for violation in violations:
        print(f"  {violation}")
    count = len(violations)
    print(f"{options.env}: " + (f"{count} rule{'s' * (count > 1)} broken" if count else "keeps every rule"))
    return _BROKEN if violations else 0


@contextlib.contextmanager
def _add_exceptions(rule: str, violations: list[Violation], *raised: type[Exception]) -> Iterator[None]:
    """Add an exception of the env to the violations; those of the classes `raised` are raised."""
    try:
        yield
    except BaseException as error:  # env code may raise any class
        if isinstance(error, (KeyboardInterrupt, *raised)):
            raise
        violations.append(Violation(rule, f"{type(error).__name__} raised: {error}"))
