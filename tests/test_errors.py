"""Every error pickles, copies, has its bases and its wording."""

import ast
import copy
import multiprocessing
import pickle
import re
import signal
from pathlib import Path

import pytest

import vecenv
from vecenv import errors
from vecenv.errors import (
    ClosedError,
    ConfigError,
    DependencyError,
    DifferentSpacesError,
    EnvError,
    InternalError,
    NotASequenceError,
    ShortageError,
    SpaceError,
    StateError,
    UnknownNameError,
    VecenvError,
    WorkerDiedError,
    WorkerError,
    WorkerTimeoutError,
    WrongTypeError,
    describe_exit,
    require,
    warn_caller,
)

WHERE = {"worker_id": 3, "env_ids": (12, 13), "op": "step", "step_id": 481}
WHERE |= {"seed": 5, "actions": (0, [0.5, 1.0]), "reproducer": "/tmp/env12-step481.vecenv-episode"}

FIELDS = {
    VecenvError: {},
    ConfigError: {"key": "wait_num"},
    ShortageError: {"key": None},
    UnknownNameError: {"key": "type", "name": "bse", "known": ("base", "base_v2")},
    WrongTypeError: {"key": "min_count"},
    SpaceError: {"path": "obs/camera", "expected": "uint8 (3, 64, 64)", "got": "float32 (64, 64, 3)"},
    DifferentSpacesError: {"path": "observation_space/speed", "expected": "n is 2", "got": "n is 3"},
    NotASequenceError: {"path": "action", "expected": "int64 (2,)", "got": "int 0"},
    StateError: {},
    ClosedError: {},
    WorkerError: WHERE,
    EnvError: {**WHERE, "exception_type": "game.Crash"},
    WorkerTimeoutError: {**WHERE, "timeout": 5.0},
    WorkerDiedError: {**WHERE, "exitcode": -11},
    DependencyError: {"package": "cv2", "extra": "atari"},
    InternalError: {},
}

# The base classes that ported programs catch.
BASES = {
    ConfigError: (VecenvError, ValueError, AssertionError),
    ShortageError: (ConfigError,),
    UnknownNameError: (ConfigError, KeyError),
    WrongTypeError: (ConfigError, TypeError),
    SpaceError: (VecenvError, ValueError, AssertionError),
    DifferentSpacesError: (SpaceError, RuntimeError),
    NotASequenceError: (SpaceError, TypeError),
    StateError: (VecenvError, RuntimeError, AssertionError),
    ClosedError: (StateError,),
    WorkerError: (VecenvError, RuntimeError),
    EnvError: (WorkerError,),
    WorkerTimeoutError: (WorkerError, TimeoutError, multiprocessing.TimeoutError),
    WorkerDiedError: (WorkerError,),
    DependencyError: (VecenvError, ImportError),
    InternalError: (VecenvError,),
}


def test_tables_above_hold_every_error_class():
    classes = {item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, VecenvError)}
    assert classes == set(FIELDS) == {VecenvError, *BASES}
    assert {cls.__name__ for cls in classes} == set(errors.__all__) - {"ErrorRows", "PerformanceWarning"}


@pytest.mark.parametrize("cls", FIELDS)
@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_clones_keep_message_and_fields(cls, clone):
    error = cls("it's broken", **FIELDS[cls])
    cloned = clone(error)
    assert type(cloned) is cls
    assert str(cloned) == str(error)
    assert cloned.args == ("it's broken",)
    assert {name: getattr(cloned, name) for name in FIELDS[cls]} == FIELDS[cls]


@pytest.mark.parametrize("cls", FIELDS)
def test_message_alone_is_enough(cls):
    assert str(cls("it's broken")).startswith("it's broken")
    assert isinstance(cls(), VecenvError)


@pytest.mark.parametrize("cls", FIELDS)
def test_fields_are_keyword_only(cls):
    with pytest.raises(TypeError):
        cls("message", 3)


@pytest.mark.parametrize("cls", BASES)
def test_error_bases(cls):
    for base in BASES[cls]:
        assert issubclass(cls, base)


def test_unknown_name_shows_its_message_without_quotes():
    assert str(UnknownNameError("unknown env 'a'")) == "unknown env 'a'"


def test_internal_error_asks_for_a_report_once():
    error = copy.copy(InternalError("row 3 was committed twice"))
    assert str(error).startswith("row 3 was committed twice; ")
    assert str(error).count("report") == 1


def test_os_error_fields_stay_empty():
    error = WorkerTimeoutError("late", timeout=1.0)
    assert error.errno is None
    assert str(error) == "late"


@pytest.mark.parametrize(
    "exitcode, text",
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-signal.SIGSEGV, "killed by SIGSEGV (exit code -11)"),
        (-signal.SIGKILL, "killed by SIGKILL (exit code -9); often the system's memory killer"),
        (-40, "killed by signal 40 (exit code -40)"),
        (None, "exit code unknown"),
    ],
)
def test_describe_exit(exitcode, text):
    assert describe_exit(exitcode) == text


@pytest.mark.parametrize("exitcode, name", [(-11, "SIGSEGV"), (3, None), (0, None), (None, None)])
def test_signal_follows_from_the_exit_code(exitcode, name):
    error = WorkerDiedError("died", exitcode=exitcode)
    assert error.signal_name == name
    assert error.signal == (None if name is None else getattr(signal, name))


def test_seed_and_actions_are_none_by_default():
    error = WorkerError("late")
    assert (error.seed, error.actions, error.reproducer) == (None, (), None)


def test_require_imports():
    assert require("email.mime", "cli").__name__ == "email.mime"


def test_require_names_the_install_command():
    with pytest.raises(DependencyError) as caught:
        require("no_such_module_here.part", "atari")
    assert str(caught.value) == (
        "package 'no_such_module_here.part' is not installed; run: "
        'pip install "ale-py>=0.10" "opencv-python-headless>=4.8"'
    )
    assert (caught.value.package, caught.value.extra) == ("no_such_module_here.part", "atari")
    assert isinstance(caught.value.__cause__, ImportError)


def test_module_with_a_similar_name_prefix_belongs_to_the_caller():
    code = compile("warn_caller('this line')", "theirs.py", "exec")
    with pytest.warns(UserWarning, match="this line") as caught:
        exec(code, {"__name__": "vecenv_tools", "warn_caller": warn_caller})
    assert caught[0].filename == "theirs.py"


def test_require_distinguishes_broken_from_missing(tmp_path, monkeypatch):
    (tmp_path / "broken_module_here.py").write_text("import another_module_not_here")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DependencyError, match=r"cannot be imported \(No module named 'another_module_not_here'\)"):
        require("broken_module_here", "atari")


# ---- install commands --------------------------------------------------------------------------


def test_install_commands_name_the_requirements_of_pyproject():
    """They named "vecenv[atari]", which no package index has."""
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    for extra, requirements in errors.EXTRAS.items():
        line = re.search(rf"^{extra} = (\[.*\])$", text, re.MULTILINE)
        assert line is not None and ast.literal_eval(line[1]) == list(requirements)


def test_every_required_package_has_an_install_command():
    used = set()
    for path in Path(vecenv.__file__).parent.rglob("*.py"):
        used.update(re.findall(r'\brequire\("[\w.]+", "(\w+)"\)', path.read_text()))
    assert used == set(errors.EXTRAS)


@pytest.mark.extended
def test_place_of_worker_errors_is_set_by_locate_only():
    """So that no error has a part of it only."""
    found = []
    for path in Path(vecenv.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            name = getattr(call.func, "id", None) if isinstance(call, ast.Call) else None
            if name in {error.__name__ for error in (WorkerError, EnvError, WorkerTimeoutError, WorkerDiedError)}:
                given = {keyword.arg for keyword in call.keywords} & {"worker_id", "env_ids", "op", "step_id"}
                found += [f"{path}:{call.lineno}: {sorted(given)}"] if given else []
    assert found == []
