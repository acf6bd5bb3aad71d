"""`infos="legacy"`: the infos of Gymnasium 0.29, for programs that were written for that."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import RecordEpisodeStatistics

from vecenv import ConfigError, VectorEnv
from vecenv.envs import toys

LENGTHS = (3, 4, 3, 5)


class NumberEnv(toys.ToyEnv):
    """Its infos contain a number, which travels in shared memory."""

    def make_info(self) -> dict[str, Any]:
        return {"steps": self.elapsed_steps}


class TextEnv(toys.ToyEnv):
    """Its infos contain a text in some steps, so some are pickled."""

    def make_info(self) -> dict[str, Any]:
        info = {"steps": self.elapsed_steps}
        return {**info, "text": f"step {self.elapsed_steps}"} if self.elapsed_steps % 2 else info


def record(length: int, env_class: type[gymnasium.Env[Any, Any]]) -> gymnasium.Env[Any, Any]:
    return RecordEpisodeStatistics(env_class(length))  # type: ignore[call-arg]


def step_as_in_0_29(env: gymnasium.Env[Any, Any], action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    """Step one env as the workers of Gymnasium 0.29 do."""
    obs, reward, terminated, truncated, info = env.step(action)
    if terminated or truncated:
        old_obs, old_info = obs, info
        obs, info = env.reset()
        info["final_observation"], info["final_info"] = old_obs, old_info
    return obs, float(reward), terminated, truncated, info


@pytest.mark.parametrize("env_class", [NumberEnv, TextEnv])
def test_infos_are_those_of_gymnasium_0_29(backend: str, env_class: Callable[..., Any]) -> None:
    env_fns = [functools.partial(record, length, env_class) for length in LENGTHS]
    plain = [env_fn() for env_fn in env_fns]
    options: dict[str, Any] = {"infos": "legacy", "autoreset_mode": AutoresetMode.SAME_STEP}
    num_ends = 0
    with VectorEnv(env_fns, backend=backend, **options) as envs:
        envs.reset(seed=3)
        for env_id, env in enumerate(plain):
            env.reset(seed=3 + env_id)
        for _ in range(15):
            obs, _, terminations, truncations, infos = envs.step(np.zeros(len(plain), np.int64))
            expected = [step_as_in_0_29(env, 0) for env in plain]
            np.testing.assert_array_equal(obs, np.stack([one[0] for one in expected]))
            ended = terminations | truncations
            assert "final_obs" not in infos and ("final_info" in infos) == ended.any() == ("final_observation" in infos)
            for env_id, (*_, info) in enumerate(expected):
                final_info, final_obs = info.pop("final_info", None), info.pop("final_observation", None)
                for key, value in info.items():
                    assert infos[key][env_id] == value and infos[f"_{key}"][env_id]
                if not ended.any():
                    continue
                assert infos["_final_info"][env_id] == infos["_final_observation"][env_id] == ended[env_id]
                np.testing.assert_array_equal(infos["final_observation"][env_id], final_obs)
                if final_info is not None:  # as CleanRL's programs read it
                    final_info["episode"].pop("t"), infos["final_info"][env_id]["episode"].pop("t")
                    num_ends += 1
                assert infos["final_info"][env_id] == final_info
            if ended.any():
                assert infos["final_info"].dtype == infos["final_observation"].dtype == object
    assert num_ends == 16


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_other_autoreset_modes_are_refused(mode: AutoresetMode) -> None:
    with pytest.raises(ConfigError, match="infos='legacy': .* add autoreset_mode='SameStep'"):
        VectorEnv([toys.CountEnv], infos="legacy", autoreset_mode=mode)
