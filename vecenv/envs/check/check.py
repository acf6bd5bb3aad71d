"""Checks of an env in the caller's process, before a manager uses it; one run finds all violations of the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gymnasium import spaces

from vecenv.envs.check.data import (
    CONTAINERS,
    Violation,
    data_violations,
    describe,
    lacks_spaces,
    memory_violations,
)
from vecenv.envs.check.episodes import exhaust, sample_action
from vecenv.envs.check.interpreters import pickling_violations, sharing_violations
from vecenv.envs.check.rules import (
    MAX_STEPS,
    WriteLine,
    aliasing_violations,
    reset_violations,
    run_part,
    run_rules,
    seed_of,
    space_violations,
    step_violations,
)
from vecenv.errors import VecenvError

from ...own_log import own_logger

__all__ = [
    "CheckError",
    "check_all",
    "check_array_space",
    "check_different_memory",
    "check_obs_deepcopy",
    "check_reset",
    "check_space_dtype",
    "check_step",
    "demonstrate_correct_procedure",
]


_logger = own_logger(__name__)


class CheckError(VecenvError, AssertionError):
    """An env violates rules; `violations` contains all violations that were found."""

    def __init__(self, message: str = "", *, violations: Sequence[Violation] = ()) -> None:
        super().__init__(message)
        self.violations = tuple(violations)


def check_all(
    env: Any,
    *,
    seed: int = 0,
    episodes: int = 3,
    max_steps: int = MAX_STEPS,
    spawn: bool = True,
    report: WriteLine | None = None,
    env_fn: Callable[[], Any] | None = None,
) -> None:
    """Check any env that `envs.adapt` accepts against all rules; plays a few episodes and does not close the env.

    In addition to the other checks of this module, it checks that two runs with one seed are equal, and that the env
    can be pickled and loaded in a new interpreter. With `env_fn`, two envs that take turns in one process must give
    the results that each gives alone. For Gymnasium envs it runs `gymnasium.utils.env_checker`. The
    rules for dtypes, one-dimensional rewards and `eval_episode_return` are those of `BaseEnv`; they are not applied
    to Gymnasium envs.

    Args:
        env: the env, best new and not yet reset.
        seed: seed of the runs.
        episodes: number of episodes to play.
        max_steps: a longer episode counts as endless.
        spawn: False skips the checks in new interpreters (a few seconds).
        report: called with a line of text after each part; None logs the lines.
        env_fn: the constructor that workers call; it is sent to the new interpreter and called there. None sends the
            env itself, or its spec.

    Raises:
        CheckError: the env violates a rule; the error contains all violations.
    """
    report = report or _logger.info
    found: list[Violation] = []
    if spawn:
        exhaust(run_part("pickling", pickling_violations(env, env_fn), found, report))
    exhaust(run_rules(env, seed, episodes, max_steps, found, report))
    if spawn and env_fn is not None and not lacks_spaces(found):
        exhaust(run_part("sharing", sharing_violations(env_fn, seed), found, report))
    _raise_if(found, env)


def check_space_dtype(env: Any) -> None:
    """Check that all spaces exist and their dtypes are float32 and int64 (uint8 for images, int8 for masks).

    CheckError is raised with all violations.
    """
    _raise_if(space_violations(env, strict_dtypes=True), env)


def check_array_space(data: Any, space: Any, name: str) -> None:
    """Check the dtype, shape and bounds of each part of data against a space; CheckError has all violations.

    Args:
        data: an array, an integer, or a sequence or dict of them; TypeError for another type, such as a number for a
            space with parts.
        space: a space, or a sequence or dict of spaces.
        name: name of the data in messages.
    """
    has_parts = isinstance(space, (Mapping, list, tuple, spaces.Dict, spaces.Tuple))
    if has_parts and not isinstance(data, CONTAINERS):
        raise TypeError(f"{name}: expected a sequence or a dict, got {describe(data)}")
    _raise_if(data_violations(data, space, name), None)


def check_reset(env: Any, seed: int | None = None) -> None:
    """Reset the env, with a seed if it is not None, and check the observation against its space.

    CheckError is raised with all violations.
    """
    _raise_if(reset_violations(env, seed), env)


def check_step(env: Any, episodes: int = 3, max_steps: int = MAX_STEPS) -> None:
    """Play episodes with random actions; check the result of each step and the score at the end of each episode.

    If observations have an `action_mask` for a Discrete space, the actions are legal ones. An episode must end within
    `max_steps`. CheckError is raised with all violations.
    """
    _raise_if(filter(None, step_violations(env, episodes, max_steps)), env)


def check_different_memory(array1: Any, array2: Any, step_times: int) -> None:
    """Check part by part that two observations do not share memory; CheckError if they do, or if their types differ.

    Args:
        array1: an observation: an array, or a container of arrays, numbers, strings and None; TypeError for others.
        array2: the observation of another step.
        step_times: number of the step, for messages.
    """
    name = f"observations around step {step_times}"
    if type(array1) is type(array2) and not isinstance(array1, CONTAINERS):
        raise TypeError(f"{name}: expected arrays or containers of them, got {describe(array1)}")
    _raise_if(memory_violations(array1, array2, name), None)


def check_obs_deepcopy(env: Any, max_steps: int = MAX_STEPS) -> None:
    """Play an episode; check that observations do not share memory with the 8 before them and do not change later.

    CheckError is raised with the first case only.
    """
    _raise_if(filter(None, aliasing_violations(env, max_steps)), env)


def demonstrate_correct_procedure(
    env_cls: Callable[[dict[str, Any]], Any], report: WriteLine | None = None, max_steps: int = MAX_STEPS
) -> None:
    """Play three episodes in the way a `BaseEnv` should be used, and check each stage.

    Args:
        env_cls: class of the env, called with an empty config.
        report: called with a line of text after each stage; None logs the lines.
        max_steps: a longer episode counts as endless.

    Raises:
        CheckError: the env was built before its first reset, the seed was not kept, an episode ended without a score,
            or an episode did not end.
    """
    report = report or _logger.info
    env = env_cls({})
    _expect(getattr(env, "_env", None) is None, "reset", "the env is built in __init__; build it at the first reset")
    report("built from a config, env not yet made")
    env.seed(4)
    _expect(seed_of(env) == 4, "seed", f"_seed: expected 4, got {seed_of(env)!r}")
    report("seeded with 4")
    obs = env.reset()
    _expect(obs is not None, "reset", "reset gave no observation")
    for episode in range(3):
        for _ in range(max_steps):
            timestep = env.step(sample_action(env, env.action_space, obs))
            obs = timestep.obs
            if timestep.done:
                break
        else:
            _expect(False, "endless", f"episode {episode} did not end within {max_steps} steps")
        _expect("eval_episode_return" in timestep.info, "score", "no info['eval_episode_return'] at the end")
        report(f"episode {episode}: eval_episode_return {timestep.info['eval_episode_return']}")
        obs = env.reset()
        _expect(seed_of(env) == 4, "seed", f"_seed changed by a reset: expected 4, got {seed_of(env)!r}")
    env.close()


def _expect(fact: bool, rule: str, message: str) -> None:
    if not fact:
        violation = Violation(rule, message)
        raise CheckError(str(violation), violations=[violation])


def _raise_if(violations: Iterable[Violation], env: Any) -> None:
    found = list(violations)
    if found:
        head = "" if env is None else f"{env} breaks {len(found)} rule(s):\n"
        text = "\n".join(f"  {violation}" if head else str(violation) for violation in found)
        raise CheckError(head + text, violations=found)
