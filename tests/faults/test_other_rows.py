"""An exception of one env: the answers of the other envs reach the caller, in `error.rows`."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from vecenv import BatchedVectorEnv, VectorEnv, collect, evaluate
from vecenv.alf import ParallelAlfEnvironment

BACKENDS = [{"backend": "serial"}, {"num_workers": 2}]


class CountEnv(gymnasium.Env):
    """Observations count the steps from a seed; calls named in `raises` raise instead of answering."""

    def __init__(self, raises: dict[str, tuple[int, ...]], length: int = 100) -> None:
        self.observation_space = spaces.Box(-1e9, 1e9, (1,), np.float64)
        self.action_space = spaces.Discrete(2)
        self.raises, self.length = raises, length
        self.calls = {"reset": 0, "step": 0}
        self.count = self.begin = self.task = 0

    def set_task(self, task: int) -> None:
        self.task = task

    def _note(self, what: str) -> None:
        self.calls[what] += 1
        if self.calls[what] in self.raises.get(what, ()):
            raise LookupError(f"{what} {self.calls[what]}")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._note("reset")
        self.begin = self.count = self.begin + 1000 if seed is None else 100 * seed
        return np.array([self.count], np.float64), {}

    def step(self, action: Any) -> Any:
        self._note("step")
        self.count += 1
        obs = np.array([self.count], np.float64)
        return obs, float(self.count), self.count - self.begin >= self.length, False, {"count": self.count}


def env_fns(count: int = 3, bad: int = 1, length: int = 100, **raises: Any) -> list[Any]:
    return [functools.partial(CountEnv, raises if i == bad else {}, length) for i in range(count)]


def expect_rows(call: Any, message: str) -> Any:
    with pytest.raises(LookupError, match=message) as caught:
        call()
    return caught.value.rows


@pytest.mark.parametrize("options", BACKENDS, ids=["serial", "process"])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_step_error_carries_rows_of_other_envs(options: Any, mode: str) -> None:
    envs = VectorEnv(env_fns(step=(3,)), autoreset_mode=mode, **options)
    envs.reset(seed=1)
    for _ in range(2):
        obs, *_ = envs.step([0, 0, 0])
    assert obs.ravel().tolist() == [102, 202, 302]
    rows = expect_rows(lambda: envs.step([0, 0, 0]), "step 3")
    obs, rewards, terminated, truncated, infos = rows.result
    assert rows.mask.tolist() == [True, False, True]
    assert obs.ravel().tolist() == [103, 202, 303]
    assert rewards.tolist() == [103.0, 0.0, 303.0]
    assert not terminated.any() and not truncated.any()
    assert infos["count"].tolist() == [103, 0, 303] and infos["_count"].tolist() == [True, False, True]
    assert envs.observations.ravel().tolist() == [103, 202, 303]
    envs.reset(env_id=[1])
    obs, *_ = envs.step([0, 0, 0])
    assert obs.ravel().tolist() == [104, 1201, 304]
    envs.close()


@pytest.mark.parametrize("options", BACKENDS, ids=["serial", "process"])
def test_step_wait_and_recv_errors_carry_rows_of_other_envs(options: Any) -> None:
    envs = VectorEnv(env_fns(step=(1, 2)), **options)
    envs.reset(seed=1)
    envs.step_async([0, 0, 0])
    rows = expect_rows(envs.step_wait, "step 1")
    assert rows.result[0].ravel().tolist() == [101, 200, 301]
    envs.send([0, 0, 0])
    rows = expect_rows(lambda: envs.recv(3), "step 2")
    by_id = dict(zip(rows.result[4]["env_id"].tolist(), rows.result[0].ravel().tolist()))
    assert by_id == {0: 102, 1: 200, 2: 302}
    assert dict(zip(rows.result[4]["env_id"].tolist(), rows.mask.tolist())) == {0: True, 1: False, 2: True}
    envs.close()


@pytest.mark.parametrize("options", BACKENDS, ids=["serial", "process"])
def test_reset_error_carries_rows_of_other_envs(options: Any) -> None:
    envs = VectorEnv(env_fns(reset=(1, 3, 4)), **options)
    rows = expect_rows(lambda: envs.reset(seed=1), "reset 1")
    assert rows.mask.tolist() == [True, False, True]
    assert rows.result[0].ravel().tolist() == [100, 0, 300] and rows.result[1] == {}
    assert envs.observations is None
    envs.reset(env_id=[1], seed=1)
    envs.step([0, 0, 0])
    rows = expect_rows(lambda: envs.reset(options={"reset_mask": np.array([True, True, False])}), "reset 3")
    assert rows.mask.tolist() == [True, False, True]
    assert rows.result[0].ravel().tolist() == [1100, 201, 301]
    rows = expect_rows(lambda: envs.reset(env_id=[1, 0]), "reset 4")
    assert rows.mask.tolist() == [False, True]
    assert rows.result[0].ravel().tolist() == [201, 2100] and rows.result[1]["env_id"].tolist() == [1, 0]
    envs.close()


def test_error_with_own_rule_for_attributes_carries_rows() -> None:
    envs = VectorEnv([functools.partial(FrozenErrorEnv, {}), *env_fns(1, bad=-1)], backend="serial")
    envs.reset(seed=1)
    with pytest.raises(FrozenError) as caught:
        envs.step([0, 0])
    assert caught.value.rows.mask.tolist() == [False, True]
    envs.close()


class FrozenError(Exception):
    """An exception whose attributes cannot be set."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(name)


class FrozenErrorEnv(CountEnv):
    def step(self, action: Any) -> Any:
        raise FrozenError("no")


def test_two_errors_of_one_step_leave_both_envs_out_of_the_mask() -> None:
    envs = VectorEnv(
        [functools.partial(CountEnv, {"step": (1,)}) for _ in range(2)] + env_fns(1, bad=-1), backend="serial"
    )
    envs.reset(seed=0)
    with pytest.raises(LookupError) as caught:
        envs.step([0, 0, 0])
    assert caught.value.rows.mask.tolist() == [False, False, True]
    assert "env 1 raised LookupError" in "".join(caught.value.__notes__)
    envs.close()


def test_spare_envs_deliver_rows_of_other_envs() -> None:
    envs = VectorEnv(env_fns(step=(3,), length=2), num_spare_envs=3, num_workers=2)
    envs.reset(seed=1)
    envs.step([0, 0, 0])
    envs.step([0, 0, 0])
    envs.step([0, 0, 0])  # first observations of spare envs
    rows = []
    for _ in range(6):
        try:
            envs.step([0, 0, 0])
        except LookupError as error:
            rows.append(error.rows)
    assert [one.mask.tolist() for one in rows] == [[True, False, True]]
    assert (rows[0].result[0][[0, 2]] > 0).all()
    envs.close()


class CountVectorEnv(gymnasium.vector.VectorEnv):
    """Two envs that count together."""

    def __init__(self, raises: dict[str, tuple[int, ...]]) -> None:
        self.inner = CountEnv(raises)
        self.num_envs = 2
        self.single_observation_space, self.single_action_space = self.inner.observation_space, self.inner.action_space
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, 2)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, 2)
        self.metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        obs, _ = self.inner.reset(seed=seed)
        return np.stack([obs, obs + 0.5]), {}

    def step(self, actions: Any) -> Any:
        obs, reward, *_ = self.inner.step(0)
        return np.stack([obs, obs + 0.5]), np.full(2, reward), np.zeros(2, bool), np.zeros(2, bool), {}


@pytest.mark.parametrize("options", BACKENDS, ids=["serial", "process"])
def test_batched_vector_env_carries_rows_of_other_batches(options: Any) -> None:
    envs = BatchedVectorEnv(
        [functools.partial(CountVectorEnv, {"step": (2,), "reset": (2,)} if i == 1 else {}) for i in range(3)],
        mark_autoreset=True,
        **options,
    )
    envs.reset(seed=1)
    envs.step(np.zeros(6, int))
    rows = expect_rows(lambda: envs.step(np.zeros(6, int)), "step 2")
    assert rows.mask.tolist() == [True, True, False, False, True, True]
    assert rows.result[0].ravel().tolist() == [102, 102.5, 301, 301.5, 502, 502.5]
    assert rows.result[1].tolist() == [102, 102, 0, 0, 502, 502]
    rows = expect_rows(lambda: envs.reset(env_id=[2, 3, 4]), "reset 2")
    assert rows.mask.tolist() == [False, False, True]
    assert rows.result[0].ravel().tolist()[:2] == [301, 301.5]
    envs.close()


def test_sb3_vec_env_carries_rows_of_other_envs() -> None:
    SB3VecEnv = pytest.importorskip("vecenv.integrations.sb3", exc_type=ImportError).SB3VecEnv
    envs = SB3VecEnv(env_fns(step=(2,)), num_workers=2)
    envs.seed(1)
    envs.reset()
    envs.step(np.zeros(3, int))
    envs.step_async(np.zeros(3, int))
    rows = expect_rows(envs.step_wait, "step 2")
    obs, rewards, dones, infos = rows.result
    assert obs.ravel().tolist() == [102, 201, 302] and rewards.tolist() == [102, 0, 302] and not dones.any()
    assert [info.get("count") for info in infos] == [102, None, 302]
    envs.close()


def test_alf_environment_carries_rows_of_other_envs() -> None:
    constructors = [functools.partial(_alf_env, {"step": (2,)} if i == 1 else {}) for i in range(3)]
    for num_spares, options in ((0, {}), (0, {"reset_ahead": True}), (3, {"num_spare_envs_for_reload": 3})):
        spares = [functools.partial(_alf_env, {})] * num_spares
        with ParallelAlfEnvironment(constructors + spares, tensors=False, num_workers=2, **options) as envs:
            envs.seed([1, 2, 3])
            envs.reset()
            envs.step(np.zeros(3, np.int64))
            rows = expect_rows(lambda: envs.step(np.zeros(3, np.int64)), "step 2")
            assert rows.mask.tolist() == [True, False, True]
            assert rows.result.observation.ravel().tolist() == [102, 201, 302]
            assert rows.result.reward.tolist() == [102, 0, 302]


def _alf_env(raises: Any, env_id: int = 0) -> Any:
    from vecenv.alf.gym.wrapper import AlfGymWrapper

    return AlfGymWrapper(CountEnv(raises))


def test_collected_contains_rows_of_other_envs() -> None:
    for options in ({"backend": "serial"}, {"num_workers": 2}):
        envs = VectorEnv(env_fns(step=(4,)), **options)
        envs.reset(seed=1)
        with pytest.raises(LookupError) as caught:
            collect(envs, lambda obs, env_ids: np.zeros(len(obs), int), steps=30)
        collected = caught.value.collected
        by_env = {i: collected.rewards[collected.env_id == i].tolist() for i in range(3)}
        first = by_env[0][0]
        assert by_env[0] == [first + i for i in range(4)]
        assert len(by_env[1]) == 3 and len(by_env[2]) == 4
        envs.close()


def test_evaluation_contains_episodes_that_ended_in_the_step_of_an_error() -> None:
    envs = VectorEnv(env_fns(step=(3,), length=3), backend="serial")
    with pytest.raises(LookupError) as caught:
        evaluate(envs, lambda obs, env_ids: np.zeros(len(obs), int), seeds=[1, 2, 3])
    assert caught.value.result.seeds.tolist() == [1, 3]
    envs.close()
