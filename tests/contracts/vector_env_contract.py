"""What every backend of `VectorEnv` does, beside giving Gymnasium's results (tests/vector/test_equality.py)."""

from __future__ import annotations

import copy
import functools
import gc
import multiprocessing
import pickle
import weakref

import gymnasium
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import NormalizeObservation, RecordEpisodeStatistics

from tests.vector.comparison import assert_same
from vecenv import ClosedError, ConfigError, SpaceError, StateError, VectorEnv, WorkerTimeoutError
from vecenv.envs.toys import (
    CountEnv,
    HangAtReset,
    HangAtStep,
    RaiseAtReset,
    RaiseAtStep,
    RaiseWeirdError,
    SpaceEnv,
    ToyEnv,
    WeirdError,
)

DISABLED = AutoresetMode.DISABLED
STEPS = 0  # column of CountEnv's observation: steps in this episode


class Lamp(ToyEnv):
    """Has things to call, to read and to set."""

    brightness = 1

    def shine(self, factor, *, plus=0):
        return self.brightness * factor + plus

    def fail(self):
        raise ZeroDivisionError("no light")

    def render(self):
        return f"light {self.brightness}"


class Reluctant(CountEnv):
    """Raises from its next resets and steps, as often as it was told; does nothing then."""

    bad_resets = bad_steps = 0

    def reset(self, **kwargs):
        if self.bad_resets:
            self.bad_resets -= 1
            raise ValueError("no reset")
        return super().reset(**kwargs)

    def step(self, action):
        if self.bad_steps:
            self.bad_steps -= 1
            raise ValueError("no step")
        return super().step(action)


class VectorEnvContract:
    """Subclasses set `backend`; tests open envs by the fixture, which closes them."""

    backend: str

    @pytest.fixture
    def open_envs(self):
        opened = []

        def opener(env_fns, **kwargs):
            env_fns = env_fns if isinstance(env_fns, list) else [env_fns] * 3
            envs = VectorEnv(env_fns, backend=self.backend, **kwargs)
            opened.append(envs)
            return envs

        yield opener
        for envs in opened:
            envs.close()
        opened.clear()  # the memory is given back with the last view of it

    # ---- properties ------------------------------------------------------------------------

    def test_it_is_a_gymnasium_vector_env(self, open_envs):
        envs = open_envs(functools.partial(ToyEnv, render_mode="ansi"), num_workers=2)
        assert isinstance(envs, gymnasium.vector.VectorEnv)
        assert envs.unwrapped is envs and envs.spec is None and not envs.closed
        assert envs.num_envs == 3 and len(envs.env_fns) == 3
        assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        assert envs.render_mode == "ansi"
        assert envs.implementation in ("native", "python")
        where = "backend='serial'" if self.backend == "serial" else "num_workers=2, threads_per_worker=1"
        text = f"VectorEnv(ToyEnv, num_envs=3, {where}, implementation={envs.implementation!r}, closed=%s)"
        assert repr(envs) == text % False
        envs.close()
        assert repr(envs) == text % True

    def test_the_envs_metadata_is_left_alone(self, open_envs):
        own = type("Own", (ToyEnv,), {"metadata": {"render_modes": []}})
        open_envs(own)
        assert own.metadata == {"render_modes": []}

    def test_dtypes_and_shapes(self, open_envs):
        envs = open_envs(ToyEnv)
        envs.reset(seed=0)
        obs, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())
        assert obs.dtype == np.float32 and obs.shape == (3, 4)
        assert rewards.dtype == np.float64 and rewards.shape == (3,)
        assert terminations.dtype == truncations.dtype == np.bool_
        assert infos == {}

    @pytest.mark.parametrize("wrapper", [RecordEpisodeStatistics, NormalizeObservation])
    def test_gymnasium_s_wrappers_run_on_top(self, open_envs, wrapper):
        results = []
        for envs in (open_envs(ToyEnv), gymnasium.vector.SyncVectorEnv([ToyEnv] * 3)):
            wrapped = wrapper(envs)
            wrapped.reset(seed=4)
            results.append([wrapped.step(np.array([1, 0, 1])) for _ in range(25)])
            wrapped.close()
        for ours, theirs in zip(*results):
            for infos in (ours[4], theirs[4]):
                infos.get("episode", {}).pop("t", None)  # wall time
            assert_same(ours, theirs)

    # ---- arrays ----------------------------------------------------------------------------

    def test_copies_belong_to_the_caller(self, open_envs):
        envs = open_envs(functools.partial(CountEnv, length=None))
        kept = [envs.reset(seed=0)[0]]
        for _ in range(12):
            obs, rewards, terminations, truncations, _ = envs.step([0, 0, 0])
            kept.append(obs)
            for array in (obs, rewards, terminations, truncations):
                assert array.flags.writeable
        assert [obs[0, STEPS] for obs in kept] == list(range(13))
        assert not any(np.may_share_memory(one, other) for one in kept for other in kept if one is not other)

    def test_final_observations_belong_to_the_caller(self, open_envs):
        envs = open_envs([functools.partial(CountEnv, 1)] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
        envs.reset(seed=0)
        kept = [envs.step([0] * 2)[4]["final_obs"][1] for _ in range(8)]
        assert [obs[1] for obs in kept] == [*range(1, 9)]  # episodes

    def test_views_are_valid_until_depth_minus_one_later_batches(self, open_envs):
        envs = open_envs(functools.partial(CountEnv, length=None), copy=False, engine={"depth": 4})
        kept = [envs.reset(seed=0)[0]]
        for i in range(20):
            kept.append(envs.step([0, 0, 0])[0])
            assert [obs[0, STEPS] for obs in kept[-3:]] == list(range(i + 2))[-3:]

    def test_nested_copies(self, open_envs):
        space = Dict(a=Box(0, 1, (2,), np.float32), b=Tuple((Discrete(4), Discrete(5))))
        envs = open_envs(functools.partial(SpaceEnv, space))
        first, _ = envs.reset(seed=0)
        before = copy.deepcopy(first)
        for _ in range(10):
            envs.step([0, 0, 0])
        assert_same(first, before)

    # ---- asynchronous calls ------------------------------------------------------------------

    def test_step_async_and_reset_async(self, open_envs):
        envs = open_envs(CountEnv)
        envs.reset_async(seed=2)
        obs, _ = envs.reset_wait()
        envs.step_async([0, 1, 0])
        result = envs.step_wait(timeout=60.0)
        assert result[0][:, STEPS].tolist() == [1, 1, 1] and obs[:, STEPS].tolist() == [0, 0, 0]

    @pytest.mark.parametrize("pending", ["step", "reset", "call"])
    def test_two_calls_at_once(self, open_envs, pending):
        envs = open_envs(Lamp)
        envs.reset(seed=0)
        arguments = {"step": [[0] * 3], "reset": [], "call": ["shine", 2]}
        getattr(envs, f"{pending}_async")(*arguments[pending])
        for call in (
            lambda: envs.step([0] * 3),
            lambda: envs.step_async([0] * 3),
            lambda: envs.send([0] * 3),
            lambda: envs.recv(),
            lambda: envs.reset(),
            lambda: envs.reset_async(),
            lambda: envs.async_reset(),
            lambda: envs.call("shine", 2),
            lambda: envs.get_attr("brightness"),
            lambda: envs.set_attr("brightness", 3),
        ):
            with pytest.raises(AlreadyPendingCallError, match=f"{pending}_wait") as caught:
                call()
            assert caught.value.name == pending and isinstance(caught.value, StateError)
        assert len(getattr(envs, f"{pending}_wait")()) > 0
        envs.step([0] * 3)

    @pytest.mark.parametrize("name", ["step", "reset", "call"])
    def test_nothing_to_wait_for(self, open_envs, name):
        envs = open_envs(ToyEnv)
        with pytest.raises(NoAsyncCallError, match=f"{name}_async") as caught:
            getattr(envs, f"{name}_wait")()
        assert caught.value.name == name and isinstance(caught.value, StateError)

    # ---- send and recv -----------------------------------------------------------------------

    def test_send_and_recv(self, open_envs):
        envs = open_envs([functools.partial(CountEnv, length=None)] * 5)
        envs.reset(seed=0)
        envs.send([0] * 5)
        steps = np.zeros(5, int)
        for _ in range(30):
            obs, rewards, terminations, truncations, infos = envs.recv(2)
            env_ids = infos["env_id"]
            assert env_ids.dtype == np.int64 and len(set(env_ids)) == len(env_ids) >= 2
            assert len(obs) == len(rewards) == len(terminations) == len(truncations) == len(env_ids)
            steps[env_ids] += 1
            assert obs[:, STEPS].tolist() == steps[env_ids].tolist()
            envs.send(np.zeros(len(env_ids), np.int64), env_ids)
        left = 5
        while left:
            left -= len(envs.recv()[4]["env_id"])

    def test_recv_of_all(self, open_envs):
        envs = open_envs(CountEnv)
        envs.reset(seed=0)
        envs.send([0, 0, 0])
        assert sorted(envs.recv()[4]["env_id"]) == [0, 1, 2]
        with pytest.raises(StateError, match="recv"):
            envs.recv()

    def test_waiting_for_more_than_is_under_way_is_no_pending_call(self, open_envs):
        envs = open_envs(CountEnv)
        envs.reset(seed=0)
        envs.send([0], [1])
        with pytest.raises(StateError) as caught:
            envs.recv(2)
        assert not isinstance(caught.value, AlreadyPendingCallError)
        assert envs.recv(1)[4]["env_id"].tolist() == [1]

    def test_infos_of_some_envs(self, open_envs):
        envs = open_envs([functools.partial(CountEnv, length=None)] * 4)
        envs.reset(seed=10)
        envs.step([0] * 4)
        envs.send([0, 0], [3, 1])
        infos = envs.recv()[4]
        order = np.argsort(infos["env_id"])
        assert infos["env_id"][order].tolist() == [1, 3]
        assert infos["seed"][order].tolist() == [11, 13] and infos["steps"].tolist() == [2, 2]
        assert infos["_seed"].tolist() == [True, True]

    def test_async_reset(self, open_envs):
        envs = open_envs([CountEnv] * 4)
        envs.async_reset(seed=7)
        infos = envs.recv()[4]
        assert infos["seed"].tolist() == (7 + infos["env_id"]).tolist()
        envs.async_reset([2, 0], seed=[20, None, 22, None])
        obs, rewards, terminations, _, infos = envs.recv()
        assert sorted(infos["env_id"]) == [0, 2] and not rewards.any() and not terminations.any()
        assert envs.seeds == (20, 8, 22, 10)

    def test_step_of_some_envs(self, open_envs):
        envs = open_envs([functools.partial(CountEnv, length=None)] * 4)
        envs.reset(seed=10)
        obs, _, _, _, infos = envs.step([0, 0], env_id=np.array([3, 0]))
        assert infos["env_id"].tolist() == [3, 0] and infos["seed"].tolist() == [13, 10]
        assert obs[:, STEPS].tolist() == [1, 1]
        envs.send([0, 0], [1, 2])
        assert len(envs.step([0], env_id=[3])[4]["env_id"]) == 1
        envs.recv(2)
        assert envs.step([0], 2)[4]["env_id"].tolist() == [2]
        with pytest.raises(StateError, match="no env owes an answer; send actions or reset first"):
            envs.recv()

    def test_the_ids_of_a_batch_belong_to_the_caller(self, open_envs):
        envs = open_envs([functools.partial(CountEnv, None)] * 2)
        envs.reset(seed=0)
        kept = envs.step([0, 0], [1, 0])[4]["env_id"]
        for _ in range(8):
            envs.step([0, 0], [0, 1])
        assert kept.tolist() == [1, 0]

    @pytest.mark.parametrize(
        "env_id, says",
        [
            ([9], "env_id 9 is not in 0..1"),
            (-1, "env_id -1 is not in 0..1"),
            ([0.5], r"expected an int or a non-empty list of them, got \[0.5\]"),
            ([], r"expected an int or a non-empty list of them, got \[\]"),
            ([True, False], "expected an int or a non-empty list"),
        ],
    )
    def test_no_such_env_to_reset(self, open_envs, env_id, says):
        envs = open_envs([CountEnv] * 2)
        with pytest.raises(ConfigError, match=says):
            envs.async_reset(env_id)
        envs.async_reset(1)
        assert envs.recv()[4]["env_id"].tolist() == [1]

    def test_the_loop_of_envpool(self, open_envs):
        envs = open_envs([functools.partial(CountEnv, 4)] * 6, batch_size=4)
        envs.async_reset()
        num_rows = np.zeros(6, int)
        for _ in range(50):
            obs, rewards, terminations, truncations, infos = envs.recv()
            env_ids = infos["env_id"]
            assert len(env_ids) == len(obs) == len(rewards) == len(infos["steps"]) == 4
            assert len(set(env_ids.tolist())) == 4
            assert obs[:, STEPS].tolist() == (num_rows[env_ids] % 5).tolist()
            assert terminations.tolist() == (num_rows[env_ids] % 5 == 4).tolist()
            num_rows[env_ids] += 1
            envs.send(np.zeros(4, np.int64), env_ids)
        assert num_rows.sum() == 200 and num_rows.min() > 0
        with pytest.raises(ConfigError, match="batch_size: expected"):
            open_envs([CountEnv] * 2, batch_size=3)

    def test_the_synchronous_loop_of_envpool(self, open_envs):
        envs = open_envs([functools.partial(CountEnv, None)] * 4, batch_size=4)
        obs, infos = envs.reset(seed=0)
        env_ids = np.arange(4)
        for i in range(5):
            obs, rewards, terminations, truncations, infos = envs.step(np.zeros(4, np.int64), env_ids)
            env_ids = infos["env_id"]
            assert env_ids.tolist() == [0, 1, 2, 3] and obs[:, STEPS].tolist() == [i + 1] * 4

    def test_step_while_envs_are_under_way(self, open_envs):
        envs = open_envs(CountEnv)
        envs.reset(seed=0)
        envs.send([0], [1])
        for call in (lambda: envs.step([0] * 3), lambda: envs.step_async([0] * 3), lambda: envs.send([0], [1])):
            with pytest.raises(AlreadyPendingCallError):
                call()
        assert envs.recv()[4]["env_id"].tolist() == [1]
        envs.step([0] * 3)

    def test_a_reset_gives_up_what_is_under_way(self, open_envs):
        envs = open_envs(CountEnv)
        envs.reset(seed=0)
        envs.send([0] * 3)
        obs, _ = envs.reset(seed=5)
        assert obs[:, STEPS].tolist() == [0, 0, 0]
        assert envs.step([0] * 3)[0][:, STEPS].tolist() == [1, 1, 1]

    # ---- resets -------------------------------------------------------------------------------

    def test_reset_mask(self, open_envs):
        envs = open_envs([functools.partial(CountEnv, length) for length in (2, 3, 5)], autoreset_mode=DISABLED)
        envs.reset(seed=0)
        envs.step([0] * 3)
        obs, _, terminations, truncations, _ = envs.step([0] * 3)
        assert terminations.tolist() == [True, False, False]
        with pytest.raises(StateError, match=r"envs \[0\] are over"):
            envs.step([0] * 3)
        with pytest.raises(AssertionError):
            envs.send([0], [0])
        options = {"reset_mask": terminations | truncations}
        again, infos = envs.reset(options=options)
        assert "reset_mask" in options
        assert again[:, STEPS].tolist() == [0, 2, 2]
        assert_same(again[1:], obs[1:])
        assert infos["_steps"].tolist() == [True, False, False] and infos["episode"].tolist() == [2, 0, 0]
        assert envs.step([0] * 3)[0][:, STEPS].tolist() == [1, 3, 3]

    def test_masked_resets_one_after_another(self, open_envs):
        envs = open_envs([CountEnv] * 3, autoreset_mode=DISABLED, copy=False, engine={"depth": 2})
        envs.reset(seed=0)
        envs.step([0] * 3)
        for env_id in range(3):
            mask = np.arange(3) == env_id
            obs, _ = envs.reset(options={"reset_mask": mask})
            assert obs[:, STEPS].tolist() == [0] * (env_id + 1) + [1] * (2 - env_id)

    def test_masks_that_are_none(self, open_envs):
        envs = open_envs(ToyEnv, autoreset_mode=DISABLED)
        with pytest.raises(StateError, match="reset all envs"):
            envs.reset(options={"reset_mask": np.array([True, False, False])})
        envs.reset(seed=0, options={"reset_mask": np.array([True] * 3)})
        for mask, error in (
            ([True, True, True], TypeError),
            (np.array([1, 0, 0]), TypeError),
            (np.array([True, False]), ValueError),
            (np.array([False] * 3), ValueError),
        ):
            with pytest.raises(error, match="reset_mask"):
                envs.reset(options={"reset_mask": mask})

    def test_an_unseeded_reset_can_be_repeated(self, open_envs):
        envs = open_envs(ToyEnv)
        assert envs.seeds == (None, None, None)
        first, _ = envs.reset()
        assert list(envs.seeds) == [envs.seeds[0] + i for i in range(3)]
        seeds = envs.seeds
        second, _ = envs.reset()
        assert envs.seeds == seeds  # the generators were not seeded again
        assert not np.array_equal(first, second)
        again, _ = envs.reset(seed=seeds[0])
        assert_same(again, first)

    def test_unseeded_resets_differ(self, open_envs):
        state = np.random.get_state()[1].copy()
        observations = [open_envs(ToyEnv).reset()[0] for _ in range(2)]
        assert not np.array_equal(*observations)
        assert np.array_equal(np.random.get_state()[1], state)

    @pytest.mark.parametrize("seed", [[1, 2], [1, 2, 3, 4]])
    def test_wrong_number_of_seeds(self, open_envs, seed):
        with pytest.raises(ValueError, match="expected 3 seeds, one per env"):
            open_envs(ToyEnv).reset(seed=seed)

    def test_the_generators(self, open_envs):
        envs = open_envs(ToyEnv)
        envs.reset(seed=3)
        assert envs.np_random_seed == (3, 4, 5)
        assert all(isinstance(generator, np.random.Generator) for generator in envs.np_random)

    # ---- calls --------------------------------------------------------------------------------

    def test_call_get_and_set(self, open_envs):
        envs = open_envs(Lamp)
        assert envs.call("shine", 3, plus=1) == (4, 4, 4)
        assert envs.get_attr("brightness") == (1, 1, 1)
        envs.set_attr("brightness", [1, 2, 3])
        assert envs.get_attr("brightness") == (1, 2, 3)
        envs.set_attr("brightness", (4, 5, 6))
        assert envs.get_attr("brightness") == (4, 5, 6)
        envs.set_attr("brightness", 7)
        assert envs.call("brightness") == (7, 7, 7)
        assert envs.render() == ("light 7",) * 3
        with pytest.raises(ValueError, match="expected 3 values"):
            envs.set_attr("brightness", [1])
        envs.call_async("shine", 2)
        assert envs.call_wait(timeout=60.0) == (14, 14, 14)

    def test_calls_that_fail(self, open_envs):
        envs = open_envs(Lamp)
        with pytest.raises(ZeroDivisionError, match="no light"):
            envs.call("fail")
        with pytest.raises(AttributeError, match="no_such"):
            envs.get_attr("no_such")
        for name in ("step", "reset", "close"):
            with pytest.raises(ValueError, match=f"envs.{name}"):
                envs.call(name)
        envs.call_async("fail")
        with pytest.raises(ZeroDivisionError, match="no light"):
            envs.call_wait()
        assert envs.call("shine", 1) == (1, 1, 1)

    # ---- failures -----------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "fault, error", [(RaiseAtStep, ZeroDivisionError), (RaiseWeirdError, WeirdError)], ids=["plain", "weird"]
    )
    @pytest.mark.parametrize("how", ["step", "async", "recv"])
    def test_an_env_that_raises(self, open_envs, fault, error, how, tmp_path):
        envs = open_envs([CountEnv, functools.partial(fault, once=tmp_path / "done"), CountEnv])
        envs.reset(seed=0)
        with pytest.raises(error) as caught:
            if how == "step":
                envs.step([0] * 3)
            elif how == "async":
                envs.step_async([0] * 3)
                envs.step_wait()
            else:
                envs.send([0] * 3)
                envs.recv()
        assert "Traceback" in str(caught.value.__cause__)
        obs, _ = envs.reset(seed=1)
        assert obs[0, STEPS] == 0
        envs.step([0] * 3)

    def test_an_env_that_raises_at_reset(self, open_envs, tmp_path):
        envs = open_envs([CountEnv, functools.partial(RaiseAtReset, once=tmp_path / "done")])
        with pytest.raises(ValueError):
            envs.reset(seed=0)
        envs.reset(seed=0)
        envs.step([0, 0])

    def test_an_env_that_raises_is_reset_alone(self, open_envs, tmp_path):
        envs = open_envs([CountEnv, functools.partial(RaiseAtStep, once=tmp_path / "done")], autoreset_mode=DISABLED)
        envs.reset(seed=0)
        with pytest.raises(ZeroDivisionError):
            envs.step([0, 0])
        obs, _ = envs.reset(options={"reset_mask": np.array([False, True])})
        assert obs[0, STEPS] == 1

    def test_an_end_beside_an_env_that_raises_is_not_forgotten(self, open_envs, tmp_path):
        env_fns = [functools.partial(CountEnv, 1), functools.partial(RaiseAtStep, once=tmp_path / "done")]
        envs = open_envs(env_fns, autoreset_mode=DISABLED)
        envs.reset(seed=0)
        with pytest.raises(ZeroDivisionError):
            envs.step([0, 0])
        with pytest.raises(StateError, match=r"envs \[0\] are over"):
            envs.step([0, 0])

    @pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)
    @pytest.mark.parametrize("copy", [True, False], ids=["copy", "views"])
    def test_an_env_that_raises_has_shown_what_it_did_before(self, open_envs, mode, copy):
        envs = open_envs([functools.partial(Reluctant, None)] * 3, autoreset_mode=mode, copy=copy, engine={"depth": 2})
        envs.reset(seed=0)
        for _ in range(4):
            shown = envs.step([0] * 3)[0].copy()
        envs.set_attr("bad_steps", [0, 2, 0])
        for steps in (5, 6):
            with pytest.raises(ValueError, match="no step"):
                envs.step([0] * 3)
            assert envs.observations[:, STEPS].tolist() == [steps, 4, steps]
            assert_same(envs.observations[1], shown[1])
        obs, _ = envs.reset(options={"reset_mask": np.array([True, False, False])})
        assert obs[:, STEPS].tolist() == [0, 4, 6]
        assert envs.step([0] * 3)[0][:, STEPS].tolist() == [1, 5, 7]

    def test_a_reset_of_some_that_raised_is_no_batch_of_all(self, open_envs):
        envs = open_envs([functools.partial(Reluctant, None)] * 3, autoreset_mode=DISABLED)
        envs.reset(seed=0)
        envs.step([0] * 3)
        envs.set_attr("bad_resets", [0, 1, 0])
        with pytest.raises(ValueError, match="no reset"):
            envs.reset(options={"reset_mask": np.array([False, True, True])})
        assert envs.observations[:, STEPS].tolist() == [1, 1, 0]
        obs, infos = envs.reset(options={"reset_mask": np.array([True, True, False])})
        assert obs[:, STEPS].tolist() == [0, 0, 0] and infos["_steps"].tolist() == [True, True, False]

    def test_rows_that_raised_in_the_order_they_finish_are_of_no_reset(self, open_envs):
        envs = open_envs([functools.partial(Reluctant, None)] * 3)
        envs.reset(seed=0)
        envs.set_attr("bad_steps", [0, 1, 0])
        envs.send([0] * 3)
        with pytest.raises(ValueError, match="no step"):
            envs.recv()
        assert envs.observations is None
        with pytest.raises(StateError, match="reset all envs"):
            envs.reset(options={"reset_mask": np.array([False, True, False])})

    def test_a_first_reset_that_raised_is_made_up_for_by_one_of_those_envs(self, open_envs):
        envs = open_envs([functools.partial(Reluctant, None)] * 3)
        envs.set_attr("bad_resets", [0, 2, 0])
        for mask in (None, np.array([False, True, True])):
            with pytest.raises(ValueError, match="no reset"):
                envs.reset(seed=0, options=None if mask is None else {"reset_mask": mask})
            assert envs.observations is None
            with pytest.raises(StateError, match="failed before their first one"):
                envs.reset(options={"reset_mask": np.array([True, False, False])})
        obs, _ = envs.reset(seed=0, options={"reset_mask": np.array([False, True, False])})
        assert obs[:, 2].tolist() == [0, 1, 2]  # the seeds
        assert_same(envs.observations, obs)

    def test_an_episode_whose_reset_raised_is_still_over(self, open_envs):
        envs = open_envs([functools.partial(Reluctant, 1)] * 2, autoreset_mode=DISABLED)
        envs.reset(seed=0)
        envs.step([0] * 2)
        envs.set_attr("bad_resets", [1, 0])
        with pytest.raises(ValueError, match="no reset"):
            envs.reset()
        with pytest.raises(StateError, match=r"envs \[0\] are over"):
            envs.step([0] * 2)
        envs.reset(options={"reset_mask": np.array([True, False])})
        assert envs.step([0] * 2)[2].all()

    def test_a_single_env_is_stepped_by_its_id_after_an_end(self, open_envs):
        envs = open_envs([functools.partial(CountEnv, length) for length in (1, 5)], autoreset_mode=DISABLED)
        envs.reset(seed=0)
        envs.step([0] * 2)
        envs.send([0], 1)
        assert envs.recv()[0][0, STEPS] == 2
        with pytest.raises(StateError, match=r"envs \[0\] are over"):
            envs.send([0], 0)

    def test_limits(self, open_envs):
        envs = open_envs([CountEnv, HangAtStep], failures="raise", timeouts={"step": 1.0, "close": 0.1})
        envs.reset(seed=0)
        with pytest.raises(WorkerTimeoutError, match=r"step .* of env 1|env 1 .*step") as caught:
            envs.step([0, 0])
        assert isinstance(caught.value, multiprocessing.TimeoutError) and caught.value.env_ids == (1,)

    def test_limits_of_resets(self, open_envs):
        envs = open_envs([CountEnv, HangAtReset], failures="raise", timeouts={"reset": 0.1, "close": 0.1})
        with pytest.raises(multiprocessing.TimeoutError):
            envs.reset(seed=0)

    # ---- bad input ------------------------------------------------------------------------------

    def test_actions_that_do_not_fit(self, open_envs):
        envs = open_envs(functools.partial(SpaceEnv, None, Dict(go=Box(-1, 1, (2,), np.float32), press=Discrete(3))))
        envs.reset(seed=0)
        good = envs.action_space.sample()
        for bad, text in (
            ({**good, "press": good["press"][:2]}, r"action/press: expected int64 \(3,\), got int64 \(2,\)"),
            ({**good, "go": np.zeros((3, 3), np.float32)}, r"action/go: expected float32 \(3, 2\)"),
            ({**good, "go": np.array([["a", "b"]] * 3)}, "action/go"),
            ({"go": good["go"]}, "action: expected a dict with keys"),
            (3, "action: expected a dict"),
        ):
            for step in (envs.step, envs.step_async, envs.send):
                with pytest.raises(SpaceError, match=text):
                    step(bad)
        envs.step(good)

    @pytest.mark.parametrize("count", [0, 2, 4])
    def test_wrong_number_of_actions(self, open_envs, count):
        envs = open_envs(ToyEnv)
        envs.reset(seed=0)
        with pytest.raises(ValueError, match=rf"action: expected int64 \(3,\), got \w+ \({count},\)"):
            envs.step([0] * count)
        envs.step((0, 1, 0))

    def test_one_warning_for_actions_of_another_dtype(self, open_envs):
        envs = open_envs(functools.partial(SpaceEnv, None, Box(-1, 1, (2,), np.float32)))
        envs.reset(seed=0)
        with pytest.warns(UserWarning, match="action: float64 is pickled each time"):
            envs.step(np.zeros((3, 2)))
        envs.step(np.zeros((3, 2)))
        strict = open_envs(functools.partial(SpaceEnv, None, Box(-1, 1, (2,), np.float32)), checks="strict")
        strict.reset(seed=0)
        with pytest.raises(SpaceError, match="action: expected float32"):
            strict.step(np.zeros((3, 2)))

    @pytest.mark.parametrize("env_ids", [[], [3], [-1], [0, 0], [0.5], [[0]], "all"])
    def test_bad_env_ids(self, open_envs, env_ids):
        envs = open_envs(ToyEnv)
        envs.reset(seed=0)
        with pytest.raises((ConfigError, StateError, SpaceError)):
            envs.send(np.zeros(len(env_ids), np.int64), env_ids)
        envs.step([0] * 3)

    @pytest.mark.parametrize(
        "kwargs, text",
        [
            ({"autoreset_mode": "Sometimes"}, "autoreset_mode: expected one of"),
            ({"observation_mode": "mixed"}, "Invalid `observation_mode`, expected"),
            ({"num_workers": 0}, "num_workers"),
            ({"max_concurrency": True}, "max_concurrency: expected a whole number"),
            ({"batch_size": True}, "batch_size: expected a whole number"),
            ({"threads_per_worker": 0}, "threads_per_worker"),
            ({"engine": {"build": "threads"}}, "build: expected one of"),
            ({"engine": {"depth": 1}}, "depth"),
            ({"timeouts": {"step": -1.0}}, "step: expected seconds"),
            ({"worker": print}, "worker"),
        ],
    )
    def test_bad_options(self, open_envs, kwargs, text):
        with pytest.raises(ConfigError, match=text):
            open_envs(ToyEnv, **kwargs)

    def test_bad_env_fns(self, open_envs):
        for env_fns, text in (
            ([], "empty"),
            ([ToyEnv, 3], r"env_fns\[1\]: expected a function that builds an env, got 3"),
        ):
            with pytest.raises(ValueError, match=text):
                open_envs(env_fns)

    def test_spaces_that_differ(self, open_envs):
        def make(high):
            return SpaceEnv(Box(0, high, (2,), np.float32))

        with pytest.raises(RuntimeError, match="env 2: observation_space") as caught:
            open_envs([functools.partial(make, 1), functools.partial(make, 1), functools.partial(make, 2)])
        assert isinstance(caught.value, SpaceError) and caught.value.path == "observation_space"
        with pytest.raises(RuntimeError, match="action_space"):
            open_envs([functools.partial(ToyEnv, num_actions=count) for count in (2, 3)])
        envs = [functools.partial(SpaceEnv, Box(0, 1, (size,), np.float32)) for size in (2, 3)]
        says = r"^env 1: observation_space: shape is \(3,\), that of env 0 is \(2,\)$"
        with pytest.raises(RuntimeError, match=says):
            open_envs(envs, observation_mode="different")

    # ---- end ------------------------------------------------------------------------------------

    def test_use_after_close(self, open_envs):
        envs = open_envs(Lamp)
        envs.reset(seed=0)
        envs.close()
        envs.close()
        assert envs.closed
        for call in (
            lambda: envs.step([0] * 3),
            lambda: envs.step_async([0] * 3),
            lambda: envs.step_wait(),
            lambda: envs.send([0] * 3),
            lambda: envs.recv(),
            lambda: envs.reset(),
            lambda: envs.reset_wait(),
            lambda: envs.async_reset(),
            lambda: envs.call("shine", 2),
            lambda: envs.call_wait(),
            lambda: envs.set_attr("brightness", 2),
            lambda: envs.render(),
        ):
            with pytest.raises(ClosedEnvironmentError, match="closed") as caught:
                call()
            assert isinstance(caught.value, ClosedError)

    def test_arrays_outlive_the_envs(self, open_envs):
        envs = open_envs(CountEnv, copy=False)
        obs, _ = envs.reset(seed=0)
        envs.close()
        assert obs[:, STEPS].tolist() == [0, 0, 0]

    def test_the_arguments_of_gymnasium_s_close(self, open_envs):
        open_envs(ToyEnv).close(timeout=1.0, terminate=True)

    def test_forgotten_envs_are_closed(self):
        envs = VectorEnv([ToyEnv], backend=self.backend)
        envs.reset(seed=0)
        reference = weakref.ref(envs)
        del envs
        gc.collect()
        assert reference() is None

    def test_no_copies_of_a_vector_env(self, open_envs):
        envs = open_envs(ToyEnv)
        for duplicate in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match="cannot be pickled or copied"):
                duplicate(envs)
