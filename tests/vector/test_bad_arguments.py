"""Arguments of a vector env that make no sense: each is named before any process starts."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from vecenv import ConfigError, VectorEnv
from vecenv.envs.toys import ToyEnv

LIMITS = ("construct_timeout", "reset_timeout", "step_timeout", "call_timeout", "close_timeout")


@pytest.mark.parametrize("value", ["a", 0, -1, float("nan"), [1]], ids=repr)
@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_that_is_no_time(name, value):
    with pytest.raises(ConfigError, match=f"{name}: expected seconds above 0, got") as caught:
        VectorEnv([ToyEnv], **{name: value})
    assert caught.value.key == name


@pytest.mark.parametrize(
    "failures, says",
    [
        (3, "failures: expected a dict, got 3"),
        ("truncate", "failures: expected a dict, got 'truncate'"),
        ({"recycle_after": 5}, "recycle_after: expected a dict, got 5"),
        ({"recycle_after": {"episodes": "x"}}, r"recycle_after\['episodes'\]: expected a number above 0, got 'x'"),
        ({"recycle_after": {"weeks": 1}}, "recycle_after: unknown key 'weeks'"),
        ({"recovery_timeout": "x"}, "recovery_timeout: expected seconds above 0, got 'x'"),
        ({"restart_window": "x"}, "restart_window: expected seconds above 0, got 'x'"),
    ],
    ids=str,
)
def test_failures_that_make_no_sense(failures, says):
    with pytest.raises(ConfigError, match=says):
        VectorEnv([ToyEnv], failures=failures)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_a_wait_that_makes_no_sense_is_named_and_nothing_is_lost(backend, implementation):
    with contextlib.closing(VectorEnv([ToyEnv] * 2, backend=backend)) as envs:
        envs.reset(seed=0)
        envs.send([0, 0])
        for args, says in [
            (("a",), "min_count: expected a whole number or None, got 'a'"),
            ((1.5,), "min_count: expected a whole number or None, got 1.5"),
            ((None, "x"), "timeout: expected seconds or None, got 'x'"),
        ]:
            with pytest.raises(ConfigError, match=says):
                envs.recv(*args)
        assert envs.recv(np.int64(2), np.float32(30))[0][:, 0].tolist() == [1.0, 1.0]
