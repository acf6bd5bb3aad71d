"""`VectorEnv.save`, `state_dict`, `load_state_dict` and `resume=`: results continue as without an interruption."""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError

from vecenv import BatchedVectorEnv, ConfigError, VectorEnv, WrongTypeError
from vecenv.cli import main
from vecenv.envs.toys import ToyEnv
from vecenv.saved_state import FORMAT

MODES = ["NextStep", "SameStep", "Disabled"]
BACKENDS = [{"num_workers": 2}, {"backend": "serial"}]


def cartpole() -> Any:
    return gymnasium.make("CartPole-v1")


class Noted(ToyEnv):
    """Infos of resets and of odd steps have numbers, which travel in cells, and texts, which travel in messages."""

    def reset(self, **arguments: Any) -> Any:
        obs, info = super().reset(**arguments)
        return obs, {"first": self.length, "text": str(obs), **info}

    def make_info(self) -> dict[str, Any]:
        return {"steps": self.elapsed_steps, "text": "step"} if self.elapsed_steps % 2 else {}


def play(mode: str, saves: dict[int, Any], options: dict[str, Any], env_fn: Any = cartpole) -> list[Any]:
    """Return the results of 40 steps; before step i, `saves[i]` replaces the vector env."""
    envs = VectorEnv([env_fn] * 4, autoreset_mode=mode, episode_statistics=True, **options)
    envs.action_space.seed(1)
    results = [envs.reset(seed=2)[0].tolist()]
    for number in range(40):
        if number in saves:
            envs = saves[number](envs)
        *arrays, infos = envs.step(envs.action_space.sample())
        ended = arrays[2] | arrays[3]
        if "episode" in infos:
            infos["episode"].pop("t")  # seconds
        results.append([*(array.tolist() for array in arrays), str(infos)])
        if mode == "Disabled" and ended.any():
            results.append(envs.reset(options={"reset_mask": ended})[0].tolist())
    envs.close()
    return results


@pytest.mark.parametrize("options", BACKENDS, ids=["process", "serial"])
@pytest.mark.parametrize("mode", MODES)
def test_results_continue_after_a_save(mode: str, options: dict[str, Any], tmp_path: Path) -> None:
    def through_a_file(envs: VectorEnv) -> VectorEnv:
        envs.save(tmp_path / "state")
        observations = envs.observations
        envs.close()
        other = VectorEnv(
            [cartpole] * 4, autoreset_mode=mode, episode_statistics=True, num_workers=1, resume=tmp_path / "state"
        )
        np.testing.assert_array_equal(other.observations, observations)
        return other

    def back_to_a_state(envs: VectorEnv) -> VectorEnv:
        state, space = envs.state_dict(), envs.action_space
        for _ in range(5):
            envs.reset(seed=9)
            envs.step(envs.action_space.sample())
        envs.load_state_dict(state)
        assert envs.action_space is space
        return envs

    expected = play(mode, {}, options)
    assert play(mode, {1: back_to_a_state, 22: through_a_file, 23: through_a_file}, options) == expected
    assert play(mode, {0: through_a_file, 17: back_to_a_state, 30: back_to_a_state}, options) == expected


@pytest.mark.parametrize("num_spare_envs", [1, 4, 8])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_fn", [cartpole, functools.partial(Noted, 3)], ids=["cartpole", "infos"])
def test_spare_envs_and_their_first_observations_are_saved(env_fn: Any, mode: str, num_spare_envs: int) -> None:
    options: dict[str, Any] = {"num_spare_envs": num_spare_envs}

    def in_another(**others: Any) -> Any:
        def move(envs: VectorEnv) -> VectorEnv:
            state = envs.state_dict()
            envs.close()
            moved = VectorEnv([env_fn] * 4, autoreset_mode=mode, episode_statistics=True, **options, **others)
            moved.load_state_dict(state)
            return moved

        return move

    others = BACKENDS if env_fn is cartpole else [{"num_workers": 1}, {"num_workers": 5}]
    saves = {number: in_another(**others[number % 2]) for number in (0, 3, 4, 5, 6, 17, 18, 19, 33)}
    expected = play(mode, {}, {"backend": "serial", **options}, env_fn)
    assert play(mode, saves, {"num_workers": 2, **options}, env_fn) == expected


@pytest.mark.parametrize("options", BACKENDS, ids=["process", "serial"])
def test_batches_of_envs_continue_after_a_save(options: dict[str, Any], tmp_path: Path) -> None:
    env_fns = [functools.partial(CartPoleVectorEnv, 3, max_episode_steps=15)] * 2
    envs = BatchedVectorEnv(env_fns, mark_autoreset=True, **options)
    envs.action_space.seed(1)
    envs.reset(seed=2)
    for number in range(31):
        if number == 16:  # episodes have ended, and the next step resets them
            envs.save(tmp_path / "state")
        envs.step(envs.action_space.sample())
    state = envs.state_dict()

    def play() -> list[Any]:
        steps = [envs.step(envs.action_space.sample()) for _ in range(20)]
        return [[*(array.tolist() for array in arrays), str(infos)] for *arrays, infos in steps]

    expected = play()
    envs.reset(seed=3)
    envs.load_state_dict(state)
    assert play() == expected
    envs.close()
    with BatchedVectorEnv(env_fns, num_workers=1, mark_autoreset=True, resume=tmp_path / "state") as envs:
        for _ in range(31 - 16):
            envs.step(envs.action_space.sample())
        assert play() == expected


def test_unreceived_steps_are_made_again_by_load_state_dict() -> None:
    with VectorEnv([ToyEnv] * 3, num_workers=2) as envs:
        envs.reset(seed=1)
        envs.send([0, 1, 1])
        state = envs.state_dict()
        expected = [array.tolist() for array in envs.recv(env_id=[0, 1, 2])[:4]]
        for _ in range(2):
            envs.load_state_dict(state)
            assert [array.tolist() for array in envs.recv(env_id=[0, 1, 2])[:4]] == expected


def test_one_state_can_be_continued_many_times() -> None:
    with VectorEnv([ToyEnv] * 2, backend="serial") as envs:
        envs.reset()
        envs.step([0, 0])
        state = envs.state_dict()
        found = []
        for _ in range(3):
            envs.load_state_dict(state)
            found.append([envs.step([1, 0])[0].tolist() for _ in range(12)])
    assert found[0] == found[1] == found[2]


def test_state_of_many_envs_is_small(tmp_path: Path) -> None:
    with VectorEnv([cartpole] * 64, num_workers=2) as envs:
        envs.reset(seed=0)
        for actions in np.random.default_rng(0).integers(0, 2, (100, 64)):
            envs.step(actions)
        envs.save(tmp_path / "state")
    assert (tmp_path / "state").stat().st_size < 100_000


@pytest.fixture
def state_file(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    with VectorEnv([ToyEnv] * 2, backend="serial") as envs:
        envs.reset(seed=0)
        envs.save(path)
    return path


def change_header(path: Path, **fields: Any) -> None:
    with zipfile.ZipFile(path) as file:
        header, data = json.loads(file.read("header.json")), file.read("state.pickle")
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("header.json", json.dumps({**header, **fields}))
        file.writestr("state.pickle", data)


@pytest.mark.parametrize(
    ("env_fns", "options", "text"),
    [
        ([ToyEnv], {}, "it contains 2 envs, and there are 1 env_fns"),
        ([ToyEnv] * 2, {"autoreset_mode": "SameStep"}, "autoreset_mode NEXT_STEP, and this one is SAME_STEP"),
        ([cartpole] * 2, {}, "it was saved with the observation_space"),
        ([ToyEnv] * 2, {"num_spare_envs": 2}, "contains 0 spare envs, and there are 2"),
    ],
)
def test_state_that_does_not_fit_is_refused(env_fns: Any, options: Any, text: str, state_file: Path) -> None:
    with pytest.raises(ConfigError, match=text):
        VectorEnv(env_fns, resume=state_file, **{"backend": "serial", **options})


@pytest.mark.parametrize("resume", [3, b"state", ["state"]], ids=str)
def test_resume_of_another_type_is_refused(resume: Any) -> None:
    with pytest.raises(WrongTypeError, match="resume: expected a file or the result of state_dict, got"):
        VectorEnv([ToyEnv], backend="serial", resume=resume)


def test_damaged_and_newer_files_are_refused(state_file: Path, tmp_path: Path) -> None:
    data = bytearray(state_file.read_bytes())
    for other, text in ((b"no zip file", "not a saved state of vecenv"), (data[:-40], "not a saved state of vecenv")):
        (tmp_path / "other").write_bytes(other)
        with pytest.raises(ConfigError, match=text):
            VectorEnv([ToyEnv] * 2, resume=tmp_path / "other")
    data[len(data) // 2] ^= 1
    (tmp_path / "other").write_bytes(data)
    with pytest.raises(ConfigError, match="damaged"):
        VectorEnv([ToyEnv] * 2, resume=tmp_path / "other")
    change_header(state_file, format=FORMAT + 1)
    with pytest.raises(ConfigError, match=f"in format {FORMAT + 1}, and this release reads formats up to {FORMAT}"):
        VectorEnv([ToyEnv] * 2, resume=state_file)
    with pytest.raises(FileNotFoundError):
        VectorEnv([ToyEnv] * 2, resume=tmp_path / "missing")


def test_no_pickle_runs_before_the_spaces_are_checked(state_file: Path, tmp_path: Path) -> None:
    data = zlib.compress(f"cos\nmkdir\n(V{tmp_path / 'attacked'}\ntR.".encode())
    with zipfile.ZipFile(state_file) as file:
        header = json.loads(file.read("header.json"))
    header["sha256"] = hashlib.sha256(data).hexdigest()
    with zipfile.ZipFile(state_file, "w") as file:
        file.writestr("header.json", json.dumps(header))
        file.writestr("state.pickle", data)
    with pytest.raises(ConfigError, match="observation_space"):
        VectorEnv([cartpole] * 2, resume=state_file, backend="serial")
    assert not (tmp_path / "attacked").exists()


def test_other_release_of_gymnasium_is_logged(state_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    change_header(state_file, gymnasium="0.1")
    VectorEnv([ToyEnv] * 2, backend="serial", resume=state_file).close()
    assert "the envs were saved with gymnasium 0.1, and this is" in caplog.text


def test_full_disk_keeps_the_old_file(state_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = state_file.read_bytes()

    def fsync(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with VectorEnv([ToyEnv] * 2, backend="serial") as envs:
        envs.reset()
        monkeypatch.setattr(os, "fsync", fsync)
        with pytest.raises(OSError, match="No space left") as caught:
            envs.save(state_file)
    assert "an older file" in "".join(caught.value.__notes__) if sys.version_info >= (3, 11) else True
    assert state_file.read_bytes() == old and os.listdir(state_file.parent) == [state_file.name]


def test_wrong_moments_of_a_save_are_errors(tmp_path: Path) -> None:
    with VectorEnv([ToyEnv] * 2, num_workers=1) as envs:
        envs.reset()
        envs.step_async([0, 0])
        with pytest.raises(AlreadyPendingCallError, match="step_wait first"):
            envs.save(tmp_path / "state")
        envs.step_wait()
        envs.save(tmp_path / "state")
    with pytest.raises(ClosedEnvironmentError):
        envs.save(tmp_path / "state")


def test_inspect_prints_the_header(state_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(state_file)]) == 0
    shown = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert (shown["num_envs"], shown["kind"], shown["num_repeated"]) == ("2", "VectorEnv", "0")
    for path, text in ((state_file.parent / "missing", "No such file"), (state_file.parent, "Is a directory")):
        assert main(["inspect", str(path)]) == 2
        assert text in capsys.readouterr().err
    state_file.write_bytes(b"")
    assert main(["inspect", str(state_file)]) == 2
    assert "is not a saved state of vecenv" in capsys.readouterr().err


class RandomEnv(ToyEnv):
    """An env whose steps differ from process to process, and whose state is unknown."""

    get_state = set_state = None

    def step(self, action: Any) -> Any:
        obs, *others = super().step(action)
        obs[3] = int.from_bytes(os.urandom(2), "little")
        return obs, *others


@pytest.mark.parametrize("backend", ["process", "serial"])
def test_env_that_is_not_deterministic_ends_its_episode(
    backend: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with VectorEnv([ToyEnv, RandomEnv], num_workers=1) as envs:
        envs.reset(seed=0)
        for _ in range(3):
            last = envs.step([0, 0])[0]
        envs.save(tmp_path / "state")
        expected = envs.step([0, 0])[0][0].tolist()
    with VectorEnv([ToyEnv, RandomEnv], backend=backend, resume=tmp_path / "state") as envs:
        obs, rewards, terminations, truncations, infos = envs.step([0, 0])
        assert obs.tolist() == [expected, last[1].tolist()] and truncations.tolist() == [False, True]
        assert infos["recovered"].tolist() == [None, "truncated"]
    assert "env 1: its episode could not be brought back, it ends truncated: its answers differ" in caplog.text
