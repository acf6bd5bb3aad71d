"""Calls at the wrong moment: the same errors as from `AsyncVectorEnv`, and the warning of `close`."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import re
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from vecenv import BatchedVectorEnv, ConfigError, SpaceError, VectorEnv
from vecenv.envs.toys import HangAtStep, ToyEnv

BACKENDS = ["serial", "process"]
ACTIONS = np.zeros(2, np.int64)


def sb3_class() -> Any:
    return pytest.importorskip("vecenv.integrations.sb3", exc_type=ImportError).SB3VecEnv


WARNING = "Calling `close` while waiting for a pending call to `{}` to complete. "

#: State -> the call that leads to it.
STATES = {
    "idle": lambda envs: None,
    "step": lambda envs: envs.step_async(ACTIONS),
    "reset": lambda envs: envs.reset_async(),
    "call": lambda envs: envs.call_async("render"),
    "closed": lambda envs: envs.close(),
}
CALLS = {
    "step": lambda envs: envs.step(ACTIONS),
    "step_async": lambda envs: envs.step_async(ACTIONS),
    "step_wait": lambda envs: envs.step_wait(),
    "reset": lambda envs: envs.reset(),
    "reset_async": lambda envs: envs.reset_async(),
    "reset_wait": lambda envs: envs.reset_wait(),
    "call": lambda envs: envs.call("render"),
    "call_async": lambda envs: envs.call_async("render"),
    "call_wait": lambda envs: envs.call_wait(),
    "get_attr": lambda envs: envs.get_attr("np_random_seed"),
    "set_attr": lambda envs: envs.set_attr("brightness", 1),
    "render": lambda envs: envs.render(),
}


class Lamp(ToyEnv):
    """Has an attribute to set, and renders."""

    brightness = 0

    def render(self):
        return self.brightness


def outcome_of(envs, state, call):
    """Return Gymnasium's class of the error of a call in a state, and its `name`; (None, None) if it succeeds."""
    envs.reset(seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `close` warns, see below
        try:
            STATES[state](envs)
            try:
                CALLS[call](envs)
            except Exception as error:
                own = [cls for cls in type(error).__mro__ if cls.__module__ == "gymnasium.error"]
                return (own or [type(error)])[0], getattr(error, "name", None), str(error)
            return None, None, ""
        finally:
            envs.close()


@functools.cache
def outcome_of_gymnasium(state, call):
    return outcome_of(gymnasium.vector.AsyncVectorEnv([Lamp] * 2, shared_memory=False), state, call)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("state", STATES)
def test_calls_out_of_order_raise_as_in_async_vector_env(state, call):
    envs = VectorEnv([Lamp] * 2, backend="serial")
    error, name, text = outcome_of(envs, state, call)
    assert (error, name) == outcome_of_gymnasium(state, call)[:2]
    assert not error or text.startswith((f"{call}: ", f"Calling `{call}` "))


@pytest.mark.parametrize("call", [call for call in CALLS if "call_" not in call])
@pytest.mark.parametrize("state", ["idle", "step", "reset", "closed"])
def test_calls_of_batched_vector_env_out_of_order_raise_as_in_async_vector_env(state, call):
    envs = BatchedVectorEnv([functools.partial(gymnasium.vector.SyncVectorEnv, [Lamp])] * 2, backend="serial")
    error, name, text = outcome_of(envs, state, call)
    assert (error, name) == outcome_of_gymnasium(state, call)[:2]
    assert not error or text.startswith((f"{call}: ", f"Calling `{call}` "))


WAITS = {"step_async": "step_wait", "reset_async": "reset_wait", "call_async": "call_wait"}


@pytest.mark.parametrize("begin, wait", WAITS.items())
def test_wait_with_a_wrong_timeout_keeps_the_call_pending(begin, wait):
    with contextlib.closing(VectorEnv([ToyEnv] * 2, backend="serial")) as envs:
        envs.reset(seed=0)
        getattr(envs, begin)(*{"step_async": [ACTIONS], "call_async": ["num_resets"]}.get(begin, []))
        with pytest.raises(ConfigError, match="timeout: expected seconds or None, got 'x'"):
            getattr(envs, wait)(timeout="x")
        assert len(getattr(envs, wait)()) in (2, 5)
        envs.set_attr("length", 3)


# ---- close -----------------------------------------------------------------------------------


class RaisesAtClose(ToyEnv):
    def close(self):
        raise RuntimeError("close failed")


@pytest.mark.parametrize("backend", BACKENDS)
def test_close_that_an_env_lets_fail_closes_all_the_same(backend):
    envs = VectorEnv([RaisesAtClose] * 2, backend=backend, num_workers=1)
    envs.reset(seed=0)
    with contextlib.suppress(RuntimeError):
        envs.close()
    assert envs.closed and envs.pool.closed
    envs.close()


@pytest.mark.parametrize("pending", ["step", "reset", "call"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_close_warns_of_a_call_without_its_wait(backend, pending):
    envs = VectorEnv([ToyEnv] * 2, backend=backend, num_workers=1)
    envs.reset(seed=0)
    STATES[pending](envs)
    with pytest.warns(UserWarning, match=WARNING.format(pending)) as caught:
        envs.close()
    assert envs.closed and caught[0].filename == __file__
    envs.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_close_closes_although_its_warning_is_an_error(backend):
    envs = VectorEnv([ToyEnv] * 2, backend=backend, num_workers=1)
    envs.reset(seed=0)
    envs.step_async(ACTIONS)
    with pytest.raises(UserWarning, match=WARNING.format("step")):
        envs.close()
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        envs.reset()
    assert envs.pool.closed


def test_close_warns_of_a_step_that_hangs():
    envs = VectorEnv([HangAtStep] * 2, num_workers=1, timeouts={"close": 0.1})
    envs.reset(seed=0)
    envs.step_async(ACTIONS)
    with pytest.warns(UserWarning, match=WARNING.format("step")):
        envs.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_close_is_silent_about_sends_without_recv(backend):
    envs = VectorEnv([ToyEnv] * 2, backend=backend, num_workers=1)
    envs.reset(seed=0)
    envs.send(ACTIONS)
    envs.close()
    envs = VectorEnv([ToyEnv] * 2, backend=backend, num_workers=1)
    envs.async_reset()
    envs.close()


@pytest.mark.extended
@pytest.mark.parametrize("backend", BACKENDS)
def test_close_is_silent_after_a_wait_that_timed_out(backend):
    envs = VectorEnv([HangAtStep, ToyEnv], num_workers=2, timeouts={"close": 0.1})
    envs.reset(seed=0)
    envs.step_async(ACTIONS)
    with pytest.raises(multiprocessing.TimeoutError):
        envs.step_wait(timeout=0.05)
    envs.close()


def test_close_of_sb3_vec_env_is_silent_about_a_pending_step():
    """`DummyVecEnv` and `SubprocVecEnv` close in silence, too."""
    envs = sb3_class()([ToyEnv] * 2, backend="serial")
    envs.reset()
    envs.step_async(ACTIONS)
    envs.close()


# ---- actions that are not a sequence -------------------------------------------------------------

NOT_SEQUENCES = [0, None, np.int64(1), np.array(1), 1.5]


@pytest.mark.parametrize("space", ["Discrete", "Dict"])
@pytest.mark.parametrize("actions", NOT_SEQUENCES, ids=repr)
def test_a_single_action_is_a_type_error_as_in_sync_vector_env(space, actions):
    """It was a SpaceError only, which `except TypeError` does not catch."""
    spaces = gymnasium.spaces
    action_space = spaces.Discrete(2) if space == "Discrete" else spaces.Dict(a=spaces.Discrete(2), b=spaces.Text(3))
    build = functools.partial(with_action_space, action_space)
    theirs = gymnasium.vector.SyncVectorEnv([build] * 2)
    theirs.reset(seed=0)
    with pytest.raises(TypeError if space == "Discrete" else (TypeError, IndexError)):  # the latter for NumPy's numbers
        theirs.step(actions)
    for make in (VectorEnv, sb3_class()):
        with contextlib.closing(make([build] * 2, backend="serial")) as envs:
            envs.reset()
            with pytest.raises(TypeError, match="^action: expected .*2") as caught:
                envs.step(actions)
            assert isinstance(caught.value, SpaceError)


def with_action_space(space):
    env = ToyEnv()
    env.action_space = space
    return env


@pytest.mark.parametrize("actions", NOT_SEQUENCES, ids=repr)
def test_a_single_action_of_batched_vector_env_is_a_type_error(actions):
    batches = [functools.partial(CartPoleVectorEnv, 2)] * 2
    with contextlib.closing(BatchedVectorEnv(batches, backend="serial")) as envs:
        envs.reset(seed=0)
        with pytest.raises(TypeError, match=re.escape(f"actions: expected 4 rows, got {actions!r}")) as caught:
            envs.step(actions)
    assert isinstance(caught.value, SpaceError)


@pytest.mark.parametrize("call", ["step", "step_async", "send"])
def test_errors_begin_with_the_name_of_the_call(call):
    """`step` spoke of `send`."""
    with VectorEnv([ToyEnv] * 2, backend="serial") as envs:
        envs.reset()
        envs.send([0, 0])
        with pytest.raises(gymnasium.error.AlreadyPendingCallError, match=f"^{call}: env 0 still owes the answer"):
            getattr(envs, call)([0, 0])
