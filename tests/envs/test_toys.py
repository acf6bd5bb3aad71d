"""The toys match their docstrings; faults that end the process run in processes of their own."""

from __future__ import annotations

import json
import os
import pickle
import random
import sys
import time
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from tests.programs import run_python
from tests.spaces import ALL_SPACES
from vecenv.envs import toys

WELL_BEHAVED = [toys.ToyEnv, toys.CountEnv, toys.FixedSleepEnv, toys.KeepsAction, toys.KeepsOptions]
WELL_BEHAVED += [toys.SpaceEnv, toys.LeaksMemory]
CACHED = [toys.NullEnv, toys.FrameEnv, toys.BusyEnv, toys.SleepEnv]
CLASSES = [
    item
    for name, item in vars(toys).items()
    if isinstance(item, type) and issubclass(item, gym.Env) and not name.startswith("_")
]


def rollout(env: gym.Env[Any, Any], seed: int, steps: int = 12) -> list[Any]:
    env.action_space.seed(seed)
    results: list[Any] = [env.reset(seed=seed)]
    for _ in range(steps):
        results.append(env.step(env.action_space.sample()))
        if results[-1][2] or results[-1][3]:
            results.append(env.reset())
    return results


@pytest.mark.parametrize("cls", WELL_BEHAVED)
def test_toys_pass_gymnasiums_checker(cls):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warnings about unbounded boxes
        check_env(cls(), skip_render_check=True)


@pytest.mark.parametrize("cls", WELL_BEHAVED)
def test_results_follow_the_seed(cls):
    first, again, other = rollout(cls(), 1), rollout(cls(), 1), rollout(cls(), 2)
    assert repr(first) == repr(again) != repr(other)


@pytest.mark.parametrize("cls", [*WELL_BEHAVED, *CACHED])
def test_observations_lie_in_their_space(cls):
    env = cls()
    obs, info = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    assert isinstance(info, dict)
    assert env.observation_space.contains(env.step(0)[0])


@pytest.mark.parametrize("truncate", [False, True])
def test_episodes_end_at_their_length(truncate):
    env = toys.ToyEnv(length=3, truncate=truncate)
    env.reset(seed=0)
    ends = [env.step(0)[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (not truncate, truncate)]


def test_toy_observations_contain_steps_and_actions():
    env = toys.ToyEnv(length=None, num_actions=5)
    first = env.reset(seed=0)[0]
    assert first.tolist()[:2] == [0, 0]
    env.step(np.int64(4))
    env.step(np.array([1]))
    obs = env.step(2)[0]
    assert obs.dtype == np.float32
    assert obs.tolist()[:2] == [3, 7]
    assert obs[2] == first[2]
    assert obs[3] != first[3]
    assert env.reset()[0][1] == 0


def test_episode_repeats_from_the_generator_state_alone():
    env, twin = toys.ToyEnv(), toys.ToyEnv()
    env.reset(seed=0)
    env.step(1)
    twin.reset(seed=5)
    twin.np_random.bit_generator.state = env.np_random.bit_generator.state
    assert env.reset()[0].tolist() == twin.reset()[0].tolist()


def test_discrete_observations_are_ints():
    env = toys.CountEnv(length=3, obs="discrete")
    assert env.observation_space == spaces.Discrete(4)
    assert env.reset(seed=0)[0] == 0
    assert [type(env.step(0)[0]) for _ in range(3)] == [int] * 3
    with pytest.raises(ValueError, match="obs must be 'box' or 'discrete', got 'text'"):
        toys.ToyEnv(obs="text")


def test_count_env_observes_seed_and_episode():
    env = toys.CountEnv(length=2)
    assert env.reset(seed=123456)[1] == {"steps": 0, "episode": 1, "seed": 123456}
    env.step(0)
    obs, *_, info = env.step(0)
    assert info == {"steps": 2, "episode": 1, "seed": 123456}
    assert obs.tolist()[:3] == [2, 1, 123456 % 65521]
    assert env.reset()[1]["episode"] == 2
    assert (env.num_steps, env.num_resets) == (2, 2)
    assert env.reset(seed=1)[1]["episode"] == 1
    assert toys.CountEnv().reset()[0][2] == -1


@pytest.mark.parametrize("cls", CACHED)
def test_cached_envs_return_one_object(cls):
    env = cls()
    env.reset(seed=0)
    assert env.step(0) is env.step(1)
    with pytest.raises(ValueError, match="no episode length"):
        cls(length=3)


def test_frame_env_has_atari_sized_observations():
    obs = toys.FrameEnv().reset()[0]
    assert (obs.dtype, obs.shape) == (np.uint8, (4, 84, 84))


def test_busy_env_takes_its_duration():
    env = toys.BusyEnv(busy_us=2000)
    start = time.perf_counter()
    env.step(0)
    assert time.perf_counter() - start >= 0.002


def test_sleep_env_duration_follows_its_seed(monkeypatch):
    asked: list[float] = []
    monkeypatch.setattr(time, "sleep", asked.append)
    for _ in range(2):
        env = toys.SleepEnv(mean_ms=20)
        env.reset(seed=3)
        for _ in range(200):
            env.step(0)
    assert asked[:200] == asked[200:]
    assert np.mean(asked) == pytest.approx(0.02, rel=0.3)
    assert env.total_sleep > 0


def test_fixed_sleep_env_sleeps_in_steps_and_resets(monkeypatch):
    asked: list[float] = []
    monkeypatch.setattr(time, "sleep", asked.append)
    env = toys.FixedSleepEnv(10.0, 100.0)
    lengths = []
    for seed in (0, None, None):
        env.reset(seed=seed)
        lengths.append(1)
        while not env.step(0)[2]:
            lengths[-1] += 1
    assert 1 <= lengths[0] <= 30 and all(20 <= length <= 30 for length in lengths[1:])
    assert asked.count(0.1) == 3 and asked.count(0.01) == sum(lengths)


def test_null_env_returns_its_info_at_each_step():
    env = toys.NullEnv(info={"lives": 3})
    env.reset(seed=0)
    assert env.step(0)[4] == {"lives": 3}


def test_keeps_action_describes_its_action():
    env = toys.KeepsAction(spaces.Box(-1, 1, (2,), np.float32))
    assert env.reset()[1] == {}
    action = np.zeros(2, np.float32)
    info = env.step(action)[4]
    assert info == {
        "action_type": "ndarray",
        "action_dtype": "float32",
        "action_writeable": True,
        "own_memory": True,
    }
    assert env.kept[0] is action
    assert env.step({"a": 1, "b": (np.zeros(2), np.ones(1, np.int8))})[4]["action_dtype"] == "float64 int8"
    assert env.step(3)[4]["action_type"] == "int"


def test_keeps_action_sees_borrowed_memory():
    env = toys.KeepsAction()
    env.reset()
    assert env.step(np.frombuffer(bytearray(8), np.float32))[4]["own_memory"] is False
    assert env.step(np.frombuffer(b"12345678", np.float32))[4]["action_writeable"] is False
    assert env.step(np.zeros((3, 2))[1])[4]["own_memory"] is True


def test_keeps_action_notices_a_reused_buffer():
    env = toys.KeepsAction()
    env.reset()
    buffer = np.zeros((2, 2))
    env.step(buffer[0])
    with pytest.raises(RuntimeError, match="action 1 shares memory with action 2"):
        env.step(buffer[0])
    buffer[0] = 1
    with pytest.raises(RuntimeError, match="action 1 was .* when given and is"):
        env.step(np.zeros(2))


def test_keeps_info_notices_a_modified_info():
    env = toys.KeepsInfo()
    env.reset()
    info = env.step(0)[4]
    assert info["number"] == 1 and env.kept[1] is info
    info["nested"]["list"].append(2)
    with pytest.raises(RuntimeError, match="info 2 was .* when given and is"):
        env.step(0)


def test_keeps_options_notices_modified_options():
    env = toys.KeepsOptions()
    options = {"level": np.zeros(2)}
    env.reset(options=options)
    env.step(0)
    options["level"][0] = 1
    with pytest.raises(RuntimeError, match="options 1 was .* when given and is"):
        env.step(0)


def test_noisy_global_depends_on_the_global_generators():
    states = random.getstate(), np.random.get_state()
    try:
        seen = []
        for seed in (1, 1, 2):
            random.seed(seed)
            np.random.seed(seed)
            seen.append(toys.NoisyGlobal().reset(seed=0)[0].tolist())
        assert seen[0] == seen[1] != seen[2]
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


@pytest.mark.parametrize("name", ALL_SPACES)
def test_space_env_samples_any_space(name):
    space = ALL_SPACES[name]
    env = toys.SpaceEnv(space, space, length=4)
    assert env.observation_space == space
    assert env.observation_space is not space
    results = rollout(env, 3, steps=6)
    assert all(space.contains(result[0]) for result in results)
    assert repr(results) == repr(rollout(toys.SpaceEnv(space, space, length=4), 3, steps=6))


def test_aliased_obs_is_one_array():
    env = toys.AliasedObs()
    obs = env.reset(seed=0)[0]
    before = obs.copy()
    assert env.step(1)[0] is obs
    assert not np.array_equal(obs, before)


# Faults that a test can observe in its own process.


@pytest.mark.parametrize(
    "cls, error",
    [
        (toys.RaiseAtStep, ZeroDivisionError),
        (toys.RaiseWeirdError, toys.WeirdError),
        (toys.RaiseUnpicklableError, toys.UnpicklableError),
    ],
)
def test_fault_raises_at_a_step(cls, error):
    env = cls(at=3)
    env.reset(seed=0)
    env.step(0)
    env.reset()
    env.step(0)
    with pytest.raises(error):
        env.step(0)
    assert env.num_steps == 2


def test_fault_raises_in_other_calls():
    with pytest.raises(RuntimeError, match="cannot be built"):
        toys.RaiseAtInit()
    env = toys.RaiseAtReset(at=2)
    env.reset()
    with pytest.raises(ValueError, match="cannot reset"):
        env.reset()


def test_fault_with_at_none_is_in_every_call():
    env = toys.RaiseAtReset(at=None)
    for _ in range(3):
        with pytest.raises(ValueError, match="cannot reset"):
            env.reset()


def test_fault_once_counts_over_several_lives(tmp_path):
    once = tmp_path / "done"
    with pytest.raises(RuntimeError):
        toys.RaiseAtInit(once=once)
    toys.RaiseAtInit(once=once)
    env = toys.RaiseAtStep(at=None, once=tmp_path / "step")
    env.reset()
    with pytest.raises(ZeroDivisionError):
        env.step(0)
    env.step(0)


def test_errors_resist_pickling():
    with pytest.raises(TypeError):
        pickle.loads(pickle.dumps(toys.WeirdError(1, reason="x")))
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(toys.UnpicklableError("x"))


@pytest.mark.parametrize("cls", [toys.WrongDtype, toys.WrongShape])
def test_fault_wrong_observation_is_at_its_step(cls):
    env = cls(at=2)
    fits = [env.observation_space.contains(env.reset(seed=0)[0])]
    fits += [env.observation_space.contains(env.step(0)[0]) for _ in range(3)]
    assert fits == [True, True, False, True]


def test_fault_infos_are_huge_or_do_not_pickle():
    env = toys.HugeInfo(nbytes=1000)
    env.reset()
    assert len(env.step(0)[4]["blob"]) == 1000
    env = toys.UnpicklableInfo(at=2)
    env.reset()
    pickle.dumps(env.step(0)[4])
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(env.step(0)[4])


def drive(env: Any) -> None:
    """Make every call that can have a fault; the episode has two steps."""
    env.reset(seed=0)
    env.step(0)
    env.step(0)
    env.reset()
    env.step(0)
    env.poke(1)
    env.close()


@pytest.mark.parametrize("moment", toys.MOMENTS)
def test_fault_occurs_in_its_call_only(moment):
    with pytest.raises(ZeroDivisionError, match=f"at a {moment}"):
        drive(toys.Raises(moment=moment, length=2))


@pytest.mark.parametrize("moment, count", [("reset", 2), ("step", 3), ("autoreset", 1), ("call", 1), ("close", 1)])
def test_fault_at_counts_the_calls_of_its_moment(moment, count):
    env = toys.Raises(at=count + 1, moment=moment, length=2)
    drive(env)
    for _ in range(2):  # a call that failed is not counted
        with pytest.raises(ZeroDivisionError):
            drive(env)
        assert env.num_calls[moment] == count


def test_fault_autoreset_excludes_seeded_resets():
    env = toys.Raises(moment="autoreset", length=1)
    for _ in range(2):
        env.reset(seed=1)
        env.step(0)
    with pytest.raises(ZeroDivisionError):
        env.reset()


@pytest.mark.parametrize("moment", toys.MOMENTS)
def test_fault_once_applies_at_every_moment(moment, tmp_path):
    once = tmp_path / "done"
    with pytest.raises(ZeroDivisionError):
        drive(toys.Raises(None, moment=moment, once=once, length=2))
    drive(toys.Raises(None, moment=moment, once=once, length=2))


@pytest.mark.parametrize("name", toys.FAULTS)
def test_fault_refuses_impossible_moments(name):
    cls = toys.FAULTS[name]
    assert set(cls.moments) <= set(toys.MOMENTS)
    for moment in set(toys.MOMENTS) - set(cls.moments):
        with pytest.raises(ValueError, match=f"not at '{moment}'"):
            cls(moment=moment)


@pytest.mark.parametrize("name", ["wrong dtype", "wrong shape", "huge", "unpicklable", "leak", "child"])
def test_fault_values_appear_at_each_moment(name):
    cls = toys.FAULTS[name]
    for moment in cls.moments:
        env = cls(at=1, moment=moment, length=2)
        seen = [env.observation_space, env.reset(seed=0), env.step(0), env.step(0), env.reset(), env.poke(1)]
        children = [child for child in psutil.Process().children() if child.name() == "sleep"]
        honest = toys.FaultEnv(length=2)
        expected = [honest.observation_space, honest.reset(seed=0), honest.step(0), honest.step(0), honest.reset(), 1]
        odd = [moment for moment, *pair in zip(CALLS, seen, expected) if not alike(*pair)]
        if name == "leak":
            env.close()
            assert sum(map(len, env._kept)) == 1 << 20
        elif name == "child":
            assert len(children) == (moment != "close")
        elif moment == "construct":
            assert odd[0] == "construct"
        else:
            assert odd == [moment]
        env.close()


CALLS = ["construct", "reset", "step", "step", "autoreset", "call"]


def alike(value: Any, expected: Any) -> bool:
    """Compare two results by the form of the observation and the keys of the info."""
    if isinstance(expected, tuple):
        obs, model = value[0], expected[0]
        return (obs.dtype, obs.shape, set(value[-1])) == (model.dtype, model.shape, set(expected[-1]))
    return type(value) is type(expected) and value == expected


LEAK = """
import psutil
from vecenv.envs import toys
env = toys.LeaksMemory(nbytes=4 << 20)
env.reset()
before = psutil.Process().memory_info().rss
for _ in range(8):
    env.step(0)
print(psutil.Process().memory_info().rss - before)
"""


@pytest.mark.extended
def test_leaks_memory_keeps_its_allocations():
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # it has no free memory to reuse
    done = run_python("-c", LEAK, env=environ)
    assert int(done.stdout) > 28 << 20, done.stderr  # the env has allocated 32 MiB


def test_spawns_child_and_ends_it():
    env = toys.SpawnsChild()
    child = psutil.Process(env.reset()[1]["child_pid"])
    assert child.is_running()
    assert env.step(0)[4]["child_pid"] == child.pid
    env.close()
    env.close()
    assert not child.is_running()


# Faults that end or stop the process: a new interpreter forks one process for each.

FATAL_FAULTS = {
    "ExitAtInit": 3,
    "ExitAtReset": 3,
    "ExitAtStep": 3,
    "SegfaultAtInit": -11,
    "SegfaultAtReset": -11,
    "SegfaultAtStep": -11,
    "HangAtInit": "waits",
    "HangAtReset": "waits",
    "HangAtStep": "waits",
    "HangInC close": "waits, deaf",
    "HangInC": "waits, deaf",
    **{f"Exits {moment}": 3 for moment in toys.MOMENTS},
    **{f"Aborts {moment}": -6 for moment in toys.MOMENTS},
    **{f"Segfaults {moment}": -11 for moment in toys.MOMENTS},
    **{f"Hangs {moment}": "waits" for moment in toys.MOMENTS},
    **{f"StopSelf {moment}": "stopped" for moment in toys.MOMENTS},
    **{f"RaiseSystemExit {moment}": "raised 3" for moment in toys.MOMENTS},
}

RUN_ALL = """
import json, os, resource, select, signal, sys, threading, time
from vecenv.envs import toys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

def run_fault(fault_name, pipe):
    name, _, moment = fault_name.partition(" ")
    # A thread that writes whenever Python code runs tells a free GIL from a held one.
    def breathe():
        while True:
            os.write(pipe, b".")
            time.sleep(0.01)
    threading.Thread(target=breathe, daemon=True).start()
    cls = getattr(toys, name)
    fault = cls.fail
    cls.fail = lambda env: (os.write(pipe, b"!"), fault(env))
    try:
        env = cls(moment=moment or None, length=2)
        env.reset(seed=0)
        env.step(0)
        env.step(0)
        env.reset()
        env.poke()
        env.close()
    except SystemExit as error:
        os._exit(100 + error.code)
    os._exit(99)

def watch(pid, heard):
    breaths = silent = 0
    began = False
    while True:
        ready = select.select([heard], [], [], 0.1)[0]
        data = os.read(heard, 65536) if ready else b""
        gone = bool(ready) and not data
        reaped, status = os.waitpid(pid, os.WUNTRACED | (0 if gone else os.WNOHANG))
        if reaped:
            if os.WIFSTOPPED(status):
                return "stopped"
            code = os.waitstatus_to_exitcode(status)
            return code if code < 100 else f"raised {code - 100}"
        began = began or b"!" in data
        breaths += began and data.rpartition(b"!")[2].count(b".")
        silent = silent + 1 if began and not data else 0
        if breaths >= 20:
            return "waits"
        if silent >= 10:
            return "waits, deaf"

def try_out(name):
    heard, pipe = os.pipe()
    pid = os.fork()
    if pid == 0:
        run_fault(name, pipe)
    os.close(pipe)
    result = watch(pid, heard)
    if isinstance(result, str) and "raised" not in result:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os.close(heard)
    return result

print(json.dumps({name: try_out(name) for name in sys.argv[1:]}))
"""


@pytest.mark.extended
def test_faults_that_end_the_process():
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    done = run_python("-c", RUN_ALL, *FATAL_FAULTS, env=environ)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == FATAL_FAULTS


def test_faults_are_all_tested():
    tried = {fault.split()[0] for fault in FATAL_FAULTS} | {"Raises", "RaiseAtInit", "RaiseAtReset", "RaiseAtStep"}
    tried |= {"RaiseWeirdError", "RaiseUnpicklableError"}
    tried |= {"LeaksMemory", "SpawnsChild", "WrongDtype", "WrongShape", "HugeInfo", "UnpicklableInfo", "FaultEnv"}
    assert {cls.__name__ for cls in CLASSES if issubclass(cls, toys.FaultEnv)} == tried
    assert {cls.__name__ for cls in toys.FAULTS.values()} < tried
