"""`make` has EnvPool's shapes, dtypes, keys and order of calls, and runs the loops of EnvPool's README."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest

import vecenv
from vecenv import ConfigError
from vecenv.integrations import envpool as ours

# EnvPool gives its spaces float64 bounds.
pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered by casting to float32:UserWarning")

#: Options of EnvPool without an equal here; its `ram` of Atari games is left out, too.
LEFT_OUT = {"base_path", "task"}


@pytest.fixture
def theirs() -> ModuleType:
    return pytest.importorskip("envpool", exc_type=ImportError)


@contextmanager
def made(module: Any, task_id: str, env_type: str, **options: Any) -> Iterator[Any]:
    envs = module.make(task_id, env_type=env_type, **options)
    try:
        yield envs
    finally:
        envs.close()


def form(value: Any) -> Any:
    """Return the nested keys, dtypes and shapes of a result."""
    if isinstance(value, dict):
        return {key: form(item) for key, item in value.items() if key != "ram"}
    if hasattr(value, "_fields"):
        return [type(value).__name__, *form(value._asdict()).items()]
    if isinstance(value, tuple | list):
        return tuple(form(item) for item in value)
    return str(value.dtype), value.shape


def trace(envs: Any, env_type: str, num_steps: int, action: int = 0) -> list[Any]:
    """Step all envs with one action; return all results except observations."""

    def values(result: Any) -> list[Any]:
        if env_type == "dm":
            state = result.observation._asdict()
            parts = [result.step_type, result.reward, result.discount, state.pop("env_id")]
        else:
            *parts, state = result[1:]
            state = dict(state)
            parts += [state.pop("env_id"), state.pop("elapsed_step")]
        extra = {key: value.tolist() for key, value in state.items() if key not in ("players", "obs", "ram")}
        return [*(part.tolist() for part in parts), extra]

    actions = np.full(len(envs), action)
    return [values(envs.reset()), *(values(envs.step(actions)) for _ in range(num_steps))]


# ---- beside EnvPool ------------------------------------------------------------------------------


def forms(envs: Any, action: Any = 0) -> list[Any]:
    """Return the forms of the results of all calls that receive."""
    ids = np.array([2, 0], np.int32)
    actions = np.stack([action] * 3)
    found = [envs.reset(), envs.step(actions), envs.step(actions[:2], ids), envs.reset(ids)]
    envs.async_reset()
    found += [envs.recv(True)]
    envs.send(actions)
    return [form(value) for value in [*found, envs.recv()]]


@pytest.mark.parametrize("env_type", ["gymnasium", "gym", "dm"])
@pytest.mark.parametrize(
    "task_id", ["CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "Pong-v5"]
)
def test_results_have_the_keys_dtypes_and_shapes_of_envpool(theirs: ModuleType, task_id: str, env_type: str) -> None:
    action = np.zeros(1, np.float32) if task_id in ("MountainCarContinuous-v0", "Pendulum-v1") else 0
    with made(ours, task_id, env_type, num_envs=3) as own, made(theirs, task_id, env_type, num_envs=3) as other:
        assert forms(own, action) == forms(other, action)
        assert len(own) == len(other) and own.is_async == other.is_async
        assert own.all_env_ids.dtype == other.all_env_ids.dtype
        assert own.all_env_ids.tolist() == other.all_env_ids.tolist()


@pytest.mark.parametrize("env_type", ["gymnasium", "dm"])
def test_batches_of_an_async_pool_have_the_form_of_envpool(theirs: ModuleType, env_type: str) -> None:
    def batches(envs: Any) -> list[Any]:
        envs.async_reset()
        found = []
        for _ in range(6):
            result = envs.recv()
            ids = result.observation.env_id if env_type == "dm" else result[-1]["env_id"]
            envs.send(np.zeros(2, int), ids)
            found.append(form(result))
        return [envs.is_async, *found]

    options = {"num_envs": 3, "batch_size": 2}
    with (
        made(ours, "CartPole-v1", env_type, **options) as own,
        made(theirs, "CartPole-v1", env_type, **options) as other,
    ):
        assert batches(own) == batches(other)


@pytest.mark.parametrize("env_type", ["gymnasium", "dm"])
def test_ends_and_resets_come_in_the_rows_of_envpool(theirs: ModuleType, env_type: str) -> None:
    options = {"num_envs": 2, "max_episode_steps": 3}
    with (
        made(ours, "CartPole-v1", env_type, **options) as own,
        made(theirs, "CartPole-v1", env_type, **options) as other,
    ):
        assert trace(own, env_type, 9) == trace(other, env_type, 9)


@pytest.mark.extended
@pytest.mark.parametrize("env_type", ["gymnasium", "dm"])
def test_lost_lives_come_in_the_rows_of_envpool(theirs: ModuleType, env_type: str) -> None:
    pytest.importorskip("ale_py", exc_type=ImportError)
    options = {"num_envs": 1, "episodic_life": True, "reward_clip": True, "max_episode_steps": 60}
    with (
        made(ours, "Breakout-v5", env_type, **options) as own,
        made(theirs, "Breakout-v5", env_type, **options) as other,
    ):
        found = trace(own, env_type, 130)
        assert found == trace(other, env_type, 130)
    assert {row[-1]["lives"][0] for row in found} == {3, 4, 5}, "lives were lost, and games begun"


@pytest.mark.parametrize("task_id", ["CartPole-v1", pytest.param("Pong-v5", marks=pytest.mark.extended)])
def test_config_and_spaces_are_those_of_envpool(theirs: ModuleType, task_id: str) -> None:
    options = {"num_envs": 3, "batch_size": 2, "seed": [7, 8, 9]}
    with made(ours, task_id, "gymnasium", **options) as own, made(theirs, task_id, "gymnasium", **options) as other:
        assert own.config == {key: value for key, value in other.config.items() if key not in LEFT_OUT}
        assert own.action_space == own.single_action_space == other.action_space
        for name in ("shape", "dtype"):
            assert getattr(own.observation_space, name) == getattr(other.observation_space, name)
        for base in (gymnasium.Env, gymnasium.vector.VectorEnv):
            assert isinstance(own, base) and isinstance(other, base)
        for name in dir(other):
            if not name.startswith("_") and name != "xla":
                assert hasattr(own, name), name


def gymnasium_form(envs: Any) -> dict[str, Any]:
    """Return the forms of spaces, observations and infos of one step."""
    envs.reset()
    obs, *_, infos = envs.step(np.stack([envs.action_space.sample()] * 2))
    found = {"obs": form(obs), **{f"infos/{key}": value for key, value in form(infos).items()}}
    for name in ("action_space", "observation_space"):
        space = getattr(envs, name)
        found[name] = space.shape if space.shape is None else (str(space.dtype), space.shape)
    return found


@pytest.mark.parametrize(
    "task_id, differing",
    [
        ("Acrobot-v1", {"infos/state": (None, ("float32", (2, 2)))}),
        (
            "FrozenLake-v1",
            {"obs": (("int64", (2,)), ("int32", (2,))), "infos/prob": (("float64", (2,)), None)},
        ),
        (
            "Blackjack-v1",
            {
                "observation_space": (None, ("int32", (3,))),
                "obs": ((("int64", (2,)),) * 3, ("int32", (2, 3))),
            },
        ),
        (
            "HalfCheetah-v5",
            {
                "action_space": (("float32", (6,)), ("float64", (6,))),
                "infos/reward_ctrl": (("float32", (2,)), ("float64", (2,))),
                "infos/reward_forward": (("float64", (2,)), None),
                "infos/reward_run": (None, ("float64", (2,))),
            },
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:mujoco")
def test_differences_are_those_of_the_documentation(
    theirs: ModuleType, task_id: str, differing: dict[str, Any]
) -> None:
    if task_id.startswith("HalfCheetah"):
        pytest.importorskip("mujoco", exc_type=ImportError)
    with (
        made(ours, task_id, "gymnasium", num_envs=2, backend="serial") as envs,
        made(theirs, task_id, "gymnasium", num_envs=2) as others,
    ):
        own, other = gymnasium_form(envs), gymnasium_form(others)
    keys = {*own, *other}
    assert {key: (own.get(key), other.get(key)) for key in keys if own.get(key) != other.get(key)} == differing


def test_calls_that_are_missing_are_those_of_the_documentation(theirs: ModuleType) -> None:
    calls = {name for name, value in vars(theirs).items() if callable(value) and name[0].islower()}
    assert calls - set(dir(ours)) == {"list_all_envs", "make_spec", "register", "preload_windows_gl_dlls"}
    with made(ours, "CartPole-v1", "gymnasium", backend="serial") as own, made(theirs, "CartPole-v1", "gym") as other:
        assert isinstance(own.spec, gymnasium.envs.registration.EnvSpec) and not hasattr(own.spec, "config")
        assert other.spec.config.num_envs == own.config["num_envs"]


# ---- EnvPool is not needed -----------------------------------------------------------------------


def test_sync_loop_of_the_readme() -> None:
    with made(vecenv.integrations.envpool, "CartPole-v1", "gym", num_envs=10) as env:
        obs, info = env.reset()
        assert obs.shape == (10, 4)
        act = np.zeros(10, dtype=int)
        obs, rew, term, trunc, info = env.step(act)
        assert rew.tolist() == [1.0] * 10 and info["elapsed_step"].tolist() == [1] * 10
        assert env.observation_space.shape == (4,) and env.action_space.n == 2


def test_async_loop_of_the_readme() -> None:
    num_envs, batch_size = 8, 3
    with made(vecenv.integrations.envpool, "CartPole-v1", "gym", num_envs=num_envs, batch_size=batch_size) as env:
        action_num = env.action_space.n
        counts = np.zeros(num_envs, int)
        env.async_reset()
        rounds = 0
        while counts.min() == 0 or rounds < 60:  # on a busy machine one worker may answer alone for long
            obs, rew, term, trunc, info = env.recv()
            env_id = info["env_id"]
            counts[env_id] += 1
            action = np.random.default_rng(0).integers(action_num, size=batch_size)
            env.send(action, env_id)
            rounds += 1
        assert counts.sum() == rounds * batch_size


def test_dm_loop_of_the_readme() -> None:
    pytest.importorskip("dm_env", exc_type=ImportError)
    with made(vecenv.integrations.envpool, "CartPole-v1", "dm", num_envs=4, batch_size=2) as env:
        assert env.action_spec().num_values == 2 and env.observation_spec().obs.shape == (4,)
        env.async_reset()
        for _ in range(10):
            timestep = env.recv()
            env.send(np.zeros(2, int), timestep.observation.env_id)
        assert timestep.first().shape == (2,)


@pytest.mark.parametrize("seed, each", [(5, [5, 6, 7]), ([3, 1, 2], [3, 1, 2])])
def test_seeds_of_the_constructor_are_those_of_the_first_reset(seed: Any, each: list[int]) -> None:
    env_fn: Callable[[], Any] = lambda: gymnasium.make("CartPole-v1")  # noqa: E731
    reference = gymnasium.vector.SyncVectorEnv([env_fn] * 3)
    with made(vecenv.integrations.envpool, "CartPole-v1", "gymnasium", num_envs=3, seed=seed) as envs:
        assert np.array_equal(envs.reset()[0], reference.reset(seed=each)[0])
        for i in range(60):
            actions = np.arange(3) * i % 2
            for own, other in zip(envs.step(actions)[:4], reference.step(actions)[:4], strict=True):
                assert np.array_equal(own, other)
        assert np.array_equal(envs.reset()[0], reference.reset()[0]), "the generators continue"
        assert np.array_equal(envs.reset(np.array([1]), seed=9)[0], reference.reset(seed=9)[0][[1]])
        assert np.array_equal(envs.reset(options={"reset_mask": [True, False, True]})[1]["env_id"], [0, 2])
    reference.close()


def test_rows_come_in_the_order_of_sending_if_a_batch_has_all_envs() -> None:
    with made(vecenv.integrations.envpool, "CartPole-v1", "gymnasium", num_envs=4, num_threads=2) as envs:
        envs.async_reset()
        assert envs.recv(reset=True, return_info=False).shape == (4, 4)
        envs.send(np.zeros(1, int), np.array([3]))
        envs.send(np.zeros(3, int), np.array([1, 0, 2]))
        assert envs.reset(np.array([0]))[1]["env_id"].tolist() == [0]
        assert envs.recv()[-1]["env_id"].tolist() == [3, 1, 2]
        assert envs.statistics()["num_workers"] == 2


def test_wrong_numbers_of_actions_are_refused() -> None:
    """EnvPool 1.2.5 aborts the process."""
    with made(vecenv.integrations.envpool, "CartPole-v1", "gymnasium", num_envs=3, backend="serial") as envs:
        envs.reset()
        for wrong in (np.zeros(2, int), np.zeros(3)):
            with pytest.raises(vecenv.SpaceError):
                envs.step(wrong)
        assert envs.step(np.zeros(3, np.int32))[-1]["elapsed_step"].tolist() == [1, 1, 1]


def test_frames_are_those_of_the_envs_asked_for() -> None:
    pytest.importorskip("pygame", exc_type=ImportError)
    with made(
        vecenv.integrations.envpool, "CartPole-v1", "gymnasium", num_envs=3, backend="serial", render_mode="rgb_array"
    ) as envs:
        envs.reset()
        assert envs.render().shape[0] == 1 and envs.render([2, 1]).shape == (2, 400, 600, 3)


@pytest.mark.extended
@pytest.mark.filterwarnings("default")  # gym is not maintained
def test_loop_of_cleanrl_for_envpool_before_0_7() -> None:
    gym = pytest.importorskip("gym", exc_type=ImportError)
    pytest.importorskip("ale_py", exc_type=ImportError)
    from vecenv.integrations.envpool import legacy as envpool

    num_envs = 2
    envs = envpool.make("Breakout-v5", env_type="gym", num_envs=num_envs, episodic_life=True, reward_clip=True, seed=1)
    envs.num_envs = num_envs
    envs.single_action_space = envs.action_space
    envs.single_observation_space = envs.observation_space
    envs = gym.Wrapper(envs)
    assert isinstance(envs.action_space, gym.spaces.Discrete) and envs.action_space.n == 4
    assert envs.single_observation_space.shape == (4, 84, 84)
    assert envs.reset().shape == (num_envs, 4, 84, 84)
    lengths = np.zeros(num_envs, int)
    ended = []
    for _ in range(150):
        obs, reward, done, info = envs.step(np.zeros(num_envs, np.int64))
        lengths += 1
        for idx, d in enumerate(done):
            if d and info["lives"][idx] == 0:
                ended.append((lengths[idx], info["terminated"][idx], info["TimeLimit.truncated"][idx]))
    envs.close()
    assert ended == [(ended[0][0], 1, False)] * num_envs, "one game per env was over"


@pytest.mark.extended
@pytest.mark.native
def test_games_go_on_in_a_new_worker_after_a_lost_life() -> None:
    pytest.importorskip("ale_py", exc_type=ImportError)

    def play(is_killed: bool) -> list[Any]:
        with made(
            vecenv.integrations.envpool, "Breakout-v5", "gymnasium", num_envs=2, num_threads=1, episodic_life=True
        ) as envs:
            found = [envs.reset()[0]]
            for step in range(60):
                if is_killed and step in (10, 40):
                    os.kill(envs.statistics().workers.pid[0], signal.SIGKILL)
                obs, *others, infos = envs.step(np.zeros(2, int))
                found += [obs, *others, infos["lives"], infos["elapsed_step"]]
            assert envs.statistics()["restarts"] == 2 * is_killed
            assert infos["lives"].tolist() == [3, 3]
            return found

    for one, other in zip(play(False), play(True), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize(
    "arguments, options, error, text",
    [
        (("CartPole-v1", "gem"), {}, ConfigError, "env_type"),
        (("CartPole-v1",), {"max_num_players": 2}, ConfigError, "max_num_players: only 1 is supported"),
        (("CartPole-v1",), {"reward_threshold": "high"}, ConfigError, "reward_threshold: expected a number"),
        (("CartPole-v1",), {"autoreset_mode": "same_step"}, ConfigError, "EnvPool's mode is NEXT_STEP"),
        (("CartPole-v1",), {"num_envs": 2, "batch_size": 3}, ConfigError, "batch_size"),
        (("CartPole-v1",), {"num_envs": 2, "seed": [1]}, ConfigError, "seed"),
        (("NoSuchEnv-v5",), {}, gymnasium.error.Error, "NoSuchEnv"),
        (("Pong-v5",), {"episode_life": True}, ConfigError, "did you mean 'episodic_life'"),
        (("Pong-v5",), {"gray_scale": False}, ConfigError, "gray_scale: only True is supported"),
        (("Pong-v5",), {"use_inter_area_resize": False}, ConfigError, "use_inter_area_resize: only True is supported"),
        (("Pong-v5",), {"zero_discount_on_life_loss": True}, ConfigError, "zero_discount_.*: only False is supported"),
        (("Pong-v5",), {"num_env": 3}, ConfigError, "Pong-v5 has no option 'num_env'; did you mean 'num_envs'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: Any, options: Any, error: Any, text: str) -> None:
    if arguments[0].endswith("-v5"):
        pytest.importorskip("ale_py", exc_type=ImportError)
    with pytest.raises(error, match=text):
        vecenv.integrations.envpool.make(*arguments, **options)


@pytest.mark.parametrize(
    "task_id, options",
    [
        ("CartPole-v1", {"reward_threshold": 400}),
        ("MountainCar-v0", {"reward_threshold": np.float32(-100)}),
        ("Pong-v5", {"use_inter_area_resize": True, "gray_scale": True, "zero_discount_on_life_loss": False}),
        ("Pong-v5", {"reward_threshold": 20.0}),  # EnvPool refuses it here
    ],
)
def test_options_of_envpool_without_effect_are_accepted(task_id: str, options: dict[str, Any]) -> None:
    if task_id.endswith("-v5"):
        pytest.importorskip("ale_py", exc_type=ImportError)
    with made(vecenv.integrations.envpool, task_id, "gymnasium", backend="serial", **options) as envs:
        assert options.items() <= envs.config.items()
        assert envs.spec.reward_threshold == envs.config.get("reward_threshold")


@pytest.mark.parametrize(
    "name, meant", [("num_env", "num_envs"), ("num_thread", "num_threads"), ("backends", "backend")]
)
def test_misspelt_options_are_named_with_the_function_that_was_called(name: str, meant: str) -> None:
    text = f"^make: neither VectorEnv nor the env has an option '{name}'; did you mean '{meant}'"
    with pytest.raises(ConfigError, match=text):
        vecenv.integrations.envpool.make("CartPole-v1", **{"backend": "serial", name: 3})
