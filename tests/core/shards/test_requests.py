"""Requests: steps and other operations survive the way through one buffer; steps are not pickled."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from tests.spaces import ALL_SPACES
from vecenv.core.layout.spec import Leaf, Spec
from vecenv.core.shards.requests import AddInfoKey, Cancel, Request, Steps, pack_request, unpack_request


def random_actions(leaves: list[Leaf], count: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(count)
    return tuple(
        np.frombuffer(rng.bytes(count * leaf.nbytes), np.uint8).view(leaf.dtype).reshape(count, *leaf.shape)
        if leaf.nbytes
        else np.zeros((count, *leaf.shape), leaf.dtype)
        for leaf in leaves
    )


@pytest.mark.parametrize("name", ALL_SPACES)
@pytest.mark.parametrize("some", [True, False])
def test_steps_of_every_space_survive_a_request(name: str, some: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle, "dumps", None)
    leaves = Spec(ALL_SPACES[name], "action").leaves
    actions = random_actions(leaves, 3)
    step_ids, env_ids = (np.array([7, 9, 10]), np.array([2, 0, 1])) if some else (range(7, 10), None)
    data = pack_request(Request(5, 4, [Steps(step_ids, env_ids, actions, 1)], 2, 0.5))
    seq, ack, (steps,), least, wait_seconds = unpack_request(data, leaves)
    assert (seq, ack, least, wait_seconds, steps.form) == (5, 4, 2, 0.5, 1)
    assert list(steps.step_ids) == list(step_ids)
    assert (steps.env_ids is None) if env_ids is None else (steps.env_ids.tolist() == env_ids.tolist())
    for ours, theirs in zip(actions, steps.leaves, strict=True):
        assert (theirs.dtype, theirs.shape, theirs.tobytes()) == (ours.dtype, ours.shape, ours.tobytes())


def test_other_operations_survive_a_request() -> None:
    steps = Steps(range(1, 2), None, (np.zeros(1, np.int64),), 0)
    for ops in ([], [Cancel(3), AddInfoKey("a")], [steps, Cancel(0)]):
        assert unpack_request(pack_request(Request(1, 0, ops, 1, 1.0)), ()) == Request(1, 0, ops, 1, 1.0)


@pytest.mark.parametrize("change", [-1, 1])
def test_steps_of_another_size_than_their_header_says_are_refused(change: int) -> None:
    leaves = Spec(ALL_SPACES["box_float32"], "action").leaves
    data = pack_request(Request(1, 0, [Steps(range(1, 4), None, random_actions(leaves, 3), 0)], 3, 1.0))
    with pytest.raises(ValueError, match=f"request 1 has {len(data) + change} bytes, and {len(data)} by its header"):
        unpack_request(data[:change] if change < 0 else data + b"\0", leaves)
