"""Comparison: the returns of several policies on the same episodes, and their differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.layout.spec import Array
from .bootstrap import mean_interval, standard_error
from .result import Evaluation, text_of, without_nan

__all__ = ["Comparison"]


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
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
