"""The infos of each mode, `infos='all' | 'columns' | 'done' | 'none'`, and the statistics of episodes."""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from tests.releases import GYMNASIUM
from tests.vector.comparison import assert_same
from tests.vector.test_infos import GivesInfos
from vecenv import ConfigError, VectorEnv
from vecenv.core.layout.flags import Autoreset, RowFlag
from vecenv.core.layout.info_cells import Infos
from vecenv.core.options import PoolOptions
from vecenv.core.pool.serial import SerialPool
from vecenv.envs.toys import CountEnv, SegfaultAtStep, ToyEnv

MODES = [pytest.param(mode, id=mode.value) for mode in AutoresetMode]


class RandomInfos(ToyEnv):
    """Gives random infos, some with columns and some without, and more of them at the end of an episode."""

    def make_info(self):
        number = int(self.np_random.integers(1, 2**31))
        parts: dict[str, Any] = {
            "steps": self.elapsed_steps,
            "half": self.elapsed_steps / 2,
            "flag": number % 2 == 0,
            "byte": np.uint8(number % 256),
            "numpy flag": np.bool_(number % 3 == 0),
            "position": np.array([number, 0.5], np.float64),
            "strided": np.arange(8, dtype=np.int16)[::2] * (number % 100),
            "board": np.asfortranarray(np.full((2, 3), number % 7, np.uint8)),
            "switches": np.array([number % 2 == 0, True]),
            "nested": {"x": number, "deep": {"y": number / 7, "z": np.float32(0.1 * (number % 5)), "v": np.ones(3)}},
            "large": np.arange(9) + number,
            "text": f"number {number}",
            "nothing": None,
            "partly": {"number": number, "text": "x", "deep": {"text": "y"}},
            "only text": {"text": "z"},
            "none at all": {},
            "list": [number],
            "complex": np.complex64(number),
            "long": np.zeros((1, 1, 1, 1, 1)),
            "tiny": np.zeros((0, 2)),
        }
        chosen = {key: value for i, (key, value) in enumerate(parts.items()) if number >> i & 1}
        if self.length is not None and self.elapsed_steps >= self.length:
            chosen["episode"] = {"r": float(self.action_sum), "l": self.elapsed_steps}
        return chosen


#: The paths of those infos of `RandomInfos` that have columns and need no pickle.
WITH_CELLS = {
    *(("steps",), ("half",), ("flag",), ("byte",), ("numpy flag",), ("position",), ("strided",), ("board",)),
    *(("switches",), ("nested", "x"), ("nested", "deep", "y"), ("nested", "deep", "z"), ("nested", "deep", "v")),
    *(("partly", "number"), ("episode", "r"), ("episode", "l")),
}


def with_cells(info, above=()):
    kept = {}
    for key, value in info.items():
        path = (*above, key)
        if isinstance(value, dict):
            value = with_cells(value, path)
            if value:
                kept[key] = value
        elif path in WITH_CELLS:
            kept[key] = value
    return kept


class FilteredInfos(gymnasium.Wrapper):
    """Filters infos as a mode does, in Python, so that SyncVectorEnv gives the expected infos."""

    def __init__(self, env, infos):
        super().__init__(env)
        self.infos = infos

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        return obs, self.censor(info, False)

    def step(self, action):
        *result, info = self.env.step(action)
        return (*result, self.censor(info, result[2] or result[3]))

    def censor(self, info, is_end):
        if self.infos == "columns":
            return with_cells(info)
        return info if self.infos == "all" or (self.infos == "done" and is_end) else {}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("infos", ["all", "columns", "done", "none"])
def test_info_mode_keeps_the_expected_infos(infos, mode, backend):
    env_fns = [functools.partial(RandomInfos, length) for length in (3, 5, 4, 7)]
    references = [lambda env_fn=env_fn: FilteredInfos(env_fn(), infos) for env_fn in env_fns]
    with (
        contextlib.closing(SyncVectorEnv(references, autoreset_mode=mode)) as theirs,
        contextlib.closing(VectorEnv(env_fns, backend=backend, autoreset_mode=mode, infos=infos)) as ours,
    ):
        assert_same(ours.reset(seed=8), theirs.reset(seed=8), "reset")
        for i in range(60):
            actions = np.array([i % 2, 1, 0, 1])
            result = ours.step(actions)
            assert_same(result, theirs.step(actions), f"step {i}")
            ended = result[2] | result[3]
            if mode == AutoresetMode.DISABLED and ended.any():
                mask = {"reset_mask": ended}
                assert_same(ours.reset(options=dict(mask)), theirs.reset(options=dict(mask)), f"reset after {i}")


@pytest.mark.extended
@pytest.mark.parametrize("infos", ["all", "columns", "done"])
def test_info_mode_keeps_the_expected_infos_in_order_of_arrival(infos):
    """Without the C implementation all infos are pickled; they are equal with it, in any order of arrival."""
    seen = []
    for reverse in (False, True):
        env_fns = [functools.partial(RandomInfos, length) for length in (3, 5, 4)]
        with contextlib.closing(VectorEnv(env_fns, backend="serial", infos=infos)) as envs:
            envs.reset(seed=1)
            results = []
            for _ in range(30):
                envs.send(np.array([1, 1, 1]), [2, 1, 0] if reverse else [0, 1, 2])
                told = envs.recv()[4]
                assert told.pop("env_id").tolist() == ([2, 1, 0] if reverse else [0, 1, 2])
                results.append(flip(told) if reverse else told)
            seen.append(results)
    assert_same(*seen)


def flip(infos):
    return {key: flip(value) if isinstance(value, dict) else value[::-1] for key, value in infos.items()}


# ---- pickled infos ---------------------------------------------------------------------------


def mailed(info, infos="ALL", rounds=3):
    """Return whether rows of this info are pickled once its keys are known, and the info that arrives."""
    options = PoolOptions(infos=Infos[infos])
    with SerialPool([functools.partial(GivesInfos, info, length=None)] * 2, options) as pool:
        pool.start()
        pool.reset()
        pool.recv()
        for _ in range(rounds):
            pool.send([0, 0])
            batch = pool.recv()
        return bool(batch.flags & RowFlag.MESSAGE), batch.infos()[0]


NUMBERS = {"a": 1, "b": 0.5, "c": {"d": np.int8(3), "e": {"f": np.array([1.0, 2.0])}}, "": True}


@pytest.mark.native
@pytest.mark.parametrize(
    "info, with_mail",
    [
        (NUMBERS, False),
        ({"array": np.zeros((2, 2, 2), np.float16)}, False),
        ({"array": np.zeros(9)}, True),
        ({"array": np.zeros(2, ">f8")}, True),
        ({"array": np.zeros(2, object)}, True),
        ({"array": np.ma.zeros(2)}, True),
        ({"text": "x"}, True),
        ({"big": 2**63}, True),
        ({"dict": {}}, True),
        ({3: 4}, True),
        ({"a\x1fb": 1}, True),
        ({"\ud800": 1}, True),
        ({"k" * 64: 1}, True),
        ({"a": {"b": {"c": {"d": 1}}}}, False),
        ({"a": {"b": {"c": {"d": {"e": 1}}}}}, True),
        ({"final_obs": 1}, True),
        ({}, False),
    ],
    ids=repr,
)
def test_infos_are_pickled_only_for_values_without_columns(info, with_mail):
    assert mailed(info) == (with_mail, pytest.approx(info) if info == {} else AsGiven(info))
    assert mailed({**info, "text": "x"}) == (True, AsGiven({**info, "text": "x"}))


class AsGiven:
    """Equals a value that has the same arrays."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        assert_same(other, self.value)
        return True

    __hash__ = None


@pytest.mark.native
def test_columns_mode_pickles_nothing_once_columns_are_known():
    parts = {"text": "x", "object": object(), "big": np.arange(100), "dict": {"text": "y"}, 3: 4, "long": 2**70}
    assert mailed({**NUMBERS, **parts}, "COLUMNS") == (False, AsGiven(NUMBERS))
    assert mailed(parts, "COLUMNS") == (False, {})
    more = {f"key {i}": i for i in range(40)}  # keys beyond the size of the table arrive, too
    assert mailed({**more, **parts}, "COLUMNS") == (True, more)


@pytest.mark.native
def test_info_key_that_changes_its_type():
    kinds = [1, np.zeros(2), np.zeros(3), {"inner": 1}, "text", None, True, {"inner": np.ones(2)}]
    for first in kinds:
        infos = [{"key": first}] * 2 + [{"key": kind} for kind in kinds]
        with SerialPool([functools.partial(GivesInfos, *infos, length=None)]) as pool:
            pool.start()
            pool.reset()
            pool.recv()
            for i in range(len(kinds) + 1):
                pool.send([0])
                assert_same(pool.recv().infos()[0], infos[min(i + 1, len(infos) - 1)])


class ReusesInfos(ToyEnv):
    """Writes every info into the same dict and array, also the first one of the next episode."""

    def __init__(self, length, text=False):
        super().__init__(length)
        self.text = text
        self.info = {"array": np.zeros(2), "deep": {}}

    def make_info(self):
        self.info["array"][:] = self.elapsed_steps, self.action_sum
        self.info["deep"]["half"] = self.elapsed_steps / 2
        for key in ("first", "said", "episode"):
            self.info.pop(key, None)
        if self.elapsed_steps == 0:
            self.info.update({"said": "text"} if self.text else {"first": 1})
        elif self.elapsed_steps == self.length:
            self.info["episode"] = {"l": self.elapsed_steps}
        return self.info


@pytest.mark.native
@pytest.mark.parametrize("infos", ["ALL", "COLUMNS", "DONE"])
@pytest.mark.parametrize("text", [False, True])
def test_final_infos_are_not_pickled_once_known(text, infos):
    """The same holds if the info of the reset in the same step is pickled."""
    options = PoolOptions(infos=Infos[infos], autoreset=Autoreset.SAME_STEP)
    with SerialPool([functools.partial(ReusesInfos, length, text) for length in (2, 3)], options) as pool:
        pool.start()
        pool.reset()
        pool.recv()
        has_text = text and infos == "ALL"
        for i in range(1, 25):
            pool.send([1, 1])
            batch = pool.recv()
            for row, (length, info) in enumerate(zip((2, 3), batch.final_infos())):
                is_end = i % length == 0
                expected = {"array": np.full(2, float(length)), "deep": {"half": length / 2}, "episode": {"l": length}}
                assert_same(info, expected if is_end else {}, f"step {i}, row {row}")
                if i > 12:  # all keys are known
                    flags = int(batch.row_flags[row])
                    assert bool(flags & RowFlag.FINAL_INFO) == bool(flags & RowFlag.FINAL) == is_end
                    assert bool(flags & RowFlag.MESSAGE) == (is_end and has_text)
            assert_same(batch.copy().final_infos(), batch.final_infos())
            assert_same(batch.take(np.array([1, 0])).final_infos(), batch.final_infos()[::-1])


@pytest.mark.parametrize("text", [False, True])
def test_final_infos_of_an_env_that_reuses_them_equal_gymnasium(text, backend):
    env_fns = [functools.partial(ReusesInfos, length, text and length == 3) for length in (2, 3, 4, 1)]

    def copying(env_fn):
        return lambda: _InfoCopier(env_fn())

    with (
        contextlib.closing(SyncVectorEnv(list(map(copying, env_fns)), autoreset_mode=AutoresetMode.SAME_STEP)) as sync,
        contextlib.closing(VectorEnv(env_fns, backend=backend, autoreset_mode="SameStep")) as ours,
    ):
        assert_same(ours.reset(seed=1), sync.reset(seed=1), "reset")
        for i in range(20):
            actions = np.array([i % 2, 1, 0, 1])
            assert_same(ours.step(actions), sync.step(actions), f"step {i}")


class _InfoCopier(gymnasium.Wrapper):
    """Copies infos for SyncVectorEnv, which does not copy them."""

    def reset(self, **kwargs):
        return copy.deepcopy(self.env.reset(**kwargs))

    def step(self, action):
        return copy.deepcopy(self.env.step(action))


@pytest.mark.parametrize("infos", ["all", "columns", "done", "none"])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_recovered_is_reported_in_every_mode(infos, mode, tmp_path):
    env_fns = [functools.partial(SegfaultAtStep, at=3, once=tmp_path / "done", length=4), functools.partial(ToyEnv, 4)]
    with contextlib.closing(VectorEnv(env_fns, num_workers=2, infos=infos, autoreset_mode=mode)) as envs:
        envs.reset(seed=0)
        told = [envs.step([0, 0])[4] for _ in range(3)]
        assert told[2]["recovered"].tolist() == ["replayed", None]


@pytest.mark.parametrize("infos", ["none", "done"])
def test_unwanted_infos_are_not_inspected(infos, backend):
    """A lock cannot be pickled, and the values of a generator are unknown before it runs."""

    class Locked(ToyEnv):
        def make_info(self):
            return {"lock": threading.Lock()}

    with contextlib.closing(VectorEnv([functools.partial(Locked, None)] * 2, backend=backend, infos=infos)) as envs:
        assert envs.reset(seed=0)[1] == {}
        assert envs.step([0, 0])[4] == {}


def test_info_of_wrong_type_is_an_error_in_every_mode(backend):
    class Listed(ToyEnv):
        def make_info(self):
            return [] if self.elapsed_steps else {}

    for infos in ("all", "columns", "done", "none"):
        with contextlib.closing(VectorEnv([Listed], backend=backend, infos=infos)) as envs:
            envs.reset(seed=0)
            with pytest.raises(TypeError, match="info must be a dict, got list"):
                envs.step([0])


def test_final_observations_are_delivered_in_every_mode(backend):
    for infos in ("all", "columns", "done", "none"):
        env_fns = [functools.partial(CountEnv, length) for length in (2, 9)]
        with contextlib.closing(VectorEnv(env_fns, backend=backend, infos=infos, autoreset_mode="SameStep")) as envs:
            envs.reset(seed=0)
            envs.step([0, 0])
            told = envs.step([0, 0])[4]
            assert told["_final_obs"].tolist() == [True, False] and told["final_obs"][0][0] == 2
            assert ("steps" in told["final_info"]) == (infos != "none")
            assert ("steps" in told) == (infos in ("all", "columns"))


# ---- episodes --------------------------------------------------------------------------------


class FractionalRewards(ToyEnv):
    """Gives rewards whose sums are not whole numbers."""

    def step(self, action):
        obs, _, *rest = super().step(action)
        return (obs, 0.1 * self.elapsed_steps + int(action), *rest)


@pytest.mark.parametrize("mode", MODES)
def test_statistics_equal_gymnasiums_wrapper(mode, backend):
    if mode == AutoresetMode.SAME_STEP and GYMNASIUM < (1, 4):
        pytest.skip("Gymnasium's wrapper leaves out the first step of each episode but the first")
    env_fns = [functools.partial(FractionalRewards, length, truncate=length == 4) for length in (3, 1, 4)]
    began = time.perf_counter()
    with (
        contextlib.closing(SyncVectorEnv(env_fns, autoreset_mode=mode)) as sync,
        contextlib.closing(VectorEnv(env_fns, backend=backend, autoreset_mode=mode, episode_statistics=True)) as ours,
    ):
        theirs = RecordEpisodeStatistics(sync)
        assert ours.reset(seed=2)[1] == theirs.reset(seed=2)[1] == {}
        num_ends = 0
        for i in range(25):
            actions = np.array([i % 2, 1, 0])
            (*_, told), (*_, expected) = ours.step(actions), theirs.step(actions)
            seconds = [infos.get("episode", {}).pop("t", np.zeros(3)) for infos in (told, expected)]
            assert_same(told, expected, f"step {i}")
            ended = told.get("_episode", np.zeros(3, np.bool_))
            num_ends += ended.sum()
            assert seconds[0].dtype == seconds[1].dtype and seconds[0].shape == (3,)
            assert (seconds[0][ended] > 0).all() and (seconds[0] < time.perf_counter() - began).all()
            assert not seconds[0][~ended].any()
            if mode == AutoresetMode.DISABLED and ended.any():
                ours.reset(options={"reset_mask": ended.copy()})
                theirs.reset(options={"reset_mask": ended.copy()})
                # Gymnasium's wrapper resets all its sums here, because SyncVectorEnv removes the mask
                if not ended.all():
                    break
        assert num_ends > (0 if mode == AutoresetMode.DISABLED else 8)


def test_statistics_of_partial_batches():
    env_fns = [functools.partial(ToyEnv, length) for length in (1, 2, 3)]
    with contextlib.closing(VectorEnv(env_fns, backend="serial", episode_statistics=True, infos="none")) as envs:
        envs.reset(seed=0)
        envs.send([0, 0], [2, 0])
        told = envs.recv()[4]
        assert told["env_id"].tolist() == [2, 0]
        assert told["_episode"].tolist() == [False, True] and told["episode"]["l"].tolist() == [0, 1]


def test_statistics_restart_with_a_reset():
    with contextlib.closing(VectorEnv([functools.partial(ToyEnv, 3)], episode_statistics=True)) as envs:
        envs.reset(seed=0)
        envs.step([0])
        envs.reset()
        lengths = [envs.step([0])[4].get("episode", {}).get("l") for _ in range(3)]
        assert lengths == [None, None, [3]]


@pytest.mark.extended
def test_statistics_survive_a_worker(tmp_path):
    env_fns = [functools.partial(SegfaultAtStep, at=3, once=tmp_path / "done", length=4), functools.partial(ToyEnv, 4)]
    began = time.perf_counter()
    with contextlib.closing(VectorEnv(env_fns, num_workers=2, episode_statistics=True, infos="none")) as envs:
        envs.reset(seed=0)
        told = [envs.step([0, 0])[4] for _ in range(4)]
        assert (tmp_path / "done").exists() and told[2].get("recovered") is not None
        episode = told[3]["episode"]
        assert episode["r"].tolist() == [4.0, 4.0] and episode["l"].tolist() == [4, 4]
        assert (episode["t"] > 0).all() and (episode["t"] < time.perf_counter() - began).all()


def test_statistics_of_envs_that_record_their_own():
    make = functools.partial(GivesInfos, {"episode": 1}, length=1)
    with contextlib.closing(VectorEnv([make], backend="serial", episode_statistics=True)) as envs:
        envs.reset(seed=0)
        with pytest.raises(ConfigError, match="have 'episode' already"):
            envs.step([0])


@pytest.mark.parametrize("infos", ["some", None, 3])
def test_unknown_info_mode_is_refused(infos):
    with pytest.raises(ConfigError, match="infos: expected one of"):
        VectorEnv([ToyEnv], backend="serial", infos=infos)
