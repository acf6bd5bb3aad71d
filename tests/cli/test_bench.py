"""`vecenv bench`: real runs, their files, and one line for every wrong argument."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import NamedTuple

import gymnasium
import matplotlib.image
import psutil
import pytest

import vecenv
from tests.faults.traces import wait_until
from tests.programs import run_python
from vecenv.cli import bench, main
from vecenv.cli.arguments import BENCH_MODES
from vecenv.cli.exit_codes import run_command
from vecenv.cli.result_file import ResultFile
from vecenv.cli.verdict import verdict
from vecenv.core.layout import arena
from vecenv.core.processes.measure import Measurement, Times
from vecenv.errors import EXTRAS
from vecenv.measurement import machine, measure, report
from vecenv.measurement.measure import Result

MODES = ["plain loop", "ceiling", "gymnasium async", "vecenv serial", "vecenv sync", "vecenv async"]
ROOT = Path(__file__).parents[2]
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


@pytest.mark.extended
def test_bench_measures_prints_and_writes_every_mode(tmp_path: Path):
    """It runs in its own process, because matplotlib and Gymnasium's workers keep descriptors open until they end."""
    json_path, plot_path = tmp_path / "bench.json", tmp_path / "bench.png"
    done = run_python("-m", "vecenv", *SHORT, "--json", str(json_path), "--plot", str(plot_path))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = []
    for mode in MODES:
        line = next(line for line in done.stdout.splitlines() if line.strip().startswith(mode))
        assert len(line.split()) == len(mode.split()) + 4 and len(line) <= 60
        cells = [float(cell.replace(",", "")) for cell in line.split()[-4:]]
        lines.append(cells)
    for rate, *ratios in lines:
        others = (lines[MODES.index(mode)][0] for mode in ("plain loop", "gymnasium async", "ceiling"))
        assert ratios == pytest.approx([rate / other for other in others], abs=0.006), "quotients of printed rates"
    last_line = done.stdout.splitlines()[-1]
    assert "fastest" in last_line and last_line.endswith(".")
    content = json.loads(json_path.read_text())
    assert content["verdict"] == last_line
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


@pytest.mark.extended
def test_skipped_modes_are_not_run_and_have_no_ratios(run, tmp_path: Path):
    path = tmp_path / "bench.json"
    skip = ("--skip", "plain", "--skip", "gymnasium", "--skip", "serial", "--skip", "async")
    assert run(*SHORT, *skip, "--no-copy", "--workers", "1", "--json", str(path)).code == 0
    content = json.loads(path.read_text())
    assert [entry["name"] for entry in content["results"]] == ["ceiling", "vecenv sync"]
    assert all(entry["ratio_to_plain"] is None for entry in content["results"])
    assert content["settings"]["copy"] is False and content["settings"]["workers"] == 1


@pytest.mark.extended
def test_env_kwargs_reach_the_env(run, tmp_path: Path):
    path = tmp_path / "bench.json"
    skip = ("--skip", "gymnasium", "--skip", "serial", "--skip", "async", "--skip", "ceiling")
    kwargs = ("--env-kwarg", "sutton_barto_reward=True", "--env-kwarg", "render_mode=rgb_array")
    assert run(*SHORT, *skip, *kwargs, "--json", str(path)).code == 0
    settings = json.loads(path.read_text())["settings"]
    assert settings["env_kwargs"] == {"sutton_barto_reward": True, "render_mode": "rgb_array"}


NULL = "vecenv.envs.toys:NullEnv"
ONE_MODE = ["bench", NULL, "--only", "sync", "--rounds", "1", "--envs", "4"]


@pytest.mark.extended
def test_one_mode_prints_its_times_and_verdicts(run, tmp_path: Path):
    """The load of the machine decides which verdicts its statistics lead to."""
    path = tmp_path / "bench.json"
    lines = run(*ONE_MODE, "--seconds", "1", "--workers", "1", "--json", str(path)).out.splitlines()
    assert any(line.startswith("all steps") for line in lines) and any(line.startswith("caller ") for line in lines)
    content = json.loads(path.read_text())
    texts = [one["text"] for one in content["verdicts"]] or [f"no verdict: {content['note']}"]
    assert texts == [line for line in lines if line in texts]
    assert "vecenv sync with num_workers=1" in lines[-1]


@pytest.mark.extended
def test_policy_time_is_reported_as_slow_policy(run):
    done = run(*ONE_MODE, "--seconds", "4", "--policy-ms", "30", "--json", "-")
    content = json.loads(done.out)
    assert content["settings"]["policy_ms"] == 30.0 and content["statistics"]["steps"] > 0
    verdict = content["verdicts"][0]  # on a busy machine another may follow
    assert verdict["name"] == "slow policy" and verdict["text"] in done.err and verdict["number"] > 0.5


@pytest.mark.extended
def test_policy_time_leaves_the_loops_out(run):
    done = run(*SHORT, "--policy-ms", "1", "--skip", "gymnasium", "--json", "-")
    content = json.loads(done.out)
    assert [entry["name"] for entry in content["results"]] == ["vecenv serial", "vecenv sync", "vecenv async"]
    assert all(entry["us_per_batch"] > 400 for entry in content["results"])  # half of the envs have half of the time
    assert "verdicts" not in content


@pytest.mark.extended
def test_former_command_profile_measures_one_mode(run):
    done = run("profile", NULL, "--envs", "4", "--seconds", "0.01", "--json", "-")
    note = "vecenv profile: deprecated, use vecenv bench --only sync --rounds 1 --seconds 5"
    assert done.code == 0 and done.err.splitlines()[0] == note
    content = json.loads(done.out)
    settings = {"env": NULL, "envs": 4, "seconds": 0.01, "policy_ms": 0.0, "env_kwargs": {}}
    assert content["settings"] == {**content["settings"], **settings} and "too little was measured" in content["note"]


@pytest.mark.parametrize(
    "options, parts",
    [
        (["--envs", "0"], ["--envs", "'0'"]),
        (["--envs", "many"], ["--envs", "'many'"]),
        (["--envs", "100000"], ["--envs", f"from 1 to {arena.MAX_ROWS}", "'100000'"]),
        (["--workers", "0"], ["--workers"]),
        (["--workers", "2000"], ["--workers", "from 1 to 1024"]),
        (["--workers", "5", "--envs", "4"], ["--workers 5", "--envs 4"]),
        (["--wait-num", "5", "--envs", "4"], ["--wait-num 5", "--envs 4"]),
        (["--wait-num", "-1"], ["--wait-num"]),
        (["--seconds", "0"], ["--seconds", "'0'"]),
        (["--seconds", "-1"], ["--seconds"]),
        (["--seconds", "nan"], ["--seconds", "'nan'"]),
        (["--seconds", "inf"], ["--seconds"]),
        (["--seconds", "1e9"], ["--seconds 1e+09", "86400"]),
        (["--seconds", "0.1", "--rounds", "1000"], ["--seconds 0.1", "--rounds 1000", "0.0001 s"]),
        (["--rounds", "0"], ["--rounds"]),
        (["--rounds", "10001"], ["--rounds", "from 1 to 10000"]),
        (["--env-kwarg", "foo"], ["KEY=VALUE", "'foo'"]),
        (["--env-kwarg", "=3"], ["KEY=VALUE"]),
        (["--policy-ms", "-1"], ["--policy-ms", "milliseconds of at least 0", "'-1'"]),
        (["--policy", "1"], ["did you mean --policy-ms?"]),
        (["--only", "sync", "--skip", "sync"], ["skip"]),
        (["--skip", "nothing"], ["--skip", "'nothing'"]),
        ([word for mode in BENCH_MODES for word in ("--skip", mode)], ["skip"]),
        (["--plot", "bench.xyz"], ["--plot bench.xyz", ".png"]),
        (["--json", "bench.png", "--plot", "./bench.png"], ["--json and --plot", "bench.png"]),
        (["--unknown"], ["--unknown"]),
        (["--rond", "3"], ["--rond", "did you mean --rounds?"]),
        (["CartPole-v1", "--seconds=1", "--wait-nun=3"], ["--wait-nun=3", "did you mean --wait-num?"]),
        (["NoSuchEnv-v0"], ["NoSuchEnv"]),
        (["--env", "NoSuchEnv-v0"], ["NoSuchEnv"]),
        (["CartPole-v1", "--env", "Acrobot-v1"], ["CartPole-v1", "--env Acrobot-v1"]),
        (["CartPole-v999"], ["CartPole"]),
        (["no_such_module:CartPole-v1"], ["no_such_module"]),
        (["vecenv.envs.toys:ToyEnv", "--atari"], ["ToyEnv", "--atari"]),
        (["--json", ""], ["--json", "is a directory"]),
        (["--json", "/dev/null", "--overwrite"], ["--json /dev/null", "not a regular file"]),
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
from vecenv.envs.toys import RaiseAtReset, RaiseAtStep, SegfaultAtStep, ToyEnv

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

for kind in (RaiseAtReset, RaiseAtStep, SegfaultAtStep, ClosesBadly, Leaves, LeavesLater, LeavesAtClose, Sequences):
    gymnasium.register(f"Odd{kind.__name__}-v0", kind, disable_env_checker=True)
"""

NO_LOOPS = ("--skip", "plain", "--skip", "ceiling")
ONLY_LOOPS = ("--skip", "gymnasium", "--skip", "serial", "--skip", "sync", "--skip", "async")
ONLY_SERIAL = ("--only", "serial")
ONLY_VECENV = (*NO_LOOPS, "--skip", "gymnasium", "--skip", "serial")


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


@pytest.mark.extended
@pytest.mark.parametrize(
    "name, skip, code, parts",
    [
        ("RaiseAtStep", ONLY_LOOPS, 1, ["plain loop raised ZeroDivisionError: toy env divides"]),
        ("RaiseAtReset", ONLY_LOOPS, 1, ["plain loop raised ValueError: toy env cannot reset"]),
        ("RaiseAtStep", ONLY_VECENV, 1, ["ZeroDivisionError raised: toy env"]),
        ("RaiseAtStep", ONLY_SERIAL, 1, ["vecenv serial raised ZeroDivisionError: "]),
        ("SegfaultAtStep", ONLY_SERIAL, 1, ["the process of vecenv serial died: killed by SIGSEGV"]),
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
    assert_one_line(run(*SHORT, f"odd_envs:Odd{name}-v0", *skip), code, *parts)


SLOW_RESETS = """
import time
from vecenv.envs.toys import ToyEnv

class SlowResets(ToyEnv):
    def __init__(self):
        super().__init__(5)

    def reset(self, **kwargs):
        time.sleep(0.1)
        return super().reset(**kwargs)
"""

OWN_ENVS = """
import gymnasium
import numpy as np

def make(length=5):
    return gymnasium.make("CartPole-v1", max_episode_steps=length)

class Old:
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, cfg):
        self.left = 0

    def seed(self, seed, dynamic_seed=True):
        pass

    def reset(self):
        self.left = 3
        return np.zeros(2, np.float32)

    def step(self, action):
        self.left -= 1
        return np.zeros(2, np.float32), 1.0, self.left == 0, {}

    def close(self):
        pass
"""


@pytest.mark.extended
def test_windows_are_at_least_ten_resets_long(tmp_path: Path):
    """Ratios came from windows without a reset."""
    (tmp_path / "own_envs.py").write_text(SLOW_RESETS)
    argv = ["-m", "vecenv", "bench", "own_envs:SlowResets", "--seconds", "0.6", "--rounds", "3", "--envs", "2"]
    done = run_python(*argv, "--only", "sync", "--json", "-", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert content["settings"]["rounds"] == 1 and "as long as 10 resets" in done.stderr
    assert content["statistics"]["reset/num"] >= 2 + 2 * 8


@pytest.mark.extended
def test_env_that_waits_is_stepped_by_more_workers_than_cores(run, monkeypatch):
    """Two workers were measured, where Gymnasium has a process for each env."""
    waiting = Measurement(steps=Times(10, 1e7, 1e5))
    assert bench.choose_workers(waiting, 8) == 8
    assert bench.choose_workers(Measurement(failure="no"), 8) == min(8, machine.usable_cores())
    monkeypatch.setattr(measure, "gymnasium_limit", lambda: 5)
    assert bench.choose_workers(waiting, 64) == max(5, machine.usable_cores())


@pytest.mark.extended
@pytest.mark.parametrize("name", ["make", "Old"])
def test_bench_measures_own_factory_of_working_directory(tmp_path: Path, name: str):
    """`module:factory` was taken for an id of Gymnasium's registry; DI-engine's envs have another step."""
    (tmp_path / "own_envs.py").write_text(OWN_ENVS)
    script = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from vecenv.cli import main; sys.exit(main())"
    command = [sys.executable, "-P"] if sys.version_info >= (3, 11) else [sys.executable]
    argv = [SHORT[0], f"own_envs:{name}", *SHORT[1:], "--json", "-"]
    done = subprocess.run([*command, "-c", script, *argv], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert content["settings"]["env"] == f"own_envs:{name}"
    assert all(entry["steps_per_second"] > 0 for entry in content["results"])
    assert content["verdict"] in done.stderr, "the table goes to standard error"


@pytest.mark.parametrize("flag, name", [("--json", "bench.json"), ("--plot", "bench.png")])
def test_unwritable_file_is_found_before_the_run(run, tmp_path: Path, flag: str, name: str):
    result = run("bench", flag, str(tmp_path / "missing" / name))
    assert_one_line(result, 2, flag, "missing", "does not exist")
    directory = tmp_path / name
    directory.mkdir()
    assert_one_line(run("bench", flag, str(directory)), 2, flag, "is a directory")
    assert result.out == ""
    result = run("bench", flag, f"/proc/{name}")
    assert_one_line(result, 2, flag, f"/proc/{name}", "written")
    assert result.out == ""


@pytest.mark.extended
def test_existing_file_is_kept_without_overwrite(run, tmp_path: Path):
    path = tmp_path / "bench.json"
    path.write_text("results of an hour")
    assert_one_line(run("bench", "--json", str(path)), 2, f"--json {path}", "--overwrite")
    assert path.read_text() == "results of an hour"
    skip = ("--skip", "gymnasium", "--skip", "serial", "--skip", "async", "--skip", "ceiling")
    assert run(*SHORT, *skip, "--json", str(path), "--overwrite").code == 0
    assert json.loads(path.read_text())["results"]
    assert list(tmp_path.iterdir()) == [path], "the temporary file was renamed"


@pytest.mark.extended
def test_failed_run_leaves_no_file(run, odd_envs, tmp_path: Path):
    folder = tmp_path / "results"
    folder.mkdir()
    argv = (*SHORT, "odd_envs:OddRaiseAtStep-v0", *ONLY_LOOPS, "--json", str(folder / "x.json"))
    assert run(*argv, "--plot", str(folder / "x.png")).code == 1
    assert list(folder.iterdir()) == []


def test_result_file_has_permissions_of_umask(tmp_path: Path):
    path = tmp_path / "x.json"
    before = os.umask(0o027)
    try:
        ResultFile("--json", path).write(lambda file: file.write(b"text"))
    finally:
        os.umask(before)
    assert path.read_bytes() == b"text" and path.stat().st_mode & 0o777 == 0o640


def test_bare_command_prints_the_help(run):
    """It was an error."""
    result = run()
    assert result.code == 0 and result.err == ""
    assert "usage: vecenv" in result.out and "bench" in result.out


@pytest.mark.parametrize(
    "words, guess",
    [
        ("bnech", "did you mean bench?"),
        ("xyz", "expected one of bench, check"),
        ("--verison", "did you mean --version?"),
    ],
)
def test_misspelt_command_gets_a_guess(run, words: str, guess: str):
    assert_one_line(run(words), 2, words, guess)


@pytest.mark.parametrize(
    "value, text", [("python", "Python"), pytest.param("native", "native", marks=pytest.mark.native)]
)
def test_version_names_the_implementation(run, monkeypatch, value: str, text: str):
    monkeypatch.setenv("VECENV_IMPLEMENTATION", value)
    result = run("--version")
    assert result.code == 0 and result.err == ""
    assert result.out.startswith(f"vecenv {vecenv.__version__} ({text}")


@pytest.mark.extended
def test_too_many_envs_leave_gymnasium_out(run, monkeypatch):
    """`--envs 60000` began to start 60,000 processes."""
    monkeypatch.setattr(measure, "gymnasium_limit", lambda: 3)
    result = run(*SHORT, "--skip", "ceiling", "--skip", "async")
    assert result.code == 0
    assert "AsyncVectorEnv is left out: it would start 4 processes" in result.out
    assert "gymnasium async" not in result.out and "vecenv sync" in result.out


def test_gymnasium_limit_is_below_the_number_of_descriptors():
    assert 0 <= measure.gymnasium_limit() <= 1024


@pytest.mark.extended
@pytest.mark.parametrize(
    "package, argv, extra",
    [
        ("matplotlib", ["bench", "--plot", "bench.png"], "cli"),
        ("ale_py", ["bench", "ALE/Pong-v5"], "atari"),
    ],
)
def test_missing_extra_is_named_with_its_install_command(package: str, argv: list[str], extra: str):
    program = WITHOUT_PACKAGE.format(package=package, argv=argv)
    done = run_python("-c", program)
    assert_one_line(Run(done.returncode, done.stdout, done.stderr), 2, package, f'pip install "{EXTRAS[extra][0]}"')


@pytest.mark.extended
@pytest.mark.parametrize("package", ["rich", "matplotlib"])
def test_table_is_printed_without_packages_of_the_extra(package: str):
    argv = [*SHORT, "--skip", "gymnasium", "--skip", "serial", "--skip", "async", "--skip", "ceiling"]
    program = WITHOUT_PACKAGE.format(package=package, argv=argv)
    done = run_python("-c", program)
    assert done.returncode == 0, done.stderr
    assert "vecenv sync" in done.stdout


@pytest.mark.extended
@pytest.mark.parametrize(
    "number, code, text",
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "ended by SIGTERM"),
        (signal.SIGHUP, 129, "ended by SIGHUP"),
    ],
)
def test_signal_to_all_processes_is_one_line(tmp_path: Path, number: int, code: int, text: str):
    """SIGTERM left workers running; Gymnasium's processes printed tracebacks."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "vecenv",
            "bench",
            "--envs",
            "4",
            "--seconds",
            "600",
            "--json",
            str(tmp_path / "x.json"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # this program may run under nohup
    )
    assert process.stdout is not None
    process.stdout.readline()  # the header: processes start next
    wait_until(lambda: _has_gymnasium_processes(process.pid), seconds=60.0)
    started = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=120)
    assert_one_line(Run(process.returncode, out, err), code, text)
    assert psutil.wait_procs(started, timeout=10)[1] == []
    assert list(tmp_path.iterdir()) == []


def _has_gymnasium_processes(pid: int) -> bool:
    """Return whether the process has forked: loops and the fork server of vecenv have other command lines."""
    process = psutil.Process(pid)
    return process.cmdline() in [child.cmdline() for child in process.children()]


def test_termination_ends_a_forked_process_without_traceback(capfd):
    """The handler of the parent raised KeyboardInterrupt in Gymnasium's processes."""

    def command() -> int:
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        return os.waitpid(child, 0)[1]

    assert run_command("here", command) == signal.SIGTERM
    assert capfd.readouterr().err == ""
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_ignored_hangup_does_not_end_a_command():
    """A run under `nohup` continues."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run_command("here", lambda: os.kill(os.getpid(), signal.SIGHUP)) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("lockstep, is_reported", [(0.61, True), (0.98, False), (None, False)])
def test_uneven_cores_are_reported(capsys, lockstep, is_reported):
    report.print_table([Result("ceiling", None, 1000.0, 10.0, 2.0, 1.0, 0.01, lockstep, [1000.0])])
    assert ("0.61 of the ceiling" in capsys.readouterr().out) == is_reported


@pytest.mark.parametrize("stolen, is_reported", [(0.13, True), (0.001, False), (0.0, False)])
def test_stolen_time_is_reported(capsys, stolen, is_reported):
    report.print_table([Result("ceiling", None, 1000.0, 10.0, 2.0, 1.0, 0.01, None, [1000.0])], stolen)
    out = capsys.readouterr().out
    assert ("took 13% of its cores' time" in out) == is_reported and ("took" in out) == is_reported


RESULTS = [
    Result("plain loop", None, 90_000.0, 711.1, 1.0, 0.5, 0.011, None, [80_000.0, 100_000.0], 16.6),
    Result("gymnasium async", None, 5431.2, 349.9, 0.06, 0.04, 0.1267, None, [5431.2, 5431.2], 1.0),
    Result("vecenv sync", "native", 120_000.0, 533.3, 1.33, 0.7, 0.02, None, [120_000.0] * 2, 22.1),
    Result("vecenv async", "native", 1_234_567.0, 51.8, 13.7, 0.9, 0.02, None, [1_100_000.0, 1_300_000.0], 227.3),
]
SETTINGS = {
    "env": "own_envs:make",
    "env_kwargs": {"a_long_name": "a long value " * 8},
    "atari": False,
    "envs": 64,
    "workers": 2,
    "wait_num": 32,
    "copy": True,
    "rounds": 2,
}


@pytest.mark.parametrize("width, num_columns", [(30, 2), (40, 3), (60, 5), (99, 5), (None, 5)])
def test_narrow_terminal_gets_fewer_columns(width, num_columns):
    """After minutes of measuring it printed '34…' microseconds; later it folded lines."""
    lines = report.table_lines(RESULTS, width)
    assert len({len(line) for line in lines}) == 1 and (width is None or len(lines[0]) <= width)
    cells = lines[4].split()[2:]
    assert len(cells) == num_columns - 1 and cells[0] == "5,431"
    assert cells == [cell for cell in report.table_lines(RESULTS)[4].split()[2:] if cell in cells], "whole numbers"


def test_table_has_a_column_for_gymnasium_and_fits_60_columns():
    lines = report.table_lines(RESULTS)
    assert "gymnasium" in lines[1] and "227.30" in lines[-1].split()
    assert max(map(len, lines)) <= 60


def test_text_is_wrapped_to_a_terminal(monkeypatch):
    """Under a pseudo terminal of 40 columns."""
    monkeypatch.delenv("COLUMNS", raising=False)
    parent, child = os.openpty()
    try:
        termios.tcsetwinsize(child, (24, 40)) if hasattr(termios, "tcsetwinsize") else monkeypatch.setenv(
            "COLUMNS", "40"
        )
        with os.fdopen(child, "w") as terminal:
            report.print_text("word " * 30, terminal)
            report.print_table(RESULTS, file=terminal)
            terminal.flush()
            output = b""
            while b"1,234,567" not in output:  # a read may return a part
                output += os.read(parent, 10_000)
    finally:
        os.close(parent)
    lines = output.decode().splitlines()
    assert max(map(len, lines)) <= 40 < len("word " * 30)


# Runs in its own process, because matplotlib keeps the files of fonts open.
CHECK_PLOT = """
import itertools
from tests.cli.test_bench import ABOUT, RESULTS, SETTINGS
from vecenv.measurement import report

figure = report.draw_plot(SETTINGS, ABOUT, RESULTS)
figure.draw_without_rendering()
(axes,) = figure.axes
ticks = [label for label in axes.get_xticklabels() if axes.viewLim.x0 <= label.get_position()[0] <= axes.viewLim.x1]
texts = [*axes.get_yticklabels(), *axes.texts, *ticks, axes.xaxis.label, *figure.texts]
boxes = [text.get_window_extent() for text in texts]
assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)
assert axes.texts[-1].get_text() == "1,234,567   13.70 x plain   227.30 x gymnasium"
assert any("," in tick.get_text() for tick in ticks)
colours = [bar.get_facecolor() for bar in axes.patches]
assert colours[0] == colours[1] != colours[2] == colours[3]
"""


@pytest.mark.extended
def test_plot_texts_do_not_overlap():
    """Numbers were drawn over dots, and long titles over the edge."""
    done = run_python("-c", CHECK_PLOT, cwd=ROOT)
    assert done.returncode == 0, done.stderr


ABOUT = {
    "processor": "A processor with a name of many words and numbers @ 3.20 GHz",
    "usable_cores": 2,
    "system": "Linux 6.1",
    "python": "3.11.7",
    "gymnasium": "1.2.0",
}
GYM_WINS = [dataclasses.replace(RESULTS[1], steps_per_second=2e6), RESULTS[2]]


@pytest.mark.parametrize(
    "results, sentence",
    [
        (
            RESULTS,
            (
                "The fastest setting is vecenv async with num_workers=2, send() and recv(32): 1,234,567 env steps per "
                "second, 227.3 x Gymnasium's AsyncVectorEnv and 13.7 x the plain loop."
            ),
        ),
        (
            RESULTS[:3],
            (
                "The fastest setting is vecenv sync with num_workers=2 and step(): 120,000 env steps per second, "
                "22.1 x Gymnasium's AsyncVectorEnv and 1.33 x the plain loop."
            ),
        ),
        (
            [dataclasses.replace(RESULTS[0], steps_per_second=400_000.0), *RESULTS[1:3]],
            (
                "The plain loop is fastest: 400,000 env steps per second, 3.3 x vecenv sync: a step of the 64 envs "
                "takes 2.5 us per env, and 8.33 us with the hand-over to 2 workers. Use backend='serial', which "
                "survives no crash of an env."
            ),
        ),
        (GYM_WINS, "Gymnasium's AsyncVectorEnv is fastest: 2,000,000 env steps per second, 16.7 x vecenv sync."),
        (
            [dataclasses.replace(RESULTS[2], ratio_to_plain=1.01, ratio_to_gymnasium=None)],
            (
                "The fastest setting is vecenv sync with num_workers=2 and step(): 120,000 env steps per second, "
                "about as fast as the plain loop."
            ),
        ),
        ([dataclasses.replace(RESULTS[0], name="ceiling")], ""),
        (
            [dataclasses.replace(RESULTS[2], name="vecenv serial", ratio_to_gymnasium=None)],
            (
                "The fastest setting is vecenv serial with backend='serial', which survives no crash of an env, and "
                "step(): 120,000 env steps per second, 1.33 x the plain loop."
            ),
        ),
    ],
    ids=["async", "sync", "plain", "gymnasium", "equal", "ceiling", "serial"],
)
def test_verdict_names_the_fastest_setting(results, sentence):
    assert verdict(results, SETTINGS) == sentence


def test_verdict_does_not_call_the_ceiling_a_setting():
    ceiling = dataclasses.replace(RESULTS[0], name="ceiling", steps_per_second=1e9)
    assert "vecenv async" in verdict([ceiling, *RESULTS], SETTINGS)
