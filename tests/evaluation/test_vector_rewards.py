"""Evaluations of envs whose rewards have several numbers: returns, means and intervals of each number."""

from __future__ import annotations

from typing import Any

import pytest

from tests.vector.two_goals import limited, policy, sums
from vecenv import compare, evaluate


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_evaluate_sums_each_number(backend: str) -> None:
    result = evaluate(limited, policy, seeds=range(4), num_envs=2, backend=backend)
    assert result.returns.tolist() == [sums()] * 4
    assert result.mean.tolist() == sums()
    assert result.standard_error.tolist() == [0.0, 0.0]
    assert [limit.tolist() for limit in result.confidence_interval] == [sums(), sums()]
    assert "return: mean [6, -12], standard error [0, 0], 95 % interval [6, -12] to [6, -12]" in str(result)
    assert repr(result).endswith("mean=[6, -12])")
    assert result.as_dict()["mean"] == sums()
    assert result.as_dict()["returns"] == [sums()] * 4


def test_evaluate_gives_each_episode_its_own_sums() -> None:
    episodes: list[Any] = []
    result = evaluate(limited, policy, seeds=range(5), num_envs=2, max_steps=2, on_episode=episodes.append)
    assert result.returns.tolist() == [sums(2)] * 5
    assert [one.episode_return.tolist() for one in episodes] == [sums(2)] * 5


def test_compare_of_several_numbers() -> None:
    found = compare(limited, policy, policy, seeds=range(3), backend="serial")
    assert found.differences.shape == (1, 3, 2) and found.means.tolist() == [[0.0, 0.0]]
    assert found.confidence_intervals.shape == (1, 2, 2)
    assert "mean difference [0, 0], standard error [0, 0]" in str(found)
    assert found.as_dict()["means"] == [[0.0, 0.0]]
    single = compare(limited, policy, policy, seeds=[1], backend="serial").as_dict()
    assert single["standard_errors"] == [[None, None]]
