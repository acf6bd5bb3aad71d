"""An evaluation whose program was killed continues from its file with the results of an undisturbed one."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.faults.traces import frozen
from vecenv import ConfigError, Evaluation, VectorEnv, WrongTypeError, compare, evaluate
from vecenv.envs.toys import ToyEnv

SERIAL: dict[str, Any] = {"backend": "serial", "num_envs": 2}


def upright(obs: Any, env_id: Any) -> Any:
    return (obs[:, 2] > 0).astype(np.int64)


def left(obs: Any, env_id: Any) -> Any:
    return np.zeros(len(obs), np.int64)


def columns_of(result: Evaluation) -> dict[str, Any]:
    """Return all columns but the times."""
    found = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    del found["seconds"]
    return {name: (one.dtype, one.tobytes()) if isinstance(one, np.ndarray) else one for name, one in found.items()}


class Killed(BaseException):
    pass


def kill_after(count: int) -> Any:
    """Return an `on_episode` that ends the evaluation after this number of episodes."""
    episodes: list[Any] = []

    def note(episode: Any) -> None:
        episodes.append(episode)
        if len(episodes) == count:
            raise Killed

    return note


class InfoEnv(ToyEnv):
    """Its infos are arrays and objects, which JSON does not have; its rewards are fractions."""

    def step(self, action: Any) -> Any:
        obs, reward, *ends, info = super().step(action)
        third = obs[3:] / 3
        return obs, float(third[0]), *ends, {**info, "third": third, "parts": (1, b"x")}


def test_episodes_in_the_file_are_not_played_again(tmp_path: Path) -> None:
    expected = evaluate(InfoEnv, left, seeds=[5, 2, 9, 0, 7], **SERIAL)
    path, played = tmp_path / "episodes", []
    with pytest.raises(Killed) as caught:
        evaluate(InfoEnv, left, seeds=[5, 2, 9, 0, 7], on_episode=kill_after(3), resume=path, **SERIAL)
    assert caught.value.result.num_episodes == 3  # type: ignore[attr-defined]
    for count in (2, 0):
        played.clear()
        found = evaluate(
            InfoEnv, left, seeds=[5, 2, 9, 0, 7], on_episode=played.append, resume=path, num_envs=3, num_workers=1
        )
        assert len(played) == count
        assert frozen(columns_of(found)) == frozen(columns_of(expected))


def test_more_seeds_are_played_and_added(tmp_path: Path) -> None:
    path, played = tmp_path / "episodes", []
    evaluate(ToyEnv, left, seeds=[3, 1], resume=path, **SERIAL)
    result = evaluate(
        ToyEnv, left, seeds=[4, 1, 3], resume=path, on_episode=lambda one: played.append(one.seed), **SERIAL
    )
    assert played == [4] and result.seeds.tolist() == [4, 1, 3]
    assert len(path.read_text().splitlines()) == 4


def test_vector_env_of_the_caller_continues_an_evaluation(tmp_path: Path) -> None:
    path = tmp_path / "episodes"
    with VectorEnv([ToyEnv] * 2, backend="serial") as envs:
        with pytest.raises(Killed):
            evaluate(envs, left, episodes=4, on_episode=kill_after(1), resume=path)
        played: list[Any] = []
        evaluate(envs, left, episodes=4, resume=path, on_episode=played.append)
    assert len(played) == 3


@pytest.mark.parametrize("count", [2, 4, 7])
def test_comparison_continues_with_the_policy_that_was_interrupted(count: int, tmp_path: Path) -> None:
    path, played = tmp_path / "episodes", []
    arguments: dict[str, Any] = {"seeds": range(4), "rng": None, **SERIAL}
    expected = compare("CartPole-v1", left, upright, **arguments)
    with pytest.raises(Killed):
        compare("CartPole-v1", left, upright, **arguments, on_episode=kill_after(count), resume=path)
    found = compare("CartPole-v1", left, upright, **arguments, on_episode=played.append, resume=path)
    assert len(played) == 8 - count
    assert found.differences.tobytes() == expected.differences.tobytes()
    assert list(map(columns_of, found.evaluations)) == list(map(columns_of, expected.evaluations))
    with pytest.raises(ConfigError, match=r"was begun with policies=\['left', 'upright'\], and this is"):
        compare("CartPole-v1", upright, left, **arguments, resume=path)


@pytest.mark.parametrize(
    ("env", "arguments", "text"),
    [
        ("Acrobot-v1", {}, "was begun with env='CartPole-v1', and this is 'Acrobot-v1'"),
        ("CartPole-v1", {"max_steps": 9}, "was begun with max_steps=None, and this is 9"),
        ("CartPole-v1", {"timeout": 9.5}, "was begun with timeout=None, and this is 9.5"),
        ("CartPole-v1", {"batch_rows": 1}, "was begun with batch_rows=None, and this is 1"),
        ("CartPole-v1", {"seeds": [0, 2]}, "has the episode of seed 1, which is not among the seeds"),
    ],
)
def test_other_settings_are_refused(env: str, arguments: dict[str, Any], text: str, tmp_path: Path) -> None:
    path = tmp_path / "episodes"
    evaluate("CartPole-v1", left, seeds=[0, 1], resume=path, **SERIAL)
    old = path.read_bytes()
    with pytest.raises(ConfigError, match=text):
        evaluate(env, left, **{"seeds": [0, 1, 2], **SERIAL, **arguments}, resume=path)
    assert path.read_bytes() == old


def test_no_pickle_runs_before_the_settings_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "episodes"
    evaluate(ToyEnv, left, seeds=[0], resume=path, **SERIAL)
    path.write_bytes(path.read_bytes() + b'{"policy": 0, "seed": 1, "result": "no pickle"}\n')
    with pytest.raises(ConfigError, match="max_steps"):
        evaluate(ToyEnv, left, seeds=[0, 1], max_steps=3, resume=path, **SERIAL)


def test_file_that_is_cut_at_any_byte_continues(tmp_path: Path) -> None:
    path = tmp_path / "episodes"
    evaluate(ToyEnv, left, seeds=range(3), resume=path, **SERIAL)
    data = path.read_bytes()
    sizes = [*range(0, data.index(b"\n") + 2, 37), *range(data.index(b"\n"), len(data), 101), len(data) - 1]
    for size in sizes:
        path.write_bytes(data[:size])
        evaluate(ToyEnv, left, seeds=range(3), resume=path, **SERIAL)
        seeds = [json.loads(line).get("seed") for line in path.read_text().splitlines()]
        assert sorted(seeds[1:]) == [0, 1, 2] and seeds[0] is None


def test_other_files_are_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    for data in (b"a text", b"{", b"a\nb\n"):
        path.write_bytes(data)
        if data != b"{":  # this may be the beginning of a file
            with pytest.raises(ConfigError, match="notes is not a file of an evaluation in format 1"):
                evaluate(ToyEnv, left, seeds=[0], resume=path, **SERIAL)
            assert path.read_bytes() == data
    path.unlink()
    evaluate(ToyEnv, left, seeds=[0, 1], resume=path, **SERIAL)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"?" + lines[1] + lines[2])
    with pytest.raises(ConfigError, match="notes is damaged in line 2"):
        evaluate(ToyEnv, left, seeds=[0, 1], resume=path, **SERIAL)
    with pytest.raises(WrongTypeError, match="resume: expected the path of a file, got 3"):
        evaluate(ToyEnv, left, seeds=[0], resume=3, **SERIAL)  # type: ignore[arg-type]


def test_full_disk_ends_the_evaluation(tmp_path: Path) -> None:
    """A limit for the sizes of files stands for it; the part of the last line is cut off later."""
    path, limits = tmp_path / "episodes", resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_disk(episode: Any) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 9, limits[1]))

    try:
        with pytest.raises(OSError, match="File too large") as caught:
            evaluate(ToyEnv, left, seeds=range(4), resume=path, on_episode=fill_disk, **SERIAL)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG and caught.value.result.num_episodes == 2  # type: ignore[attr-defined]
    played: list[Any] = []
    assert evaluate(ToyEnv, left, seeds=range(4), resume=path, on_episode=played.append, **SERIAL).num_episodes == 4
    assert len(played) == 3


def test_videos_of_the_first_run_are_no_obstacle(tmp_path: Path) -> None:
    """The episodes in the file keep theirs; those of another run are refused at the first start only."""
    pytest.importorskip("moviepy")
    from tests.evaluation.test_videos import DrawnEnv

    path, arguments = tmp_path / "episodes", {"seeds": [5, 3, 9], "videos": 3, "out": tmp_path / "videos"}
    with pytest.raises(Killed):
        evaluate(DrawnEnv, left, **arguments, **SERIAL, on_episode=kill_after(2), resume=path)
    (tmp_path / "videos" / "DrawnEnv-seed9.mp4").write_bytes(b"a part")
    kept = (tmp_path / "videos" / "DrawnEnv-seed3.mp4").stat()
    result = evaluate(DrawnEnv, left, **arguments, **SERIAL, resume=path)
    assert len(result.videos) == 3 and result.videos[2].stat().st_size > 99
    assert (tmp_path / "videos" / "DrawnEnv-seed3.mp4").stat() == kept


PROGRAM = """
import sys
import numpy as np
from vecenv import evaluate

class Upright:
    def __call__(self, obs, env_id):
        return (obs[:, 2] > 0).astype(np.int64)

if __name__ == "__main__":
    path, out, num_workers = sys.argv[1:]
    print("begins", flush=True)
    result = evaluate("CartPole-v1", Upright(), seeds=range(400), num_envs=4, num_workers=int(num_workers), resume=path)
    np.savez(out, seeds=result.seeds, returns=result.returns, lengths=result.lengths)
"""


@pytest.mark.extended
def test_evaluation_that_is_killed_at_random_instants_has_equal_results(tmp_path: Path) -> None:
    program, path, out = tmp_path / "program.py", tmp_path / "episodes", tmp_path / "out.npz"
    program.write_text(textwrap.dedent(PROGRAM))
    rng, counts = np.random.default_rng(0), [0]
    for attempt in range(40):
        words = [sys.executable, str(program), str(path), str(out), str(1 + attempt % 2)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == "begins\n"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(float(rng.uniform(0.2, 1.5)) + attempt / 20)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if path.exists():
            counts.append(path.read_bytes().count(b"\n"))
        if process.returncode == 0:
            break
    else:
        pytest.fail("the evaluation did not end")
    assert counts == sorted(counts) and counts[-1] == 401 and len(counts) > 3
    expected = evaluate("CartPole-v1", upright, seeds=range(400), num_envs=4, backend="serial")
    with np.load(out) as found:
        for name in ("seeds", "returns", "lengths"):
            assert found[name].tobytes() == getattr(expected, name).tobytes()


def test_settings_of_make_are_no_part_of_the_file(tmp_path: Path) -> None:
    """A function that builds the env is known by the class of its env; the number of envs and workers may differ."""
    path = tmp_path / "episodes"
    evaluate(lambda: gymnasium.make("CartPole-v1"), left, seeds=[0], resume=path, **SERIAL)
    evaluate(lambda: gymnasium.make("CartPole-v1"), left, seeds=[0, 1], resume=path, num_envs=1, num_workers=1)
