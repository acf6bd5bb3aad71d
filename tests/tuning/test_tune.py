"""`vecenv.tune`: the winner of planted cases, the program to paste, and wrong arguments."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import time
from typing import Any

import pytest

import vecenv
from vecenv.core.advice.sizing import SERIAL, Setting, Workload
from vecenv.envs.toys import NullEnv, RaiseAtInit, RaiseAtReset, RaiseAtStep, RaiseSystemExit, ToyEnv
from vecenv.errors import ConfigError, WorkerDiedError
from vecenv.measurement.measure import Mode, Window
from vecenv.tuning import search
from vecenv.tuning.candidates import Candidate, calls, full_grid, likely_settings, settings, variants
from vecenv.tuning.env_code import EnvCode
from vecenv.tuning.halving import Halving, OpenCandidate

SHORT: dict[str, Any] = {"seconds": 1.0, "progress": False}


class Talkative(NullEnv):
    """Costs nothing, but its infos are pickled on their way out of a worker, which takes a millisecond."""

    def __init__(self) -> None:
        super().__init__()
        info = {"text": [str(number) for number in range(10_000)]}
        self._result = (self._obs, 1.0, False, False, info)


class Naps(NullEnv):
    """Sleeps for 5 ms at each step."""

    def step(self, action):
        time.sleep(0.005)
        return super().step(action)


class LongNaps(NullEnv):
    """Sleeps for 20 ms at each step."""

    def step(self, action):
        time.sleep(0.02)
        return super().step(action)


class NapsAndDraws(Naps):
    """Draws from a global generator, too."""

    def step(self, action):
        random.random()
        return super().step(action)


def repr_of(value: Any) -> str | None:
    """Return the name of a parameter without addresses."""
    return re.sub(r" at 0x\w+", "", str(value)) or None


def names(result: vecenv.TuneResult) -> list[str]:
    return [candidate.name for candidate in result.candidates]


# ---- planted cases -------------------------------------------------------------------------------


@pytest.mark.extended
def test_cheap_envs_end_in_the_plain_loop():
    result = vecenv.tune(Talkative, 2, options={"infos": "all"}, **SHORT)
    assert result.plain_loop_wins and result.best.backend in ("serial", "gymnasium")
    assert result.options["backend"] == "serial"
    assert "The plain loop wins" in str(result)
    assert "gymnasium.vector.SyncVectorEnv([Talkative] * 2)" in str(result)
    workers = next(one for one in result.candidates if one.backend == "process" and not one.failure)
    assert workers.ratio < 0.8


@pytest.mark.extended
def test_sleeping_envs_get_many_slots_and_beat_the_plain_loop():
    result = vecenv.tune(Naps, 16, **{**SHORT, "seconds": 6.0})
    assert not result.plain_loop_wins and result.ratio_to_plain > 4
    slots = result.options["num_workers"] * result.options.get("threads_per_worker", 1)
    assert slots >= 8
    assert any("threads" in name for name in names(result))
    assert f"{result.ratio_to_plain:.2f} x the plain loop" in " ".join(str(result).split())


class SlowResets(NullEnv):
    """Sleeps for 1 ms at each step, and for 60 ms in a reset; each step ends the episode with a chance of 1 in 20."""

    def reset(self, *, seed=None, options=None):
        time.sleep(0.06)
        self._random = random.Random(seed or id(self))
        return super().reset(seed=seed, options=options)

    def step(self, action):
        time.sleep(0.001)
        return self._obs, 1.0, self._random.random() < 0.05, False, {}


@pytest.mark.extended
def test_slow_resets_get_spare_envs():
    """Spare envs were never tried, with which plain `step` was twice as fast as the setting that was found."""
    result = vecenv.tune(SlowResets, 8, lockstep=True, options={"infos": "all", "copy": True}, **SHORT)
    assert result.options["num_spare_envs"] in (4, 8)
    assert "num_spare_envs=" in result.call and "spare envs" in str(result)
    others = [one for one in result.candidates if one.ratio < 1]
    assert all("num_spare_envs" in one.options or one.ratio < 0.8 for one in others)
    assert all(one.seconds >= 1 for one in result.candidates if one.ratio > 0), "shorter ones have no rank"


@pytest.mark.extended
def test_envs_that_draw_from_global_generators_get_no_threads():
    result = vecenv.tune(NapsAndDraws, 8, **{**SHORT, "seconds": 3.0})
    assert not any("threads" in name for name in names(result))
    assert result.options["num_workers"] >= 4


@pytest.mark.extended
def test_policy_makes_overlap_win():
    """Sleeping envs need no core, so with `recv` they step while the policy computes."""
    result = vecenv.tune(LongNaps, 8, policy_ms=20.0, **{**SHORT, "seconds": 12.0})
    assert result.best.min_count in (2, 4)
    assert result.best_step.ratio < 0.95
    assert f"envs.recv({result.best.min_count})" in str(result)
    assert "The fastest setting with step() is" in str(result)


# ---- the result ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result() -> vecenv.TuneResult:
    return vecenv.tune("CartPole-v1", 4, env_kwargs={"sutton_barto_reward": True}, seconds=1.0, progress=False)


@pytest.mark.extended
def test_result_has_every_candidate(result: vecenv.TuneResult):
    assert result.candidates[0] is result.best and result.best.ratio == 1.0
    assert result.best_step.min_count is None and result.best_step in result.candidates
    assert len(set(names(result))) == len(result.candidates)
    measured = [one for one in result.candidates if not one.failure]
    assert all(one.steps_per_second > 0 and one.seconds > 0 for one in measured)
    assert {one.backend for one in measured} == {"process", "serial", "gymnasium"}
    assert all(one.seconds >= 1 for one in measured if one.ratio > 0)
    for one in measured:
        assert not one.ratio > 0 or one.ratio == pytest.approx(one.steps_per_second / result.best.steps_per_second)
    with pytest.raises(AttributeError):
        result.options = {}
    content = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert content["options"] == result.options and len(content["candidates"]) == len(result.candidates)


@pytest.mark.parametrize("call", ["call", "plain_call"])
def test_printed_program_builds_the_envs(result: vecenv.TuneResult, call: str):
    namespace: dict[str, Any] = {}
    exec(getattr(result, call), namespace)
    envs = namespace["envs"]
    assert envs.num_envs == 4
    assert envs.get_attr("spec")[0].kwargs["sutton_barto_reward"] is True
    envs.close()


def test_options_are_keywords_of_vector_env(result: vecenv.TuneResult):
    with vecenv.VectorEnv([ToyEnv] * 4, **result.options) as envs:
        envs.reset(seed=0)


@pytest.mark.extended
def test_given_options_are_kept():
    result = vecenv.tune(ToyEnv, 2, options={"infos": "all", "copy": False}, lockstep=True, **SHORT)
    assert result.options["copy"] is False and result.options["infos"] == "all"
    assert not any("infos" in name or "recv" in name for name in names(result))
    assert "copy=False, infos='all'" in result.call or "infos='all', copy=False" in result.call


# ---- the program to paste ------------------------------------------------------------------------


def _make(length: int = 5) -> ToyEnv:
    return ToyEnv(length)


@pytest.mark.parametrize(
    "env, kwargs, expected",
    [
        (NullEnv, {}, "envs = vecenv.VectorEnv([NullEnv] * 3, num_workers=2)"),
        (lambda: NullEnv(), {}, "envs = vecenv.VectorEnv([env_fn] * 3, num_workers=2)"),
        (_make, {"length": 3}, "envs = vecenv.VectorEnv([functools.partial(_make, length=3)] * 3, num_workers=2)"),
        ("CartPole-v1", {}, "envs = vecenv.make_vec('CartPole-v1', num_envs=3, num_workers=2)"),
        ("vecenv.envs.toys:ToyEnv", {}, "envs = vecenv.VectorEnv([ToyEnv] * 3, num_workers=2)"),
        (
            "vecenv.envs.toys:ToyEnv",
            {"length": 3},
            "envs = vecenv.VectorEnv([functools.partial(ToyEnv, length=3)] * 3, num_workers=2)",
        ),
    ],
    ids=repr_of,
)
def test_program_names_the_env_as_the_user_did(env, kwargs, expected: str):
    program = EnvCode.of(env, kwargs).vector_env(3, {"num_workers": 2})
    assert program.splitlines()[-1] == expected
    if isinstance(env, str):
        namespace: dict[str, Any] = {}
        exec(program, namespace)
        namespace["envs"].close()


# ---- candidates ----------------------------------------------------------------------------------


def test_grid_has_each_candidate_once():
    grid = list(full_grid(64, 2))
    assert len(grid) == len(set(grid))
    assert {one.min_count for one in grid} == {None, 32, 16}
    assert Candidate(Setting(2, 32), 16, False, "none") in grid and Candidate(None) in grid
    assert all(one.setting.threads_per_worker == 1 for one in full_grid(64, 2, may_thread=False) if one.setting)
    assert Candidate(Setting(2, 32), 16, False, "none").options == {
        "num_workers": 2,
        "threads_per_worker": 32,
        "copy": False,
        "infos": "none",
    }


@pytest.mark.parametrize("num_envs, expected", [(1, [None]), (2, [None, 1]), (4, [None, 2, 1]), (64, [None, 32, 16])])
def test_min_counts_are_below_the_number_of_envs(num_envs: int, expected: list[int | None]):
    assert calls(num_envs) == expected
    assert calls(num_envs, lockstep=True) == [None]


def test_one_env_has_settings():
    assert settings(1, 2) == [Setting(1)]
    assert len(set(settings(3, 2))) == len(settings(3, 2))


def test_estimate_leaves_out_hopeless_settings():
    every = [SERIAL, *settings(64, 2)]
    busy = likely_settings(every, Workload(50_000, 50_000), 64, 2)
    assert busy[0] == Setting(2) and Setting(1, 64) not in busy
    asleep = likely_settings(every, Workload(1_000_000, 1_000), 64, 2)
    assert SERIAL not in asleep and Setting(1) not in asleep and Setting(2, 32) in asleep
    # a policy of 100 ms makes all settings equal, as far as `step` goes
    assert len(likely_settings(every, Workload(50_000, 50_000), 64, 2, policy_ns=1e8)) == len(every)


def test_variants_keep_given_options():
    every = variants(Candidate(Setting(2)))
    assert len(every) == len(set(every)) == 7 and Candidate(Setting(2)) not in every
    assert variants(Candidate(Setting(2), copy=False), ["copy", "infos"]) == []
    assert {one.infos for one in variants(Candidate(Setting(2), infos="done"), ["infos"])} == {"done"}


# ---- successive halving --------------------------------------------------------------------------


class FakeMode(Mode):
    """Has a constant speed; the clock of the test does not matter."""

    def __init__(self, rate: float, log: list[tuple[float, float]]) -> None:
        super().__init__(f"{rate}")
        self._rate, self._log = rate, log

    def run(self, seconds: float) -> Window:
        self._log.append((self._rate, seconds))
        return Window(round(self._rate * seconds * 1e6), 1.0, seconds * 1e6, 0.0)

    def close(self) -> None:
        pass


def never(*_: Any) -> None:
    raise AssertionError("no candidate fails")


class CrashingMode(FakeMode):
    """Its worker dies in the second window."""

    def run(self, seconds: float) -> Window:
        if self._log:
            raise WorkerDiedError("killed by SIGSEGV")
        return super().run(seconds)


def test_candidate_that_crashes_drops_out_with_all_calls_of_its_envs():
    dropped: list[str] = []
    crashing = [OpenCandidate(Candidate(Setting(2), count), CrashingMode(9.0, [])) for count in (None, 1)]
    entries = [*crashing, OpenCandidate(Candidate(Setting(3)), FakeMode(1.0, []))]
    halving = Halving(lambda name: None, lambda entries: None, lambda one, _: dropped.append(str(one.candidate)))
    assert halving.run(entries, 1.0) == entries[2:]
    assert dropped == ["2 workers, step", "2 workers, recv(1)"]
    assert Halving(lambda name: None, lambda entries: None, lambda one, _: None).run(entries[:2], 1.0) == []


def test_last_rung_is_long_enough_for_a_rank():
    """Rows were ranked by single windows of 0.1 s, without a reset."""
    log: list[tuple[float, float]] = []
    entries = [OpenCandidate(Candidate(Setting(count)), RealTimeMode(float(count), log)) for count in (1, 2, 3, 4)]
    found = Halving(lambda name: None, lambda entries: None, never, reset_seconds=0.5).run(entries, 1.0)
    assert all(entry.seconds >= 5.0 for entry in found) and len(found) == 2
    assert all(seconds >= 0.5 for _, seconds in log[4:])


class RealTimeMode(FakeMode):
    """Has windows of the length that is asked for."""

    def run(self, seconds: float) -> Window:
        self._log.append((self._rate, seconds))
        return Window(round(self._rate * seconds * 1e6), 1.0, seconds, 0.0)


def test_better_half_goes_on_with_longer_windows():
    log: list[tuple[float, float]] = []
    left: list[int] = []
    rates = [3.0, 8.0, 1.0, 5.0, 7.0, 2.0, 6.0, 4.0]
    entries = [OpenCandidate(Candidate(Setting(int(rate))), FakeMode(rate, log)) for rate in rates]
    halving = Halving(lambda name: None, lambda entries: left.append(len(entries)), never)
    found = halving.run(entries, 30.0)
    assert [entry.candidate.setting for entry in found] == [Setting(8), Setting(7)]
    assert left == [4, 2]
    windows = {rate: [seconds for other, seconds in log if other == rate] for rate in rates}
    assert len(windows[1.0]) == 5 and len(windows[8.0]) == 13, "a short one, and four per rung"
    assert windows[8.0][-1] == pytest.approx(4 * windows[8.0][1])
    assert [rate for rate, _ in log[8:16]] == rates and [rate for rate, _ in log[16:24]] == rates[::-1]
    assert sum(seconds for _, seconds in log[8:]) == pytest.approx(30.0)
    assert entries[2].ratio_to(found[0]) == pytest.approx(1 / 8)


def test_fastest_setting_with_step_stays_to_the_end():
    log: list[tuple[float, float]] = []
    recv = [OpenCandidate(Candidate(Setting(2), count), FakeMode(100.0 + count, log)) for count in (1, 2, 3, 4, 5)]
    step = [OpenCandidate(Candidate(Setting(count)), FakeMode(float(count), log)) for count in (1, 2)]
    found = Halving(lambda name: None, lambda entries: None, never).run([*step, *recv], 1.0)
    assert found[0].candidate.min_count == 5 and step[1] in found and step[0] not in found


def test_small_gain_is_not_worth_a_change_of_the_program():
    log: list[tuple[float, float]] = []
    plain = OpenCandidate(Candidate(Setting(2)), FakeMode(1000.0, log))
    views = OpenCandidate(Candidate(Setting(2), copy=False), FakeMode(1010.0, log))
    much = OpenCandidate(Candidate(Setting(2), infos="none"), FakeMode(1030.0, log))
    halving = Halving(lambda name: None, lambda entries: None, never)
    assert halving.run([views, plain], 1.0)[0] is plain
    assert halving.run([much, plain], 1.0)[0] is much


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"num_envs": 0}, "num_envs: expected a whole number of at least 1, got 0"),
        ({"policy_ms": -1.0}, "policy_ms: expected milliseconds of at least 0, got -1.0"),
        ({"seconds": 0}, "seconds: expected seconds above 0, got 0"),
        ({"seconds": float("inf")}, "seconds: expected a finite number"),
        ({"env": "NoSuchEnv-v0"}, "NoSuchEnv"),
        ({"env": ToyEnv()}, "env: expected an id or a function that builds an env, got an env that is built already"),
        ({"options": {"num_workers": 2}}, "options: 'num_workers' cannot be given here"),
        ({"options": {"info": "all"}}, "options: VectorEnv has no option 'info'; did you mean 'infos'"),
        ({"env": RaiseAtInit}, "'RaiseAtInit' cannot be measured: .*: toy env"),
        ({"env": RaiseSystemExit}, "'RaiseSystemExit' cannot be measured: .*"),
        ({"env": RaiseAtReset}, "'RaiseAtReset' cannot be measured: ValueError: toy env cannot reset"),
        ({"env": RaiseAtStep}, "'RaiseAtStep' cannot be measured: ZeroDivisionError: toy env divides"),
    ],
    ids=repr_of,
)
def test_wrong_argument_is_config_error(arguments: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        vecenv.tune(**{"env": ToyEnv, "num_envs": 2, **SHORT, **arguments})


class FailsLater(NullEnv):
    """Raises long after the measurement of one env."""

    def __init__(self) -> None:
        super().__init__()
        self._left = 2000

    def step(self, action):
        self._left -= 1
        if self._left < 0:
            raise ValueError("it is too late")
        return super().step(action)


@pytest.mark.extended
def test_exception_in_a_window_closes_all_envs():
    with pytest.raises(ConfigError, match="'FailsLater' cannot be measured: .*ValueError: it is too late"):
        vecenv.tune(FailsLater, 2, **SHORT)


class CrashesWithoutWorkers(NullEnv):
    """Ends the process of a plain loop at the 100th step."""

    def step(self, action):
        self._num_steps = getattr(self, "_num_steps", 0) + 1
        if self._num_steps == 100 and any("measurement.loops" in word for word in sys.orig_argv):
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().step(action)


@pytest.mark.extended
def test_crash_of_an_env_does_not_end_the_search():
    """It ended the program, since the serial backend lived there."""
    result = vecenv.tune(CrashesWithoutWorkers, 2, lockstep=True, options={"infos": "all", "copy": True}, **SHORT)
    assert result.best.backend == "process"
    failures = {one.backend: one.failure for one in result.candidates if "SIGSEGV" in one.failure}
    assert failures.keys() == {"serial", "gymnasium"}


@pytest.mark.extended
def test_setting_that_cannot_be_opened_is_named(monkeypatch: pytest.MonkeyPatch):
    class NoWorkers(vecenv.VectorEnv):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            if kwargs.get("backend") != "serial":
                raise ConfigError("there are too few descriptors")
            super().__init__(*args, **kwargs)

    monkeypatch.setattr(search, "VectorEnv", NoWorkers)
    result = vecenv.tune(Talkative, 2, options={"infos": "all"}, **SHORT)
    assert result.plain_loop_wins
    assert "because there are too few descriptors: " in str(result)
