"""Results: `EpisodeResult` of one episode, `Evaluation` of one policy, `Comparison` of several policies.

Confidence intervals of means are found by the bootstrap. A return is one number, or one of shape K for each number of
the rewards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from ..core.layout.spec import Array
from ..values.nested import map_structure
from ..values.shown_text import ShownText

__all__ = ["Comparison", "EpisodeResult", "Evaluation"]

#: Most episodes in the printed table.
_MOST_LINES = 20
_NUM_RESAMPLES = 10_000
_BOOTSTRAP_SEED = 0
#: Values that are drawn at once: 8 MiB.
_MOST_DRAWN = 2**20


@dataclass(frozen=True)
class EpisodeResult:
    """One episode.

    Attributes:
        seed: of its reset.
        episode_return: sum of its rewards, in the order of the steps: a float, or float64 (*K) for rewards of several
            numbers.
        length: number of its steps.
        terminated, truncated: flags of its last step; both False if it was cut.
        cut: why the evaluation ended the episode before its own end: 'max_steps', 'timeout', or 'failure' if the
            env's worker died and the episode could not be recovered. '' for episodes that ended by themselves.
        seconds: time that its steps took, from each request to the receipt of its answer; without its reset and the
            policy.
        info: info dict of its last step; {} if the env gave none, and after a timeout.
    """

    seed: int
    episode_return: Any
    length: int
    terminated: bool
    truncated: bool
    cut: str
    seconds: float
    info: Mapping[str, Any]


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(ShownText):
    """The episodes of one policy, in the order of the seeds; `print` shows a table.

    For reproducible results see `evaluate`; `seconds` and episodes cut by a timeout differ from run to run. All arrays
    are read-only.

    Example:
        >>> import vecenv
        >>> def policy(obs, env_id):
        ...     return (obs[:, 2] > 0).astype("int64")
        >>> result = vecenv.evaluate("CartPole-v1", policy, seeds=[5, 6, 7], num_envs=2, backend="serial")
        >>> result.seeds.tolist(), result.returns.tolist(), result.mean
        ([5, 6, 7], [39.0, 32.0, 34.0], 35.0)

    Attributes:
        env_name: id of the env, or the name of its class.
        num_planned: number of seeds that were asked for. There are fewer episodes if the evaluation failed.
        seeds: int64 (E,).
        returns: sum of rewards of each episode, float64 (E,); (E, *K) for rewards of several numbers.
        lengths: steps of each episode, int64 (E,).
        terminated, truncated, cut, seconds: see `EpisodeResult`; bool, bool, text and float64 (E,).
        infos: info dict of the last step of each episode.
        videos: paths of the video files that were written, in the order of the seeds.
    """

    env_name: str
    num_planned: int
    seeds: Array
    returns: Array
    lengths: Array
    terminated: Array
    truncated: Array
    cut: Array
    seconds: Array
    infos: tuple[Mapping[str, Any], ...]
    videos: tuple[Path, ...] = field(default=())

    @classmethod
    def of(
        cls,
        env_name: str,
        seeds: Sequence[int],
        episodes: Mapping[int, EpisodeResult],
        videos: Mapping[int, Path] | None = None,
    ) -> Evaluation:
        """Return the results of these episodes, by seed; `seeds` gives their order, and some may be missing."""
        found = [episodes[seed] for seed in seeds if seed in episodes]

        def column(name: str, dtype: Any) -> Array:
            values = np.array([getattr(one, name) for one in found], dtype)
            values.flags.writeable = False
            return values

        paths = [path for seed in seeds if (path := (videos or {}).get(seed)) is not None and path.exists()]
        return cls(
            env_name=env_name,
            num_planned=len(seeds),
            seeds=column("seed", np.int64),
            returns=column("episode_return", np.float64),
            lengths=column("length", np.int64),
            terminated=column("terminated", np.bool_),
            truncated=column("truncated", np.bool_),
            cut=column("cut", np.str_),
            seconds=column("seconds", np.float64),
            infos=tuple(one.info for one in found),
            videos=tuple(paths),
        )

    # ---- summary -----------------------------------------------------------------------------

    @property
    def num_episodes(self) -> int:
        """E, the number of episodes that were played."""
        return len(self.seeds)

    @property
    def mean(self) -> Any:
        """Mean return, a float; NaN without an episode. For rewards of several numbers, float64 (*K)."""
        return as_number(self.returns.mean(0)) if self.num_episodes else math.nan

    @property
    def standard_error(self) -> Any:
        """Standard error of the mean return, shaped as `mean`; NaN for fewer than two episodes."""
        return as_number(standard_error(self.returns))

    @property
    def confidence_interval(self) -> tuple[Any, Any]:
        """Interval (low, high) of the mean return at 95 %, by the bootstrap with a fixed seed; each shaped as `mean`.

        Both are NaN for fewer than two episodes.
        """
        low, high = mean_interval(self.returns)
        return as_number(low), as_number(high)

    def as_dict(self) -> dict[str, Any]:
        """Return summary and episodes as numbers, texts, lists and dicts, for JSON and loggers.

        Means that are NaN are None; other numbers may be NaN or infinite. Arrays in the infos are lists; other objects
        in them stay as they are.
        """
        low, high = self.confidence_interval
        episodes = [one for one in fields(self) if one.name not in ("env_name", "num_planned", "infos", "videos")]
        return {
            "env": self.env_name,
            "num_planned": self.num_planned,
            "num_episodes": self.num_episodes,
            "mean": without_nan(self.mean),
            "standard_error": without_nan(self.standard_error),
            "confidence_interval": [without_nan(low), without_nan(high)],
            **{one.name: getattr(self, one.name).tolist() for one in episodes},
            "infos": [map_structure(_plain, info) for info in self.infos],
            "videos": [str(path) for path in self.videos],
        }

    # ---- the table -----------------------------------------------------------------------------

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}({self.env_name}, num_episodes={self.num_episodes}, mean={text_of(self.mean)})"

    def __str__(self) -> str:
        return "\n".join([*self.summary_lines(), *self._episode_lines()])

    def summary_lines(self) -> list[str]:
        """Return the lines above the table of episodes: counts, mean return, mean length, ends."""
        count = self.num_episodes
        planned = f" of {self.num_planned}" if count < self.num_planned else ""
        lines = [f"{self.env_name}: {count}{planned} episode{'s' * (count != 1)}"]
        if not count:
            return lines
        parts = [f"mean {text_of(self.mean)}"]
        if count > 1:
            low, high = self.confidence_interval
            error = text_of(self.standard_error, 3)
            parts.append(f"standard error {error}, 95 % interval {text_of(low)} to {text_of(high)}")
        parts.append(f"from {text_of(self.returns.min(0))} to {text_of(self.returns.max(0))}")
        shortest, longest = self.lengths.min(), self.lengths.max()
        lines.append(f"return: {', '.join(parts)}")
        lines.append(f"length: mean {self.lengths.mean():.6g}, from {shortest} to {longest}")
        reasons = [f"{np.sum(self.cut == reason)} cut ({reason})" for reason in np.unique(self.cut) if reason]
        ends = [f"{self.terminated.sum()} terminated", f"{self.truncated.sum()} truncated", *reasons]
        lines.append(f"ends: {', '.join(ends)}")
        return lines

    def _episode_lines(self) -> list[str]:
        rows = [("seed", "return", "length", "end")]
        for row in range(min(self.num_episodes, _MOST_LINES)):
            end = [name for name in ("terminated", "truncated") if getattr(self, name)[row]]
            end += [f"cut: {self.cut[row]}"] if self.cut[row] else []
            cells = (str(self.seeds[row]), text_of(self.returns[row]), str(self.lengths[row]))
            rows.append((*cells, " and ".join(end)))
        if len(rows) == 1:
            return []
        widths = [max(map(len, cells)) for cells in zip(*rows)]
        lines = ["  ".join([*map(str.rjust, row[:3], widths), row[3]]) for row in rows]
        left = self.num_episodes - _MOST_LINES
        return ["", *lines, *([f"... and {left} further episode{'s' * (left > 1)}"] if left > 0 else [])]


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(ShownText):
    """Paired differences between policies: each seed gives all policies the same episode. `print` shows a table.

    Since both returns of a difference begin from the same state, the difference of two policies is known more exactly
    than from episodes with different seeds.

    Example:
        >>> import numpy as np, vecenv
        >>> def left(obs, env_id):
        ...     return np.zeros(len(obs), np.int64)
        >>> def upright(obs, env_id):
        ...     return (obs[:, 2] > 0).astype(np.int64)
        >>> found = vecenv.compare("CartPole-v1", left, upright, seeds=range(20), backend="serial")
        >>> found.differences.shape, bool(found.means[0] > 0), bool(found.confidence_intervals[0, 0] > 0)
        ((1, 20), True, True)

    Attributes:
        names: of the policies, in the order of the call.
        evaluations: results of each policy, in the same order.
    """

    names: tuple[str, ...]
    evaluations: tuple[Evaluation, ...]

    @property
    def differences(self) -> Array:
        """Returns of each policy after the first, less those of the first policy: float64 (P - 1, E).

        For rewards of several numbers this and the summaries have their shape K at the end: (P - 1, E, *K).
        """
        first, *others = (one.returns for one in self.evaluations)
        return np.array([returns - first for returns in others])

    @property
    def means(self) -> Array:
        """Mean difference of each policy after the first, float64 (P - 1,)."""
        means: Array = self.differences.mean(1)
        return means

    @property
    def standard_errors(self) -> Array:
        """Standard error of each mean difference, float64 (P - 1,); NaN for a single episode."""
        return np.array([standard_error(row) for row in self.differences])

    @property
    def confidence_intervals(self) -> Array:
        """Interval of each mean difference at 95 %, by the bootstrap with a fixed seed: float64 (P - 1, 2)."""
        return np.array([np.stack(mean_interval(row)) for row in self.differences])

    def as_dict(self) -> dict[str, Any]:
        """Return the differences and all evaluations as numbers, texts, lists and dicts.

        Differences and means that are NaN are None. The evaluations are as in `Evaluation.as_dict`.
        """
        return {
            "policies": list(self.names),
            "differences": without_nan(self.differences),
            "means": without_nan(self.means),
            "standard_errors": without_nan(self.standard_errors),
            "confidence_intervals": without_nan(self.confidence_intervals),
            "evaluations": [one.as_dict() for one in self.evaluations],
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.names)}, num_episodes={self.evaluations[0].num_episodes})"

    def __str__(self) -> str:
        first = self.evaluations[0]
        lines = [f"{first.env_name}: {first.num_episodes} episodes, the same for each policy"]
        for name, one in zip(self.names, self.evaluations):
            cut = np.sum(one.cut != "")
            lines.append(f"{name}: mean return {text_of(one.mean)}" + (f", {cut} cut" if cut else ""))
        for name, mean, error, (low, high) in zip(
            self.names[1:], self.means, self.standard_errors, self.confidence_intervals
        ):
            spread = f", standard error {text_of(error, 3)}, 95 % interval {text_of(low)} to {text_of(high)}"
            spread = "" if np.isnan(error).all() else spread
            lines.append(f"{name} - {self.names[0]}: mean difference {text_of(mean)}{spread}")
        return "\n".join(lines)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def as_number(value: Array) -> Any:
    return value if value.shape else float(value)


def without_nan(value: Any) -> Any:
    """Return a number or an array as numbers and lists, with None in the place of NaN."""
    if np.ndim(value):
        return [without_nan(part) for part in value]
    return None if math.isnan(value) else float(value)


def text_of(value: Any, digits: int = 6) -> str:
    """Return a number as text, or an array as numbers in brackets."""
    if np.ndim(value):
        return f"[{', '.join(text_of(part, digits) for part in value)}]"
    return f"{value:.{digits}g}"


# ---- confidence intervals ----------------------------------------------------------------------


def mean_interval(values: Array, level: float = 0.95) -> tuple[Array, Array]:
    """Return a confidence interval of the mean: quantiles of the means of 10,000 resamples, drawn with a fixed seed.

    Args:
        values: float64 (E, *K), episodes independent of each other.
        level: the share of such intervals that contain the true mean, between 0 and 1.

    Returns:
        (low, high), float64 (*K); NaN for fewer than two values, or if one is not finite.
    """
    count = len(values)
    if count < 2 or not np.isfinite(values).all():
        unknown = np.full(values.shape[1:], math.nan)
        return unknown, unknown
    generator = np.random.default_rng(_BOOTSTRAP_SEED)
    means = np.empty((_NUM_RESAMPLES, *values.shape[1:]))
    step = max(1, _MOST_DRAWN // values.size)
    for start in range(0, _NUM_RESAMPLES, step):
        part = means[start : start + step]
        part[:] = values[generator.integers(count, size=(len(part), count))].mean(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def standard_error(values: Array) -> Array:
    """Return the standard error of the mean of values, (E, *K); NaN for fewer than two, or if one is infinite."""
    if len(values) < 2 or not np.isfinite(values).all():
        return np.full(values.shape[1:], math.nan)
    found: Array = np.std(values, axis=0, ddof=1) / math.sqrt(len(values))
    return found
