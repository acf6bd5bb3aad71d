"""FailurePolicy(on_exception="truncate"): an exception of an env ends its episode only."""

from __future__ import annotations

import functools
import itertools
import os
import signal
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from vecenv import BatchedVectorEnv, FailurePolicy, VectorEnv, collect, evaluate
from vecenv.alf import ParallelAlfEnvironment
from vecenv.core.recovery import reproducer
from vecenv.ding import SyncSubprocessEnvManager
from vecenv.errors import ConfigError, WorkerDiedError

from .test_other_rows import CountEnv, CountVectorEnv, _alf_env, env_fns

TRUNCATE = FailurePolicy(on_exception="truncate")
BACKENDS = [{"backend": "serial"}, {"num_workers": 2}]
MODES = ["NextStep", "SameStep", "Disabled"]


class ErraticEnv(gymnasium.Env):
    """Raises in some steps and resets, which its own generator or that of Gymnasium chooses.

    Args:
        number: seeds a generator that the constructor makes; None: `np_random` is used.
        errors: shares of steps and of resets that raise.
    """

    def __init__(self, number: int | None, errors: tuple[float, float] = (0.1, 0.2)) -> None:
        self.observation_space = spaces.Box(-1e9, 1e9, (2,), np.float64)
        self.action_space = spaces.Discrete(3)
        self.number, self.errors = number, errors
        self.rng = np.random.default_rng(number)
        self.state = np.zeros(2)
        self.has_begun = False

    @property
    def generator(self) -> Any:
        return self.np_random if self.number is None else self.rng

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        draw = self.generator.random()
        if draw < self.errors[1] and (self.has_begun if self.number is not None else seed is None):
            raise KeyError(draw)
        self.has_begun = True
        self.state = np.array([0.0, draw])
        return self.state.copy(), {}

    def step(self, action: Any) -> Any:
        draw = self.generator.random()
        self.state += [1.0, draw * int(action)]
        if draw < self.errors[0]:
            raise ValueError(draw)
        ends = draw > 0.95, draw > 0.9
        return self.state.copy(), draw, *ends, {"draw": draw}


class PlainLoop:
    """The reference: one env in a plain loop with try, except and reset."""

    def __init__(self, env_fn: Any, mode: str) -> None:
        self.env_fn, self.mode = env_fn, mode
        self.env = env_fn()
        self.is_over = False
        self.obs = np.zeros(2)

    def reset(self, seed: int | None = None) -> Any:
        while True:
            try:
                self.obs, _ = self.env.reset(seed=seed)
                self.is_over = False
                return self.obs
            except Exception:
                self.env = self.env_fn()

    def step(self, action: Any) -> Any:
        if self.is_over:
            assert self.mode == "NextStep"
            return self.reset(), 0.0, False, False, None
        try:
            obs, reward, terminated, truncated, _ = self.env.step(action)
        except Exception:
            obs, reward, terminated, truncated = self.obs, 0.0, False, True
        final = obs
        if terminated or truncated:
            self.is_over = self.mode != "SameStep"
            if self.mode == "SameStep":
                obs = self.reset()
        self.obs = obs
        return obs, reward, terminated, truncated, final if terminated or truncated else None


def play_plainly(fns: Any, mode: str, actions: Any) -> Any:
    loops = [PlainLoop(fn, mode) for fn in fns]
    rows = [[(loop.reset(seed=1 + i).tolist(),) for i, loop in enumerate(loops)]]
    for action in actions:
        answers = [loop.step(one) for loop, one in zip(loops, action)]
        rows.append([(a[0].tolist(), a[1], a[2], a[3], None if a[4] is None else a[4].tolist()) for a in answers])
        if mode == "Disabled":
            rows.append([(loop.reset() if loop.is_over else loop.obs).tolist() for loop in loops])
    return rows


def play(envs: Any, mode: str, actions: Any, kill: Any = None) -> Any:
    obs, _ = envs.reset(seed=1)
    rows: list[Any] = [[(one.tolist(),) for one in obs]]
    for number, action in enumerate(actions):
        if kill is not None:
            kill(envs, number)
        obs, rewards, terminated, truncated, infos = envs.step(action)
        done = terminated | truncated
        final = infos["final_obs"] if mode == "SameStep" and done.any() else obs
        rows.append(
            [
                (obs[i].tolist(), rewards[i], terminated[i], truncated[i], final[i].tolist() if done[i] else None)
                for i in range(len(obs))
            ]
        )
        if mode == "Disabled":
            if done.any():
                obs, _ = envs.reset(options={"reset_mask": done})
            rows.append([one.tolist() for one in obs])
    return rows


def kill_sometimes(envs: Any, number: int) -> None:
    if number % 7 == 5:
        os.kill(envs.worker_pids[number % len(envs.worker_pids)], signal.SIGKILL)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["serial", "process", "killed"])
def test_streams_of_erratic_envs_equal_a_plain_loop(kind: str, mode: str) -> None:
    fns = [functools.partial(ErraticEnv, i) for i in range(4)]
    actions = np.random.default_rng(1).integers(0, 3, (60, 4))
    options: dict[str, Any] = {"backend": "serial"} if kind == "serial" else {"num_workers": 2}
    failures = FailurePolicy(on_exception="truncate", max_restarts=1000)
    envs = VectorEnv(fns, autoreset_mode=mode, failures=failures, **options)
    rows = play(envs, mode, actions, kill_sometimes if kind == "killed" else None)
    statistics = envs.statistics()
    envs.close()
    assert statistics.exceptions > 10
    assert statistics.exceptions == statistics.envs.exceptions.sum()
    assert rows == play_plainly(fns, mode, actions)
    if kind == "killed":
        assert statistics.restarts >= 8 and statistics.truncated == 0


@pytest.mark.parametrize("mode", MODES)
def test_streams_of_envs_with_gymnasiums_generator_survive_kills(mode: str) -> None:
    fns = [functools.partial(ErraticEnv, None) for _ in range(4)]
    actions = np.random.default_rng(2).integers(0, 3, (60, 4))
    failures = FailurePolicy(on_exception="truncate", max_restarts=1000)
    streams = []
    for kill, options in ((None, {"backend": "serial"}), (None, {"num_workers": 3}), (kill_sometimes, {})):
        envs = VectorEnv(fns, autoreset_mode=mode, failures=failures, **options)
        streams.append(play(envs, mode, actions, kill))
        assert envs.statistics().truncated == 0
        envs.close()
    assert streams[0] == streams[1] == streams[2]


@pytest.mark.parametrize("options", BACKENDS, ids=["serial", "process"])
@pytest.mark.parametrize("mode", MODES)
def test_exception_in_step_ends_only_the_episode_of_its_env(options: Any, mode: str) -> None:
    envs = VectorEnv(env_fns(step=(3,)), autoreset_mode=mode, failures=TRUNCATE, **options)
    envs.reset(seed=1)
    for _ in range(3):
        obs, rewards, terminated, truncated, infos = envs.step([0, 0, 0])
    assert rewards.tolist() == [103, 0, 303]
    assert truncated.tolist() == [False, True, False] and not terminated.any()
    ends = infos["final_info"] if mode == "SameStep" else infos
    last = infos["final_obs"] if mode == "SameStep" else obs
    assert last[1].tolist() == [202]
    assert ends["error"].tolist() == [None, "LookupError: step 3", None]
    assert ends["recovered"].tolist() == [None, "truncated", None]
    assert envs.statistics().envs.exceptions.tolist() == [0, 1, 0]
    envs.close()


@pytest.mark.parametrize("options", BACKENDS, ids=["serial", "process"])
@pytest.mark.parametrize("mode", MODES)
def test_env_whose_reset_raises_is_built_again(options: Any, mode: str) -> None:
    envs = VectorEnv(env_fns(reset=(2,)), autoreset_mode=mode, failures=TRUNCATE, **options)
    envs.reset(seed=1)
    envs.set_attr("length", [100, 50, 100])
    envs.set_attr("length", [100, 2, 100])
    envs.call("set_task", 7)
    envs.step([0, 0, 0])
    obs, rewards, terminated, truncated, infos = envs.step([0, 0, 0])
    assert terminated.tolist() == [False, True, False] and rewards.tolist() == [102, 202, 302]
    if mode == "SameStep":
        assert infos["final_obs"][1].tolist() == [202]
        assert infos["final_info"]["count"].tolist() == [0, 202, 0]
    elif mode == "NextStep":
        obs, _, _, _, infos = envs.step([0, 0, 0])
    else:
        obs, infos = envs.reset(options={"reset_mask": terminated})
    assert obs[1].tolist() == [1000]  # it is a new env
    assert infos["error"].tolist() == [None, "LookupError: reset 2", None]
    assert infos["recovered"].tolist() == [None, "restarted", None]
    assert envs.get_attr("length") == (100, 2, 100) and envs.get_attr("task") == (7, 7, 7)
    assert envs.get_attr("calls", env_id=1)[0]["reset"] == 1
    assert not envs.step([0, 0, 0])[2].any()
    assert envs.step([0, 0, 0])[2].tolist() == [False, True, False]
    envs.close()


@pytest.mark.parametrize("options", BACKENDS, ids=["serial", "process"])
def test_exception_in_first_reset_builds_the_env_again(options: Any, tmp_path: Any) -> None:
    fns = [functools.partial(CountEnv, {}), functools.partial(RaisesUntil, str(tmp_path / "count"), 3)]
    envs = VectorEnv(fns, failures=TRUNCATE, **options)
    obs, infos = envs.reset(seed=1)
    assert obs.ravel().tolist() == [100, 200]
    assert infos["error"].tolist() == [None, "OSError: attempt 3"]
    envs.close()


class RaisesUntil(CountEnv):
    """Its reset raises until it was called often enough, by any object of the class."""

    def __init__(self, path: str, times: int) -> None:
        super().__init__({})
        self.path, self.times = path, times

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        with open(self.path, "a+b") as file:
            file.write(b".")
            count = file.tell()
        if count <= self.times:
            raise OSError(f"attempt {count}")
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize("options", BACKENDS, ids=["serial", "process"])
def test_too_many_exceptions_are_raised_and_name_the_env(options: Any) -> None:
    failures = FailurePolicy(on_exception="truncate", max_restarts=2)
    envs = VectorEnv(env_fns(step=range(1, 100)), autoreset_mode="SameStep", failures=failures, **options)
    envs.reset(seed=1)
    for _ in range(2):
        assert envs.step([0, 0, 0])[3].tolist() == [False, True, False]
    with pytest.raises(LookupError) as caught:
        envs.step([0, 0, 0])
    notes = "\n".join(caught.value.__notes__)
    assert "3 failures of env 1 within 60 s, which is more than max_restarts=2 allows" in notes
    assert "raised by step of env 1" in notes
    assert caught.value.rows.mask.tolist() == [True, False, True]
    envs.close()


@pytest.mark.parametrize("options", BACKENDS, ids=["serial", "process"])
def test_constructor_that_raises_again_and_again_is_raised(options: Any, tmp_path: Any) -> None:
    fns = [functools.partial(CountEnv, {}), functools.partial(BuiltOnce, str(tmp_path / "built"))]
    envs = VectorEnv(fns, failures=FailurePolicy(on_exception="truncate", max_restarts=3), **options)
    with pytest.raises(FileExistsError) as caught:
        envs.reset(seed=1)
    assert "4 failures of env 1" in "".join(caught.value.__notes__)
    assert caught.value.rows.result[0].ravel().tolist() == [100, 0]
    os.unlink(tmp_path / "built")
    with pytest.raises(LookupError):  # the env can be built now, but raises
        envs.reset(seed=1)
    envs.close()


class BuiltOnce(CountEnv):
    """Can be built once, until its file is removed; its resets raise."""

    def __init__(self, path: str) -> None:
        super().__init__({"reset": tuple(range(100))})
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))


def test_exceptions_and_deaths_have_one_limit() -> None:
    failures = FailurePolicy(on_exception="truncate", max_restarts=3)
    envs = VectorEnv(env_fns(2, step=(1, 2)), num_workers=2, failures=failures)
    envs.reset(seed=1)
    for _ in range(3):
        envs.step([0, 0])
    os.kill(envs.worker_pids[1], signal.SIGKILL)  # the worker is idle: no env is to blame
    envs.step([0, 0])
    assert envs.statistics().exceptions == 2
    envs.close()


def test_send_and_recv_end_only_the_episode_that_raised() -> None:
    envs = VectorEnv(env_fns(step=(2,)), num_workers=2, batch_size=1, failures=TRUNCATE)
    envs.async_reset(seed=1)
    seen: dict[int, list[float]] = {0: [], 1: [], 2: []}
    while min(map(len, seen.values())) < 5:
        obs, _, _, truncated, infos = envs.recv()
        env_id = int(infos["env_id"][0])
        seen[env_id].append(obs[0, 0])
        assert not truncated[0] or (env_id == 1 and infos["error"].tolist() == ["LookupError: step 2"])
        envs.send([0], infos["env_id"])
    assert seen[1][:5] == [200, 201, 201, 1200, 1201]
    assert seen[0][:3] == [100, 101, 102] and seen[2][:3] == [300, 301, 302]
    envs.close()


def test_interrupts_and_exits_are_not_caught() -> None:
    envs = VectorEnv([functools.partial(InterruptedEnv, KeyboardInterrupt)], backend="serial", failures=TRUNCATE)
    envs.reset()
    with pytest.raises(KeyboardInterrupt):
        envs.step([0])
    envs.close()
    for options in BACKENDS:
        envs = VectorEnv([functools.partial(InterruptedEnv, SystemExit)], failures=TRUNCATE, **options)
        envs.reset()
        with pytest.raises(RuntimeError, match="SystemExit"):
            envs.step([0])
        envs.close()


class InterruptedEnv(CountEnv):
    def __init__(self, error: type[BaseException]) -> None:
        super().__init__({})
        self.error = error

    def step(self, action: Any) -> Any:
        raise self.error


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_env_with_an_info_of_that_name_keeps_its_own(mode: str) -> None:
    envs = VectorEnv(
        [functools.partial(TrackingEnv, {}), functools.partial(TrackingEnv, {"step": (2,)})],
        autoreset_mode=mode,
        num_workers=2,
        failures=TRUNCATE,
    )
    envs.reset(seed=1)
    assert envs.step([0, 0])[4]["error"].tolist() == [0.5, 0.5]
    infos = envs.step([0, 0])[4]
    if mode == "NextStep":
        assert infos["error"].tolist() == [0.5, "LookupError: step 2"]
    else:
        assert infos["final_info"]["error"][1] == "LookupError: step 2"
    envs.close()


class TrackingEnv(CountEnv):
    def step(self, action: Any) -> Any:
        *result, info = super().step(action)
        return *result, {**info, "error": 0.5}


@pytest.mark.parametrize("options", BACKENDS, ids=["serial", "process"])
def test_batched_vector_env_ends_the_episodes_of_one_batch(options: Any) -> None:
    envs = BatchedVectorEnv(
        [functools.partial(CountVectorEnv, {"step": (2,), "reset": (2,)} if i == 1 else {}) for i in range(3)],
        failures=TRUNCATE,
        **options,
    )
    envs.reset(seed=1)
    envs.step(np.zeros(6, int))
    obs, rewards, terminated, truncated, infos = envs.step(np.zeros(6, int))
    assert obs.ravel().tolist() == [102, 102.5, 301, 301.5, 502, 502.5]
    assert truncated.tolist() == [False, False, True, True, False, False] and not terminated.any()
    assert rewards.tolist() == [102, 102, 0, 0, 502, 502]
    assert infos["error"].tolist() == [None, None, "LookupError: step 2", "LookupError: step 2", None, None]
    obs, *_, infos = envs.step(np.zeros(6, int))
    assert obs.ravel().tolist() == [103, 103.5, 1000, 1000.5, 503, 503.5]
    assert infos["error"].tolist()[2] == "LookupError: reset 2"
    envs.close()


def test_sb3_vec_env_ends_only_the_episode_that_raised() -> None:
    SB3VecEnv = pytest.importorskip("vecenv.integrations.sb3", exc_type=ImportError).SB3VecEnv
    envs = SB3VecEnv(env_fns(step=(2,)), num_workers=2, failures=TRUNCATE)
    envs.seed(1)
    envs.reset()
    envs.step(np.zeros(3, int))
    obs, rewards, dones, infos = envs.step(np.zeros(3, int))
    assert obs.ravel().tolist() == [102, 1200, 302] and rewards.tolist() == [102, 0, 302]
    assert dones.tolist() == [False, True, False]
    assert infos[1]["terminal_observation"].tolist() == [201] and infos[1]["TimeLimit.truncated"]
    assert infos[1]["error"] == "LookupError: step 2"
    envs.close()


def test_alf_environment_ends_only_the_episode_that_raised() -> None:
    constructors = [functools.partial(_alf_env, {"step": (2,)} if i == 1 else {}) for i in range(3)]
    for options in ({}, {"reset_ahead": True}):
        with ParallelAlfEnvironment(
            constructors, tensors=False, num_workers=2, on_exception="truncate", **options
        ) as envs:
            envs.seed([1, 2, 3])
            envs.reset()
            envs.step(np.zeros(3, np.int64))
            time_step = envs.step(np.zeros(3, np.int64))
            assert time_step.step_type.tolist() == [1, 2, 1] and time_step.discount.tolist() == [1, 1, 1]
            assert time_step.observation.ravel().tolist() == [102, 201, 302]
            time_step = envs.step(np.zeros(3, np.int64))
            assert time_step.observation.ravel().tolist() == [103, 1200, 303]


def test_collected_marks_the_row_of_an_exception_as_lost() -> None:
    for options in BACKENDS:
        envs = VectorEnv(env_fns(step=(3,)), failures=TRUNCATE, **options)
        batch = collect(envs, lambda obs, env_id: np.zeros(len(obs), int), steps=12)
        assert batch.lost.sum() == 1 and batch.env_id[batch.lost].tolist() == [1]
        envs.close()


def test_evaluation_cuts_the_episode_of_an_exception() -> None:
    envs = VectorEnv(env_fns(step=(3,), length=5), backend="serial", failures=TRUNCATE)
    result = evaluate(envs, lambda obs, env_id: np.zeros(len(obs), int), seeds=[1, 2, 3])
    assert result.cut.tolist() == ["", "failure", ""]
    assert result.infos[1]["error"] == "LookupError: step 3"
    envs.close()


def test_managers_refuse_to_catch_exceptions() -> None:
    with pytest.raises(ConfigError, match="on_exception: expected 'raise' or None"):
        SyncSubprocessEnvManager(env_fns(), {"failures": TRUNCATE})


def test_reproducer_repeats_exceptions_before_the_crash(tmp_path: Any) -> None:
    failures = FailurePolicy(on_exception="truncate", on_repeat="raise", reproducer_dir=tmp_path)
    envs = VectorEnv([functools.partial(CrashesLater, {"step": (3,)})], failures=failures)
    envs.reset(seed=1)
    with pytest.raises(WorkerDiedError) as caught:
        for _ in range(20):
            envs.step([0])
    envs.close()
    episode = reproducer.load(caught.value.reproducer)
    crash = episode.entries.pop()  # the crash would end this process
    events = list(episode.run())
    assert [event.op for event in events] == ["reset", "step", "step", "error", "autoreset", "step", "step"]
    assert events[3].info["error"] == "LookupError: step 3"
    assert events[-1].step_id == crash.step_id - 1 and events[-1].obs.tolist() == [1102]


class CrashesLater(CountEnv):
    """Ends its process in the third step after an episode that began without a seed."""

    def step(self, action: Any) -> Any:
        if self.count == 1102:
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().step(action)


@pytest.mark.parametrize("start", ["forkserver", "fork", "spawn"])
def test_every_start_method_catches_exceptions(start: str) -> None:
    envs = VectorEnv(env_fns(step=(1,), reset=(2,)), context=start, num_workers=2, failures=TRUNCATE)
    envs.reset(seed=1)
    assert envs.step([0, 0, 0])[3].tolist() == [False, True, False]
    assert envs.step([0, 0, 0])[0].ravel().tolist() == [102, 1000, 302]
    envs.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_random_erratic_envs_equal_a_plain_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, mode = int(rng.integers(1, 6)), MODES[seed % 3]
    errors = float(rng.choice([0.05, 0.3, 0.8])), float(rng.choice([0.0, 0.3, 0.6]))
    fns = [functools.partial(ErraticEnv, i, errors) for i in range(count)]
    actions = rng.integers(0, 3, (120, count))
    kills = set(rng.choice(120, 12, replace=False).tolist())

    def kill(envs: Any, number: int) -> None:
        if number in kills:
            os.kill(envs.worker_pids[number % len(envs.worker_pids)], signal.SIGKILL)

    failures = FailurePolicy(on_exception="truncate", max_restarts=10_000)
    envs = VectorEnv(fns, autoreset_mode=mode, failures=failures, num_workers=int(rng.integers(1, 3)))
    rows = play(envs, mode, actions, kill)
    envs.close()
    assert list(itertools.chain(*rows)) == list(itertools.chain(*play_plainly(fns, mode, actions)))
