"""Spare envs take over when episodes end: no step waits for a reset, and timing decides nothing."""

from __future__ import annotations

import functools
import os
import signal
import time
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.vector.comparison import assert_same
from vecenv import ConfigError, StateError, VectorEnv, make_vec
from vecenv.envs.seeding import episode_seed
from vecenv.envs.toys import CountEnv, Exits, Hangs, RaiseAtReset, ToyEnv

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
NUM_ENVS = 4


class Repeats(ToyEnv):
    """All episodes begin alike, so that it does not matter which env begins them; infos of several kinds."""

    def __init__(self, length=3, name="", wait=None):
        super().__init__(length)
        self.name, self.wait = name, wait

    def reset(self, *, seed=None, options=None):
        if self.wait is not None and self.num_resets:
            with open(self.wait):  # a named pipe: blocks until the test writes
                pass
        super().reset(seed=self.length)
        return self.observe(), {"first": self.length, "text": self.name}

    def make_info(self):
        return {"steps": self.elapsed_steps, "text": self.name} if self.elapsed_steps % 2 else {}


class SlowReset(CountEnv):
    """Takes some time to begin an episode."""

    def reset(self, **kwargs):
        time.sleep(0.005)
        return super().reset(**kwargs)


def lengths(make, count=NUM_ENVS):
    return [functools.partial(make, 2 + 3 * env_id % 5) for env_id in range(count)]


def play(env_fns, steps=30, seed=7, disturb=None, **options):
    """Return the results of a reset and of steps with actions that depend on the step; without times."""
    with VectorEnv(env_fns, **options) as envs:
        results: list[Any] = [envs.reset(seed=seed)]
        for step in range(steps):
            if disturb is not None:
                disturb(envs, step)
            mask = None if envs.autoreset_mode != DISABLED or not step else results[-1][2] | results[-1][3]
            if mask is not None and mask.any():
                results.append(envs.reset(options={"reset_mask": mask}))
            results.append(envs.step(np.arange(envs.num_envs) * (step + 1) % 2))
    for *_, infos in results:
        if options.get("episode_statistics") and "episode" in infos:
            del infos["episode"]["t"]
    return results


def rows_of(results):
    """Return (obs, reward, end) of each env as lists, from results of all envs."""
    found: list[list[Any]] = [[] for _ in range(len(results[0][0]))]
    for obs, *values in results:
        flags = values[:3] if len(values) == 4 else [np.zeros(len(obs))] * 3
        for row, own in enumerate(found):
            own.append((obs[row].tolist(), *[float(flag[row]) for flag in flags]))
    return found


# ---- results -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_spares", [NUM_ENVS, 3])
@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP, DISABLED])
def test_spare_envs_change_no_result_of_envs_without_seeds(mode, num_spares, backend):
    env_fns = lengths(Repeats) if num_spares == NUM_ENVS else [functools.partial(Repeats, 3)] * NUM_ENVS
    options = {"autoreset_mode": mode, "backend": backend, "episode_statistics": True, "mark_autoreset": True}
    expected = play(env_fns, **options)
    assert_same(play(env_fns, num_spare_envs=num_spares, **options), expected)


@pytest.mark.parametrize("infos", ["done", "columns", "none"])
def test_spare_envs_keep_the_selection_of_infos(infos):
    for mode in (NEXT_STEP, SAME_STEP):
        options = {"autoreset_mode": mode, "backend": "serial", "infos": infos}
        expected = play(lengths(Repeats), **options)
        assert_same(play(lengths(Repeats), num_spare_envs=NUM_ENVS, **options), expected)


@pytest.mark.parametrize("num_spares", [2, NUM_ENVS, pytest.param(2 * NUM_ENVS, marks=pytest.mark.extended)])
@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_results_with_spare_envs_do_not_depend_on_workers_and_speed(mode, num_spares):
    options = {"autoreset_mode": mode, "num_spare_envs": num_spares}
    expected = play(lengths(CountEnv), backend="serial", **options)
    for workers in (None, 3):
        assert_same(play(lengths(SlowReset), num_workers=workers, **options), expected)


@pytest.mark.extended
@pytest.mark.parametrize("context", ["spawn", "fork"])
def test_results_with_spare_envs_do_not_depend_on_the_start_method(context):
    expected = play(lengths(CountEnv), backend="serial", num_spare_envs=NUM_ENVS)
    assert_same(play(lengths(CountEnv), context=context, num_spare_envs=NUM_ENVS), expected)


@pytest.mark.extended
@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_results_with_own_spare_envs_are_equal_in_asynchronous_calls(mode):
    steps, options = 25, {"autoreset_mode": mode, "num_spare_envs": NUM_ENVS}
    expected = rows_of(play(lengths(CountEnv), steps, backend="serial", **options))
    found: list[list[Any]] = [[] for _ in range(NUM_ENVS)]
    with VectorEnv(lengths(SlowReset), batch_size=1, **options) as envs:
        envs.async_reset(seed=7)
        while any(len(own) <= steps for own in found):
            obs, rewards, terminations, truncations, infos = envs.recv()
            (env_id,) = infos["env_id"].tolist()
            found[env_id].append((obs[0].tolist(), float(rewards[0]), float(terminations[0]), float(truncations[0])))
            if len(found[env_id]) <= steps:
                envs.send(np.array([env_id * len(found[env_id]) % 2]), [env_id])
    assert found == expected


# ---- rules ---------------------------------------------------------------------------------------------------


def first_seeds(results):
    """Return the seed and number of each env's episodes, in their order, of `CountEnv` in NEXT_STEP mode."""
    return [[(obs[2], obs[1]) for obs, *_ in own if obs[0] == 0] for own in rows_of(results)]


def test_own_spare_envs_take_turns_and_have_derived_seeds():
    results = play([functools.partial(CountEnv, 2)] * 2, 12, backend="serial", num_spare_envs=4)
    for seed, episodes in zip((7, 8), first_seeds(results)):
        known = [one % 65521 for one in (seed, episode_seed(seed, 1), episode_seed(seed, 2))]
        assert episodes == [(known[i % 3], 1 + i // 3) for i in range(len(episodes))]


def test_shared_spare_envs_are_used_in_the_order_of_ends():
    results = play([functools.partial(CountEnv, length) for length in (2, 3, 3)], 7, backend="serial", num_spare_envs=2)
    spares = [episode_seed(7, 1) % 65521, episode_seed(8, 1) % 65521]
    # An env keeps its length when it serves another row.
    assert first_seeds(results) == [
        [(7, 1), (spares[0], 1), (8, 2)],
        [(8, 1), (spares[1], 1)],
        [(9, 1), (7, 2), (9, 2)],
    ]


@pytest.mark.parametrize("num_spares", [NUM_ENVS, 3])
def test_reset_with_seed_repeats_a_run(num_spares):
    with VectorEnv(lengths(CountEnv), backend="serial", num_spare_envs=num_spares) as envs:
        runs = []
        for _ in range(2):
            obs, _ = envs.reset(seed=3)
            runs.append([obs, *[envs.step([0] * NUM_ENVS)[0] for _ in range(17)]])
        assert_same(runs[1], runs[0])


def test_seeded_reset_of_some_envs_reseeds_their_spare_envs():
    with VectorEnv([functools.partial(ToyEnv, 2)] * 2, num_spare_envs=2, backend="serial") as envs:
        envs.reset(seed=1)
        runs = []
        for _ in range(2):
            obs, _ = envs.reset(seed=[None, 5], options={"reset_mask": np.array([False, True])})
            runs.append([obs[1], *[envs.step([0, 0])[0][1] for _ in range(10)]])
        assert_same(runs[1], runs[0])


def test_drawn_seeds_repeat_a_run_with_spare_envs():
    with VectorEnv([functools.partial(ToyEnv, 2)] * 2, num_spare_envs=2, backend="serial") as envs:
        first, _ = envs.reset()
        drawn = envs.seeds
        run = [first, *[envs.step([0, 1])[0] for _ in range(9)]]
        again, _ = envs.reset(seed=drawn[0])
        assert envs.seeds == drawn
        assert_same([again, *[envs.step([0, 1])[0] for _ in range(9)]], run)


def test_receive_of_some_envs_needs_own_spare_envs():
    with VectorEnv([ToyEnv] * 3, num_spare_envs=2, backend="serial") as envs:
        envs.reset(seed=0)
        envs.send([0, 0, 0])
        with pytest.raises(StateError, match="2 spare envs serve 3 envs.* Use num_spare_envs=3 or a multiple"):
            envs.recv(2)
        assert len(envs.recv()[0]) == 3


# ---- waits, failures -----------------------------------------------------------------------------------------


def pipe_at(path):
    os.mkfifo(path)
    return str(path)


@pytest.mark.extended
@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_step_does_not_wait_for_the_reset_of_an_env_that_ended(mode, tmp_path):
    wait = pipe_at(tmp_path / "pipe")
    make = functools.partial(Repeats, 2, wait=wait)
    with VectorEnv([make] * 2, num_spare_envs=2, autoreset_mode=mode) as envs:
        envs.reset()  # the second reset of an env blocks
        observations = [envs.step([0, 0])[0][0, 0] for _ in range(3 if mode == NEXT_STEP else 2)]
        assert observations == ([1, 2, 0] if mode == NEXT_STEP else [1, 0])
        envs.close(terminate=True)


@pytest.mark.parametrize("make", [Exits, functools.partial(Hangs)], ids=["dies", "hangs"])
@pytest.mark.parametrize("mode", [NEXT_STEP, pytest.param(SAME_STEP, marks=pytest.mark.extended)])
def test_spare_env_that_fails_in_its_reset_is_recovered(make, mode, tmp_path):
    options = {"autoreset_mode": mode, "num_spare_envs": 3}
    expected = play([functools.partial(ToyEnv, length=2)] * 3, 15, **options)
    env_fns = [
        functools.partial(make, at=2, moment="autoreset", once=tmp_path / f"fault {i}", length=2) for i in range(3)
    ]
    limits = {} if make is Exits else {"timeouts": {"reset": 1.0}}
    found = play(env_fns, 15, **limits, **options)
    assert all((tmp_path / f"fault {i}").exists() for i in range(3))
    assert_same([result[:-1] for result in found], [result[:-1] for result in expected])


@pytest.mark.extended
@pytest.mark.parametrize("num_spares", [NUM_ENVS, 3])
@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_killed_workers_change_no_result_with_spare_envs(mode, num_spares):
    rng = np.random.default_rng(5)

    def kill(envs, step):
        if step % 3 == 0:
            os.kill(envs.worker_pids[rng.integers(len(envs.worker_pids))], signal.SIGKILL)

    options = {"autoreset_mode": mode, "num_spare_envs": num_spares}
    expected = play(lengths(CountEnv), 40, **options)
    assert_same([r[:-1] for r in play(lengths(CountEnv), 40, disturb=kill, **options)], [r[:-1] for r in expected])


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_exception_of_a_spare_reset_is_raised_when_its_episode_begins(mode, tmp_path):
    env_fns = [functools.partial(RaiseAtReset, 2, once=tmp_path / "fault", length=2), functools.partial(ToyEnv, 3)]
    with VectorEnv(env_fns, backend="serial", num_spare_envs=2, autoreset_mode=mode) as envs:
        envs.reset(seed=0)
        steps = 0
        with pytest.raises(ValueError) as caught:
            while steps < 20:
                envs.step([0, 0])
                steps += 1
        # env 0: two steps; its spare: two steps; then the second reset of env 0, which raises
        assert steps == (5 if mode == NEXT_STEP else 3) and "env 0" in "".join(caught.value.__notes__)
        obs, *_ = envs.step([0, 0])
        assert obs[0, 0] == 0  # the next step repeats the reset
        assert envs.step([0, 0])[0][0, 0] == 1


def test_reset_after_a_timeout_begins_again(tmp_path):
    wait = pipe_at(tmp_path / "pipe")
    with VectorEnv([functools.partial(Repeats, 1, wait=wait)], num_spare_envs=1) as envs:
        envs.reset()
        envs.step([0])
        envs.step([0])
        envs.step([0])
        envs.step_async([0])  # both envs are in their second reset
        with pytest.raises(TimeoutError):
            envs.step_wait(timeout=0.1)
        envs.reset_async()
        with open(wait, "w"):
            obs, _ = envs.reset_wait()
        assert obs[0, 0] == 0
        envs.close(terminate=True)


# ---- calls, attributes ---------------------------------------------------------------------------------------


def test_calls_and_attributes_reach_spare_envs_and_return_rows(backend):
    env_fns = [functools.partial(Repeats, 1, name=f"row {env_id}") for env_id in range(2)]
    with VectorEnv(env_fns, backend=backend, num_spare_envs=2, autoreset_mode=SAME_STEP) as envs:
        envs.reset()
        envs.set_attr("mark", ["a", "b"])
        for _ in range(3):
            assert envs.get_attr("mark") == ("a", "b") and envs.get_attr("name") == ("row 0", "row 1")
            assert len(envs.call("observe")) == 2
            envs.step([0, 0])
        if backend == "serial":
            assert [env.name for env in envs.envs] == ["row 0", "row 1"]
        assert envs.num_envs == 2 and envs.num_spare_envs == 2 and len(envs.env_fns) == 2
        assert "num_envs=2, num_spare_envs=2" in repr(envs)
        assert len(envs.statistics().envs.cpu_share) == 4
        if backend == "process":
            assert len(envs.worker_pids) == 4


def test_make_vec_takes_spare_envs():
    with make_vec("CartPole-v1", 2, vectorization_mode="serial", num_spare_envs=2) as envs:
        envs.reset(seed=0)
        ended = [envs.step([1, 1])[2].any() for _ in range(60)]
        assert any(ended) and envs.num_spare_envs == 2


@pytest.mark.parametrize("count", [-1, 1.5, True, "2", None])
def test_wrong_numbers_of_spare_envs_are_refused(count):
    with pytest.raises(ConfigError, match="num_spare_envs: expected a whole number") as caught:
        VectorEnv([ToyEnv], backend="serial", num_spare_envs=count)
    assert caught.value.key == "num_spare_envs"


def test_batch_size_needs_own_spare_envs():
    with pytest.raises(ConfigError, match="num_spare_envs: with batch_size=2 expected a multiple of num_envs=4, got 3"):
        VectorEnv([ToyEnv] * 4, backend="serial", num_spare_envs=3, batch_size=2)


class Alarm(Exception):
    """Raised by the handler of a signal."""


@pytest.mark.extended
@pytest.mark.parametrize("num_spares", [2, NUM_ENVS])
@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_exceptions_of_a_signal_handler_are_raised_and_leave_envs_usable(mode, num_spares):
    """At random moments of steps. NumPy drops such an exception where it looks at the class of an operand."""
    is_armed = False

    def handle(number, frame):
        if is_armed:
            raise Alarm

    delays = np.random.default_rng(0).uniform(1e-5, 2e-3, 60)
    actions = np.zeros(NUM_ENVS, np.int64)
    before = signal.signal(signal.SIGALRM, handle)
    try:
        with VectorEnv(lengths(CountEnv), num_spare_envs=num_spares, autoreset_mode=mode) as envs:
            envs.reset(seed=0)
            for delay in delays.tolist():
                deadline = time.monotonic() + 60
                with pytest.raises(Alarm):
                    is_armed = True
                    signal.setitimer(signal.ITIMER_REAL, delay)
                    while time.monotonic() < deadline:
                        envs.step(actions)
                is_armed = False
                if envs.num_outstanding:
                    envs.recv()
            assert envs.step(actions)[0].shape[0] == NUM_ENVS
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
