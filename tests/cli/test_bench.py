"""`vecenv bench`: real runs, their files, and one line for every wrong argument."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import gymnasium
import matplotlib.image
import pytest

import vecenv
from vecenv.cli import main, report
from vecenv.cli.measure import Result
from vecenv.errors import EXTRAS

MODES = ["plain loop", "ceiling", "gymnasium async", "vecenv sync", "vecenv async"]
SHORT = ["bench", "--seconds", "0.2", "--rounds", "2", "--envs", "4"]

# Runs the command line in an interpreter that cannot import one package.
WITHOUT_PACKAGE = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
from vecenv.cli import main
sys.exit(main({argv!r}))
"""


class Run(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]):
    def run(*argv: str) -> Run:
        try:
            code = main(argv)
        except SystemExit as exit:
            code = exit.code
        return Run(code, *capfd.readouterr())

    return run


def assert_one_line(run: Run, code: int, *parts: str) -> None:
    assert run.code == code
    assert run.err.startswith("vecenv") and run.err.endswith("\n")
    assert run.err.count("\n") == 1, run.err
    for part in parts:
        assert part in run.err


def test_bench_measures_prints_and_writes_every_mode(tmp_path: Path):
    """It runs in its own process, because matplotlib and Gymnasium's workers keep descriptors open until they end."""
    json_path, plot_path = tmp_path / "bench.json", tmp_path / "bench.png"
    command = [sys.executable, "-m", "vecenv", *SHORT, "--json", str(json_path), "--plot", str(plot_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for mode in MODES:
        line = next(line for line in done.stdout.splitlines() if line.strip().startswith(mode))
        assert len(line.split()) == len(mode.split()) + 6, "into a pipe, too, all columns stand in one line"
    content = json.loads(json_path.read_text())
    assert content["settings"]["env"] == "CartPole-v1"
    assert content["settings"]["envs"] == 4 and content["settings"]["wait_num"] == 2
    assert content["machine"]["usable_cores"] >= 1 and 0.0 <= content["machine"]["stolen"] <= 1.0
    by_name = {entry["name"]: entry for entry in content["results"]}
    assert list(by_name) == MODES
    for entry in by_name.values():
        assert entry["steps_per_second"] > 0 and entry["us_per_batch"] > 0
        assert entry["cpu_seconds_per_1000_steps"] > 0
        assert len(entry["rounds"]) == 2
    assert by_name["plain loop"]["ratio_to_plain"] == 1.0
    assert by_name["ceiling"]["ratio_to_ceiling"] == 1.0
    assert by_name["plain loop"]["implementation"] is None
    assert by_name["vecenv sync"]["implementation"] in ("native", "python")
    height, width, _ = matplotlib.image.imread(plot_path).shape
    assert width > 400 and height > 100


def test_skipped_modes_are_not_run_and_have_no_ratios(run, tmp_path: Path):
    path = tmp_path / "bench.json"
    skip = ("--skip", "plain", "--skip", "gymnasium", "--skip", "async")
    assert run(*SHORT, *skip, "--no-copy", "--workers", "1", "--json", str(path)).code == 0
    content = json.loads(path.read_text())
    assert [entry["name"] for entry in content["results"]] == ["ceiling", "vecenv sync"]
    assert all(entry["ratio_to_plain"] is None for entry in content["results"])
    assert content["settings"]["copy"] is False and content["settings"]["workers"] == 1


def test_env_kwargs_reach_the_env(run, tmp_path: Path):
    path = tmp_path / "bench.json"
    skip = ("--skip", "gymnasium", "--skip", "async", "--skip", "ceiling")
    kwargs = ("--env-kwarg", "sutton_barto_reward=True", "--env-kwarg", "render_mode=rgb_array")
    assert run(*SHORT, *skip, *kwargs, "--json", str(path)).code == 0
    settings = json.loads(path.read_text())["settings"]
    assert settings["env_kwargs"] == {"sutton_barto_reward": True, "render_mode": "rgb_array"}


@pytest.mark.parametrize(
    "options, parts",
    [
        (["--envs", "0"], ["--envs", "'0'"]),
        (["--envs", "many"], ["--envs", "'many'"]),
        (["--workers", "0"], ["--workers"]),
        (["--workers", "5", "--envs", "4"], ["--workers 5", "--envs 4"]),
        (["--wait-num", "5", "--envs", "4"], ["--wait-num 5", "--envs 4"]),
        (["--wait-num", "-1"], ["--wait-num"]),
        (["--seconds", "0"], ["--seconds", "'0'"]),
        (["--seconds", "-1"], ["--seconds"]),
        (["--seconds", "nan"], ["--seconds", "'nan'"]),
        (["--seconds", "inf"], ["--seconds"]),
        (["--rounds", "0"], ["--rounds"]),
        (["--env-kwarg", "foo"], ["KEY=VALUE", "'foo'"]),
        (["--env-kwarg", "=3"], ["KEY=VALUE"]),
        (["--skip", "nothing"], ["--skip", "'nothing'"]),
        ([word for mode in ("plain", "ceiling", "gymnasium", "sync", "async") for word in ("--skip", mode)], ["skip"]),
        (["--plot", "bench.xyz"], ["--plot bench.xyz", ".png"]),
        (["--json", "bench.png", "--plot", "./bench.png"], ["--json and --plot", "bench.png"]),
        (["--unknown"], ["--unknown"]),
        (["--env", "NoSuchEnv-v0"], ["NoSuchEnv"]),
        (["--env", "CartPole-v999"], ["CartPole"]),
        (["--env", "no_such_module:CartPole-v1"], ["no_such_module"]),
        (["--env-kwarg", "no_such_kwarg=1"], ["CartPole-v1", "no_such_kwarg"]),
    ],
    ids=lambda value: " ".join(value) or None,
)
def test_wrong_arguments_are_one_line_and_exit_code_2(run, options: list[str], parts: list[str]):
    assert_one_line(run("bench", *options), 2, *parts)


ODD_ENVS = """
import os
import sys
import gymnasium
from gymnasium import spaces
from vecenv.envs.toys import RaiseAtReset, RaiseAtStep, ToyEnv

class Leaves(ToyEnv):
    def __init__(self):
        sys.exit(3)

class LeavesLater(ToyEnv):
    built = 0

    def __init__(self):
        super().__init__()
        LeavesLater.built += 1
        if LeavesLater.built > 1 or "LEAVES" in os.environ:
            sys.exit(3)
        os.environ["LEAVES"] = "1"

class LeavesAtClose(ToyEnv):
    def close(self):
        sys.exit(3)

class ClosesBadly(ToyEnv):
    def close(self):
        raise RuntimeError("cannot close")

class Sequences(ToyEnv):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Sequence(spaces.Discrete(3))

    def observe(self):
        return (1, 2)

for kind in (RaiseAtReset, RaiseAtStep, ClosesBadly, Leaves, LeavesLater, LeavesAtClose, Sequences):
    gymnasium.register(f"Odd{kind.__name__}-v0", kind, disable_env_checker=True)
"""

NO_LOOPS = ("--skip", "plain", "--skip", "ceiling")
ONLY_LOOPS = ("--skip", "gymnasium", "--skip", "sync", "--skip", "async")
ONLY_VECENV = (*NO_LOOPS, "--skip", "gymnasium")


@pytest.fixture
def odd_envs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "odd_envs.py").write_text(ODD_ENVS)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(gymnasium.registry)
    monkeypatch.delenv("LEAVES", raising=False)
    yield
    os.environ.pop("LEAVES", None)
    sys.modules.pop("odd_envs", None)
    for name in set(gymnasium.registry) - before:
        del gymnasium.registry[name]


@pytest.mark.parametrize(
    "name, skip, code, parts",
    [
        ("RaiseAtStep", ONLY_LOOPS, 1, ["plain loop raised ZeroDivisionError: toy env divides"]),
        ("RaiseAtReset", ONLY_LOOPS, 1, ["plain loop raised ValueError: toy env cannot reset"]),
        ("RaiseAtStep", ONLY_VECENV, 1, ["ZeroDivisionError raised: toy env"]),
        ("Leaves", (), 2, ["cannot make", "SystemExit: 3"]),
        ("LeavesLater", NO_LOOPS, 2, ["AsyncVectorEnv cannot be built", "SystemExit: 3", "--skip gymnasium"]),
        ("LeavesLater", ONLY_LOOPS, 1, ["plain loop raised SystemExit: 3"]),
        ("LeavesLater", ONLY_VECENV, 1, ["SystemExit", "3"]),
        ("LeavesAtClose", (), 2, ["cannot close", "SystemExit: 3"]),
        ("ClosesBadly", (), 2, ["cannot close", "RuntimeError: cannot close"]),
        ("Sequences", NO_LOOPS, 2, ["Sequence(Discrete(3)", "--skip gymnasium"]),
    ],
)
def test_unmeasurable_env_is_one_line(run, odd_envs, name: str, skip, code: int, parts: list[str]):
    assert_one_line(run(*SHORT, "--env", f"odd_envs:Odd{name}-v0", *skip), code, *parts)


@pytest.mark.parametrize("flag, name", [("--json", "bench.json"), ("--plot", "bench.png")])
def test_unwritable_file_is_found_before_the_run(run, tmp_path: Path, flag: str, name: str):
    result = run("bench", flag, str(tmp_path / "missing" / name))
    assert_one_line(result, 2, flag, "missing", "does not exist")
    directory = tmp_path / name
    directory.mkdir()
    assert_one_line(run("bench", flag, str(directory)), 2, flag, "is a directory")
    assert result.out == ""


def test_missing_command_is_one_line_and_exit_code_2(run):
    assert_one_line(run(), 2, "command")


def test_version(run):
    assert run("--version") == Run(0, f"vecenv {vecenv.__version__}\n", "")


@pytest.mark.parametrize(
    "package, argv, extra",
    [
        ("rich", ["bench"], "cli"),
        ("matplotlib", ["bench", "--plot", "bench.png"], "cli"),
        ("ale_py", ["bench", "--env", "ALE/Pong-v5"], "atari"),
    ],
)
def test_missing_extra_is_named_with_its_install_command(package: str, argv: list[str], extra: str):
    program = WITHOUT_PACKAGE.format(package=package, argv=argv)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert_one_line(Run(done.returncode, done.stdout, done.stderr), 2, package, f'pip install "{EXTRAS[extra][0]}"')


def test_table_is_printed_without_matplotlib():
    argv = [*SHORT, "--skip", "gymnasium", "--skip", "async"]
    program = WITHOUT_PACKAGE.format(package="matplotlib", argv=argv)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "vecenv sync" in done.stdout


def test_ctrl_c_is_one_line_and_exit_code_130():
    process = subprocess.Popen(
        [sys.executable, "-m", "vecenv", "bench", "--envs", "4", "--seconds", "600"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()  # the header: processes start next
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert_one_line(Run(process.returncode, out, err), 130, "interrupted")


@pytest.mark.parametrize("lockstep, is_reported", [(0.61, True), (0.98, False), (None, False)])
def test_uneven_cores_are_reported(capsys, lockstep, is_reported):
    report.print_table([Result("ceiling", None, 1000.0, 10.0, 2.0, 1.0, 0.01, lockstep, [1000.0])])
    assert ("0.61 of the ceiling" in capsys.readouterr().out) == is_reported


@pytest.mark.parametrize("stolen, is_reported", [(0.13, True), (0.001, False), (0.0, False)])
def test_stolen_time_is_reported(capsys, stolen, is_reported):
    report.print_table([Result("ceiling", None, 1000.0, 10.0, 2.0, 1.0, 0.01, None, [1000.0])], stolen)
    out = capsys.readouterr().out
    assert ("took 13% of its cores' time" in out) == is_reported and ("took" in out) == is_reported


@pytest.mark.parametrize("width", [20, 60, 120])
def test_narrow_terminal_keeps_all_digits(width, capsys, monkeypatch):
    """After minutes of measuring it printed '34…' microseconds."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
    report.print_table([Result("gymnasium async", None, 5431.2, 349.9, 0.06, 0.04, 0.1267, None, [5431.2])])
    assert {"5,431", "349.9", "0.06", "0.04", "0.1267"} <= set(capsys.readouterr().out.split())
