"""BatchedVectorEnv: vector envs in workers give the same results as one vector env of all their envs."""

from __future__ import annotations

import contextlib
import copy
import functools
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.spaces import ALL_SPACES
from tests.vector.comparison import assert_same
from vecenv import BatchedVectorEnv, ConfigError, SpaceError, StateError, VectorEnv, WorkerTimeoutError
from vecenv.envs.batched import BatchedEnv
from vecenv.envs.toys import CountEnv, HangAtStep, RaiseAtStep, SpaceEnv, ToyEnv
from vecenv.vector.batched_data import join_infos

MODES = [pytest.param(mode, id=mode.value) for mode in AutoresetMode]
BACKENDS = ["serial", "process"]
CARTPOLES = functools.partial(CartPoleVectorEnv, 4, max_episode_steps=9)


def batches(env_fns, size, **kwargs):
    """Return constructors of SyncVectorEnvs with `size` of these envs each."""
    return [functools.partial(SyncVectorEnv, env_fns[i : i + size], **kwargs) for i in range(0, len(env_fns), size)]


def compare(env_fns, size, mode, *, backend="serial", num_steps=14, seed: Any = 5, options=None, **kwargs):
    """Step both with the same actions from the same seeds and compare every result."""
    with (
        contextlib.closing(SyncVectorEnv(env_fns, autoreset_mode=mode)) as theirs,
        contextlib.closing(
            BatchedVectorEnv(batches(env_fns, size, autoreset_mode=mode), backend=backend, **kwargs)
        ) as ours,
    ):
        assert ours.num_envs == theirs.num_envs
        for name in ("observation_space", "action_space", "single_observation_space", "single_action_space"):
            assert getattr(ours, name) == getattr(theirs, name)
        assert ours.metadata == theirs.metadata
        actions = copy.deepcopy(ours.action_space)
        actions.seed(3)
        results = [envs.reset(seed=seed, options=copy.copy(options)) for envs in (ours, theirs)]
        assert_same(*results, "reset")
        for i in range(num_steps):
            action = actions.sample()
            result = ours.step(action)
            assert_same(result, theirs.step(action), f"step {i}")
            ended = result[2] | result[3]
            if mode == AutoresetMode.DISABLED and ended.any():
                resets = [envs.reset(options={"reset_mask": ended, "level": 1}) for envs in (ours, theirs)]
                assert_same(*resets, f"reset after step {i}")


class InfoEnv(ToyEnv):
    """Gives infos of every type; their keys differ from step to step and from env to env."""

    def make_info(self):
        draw = int(self.np_random.integers(4))
        info: dict[str, Any] = {"steps": self.elapsed_steps, "half": self.elapsed_steps / 2}
        if draw & 1:
            info.update(small=np.float32(draw), name=f"env {draw}", array=np.full((2, 2), draw), flag=draw > 1)
        if draw & 2:
            info["nested"] = {"draw": draw, "deep": {"text": "x" * draw}}
        return info if draw else {}


class Echo(SpaceEnv):
    """Observes its last action, so that the test can check which action each env received."""

    action: Any = None

    def step(self, action):
        self.action = action
        return super().step(action)

    def observe(self):
        return super().observe() if self.action is None else self.action


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ALL_SPACES)
def test_spaces_as_observation_and_action(name, mode):
    space = ALL_SPACES[name]
    envs = [functools.partial(Echo, space, space, length=length) for length in (3, 4, 5, 3, 4, 5)]
    compare(envs, 2, mode, num_steps=9)


NESTED = Tuple((Discrete(5, start=-2), Dict(a=Box(0, 255, (2, 3), np.uint8), b=MultiBinary(3)), ALL_SPACES["text"]))


@pytest.mark.extended
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("copy", [True, False], ids=["copy", "views"])
def test_nested_spaces_through_processes(mode, copy):
    envs = [functools.partial(SpaceEnv, NESTED, NESTED, length=length) for length in (3, 4, 5, 6)]
    compare(envs, 2, mode, backend="process", copy=copy, num_workers=2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("env_class", [InfoEnv, CountEnv], ids=lambda cls: cls.__name__)
def test_infos_and_env_counts(env_class, backend, mode):
    envs = [functools.partial(env_class, length=length) for length in (3, 5, 4, 7, 3, 6)]
    compare(envs, 3, mode, backend=backend, num_steps=40)


@pytest.mark.parametrize("size, num_workers", [(1, 2), (2, 3), (6, 1)])
def test_batches_of_any_size_and_worker_count(size, num_workers):
    envs = [functools.partial(CountEnv, length) for length in (3, 4, 5, 6, 7, 8)]
    compare(envs, size, AutoresetMode.NEXT_STEP, backend="process", num_workers=num_workers)


class HasGenerator(ToyEnv):
    """Has its generator from the start, so an unseeded reset is not random."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.np_random = np.random.default_rng(8)


@pytest.mark.parametrize("seed", [0, np.int64(3), [4, None, 9, 1], [None] * 4], ids=["int", "numpy", "list", "nones"])
def test_seeds_of_batches(seed):
    seed = int(seed) if isinstance(seed, np.integer) else seed
    compare([functools.partial(HasGenerator, length=4)] * 4, 2, AutoresetMode.NEXT_STEP, backend="process", seed=seed)


@pytest.mark.parametrize("seed", [1.5, "12", [1, 2.5]])
@pytest.mark.parametrize(
    "make", [lambda: VectorEnv([CountEnv] * 2), lambda: BatchedVectorEnv(batches([CountEnv] * 2, 1))]
)
def test_seeds_must_be_integers(make, seed):
    with contextlib.closing(make()) as envs, pytest.raises(TypeError, match="int"):
        envs.reset(seed=seed)


class GivesOptions(ToyEnv):
    """Has the options of its reset in the info."""

    def reset(self, *, seed=None, options=None):
        obs, _ = super().reset(seed=seed)
        return obs, {"given": repr(options)}


def test_options_reach_the_envs():
    compare([GivesOptions] * 4, 2, AutoresetMode.NEXT_STEP, options={"level": 3})
    options = {"reset_mask": np.array([True] * 4), "level": 4}
    env_fns = [functools.partial(GivesOptions, length) for length in (3, 2, 3, 3)]  # some masks are partial then
    compare(env_fns, 2, AutoresetMode.DISABLED, options=options)


@pytest.mark.parametrize("backend", BACKENDS)
def test_vectorised_cartpole_equals_gymnasium(backend):
    """Batch w gets `seed + w * k`; its arrays are in Fortran order, and its rewards are float32."""
    references = [CARTPOLES() for _ in range(2)]
    with contextlib.closing(BatchedVectorEnv([CARTPOLES] * 2, backend=backend)) as envs:
        assert envs.num_envs == 8 and envs.batch_size == 4
        assert envs.metadata["autoreset_mode"] is envs.autoreset_mode is AutoresetMode.NEXT_STEP
        obs, infos = envs.reset(seed=7)
        assert_same(obs, np.concatenate([one.reset(seed=7 + 4 * i)[0] for i, one in enumerate(references)]))
        assert infos == {}
        actions = envs.action_space
        actions.seed(1)
        for _ in range(30):
            action = actions.sample()
            results = [one.step(part) for one, part in zip(references, action.reshape(2, 4))]
            expected = [np.concatenate(parts) for parts in zip(*(result[:4] for result in results))]
            expected[1] = expected[1].astype(np.float64)
            assert_same(envs.step(action), (*expected, {}))


@pytest.mark.extended
def test_results_are_owned_by_the_caller_unless_copy_is_off():
    with contextlib.closing(BatchedVectorEnv([CARTPOLES] * 2)) as envs:
        envs.reset(seed=1)
        results = [envs.step(np.zeros(8, np.int64)) for _ in range(8)]
        for one in results:
            assert all(array.base is None for array in one[:4])
    with contextlib.closing(BatchedVectorEnv([CARTPOLES] * 2, copy=False)) as envs:
        envs.reset(seed=1)
        views = [envs.step(np.zeros(8, np.int64)) for _ in range(8)]
        assert_same(views[-1], results[-1])
        assert not any(array.flags.owndata for array in views[-1][:4])


def test_steps_are_counted_per_env():
    with contextlib.closing(BatchedVectorEnv([CARTPOLES] * 2, backend="serial")) as envs:
        envs.reset(seed=1)
        for _ in range(3):
            envs.step([0] * 8)
        assert envs.statistics()["steps"] == 3 * 8


@pytest.mark.extended
def test_tensors_of_a_simulator_are_converted():
    torch = pytest.importorskip("torch")

    class Simulator(CartPoleVectorEnv):
        def step(self, action):
            return *(torch.from_numpy(np.ascontiguousarray(part)) for part in super().step(action)[:4]), {}

    results = []
    for env_fn in (functools.partial(Simulator, 3), functools.partial(CartPoleVectorEnv, 3)):
        with contextlib.closing(BatchedVectorEnv([env_fn] * 2)) as envs:
            envs.reset(seed=1)
            results.append(envs.step(np.ones(6, np.int64)))
    assert_same(*results)


@pytest.mark.extended
def test_tensors_in_simulator_infos_are_converted():
    torch = pytest.importorskip("torch")

    class Simulator(CartPoleVectorEnv):
        def infos(self):
            return {
                "success": torch.arange(3) > 1,
                "_success": torch.tensor([True, False, True]),
                "episode": {"r": torch.arange(3, dtype=torch.float32)},
                "final_obs": torch.arange(6).reshape(3, 2),
                "mean": torch.tensor(0.5),
            }

        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed, options=options)[0], self.infos()

        def step(self, action):
            return *super().step(action)[:4], self.infos()

    expected = {
        "success": np.array([False, False, True] * 2),
        "_success": np.array([True, False, True] * 2),
        "episode": {"r": np.array([0, 1, 2] * 2, np.float32)},
        "final_obs": np.array([[0, 1], [2, 3], [4, 5]] * 2),
        "mean": np.full(6, 0.5, np.float32),
    }
    with contextlib.closing(BatchedVectorEnv([functools.partial(Simulator, 3)] * 2)) as envs:
        assert_same(envs.reset(seed=1)[1], expected)
        for _ in range(3):
            assert_same(envs.step(np.ones(6, np.int64))[4], expected)


def test_gymnasiums_vector_wrappers_work_on_top():
    env_fns = [functools.partial(ToyEnv, length) for length in (3, 4, 5, 6)]
    ours, theirs = BatchedVectorEnv(batches(env_fns, 2), backend="serial"), SyncVectorEnv(env_fns)
    results = []
    for envs in (ours, theirs):
        wrapped = gymnasium.wrappers.vector.NormalizeObservation(
            gymnasium.wrappers.vector.RecordEpisodeStatistics(envs)
        )
        with contextlib.closing(wrapped):
            steps = [wrapped.reset(seed=1), *(wrapped.step(np.zeros(4, np.int64)) for _ in range(12))]
        for step in steps:
            step[-1].get("episode", {}).pop("t", None)  # seconds
        results.append(steps)
    assert_same(*results)


# ---- calls -------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_calls_reach_every_env_or_every_batch(backend):
    env_fns = [functools.partial(CountEnv, length) for length in (3, 4, 5, 6)]
    with contextlib.closing(BatchedVectorEnv(batches(env_fns, 2), backend=backend)) as envs:
        assert envs.get_attr("length") == (3, 4, 5, 6)
        envs.set_attr("length", [7, 8, 9, 10])
        assert envs.call("length") == (7, 8, 9, 10)
        envs.set_attr("length", 2)
        assert envs.get_attr("length") == (2, 2, 2, 2)
        with pytest.raises(ConfigError, match="expected 4 values"):
            envs.set_attr("length", [1, 2])
        with pytest.raises(ConfigError, match="step"):
            envs.call("step", [0, 0])
        with pytest.raises(AttributeError):
            envs.get_attr("no_such_thing")
    with contextlib.closing(BatchedVectorEnv([CARTPOLES] * 2, backend=backend)) as envs:
        assert envs.get_attr("max_episode_steps") == (9, 9)
        envs.set_attr("gravity", 1.0)
        with pytest.raises(ConfigError, match="CartPoleVectorEnv has no set_attr of its own"):
            envs.set_attr("gravity", [1.0, 2.0] * (envs.num_envs // 2))
        assert envs.get_attr("gravity") == (1.0, 1.0)


def test_rendering_of_batches():
    class Drawing(ToyEnv):
        def render(self):
            return np.full((2, 2, 3), self.length)

    drawings = [functools.partial(Drawing, length, render_mode="rgb_array") for length in (3, 4, 5, 6)]
    with contextlib.closing(BatchedVectorEnv(batches(drawings, 2))) as envs:
        assert envs.render_mode == "rgb_array"
        assert [frame.max() for frame in envs.render()] == [3, 4, 5, 6]


# ---- mistakes, failures, end -------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_unhostable_envs_are_refused(backend):
    with pytest.raises(SpaceError, match=r"^env 1: observation_space/0: shape is \(5, 4\), that of env 0 is \(4, 4\)"):
        BatchedVectorEnv([CARTPOLES, functools.partial(CartPoleVectorEnv, 5)], backend=backend)
    with pytest.raises(TypeError, match="VectorEnv hosts single envs"):
        BatchedVectorEnv([ToyEnv], backend=backend)
    with pytest.raises(TypeError, match="BatchedVectorEnv"):
        VectorEnv([CARTPOLES], backend=backend)
    with pytest.raises(ConfigError, match="backend"):
        BatchedVectorEnv([CARTPOLES], backend="thread")
    with pytest.raises(ConfigError, match="recycle_after: episodes of batched envs are not counted"):
        BatchedVectorEnv([CARTPOLES], backend=backend, failures={"recycle_after": {"episodes": 1}})


def test_misfit_actions_are_refused():
    with contextlib.closing(BatchedVectorEnv([CARTPOLES] * 2, backend="serial")) as envs:
        envs.reset(seed=0)
        for actions in (np.zeros(7, np.int64), [0] * 9, 0, np.zeros(8), np.zeros((8, 2), np.int64)):
            with pytest.raises(SpaceError, match="action"):
                envs.step(actions)
        assert envs.step([0, 1] * 4)[0].shape == (8, 4)


def test_partial_reset_needs_the_last_observations_of_others():
    env_fns = [functools.partial(CountEnv, 3)] * 4
    with contextlib.closing(BatchedVectorEnv(batches(env_fns, 2, autoreset_mode="Disabled"))) as envs:
        mask = np.array([True, False, False, False])
        with pytest.raises(StateError, match="reset all envs first"):
            envs.reset(options={"reset_mask": mask})
        with pytest.raises(ConfigError, match="seeds"):
            envs.reset(seed=[1, 2])
        with pytest.raises(TypeError, match="bool"):
            envs.reset(options={"reset_mask": [True]})
        first, _ = envs.reset(seed=1)
        first[:] = 0  # the caller owns this array
        again, infos = envs.reset(options={"reset_mask": mask})
        assert again[2:].any()
        assert infos["_steps"].tolist() == mask.tolist()


@pytest.mark.extended
def test_calls_at_the_wrong_moment_are_refused():
    with contextlib.closing(BatchedVectorEnv([CARTPOLES] * 2)) as envs:
        with pytest.raises(NoAsyncCallError, match="reset_async first"):
            envs.reset_wait()
        envs.reset(seed=1)
        with pytest.raises(NoAsyncCallError, match="step_async first"):
            envs.step_wait()
        envs.step_async(np.zeros(8, np.int64))
        for call in (lambda: envs.step_async([0] * 8), envs.reset, envs.render, lambda: envs.call("gravity")):
            with pytest.raises(AlreadyPendingCallError, match="step_wait first"):
                call()
        assert envs.step_wait()[0].shape == (8, 4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_exception_of_an_env_keeps_its_type(backend):
    with contextlib.closing(BatchedVectorEnv(batches([RaiseAtStep] * 4, 2), backend=backend)) as envs:
        envs.reset()
        with pytest.raises(ZeroDivisionError):
            envs.step([0] * 4)


@pytest.mark.extended
def test_hanging_env_times_out_and_a_reset_abandons_it():
    env_fns = batches([HangAtStep] * 2, 1)
    limits = {"step": 0.2, "close": 0.2}
    with contextlib.closing(BatchedVectorEnv(env_fns, failures="raise", timeouts=limits)) as envs:
        envs.reset()
        with pytest.raises(WorkerTimeoutError, match="step"):
            envs.step([0] * 2)


def test_unseeded_first_reset_reports_its_seeds():
    with contextlib.closing(BatchedVectorEnv([CARTPOLES] * 2)) as envs:
        first = envs.reset()
        assert envs.seeds[1] == envs.seeds[0] + 4
        assert_same(envs.reset(seed=envs.seeds[0]), first)


def test_seeds_of_none_are_not_seeds():
    with contextlib.closing(BatchedVectorEnv([CARTPOLES] * 2, backend="serial")) as envs:
        first = envs.reset(seed=[None] * 8)  # these vector envs accept no lists of seeds
        assert envs.seeds[1] == envs.seeds[0] + 4
        known = envs.seeds
        assert (envs.reset(seed=[None] * 8)[0] != first[0]).any()
        assert envs.seeds == known
        assert_same(envs.reset(seed=known[0]), first)
        with pytest.raises(gymnasium.error.Error, match="integer"):
            envs.reset(seed=[None] * 4 + [1, 2, 3, 4])
        assert envs.reset()[0].shape == (8, 4)


def test_first_reset_draws_missing_seeds():
    with contextlib.closing(BatchedVectorEnv(batches([ToyEnv] * 6, 2), backend="serial")) as envs:
        seeds = [1, None, 3, 4, None, None]
        first = envs.reset(seed=seeds)
        (one, drawn), given, last = envs.seeds
        assert one == 1 and given == [3, 4] and last == drawn + 3
        assert envs.get_attr("np_random_seed") == (1, drawn, 3, 4, drawn + 3, drawn + 4)
        envs.reset(seed=[None, 7, None, None, None, 8])
        assert envs.seeds == ([1, 7], given, [last, 8])
        assert_same(envs.reset(seed=[1, drawn, 3, 4, drawn + 3, drawn + 4]), first)


def seeded_before(env_fn):
    envs = env_fn()
    envs.reset(seed=8)
    return envs


@pytest.mark.parametrize("seed", [None, [None] * 4], ids=["none", "nones"])
@pytest.mark.parametrize("env_fn", [CARTPOLES, batches([ToyEnv] * 4, 4)[0]], ids=["vectorised", "single"])
def test_vector_envs_keep_their_generators(env_fn, seed):
    with (
        contextlib.closing(BatchedVectorEnv([functools.partial(seeded_before, env_fn)])) as envs,
        contextlib.closing(seeded_before(env_fn)) as twin,
    ):
        assert_same(envs.reset(seed=seed), twin.reset())
        assert envs.seeds == (None,)


@pytest.mark.parametrize("keeper", [0, 1])
def test_vector_env_seeds_only_envs_without_generators(keeper):
    env_fns = [HasGenerator if i == keeper else ToyEnv for i in range(2)]
    with contextlib.closing(BatchedVectorEnv(batches(env_fns, 2), backend="serial")) as envs:
        envs.reset()
        ((seed,),) = ([one for one in seeds if one is not None] for seeds in envs.seeds)
        expected = [-1 if i == keeper else seed for i in range(2)]
        assert envs.get_attr("np_random_seed") == tuple(expected)
        assert envs.seeds[0][keeper] is None


def test_close_is_idempotent_and_later_calls_raise():
    envs = BatchedVectorEnv([CARTPOLES] * 2)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(envs)
    envs.reset()
    envs.close()
    envs.close()
    for call in (envs.reset, lambda: envs.step([0] * 8), envs.step_wait, lambda: envs.get_attr("gravity"), envs.render):
        with pytest.raises(ClosedEnvironmentError):
            call()


# ---- single parts ------------------------------------------------------------------------------------


def test_infos_that_are_not_arrays_are_repeated_for_each_env():
    infos = join_infos([{"load": 3, "name": "left"}, {"load": 0.5, "name": None}], 2)
    assert_same(infos, {"load": np.array([3, 3, 0.5, 0.5]), "name": np.array(["left", "left", None, None], object)})


def test_info_values_of_mixed_types_become_objects():
    assert join_infos([{"x": {"deep": 1}}, {"x": 3}], 2)["x"].tolist() == [{"deep": 1}] * 2 + [3] * 2
    assert join_infos([{"x": np.array(3)}, {"x": None}], 2)["x"].tolist() == [np.array(3)] * 2 + [None] * 2


def test_info_integers_of_mixed_dtypes():
    most, large, negative = np.array([2**64 - 1, 1], np.uint64), np.array([2**60 + 1, 2]), np.array([-1, 2])
    assert_same(join_infos([{"x": large}, {"x": most}], 2)["x"], np.concatenate([large.astype(np.uint64), most]))
    joined = join_infos([{"x": most}, {"x": negative}], 2)["x"]
    assert joined.dtype == object and joined.tolist() == [2**64 - 1, 1, -1, 2]


def test_info_keys_missing_in_some_batches_have_masks():
    infos = join_infos(
        [None, {"lives": np.array([3, 2])}, {"lives": np.array([1, 0]), "_lives": np.array([True, False])}], 2
    )
    assert_same(
        infos,
        {"lives": np.array([0, 0, 3, 2, 1, 0]), "_lives": np.array([False, False, True, True, True, False])},
    )


def test_info_dict_missing_in_some_batches_has_no_inner_masks():
    """The dict's own mask marks the missing envs, as it does in one vector env of all envs."""
    told = {"episode": {"r": np.array([2.0, 0.0])}, "_episode": np.array([True, False])}
    expected = {"episode": {"r": np.array([2.0, 0.0, 0.0, 0.0])}, "_episode": np.array([True, False, False, False])}
    assert_same(join_infos([told, None], 2), expected)
    assert_same(join_infos([told, {"lives": np.array([1, 1])}], 2)["episode"], expected["episode"])


def test_info_keys_that_are_not_strings():
    joined = join_infos([{0: np.array([1, 2]), "_0": np.array([True, True])}, None], 2)
    assert_same(joined, {0: np.array([1, 2, 0, 0]), "_0": np.array([True, True, False, False])})


class RaisesAtFour(CountEnv):
    """Raises if the action is 4."""

    def __init__(self):
        super().__init__(None)
        self.action_space = Discrete(5)

    def step(self, action):
        if action == 4:
            raise ValueError("four")
        return super().step(action % 2)


@pytest.mark.parametrize("num_failures", [1, 2, 5])
@pytest.mark.parametrize("copy", [True, False])
def test_reset_by_mask_keeps_last_delivered_rows_outside_the_mask(copy, num_failures):
    env_fns = batches([RaisesAtFour] * 4, 2, autoreset_mode=AutoresetMode.DISABLED)
    with contextlib.closing(BatchedVectorEnv(env_fns, copy=copy, backend="serial", checks="debug")) as envs:
        envs.reset(seed=1)
        shown = [envs.step(np.zeros(4, np.int64))[0].copy() for _ in range(2)][-1]
        for _ in range(num_failures):
            with pytest.raises(ValueError, match="four"):
                envs.step(np.array([0, 0, 4, 0]))
        first_half = np.arange(4) < 2
        assert envs.reset(options={"reset_mask": first_half})[0][2:].tolist() == shown[2:].tolist()


class RaisesAtReset(RaisesAtFour):
    """Raises at the next `bad_resets` resets."""

    bad_resets = 0

    def reset(self, **kwargs):
        if self.bad_resets:
            self.bad_resets -= 1
            raise ValueError("no reset")
        return super().reset(**kwargs)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_masked", [True, False], ids=["mask", "all"])
def test_reset_that_raises_in_one_batch_leaves_the_others(mode, is_masked):
    env_fns = batches([RaisesAtReset] * 6, 2, autoreset_mode=mode)
    with contextlib.closing(BatchedVectorEnv(env_fns, backend="serial")) as envs:
        envs.reset(seed=1)
        for _ in range(3):
            envs.step(np.zeros(6, np.int64))
        envs.set_attr("bad_resets", [0, 0, 1, 0, 0, 0])
        mask = np.array([not is_masked] * 2 + [True] * 4)
        with pytest.raises(ValueError, match="no reset"):
            envs.reset(options={"reset_mask": mask})
        obs, _ = envs.reset(options={"reset_mask": np.arange(6) // 2 == 1})
        assert obs[:, 0].tolist() == [3 if is_masked else 0] * 2 + [0] * 4
        assert envs.step(np.zeros(6, np.int64))[0][:, 0].tolist() == [4 if is_masked else 1] * 2 + [1] * 4


def test_partial_reset_keeps_pending_steps_of_other_batches():
    env_fns = batches([CountEnv, HangAtStep], 1)
    with contextlib.closing(BatchedVectorEnv(env_fns, num_workers=2, timeouts={"close": 0.1})) as envs:
        envs.reset(seed=1)
        envs.step_async([0, 0])
        with pytest.raises(WorkerTimeoutError):
            envs.step_wait(timeout=0.05)
        with pytest.raises(AlreadyPendingCallError, match=r"batches \[1\] still owe an answer"):
            envs.reset(options={"reset_mask": np.array([True, False])})
        with pytest.raises(AlreadyPendingCallError, match="still owes the answer to a step"):
            envs.step([0, 0])


def test_batches_of_different_autoreset_modes_are_refused():
    modes = (AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED)
    env_fns = [functools.partial(SyncVectorEnv, [CountEnv] * 2, autoreset_mode=mode) for mode in modes]
    with pytest.raises(ConfigError, match=r"env_fns\[1\]: its autoreset mode"):
        BatchedVectorEnv(env_fns, backend="serial")


@pytest.mark.extended
@pytest.mark.parametrize("how", [{"terminate": True}, {"timeout": 0}], ids=str)
def test_close_without_waiting_logs_nothing(how, caplog):
    for _ in range(5):
        envs = BatchedVectorEnv([CARTPOLES] * 2)
        envs.reset(seed=0)
        envs.close(**how)
    assert caplog.messages == []


def test_arrays_of_different_shapes_become_objects():
    infos = join_infos([{"x": np.zeros((2, 1))}, {"x": np.zeros((2, 3))}], 2)
    assert infos["x"].dtype == object
    assert [row.shape for row in infos["x"]] == [(1,), (1,), (3,), (3,)]


def test_batched_env_reset_and_step_fit_its_spaces():
    with contextlib.closing(BatchedEnv(CARTPOLES())) as env:
        obs, _ = env.reset(seed=3)
        assert env.observation_space.contains(obs)
        obs, rewards, terminated, truncated, _ = env.step(np.zeros(4, np.int64))
        assert env.observation_space.contains(obs) and rewards.shape == env.reward_space.shape
        assert terminated is False and truncated is False


@pytest.mark.parametrize("backend", BACKENDS)
def test_graph_observations_stay_graphs(backend, implementation):
    space = Graph(Box(-1, 1, (2,), np.float32), None)
    env_fns = [functools.partial(SpaceEnv, space)] * 4
    with contextlib.closing(BatchedVectorEnv(batches(env_fns, 2), backend=backend)) as envs:
        obs, _ = envs.reset(seed=1)
        assert obs in envs.observation_space
        obs = envs.step(np.zeros(4, np.int64))[0]
        assert obs in envs.observation_space and obs[3].nodes.shape[1] == 2


@pytest.mark.parametrize(("size", "expected"), [(1, (3, 4)), (2, (3, 4, 5, 6))])
def test_np_random_returns_the_envs_generators(size, expected):
    env_fns = [functools.partial(gymnasium.make, "CartPole-v1")] * len(expected)
    with contextlib.closing(BatchedVectorEnv(batches(env_fns, size), backend="serial")) as envs:
        envs.reset(seed=3)
        assert envs.np_random_seed == expected
        assert [one.bit_generator.state for one in envs.np_random] == [
            one.bit_generator.state for one in envs.get_attr("np_random")
        ]


def test_object_infos_of_several_axes_are_filled_like_gymnasium():
    own = np.array([["a", "b"], ["c", "d"]], object)
    joined = join_infos([{"x": own, "_x": np.ones(2, np.bool_)}, {}], 2)
    assert joined["x"].tolist() == [["a", "b"], ["c", "d"], [0, 0], [0, 0]]
    assert joined["_x"].tolist() == [True, True, False, False]
