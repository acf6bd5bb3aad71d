"""Errors about abandoned envs, and files that cannot be written."""

from __future__ import annotations

import functools
import glob
import logging
import os
import threading
from typing import Any

import numpy as np
import pytest

from tests.faults.test_abandoned import SegfaultsInEpisode, assert_reproduces, draw_of_episode, healthy, segfaulting
from tests.faults.traces import play, recovering_pool
from vecenv.core.layout.flags import Autoreset
from vecenv.core.options import Limits
from vecenv.envs import toys
from vecenv.errors import ConfigError, WorkerDiedError, WorkerTimeoutError


@pytest.mark.extended
def test_error_names_the_seed_and_the_newest_actions(implementation: str, tmp_path: Any) -> None:
    env_fn = functools.partial(SegfaultsInEpisode, draw_of_episode(5, 0), length=6)
    with recovering_pool([healthy, env_fn], on_repeat="raise", reproducer_dir=str(tmp_path)) as pool:
        pool.start()
        pool.reset(seeds=[4, 5])
        pool.recv()
        says = r"seed 5, last actions \[0, 1, 0, 1, 1\]; it is the second"
        with pytest.raises(WorkerDiedError, match=says) as caught:
            for action in (0, 1, 0, 1, 1):
                pool.send(np.full(2, action))
                pool.recv()
        error = caught.value
    assert (error.env_ids, error.seed, error.actions) == ((1,), 5, (0, 1, 0, 1, 1))
    assert error.reproducer is not None and os.path.exists(error.reproducer)


@pytest.mark.extended
def test_hang_error_names_the_seed_and_the_newest_actions(implementation: str, tmp_path: Any) -> None:
    limits = Limits(step=1.0, close=0.3)
    env_fns = [healthy, functools.partial(toys.Hangs, 2)]
    with recovering_pool(env_fns, on_repeat="raise", limits=limits, reproducer_dir=str(tmp_path)) as pool:
        with pytest.raises(WorkerTimeoutError, match=r"seed 1, last actions \[\d+, \d+\]; it is the second") as caught:
            play(pool, 3)
        error = caught.value
    assert (error.env_ids, error.seed, len(error.actions)) == ((1,), 1, 2)
    assert error.reproducer is not None and os.path.exists(error.reproducer)


@pytest.mark.extended
def test_reset_error_names_its_seed(implementation: str, tmp_path: Any) -> None:
    pool = recovering_pool([healthy, toys.SegfaultAtReset], reproducer_dir=str(tmp_path))
    with pool, pytest.raises(WorkerDiedError, match="; seed 1; it is the second time") as caught:
        play(pool, 1)
    assert (caught.value.op, caught.value.seed, caught.value.actions) == ("reset", 1, ())


# ---- files that cannot be written ------------------------------------------------------------------


@pytest.mark.extended
def test_removed_folder_costs_the_file_and_not_the_run(
    implementation: str, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The run once ended in FileNotFoundError."""
    folder = tmp_path / "files"
    folder.mkdir()
    with recovering_pool([healthy, segfaulting()], reproducer_dir=str(folder)) as pool:
        folder.rmdir()
        with caplog.at_level(logging.WARNING, "vecenv"):
            got = play(pool, 30)
        assert pool.statistics()["truncated"] == 1
    assert "truncated" in dict(got.marks[1]).values()
    (message,) = [message for message in caplog.messages if "is not tried again" in message]
    assert "no reproducer file could be written: FileNotFoundError" in message and "last actions [" in message


class DiesBetweenEpisodes(toys.ToyEnv):
    """Its second reset ends the process."""

    resets = 0

    def reset(self, **kwargs: Any) -> Any:
        self.resets += 1
        if self.resets == 2:
            os.abort()
        return super().reset(**kwargs)


@pytest.mark.extended
@pytest.mark.parametrize("autoreset, kinds", [("NEXT_STEP", ["restarted"]), ("SAME_STEP", ["restarted", "truncated"])])
def test_log_and_info_agree_on_the_fate_of_an_episode(
    autoreset: str, kinds: list[str], tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The log once contained "truncated" for an env whose episode was over and whose next one was "restarted"."""
    options = {"autoreset": Autoreset[autoreset], "reproducer_dir": str(tmp_path)}
    with recovering_pool([DiesBetweenEpisodes], **options) as pool, caplog.at_level(logging.WARNING, "vecenv"):
        got = play(pool, 14)
        pool.statistics()
    assert sorted(mark for _, mark in got.marks[0]) == kinds
    word = kinds[-1]
    abandoned = [message for message in caplog.messages if "second time in this call" in message]
    assert len(abandoned) == 1 and "truncated" not in abandoned[0]
    assert any(message.startswith("vecenv: env 0: ") and word in message for message in caplog.messages)
    others = {"truncated", "restarted"} - {word}
    assert not [message for message in caplog.messages if others & set(message.replace(",", " ").split())]


@pytest.mark.extended
def test_removed_folder_hides_no_error(implementation: str, tmp_path: Any) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    with recovering_pool([healthy, segfaulting()], on_repeat="raise", reproducer_dir=str(folder)) as pool:
        folder.rmdir()
        with pytest.raises(WorkerDiedError, match="no reproducer file could be written: FileNotFoundError") as caught:
            play(pool, 30)
    assert caught.value.reproducer is None and len(caught.value.actions) == 5


class PicklesOnce:
    """Builds an env; can be pickled only until it was sent to the workers."""

    lock: Any = None

    def __call__(self) -> Any:
        return segfaulting()()


@pytest.mark.extended
def test_env_factory_that_cannot_be_pickled_later_does_not_end_the_run(tmp_path: Any) -> None:
    """The run once ended in TypeError."""
    env_fn = PicklesOnce()
    with recovering_pool([healthy, env_fn], reproducer_dir=str(tmp_path)) as pool:
        pool.start()
        env_fn.lock = threading.Lock()
        play(pool, 30, start=False)
        assert pool.statistics()["truncated"] == 1
    (path,) = glob.glob(str(tmp_path / "*"))
    assert_reproduces(path, 0)


@pytest.mark.parametrize("folder", ["nowhere", "file", 5])
def test_invalid_folder_is_refused_before_anything_starts(folder: Any, tmp_path: Any) -> None:
    (tmp_path / "file").touch()
    wanted = tmp_path / folder if isinstance(folder, str) else folder
    with pytest.raises(ConfigError, match="reproducer_dir: expected an existing folder, got") as caught:
        recovering_pool([healthy], reproducer_dir=wanted)
    assert caught.value.key == "reproducer_dir"
    recovering_pool([healthy], reproducer_dir=tmp_path)
