"""ParallelAlfEnvironment gives the time steps of single environments in every layout."""

from __future__ import annotations

import copy
import functools
import pickle

import numpy as np
import pytest
from gymnasium import spaces

from tests.alf.comparison import VectorReward, alternating, assert_same, counting, covered, toy
from vecenv.alf import (
    AlfGymWrapper,
    BatchedTensorWrapper,
    BatchEnvironmentWrapper,
    BoundedTensorSpec,
    MultitaskWrapper,
    ParallelAlfEnvironment,
    RandomFirstEpisodeLength,
    TimeLimit,
    load,
)
from vecenv.alf.base.known_infos import KnownInfos
from vecenv.alf.wrappers.batch import stack
from vecenv.envs.seeding import episode_seed
from vecenv.envs.toys import CountEnv, SpaceEnv, ToyEnv
from vecenv.errors import ClosedError
from vecenv.values.nested import map_structure

LAYOUTS = {
    "serial": {"backend": "serial"},
    "one worker": {"num_workers": 1},
    "two workers": {"num_workers": 2},
    "own workers": {"num_workers": 3},
    "threads": {"num_workers": 1, "threads_per_worker": 3},
    "serial, ahead": {"backend": "serial", "reset_ahead": True},
    "ahead": {"num_workers": 2, "reset_ahead": True},
}


def limited(env_id=0):
    """Make an env whose episodes hit the time limit, or end at the same step by themselves."""
    return TimeLimit(AlfGymWrapper(ToyEnv(3 + env_id), env_id), 4)


def discounted(env_id=0):
    return AlfGymWrapper(ToyEnv(3 + env_id, truncate=env_id == 1), env_id, discount=0.9)


def of_two_parts(env_id=0):
    """Make an env whose actions are dicts."""
    actions = spaces.Dict(a=spaces.Discrete(3, start=1), b=spaces.Box(-1.0, 1.0, (2,), np.float32))
    return AlfGymWrapper(SpaceEnv(spaces.Box(0, 1, (2,), np.float32), actions, length=3 + env_id), env_id)


def batch_of_two(env_id=0):
    return BatchEnvironmentWrapper([counting(2 * env_id), counting(2 * env_id + 1)])


def shortened(env_id=0):
    return RandomFirstEpisodeLength(toy(env_id, length=8), 5, num_episodes=2)


def two_tasks(env_id=0):
    return MultitaskWrapper([toy(length=3), toy(length=4)], ["a", "b"], env_id)


KINDS = [
    toy,
    counting,
    alternating,
    limited,
    discounted,
    of_two_parts,
    covered,
    functools.partial(covered, make=alternating),
    VectorReward,
    shortened,
]


def parallel(make, count=3, **options):
    return ParallelAlfEnvironment([make] * count, tensors=False, **options)


def random_actions(spec, count, rng):
    return map_structure(lambda leaf: leaf.numpy_sample((count,), rng), spec)


def rows_of(nest, count):
    return [map_structure(lambda leaf, row=row: leaf[row], nest) for row in range(count)]


def expected(make, seeds, actions):
    """Step single environments in a loop; each starts its next episode itself."""
    envs = [make(env_id=env_id) for env_id in range(len(seeds))]
    for env, seed in zip(envs, seeds):
        env.seed(seed)
    steps = [stack([env.reset() for env in envs])]
    for action in actions:
        rows = rows_of(action, len(envs))
        steps.append(stack([env.step(row) for env, row in zip(envs, rows)]))
    known, env_ids = KnownInfos(), np.arange(len(envs), dtype=np.int32)
    return [step._replace(env_id=env_ids, env_info=known.complete(step.env_info)) for step in steps]


def without_infos(step):
    return step._replace(env_info={})


@pytest.mark.parametrize("make", KINDS, ids=lambda make: getattr(make, "__name__", "covered_alternating"))
@pytest.mark.parametrize("layout", ["serial", "ahead"])
def test_time_steps_equal_those_of_single_environments(make, layout):
    """W45: a call never gets the reply of another call, also with resets ahead."""
    with parallel(make, **LAYOUTS[layout]) as env:
        rng = np.random.default_rng(0)
        actions = [random_actions(env.action_spec(), 3, rng) for _ in range(30)]
        env.seed([11, 12, 13])
        found = [env.reset(), *(env.step(action) for action in actions)]
        assert env.current_time_step() is found[-1]
    for mine, theirs in zip(found, expected(make, [11, 12, 13], actions), strict=True):
        assert_same(without_infos(mine), without_infos(theirs))
        for key, value in theirs.env_info.items():
            np.testing.assert_array_equal(mine.env_info[key], value, err_msg=key)
            assert mine.env_info[key].dtype == value.dtype
        assert mine.env_info.keys() == theirs.env_info.keys()


@pytest.mark.extended
def test_layouts_give_equal_results():
    runs = {}
    for name, options in LAYOUTS.items():
        with parallel(alternating, **options) as env:
            rng = np.random.default_rng(1)
            env.seed(5)
            steps = [env.reset()]
            steps += [env.step(random_actions(env.action_spec(), 3, rng)) for _ in range(25)]
            runs[name] = steps
    for steps in runs.values():
        for mine, theirs in zip(steps, runs["serial"], strict=True):
            assert_same(mine, theirs)


def test_time_out_is_not_a_termination_in_a_batch():
    """W43, for a worker that steps the env without building time steps."""
    with parallel(limited, backend="serial") as env:
        env.reset()
        steps = [env.step(np.zeros(3, np.int64)) for _ in range(4)]
    ends = [(step.is_last().tolist(), step.discount.tolist()) for step in steps]
    assert ends[2] == ([True, False, False], [0.0, 1.0, 1.0]), "it has ended by itself"
    assert ends[3] == ([False, True, True], [1.0, 0.0, 1.0]), "one ends at the limit, one is cut off"
    assert steps[3].is_first().tolist() == [True, False, False]


@pytest.mark.extended
def test_time_steps_belong_to_the_caller():
    with parallel(toy, num_workers=2) as env:
        steps = [env.reset()]
        action = np.zeros(3, np.int64)
        steps += [env.step(action) for _ in range(2)]
        kept = [map_structure(np.copy, step) for step in steps]
        action[:] = 1
        for _ in range(20):
            env.step(action)
    for step, copied in zip(steps, kept):
        assert_same(step, copied)
    assert steps[0].env_id is not steps[1].env_id


@pytest.mark.extended
def test_constructors_receive_their_env_id():
    with parallel(counting, 4, num_workers=2) as env:
        env.reset()
        lengths = []
        for step in range(1, 6):
            lengths += [step] * int(env.step(np.zeros(4, np.int64)).is_last().sum())
    assert lengths == [2, 3, 4, 5, 5], "env i plays i + 2 steps"


def test_specs_and_properties():
    with parallel(VectorReward, backend="serial") as env:
        spec = env.time_step_spec()
        assert spec.observation == env.observation_spec() and spec.reward.shape == (2,)
        assert env.env_info_spec().keys() == {"half"}
        assert env.batched and env.batch_size == 3 and not env.is_tensor_based
        assert env.num_tasks == 1 and env.task_names == ["VectorReward"] and env.num_spare_envs_for_reload == 0
        step = env.reset()
        assert step.env_info["half"].tolist() == [0.0] * 3 and step.observation.dtype == np.float64
    with parallel(toy, backend="serial") as env:
        assert env.metadata == {"render_modes": []}


def test_actions_are_cast_and_misfits_refused():
    with parallel(alternating, backend="serial") as env:
        env.reset()
        assert env.action_spec() == BoundedTensorSpec((2,), np.float32, -2, 2)
        step = env.step(np.ones((3, 2)))
        assert step.prev_action.dtype == np.float32 and step.reward.tolist() == [2.0] * 3
    with parallel(toy, backend="serial") as env:
        env.reset()
        for action in (np.zeros(3, np.uint8), [1, 0, 1], np.zeros(3, np.int32)):
            assert env.step(action).prev_action.dtype == np.int64
        for action in (np.zeros(4, np.int64), np.zeros(3), np.zeros((3, 1), np.int64)):
            with pytest.raises(ValueError, match="action"):
                env.step(action)
            assert env.reset().is_first().all()


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("shape", [(4, 2), (3, 1), (3,)], ids=str)
def test_misfit_action_changes_nothing(ahead, shape):
    with parallel(alternating, backend="serial", reset_ahead=ahead) as env:
        env.reset()
        env.step(np.ones((3, 2)))
        with pytest.raises(ValueError, match="action"):
            env.step(np.zeros(shape, np.float32))
        assert not env.step(np.ones((3, 2))).is_first().any(), "episodes go on"


def test_torch_tensors_in_and_out():
    torch = pytest.importorskip("torch")
    with ParallelAlfEnvironment([alternating] * 2, backend="serial") as env:
        assert env.is_tensor_based, "torch is installed"
        env.reset()
        step = env.step(torch.ones(2, 2))
        assert all(torch.is_tensor(leaf) for leaf in (*step[:3], step.observation["a"], step.env_info["count"]))
        assert step.observation["a"].dtype == torch.float32 and step.step_type.dtype == torch.int32
        assert env.step(np.ones((2, 2), np.float32)).is_last().tolist() == [True, True]
        assert env.step(torch.ones(2, 2)).prev_action.tolist() == [[0.0, 0.0]] * 2


# ---- resets -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [False, True])
def test_step_before_any_reset_resets(ahead):
    with parallel(toy, backend="serial", reset_ahead=ahead) as env:
        assert env.step(np.ones(3, np.int64)).is_first().all()
        assert env.step(np.ones(3, np.int64)).is_mid().all()


@pytest.mark.parametrize("ahead", [False, True])
def test_reset_during_episodes_restarts_all(ahead):
    with parallel(counting, num_workers=2, reset_ahead=ahead) as env:
        for _ in range(3):
            first = env.reset()
            assert first.is_first().all() and first.observation[:, 0].tolist() == [0.0] * 3
            for _ in range(4):  # resets are pending in one of them
                env.step(np.zeros(3, np.int64))


def test_seeds():
    with parallel(counting, backend="serial") as env:
        env.seed([7, 8, 9])
        assert env.reset().env_info["seed"].tolist() == [7, 8, 9] and env.seeds == (7, 8, 9)
        env.reset()
        assert env.seeds == (7, 8, 9), "a seed counts for one reset"
        env.seed(20)
        assert env.reset().env_info["seed"].tolist() == [20, 21, 22]
        for seeds in ([1, 2], [1, 2, 3, 4], [1, 2, -3]):
            with pytest.raises(ValueError, match="seed"):
                env.seed(seeds)


def test_unseeded_run_repeats_from_its_seeds():
    with parallel(toy, backend="serial") as env:
        first = env.reset()
        env.seed(env.seeds)
        assert_same(env.reset(), first)


@pytest.mark.parametrize(
    ("options", "is_ahead"),
    [({"reset_ahead": True}, True), ({}, False), ({"reset_ahead": True, "blocking": True}, False)],
    ids=str,
)
def test_reset_ahead_resets_ended_envs_before_the_next_step(options, is_ahead):
    with parallel(counting, num_workers=2, **options) as env:
        env.reset()
        assert [env.step(np.zeros(3, np.int64)).step_type[0] for _ in range(2)] == [1, 2]
        assert env.call_envs_with_same_args("make_info")[0]["steps"] == (0 if is_ahead else 2)
        assert env.step(np.zeros(3, np.int64)).step_type[0] == 0


class SlowReset(CountEnv):
    """Its reset takes some time."""

    def __init__(self, seconds, **kwargs):
        super().__init__(**kwargs)
        self.seconds = seconds

    def reset(self, **kwargs):
        import time

        time.sleep(self.seconds)
        return super().reset(**kwargs)

    @staticmethod
    def make(seconds, env_id=0):
        return AlfGymWrapper(SlowReset(seconds, length=3 + env_id), env_id)


# ---- spare envs --------------------------------------------------------------------------------------------


def identified(env_id=0):
    """Make an env whose observations and infos contain its seed."""
    return AlfGymWrapper(CountEnv(2 + env_id % 3), env_id)


@pytest.mark.parametrize("options", [{"backend": "serial"}, {}, {"num_workers": 2, "threads_per_worker": 3}])
@pytest.mark.parametrize("make", [identified, functools.partial(covered, make=identified)])
def test_spare_envs_replace_envs_whose_episode_ended(options, make):
    with ParallelAlfEnvironment([make] * 5, num_spare_envs_for_reload=2, tensors=False, **options) as env:
        assert env.batch_size == 3 and env.num_spare_envs_for_reload == 2
        env.seed([100, 101, 102])
        who = [env.reset().env_info["seed"].tolist()]
        counts = []
        for _ in range(12):
            step = env.step(np.zeros(3, np.int64))
            assert step.env_id.tolist() == [0, 1, 2], "a row keeps its id"
            who.append(step.env_info["seed"].tolist())
            counts.append(step.step_type.tolist())
    # lengths 2 3 4 2 3: spare envs are used in the order in which they became ready
    spare = [episode_seed(100, 1), episode_seed(101, 1)]
    assert who[:4] == [[100, 101, 102]] * 3 + [[spare[0], 101, 102]]
    assert counts[:5] == [[1, 1, 1], [2, 1, 1], [0, 2, 1], [1, 0, 2], [2, 1, 0]]
    assert who[4] == [*spare, 102] and who[5] == [*spare, 100]
    for row in range(3):  # each episode is complete and comes from one env
        kinds = "".join(str(types[row]) for types in counts).lstrip("1")
        assert "00" not in kinds and "22" not in kinds and "21" not in kinds


def test_spare_envs_are_built_by_their_own_constructors():
    """Env i has episodes of i + 2 steps, and env 3 follows env 0."""
    with ParallelAlfEnvironment([counting] * 6, num_spare_envs_for_reload=3, tensors=False, backend="serial") as env:
        env.reset()
        assert [env.step(np.zeros(3, np.int64)).step_type[0] for _ in range(8)] == [1, 2, 0, 1, 1, 1, 1, 2]


def test_seeds_of_spare_envs_are_derived_from_those_of_rows():
    runs = []
    with ParallelAlfEnvironment([identified] * 5, num_spare_envs_for_reload=2, tensors=False, backend="serial") as env:
        for seeds in (100, [100, 101, 102], [100, 101, 102, 5, 6]):
            env.seed(seeds)
            steps = [env.reset(), *(env.step(np.zeros(3, np.int64)) for _ in range(9))]
            assert env.seeds == (100, 101, 102)
            runs.append([(step.env_info["seed"].tolist(), step.observation.tolist()) for step in steps])
        assert runs[0] == runs[1] == runs[2]
        with pytest.raises(ValueError, match="seed: expected 3, one per env, or 5 with spare envs, got 4"):
            env.seed([1, 2, 3, 4])


@pytest.mark.extended
def test_spare_env_episodes_have_their_own_seeds():
    """Each env plays its episodes with its own random numbers, in any batch row."""
    env_of = {0: 0, 1: 1, 2: 2, episode_seed(0, 1): 3, episode_seed(1, 1): 4}
    with ParallelAlfEnvironment([identified] * 5, num_spare_envs_for_reload=2, tensors=False) as env:
        env.seed(0)
        steps = [env.reset(), *(env.step(np.zeros(3, np.int64)) for _ in range(40))]
    played = {}
    for step in steps:
        for row in range(3):
            seed, episode = int(step.env_info["seed"][row]), int(step.env_info["episode"][row])
            played.setdefault((seed, episode), []).append(step.observation[row])
    assert {seed for seed, _ in played} == env_of.keys()
    for (seed, episode), observations in played.items():
        alone = identified(env_of[seed])
        alone.seed(seed)
        step = alone.reset()
        while int(step.env_info["episode"]) < episode:
            step = alone.step(np.int64(0))
        for observation in observations:
            np.testing.assert_array_equal(observation, step.observation)
            step = alone.step(np.int64(0))


@pytest.mark.extended
def test_reset_with_seeds_returns_envs_to_their_rows():
    with ParallelAlfEnvironment([identified] * 4, num_spare_envs_for_reload=1, tensors=False) as env:
        env.seed([10, 11, 12])
        env.reset()
        for _ in range(7):
            env.step(np.zeros(3, np.int64))
        env.seed([20, 21, 22])
        assert env.reset().env_info["seed"].tolist() == [20, 21, 22]
        for _ in range(7):
            env.step(np.zeros(3, np.int64))


@pytest.mark.extended
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_parallel_environment_cannot_be_copied(duplicate):
    """Deleting a shallow copy would end the workers."""
    with parallel(counting, blocking=True) as env:
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            duplicate(env)
        env.reset()


def test_num_spare_envs_can_be_read():
    """W45: the original reads an attribute that is never set."""
    with ParallelAlfEnvironment([toy] * 3, num_spare_envs_for_reload=1, tensors=False, backend="serial") as env:
        assert env.num_spare_envs_for_reload == 1


@pytest.mark.parametrize(("num_spares", "blocking"), [(2, True), (3, False), (-1, False)])
def test_spare_envs_of_wrong_number_are_refused(num_spares, blocking):
    with pytest.raises(AssertionError, match="spare"):
        parallel(toy, backend="serial", num_spare_envs_for_reload=num_spares, blocking=blocking)


# ---- batches inside, tasks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"backend": "serial"}, {"num_workers": 2}])
def test_batches_are_concatenated(options):
    with parallel(batch_of_two, 2, **options) as env, parallel(counting, 4, backend="serial") as flat:
        assert env.batch_size == 4
        env.seed([50, 52])
        flat.seed(50)
        assert_same(env.reset(), flat.reset())
        for turn in range(15):
            action = np.arange(4) % 2 if turn % 2 else np.ones(4, np.int64)
            assert_same(env.step(action), flat.step(action))
    with pytest.raises(ValueError, match="single envs only"):
        parallel(batch_of_two, 2, backend="serial", reset_ahead=True)


def test_batches_of_one_are_concatenated():
    with parallel(lambda env_id: BatchEnvironmentWrapper([counting(env_id)]), backend="serial") as env:
        env.seed(4)
        first = env.reset()
        with parallel(counting, backend="serial") as flat:
            flat.seed(4)
            assert_same(first, flat.reset())
            assert_same(env.step(np.ones(3, np.int64)), flat.step(np.ones(3, np.int64)))
        with pytest.raises(ValueError, match="expected 3 rows"):
            env.step(np.ones(6, np.int64))


class NoElements(ToyEnv):
    """Has actions and infos without elements."""

    def __init__(self):
        super().__init__()
        self.action_space = spaces.Box(-1, 1, (0,), np.float32)

    def step(self, action):
        return super().step(int(action.sum()))

    def make_info(self):
        return {"none": np.zeros(0), "rows": np.zeros((3, 0))}


@pytest.mark.parametrize("is_batched", [False, True])
def test_empty_arrays_arrive(is_batched):
    def make(env_id=0):
        envs = [AlfGymWrapper(NoElements()), AlfGymWrapper(NoElements())]
        return BatchEnvironmentWrapper(envs) if is_batched else envs[0]

    with parallel(make, backend="serial") as env:
        size = env.batch_size
        env.reset()
        step = env.step(np.zeros((size, 0), np.float32))
    assert step.reward.tolist() == [1.0] * size and step.prev_action.shape == (size, 0)
    assert step.env_info["none"].shape == (size, 0) and step.env_info["rows"].shape == (size, 3, 0)


def test_float32_overflow_becomes_infinity():
    class Far(ToyEnv):
        observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)

        def __init__(self):
            super().__init__(3)
            self.observation_space = Far.observation_space

        def observe(self):
            return np.array([1e300])

        def step(self, action):
            obs, _, *rest = super().step(action)
            return obs, -1e300, *rest

    for make in (lambda env_id: AlfGymWrapper(Far()), lambda env_id: covered(make=lambda env_id: AlfGymWrapper(Far()))):
        with parallel(make, 2, backend="serial") as env:
            assert env.reset().observation.tolist() == [[np.inf]] * 2
            assert env.step(np.zeros(2, np.int64)).reward.tolist() == [-np.inf] * 2


@pytest.mark.extended
def test_tasks_run_in_parallel():
    with parallel(two_tasks, 2, num_workers=2) as env:
        assert env.num_tasks == 2 and env.task_names == ["a", "b"]
        first = env.reset()
        assert first.prev_action["task_id"].tolist() == [0, 0]
        action = {"action": np.ones(2, np.int64), "task_id": np.array([0, 1])}  # the order differs from the spec's
        step = env.step(action)
        assert step.step_type.tolist() == [1, 0] and step.prev_action["task_id"].tolist() == [0, 1]


# ---- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["reset", "step"])
def test_calls_after_close_name_the_called_method(name):
    env = ParallelAlfEnvironment([toy], backend="serial")
    env.reset()
    env.close()
    with pytest.raises(ClosedError, match=f"^{name}: "):
        env.reset() if name == "reset" else env.step(np.zeros(1, np.int64))


def test_environments_with_different_specs_are_refused():
    with pytest.raises(ValueError, match="^env 1: action_space: n is 5, that of env 0 is 2$"):
        ParallelAlfEnvironment([toy, functools.partial(toy, num_actions=5)], backend="serial")
    with pytest.raises(ValueError, match="batch size differ"):
        ParallelAlfEnvironment([toy, toy_that_tells_more], backend="serial")


def toy_that_tells_more(env_id):
    env = ToyEnv(3)
    env.info_space = spaces.Dict(extra=spaces.Discrete(2))
    return AlfGymWrapper(env, env_id)


def test_environments_of_tensors_are_refused():
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match="arrays"):
        ParallelAlfEnvironment([lambda env_id: BatchedTensorWrapper(toy())], backend="serial")
    with pytest.raises(ValueError, match="AlfGymWrapper makes one"):
        ParallelAlfEnvironment([lambda env_id: ToyEnv()], backend="serial")


def test_unknown_options_are_named():
    with pytest.raises(ValueError, match="unknown option 'step_timout'"):
        parallel(toy, step_timout=3)
    with pytest.raises(ValueError, match="backend"):
        parallel(toy, backend="mpi")
    with pytest.raises(ValueError, match="empty"):
        ParallelAlfEnvironment([])


# ---- calls ----


@pytest.mark.extended
@pytest.mark.parametrize("ahead", [False, True])
def test_calls_between_steps_return_their_own_results(ahead):
    """W45: during pending resets a call got the reply of another call."""
    with parallel(functools.partial(SlowReset.make, 0.01), 2, num_workers=2, reset_ahead=ahead) as env:
        env.reset()
        for _ in range(12):
            step = env.step(np.zeros(2, np.int64))
            assert env.call_envs_with_same_args("observation_spec") == [env.observation_spec()] * 2
            counts = [info["steps"] for info in env.call_envs_with_same_args("make_info")]
            assert all(0 <= steps <= 4 for steps in counts)
        assert step.env_info["steps"].shape == (2,)
        for name in ("reset", "get_info"):
            with pytest.raises(ValueError, match="of the batched environment itself"):
                env.call_envs_with_same_args(name)
        with pytest.raises(AttributeError, match="no_such_method"):
            env.call_envs_with_same_args("no_such_method")


@pytest.mark.extended
def test_rendering_shows_env_0():
    pytest.importorskip("pygame")
    make = functools.partial(load, "CartPole-v1", render_mode="rgb_array")
    with ParallelAlfEnvironment([make] * 2, tensors=False) as env:
        env.reset()
        assert env.render("rgb_array").shape == (400, 600, 3)
