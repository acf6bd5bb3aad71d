"""VecenvEnv is an env of TorchRL that gives the rollouts of GymWrapper over Gymnasium's SyncVectorEnv."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import signal
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv

pytest.importorskip("torchrl", exc_type=ImportError)

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # TorchRL's collectors inherit from a class that it deprecates
    from torchrl.collectors import Collector, MultiSyncCollector

from torchrl.envs import AsyncEnvPool, Compose, GymWrapper, RewardSum, StepCounter, TransformedEnv, check_env_specs

from vecenv import ConfigError, SpaceError, StateError
from vecenv.envs.toys import SpaceEnv
from vecenv.integrations.torchrl import VecenvEnv

CARTPOLE = functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=12)
PENDULUM = functools.partial(gymnasium.make, "Pendulum-v1", max_episode_steps=9)
LAKE = functools.partial(gymnasium.make, "FrozenLake-v1")
NESTED = functools.partial(
    SpaceEnv,
    Dict(state=Box(-1, 1, (3,)), deep=Dict(grid=Box(0, 255, (2, 2), np.uint8), mode=Discrete(4)), flags=MultiBinary(3)),
    Box(-1, 1, (2,)),
)
TOOLS = functools.partial(SpaceEnv, Box(-1, 1, (2,)), Dict(move=Box(-1, 1, (2,)), tool=Discrete(3)))
SWITCHES = functools.partial(SpaceEnv, Box(-1, 1, (2,), np.float64), MultiDiscrete([2, 3]))


class RaisingCartPole(CartPoleEnv):
    """Divides by a number in `step`."""

    def __init__(self, divisor: int) -> None:
        super().__init__()
        self.divisor = divisor

    def step(self, action: Any) -> Any:
        1 / self.divisor
        return super().step(action)


class WaitingCartPole(CartPoleEnv):
    """Waits in `step` until a writer has opened and closed a named pipe."""

    def __init__(self, pipe: Path) -> None:
        super().__init__()
        self.pipe = pipe

    def step(self, action: Any) -> Any:
        self.pipe.read_text()
        return super().step(action)


def theirs(env_fns: Any, **options: Any) -> Any:
    return GymWrapper(SyncVectorEnv(env_fns, autoreset_mode=AutoresetMode.DISABLED), **options)


def assert_equal(left: Any, right: Any) -> None:
    """Check two tensordicts for the same keys, dtypes, shapes, devices and values."""
    assert left.batch_size == right.batch_size and left.device == right.device
    keys = sorted(left.keys(True, True), key=str)
    assert keys == sorted(right.keys(True, True), key=str)
    for key in keys:
        assert left[key].dtype == right[key].dtype, key
        assert torch.equal(left[key], right[key]), key


def roll_out(env: Any, seed: int = 5) -> list[Any]:
    """Return rollouts that cross ends of episodes, and rollouts that stop at one, with the same random actions."""
    env.set_seed(seed)
    torch.manual_seed(0)
    through = env.rollout(40, break_when_any_done=False)
    stopped = [env.rollout(20) for _ in range(3)]
    seeded = env.reset(seed=seed + 1)
    return [through, *stopped, seeded, env.rollout(30, auto_reset=False, tensordict=seeded)]


@pytest.mark.parametrize(
    "env_fn",
    [CARTPOLE, *(pytest.param(env_fn, marks=pytest.mark.extended) for env_fn in (PENDULUM, LAKE, NESTED, SWITCHES))],
)
@pytest.mark.parametrize("is_categorical", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_rollouts_and_specs_equal_gym_wrapper(env_fn: Any, is_categorical: bool) -> None:
    options = {"categorical_action_encoding": is_categorical}
    ours, others = VecenvEnv([env_fn] * 3, num_workers=2, **options), theirs([env_fn] * 3, **options)
    with contextlib.closing(ours), contextlib.closing(others):
        assert ours.output_spec == others.output_spec and ours.input_spec == others.input_spec
        check_env_specs(ours)
        assert ours.set_seed(3) == others.set_seed(3)
        for left, right in zip(roll_out(ours), roll_out(others)):
            assert_equal(left, right)


class TwoGoals(SpaceEnv):
    reward_space = Box(-9.0, 9.0, (2,), np.float64)

    def __init__(self) -> None:
        super().__init__(Box(-1, 1, (2,)), Discrete(2))

    def step(self, action: Any) -> Any:
        obs, reward, *ends = super().step(action)
        return obs, np.array([reward, -1.0]), *ends


def test_rewards_of_several_numbers_equal_gym_wrapper_of_one_env() -> None:
    ours, other = VecenvEnv([TwoGoals] * 2, num_workers=1), GymWrapper(TwoGoals())
    with contextlib.closing(ours), contextlib.closing(other):
        check_env_specs(ours)
        found, expected = ours.rollout(5)["next", "reward"], other.rollout(5)["next", "reward"]
        assert found.dtype == expected.dtype and ours.reward_spec[0] == other.reward_spec
        assert torch.equal(found, torch.stack([expected] * 2))


@pytest.mark.extended
def test_actions_of_a_dict_space_have_a_key_each() -> None:
    """GymWrapper cannot batch such a space."""
    with contextlib.closing(VecenvEnv([TOOLS] * 2, num_workers=2)) as env:
        check_env_specs(env)
        assert env.action_keys == ["move", "tool"]


def test_rollouts_with_transforms_equal_gym_wrapper() -> None:
    """StepCounter asks for resets of envs whose own episode has not ended."""
    ours, others = (
        TransformedEnv(env, Compose(RewardSum(), StepCounter(max_steps=7)))
        for env in (VecenvEnv([CARTPOLE] * 3, backend="serial"), theirs([CARTPOLE] * 3))
    )
    with contextlib.closing(ours), contextlib.closing(others):
        for left, right in zip(roll_out(ours), roll_out(others)):
            assert_equal(left, right)


def test_device_is_that_of_all_tensors() -> None:
    ours, others = VecenvEnv([CARTPOLE] * 2, backend="serial", device="cpu"), theirs([CARTPOLE] * 2, device="cpu")
    with contextlib.closing(ours), contextlib.closing(others):
        for left, right in zip(roll_out(ours), roll_out(others)):
            assert left.device == torch.device("cpu")
            assert_equal(left, right)


def test_large_observations_are_lent_without_a_copy() -> None:
    image = functools.partial(SpaceEnv, Box(0, 255, (64, 64, 3), np.uint8), Discrete(2))
    with contextlib.closing(VecenvEnv([image] * 4, num_workers=2)) as env:
        memory = env.vector_env.pool.memory
        first = memory.ctypes.data
        obs = env.rand_step(env.reset())["next", "observation"]
        assert first <= obs.data_ptr() < first + memory.nbytes


# ---- masks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_reset_by_mask_changes_its_rows_only(shape: tuple[int, ...]) -> None:
    with contextlib.closing(VecenvEnv([CARTPOLE] * 3, num_workers=2)) as env:
        before = env.step_mdp(env.rand_step(env.reset()))
        after = env.reset(before.clone().set("_reset", torch.tensor([False, True, False]).view(shape)))
        same = (after["observation"] == before["observation"]).all(-1)
        assert same.tolist() == [True, False, True]
        assert "_reset" not in after


def test_step_of_an_ended_env_is_refused() -> None:
    with contextlib.closing(VecenvEnv([CARTPOLE] * 2, backend="serial")) as env:
        rollout = env.rollout(100)
        with pytest.raises(StateError, match=r"the episodes of envs \[\d.*first reset them with a mask '_reset'"):
            env.rand_step(env.step_mdp(rollout[:, -1]))
        env.rand_step(env.reset())


def test_rollout_until_all_have_ended_steps_the_others_only() -> None:
    """TorchRL leaves ended envs out by a mask "_step"."""
    with contextlib.closing(VecenvEnv([CARTPOLE] * 3, num_workers=2)) as env:
        env.set_seed(2)
        torch.manual_seed(0)
        rollout = env.rollout(100, break_when_all_done=True, break_when_any_done=False)
        done, obs = rollout["next", "done"].squeeze(-1), rollout["next", "observation"]
        lengths = done.int().argmax(-1) + 1
        assert done[:, -1].all() and len(set(lengths.tolist())) > 1
        for env_id, length in enumerate(lengths.tolist()):
            assert (obs[env_id, length:] == obs[env_id, length - 1]).all(), "the last observation is repeated"
        assert env.statistics()["steps"] == lengths.sum()


# ---- collectors --------------------------------------------------------------------------------


def collected(env: Any) -> list[Any]:
    torch.manual_seed(0)
    env.set_seed(4)
    collector = Collector(env, None, frames_per_batch=90, total_frames=270)
    batches = [batch.clone() for batch in collector]
    collector.shutdown()
    return batches


def test_collector_gives_the_batches_of_gym_wrapper() -> None:
    pairs = zip(collected(VecenvEnv([CARTPOLE] * 3, num_workers=2)), collected(theirs([CARTPOLE] * 3)), strict=True)
    for left, right in pairs:
        assert left["next", "done"].any()
        assert_equal(left, right)


@pytest.mark.extended
def test_multi_sync_collector_gives_the_batches_of_gym_wrapper() -> None:
    """Its envs live in processes of the collector, which start the workers."""
    kinds = [functools.partial(VecenvEnv, [CARTPOLE] * 3, num_workers=2), functools.partial(theirs, [CARTPOLE] * 3)]
    found = []
    for make_env in kinds:
        collector = MultiSyncCollector([make_env] * 2, None, frames_per_batch=60, total_frames=180, cat_results="stack")
        collector.set_seed(1)
        found.append([batch.clone() for batch in collector])
        collector.shutdown()
    for left, right in zip(*found, strict=True):
        for batch in (left, right):
            del batch["collector", "traj_ids"]  # both processes draw them from one counter
        assert_equal(left, right)


# ---- asynchronous calls ------------------------------------------------------------------------


def play(envs: Any) -> dict[int, list[Any]]:
    """Step three envs as they finish, 30 times each; return the observations of each, with those of resets."""
    seen: dict[int, list[Any]] = {env_id: [] for env_id in range(3)}
    envs.async_reset_send(env_index=[0, 1, 2])
    ready = list(envs.async_reset_recv(min_get=3))
    num_steps = dict.fromkeys(range(3), 0)
    while ready:
        for row in ready:
            env_id = int(row["env_index"])
            seen[env_id].append(row["observation"].tolist())
            row["action"] = torch.tensor([0, 1] if (num_steps[env_id] // 2 + env_id) % 2 else [1, 0])
            num_steps[env_id] += 1
        envs.async_step_send(torch.stack(ready))
        num_sent, ready, num_received = len(ready), [], 0
        while num_received < num_sent:
            stepped = envs.async_step_recv(min_get=1)
            num_received += len(stepped)
            for row in stepped:
                env_id = int(row["env_index"])
                following = envs.step_mdp(row)
                if row["next", "done"]:
                    seen[env_id].append(row["next", "observation"].tolist())
                    envs.async_reset_send(env_index=env_id)
                    following = envs.async_reset_recv(env_index=env_id)
                if num_steps[env_id] < 30:
                    ready.append(following.select("observation").set("env_index", torch.tensor(env_id)))
    return seen


def seeded(seed: int) -> Any:
    env = GymWrapper(CARTPOLE())
    env.set_seed(seed)
    return env


def test_asynchronous_loop_gives_the_episodes_of_async_env_pool() -> None:
    with contextlib.closing(VecenvEnv([CARTPOLE] * 3, num_workers=2)) as ours:
        ours.set_seed(4)
        found = play(ours)
        assert ours.reset()["observation"].shape == (3, 4)
    others = AsyncEnvPool([functools.partial(seeded, 4 + env_id) for env_id in range(3)], stack="lazy")
    with contextlib.closing(others):
        assert found == play(others)


def test_asynchronous_receive_returns_the_rows_that_were_asked_for() -> None:
    with contextlib.closing(VecenvEnv([CARTPOLE] * 3, num_workers=2)) as env:
        env.reset()
        with pytest.raises(StateError, match="an outstanding step"):
            env.async_step_recv()
        actions = env.rand_action()
        env.async_step_send(actions[:2], env_index=[2, 0])
        env.async_reset_send(env_index=1)
        assert env.async_step_recv(env_index=0)["next", "observation"].shape == (4,)
        assert int(env.async_reset_recv()[0]["env_index"]) == 1
        with pytest.raises(StateError, match=r"only the envs \[2\] have an outstanding step"):
            env.async_step_recv(2)
        assert env.async_step_recv(timeout=30.0).batch_size == (1,)
        with pytest.raises(ConfigError, match="async_step_send: give env_index, the ids of the envs"):
            env.async_step_send(actions)
        with pytest.raises(ConfigError, match="3"):
            env.async_reset_send(env_index=3)
        env.async_reset_send(env_index=2)
        env.reset()
        with pytest.raises(StateError, match="an outstanding reset"):
            env.async_reset_recv()


def test_asynchronous_receive_sorts_steps_resets_and_errors_of_one_batch() -> None:
    env_fns = [CARTPOLE, functools.partial(RaisingCartPole, 0), CARTPOLE, CARTPOLE]
    with contextlib.closing(VecenvEnv(env_fns, backend="serial")) as env:
        env.reset()
        env.async_step_send(env.rand_action()[:3], env_index=[0, 1, 2])
        env.async_reset_send(env_index=3)
        with pytest.raises(ZeroDivisionError):
            env.async_step_recv(3)
        stepped = env.async_step_recv(2)
        assert [int(row["env_index"]) for row in stepped] == [0, 2]
        assert stepped["next", "observation"].shape == (2, 4)
        assert env.async_reset_recv(env_index=3)["observation"].shape == (4,)
        assert env.reset()["observation"].shape == (4, 4)


def test_asynchronous_timeout_keeps_answers(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with contextlib.closing(VecenvEnv([CARTPOLE, functools.partial(WaitingCartPole, pipe)], num_workers=2)) as env:
        env.reset()
        env.async_step_send(env.rand_action(), env_index=[0, 1])
        with pytest.raises(TimeoutError, match="fewer than 1 answers"):
            env.async_step_recv(2, timeout=0.2)
        pipe.write_text("go on")
        assert env.async_step_recv(2).batch_size == (2,)


# ---- failures and wrong arguments --------------------------------------------------------------


def test_rollout_goes_on_after_a_worker_is_killed() -> None:
    ours, others = VecenvEnv([CARTPOLE] * 3, num_workers=2), theirs([CARTPOLE] * 3)
    with contextlib.closing(ours), contextlib.closing(others):
        found = []
        for env in (ours, others):
            env.set_seed(5)
            torch.manual_seed(0)
            first = env.rollout(5, break_when_any_done=False)
            if env is ours:
                os.kill(env.vector_env.worker_pids[0], signal.SIGKILL)
            rest = env.rollout(30, break_when_any_done=False, auto_reset=False, tensordict=env.step_mdp(first[:, -1]))
            found.append((first, rest))
        for left, right in zip(*found):
            assert_equal(left, right)
        assert ours.statistics()["restarts"] == 1


@pytest.mark.parametrize(
    "options, error, text",
    [
        ({"num_worker": 2}, ConfigError, "did you mean 'num_workers'"),
        ({"infos": "all"}, ConfigError, "VecenvEnv: infos is always 'none', not 'all'"),
        ({"copy": False}, ConfigError, "VecenvEnv: copy is always True, not False"),
        ({"autoreset_mode": AutoresetMode.DISABLED}, ConfigError, "autoreset_mode is always"),
        ({"space": Tuple([Discrete(2)])}, SpaceError, "observation_space: TorchRL has no tensors for a Tuple space"),
        ({"space": Dict(a=Text(3))}, SpaceError, "observation_space/a: TorchRL has no tensors for a Text space"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], error: type[Exception], text: str) -> None:
    env_fn = functools.partial(SpaceEnv, options.pop("space", None))
    with pytest.raises(error, match=text):
        VecenvEnv([env_fn], backend="serial", **options)


def test_close_and_copies() -> None:
    env = VecenvEnv([CARTPOLE], backend="serial")
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        pickle.dumps(env)
    with pytest.raises(StateError, match="a reset of all envs has to come before"):
        env.reset(env.fake_tensordict().set("_reset", torch.zeros(1, dtype=torch.bool)))
    assert not env.is_closed and "VecenvEnv(" in repr(env)
    env.close()
    assert env.is_closed and env.vector_env.closed
    env.shutdown()
    with pytest.raises(RuntimeError, match="closed already"):
        env.close()
