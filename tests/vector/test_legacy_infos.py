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
                if final_info is not None:  # CleanRL's programs read it so
                    final_info["episode"].pop("t"), infos["final_info"][env_id]["episode"].pop("t")
                    num_ends += 1
                assert infos["final_info"][env_id] == final_info
            if ended.any():
                assert infos["final_info"].dtype == infos["final_observation"].dtype == object
    assert num_ends == 16


class InfoEnv(toys.ToyEnv):
    """Its infos are those of a list, one per reset or step."""

    def __init__(self, infos: list[dict[str, Any]], length: int = 100) -> None:
        super().__init__(length)  # type: ignore[call-arg]
        self.remaining = list(infos)

    def make_info(self) -> dict[str, Any]:
        return self.remaining.pop(0)


def form(array: Any) -> Any:
    """Return the dtype of an array and its items, with the types and dtypes of these."""
    assert type(array) is np.ndarray and array.shape == (2,)
    return array.dtype, [_form_of_item(item) for item in (array if array.dtype == object else array.tolist())]


def _form_of_item(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: _form_of_item(value) for key, value in item.items()}
    return (item.dtype, item.tolist()) if isinstance(item, np.ndarray) else (type(item), item)


I32, F32, OBJECT = np.dtype(np.int32), np.dtype(np.float32), np.dtype(object)
NONE = (type(None), None)


@pytest.mark.parametrize(
    "first, second, expected",
    [
        ({"q": 1}, {"q": 2}, (OBJECT, [{"q": (int, 1)}, {"q": (int, 2)}])),
        (3, 4, (np.dtype(int), [(int, 3), (int, 4)])),
        (np.float32(0.5), None, (F32, [(float, 0.5), (float, 0.0)])),
        (None, True, (np.dtype(bool), [(bool, False), (bool, True)])),
        (np.True_, np.False_, (OBJECT, [(np.bool_, True), (np.bool_, False)])),
        ("a", None, (OBJECT, [(str, "a"), NONE])),
        (np.array([1, 2], I32), np.array([3, 4], I32), (OBJECT, [(I32, [1, 2]), (I32, [3, 4])])),
        (np.array([0.5], F32), np.zeros((2, 0), F32), (OBJECT, [(F32, [0.5]), (F32, [[], []])])),
        (np.zeros(40, F32), None, (OBJECT, [(F32, [0.0] * 40), NONE])),
        (np.array(7, I32), None, (OBJECT, [(I32, 7), NONE])),
        ({"q": {"r": np.float32(1)}}, {}, (OBJECT, [{"q": {"r": (np.float32, 1.0)}}, {}])),
        (None, {"q": "a"}, (OBJECT, [NONE, {"q": (str, "a")}])),
        ([1, 2], (3,), (OBJECT, [(list, [1, 2]), (tuple, (3,))])),
    ],
)
def test_only_numbers_have_an_array_of_their_type(first: Any, second: Any, expected: Any) -> None:
    """The expected arrays are those of Gymnasium 0.29.1's `SyncVectorEnv`; None stands for an info without the key."""
    infos = [{} if value is None else {"key": value} for value in (first, second)]
    mask = [value is not None for value in (first, second)]
    options: dict[str, Any] = {"infos": "legacy", "autoreset_mode": AutoresetMode.SAME_STEP, "backend": "serial"}
    with VectorEnv([functools.partial(InfoEnv, [info] * 7, 4) for info in infos], **options) as envs:
        results = [envs.reset()[1], *(envs.step([0, 0])[4] for _ in range(4))]  # the last step ends both episodes
    for found in results:
        array = found["key"]
        dtype, items = expected
        if array.dtype != object:
            items = [value for _, value in items]
            assert array.dtype == dtype and array.tolist() == items
        else:
            assert form(array) == (dtype, items)
        assert found["_key"].dtype == bool and found["_key"].tolist() == mask
    assert [len(found) for found in results] == [2, 2, 2, 2, 6]
    assert results[-1]["final_info"].dtype == object and results[-1]["_final_info"].tolist() == [True, True]
    for info, final_info in zip(infos, results[-1]["final_info"], strict=True):
        assert _form_of_item(final_info) == _form_of_item(info)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_other_autoreset_modes_are_refused(mode: AutoresetMode) -> None:
    with pytest.raises(ConfigError, match="infos='legacy': .* add autoreset_mode='SameStep'"):
        VectorEnv([toys.CountEnv], infos="legacy", autoreset_mode=mode)
