"""Reproducers: a file that repeats an episode of one env exactly, in this process."""

from __future__ import annotations

import functools
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.contracts.test_pool import RaisesOnce
from tests.faults.traces import play, recovering_pool, undisturbed
from tests.inside import engine_of, waiter_of
from vecenv import VectorEnv
from vecenv.core.host import snapshots
from vecenv.core.layout.flags import Autoreset, Op
from vecenv.core.recovery import reproducer
from vecenv.core.recovery.reproducer import ReplayedAnswer, load, shorten, write
from vecenv.envs import toys
from vecenv.errors import ConfigError, DependencyError


def file_of(pool: Any, env_id: int = 0) -> str:
    """Make a running pool write the reproducer of an env."""
    path: str = engine_of(pool).reproduce(env_id, Op.STEP, 999).save("because")
    return path


def events_of(path: str, **how: Any) -> list[ReplayedAnswer]:
    return list(load(path).run(**how))


@pytest.mark.extended
@pytest.mark.parametrize("autoreset", list(Autoreset), ids=lambda mode: mode.name)
def test_episode_is_repeated_exactly(autoreset: Autoreset, tmp_path: Any) -> None:
    env_fn = functools.partial(toys.CountEnv, 4)
    rounds = 3 if autoreset == Autoreset.DISABLED else 11
    expected = undisturbed([env_fn] * 2, rounds, autoreset=autoreset).rows[1]
    with recovering_pool([env_fn] * 2, autoreset=autoreset, reproducer_dir=str(tmp_path)) as pool:
        play(pool, rounds)
        events = events_of(file_of(pool, 1))
    assert events[0].op == "reset" or autoreset != Autoreset.DISABLED
    observed = [event.obs.tobytes() for event in events]
    wanted = [obs[2] for row in expected for obs in ((row.final_obs, row.obs) if row.final_obs else (row.obs,))]
    assert observed == wanted[-len(observed) :] and len(observed) >= 3
    assert {event.op for event in events} <= {"reset", "step", "autoreset"}
    assert all(event.reward == (event.op == "step") for event in events)
    assert sum(event.terminated for event in events) <= 3


@pytest.mark.extended
def test_episode_is_repeated_from_a_state(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_MIN_INTERVAL_NS", 1)  # a snapshot is taken as soon as the first episode ends
    env_fn = functools.partial(toys.CountEnv, 4)
    expected = undisturbed([env_fn], 8).rows[0]
    with recovering_pool([env_fn], context="fork", reproducer_dir=str(tmp_path)) as pool:
        play(pool, 8)
        waiter_of(pool).inbox.poll()  # the state has arrived as a message
        events = events_of(file_of(pool))
    assert [event.op for event in events] == ["autoreset", "step", "step", "step"]
    assert [event.obs.tobytes() for event in events] == [row.obs[2] for row in expected[-4:]]


class Closes(toys.CountEnv):
    """Counts, in each process, how many of these envs were closed there."""

    num_closed = 0

    def close(self) -> None:
        Closes.num_closed += 1


def test_env_of_a_reproducer_is_closed(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Closes, "num_closed", 0)
    with recovering_pool([Closes], reproducer_dir=str(tmp_path)) as pool:
        play(pool, 3)
        path = file_of(pool)
    events_of(path)
    events = load(path).run()
    next(events)
    assert Closes.num_closed == 1
    events.close()
    assert Closes.num_closed == 2


def test_reproducer_stops_before_a_step(tmp_path: Any) -> None:
    with recovering_pool([toys.CountEnv], reproducer_dir=str(tmp_path)) as pool:
        play(pool, 6)
        path = file_of(pool)
    everything = events_of(path)
    assert len(everything) == 7
    part = events_of(path, until=everything[4].step_id)
    assert [event.step_id for event in part] == [event.step_id for event in everything[:4]]
    paused: list[int] = []
    events: list[ReplayedAnswer] = []
    for event in load(path).run(until=everything[4].step_id, pause=lambda: paused.append(len(events))):
        events.append(event)
    assert paused == [4] and len(events) == 7


def test_calls_and_attributes_are_in_the_reproducer(tmp_path: Any) -> None:
    env = VectorEnv([functools.partial(toys.Raises, None, moment="close", once=str(tmp_path))], num_workers=1)
    env.reset(seed=3)
    env.set_attr("length", 2)
    assert env.call("poke", "hello") == ("hello",)
    for _ in range(4):
        env.step(np.zeros(1, np.int64))
    path = file_of(env.pool)
    env.close()
    events = events_of(path)
    assert "hello" in [event.obs for event in events if event.op == "call"]
    assert sum(event.terminated for event in events) >= 1, "the attribute that was set makes episodes short"


@pytest.mark.extended
def test_actions_of_any_space(tmp_path: Any) -> None:
    action = spaces.Dict(a=spaces.Box(-1.0, 1.0, (2,)), b=spaces.Tuple((spaces.Discrete(3), spaces.Text(3))))
    for space in (action, action["a"]):
        with recovering_pool([functools.partial(toys.KeepsAction, space)], reproducer_dir=str(tmp_path)) as pool:
            got = play(pool, 5)
            path = file_of(pool)
        infos = [dict(event.info) for event in events_of(path)]
        assert len(infos) == len(got.rows[0]) == 6
        assert all(info["action_type"] == ("dict" if space is action else "ndarray") for info in infos[1:])


@pytest.mark.extended
def test_env_draws_the_same_numbers_and_the_process_keeps_its_generators(tmp_path: Any) -> None:
    expected = undisturbed([toys.NoisyGlobal] * 2, 6).rows
    with recovering_pool([toys.NoisyGlobal] * 2, reproducer_dir=str(tmp_path)) as pool:
        play(pool, 6)
        path = file_of(pool, 1)
    np.random.seed(0)
    before = np.random.get_state()[1].tobytes()
    assert [event.obs.tobytes() for event in events_of(path)] == [row.obs[2] for row in expected[1]]
    assert np.random.get_state()[1].tobytes() == before


@pytest.mark.extended
def test_lambdas_travel_by_value(tmp_path: Any) -> None:
    secret = 7
    with recovering_pool([lambda: toys.CountEnv(secret)], reproducer_dir=str(tmp_path)) as pool:
        play(pool, 2)
        path = file_of(pool)
    assert len(events_of(path)) == 3
    episode = load(path)
    assert (episode.env_id, episode.step_id, episode.why) == (0, 999, "because")
    assert set(episode.versions) == {"python", "numpy"}


def test_file_name_contains_env_and_worker(tmp_path: Any) -> None:
    with recovering_pool([toys.CountEnv], reproducer_dir=str(tmp_path)) as pool:
        play(pool, 1)
        first, second = file_of(pool), file_of(pool)
    assert first != second and "env0-step999-" in first and first.endswith(".vecenv-episode")


@pytest.mark.parametrize("content", [b"", b"hello", pickle.dumps(5), pickle.dumps((1, 2, 3))])
def test_files_of_other_kinds_are_refused(content: bytes, tmp_path: Any) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not an episode"):
        load(path)


@pytest.mark.extended
def test_worker_init_is_called_before_the_env_of_a_reproducer_is_built(tmp_path: Path) -> None:
    def prepare() -> None:
        (tmp_path / str(os.getpid())).touch()

    with recovering_pool([toys.CountEnv], reproducer_dir=str(tmp_path), worker_init=prepare) as pool:
        play(pool, 1)
        path = file_of(pool)
        assert not (tmp_path / str(os.getpid())).exists()
        assert events_of(path)
    assert (tmp_path / str(os.getpid())).exists()


def test_files_of_other_versions_are_refused(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with recovering_pool([toys.CountEnv], reproducer_dir=str(tmp_path)) as pool:
        play(pool, 1)
        episode = load(file_of(pool))
    monkeypatch.setattr(reproducer, "_FORMAT", 99)
    path = write(episode, str(tmp_path))
    monkeypatch.undo()
    with pytest.raises(ValueError, match="its format is 99, this one reads 10; replay it with that version"):
        load(path)
    Path(path).write_bytes(pickle.dumps((8, "an episode of an older version")))
    with pytest.raises(ValueError, match="its format is 8, this one reads 10; replay it with that version"):
        load(path)
    Path(path).write_bytes(b"cvecenv.moved\nEpisode\n.")  # a class of a module that has moved
    with pytest.raises(ValueError, match="if another version has written it, replay it with that version"):
        load(path)


def test_partly_written_file_is_removed(tmp_path: Any) -> None:
    with recovering_pool([toys.CountEnv], reproducer_dir=str(tmp_path)) as pool:
        play(pool, 1)
        episode = load(file_of(pool))
    (tmp_path / "full").mkdir()
    resource = pytest.importorskip("resource")
    signal = pytest.importorskip("signal")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))  # like a full disk: only a part can be written
        with pytest.raises(OSError):
            write(episode, str(tmp_path / "full"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert list((tmp_path / "full").iterdir()) == []


# ---- module paths --------------------------------------------------------------------------------------

MODULE = """
import pathlib
from vecenv.envs import toys

class Reads(toys.CountEnv):
    def step(self, action):
        return (*super().step(action)[:4], {"text": pathlib.Path("data.txt").read_text()})

def make():
    return Reads()
"""


@pytest.fixture
def project(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Create a folder with a module and a data file and write a reproducer in it; then leave the folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "reproduced_envs.py").write_text(MODULE)
    (folder / "data.txt").write_text("levels")
    with monkeypatch.context() as context:
        context.chdir(folder)
        context.setattr(sys, "path", ["", *sys.path])
        from reproduced_envs import make  # type: ignore[import-not-found]

        with recovering_pool([make], reproducer_dir=str(tmp_path)) as pool:
            play(pool, 3)
            path = Path(file_of(pool))
    del sys.modules["reproduced_envs"]
    path.rename(tmp_path / "file")
    yield folder
    sys.modules.pop("reproduced_envs", None)


def test_modules_and_data_of_the_project_are_found(project: Path, tmp_path: Any) -> None:
    """The replay once ended in ModuleNotFoundError if the folder of the script was not on sys.path."""
    path, cwd = list(sys.path), os.getcwd()
    events = load(tmp_path / "file").run()
    assert [next(events).op for _ in range(4)] == ["reset", "step", "step", "step"]
    assert os.getcwd() == str(project) and str(project) in sys.path
    events.close()
    assert (sys.path, os.getcwd()) == (path, cwd)
    assert all(event.info == {"text": "levels"} for event in events_of(str(tmp_path / "file")) if event.op == "step")


def test_modules_that_are_gone_are_named(project: Path, tmp_path: Any) -> None:
    (project / "reproduced_envs.py").rename(project / "renamed.py")
    with pytest.raises(DependencyError, match="env 0.*built in .*project.*No module named 'reproduced_envs'") as caught:
        events_of(str(tmp_path / "file"))
    assert caught.value.package == "reproduced_envs"
    (project / "reproduced_envs.py").write_text("")
    with pytest.raises(ConfigError, match="env 0.*Can't get attribute 'make'"):
        events_of(str(tmp_path / "file"))


def test_missing_folder_is_skipped(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    with recovering_pool([toys.CountEnv], reproducer_dir=str(tmp_path)) as pool:
        play(pool, 3)
        path = file_of(pool)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "project").rmdir()
    assert len(events_of(path)) == 4 and os.getcwd() == str(tmp_path)


def test_environment_variables_are_not_written(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "a-secret-word")
    with recovering_pool([toys.CountEnv], reproducer_dir=str(tmp_path)) as pool:
        play(pool, 1)
        path = file_of(pool)
    assert b"a-secret-word" not in Path(path).read_bytes()


def test_sys_path_entries_keep_their_order(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abcd":
        (tmp_path / name).mkdir()
    a, b, c, d = (str(tmp_path / name) for name in "abcd")
    with recovering_pool([toys.CountEnv], reproducer_dir=str(tmp_path)) as pool:
        play(pool, 1)
        episode = load(file_of(pool))
    standard = list(sys.path)
    for then, wanted in (
        ([a, *standard, b], [a, *standard, b]),
        ([a, c, b, *standard], [a, c, b, *standard]),
        ([c, d, str(tmp_path / "gone")], [*standard, c, d]),  # another Python version: nothing matches
    ):
        episode.path = then
        events = episode.run()
        next(events)
        assert sys.path == wanted
        events.close()
        assert sys.path == standard


# ---- error messages ------------------------------------------------------------------------------------


@pytest.mark.extended
def test_events_have_seeds_and_actions(tmp_path: Any) -> None:
    with recovering_pool([functools.partial(toys.CountEnv, 3)], reproducer_dir=str(tmp_path)) as pool:
        pool.start()
        pool.reset(seeds=[17])
        pool.recv()
        for action in (0, 1, 0, 1, 1):
            pool.send(np.array([action]))
            pool.recv()
        context, under_way = engine_of(pool).reproduce(0, Op.STEP, 7), engine_of(pool).reproduce(0, Op.STEP, 6)
        events = events_of(context.save("because"))
    assert [(event.op, event.seed, event.action) for event in events[:4]] == [
        ("reset", 17, None),
        ("step", None, 0),
        ("step", None, 1),
        ("step", None, 0),
    ]
    assert [(event.op, event.action) for event in events[4:]] == [("autoreset", None), ("step", 1)]
    assert (context.seed, context.actions) == (None, (1,)), "the episode began with an autoreset"
    assert under_way.actions == (1,), "of the step that failed there is no answer"


def test_seed_zero_is_a_seed_and_before_the_first_reset_there_is_none(tmp_path: Any) -> None:
    with recovering_pool([toys.CountEnv], reproducer_dir=str(tmp_path)) as pool:
        pool.start()
        assert engine_of(pool).reproduce(0, Op.CALL, 1)[:2] == (None, ())
        play(pool, 2, seeds=[0], start=False)
        assert engine_of(pool).reproduce(0, Op.STEP, 3).seed == 0


def test_error_raised_earlier_is_an_event(tmp_path: Any) -> None:
    with recovering_pool([RaisesOnce], reproducer_dir=str(tmp_path)) as pool:
        play(pool, 4)
        last = engine_of(pool).journal.history(0, ()).attempts[0].entries[-1].step_id
        path = engine_of(pool).reproduce(0, Op.STEP, last).save("because")
        raised = engine_of(pool).reproduce(0, Op.STEP, last - 2).save("because")
    assert [event.op for event in events_of(path)] == ["reset", "step", "error", "step", "step"]
    assert events_of(path)[2].info == {"error": "ValueError: a bad move"}
    with pytest.raises(ValueError, match="a bad move"):
        events_of(raised)


@pytest.mark.extended
def test_newest_actions_are_in_the_message(tmp_path: Any) -> None:
    space = spaces.Box(-1.0, 1.0, (300,))
    with recovering_pool([functools.partial(toys.KeepsAction, space, length=50)], reproducer_dir=str(tmp_path)) as pool:
        pool.start()
        pool.reset(seeds=[17])
        pool.recv()
        sent = [space.sample()[None] for _ in range(11)]
        for action in sent:
            pool.send(action)
            pool.recv()
        seed, actions, _ = engine_of(pool).reproduce(0, Op.STEP, 12)
        assert seed == 17 and len(actions) == 8
        assert all(np.array_equal(got, wanted[0]) for got, wanted in zip(actions, sent[-8:]))
        assert len(reproducer.describe(seed, actions)) < 250
        pool.reset(seeds=[18])
        seed, actions, _ = engine_of(pool).reproduce(0, Op.RESET, 13)
        assert (seed, actions) == (18, ())
        pool.recv()


def test_episode_that_was_not_kept_writes_no_file(tmp_path: Any) -> None:
    with recovering_pool([toys.CountEnv], max_log_bytes=1, reproducer_dir=str(tmp_path)) as pool:
        play(pool, 3, seeds=[17])
        context = engine_of(pool).reproduce(0, Op.STEP, 5)
        assert (context.seed, context.actions) == (17, ())
        with pytest.raises(ValueError, match="max_log_bytes"):
            context.save("because")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.extended
def test_files_of_tests_stay_among_those_of_pytest(tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tmp_path_factory.getbasetemp()
    if len(str(base)) > 70:
        pytest.skip("sockets could not be there")
    with recovering_pool([toys.CountEnv]) as pool:
        play(pool, 3)
        assert Path(file_of(pool)).is_relative_to(base)
    command = [sys.executable, "-c", "import tempfile; print(tempfile.gettempdir())"]
    assert Path(subprocess.check_output(command, text=True).strip()).is_relative_to(base)


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (np.int64(3), "3"),
        (np.float32(0.5), "0.5"),
        (np.array([0.25, -1.0]), "[0.25, -1.]"),
        ({"a": np.arange(100), "b": (1, "x")}, "{'a': [0, 1, ..., 98, 99], 'b': (1, 'x')}"),
    ],
)
def test_actions_are_shortened(action: Any, text: str) -> None:
    assert shorten(action) == text


def test_action_texts_have_a_maximum_length() -> None:
    for action in (np.zeros((9, 9, 9)), "x" * 1000, ["word" * 9] * 99, object(), {"a": {"b": np.ones((3, 99))}}):
        assert len(shorten(action)) <= 60 and "\n" not in shorten(action)
