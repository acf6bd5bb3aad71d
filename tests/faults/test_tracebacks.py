"""Exceptions of envs: the traceback shows the env's own code, and a note names the env and its request."""

from __future__ import annotations

import contextlib
import functools
import linecache
import pickle
import traceback
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

import vecenv
from vecenv import errors
from vecenv.core.layout import messages
from vecenv.ding import create_env_manager
from vecenv.envs import toys
from vecenv.errors import EnvError, RemoteTraceback, WorkerError
from vecenv.values.pickling import dump_by_value

SOURCE = """
class Env(toys.ToyEnv):
    def step(self, action):
        return self.simulate(action)

    def simulate(self, action):
        raise ValueError("simulator is broken")  # the line at fault
"""


def env_of_a_file(filename: str) -> Any:
    """Make the class of SOURCE as if it had been typed into this file; it travels by value."""
    names: dict[str, Any] = {"toys": toys, "__name__": "__main__"}
    exec(compile(SOURCE, filename, "exec"), names)
    return names["Env"]


def error_of(env_fn: Any, backend: str = "process", *, seed: int | None = 42) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: SIM117
        with contextlib.closing(vecenv.VectorEnv([toys.ToyEnv, env_fn], backend=backend, num_workers=2)) as envs:
            envs.reset(seed=seed)
            for _ in range(6):
                envs.step(np.array([0, 1]))
    return caught.value


def remote_text(error: BaseException) -> str:
    assert isinstance(error.__cause__, RemoteTraceback)
    return error.__cause__.text


# ---- tracebacks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_traceback_of_a_class_that_travelled_by_value_shows_file_and_source(tmp_path: Any, backend: str) -> None:
    file = tmp_path / "my_env.py"
    file.write_text(SOURCE)
    text = remote_text(error_of(env_of_a_file(str(file)), backend))
    assert f'File "{file}", line 4, in step\n    return self.simulate(action)\n' in text
    assert f'File "{file}", line 7, in simulate\n    raise ValueError("simulator is broken")' in text


@pytest.mark.extended
def test_traceback_of_a_notebook_cell_shows_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cell has no file: only the parent's `linecache` has its lines."""
    name = "<ipython-input-7>"
    monkeypatch.setitem(linecache.cache, name, (len(SOURCE), None, SOURCE.splitlines(True), name))
    text = remote_text(error_of(env_of_a_file(name)))
    assert f'File "{name}", line 4, in step\n    return self.simulate(action)\n' in text
    assert 'line 7, in simulate\n    raise ValueError("simulator is broken")  # the line at fault\n' in text


@pytest.mark.extended
@pytest.mark.parametrize("filename", ["<stdin>", "/no/such/file.py"])
def test_traceback_of_code_without_source_has_frames_only(filename: str) -> None:
    assert f'  File "{filename}", line 4, in step\n  File "{filename}"' in remote_text(
        error_of(env_of_a_file(filename))
    )


def test_source_is_added_within_a_group_of_exceptions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(linecache.cache, "<cell>", (1, None, ["x = 1 / 0\n"], "<cell>"))
    text = '  +-+---\n    | Traceback (most recent call last):\n    |   File "<cell>", line 1, in <module>\n    | Oops'
    made = messages.unpack_error((None, "Oops", "", text)).__cause__
    assert '    |   File "<cell>", line 1, in <module>\n    |     x = 1 / 0\n    | Oops' in str(made)


class Wrapped(vecenv.ding.BaseEnv):  # an env of the older interface, behind adapters of vecenv
    observation_space = toys.ToyEnv().observation_space
    action_space = toys.ToyEnv().action_space
    reward_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, fails_in: str = "step") -> None:
        if fails_in == "construct":
            raise ZeroDivisionError("from construct")
        self.fails_in = fails_in

    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        pass

    def reset(self) -> Any:
        if self.fails_in == "reset":
            raise ZeroDivisionError("from reset")
        return self.observation_space.sample()

    def step(self, action: Any) -> Any:
        raise ZeroDivisionError("from step")

    def close(self) -> None:
        if self.fails_in == "close":
            raise ZeroDivisionError("from close")


@pytest.mark.parametrize("fails_in", ["construct", "reset", "step", "close"])
@pytest.mark.parametrize("front_end", ["VectorEnv", "threads", "manager"])
def test_frames_of_vecenv_are_cut_from_the_traceback(front_end: str, fails_in: str) -> None:
    env_fns = [functools.partial(Wrapped, fails_in)] * 2
    with pytest.raises(Exception, match=f"from {fails_in}") as caught:
        if front_end == "manager":
            manager = create_env_manager({"type": "subprocess", "retry_waiting_time": 0.0}, env_fns)
            try:
                manager.launch()
                if fails_in == "step":
                    manager.step({0: 0, 1: 0})
            finally:
                manager.close()
        else:
            threads = 2 if front_end == "threads" else 1
            envs = vecenv.VectorEnv(env_fns, num_workers=1, threads_per_worker=threads)
            try:
                envs.reset()
                if fails_in == "step":
                    envs.step(np.zeros(2, np.int64))
            finally:
                envs.close()
    error: Any = caught.value
    while not isinstance(error, RemoteTraceback):
        error = error.__cause__
    frames = [line for line in error.text.splitlines() if line.lstrip().startswith("File ")]
    assert [("test_tracebacks.py" in frame) for frame in frames] == [True], error.text


@pytest.mark.extended
def test_error_of_vecenv_itself_keeps_some_frames() -> None:
    assert "spec.py" in remote_text(error_of(toys.WrongShape))


# ---- notes -----------------------------------------------------------------------------------------

IN_STEP = "step 2 of its episode, seed 43, action 1"
NOTES: dict[str, tuple[Callable[..., Any], str]] = {
    "step": (functools.partial(toys.RaiseAtStep, 2), f"raised by step of env 1{{}}: {IN_STEP}"),
    "shape": (functools.partial(toys.WrongShape, 2), f"raised by step of env 1{{}}: {IN_STEP}"),
    "reset": (toys.RaiseAtReset, "raised by reset of env 1{}: seed 43"),
    "autoreset": (functools.partial(toys.Raises, moment="autoreset", length=2), "raised by autoreset of env 1{}"),
    "construct": (toys.RaiseAtInit, "raised by the constructor of env 1{}"),
}


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("moment", NOTES)
def test_note_names_env_worker_step_seed_and_action(moment: str, backend: str) -> None:
    env_fn, expected = NOTES[moment]
    error = error_of(env_fn, backend)
    notes = [note for note in error.__notes__ if "raised by" in note]
    assert notes == [expected.format(" in worker 1" if backend == "process" else "")]


@pytest.mark.extended
@pytest.mark.usefixtures("implementation")
def test_note_names_an_autoreset_in_the_same_step() -> None:
    env_fn = functools.partial(toys.Raises, moment="autoreset", length=2)
    with contextlib.closing(vecenv.VectorEnv([env_fn], num_workers=1, autoreset_mode="SameStep")) as envs:
        envs.reset(seed=0)
        envs.step([0])
        with pytest.raises(ZeroDivisionError) as caught:
            envs.step([0])
    assert caught.value.__notes__ == ["raised by autoreset of env 0 in worker 0"]


@pytest.mark.extended
def test_note_of_an_unseeded_episode_has_no_seed_of_a_later_one() -> None:
    """Step 2 of the second episode, which an autoreset began."""
    note = error_of(functools.partial(toys.RaiseAtStep, 4, length=2)).__notes__[0]
    assert note == "raised by step of env 1 in worker 1: step 2 of its episode, action 1"


@pytest.mark.extended
def test_note_shortens_large_actions() -> None:
    class Images(toys.RaiseAtStep):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = gymnasium.spaces.Box(0, 255, (64, 64, 3), np.uint8)

    with contextlib.closing(vecenv.VectorEnv([Images], num_workers=1)) as envs:
        envs.reset(seed=0)
        with pytest.raises(ZeroDivisionError) as caught:
            envs.step(np.zeros((1, 64, 64, 3), np.uint8))
    assert len(caught.value.__notes__[0]) < 150


@pytest.mark.extended
def test_notes_stand_in_the_text_where_tracebacks_do_not_show_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with Python 3.10."""
    monkeypatch.setattr(errors, "_SHOWS_NOTES", False)
    error = error_of(functools.partial(toys.RaiseAtStep, 2))
    assert str(error) == "toy env divides by zero at a step"
    text = "".join(traceback.format_exception(error)).partition("direct cause")[0]
    assert (
        f"ZeroDivisionError: toy env divides by zero at a step\nraised by step of env 1 in worker 1: {IN_STEP}\n"
        in text
    )
    own = WorkerError("worker 0 died")
    errors.add_notes(own, ["so did worker 1"])
    assert str(own) == "worker 0 died\nso did worker 1"


# ---- fields ----------------------------------------------------------------------------------------


def test_error_that_the_worker_made_gets_its_place() -> None:
    made = EnvError("automatic reset of env 3 raised", env_ids=(3,), op="reset")
    error = messages.unpack_error(messages.pack_error(made), worker_id=1, env_ids=(3,), op="step", step_id=9)
    assert isinstance(error, EnvError)
    assert (error.worker_id, error.env_ids, error.op, error.step_id) == (1, (3,), "reset", 9)


@pytest.mark.extended
@pytest.mark.parametrize("moment", ["reset", "autoreset"])
def test_error_of_a_manager_has_worker_env_op_and_command(moment: str) -> None:
    env_fn = functools.partial(toys.Raises, moment=moment, length=1)
    cfg = {"type": "subprocess", "num_workers": 2, "retry_waiting_time": 0.0}
    with create_env_manager(cfg, [toys.ToyEnv, env_fn]) as manager, pytest.raises(EnvError) as caught:
        manager.launch()
        for _ in range(3):
            manager.step({0: 0, 1: 0})
    error = caught.value
    assert (error.worker_id, error.env_ids, error.op) == (1, (1,), "reset") and error.step_id


def test_error_of_the_base_manager_has_env_op_and_command() -> None:
    with create_env_manager({"type": "base"}, [toys.ToyEnv, toys.RaiseAtStep]) as manager:
        manager.launch()
        with pytest.raises(EnvError) as caught:
            manager.step({0: 0, 1: 0})
    error = caught.value
    assert (error.worker_id, error.env_ids, error.op) == (None, (1,), "step") and error.step_id


def test_code_pickled_by_value_keeps_its_file() -> None:
    function = pickle.loads(dump_by_value(lambda: lambda: 0))
    assert function.__code__.co_filename == function().__code__.co_filename == __file__
