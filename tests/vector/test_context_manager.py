"""Vector envs in a `with` statement, like managers and pools; Gymnasium's own have no such support."""

from __future__ import annotations

import functools

import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from vecenv import BatchedVectorEnv, VectorEnv, make_vec
from vecenv.envs.toys import ToyEnv


@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize(
    "make",
    [
        functools.partial(VectorEnv, [ToyEnv] * 2),
        functools.partial(BatchedVectorEnv, [functools.partial(CartPoleVectorEnv, 2)]),
        functools.partial(make_vec, "CartPole-v1", 2),
    ],
    ids=["VectorEnv", "BatchedVectorEnv", "make_vec"],
)
def test_with_statement_closes_on_every_exit(make, backend):
    made = make(backend=backend)
    with made as envs:
        assert envs is made and envs.reset(seed=0)[0].shape[1] == 4
    assert made.closed
    made.close()  # a second close is allowed
    with pytest.raises(ZeroDivisionError), make(backend=backend) as envs:
        1 / 0  # noqa: B018
    assert envs.closed
