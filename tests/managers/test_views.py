"""copy_on_get=False: observations are lent from the ring, and do not change while the caller has them."""

from __future__ import annotations

import os

import pytest

from tests.managers.fakes import IN_PROCESS, WITH_WORKERS, ActorEnv, actors
from vecenv.core.operations import engine
from vecenv.core.parent import leases
from vecenv.ding import AsyncSubprocessEnvManager, BaseEnvManager

WAITS_FOR_ALL = {"wait_num": 100, "step_wait_timeout": None}


@pytest.fixture(autouse=True)
def lend_small_batches(monkeypatch):
    """Lend batches of any size."""
    monkeypatch.setattr(leases, "MIN_NBYTES", 1)
    monkeypatch.setattr(engine, "MIN_NBYTES", 1)


def launched(manager_cls, env_fn, **cfg):
    own = {"num_workers": len(env_fn)} if manager_cls in WITH_WORKERS else {}
    own.update(WAITS_FOR_ALL if manager_cls is AsyncSubprocessEnvManager else {})
    manager = manager_cls(env_fn, {"copy_on_get": False, "depth": 2, "retry_waiting_time": 0.001, **own, **cfg})
    manager.launch()
    return manager


def steps_of(manager, actions):
    """Return {env_id: timestep} of one step."""
    timesteps = manager.step(actions)
    return timesteps if isinstance(timesteps, dict) else {int(tree.env_id): tree for tree in timesteps}


class Stubborn(ActorEnv):
    """An env some of whose resets and steps raise."""

    failing_resets = 0
    failing_steps = 0

    def reset(self, stat=None):
        if self.episodes and self.failing_resets:
            self.failing_resets -= 1
            raise ZeroDivisionError("not yet")
        return super().reset(stat)

    def step(self, action):
        if self.steps and self.failing_steps:
            self.failing_steps -= 1
            raise LookupError("not yet")
        return super().step(action)


def stubborn(number, length, *, resets=0, steps=0):
    def make():
        env = Stubborn({"number": number, "length": length})
        env.failing_resets, env.failing_steps = resets, steps
        return env

    return make


@pytest.mark.parametrize("manager_cls", [*IN_PROCESS, *WITH_WORKERS])
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("num_failing", [0, 1, 6])
def test_step_that_waits_for_resets_returns_unchanged_views(manager_cls, inplace, num_failing):
    """Regression: the answers to the resets had overwritten the views."""
    cfg = {"reset_inplace": inplace} if manager_cls in WITH_WORKERS else {}
    inplace = inplace and manager_cls in WITH_WORKERS
    env_fn = [*actors(2, length=9), stubborn(2, 2, resets=num_failing)]
    with launched(manager_cls, env_fn, max_retry=8, **cfg) as manager:
        steps_of(manager, {0: 0, 1: 0, 2: 0})
        timesteps = steps_of(manager, {0: 0, 1: 0, 2: 0})
        while 2 not in timesteps:  # asynchronous with reset_inplace: it waits for the next episode's observation
            timesteps.update(steps_of(manager, {}))
        last = timesteps[2]
        assert last.done and last.obs.tolist() == ([2, 0, 2] if inplace else [2, 2, 1])
        if inplace:
            assert last.info["final_obs"].tolist() == [2, 2, 1]
        if manager_cls is not AsyncSubprocessEnvManager or not inplace:  # else an earlier call returned theirs
            assert [timesteps[env_id].obs.tolist() for env_id in (0, 1)] == [[0, 2, 1], [1, 2, 1]]


@pytest.mark.parametrize("manager_cls", IN_PROCESS)
@pytest.mark.parametrize("last_fails", [False, True])
def test_step_retry_returns_timesteps_of_the_first_attempt(manager_cls, last_fails):
    env_fn = [*actors(2, length=9), stubborn(2, 9, steps=9 if last_fails else 3)]
    with launched(manager_cls, env_fn, max_retry=4) as manager:
        steps_of(manager, {0: 0, 1: 0, 2: 0})
        if last_fails:
            with pytest.raises(RuntimeError, match="failed in 4 attempts") as caught:
                manager.step({0: 0, 1: 0, 2: 0})
            timesteps = caught.value.timesteps
            assert sorted(timesteps) == [0, 1]
        else:
            timesteps = steps_of(manager, {0: 0, 1: 0, 2: 0})
        expected = {0: [0, 2, 1], 1: [1, 2, 1], 2: [2, 2, 1]}
        assert {env_id: step.obs.tolist() for env_id, step in timesteps.items()} == {
            env_id: expected[env_id] for env_id in timesteps
        }


@pytest.mark.extended
def test_last_timestep_keeps_its_observation_after_the_reset(tmp_path):
    """Regression: the view expired once the first observation of the next episode had arrived."""
    gates = [str(tmp_path / f"gate {number}") for number in range(5)]
    for gate in gates:
        os.mkfifo(gate)

    class Opens(ActorEnv):
        """An env whose second reset opens a gate; steps of the other envs open further gates."""

        def reset(self, stat=None):
            if self.episodes:
                os.close(os.open(gates[0], os.O_WRONLY))
            return super().reset(stat)

        def step(self, action):
            timestep = super().step(action)
            if isinstance(action, str) and self._cfg["number"] < len(gates):
                os.close(os.open(gates[self._cfg["number"]], os.O_WRONLY))
            return timestep

    def maker(number):
        return lambda: Opens({"number": number, "length": 1 if number == 0 else 9})

    env_fn = [maker(number) for number in range(6)]
    cfg = {"max_retry": 2, "wait_num": 1, "step_wait_timeout": 30.0, "depth": 3}
    with launched(AsyncSubprocessEnvManager, env_fn, **cfg) as manager:
        timesteps = manager.step({0: 0, **{number + 1: gate for number, gate in enumerate(gates)}})
        assert [timesteps[env_id].obs.tolist() for env_id in range(6)] == [[env_id, 1, 1] for env_id in range(6)]
        assert timesteps[0].done


@pytest.mark.parametrize("depth", [2, 3])
def test_ready_obs_after_an_abnormal_timestep_is_a_valid_copy(depth):
    with launched(BaseEnvManager, actors(2, length=99), depth=depth) as manager:
        manager.step({0: 0, 1: 0})
        for _ in range(depth - 2):
            manager.step({1: 0})
        manager.step({0: "abnormal"})
        assert [obs.tolist() for obs in manager.ready_obs.values()] == [[0, 1, 1], [1, depth - 1, 1]]


@pytest.mark.parametrize("manager_cls", [*IN_PROCESS, *WITH_WORKERS])
def test_lent_observations_do_not_change(manager_cls, monkeypatch):
    """Those of the first batches are lent, those of later ones copied, since all blocks are lent."""
    is_lent = []
    take = leases.Leases.take

    def recorded_take(self, rows):
        lent = take(self, rows)
        is_lent.append(lent is not None)
        return lent

    monkeypatch.setattr(leases.Leases, "take", recorded_take)
    with launched(manager_cls, actors(2, length=99)) as manager:
        kept = [steps_of(manager, {0: 0, 1: 0}) for _ in range(20)]
        assert is_lent == [True] * 3 + [False] * 17
        for steps, timesteps in enumerate(kept, 1):
            assert [timesteps[env_id].obs.tolist() for env_id in (0, 1)] == [[0, steps, 1], [1, steps, 1]]
        del kept, timesteps
        is_lent.clear()
        for _ in range(20):
            manager.step({0: 0, 1: 0})
        assert all(is_lent), "blocks come back once the caller drops their observations"
