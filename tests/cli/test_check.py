"""`vecenv check`: all violations of an env in one run, and whether it can be recovered after a crash."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import gymnasium
import pytest

from tests.programs import run_python
from vecenv.cli import main

MODULE = """
    import ctypes
    import os
    import random
    import signal
    import time
    import gymnasium
    import numpy as np
    from gymnasium import spaces
    from vecenv.ding import BaseEnv, BaseEnvTimestep

    class Broken(BaseEnv):
        "Breaks as many rules as one class can."

        def __init__(self, cfg):
            self._cfg = cfg
            self.observation_space = spaces.Box(0.0, 1.0, (2,), np.float64)
            self.action_space = spaces.Discrete(2)
            self.reward_space = spaces.Box(0.0, 1.0, (1,), np.float32)
            self.buffer = np.zeros(2)
            self.kept = lambda: None

        def reset(self):
            self.count = 0
            self.buffer[:] = random.random()
            return self.buffer

        def step(self, action):
            self.count += 1
            self.buffer[:] = 5.0
            done = np.bool_(self.count == 3)
            return BaseEnvTimestep(self.buffer, 1.0, done, {})

        def close(self):
            pass

    class Endless(gymnasium.Env):
        observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.np_random.random(1, np.float32), {}

        def step(self, action):
            return self.np_random.random(1, np.float32), 0.0, False, False, {}

    class SpacedByText(gymnasium.Env):
        observation_space = "box"
        action_space = 3

    def shorter(max_steps=5):
        return gymnasium.make("CartPole-v1", max_episode_steps=max_steps, render_mode="rgb_array")

    class Family:
        class Member(Endless):
            def step(self, action):
                return (*super().step(action)[:2], True, False, {})

    class Drifts(gymnasium.Wrapper):
        "Statistics over episodes that nothing carries."
        mean = np.float32(0.0)

        def step(self, action):
            obs, *rest = self.env.step(action)
            self.mean = self.mean + np.float32(0.001)
            return (obs + self.mean, *rest)

    def drifting():
        return Drifts(Family.Member())

    class Draws(Family.Member):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)[0] * np.float32(np.random.random()), {}

    class Closes(Family.Member):
        def close(self):
            with open("closed", "a") as file:
                file.write("x")

    class ClosesBadly(Endless):
        def close(self):
            raise RuntimeError("cannot close")

    def several():
        return gymnasium.vector.SyncVectorEnv([Family.Member] * 2)

    def of_alf():
        from vecenv.alf import load
        return load("CartPole-v1")

    def raising():
        raise RuntimeError("no license")

    def leaving(code=3):
        raise SystemExit(code)

    class Halt(BaseException):
        pass

    def halting():
        raise Halt("not an Exception")

    class StopsTheCommand(Endless):
        def step(self, action):
            os.kill(int(os.environ["COMMAND"]), signal.SIGINT)
            time.sleep(60)

    class Segfaults(Endless):
        def step(self, action):
            ctypes.string_at(0)

    class Hangs(Endless):
        def step(self, action):
            time.sleep(60)

    class EndsItsProcess(Endless):
        def reset(self, *, seed=None, options=None):
            os._exit(3)

    class LeavesAtStep(Endless):
        def step(self, action):
            raise SystemExit(3)

    class LeavesAtClose(Family.Member):
        def close(self):
            raise SystemExit(3)

    class LeavesLater(Family.Member):
        built = 0

        def __init__(self):
            LeavesLater.built += 1
            if LeavesLater.built > 1:
                raise SystemExit(3)

    gymnasium.register("FromModule-v0", Family.Member)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Enter a working directory with a module `own_envs` that is importable only there."""
    (tmp_path / "own_envs.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("own_envs", None)
    gymnasium.registry.pop("FromModule-v0", None)


@pytest.fixture
def check(capsys):
    def check(*argv):
        code = main(["check", *argv])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return check


@pytest.mark.extended
def test_good_env_passes(check):
    code, out, _ = check("CartPole-v1")
    assert code == 0 and out.endswith("CartPole-v1: keeps every rule\n")
    for part in ("pickling", "reset", "spaces", "step", "aliasing", "determinism", "gymnasium"):
        assert f"{part}: ok\n" in out


def test_env_is_closed(check, here):
    assert check("own_envs:Closes", "--no-spawn")[0] == 0 and (here / "closed").read_text() == "x"


def test_env_that_fails_to_close_is_a_violation(check, here):
    code, out, err = check("own_envs:ClosesBadly", "--no-spawn", "--max-steps", "20")
    assert code == 1 and err == ""
    assert "  endless: episode 0 did not end within 20 steps" in out, "what was found before is told"
    assert "  close: RuntimeError raised: cannot close\n" in out


@pytest.mark.parametrize(
    "name, rule",
    [("LeavesAtStep", "step"), ("LeavesAtClose", "close"), ("LeavesLater", "recovery")],
)
def test_env_that_calls_exit_is_a_violation(check, here, name, rule):
    """The program ended with the env's exit code and without a message."""
    code, out, err = check(f"own_envs:{name}", "--no-spawn", "--max-steps", "20", "--determinism")
    assert code == 1 and err == "" and f"  {rule}: SystemExit raised: 3\n" in out


def test_ctrl_c_ends_the_check_within_a_step(check, here, monkeypatch):
    monkeypatch.setenv("COMMAND", str(os.getpid()))
    code, out, err = check("own_envs:StopsTheCommand", "--no-spawn")
    assert (code, err) == (130, "vecenv check: interrupted\n") and "step" not in out


@pytest.mark.parametrize(
    "name, broken",
    [
        ("Segfaults", "  crash: the env ended its process: SIGSEGV; it was in string_at ("),
        ("EndsItsProcess", "  crash: the env ended its process: exit code 3\n"),
        ("Hangs", "  hang: a call of the env took longer than 1 s (--step-timeout); it was in step ("),
    ],
)
def test_env_that_ends_its_process_or_hangs_breaks_a_rule(check, here, name, broken):
    """The command was killed, or waited without a word."""
    code, out, err = check(f"own_envs:{name}", "--step-timeout", "1")
    assert code == 1 and err == "" and broken in out and out.endswith(f"own_envs:{name}: 1 rule broken\n")
    assert ("own_envs.py:" in out) == (name != "EndsItsProcess"), "the line of the env"


def test_vector_env_is_refused(check, here):
    code, _, err = check("own_envs:several", "--no-spawn")
    assert code == 2 and "makes no single env but a vector env" in err


def test_alf_environment_is_refused_by_name(check, here):
    """The check reported four violations, all because its results are TimeSteps."""
    code, out, err = check("own_envs:of_alf", "--no-spawn")
    assert (code, out) == (2, "") and "makes an ALF environment" in err and len(err.splitlines()) == 1


def test_violations_are_all_reported_in_one_run(check, here):
    code, out, _ = check("own_envs:Broken", "--no-spawn")
    assert code == 1
    for rule in (
        "dtype: observation_space: expected float32, got float64",
        "reward: reward: expected an array",
        "done: done: expected bool, got np.bool_",
        "bounds: observation: expected values between 0 and 1, got 5 to 5",
        "score: no info['eval_episode_return']",
        "aliasing: observations around step 0: share memory",
        "determinism: observation of reset differs",
    ):
        assert f"  {rule}" in out
    assert out.splitlines()[-1] == "own_envs:Broken: 7 rules broken"


def test_endless_env_is_found_by_the_step_limit(check, here):
    code, out, _ = check("own_envs:Endless", "--no-spawn", "--max-steps", "20")
    assert code == 1 and "endless: episode 0 did not end within 20 steps" in out


@pytest.mark.extended
def test_constructor_is_called_in_a_fresh_interpreter(check, here):
    assert check("own_envs:shorter")[0] == 0
    (here / "guard.py").write_text("import sys\nassert 'guard' not in sys.argv[0]\n")
    text = (here / "own_envs.py").read_text()
    (here / "own_envs.py").write_text(
        text + "\n\nimport os\nif os.environ.get('FRESH'):\n    raise ImportError('lost')\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRESH", "1")
        code, out, _ = check("own_envs:shorter")
    assert code == 1 and "pickling: cannot be sent to a new process: ImportError: lost" in out


@pytest.mark.parametrize("name", ["own_envs:shorter", "own_envs:Family.Member", "own_envs:FromModule-v0"])
def test_target_may_be_a_function_a_nested_class_or_an_id(check, here, name):
    code, out, _ = check(name, "--no-spawn")
    assert code == 0, out


def test_env_arguments_reach_the_factory(check, here):
    assert check("own_envs:shorter", "--no-spawn", "--env-kwarg", "max_steps=50", "--max-steps", "3")[0] == 1


@pytest.mark.parametrize(
    "name, says",
    [
        ("NoSuchEnv-v0", "NoSuchEnv"),
        ("no_such_module:thing", "cannot import 'no_such_module'"),
        (":thing", "cannot import ''"),
        (".own_envs:thing", "cannot import '.own_envs'"),
        ("..:thing", "cannot import '..'"),
        ("broken:thing", "ZeroDivisionError: division by zero"),
        ("own_envs:nothing", "has no function or class 'nothing'"),
        ("own_envs:raising", "RuntimeError: no license"),
        ("own_envs:leaving", "SystemExit: 3"),
        ("own_envs:halting", "Halt: not an Exception"),
        ("exits:thing", "SystemExit: 3"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_code_2(check, here, name, says):
    (here / "broken.py").write_text("1 / 0")
    (here / "exits.py").write_text("raise SystemExit(3)")
    code, out, err = check(name)
    assert code == 2 and out == "" and says in err and err.count("\n") == 1


@pytest.mark.parametrize("options", [["--max-steps", "0"], ["--seed", "-1"], ["--episodes", "x"]])
def test_bad_options_are_refused(options):
    with pytest.raises(SystemExit) as caught:
        main(["check", "CartPole-v1", *options])
    assert caught.value.code == 2


def test_recovery_check_is_skipped_without_spaces(check, here):
    code, out, err = check("own_envs:SpacedByText", "--no-spawn", "--determinism")
    assert code == 1 and err == "" and "recovery after a crash: cannot be tried without proper spaces" in out
    assert "own_envs:SpacedByText: 2 rules broken" in out, "each space, and nothing that only follows from it"


@pytest.mark.extended
def test_determinism_of_a_good_env(check):
    code, out, _ = check("Acrobot-v1", "--no-spawn", "--determinism")
    assert code == 0 and "recovery after a crash: any episode" in out


def test_determinism_check_names_the_lost_state(check, here):
    code, out, _ = check("own_envs:drifting", "--no-spawn", "--determinism")
    assert "two runs from one seed: alike" in out
    assert "state not carried over: own_envs.Drifts: unknown class" in out and "get_state()" in out
    assert "recovery after a crash: from the last seeded reset" in out
    assert code == 1 and "determinism: observation of step 0 differs" in out


def test_determinism_check_reports_global_generators(check, here):
    _, out, _ = check("own_envs:Draws", "--no-spawn", "--determinism")
    assert "draws from the global generators" in out and "recovery after a crash: any episode" in out


def test_factory_result_that_is_not_an_env_is_one_line(check):
    code, _, err = check("json:dumps", "--no-spawn")
    assert code == 2 and "json:dumps" in err and err.count("\n") == 1


@pytest.mark.extended
def test_check_runs_as_a_module(here):
    done = run_python("-m", "vecenv", "check", "own_envs:Endless", "--max-steps", "5", "--no-spawn")
    assert done.returncode == 1 and "endless" in done.stdout, done.stderr


def test_env_without_close_passes(check, here):
    (here / "unclosed.py").write_text(
        "from tests.scripted import Plain\n\nclass NoClose(Plain):\n    close = property()\n"
    )
    assert check("unclosed:NoClose", "--no-spawn")[0] == 0


@pytest.mark.extended
def test_removed_working_directory_is_tolerated(check, tmp_path, monkeypatch):
    """It printed a traceback."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    if subprocess.run([sys.executable, "-c", "import socket"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("this Python itself does not start there, as 3.13.0")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    code, out, err = check("vecenv.envs.toys:CountEnv", "--episodes", "1")
    assert (code, err) == (0, "") and "keeps every rule" in out
