"""An env that is rebuilt because its episode is lost: the arguments of its first reset, and its later recovery."""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.traces import kill, recovering_pool
from vecenv import VectorEnv
from vecenv.core.layout.flags import Autoreset
from vecenv.envs import toys

MODES = ["NextStep", "SameStep", "Disabled"]


class SeedsItself(toys.ToyEnv):
    """Makes its generator when it gets a seed, which is common."""

    rng: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.luck = self.rng.random()
        return super().reset(seed=seed)


class Busy(SeedsItself):
    """Raises at a reset for each file in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        for file in self.folder.iterdir():
            file.unlink()
            raise OSError("busy")
        return super().reset(seed=seed)


class Lucky(toys.ToyEnv):
    """Draws by Gymnasium's generator."""

    luck = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        _, info = super().reset(seed=seed)
        self.luck = self.np_random.random()
        return self.observe(), info

    def observe(self) -> Any:
        obs = super().observe()
        obs[3] = self.luck
        return obs


@pytest.mark.parametrize("mode", MODES)
def test_rebuilt_env_that_needs_a_seed_gets_one(mode: str, implementation: str) -> None:
    """It was once reset without a seed, and its error ended the run."""
    with VectorEnv([SeedsItself] * 2, num_workers=2, autoreset_mode=mode, failures={"max_log_bytes": 0}) as envs:
        envs.reset(seed=1)
        envs.step([0, 0])
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        truncations = envs.step([0, 0])[3]
        assert truncations.tolist() == [True, False]
        if mode == "Disabled":
            envs.reset(options={"reset_mask": truncations})
        for _ in range(3):
            assert not envs.step([0, 0])[3].any()
        assert len(set(envs.get_attr("luck"))) == 2


@pytest.mark.extended
def test_rebuilt_env_gets_its_seed_again_after_a_failed_reset(implementation: str, tmp_path: Path) -> None:
    """The seed was once given only to the reset that raised for another reason, so each later one raised too."""
    with VectorEnv([functools.partial(Busy, tmp_path)] * 2, num_workers=2, failures={"max_log_bytes": 0}) as envs:
        envs.reset(seed=1)
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        assert envs.step([0, 0])[3].tolist() == [True, False]
        for name in ("unseeded", "seeded"):
            (tmp_path / name).touch()
        with pytest.raises(OSError, match="busy"):
            envs.step([0, 0])
        assert not envs.step([0, 0])[3].any()


@pytest.mark.extended
@pytest.mark.parametrize("mode", [Autoreset.NEXT_STEP, Autoreset.SAME_STEP])
def test_episode_after_a_lost_one_can_be_restored(mode: Autoreset, implementation: str) -> None:
    env_fn = functools.partial(Lucky, None)
    with recovering_pool([env_fn] * 2, max_log_bytes=20_000, autoreset=mode) as pool:
        pool.start()
        pool.reset(seeds=[1, 2])
        pool.recv().raise_errors()

        def step(count: int) -> Any:
            for _ in range(count):
                pool.send(np.zeros(2, np.int64))
                batch = pool.recv()
                batch.raise_errors()
            return batch

        step(5_000)
        kill(pool, 0)
        assert step(1).truncated.tolist() == [True, False]
        before = step(3).obs[0].copy()
        kill(pool, 0)
        batch = step(1)
        assert batch.infos()[0]["recovered"] == "replayed" and not batch.truncated.any()
        assert batch.obs[0][3] == before[3], "the same episode, by the same generator"
