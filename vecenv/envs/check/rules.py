"""The rules of an env, as generators that yield each violation, and None after each step of the env."""

from __future__ import annotations

import contextlib
import copy
import numbers
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import gymnasium
import numpy as np

from vecenv.envs.adapt import adapt, convert_space, ensure_spaces, has_old_calls, reward_space_of
from vecenv.envs.check.data import (
    CONTAINERS,
    Violation,
    data_violations,
    describe,
    dtype_violations,
    has_nan,
    lacks_spaces,
    leaf_spaces,
    memory_violations,
)
from vecenv.envs.check.episodes import is_ding, sample_action
from vecenv.envs.step_formats import is_abnormal, step_reader
from vecenv.values.nested import equal

__all__ = [
    "MAX_STEPS",
    "WriteLine",
    "aliasing_violations",
    "reset_violations",
    "run_part",
    "run_rules",
    "seed_of",
    "space_violations",
    "step_violations",
]

#: Most steps of an episode, unless the caller gives another number.
MAX_STEPS = 10_000
#: Observations before each one that it is compared with.
KEPT_OBSERVATIONS = 8
DETERMINISM_STEPS = 50
#: Takes a line of text.
WriteLine: TypeAlias = Callable[[str], None]


def run_rules(
    env: Any, seed: int, episodes: int, max_steps: int, found: list[Violation], report: WriteLine
) -> Generator[None, None, None]:
    """Check an env against the rules that need no other interpreter; yield None after each of its steps.

    Args:
        env, seed, episodes, max_steps, report: as for `check_all`.
        found: gets the violations.
    """
    yield from run_part("reset", reset_violations(env, seed), found, report)
    if not lacks_spaces(found):
        yield from run_part("spaces", space_violations(env, strict_dtypes=is_ding(env)), found, report)
    if not lacks_spaces(found):
        yield from run_part("step", step_violations(env, episodes, max_steps), found, report)
        yield from run_part("aliasing", aliasing_violations(env, max_steps), found, report)
        yield from run_part("determinism", _determinism_violations(env, seed), found, report)
        is_nan = any(violation.rule == "nan" for violation in found)  # `env_checker` treats NaN as different each time
        if not has_old_calls(env) and not is_nan:
            yield from run_part("gymnasium", _gymnasium_violations(env), found, report)


def run_part(
    part: str, violations: Iterable[Violation | None], found: list[Violation], report: WriteLine
) -> Generator[None, None, None]:
    """Add the violations of one part, and an exception that it raises, to `found`; yield None after each step."""
    before = len(found)
    try:
        for violation in violations:
            if violation is None:
                yield
            elif violation not in found:
                found.append(violation)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # SystemExit, too, which would end the program without a message
        found.append(Violation(part, f"{type(error).__name__} raised: {error}"))
    report(f"{part}: {'ok' if len(found) == before else f'{len(found) - before} violation(s)'}")
    yield


def _no_spaces(env: Any) -> Iterator[Violation]:
    """Yield a violation for each space attribute that is not a space."""
    for name in ("observation_space", "action_space", "reward_space"):
        given = getattr(env, name, None)
        try:
            convert_space(given)
        except TypeError:
            yield Violation("spaces", f"{name}: expected a Gymnasium space, got {describe(given)}")


def space_violations(env: Any, strict_dtypes: bool) -> Iterator[Violation]:
    if wrong := list(_no_spaces(env)):
        yield from wrong
        return
    names = ["observation_space", "action_space"]
    if getattr(env, "reward_space", None) is not None or is_ding(env):
        names.append("reward_space")
    for name in names:
        space = convert_space(getattr(env, name, None))
        if space is None:
            yield Violation("spaces", f"{name} is missing")
        elif strict_dtypes:
            for path, leaf in leaf_spaces(space, name):
                yield from dtype_violations(path, leaf)


def reset_violations(env: Any, seed: int | None) -> Iterator[Violation]:
    if wrong := list(_no_spaces(env)):
        yield from wrong
        return
    adapted = adapt(env)
    obs, info = _reset(adapted, seed=seed)
    ensure_spaces(adapted)
    if not isinstance(info, Mapping):
        yield Violation("reset", f"info: expected a dict, got {describe(info)}")
    yield from data_violations(obs, adapted.observation_space, "observation of reset", observed=True)


def _reset(adapted: Any, **kwargs: Any) -> Any:
    result = adapted.reset(**kwargs)
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(f"expected (obs, info) of reset, got {describe(result)}")
    return result


class _Player:
    """Play an env with random actions from a generator of its own; legal actions if there is an `action_mask`."""

    def __init__(self, env: Any, seed: int = 0) -> None:
        self.env = env
        self.adapted = adapt(env)
        ensure_spaces(self.adapted)
        self.actions = copy.deepcopy(self.adapted.action_space)
        self.actions.seed(seed)
        self._obs: Any = None

    def reset(self, **kwargs: Any) -> Any:
        self._obs, _ = _reset(self.adapted, **kwargs)
        return self._obs

    def step(self) -> tuple[Any, Any]:
        """Apply a random action; return (result of the env, the same as a five-tuple)."""
        result = self.env.step(sample_action(self.env, self.actions, self._obs))
        read = step_reader(result)(result)
        if len(result) != 5 and not has_old_calls(self.env):  # workers do not convert these results
            raise TypeError(f"expected (obs, reward, terminated, truncated, info) of step, got {describe(result)}")
        self._obs = read[0]
        return result, read


def step_violations(env: Any, episodes: int, max_steps: int) -> Iterator[Violation | None]:
    player = _Player(env)
    seen: set[str] = set()
    for episode in range(episodes):
        player.reset()
        for step in range(max_steps):
            result, (obs, reward, terminated, truncated, info) = player.step()
            yield None
            if is_abnormal(info):
                if not is_abnormal(result[-1]) and "abnormal" not in seen:  # marked because there is no observation
                    seen.add("abnormal")
                    text = "observation: got None, which only a timestep with info['abnormal'] may have"
                    yield Violation("step", f"{text} (episode {episode}, step {step})")
                break
            for violation in _result_violations(env, player.adapted, result, obs, reward):
                # One violation for each rule and part, because a wrong dtype is wrong at every step.
                key = violation.rule + violation.message.partition(":")[0]
                if key not in seen:
                    seen.add(key)
                    yield violation._replace(message=f"{violation.message} (episode {episode}, step {step})")
            if terminated or truncated:
                yield from _score_violations(env, info, seen)
                break
        else:
            yield Violation("endless", f"episode {episode} did not end within {max_steps} steps")
            return


def _result_violations(env: Any, adapted: Any, result: Any, obs: Any, reward: Any) -> Iterator[Violation]:
    yield from data_violations(obs, adapted.observation_space, "observation", observed=True)
    yield from _reward_violations(env, reward)
    is_by_agent = has_old_calls(env) and not is_ding(env)  # then there may be one flag and info per agent
    kinds: tuple[type, ...] = (bool,) if is_ding(env) else (bool, np.bool_)
    names = ("terminated", "truncated") if len(result) == 5 else ("done",)
    for name, value in zip(names, result[2:], strict=False):
        if not isinstance(value, kinds) and not (is_by_agent and isinstance(value, CONTAINERS)):
            kind = "np.bool_" if isinstance(value, np.bool_) else type(value).__name__
            yield Violation("done", f"{name}: expected bool, got {kind}")
    infos = result[-1] if is_by_agent and isinstance(result[-1], (list, tuple)) and len(result) == 4 else [result[-1]]
    for info in infos:
        if not isinstance(info, Mapping):
            yield Violation("step", f"info: expected a dict, got {describe(info)}")


def _reward_violations(env: Any, reward: Any) -> Iterator[Violation]:
    reward_space = reward_space_of(env)
    if isinstance(reward, (list, tuple)) and has_old_calls(env) and not is_ding(env):
        with contextlib.suppress(TypeError, ValueError, OverflowError):  # one per agent, read as an array
            reward = np.asarray(reward, np.float64 if reward_space is None else reward_space.dtype)
    if is_ding(env) and not (isinstance(reward, np.ndarray) and reward.ndim >= 1):
        yield Violation("reward", f"reward: expected an array of at least one dimension, got {describe(reward)}")
    elif has_nan(reward):
        yield Violation("nan", "reward: expected numbers, got NaN, with which every sum is NaN")
    elif isinstance(reward, np.ndarray) and reward_space is not None:
        yield from data_violations(reward, reward_space, "reward")
    elif isinstance(reward, np.ndarray) and reward.size != 1:
        yield Violation("reward", f"reward: expected one number, as there is no reward_space, got {describe(reward)}")
    elif not isinstance(reward, (numbers.Number, np.generic, np.ndarray)):
        yield Violation("reward", f"reward: expected a number or an array, got {describe(reward)}")


def _score_violations(env: Any, info: Mapping[str, Any], seen: set[str]) -> Iterator[Violation]:
    if not is_ding(env) or "score" in seen:
        return
    score = info.get("eval_episode_return")
    if "eval_episode_return" not in info:
        seen.add("score")
        older = "; 'final_eval_reward' is its older name" if "final_eval_reward" in info else ""
        yield Violation("score", f"no info['eval_episode_return'] at the end of an episode{older}")
    elif not (isinstance(score, numbers.Real) or (isinstance(score, np.ndarray) and score.dtype.kind in "iuf")):
        seen.add("score")
        yield Violation("score", f"info['eval_episode_return']: expected a number or an array, got {describe(score)}")


def aliasing_violations(env: Any, max_steps: int) -> Iterator[Violation | None]:
    player = _Player(env)
    before = player.reset()
    # Several are kept, because an env may use a few arrays alternately.
    kept = deque([(before, copy.deepcopy(before))], KEPT_OBSERVATIONS)  # (observation, copy made at that time)
    for step in range(max_steps):
        _, (obs, _, terminated, truncated, info) = player.step()
        yield None
        if is_abnormal(info):
            return
        for ago, (before, was) in enumerate(reversed(kept), start=1):
            distance, when = ("around", "before") if ago == 1 else (f"{ago} steps apart, at", f"{ago} steps before")
            shared = next(memory_violations(before, obs, f"observations {distance} step {step}"), None)
            if shared is None and not equal(before, was):
                shared = Violation("aliasing", f"the observation {when} step {step} was changed by that step")
            if shared is not None:
                yield shared
                return
        if terminated or truncated:
            return
        kept.append((obs, copy.deepcopy(obs)))


def _determinism_violations(env: Any, seed: int) -> Iterator[Violation | None]:
    first = yield from _seeded_run(env, seed)
    second = yield from _seeded_run(env, seed)
    for step, (one, two) in enumerate(zip(first, second, strict=False)):
        for name, left, right in zip(("observation", "reward", "terminated", "truncated"), one, two, strict=True):
            if not equal(left, right):
                where = "reset" if step == 0 else f"step {step - 1}"
                yield Violation("determinism", f"{name} of {where} differs between two runs with seed {seed}")
                return


def seed_of(env: Any) -> Any:
    return getattr(env, "_seed", None)


def _seeded_run(env: Any, seed: int) -> Generator[None, None, list[tuple[Any, ...]]]:
    player = _Player(env, seed)
    if has_old_calls(env):
        player.adapted.seed(seed, False)  # type: ignore[attr-defined]
        obs = player.reset()
    else:
        obs = player.reset(seed=seed)
    run: list[tuple[Any, ...]] = [(copy.deepcopy(obs), None, None, None)]
    for _ in range(DETERMINISM_STEPS):
        _, (obs, reward, terminated, truncated, _) = player.step()
        run.append((copy.deepcopy(obs), copy.deepcopy(reward), terminated, truncated))
        yield
        if terminated or truncated:
            break
    return run


def _gymnasium_violations(env: gymnasium.Env[Any, Any]) -> Iterator[Violation]:
    from gymnasium.utils.env_checker import check_env

    # At its end, check_env makes a second env from the spec. Gymnasium can do that only if all wrappers record their
    # arguments, which is not required here, because workers make envs by functions.
    is_remade = all(wrapper.kwargs is not None for wrapper in getattr(env.spec, "additional_wrappers", ()))
    with warnings.catch_warnings():
        # The warnings of check_env are advice on style (wide bounds, wrapped envs), not violations.
        warnings.simplefilter("ignore")
        try:
            check_env(env, skip_render_check=True, skip_close_check=not is_remade)
        except Exception as error:
            yield Violation("gymnasium", f"env_checker: {error}")
