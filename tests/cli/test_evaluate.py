"""`vecenv evaluate` and `vecenv record --policy`: output, files, wrong arguments, and the output after a failure."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.cli.test_bench import WITHOUT_PACKAGE
from tests.evaluation.envs import length_of
from tests.programs import run_python
from vecenv import evaluate
from vecenv.cli import display, main

MODULE = """
import os, signal
import numpy as np
from tests.evaluation.envs import SeedEnv

not_callable = 3

def act(obs, env_id):
    return (obs[:, 3] > 0.5).astype(np.int64)

def draws(obs, env_id, generators):
    return np.array([generator.integers(2) for generator in generators])

def fails(obs, env_id):
    if 3 in obs[:, 2]:
        raise ZeroDivisionError("odd\\nseed")
    return act(obs, env_id)

def fails_late(obs, env_id):
    if 4 in obs[:, 0]:
        raise ZeroDivisionError("late")
    return act(obs, env_id)

def interrupts(obs, env_id):
    if 3 in obs[:, 2]:
        os.kill(os.getpid(), getattr(signal, os.environ["TEST_SIGNAL"]))
    return act(obs, env_id)

class OddInfoEnv(SeedEnv):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, np.inf, terminated, truncated, {"by_seat": {np.int64(1): 2}, "limit": np.nan}

class Act:
    def __call__(self, obs, env_id):
        return act(obs, env_id)

class NeedsArgument(Act):
    def __init__(self, path):
        pass

class DrawnEnv(SeedEnv):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self):
        super().__init__(render_mode="rgb_array")

    def render(self):
        return np.full((16, 16, 3), 10 * self.elapsed_steps, np.uint8)
"""
NAME = "evaluated_by_tests"
ENV, ACT = f"{NAME}:SeedEnv", f"{NAME}:act"


@pytest.fixture
def run(capfd, tmp_path, monkeypatch):
    """Run a command in a folder with the module above; return exit code, standard output and standard error."""
    (tmp_path / f"{NAME}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*argv):
        try:
            code = main([*map(str, argv)])
        except SystemExit as error:
            code = error.code
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    yield run
    sys.modules.pop(NAME, None)


def evaluate_in_shell(run, *argv, env=ENV, policy=ACT):
    return run("evaluate", env, "--policy", policy, *argv)


def run_module(folder, *argv, policy=ACT, stdout, **settings):
    """Run `vecenv evaluate` with one env as a process of its own, with these variables of its environment."""
    (folder / f"{NAME}.py").write_text(MODULE)
    command = [sys.executable, "-m", "vecenv", "evaluate", ENV, "--policy", policy, "--envs", "1", *argv]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **settings}
    return subprocess.run(
        command, cwd=folder, env=environ, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=120
    )


@pytest.mark.extended
def test_evaluate_prints_table_and_histogram(run):
    code, out, err = evaluate_in_shell(run, "--seeds", "0:30", "--workers", 1)
    assert code == 0 and err == ""
    lines = out.splitlines()
    assert lines[0] == "SeedEnv: 30 episodes" and lines[1].startswith("return: mean ")
    assert "ends: 15 terminated, 15 truncated" in lines and "... and 10 further episodes" in lines
    histogram = lines[lines.index("returns") + 1 :][:10]
    assert sum(int(line.split()[-1]) for line in histogram) == 30 and any("█" in line for line in histogram)
    assert all(len(line) <= 80 for line in histogram)
    assert f"30 episodes, {sum(map(length_of, range(30)))} steps in " in lines[-1]


@pytest.mark.extended
@pytest.mark.parametrize("policy", ["act", "Act"])
def test_json_has_the_results_of_the_function(run, policy):
    code, out, err = evaluate_in_shell(run, "--seeds", "7,2:4", "--json", policy=f"{NAME}:{policy}")
    found = json.loads(out)
    module = sys.modules[NAME]
    expected = evaluate(module.SeedEnv, module.act, seeds=[7, 2, 3], backend="serial")
    assert code == 0 and found["seeds"] == [7, 2, 3] and found["returns"] == expected.returns.tolist()
    assert found["complete"] is True and found["policy"] == f"{NAME}:{policy}" and found["mean"] == expected.mean
    assert err.splitlines()[0] == "SeedEnv: 3 episodes"


@pytest.mark.extended
def test_json_of_infos_with_odd_keys_and_numbers_is_read_by_every_parser(run):
    code, out, err = evaluate_in_shell(run, "--episodes", 2, "--json", env=f"{NAME}:OddInfoEnv")
    found = json.loads(out, parse_constant=lambda name: pytest.fail(name))
    assert code == 0 and found["returns"] == [None, None] and "Warning" not in err
    assert found["infos"][1]["by_seat"] == {"1": 2} and found["infos"][1]["limit"] is None


@pytest.mark.extended
def test_json_file_is_written_and_not_replaced(run, tmp_path):
    file = tmp_path / "found.json"
    assert evaluate_in_shell(run, "--episodes", 2, "--json", file)[0] == 0
    assert json.loads(file.read_text())["seeds"] == [0, 1]
    code, out, err = evaluate_in_shell(run, "--episodes", 3, "--json", file)
    assert (code, out) == (
        2,
        "",
    ) and err == f"vecenv evaluate: --json {file}: exists; choose another name, or add --overwrite\n"
    assert evaluate_in_shell(run, "--episodes", 3, "--json", file, "--overwrite")[0] == 0
    assert json.loads(file.read_text())["seeds"] == [0, 1, 2]


@pytest.mark.extended
def test_options_reach_the_function(run):
    arguments = ("--episodes", 4, "--max-steps", 2, "--rng", "per-episode", "--batch-rows", 2, "--envs", 3)
    code, out, _ = evaluate_in_shell(run, *arguments, "--timeout", 60, "--json", policy=f"{NAME}:draws")
    found = json.loads(out)
    assert code == 0 and found["cut"] == ["", "max_steps", "max_steps", "max_steps"]


@pytest.mark.extended
def test_resume_plays_the_episodes_that_are_left(run, tmp_path):
    file = tmp_path / "episodes"
    arguments = ("--seeds", "1,2,3,4", "--envs", 1, "--resume", file, "--json")
    for _ in range(2):
        code, out, _ = evaluate_in_shell(run, *arguments, policy=f"{NAME}:fails")
        assert code == 1 and json.loads(out)["seeds"] == [1, 2] and len(file.read_text().splitlines()) == 3
    code, out, err = evaluate_in_shell(run, *arguments, policy=ACT)
    assert (code, out) == (2, "") and "was begun with policies=['fails'], and this is ['act']" in err


@pytest.mark.extended
def test_failure_of_the_policy_shows_the_episodes_that_had_ended(run):
    code, out, err = evaluate_in_shell(run, "--seeds", "1,2,3,4", "--envs", 1, policy=f"{NAME}:fails")
    assert code == 1 and out.splitlines()[0] == "SeedEnv: 2 of 4 episodes"
    assert err.count("\n") == 1 and f"policy {NAME}:fails: ZeroDivisionError raised: odd seed (" in err
    code, out, _ = evaluate_in_shell(run, "--seeds", "1,2,3,4", "--envs", 1, "--json", policy=f"{NAME}:fails")
    found = json.loads(out)
    assert code == 1 and found["seeds"] == [1, 2] and found["complete"] is False


@pytest.mark.extended
@pytest.mark.parametrize(
    "settings",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}],
    ids=lambda settings: next(iter(settings)),
)
def test_output_in_ascii_has_a_histogram_and_the_file_is_written(tmp_path, settings):
    """The command ended with a UnicodeEncodeError after the last episode, without the file."""
    done = run_module(tmp_path, "--episodes", "4", "--json", "found.json", stdout=subprocess.PIPE, **settings)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.isascii()
    histogram = done.stdout.splitlines()[done.stdout.splitlines().index("returns") + 1 :]
    assert any("  ##" in line for line in histogram)
    assert json.loads((tmp_path / "found.json").read_text())["seeds"] == [0, 1, 2, 3]


@pytest.mark.extended
def test_unwritable_output_loses_no_json_file(tmp_path):
    with open("/dev/full", "w") as full:
        done = run_module(tmp_path, "--episodes", "2", "--json", "found.json", stdout=full)
    assert done.returncode == 1 and "standard output cannot be written" in done.stderr
    assert json.loads((tmp_path / "found.json").read_text())["seeds"] == [0, 1]


@pytest.mark.extended
def test_unwritable_output_after_a_failure_is_no_error_of_the_policy(tmp_path):
    with open("/dev/full", "w") as full:
        done = run_module(tmp_path, "--seeds", "1,2,3,4", policy=f"{NAME}:fails", stdout=full)
    text = "vecenv evaluate: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, text)


@pytest.mark.parametrize("name, code", [("SIGINT", 130), pytest.param("SIGTERM", 143, marks=pytest.mark.extended)])
def test_signal_shows_the_episodes_that_had_ended(tmp_path, name, code):
    (tmp_path / f"{NAME}.py").write_text(MODULE)
    command = ["evaluate", ENV, "--policy", f"{NAME}:interrupts", "--seeds", "1,2,3,4", "--envs", "1"]
    environ = {**os.environ, "TEST_SIGNAL": name, "PYTHONPATH": os.pathsep.join(sys.path)}
    program = (  # a shell in the background has its commands ignore SIGINT
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"from vecenv.cli import main\nraise SystemExit(main({command}))"
    )
    done = run_python("-c", program, cwd=tmp_path, env=environ)
    assert done.returncode == code and done.stdout.splitlines()[0] == "SeedEnv: 2 of 4 episodes"
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("vecenv evaluate: ")


@pytest.mark.parametrize(
    "env, arguments, says",
    [
        (ENV, ["--policy", ACT], "--seeds or --episodes"),
        (ENV, ["--policy", ACT, "--seeds", "1", "--episodes", "1"], "--seeds or --episodes"),
        (ENV, ["--seeds", "1"], "--policy"),
        (ENV, ["--policy", "act", "--seeds", "1"], "module:function"),
        (ENV, ["--policy", f"{NAME}:akt", "--seeds", "1"], "did you mean act?"),
        (ENV, ["--policy", f"{NAME[:-1]}:act", "--seeds", "1"], f"did you mean {NAME}?"),
        (ENV, ["--policy", f"{NAME}:not_callable", "--seeds", "1"], "got int"),
        (ENV, ["--policy", f"{NAME}:NeedsArgument", "--seeds", "1"], "cannot be made: TypeError"),
        (ENV, ["--policy", ACT, "--seeds", "3,1,3"], "--seeds: 3 given twice"),
        (ENV, ["--policy", ACT, "--seeds", "5:5"], "5:5 contains no seed"),
        (ENV, ["--policy", ACT, "--seeds", "0:1e3"], "0:100"),
        (ENV, ["--policy", ACT, "--seeds", "0:99999999999999999999"], "at most 1,000,000"),
        (ENV, ["--policy", ACT, "--seeds", str(2**31)], "from 0 to 2147483647"),
        (ENV, ["--policy", ACT, "--seeds=-3"], "from 0 to 2147483647"),
        (ENV, ["--policy", ACT, "--seeds", "1", "--workers", "9"], "more than --envs"),
        (ENV, ["--policy", ACT, "--seeds", "1", "--video", "1"], "did you mean --videos?"),
        ("CartPol-v1", ["--policy", ACT, "--seeds", "1"], "CartPole"),
    ],
)
def test_wrong_arguments_are_one_line(run, env, arguments, says):
    code, out, err = run("evaluate", env, *arguments)
    assert code == 2 and out == "" and says in err and err.count("\n") == 1


# ---- progress and drawing --------------------------------------------------------------------


@pytest.mark.extended
def test_progress_is_plain_text_without_rich(tmp_path):
    (tmp_path / f"{NAME}.py").write_text(MODULE)
    argv = ["evaluate", ENV, "--policy", ACT, "--episodes", "2", "--workers", "1"]
    program = "import sys; sys.stderr.isatty = lambda: True\n" + WITHOUT_PACKAGE.format(package="rich", argv=argv)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = run_python("-c", program, cwd=tmp_path, env=environ)
    assert done.returncode == 0 and "2/2 seed 1" in done.stderr, done.stderr


@pytest.mark.parametrize(
    "libraries, given, expected",
    [
        (["EGL", "OSMesa"], {}, {"SDL_VIDEODRIVER": "dummy", "MUJOCO_GL": "egl"}),
        (["OSMesa"], {}, {"SDL_VIDEODRIVER": "dummy", "MUJOCO_GL": "osmesa"}),
        ([], {}, {"SDL_VIDEODRIVER": "dummy"}),
        (
            ["EGL"],
            {"SDL_VIDEODRIVER": "x11", "MUJOCO_GL": "glfw"},
            {"SDL_VIDEODRIVER": "x11", "MUJOCO_GL": "glfw"},
        ),
        (["EGL"], {"DISPLAY": ":0"}, {"DISPLAY": ":0"}),
    ],
)
def test_settings_to_draw_without_a_display(monkeypatch, libraries, given, expected):
    monkeypatch.setattr(os, "environ", dict(given))
    monkeypatch.setattr("ctypes.util.find_library", lambda name: name if name in libraries else None)
    display.draw_without_display()
    assert os.environ == expected


# ---- videos ----------------------------------------------------------------------------------


@pytest.mark.extended
def test_evaluate_records_the_first_seeds(run, tmp_path):
    pytest.importorskip("moviepy")
    arguments = ("evaluate", f"{NAME}:DrawnEnv", "--policy", ACT, "--seeds", "4:8", "--videos", 2, "--out", "seen")
    code, out, err = run(*arguments)
    assert code == 0 and err == "" and out.splitlines()[-2:] == ["seen/DrawnEnv-seed4.mp4", "seen/DrawnEnv-seed5.mp4"]
    assert sorted(path.name for path in (tmp_path / "seen").iterdir()) == ["DrawnEnv-seed4.mp4", "DrawnEnv-seed5.mp4"]
    code, out, err = run(*arguments)
    assert code == 2 and out == "" and "DrawnEnv-seed4.mp4 and 1 more exists" in err and err.count("\n") == 1
    assert run(*arguments, "--overwrite")[0] == 0


@pytest.mark.extended
def test_record_plays_a_policy_and_names_files_by_seed(run, tmp_path):
    pytest.importorskip("moviepy")
    arguments = ("record", f"{NAME}:DrawnEnv", "--policy", ACT, "--episodes", 2, "--seed", 30)
    code, out, err = run(*arguments)
    assert code == 0 and err == "" and out == "video/DrawnEnv-seed30.mp4\nvideo/DrawnEnv-seed31.mp4\n"
    assert run(*arguments)[0] == 2
    assert run(*arguments, "--overwrite", "--max-steps", 2)[0] == 0
    code, out, _ = run("record", f"{NAME}:DrawnEnv", "--policy", ACT, "--out", "other")
    assert code == 0 and len(list((tmp_path / "other").iterdir())) == 1


@pytest.mark.extended
def test_record_prints_the_videos_from_before_a_failure(run):
    pytest.importorskip("moviepy")
    assert length_of(10) < 4 < length_of(9)
    arguments = ("--policy", f"{NAME}:fails_late", "--episodes", 2, "--seed", 9)
    code, out, err = run("record", f"{NAME}:DrawnEnv", *arguments)
    assert code == 1 and "video/DrawnEnv-seed10.mp4" in out.splitlines() and "ZeroDivisionError" in err


@pytest.mark.parametrize("flag", [["--overwrite"], ["--max-steps", "3"]])
def test_record_refuses_options_of_policies_without_one(run, flag):
    code, _, err = run("record", f"{NAME}:DrawnEnv", *flag)
    assert code == 2 and f"{flag[0]}: needs --policy" in err


def test_failed_render_without_a_display_names_the_settings(tmp_path, monkeypatch):
    pytest.importorskip("moviepy")
    pytest.importorskip("mujoco")
    from tests.evaluation.test_videos import DrawnEnv, zeros
    from vecenv import ConfigError

    class Fails(DrawnEnv):
        def render(self):
            raise RuntimeError("no OpenGL")

    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="RuntimeError: no OpenGL; there is no display: set MUJOCO_GL=egl"):
        evaluate(Fails, zeros, seeds=[1], videos=1, out=tmp_path, backend="serial")
    monkeypatch.setenv("DISPLAY", ":0")
    with pytest.raises(RuntimeError, match="no OpenGL"):
        evaluate(Fails, zeros, seeds=[1], videos=1, out=tmp_path, backend="serial")


def test_random_policy_is_the_same_for_any_number_of_envs(capsys):
    lengths = []
    for num_envs in ("1", "3"):
        argv = ["evaluate", "CartPole-v1", "--policy", "random", "--seeds", "0:4", "--envs", num_envs, "--json"]
        assert main(argv) == 0
        lengths.append(json.loads(capsys.readouterr().out)["lengths"])
    assert lengths[0] == lengths[1] and len(set(lengths[0])) > 1
