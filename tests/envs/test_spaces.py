"""The space of None, alone and in pools: it has neither a column nor a payload."""

from __future__ import annotations

import copy
import functools
import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from vecenv import NoneSpace, SpaceError, VectorEnv
from vecenv.core.layout.spec import Spec
from vecenv.ding import BaseEnvManager, SubprocessEnvManagerV2, SyncSubprocessEnvManager

SPACE = spaces.Dict(mask=NoneSpace(), pair=spaces.Tuple((NoneSpace(), spaces.Discrete(3))))


class NoneEnv(gymnasium.Env):
    """Its observations contain None twice; from the third step on one of them may be another value."""

    def __init__(self, wrong=False):
        self.observation_space, self.action_space, self._wrong = SPACE, spaces.Discrete(2), wrong
        self._steps = 0

    def _observe(self):
        return {"mask": 0 if self._wrong and self._steps > 2 else None, "pair": (None, self._steps % 3)}

    def reset(self, *, seed=None, options=None):
        self._steps = 0
        return self._observe(), {}

    def step(self, action):
        self._steps += 1
        return self._observe(), 1.0, self._steps == 4, False, {}


class ArrayAndNone(gymnasium.Env):
    """Its observations are one array and None."""

    observation_space = spaces.Dict(mask=NoneSpace(), position=spaces.Box(-9.0, 9.0, (2,)))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return {"mask": None, "position": np.zeros(2, np.float32)}, {}

    def step(self, action):
        return {"mask": None, "position": np.array([1, 2], np.float32)}, 0.0, False, False, {}


def test_none_space_is_a_space():
    space = NoneSpace(seed=3)
    assert space.contains(space.sample()) and not space.contains(np.zeros(1)) and None in space
    assert space == NoneSpace() != spaces.Discrete(1) and len({space, NoneSpace()}) == 1
    assert space.from_jsonable(space.to_jsonable([None, None])) == [None, None]
    assert not space.is_np_flattenable
    for other in (copy.deepcopy(space), pickle.loads(pickle.dumps(space))):
        assert other == space
    assert SPACE.contains(SPACE.sample())


def test_none_space_has_no_column_and_no_payload():
    spec = Spec(SPACE, "obs")
    assert [leaf.path for leaf in spec.leaves] == ["obs/pair/1"] and spec.num_objects == 0
    value = {"mask": None, "pair": (None, 2)}
    assert spec.conform(value) == {"mask": (), "pair": ((), 2)} and spec.objects(value) == []
    with pytest.raises(SpaceError, match="obs/mask: expected None, got int"):
        spec.conform({"mask": 1, "pair": (None, 2)})


def test_none_space_leaves_objects_beside_it_unchanged():
    spec = Spec(spaces.Dict(a=NoneSpace(), b=spaces.Text(3), c=NoneSpace(), d=spaces.Text(3)), "obs")
    assert spec.num_objects == 2
    assert spec.objects({"a": None, "b": "x", "c": None, "d": "y"}) == ["x", "y"]


@pytest.mark.parametrize("cls", [BaseEnvManager, SyncSubprocessEnvManager, SubprocessEnvManagerV2])
def test_none_space_beside_arrays_in_a_manager(cls):
    """Managers prepare results ahead if a row has arrays only, which is not so here."""
    with cls([ArrayAndNone] * 2, {"num_workers": 2} if cls is not BaseEnvManager else {}) as manager:
        manager.launch()
        for _ in range(3):
            steps = manager.step({0: np.int64(0), 1: np.int64(1)})
            for step in steps.values() if isinstance(steps, dict) else steps:
                assert step.obs["mask"] is None and np.asarray(step.obs["position"]).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("backend", ["serial", "process"])
def test_none_space_in_a_vector_env_gives_gymnasiums_result(backend, mode):
    ours = VectorEnv(
        [NoneEnv] * 3, backend=backend, autoreset_mode=mode, num_workers=2 if backend == "process" else None
    )
    theirs = SyncVectorEnv([NoneEnv] * 3, autoreset_mode=mode)
    try:
        results = [(envs.reset(seed=0)[0], None) for envs in (ours, theirs)]
        for _ in range(10):
            for obs, _ in results:
                assert obs["mask"] == (None,) * 3 and obs["pair"][0] == (None,) * 3
            assert np.array_equal(results[0][0]["pair"][1], results[1][0]["pair"][1])
            assert ours.observation_space.contains(results[0][0])
            results = [envs.step(np.zeros(3, np.int64))[::4] for envs in (ours, theirs)]
            finals = [infos.get("final_obs") for _, infos in results]
            assert (finals[0] is None) == (finals[1] is None)
            if finals[0] is not None:
                assert list(finals[0]) == list(finals[1])
    finally:
        ours.close()
        theirs.close()


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_none_space_refuses_other_values(backend):
    envs = VectorEnv([functools.partial(NoneEnv, wrong=True)], backend=backend)
    try:
        envs.reset(seed=0)
        envs.step([0])
        envs.step([0])
        with pytest.raises(SpaceError, match="obs/mask: expected None"):
            envs.step([0])
    finally:
        envs.close()
