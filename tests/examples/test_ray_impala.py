"""V-trace of the example `ray_impala`; its training is tested beside the other programs over Ray."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", exc_type=ImportError)

import torch

from vecenv.examples.ray_impala import v_trace


def columns(*rows: float) -> object:
    return torch.tensor(rows)[:, None]


def test_v_trace_of_equal_policies_is_the_sum_of_rewards() -> None:
    """Three steps of one env; the second one ends an episode, and the third one is followed by the value 8."""
    has_end = torch.tensor([[False], [True], [False]])
    values, next_values = columns(5.0, 6.0, 7.0), columns(6.0, 0.0, 8.0)
    targets, advantages = v_trace(columns(1.0, 1.0, 1.0), columns(1.0, 2.0, 3.0), values, next_values, has_end, 0.5)
    assert targets.flatten().tolist() == [1 + 0.5 * 2, 2, 3 + 0.5 * 8]
    assert advantages.flatten().tolist() == [2 - 5, 2 - 6, 7 - 7]


def test_v_trace_cuts_ratios_above_one_and_shrinks_corrections_below() -> None:
    has_end = torch.zeros(2, 1, dtype=torch.bool)
    values, next_values = columns(1.0, 1.0), columns(1.0, 1.0)
    targets, advantages = v_trace(columns(0.5, 4.0), columns(1.0, 1.0), values, next_values, has_end, 1.0)
    assert targets.flatten().tolist() == [1 + 0.5 * 1 + 0.5 * 1, 2]
    assert advantages.flatten().tolist() == [0.5 * (1 + 2 - 1), 1]
