"""load and create_environment: layers, layouts, seeds and tasks; and the environments that a trainer creates."""

from __future__ import annotations

import functools
import re

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.alf.comparison import VectorReward, assert_same, counting
from tests.inside import pool_of
from vecenv.alf import (
    AlfEnvironment,
    AlfEnvironmentBaseWrapper,
    AlfGymWrapper,
    BatchedTensorWrapper,
    BatchEnvironmentWrapper,
    FrameStack,
    ImageChannelFirst,
    MultitaskWrapper,
    NonEpisodicAgent,
    ParallelAlfEnvironment,
    TensorWrapper,
    ThreadEnvironment,
    TimeLimit,
    create_environment,
    load,
    no_thread_env_for_conf,
)
from vecenv.envs.toys import ToyEnv
from vecenv.errors import ConfigError


def load_counting(name, env_id=0):
    """A load function of single envs."""
    assert name == "counting"
    return counting(env_id)


def load_toy(name, env_id=0):
    return AlfGymWrapper(ToyEnv({"short": 2, "long": 4}[name]), env_id)


def load_drawing(name, env_id=0):
    """A load function of an env whose length is random and drawn in its constructor."""
    return AlfGymWrapper(ToyEnv(int(np.random.randint(5, 1000))), env_id)


def load_batch(name, env_id=0, batch_size=1):
    """A load function of batches."""
    return BatchEnvironmentWrapper([counting(env_id + i) for i in range(batch_size)])


load_batch.batched = True


def load_here(name, env_id=0):
    return counting(env_id)


load_here.no_thread_env = True

create = functools.partial(create_environment, "counting", load_counting, tensors=False)


def layers(env):
    names = [type(env).__name__]
    while isinstance(env, AlfEnvironmentBaseWrapper):
        env = env.wrapped_env()
        names.append(type(env).__name__)
    env = env.gym
    while env is not env.unwrapped:
        names.append(type(env).__name__)
        env = env.env
    return names


class Camera(gymnasium.Env):
    observation_space = spaces.Dict(frame=spaces.Box(0, 255, (6, 5, 3), np.uint8), speed=spaces.Box(-1.0, 1.0, (2,)))
    action_space = spaces.Box(-3.0, 3.0, (1,), np.float32)

    def __init__(self, bound=3.0):
        self.action_space = spaces.Box(-bound, bound, (1,), np.float32)


@pytest.fixture
def camera():
    gymnasium.register("vecenv-test/Camera-v0", Camera, max_episode_steps=7)
    yield "vecenv-test/Camera-v0"
    gymnasium.registry.pop("vecenv-test/Camera-v0")


# ---- load ---------------------------------------------------------------------------------------------


def test_layers_are_applied_from_inside_out(camera):
    stacked = functools.partial(FrameStack, stack_size=2, fields=["frame"])
    env = load(camera, gym_env_wrappers=[stacked], alf_env_wrappers=[NonEpisodicAgent])
    assert layers(env)[:7] == [
        "NonEpisodicAgent", "TimeLimit", "AlfGymWrapper",
        "ContinuousActionClip", "NormalizedAction", "ImageChannelFirst", "FrameStack",
    ]  # fmt: skip
    assert env.observation_spec()["frame"].shape == (6, 6, 5) and env.action_spec().maximum == 1
    assert env.duration == 7 and "TimeLimit" not in layers(env)[3:], "Gymnasium's own limit is not there"


def test_layers_are_optional(camera):
    env = load(camera, max_episode_steps=0, image_channel_first=False, normalize_action=False, clip_action=False)
    assert layers(env)[0] == "AlfGymWrapper" and not {"TimeLimit", "NormalizedAction"} & set(layers(env))
    assert env.observation_spec()["frame"].shape == (6, 5, 3) and env.action_spec().maximum == 3


def test_unbounded_actions_need_an_explicit_choice(camera):
    with pytest.raises(ValueError, match="do not normalize"):
        load(camera, bound=np.inf)
    assert load(camera, bound=np.inf, normalize_action=False).action_spec().maximum == np.inf


@pytest.mark.parametrize(("wanted", "duration"), [(None, 500), (3, 3)])
def test_time_limit_is_the_registered_one_or_the_argument(wanted, duration):
    env = load("CartPole-v1", max_episode_steps=wanted)
    assert env.duration == duration and isinstance(env, TimeLimit)
    env.close()


def test_wrong_names_are_refused():
    with pytest.raises(gymnasium.error.Error):
        load("NoSuchEnv-v0")
    with pytest.raises(ValueError, match="max_episode_steps"):
        load("CartPole-v1", max_episode_steps=-1)
    load("gymnasium.envs.classic_control:CartPole-v1").close()


def test_env_id_and_discount_are_passed_on():
    env = load("CartPole-v1", env_id=4, discount=0.9)
    assert env.reset().env_id == 4 and env.step(0).discount == np.float32(0.9)
    env.close()


# ---- layouts --------------------------------------------------------------------------------------------


@pytest.mark.extended
def test_create_is_parallel_by_default():
    with create(num_parallel_environments=3, seed=10) as env:
        assert isinstance(env, ParallelAlfEnvironment) and env.batch_size == 3
        assert env.reset().env_info["seed"].tolist() == [10, 11, 12]


@pytest.mark.extended
def test_default_name_is_cartpole():
    with create_environment(num_parallel_environments=2, tensors=False) as env:
        assert env.reset().observation.shape == (2, 4) and env.task_names == ["CartPole-v0"]


@pytest.mark.extended
def test_envs_per_worker():
    with create(num_parallel_environments=6, batch_size_per_env=3, seed=0) as env:
        assert env.num_workers == 2 and env.batch_size == 6
        assert env.reset().env_info["seed"].tolist() == list(range(6))
    with pytest.raises(ValueError, match="a divisor of 5"):
        create(num_parallel_environments=5, batch_size_per_env=2)
    with pytest.raises(ValueError, match="spare envs need"):
        create(num_parallel_environments=4, batch_size_per_env=2, num_spare_envs=1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_parallel_environments", 0),
        ("num_parallel_environments", 2.0),
        ("num_parallel_environments", "2"),
        ("num_spare_envs", -1),
        ("num_spare_envs", 1.5),
        ("batch_size_per_env", "1"),
        ("seed", "a"),
        ("seed", 1.5),
        ("seed", [1, 2]),
        ("eval_batch_size_per_env", "1"),
        ("torch_num_threads_per_env", 0),
        ("tensors", "no"),
        ("for_evaluation", "no"),
        ("nonparallel", "no"),
        ("flatten", None),
        ("start_serially", 1),
        ("blocking", "no"),
        ("reset_ahead", "no"),
        ("backend", ["serial"]),
        ("env_name", None),
        ("env_name", []),
        ("env_load_fn", None),
        ("eval_env_load_fn", 5),
        ("parallel_environment_ctor", 5),
        ("batched_wrappers", 5),
        ("batched_wrappers", [5]),
    ],
)
def test_create_refuses_wrong_arguments_by_name(key, value):
    with pytest.raises(ConfigError, match=f"^{key}: expected .*{re.escape(repr(value))}$"):
        create_environment(**{"num_parallel_environments": 2, key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("environment_name", None),
        ("environment_name", 5),
        ("max_episode_steps", "3"),
        ("max_episode_steps", 2.5),
        ("max_episode_steps", -1),
        ("gym_env_wrappers", 5),
        ("gym_env_wrappers", [5]),
        ("alf_env_wrappers", NonEpisodicAgent),
        ("image_channel_first", "no"),
        ("normalize_action", "no"),
        ("clip_action", 0),
    ],
)
def test_load_refuses_wrong_arguments_by_name(key, value):
    with pytest.raises(ConfigError, match=f"^{key}: expected .*, got {re.escape(repr(value))}$"):
        load(**{"environment_name": "CartPole-v1", key: value})


@pytest.mark.parametrize("key", ["gym_env_wrappers", "alf_env_wrappers", "batched_wrappers"])
def test_wrapper_that_returns_none_is_named(key):
    def forgetful(env):
        pass

    create_one = functools.partial(create_environment, num_parallel_environments=1, nonparallel=True)
    make = create_one if key == "batched_wrappers" else load
    with pytest.raises(ConfigError, match=f"^{key}: expected callables that return an env, .*forgetful.* gave None$"):
        make("CartPole-v1", **{key: [forgetful]})


def test_seed_may_exceed_the_range_of_torch():
    pytest.importorskip("torch")
    with create(num_parallel_environments=1, seed=2**70, backend="serial") as env:
        assert len(env.reset().reward) == 1


@pytest.mark.extended
def test_wrapper_that_raises_leaves_no_worker():
    made = []
    with pytest.raises(ZeroDivisionError):
        create(num_parallel_environments=1, batched_wrappers=[lambda env: made.append(env) or env, lambda env: 1 / 0])
    assert made[0].closed


@pytest.mark.extended
def test_numpy_numbers_are_accepted():
    with create(num_parallel_environments=np.int64(2), num_spare_envs=np.int8(1), seed=np.int64(3)) as env:
        assert len(env.reset().reward) == 2 and env.seeds == (3, 4)


@pytest.mark.parametrize(
    ("constructors", "says"),
    [
        (counting, "env_constructors: expected a list of functions, each of which builds an env, got one function"),
        ([], "env_constructors is empty: at least one env is needed"),
        (["CartPole-v1"], "env_constructors[0]: expected a function that builds an env, got the string 'CartPole-v1'"),
    ],
)
def test_constructors_of_wrong_type_are_refused_by_name(constructors, says):
    with pytest.raises(ConfigError, match=f"^{re.escape(says)}(; write .*)?$"):
        ParallelAlfEnvironment(constructors)


def test_spare_envs_are_additional():
    with create(num_parallel_environments=2, num_spare_envs=1, seed=5, backend="serial") as env:
        assert env.batch_size == 2 and env.num_spare_envs_for_reload == 1
        env.reset()
        assert env.seeds == (5, 6)


@pytest.mark.parametrize("fn", [load_batch, functools.partial(functools.partial(load_batch))])
def test_batched_load_function_is_used_unchanged(fn):
    env = create_environment("x", fn, num_parallel_environments=3, seed=4, tensors=False)
    assert isinstance(env, BatchEnvironmentWrapper) and env.batch_size == 3
    assert env.reset().env_info["seed"].tolist() == [4, 5, 6]


@pytest.mark.extended
def test_batched_load_function_in_workers():
    options = {"num_parallel_environments": 4, "batch_size_per_env": 2, "seed": 4, "tensors": False}
    with create_environment("x", load_batch, **options) as env, create(**options) as flat:
        assert isinstance(env, ParallelAlfEnvironment) and env.batch_size == 4 and env.num_workers == 2
        assert_same(env.reset(), flat.reset())
        for _ in range(9):
            assert_same(env.step(np.ones(4, np.int64)), flat.step(np.ones(4, np.int64)))


def test_nonparallel_uses_a_thread_or_none():
    with create(num_parallel_environments=1, nonparallel=True, seed=3) as env:
        assert isinstance(env, ThreadEnvironment) and env.reset().env_info["seed"].tolist() == [3]
    env = create_environment("x", load_here, num_parallel_environments=1, nonparallel=True, seed=3, tensors=False)
    assert isinstance(env, BatchEnvironmentWrapper) and env.reset().env_info["seed"].tolist() == [3]
    with pytest.raises(ValueError, match="num_parallel_environments=1"):
        create(num_parallel_environments=2, nonparallel=True)


def test_tensors_in_every_layout():
    torch = pytest.importorskip("torch")
    make = functools.partial(create_environment, "counting", num_parallel_environments=1, seed=1)
    kinds = {
        TensorWrapper: make(load_batch),
        BatchedTensorWrapper: make(load_here, nonparallel=True),
        ThreadEnvironment: make(load_counting, nonparallel=True),
        ParallelAlfEnvironment: make(load_counting, backend="serial"),
    }
    for kind, env in kinds.items():
        with env:
            assert isinstance(env, kind) and env.is_tensor_based and env.batch_size == 1
            env.reset()
            step = env.step(torch.tensor([1]))
            assert torch.is_tensor(step.observation) and step.env_info["seed"].tolist() == [1]


def test_evaluation_has_its_own_functions_and_sizes():
    options = {"eval_env_load_fn": load_here, "num_parallel_environments": 4, "eval_batch_size_per_env": 4}
    with create(for_evaluation=True, **options) as env:
        assert env.num_workers == 1
    with create_environment("x", load_batch, for_evaluation=True, num_parallel_environments=2, tensors=False) as env:
        assert isinstance(env, BatchEnvironmentWrapper), "without one of its own evaluation uses the same"


def test_names_in_a_list_are_tasks():
    make = functools.partial(
        create_environment, ["short", "long"], load_toy, num_parallel_environments=2, tensors=False
    )
    with make(backend="serial", batched_wrappers=[AlfEnvironmentBaseWrapper]) as env:
        assert isinstance(env, AlfEnvironmentBaseWrapper) and env.num_tasks == 2 and env.task_names == ["short", "long"]
        assert env.action_spec().keys() == {"task_id", "action"}
        env.reset()
        action = {"task_id": np.array([0, 1]), "action": np.zeros(2, np.int64)}
        kinds = [env.step(action).step_type.tolist() for _ in range(3)]
        assert kinds == [[1, 0], [2, 1], [0, 1]]
    env = create_environment(["short", "long"], load_toy, nonparallel=True, num_parallel_environments=1, tensors=False)
    with env:
        assert env.num_tasks == 2 and isinstance(env._env, MultitaskWrapper)
    with pytest.raises(ValueError, match="a list of tasks"):
        create_environment(["a", "b"], load_batch)


def test_parallel_environment_class_may_be_replaced():
    class Seeded(BatchEnvironmentWrapper):
        def seed(self, seeds):
            for env, seed in zip(self._envs, seeds, strict=True):
                env.seed(seed)

    def make(constructors, **kwargs):
        assert kwargs["num_spare_envs_for_reload"] == 0 and kwargs["patience"] == 3
        return Seeded([constructor(env_id=i) for i, constructor in enumerate(constructors)])

    state = np.random.get_state()
    env = create(num_parallel_environments=2, seed=8, parallel_environment_ctor=make, patience=3)
    np.random.set_state(state)
    assert env.reset().env_info["seed"].tolist() == [8, 9]


@pytest.mark.parametrize("bound", [None, 7])
@pytest.mark.parametrize("names", ["x", ["a", "b"]], ids=str)
def test_load_functions_receive_the_number_of_envs(bound, names):
    def load_told(name, env_id=None, num_parallel_environments=0):
        return AlfGymWrapper(ToyEnv(num_parallel_environments))

    given = load_told if bound is None else functools.partial(load_told, num_parallel_environments=bound)
    env = create_environment(names, given, num_parallel_environments=3, tensors=False, backend="serial")
    with env:
        assert pool_of(env).call(_length_of_toy) == [3 if bound is None else bound] * 3


# ---- seeds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_env", [1, 2])
def test_seeds_differ_and_follow_the_global_generator(per_env):
    def seeds(global_seed):
        state = np.random.get_state()
        np.random.seed(global_seed)
        options = {"num_parallel_environments": 8, "batch_size_per_env": per_env, "backend": "serial"}
        try:
            with create(**options) as env:
                return env.reset().env_info["seed"].tolist()
        finally:
            np.random.set_state(state)

    assert seeds(1) == seeds(1) != seeds(2)
    assert len(set(seeds(1))) == 8


@pytest.mark.extended
def test_constructors_that_draw_follow_their_seed():
    def lengths(**options):
        make = functools.partial(create_environment, "x", load_drawing, num_parallel_environments=3, tensors=False)
        with make(seed=1, **options) as env:
            env.reset()
            return [pool_of(env).call(_length_of)]

    assert lengths() == lengths(num_workers=1) == lengths(num_workers=3)
    assert len(set(lengths()[0])) == 3


class DrawsWithTorch(VectorReward):
    """Imports torch in its constructor and draws from its global generator at each reset."""

    def __init__(self, env_id=0):
        super().__init__(env_id)
        import torch

        self.torch = torch

    def _observe(self):
        return self.torch.rand(2).double().numpy()


class DrawsAtOnce(DrawsWithTorch):
    """Draws from torch, which is already imported, in its constructor."""

    def __init__(self, env_id=0):
        import torch

        self.drawn = torch.rand(2).double().numpy()
        super().__init__(env_id)

    def _observe(self):
        return self.drawn


def load_with_torch(kind, name, env_id=0):
    return kind(env_id)


@pytest.mark.extended
def test_torch_is_seeded_by_resets_of_workers_whose_env_imports_it():
    """The first reset has a seed, which also sets the generators."""
    pytest.importorskip("torch")
    load_fn = functools.partial(load_with_torch, DrawsWithTorch)
    make = functools.partial(create_environment, "x", load_fn, num_parallel_environments=1, tensors=False)
    drawn = []
    for seed in (3, 3, 4):
        with make(seed=np.int64(seed), context="forkserver") as env:
            drawn.append(env.reset().observation[0].tolist())
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.extended
def test_torch_is_seeded_before_constructors_of_forked_workers():
    """A forked worker has the modules of its parent."""
    torch = pytest.importorskip("torch")
    load_fn = functools.partial(load_with_torch, DrawsAtOnce)
    make = functools.partial(create_environment, "x", load_fn, num_parallel_environments=1, tensors=False)
    with make(seed=np.int64(3), context="fork") as env:
        drawn = env.reset().observation[0]
    expected = torch.rand(2, generator=torch.Generator().manual_seed(3))
    np.testing.assert_array_equal(drawn, expected.double().numpy())


def test_callers_torch_generator_is_unchanged():
    torch = pytest.importorskip("torch")
    load_fn = functools.partial(load_with_torch, DrawsAtOnce)
    make = functools.partial(create_environment, "x", load_fn, num_parallel_environments=2, tensors=False)
    before = torch.get_rng_state()
    with make(seed=3, backend="serial") as env:
        assert torch.equal(torch.get_rng_state(), before)
        drawn = env.reset().observation
    torch.manual_seed(77)
    with make(seed=3, backend="serial") as env:
        np.testing.assert_array_equal(env.reset().observation, drawn)
    torch.set_rng_state(before)


def _length_of(adapter):
    return adapter.alf.length


def _length_of_toy(adapter):
    return adapter.alf.gym.unwrapped.length


class Unseeded(VectorReward):
    seed = AlfEnvironment.seed


@pytest.mark.parametrize(
    "options",
    [
        {"nonparallel": True},
        {"backend": "serial"},
        {"backend": "process"},
        {"backend": "process", "reset_ahead": True},
        {"backend": "process", "on_failure": "raise"},
    ],
    ids=str,
)
def test_envs_without_a_seed_method_are_not_seeded(options):
    def load_unseeded(name, env_id=0):
        return AlfEnvironmentBaseWrapper(Unseeded(env_id))

    make = functools.partial(create_environment, "x", load_unseeded, num_parallel_environments=1, tensors=False)
    with make(seed=3, **options) as env:
        assert not env.can_seed and env.reset().is_first().all()
        assert env.reset().is_first().all()
        with pytest.raises(NotImplementedError, match="no seed"):
            env.seed([1])


@pytest.mark.parametrize("shape", [{"nonparallel": True}, {"batch_size_per_env": 1}], ids=str)
def test_unknown_option_is_refused_with_and_without_workers(shape):
    with pytest.raises(ConfigError, match="unknown option 'step_timout'"):
        create(num_parallel_environments=1, step_timout=3.0, **shape)
    create(num_parallel_environments=1, step_timeout=30.0, reset_ahead=False, backend="serial", **shape).close()


# ---- the table ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "evaluate", "parallel", "result"),
    [
        (True, True, True, ("parallel", None)),
        (True, True, False, ("parallel", None)),
        (True, False, True, (None, None)),
        (True, False, False, (None, None)),
        (False, True, True, ("thread", None)),
        (False, True, False, ("thread", None)),
        (False, False, True, (None, "thread")),
        (False, False, False, (None, None)),
    ],
)
def test_trainer_environments_are_created(flag, evaluate, parallel, result):
    assert no_thread_env_for_conf(flag, evaluate, parallel) == result


def test_images_are_channels_first(camera):
    env = gymnasium.make(camera, disable_env_checker=True)
    assert ImageChannelFirst(env).observation_space["frame"].shape == (3, 6, 5)
