"""shared_memory=False: observations that do not fit their space, as in LightZero's tutorial."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from vecenv import EnvError, SpaceError, StateError
from vecenv.ding import BaseEnv, BaseEnvTimestep, EnvState, create_env_manager
from vecenv.envs.spaces import ObjectSpace


class TutorialEnv(BaseEnv):
    """An env whose observations are dicts; its space is that of their item `observation`."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)
    reward_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, cfg: Any = None) -> None:
        self.num_steps = 0

    def reset(self) -> Any:
        self.num_steps = 0
        return self.observe()

    def observe(self) -> Any:
        observation = np.full(2, self.num_steps / 4, np.float32)
        mask = np.ones(2, np.int8) if self.num_steps % 2 else None
        return {"observation": observation, "action_mask": mask, "to_play": -1}

    def step(self, action: Any) -> BaseEnvTimestep:
        self.num_steps += 1
        done = self.num_steps == 3
        info = {"eval_episode_return": 3.0} if done else {}
        return BaseEnvTimestep(self.observe(), np.ones(1, np.float32), done, info)

    def close(self) -> None:
        pass


def look(obs: Any) -> tuple[list[float], bool, int]:
    mask = obs["action_mask"]
    return obs["observation"].tolist(), mask is None, obs["to_play"]


@pytest.mark.parametrize("max_retry", [1, 2], ids=["resets in the row", "resets by command"])
@pytest.mark.parametrize("kind", ["base", "subprocess", "async_subprocess"])
def test_untyped_dicts_are_returned_unchanged(kind: str, max_retry: int) -> None:
    cfg = {"type": kind, "shared_memory": False, "max_retry": max_retry}
    with create_env_manager(cfg, [TutorialEnv] * 2) as manager:
        manager.launch()
        assert manager.observation_space == TutorialEnv.observation_space
        ready = manager.ready_obs
        shown, ends = [look(ready[0])], []
        while len(shown) < 5:
            for env_id, timestep in manager.step(dict.fromkeys(ready, 0)).items():
                if env_id == 0:
                    ends.append((look(timestep.obs), timestep.done))
            ready = manager.ready_obs
            if 0 in ready:
                shown.append(look(ready[0]))
    quarters = [([step / 4] * 2, step % 2 == 0, -1) for step in (0, 1, 2, 3, 0)]
    assert [obs for obs, done in ends if done] == quarters[3:4]
    assert shown[:3] == quarters[:3] and shown[-2] in (quarters[0], quarters[2])


@pytest.mark.parametrize("kind", ["base_v2", "subprocess_v2"])
def test_untyped_dicts_are_returned_as_trees(kind: str) -> None:
    with create_env_manager({"type": kind, "shared_memory": False}, [TutorialEnv] * 2) as manager:
        manager.launch()
        trees = manager.step([0, 1])
        assert trees[1].obs.observation.tolist() == [0.25, 0.25] and trees[1].obs.to_play == -1
        assert manager.ready_obs.observation.shape == (2, 2)


def test_untyped_dicts_survive_a_crash() -> None:
    with create_env_manager({"type": "subprocess", "shared_memory": False}, [TutorialEnv] * 2) as manager:
        manager.launch()
        manager.step({0: 0, 1: 0})
        os.kill(manager.worker_pids[0], signal.SIGKILL)
        timesteps = manager.step({0: 0, 1: 0})
        assert [look(timesteps[env_id].obs) for env_id in (0, 1)] == [([0.5, 0.5], True, -1)] * 2


@pytest.mark.parametrize("kind", ["base", "subprocess"])
def test_untyped_dicts_in_shared_memory_raise_with_a_remedy(kind: str) -> None:
    manager = create_env_manager({"type": kind}, [TutorialEnv] * 2)
    with pytest.raises(EnvError, match="got a dict with keys .*shared_memory=False"):
        manager.launch()


def test_untyped_space_contains_any_value() -> None:
    space = ObjectSpace(TutorialEnv.observation_space)
    assert space.contains({"anything": None}) and space.sample().shape == (2,)
    assert space == ObjectSpace(TutorialEnv.observation_space) != ObjectSpace(spaces.Discrete(2))
    assert hash(space) == hash(ObjectSpace(spaces.Discrete(2))) and not space.is_np_flattenable
    assert repr(space).startswith("ObjectSpace(Box(")
    assert ObjectSpace(None) == ObjectSpace(None) and ObjectSpace(None).sample() is None


class Spaceless(TutorialEnv):
    """An env without spaces, as in DI-engine's league_demo."""

    observation_space = action_space = reward_space = None  # type: ignore[assignment]

    def step(self, action: Any) -> BaseEnvTimestep:
        if action == ["stop"]:
            return BaseEnvTimestep(None, None, False, {"abnormal": True})
        timestep = super().step(action)
        return timestep._replace(info={**timestep.info, "got": action})


ALL = ["base", "base_v2", "subprocess", "async_subprocess", "subprocess_v2"]


@pytest.mark.parametrize("kind", ALL)
def test_envs_without_spaces_take_and_return_any_value(kind: str) -> None:
    cfg = {"type": kind, "shared_memory": False, "num_workers": 1, "wait_num": 100, "step_wait_timeout": None}
    with create_env_manager(cfg, [Spaceless] * 2) as manager:
        assert manager.observation_space is None and manager.action_space is None
        manager.seed(3)
        manager.launch()
        assert manager.observation_space is None and manager.action_space is None
        with pytest.raises(StateError, match="declare no action_space"):
            manager.random_action()
        for number in range(1, 6):
            while EnvState.RESET in manager.env_states.values():  # the asynchronous manager waits here
                manager.step({})
            if number == 3 and kind not in ("base", "base_v2"):
                os.kill(manager.worker_pids[0], signal.SIGKILL)
            results = manager.step({env_id: [env_id, "go"] for env_id in manager.ready_obs_id})
            for timestep in results.values() if isinstance(results, dict) else results:
                assert timestep.info["got"] == [0, "go"] or timestep.info["got"] == [1, "go"]
                assert timestep.obs["observation"][0] == ((number - 1) % 3 + 1) / 4
        assert manager.env_episode_count == {0: 1, 1: 1}


@pytest.mark.parametrize("kind", ["base", "subprocess", "async_subprocess"])
def test_envs_without_spaces_return_abnormal_timesteps(kind: str) -> None:
    with create_env_manager({"type": kind, "shared_memory": False}, [Spaceless]) as manager:
        manager.launch()
        timestep = manager.step({0: ["stop"]})[0]
        assert timestep.obs is None and timestep.info["abnormal"] is True
        manager.reset({0: None})
        assert look(manager.ready_obs[0]) == ([0.0, 0.0], True, -1)


@pytest.mark.parametrize("kind", ["base", "subprocess"])
def test_spaces_are_needed_in_shared_memory(kind: str) -> None:
    manager = create_env_manager({"type": kind}, [Spaceless])
    with pytest.raises(SpaceError, match="missing, also after a reset; shared_memory=False takes envs without spaces"):
        manager.observation_space  # noqa: B018
    with pytest.raises(SpaceError, match="missing, also after a reset; shared_memory=False takes envs without spaces"):
        manager.launch()
