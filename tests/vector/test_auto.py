"""`num_workers="auto"` and `backend="auto"` in every front end: an env is measured first, and results stay the same."""

from __future__ import annotations

import functools
import random
import signal
import time

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

import vecenv
from vecenv import ConfigError
from vecenv.core.pool.serial import SerialPool
from vecenv.envs.toys import CountEnv, NullEnv, RaiseAtInit
from vecenv.vector.batched import BatchedVectorEnv


class NapEnv(CountEnv):
    """Sleeps for 2 ms at each step."""

    def step(self, action):
        time.sleep(0.002)
        return super().step(action)


class DrawingNapEnv(NapEnv):
    """Also draws from a global random generator."""

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, random.random(), *rest


class IllegalMoves(NullEnv):
    """Raises at every random action."""

    def step(self, action):
        raise ValueError("illegal move")


class DiesAtStep(NullEnv):
    def step(self, action):
        signal.raise_signal(signal.SIGKILL)


class LogsCalls(CountEnv):
    """Appends a line to a file when it is built, reset, stepped and closed."""

    def __init__(self, path):
        super().__init__()
        self._path = path
        self._log("built")

    def _log(self, what):
        with open(self._path, "a") as file:
            file.write(what + "\n")

    def reset(self, **kwargs):
        self._log("reset")
        return super().reset(**kwargs)

    def close(self):
        self._log("closed")
        super().close()


def cartpole():
    return gymnasium.make("CartPole-v1")


def rollout(envs, steps=40):
    """Return observations and rewards of a seeded run with fixed actions."""
    found = [envs.reset(seed=5)[0].copy()]
    for step in range(steps):
        obs, rewards, *_ = envs.step(np.full(envs.num_envs, step % 2))
        found += [obs.copy(), rewards.copy()]
    return found


@pytest.mark.extended
def test_waiting_envs_get_threads_and_the_reason_is_in_statistics_and_log(caplog):
    with caplog.at_level("INFO", "vecenv"):
        envs = vecenv.VectorEnv([NapEnv] * 16, num_workers="auto")
    found = envs.statistics()
    envs.close()
    assert found["num_workers"] * found["threads_per_worker"] >= 16 > found["num_workers"]
    assert found["choice"].startswith("auto: ") and "waits for" in found["choice"]
    assert found["choice"] in [record.getMessage() for record in caplog.records]


@pytest.mark.extended
def test_envs_that_draw_from_global_generators_get_no_threads():
    envs = vecenv.VectorEnv([DrawingNapEnv] * 6, num_workers="auto")
    found = envs.statistics()
    envs.close()
    assert (found["num_workers"], found["threads_per_worker"]) == (6, 1)
    assert "no threads" in found["choice"]


@pytest.mark.extended
@pytest.mark.parametrize("kind", [cartpole, NapEnv, DrawingNapEnv])
@pytest.mark.parametrize("options", [{"num_workers": "auto"}, {"backend": "auto"}], ids=str)
def test_results_do_not_depend_on_the_choice(kind, options):
    expected_envs = vecenv.VectorEnv([kind] * 4, backend="serial")
    expected = rollout(expected_envs)
    expected_envs.close()
    envs = vecenv.VectorEnv([kind] * 4, **options)
    found = rollout(envs)
    envs.close()
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.extended
def test_measured_env_is_closed_before_the_run(tmp_path):
    path = tmp_path / "calls"
    envs = vecenv.VectorEnv([functools.partial(LogsCalls, path)] * 2, num_workers="auto")
    calls = path.read_text().split()
    envs.close()
    assert calls[0] == "built" and calls[1] == "reset"
    assert calls.index("closed") < len(calls) - 2
    assert calls[calls.index("closed") + 1 :] == ["built", "built"]


@pytest.mark.extended
@pytest.mark.parametrize("kind, reason", [(IllegalMoves, "illegal move"), (DiesAtStep, "SIGKILL")])
def test_env_that_cannot_be_measured_gets_the_defaults(kind, reason):
    envs = vecenv.VectorEnv([kind] * 2, num_workers="auto")
    found = envs.statistics()
    envs.close()
    assert 1 <= found["num_workers"] <= 2 and found["threads_per_worker"] == 1
    assert reason in found["choice"]


def test_error_of_the_measured_constructor_is_raised():
    with pytest.raises(RuntimeError, match="toy env cannot be built"):
        vecenv.VectorEnv([RaiseAtInit] * 2, num_workers="auto")


def test_auto_backend_is_serial_for_few_cheap_envs_and_says_what_that_costs(caplog):
    with caplog.at_level("INFO", "vecenv"):
        envs = vecenv.VectorEnv([NullEnv], backend="auto")
    assert isinstance(envs.pool, SerialPool)
    found = envs.statistics()
    envs.close()
    assert found["num_workers"] == 0
    assert "neither a segmentation fault nor a hang" in found["choice"]
    assert found["choice"] in caplog.text


@pytest.mark.extended
def test_auto_backend_has_workers_for_envs_that_wait():
    envs = vecenv.VectorEnv([NapEnv] * 4, backend="auto")
    assert len(envs.worker_pids) > 0
    envs.close()


@pytest.mark.parametrize(
    "options, key",
    [
        ({"num_workers": "many"}, "num_workers"),
        ({"num_workers": "auto", "threads_per_worker": 2}, "threads_per_worker"),
        ({"backend": "auto", "num_workers": 2}, "num_workers"),
    ],
)
def test_options_that_contradict_auto_are_refused(options, key):
    with pytest.raises(ConfigError) as caught:
        vecenv.VectorEnv([NullEnv] * 2, **options)
    assert caught.value.key == key


# ---- front ends ------------------------------------------------------------------------------


@pytest.mark.extended
def test_make_vec_takes_auto():
    for options in ({"num_workers": "auto"}, {"vectorization_mode": "auto"}):
        envs = vecenv.make_vec("CartPole-v1", num_envs=2, **options)
        assert envs.statistics()["choice"]
        envs.close()


@pytest.mark.extended
def test_batched_vector_env_takes_auto():
    envs = BatchedVectorEnv([functools.partial(CartPoleVectorEnv, 8)] * 2, num_workers="auto")
    assert "with resets, a step takes" in envs.statistics()["choice"]
    envs.close()


@pytest.mark.extended
def test_sb3_vec_env_takes_auto():
    sb3 = pytest.importorskip("vecenv.integrations.sb3", exc_type=ImportError)
    envs = sb3.SB3VecEnv([cartpole] * 2, num_workers="auto")
    assert "with resets, a step takes" in envs.vector_env.statistics()["choice"]
    envs.close()


@pytest.mark.parametrize("name", ["SyncSubprocessEnvManager", "AsyncSubprocessEnvManager"])
def test_managers_take_auto(name):
    manager = getattr(vecenv.ding, name)([cartpole] * 2, {"num_workers": "auto"})
    manager.launch()
    assert "with resets, a step takes" in manager.statistics()["choice"]
    manager.close()


@pytest.mark.extended
def test_gym_vector_manager_takes_auto():
    manager = vecenv.ding.GymVectorEnvManager([cartpole] * 2, {"num_workers": "auto"})
    assert "with resets, a step takes" in manager.statistics()["choice"]
    manager.close()


@pytest.mark.extended
def test_alf_environment_takes_auto():
    from vecenv.alf import create_environment

    for options in ({"num_workers": "auto"}, {"backend": "auto"}):
        env = create_environment("CartPole-v1", num_parallel_environments=2, tensors=False, **options)
        assert "with resets, a step takes" in env.statistics()["choice"]
        env.close()
