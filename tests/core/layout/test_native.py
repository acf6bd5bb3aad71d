"""The extension's boundary: C and Python agree on the layout, and wrong arguments are errors."""

from __future__ import annotations

import gc
import inspect
import os
import re
import select
import sys
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from vecenv.core.host import slot as events
from vecenv.core.layout import arena, columns, counters, native
from vecenv.core.layout.arena import ArenaPlan
from vecenv.core.layout.flags import ROW_FLAGS, CommandFlag, Form, Op, RowFlag
from vecenv.core.layout.native import load
from vecenv.core.layout.rows import BlockRows
from vecenv.core.layout.spec import Spec
from vecenv.core.options import PoolOptions
from vecenv.core.pool.process import ProcessPool
from vecenv.core.system.segment import private_segment
from vecenv.envs import toys
from vecenv.errors import ConfigError

pytestmark = [pytest.mark.native, pytest.mark.skipif(load() is None, reason="the extension was not built")]
_native = load()

NEVER = 2**62
OBS = Dict(position=Box(-1.0, 1.0, (2,), np.float32), gear=Discrete(5))


class Ends:
    """One hub, and slots that do not wait, over private memory; the first slot serves all envs."""

    def __init__(self, num_envs=2, obs=OBS, action=None, depth=3, num_slots=1):
        action = action or Discrete(4)
        self.plan = ArenaPlan(num_envs, num_slots, Spec(obs, "obs"), Spec(action, "action"), (), depth, True, num_envs)
        self.memory = private_segment(self.plan.nbytes)
        self.plan.write_header(self.memory)
        self.counters = private_segment(self.plan.counters.nbytes)
        self.plan.counters.write_header(self.counters)
        self.event_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.epoll = select.epoll()
        self.epoll.register(self.event_fd, select.EPOLLIN | select.EPOLLET)

    def hub(self, **changes):
        arguments = {
            "mapping": self.memory,
            "counters": self.counters,
            "columns": self.plan.row_columns(),
            "saved_rows": bytearray(self.plan.words["block_stride"]),
            "saved_columns": self.plan.saved_columns(),
            "deferred_rows": bytearray(self.plan.words["block_stride"]),
            "action_leaves": self.plan.action_columns(),
            "slots": (0,) * self.plan.num_envs,
            "depth": self.plan.depth,
            "event_fd": self.event_fd,
            "epoll_fd": self.epoll.fileno(),
            "spin_ns": 0,
            "soon_spin_ns": 0,
            "numpy_array": np.ndarray,
            "views": tuple(range(self.plan.words["num_blocks"])),
            "row_range_type": lambda block, start, stop: (block, start, stop),
            "event_type": lambda *event: event,
        }
        return _native.Hub(**{**arguments, **changes})

    def slot(self, **changes):
        arguments = {
            "mapping": self.memory,
            "counters": self.counters,
            "slot": 0,
            "event_fd": self.event_fd,
            "obs": self.plan.obs.describe(self.plan.obs_offsets),
            "final_obs": self.plan.obs.describe(self.plan.final_offsets),
            "action": self.plan.action.describe(self.plan.action_offsets, scratch=True),
            "autoreset": 1,
            "spin_ns": 0,
            "waits": False,
            "numpy_scalar": np.generic,
            "numpy_array": np.ndarray,
            "infos": 0,
        }
        return _native.Slot(**{**arguments, **changes})

    def close(self):
        self.epoll.close()
        os.close(self.event_fd)


@pytest.fixture
def ends():
    made = Ends()
    yield made
    made.close()


def obs_of(number):
    return {"position": np.full(2, number, np.float32), "gear": np.int64(number % 5)}


# ---- agreement ------------------------------------------------------------------------------


def test_layout_is_the_same_in_c_and_python():
    assert len(arena.HEADER_WORDS) == _native.HEADER_WORDS
    sizes = ("CONTROL_NBYTES", "NOTICE_OFFSET", "COMMAND_NBYTES", "INFO_KEY_NBYTES")
    for name in ("MAGIC", "ABI", *sizes):
        assert getattr(arena, name) == getattr(_native, name), name
    assert columns.INFO_KEYS == _native.INFO_KEYS
    source = Path(__file__).parents[3] / "native" / "shm" / "layout.h"
    names = re.findall(r"^ +VECENV_H_(\w+),", source.read_text(), re.MULTILINE)
    assert tuple(map(str.lower, names)) == arena.HEADER_WORDS
    assert len(counters.COUNTERS_WORDS) == _native.COUNTERS_WORDS
    sizes = ("SLOT_NBYTES", "TIMINGS_NBYTES", "NUM_BUCKETS", "FIRST_OCTAVE")
    for name in ("COUNTERS_MAGIC", "COUNTERS_VERSION", *sizes):
        assert getattr(counters, name) == getattr(_native, name), name
    assert arena.CHAIN == _native.CHAIN


@pytest.mark.parametrize(
    "words, prefix",
    [
        (RowFlag, "F"),
        (CommandFlag, "C"),
        (Form, "FORM"),
        (Op, "OP"),
    ],
    ids=["RowFlag", "CommandFlag", "Form", "Op"],
)
def test_words_have_the_same_values_in_c_and_python(words, prefix):
    theirs = {name: getattr(_native, name) for name in dir(_native) if name.startswith(f"{prefix}_")}
    if prefix == "F":
        assert theirs.pop("F_OF_ROWS") == ROW_FLAGS
    ours = {f"{prefix}_{name}": int(value) for name, value in vars(words).items() if name.isupper() and name != "NONE"}
    assert ours == theirs
    if prefix in "FC":
        assert all(value & (value - 1) == 0 for value in ours.values())


def test_events_have_the_same_numbers_in_c_and_python():
    names = ("STOP", "IDLE", "COMMAND", "RESULT", "RAISED")
    assert [getattr(_native, f"EVENT_{name}") for name in names] == [getattr(events, name) for name in names]


def callables():
    yield _native.watch_parent
    for kind in (_native.Hub, _native.Slot):
        yield kind
        for name, member in vars(kind).items():
            if callable(member) and not name.startswith("__"):
                yield member


@pytest.mark.parametrize("function", list(callables()) if _native else [], ids=lambda function: function.__qualname__)
def test_callables_have_a_signature_and_a_docstring(function):
    signature = inspect.signature(function)
    assert function.__doc__
    assert all(parameter.kind is not parameter.VAR_POSITIONAL for parameter in signature.parameters.values())


def test_stub_names_the_whole_module():
    import ast
    from pathlib import Path

    tree = ast.parse((Path(native.__file__).parents[2] / "_native.pyi").read_text())
    stubbed = {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)}
    stubbed |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert stubbed == {name for name in dir(_native) if not name.startswith("__")}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            methods = {part.name for part in node.body if isinstance(part, ast.FunctionDef)} - {"__new__"}
            kind = getattr(_native, node.name)
            # constants of the protocol are compared in core/fallback/test_interfaces.py
            inherited = {name for name in vars(events.Slot) if name[0] != "_"} if node.bases else set()
            assert methods | inherited == {name for name in vars(kind) if not name.startswith("__")}
            for name in methods:
                stub = next(part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == name)
                theirs = list(inspect.signature(getattr(kind, name)).parameters)
                assert theirs == [argument.arg for argument in stub.args.posonlyargs + stub.args.args], name


def test_abi_mismatch_is_refused(monkeypatch):
    monkeypatch.setattr(arena, "ABI", arena.ABI + 1)
    with pytest.raises(ConfigError, match="build it again"):
        load()


@pytest.mark.parametrize("wanted, found", [("python", "python"), ("native", "native"), ("", "native")])
def test_implementation_is_chosen_by_environment_variable(monkeypatch, wanted, found):
    monkeypatch.setenv("VECENV_IMPLEMENTATION", wanted)
    assert native.implementation() == found


def test_implementation_with_an_unknown_name_is_refused(monkeypatch):
    monkeypatch.setenv("VECENV_IMPLEMENTATION", "rust")
    with pytest.raises(ConfigError, match="VECENV_IMPLEMENTATION"):
        native.implementation()


@pytest.fixture
def not_built(monkeypatch):
    monkeypatch.setitem(sys.modules, "vecenv._native", None)
    monkeypatch.delenv("VECENV_IMPLEMENTATION", raising=False)
    monkeypatch.setattr(native, "_has_warned", False)


def test_missing_extension_warns_once(not_built, caplog):
    assert [native.implementation(), native.implementation()] == ["python", "python"]
    (record,) = caplog.records
    assert record.name == "vecenv" and "C compiler" in record.getMessage()


def test_missing_extension_does_not_warn_if_the_fallback_was_chosen(not_built, monkeypatch, caplog):
    monkeypatch.setenv("VECENV_IMPLEMENTATION", "python")
    assert native.implementation() == "python" and not caplog.records


@pytest.mark.extended
def test_missing_extension_does_not_warn_in_workers(capfd):
    def make():
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "vecenv._native", None)
            patch.delenv("VECENV_IMPLEMENTATION", raising=False)
            assert native.implementation() == "python"  # the env seems to have a pool of its own
        return toys.CountEnv()

    pool = ProcessPool([make], PoolOptions())
    pool.start()
    pool.close()
    assert capfd.readouterr().err == ""


# ---- errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["hub", "slot"])
def test_memory_that_is_not_an_arena_is_refused(ends, kind):
    with pytest.raises(ValueError, match="not an arena"):
        getattr(ends, kind)(mapping=bytearray(ends.plan.nbytes))
    with pytest.raises(ValueError, match="not an arena"):
        getattr(ends, kind)(mapping=bytearray(8))
    with pytest.raises(ValueError, match="shorter"):
        getattr(ends, kind)(mapping=bytearray(ends.memory[: ends.plan.nbytes // 2]))
    with pytest.raises((BufferError, TypeError)):
        getattr(ends, kind)(mapping=bytes(ends.memory[:]))
    with pytest.raises(TypeError):
        getattr(ends, kind)(mapping=None)


@pytest.mark.parametrize("kind", ["hub", "slot"])
def test_counters_of_another_layout_are_refused(ends, kind):
    plan = ends.plan.counters
    other = counters.CountersPlan(plan.num_envs + 1, plan.num_slots)
    memory = bytearray(other.nbytes)
    for wrong in (bytearray(plan.nbytes), bytearray(8), memory):
        with pytest.raises(ValueError, match="not an arena"):
            getattr(ends, kind)(counters=wrong)
        other.write_header(memory)
    with pytest.raises(ValueError, match="shorter"):
        getattr(ends, kind)(counters=bytearray(ends.counters[: plan.nbytes // 2]))
    with pytest.raises((BufferError, TypeError)):
        getattr(ends, kind)(counters=bytes(ends.counters[:]))


@pytest.mark.parametrize(
    "changes, error",
    [
        ({"depth": 1}, ValueError),
        ({"depth": 10_000}, ValueError),
        ({"slots": (0,)}, ValueError),
        ({"slots": (0, 1)}, ValueError),
        ({"slots": (0, -1)}, (ValueError, OverflowError)),
        ({"slots": (0, "a")}, (ValueError, TypeError)),
        ({"slots": [0, 0]}, TypeError),
        ({"columns": ((1,),)}, TypeError),
        ({"columns": (3,)}, (TypeError, SystemError)),
        ({"action_leaves": (("a", 1),)}, TypeError),
    ],
)
def test_hub_refuses_wrong_arguments(ends, changes, error):
    with pytest.raises(error):
        ends.hub(**changes)


@pytest.mark.parametrize(
    "changes, error",
    [
        ({"slot": 1}, ValueError),
        ({"obs": ("no such node",)}, ValueError),
        ({"obs": ()}, TypeError),
        ({"obs": 3}, TypeError),
        ({"obs": ("dict", ("a",), ())}, ValueError),
        ({"obs": ("tuple", [])}, TypeError),
        ({"obs": ("array", 0, -1, 4, "f", 4, (1,), None)}, ValueError),
        ({"obs": ("array", 0, 0, 4, "f", 4, (1,) * 17, None)}, ValueError),
        ({"action": ("array", 0, 0, 8, "i", 8, (), np.zeros(2, np.int64))}, ValueError),
        ({"action": ("array", 0, 0, 8, "i", 8, (), b"readonly")}, (BufferError, ValueError)),
        ({"numpy_scalar": 3}, TypeError),
    ],
)
def test_slot_refuses_wrong_arguments(ends, changes, error):
    with pytest.raises(error):
        ends.slot(**changes)


@pytest.mark.parametrize("method", ["cancel", "owed"])
@pytest.mark.parametrize("env_id", [2, -1, 2**70, "a"])
def test_env_ids_out_of_range_are_refused(ends, method, env_id):
    with pytest.raises((ValueError, OverflowError, TypeError)):
        getattr(ends.hub(), method)(env_id)


@pytest.mark.parametrize("method", ["reap", "state", "take_fragment"])
@pytest.mark.parametrize("slot", [1, -1, 2**70, "a"])
def test_slots_out_of_range_are_refused(ends, method, slot):
    with pytest.raises((ValueError, OverflowError, TypeError)):
        getattr(ends.hub(), method)(slot)


def test_request_is_checked_before_anything_is_sent(ends):
    hub = ends.hub()
    actions = (np.zeros(2, np.int64),)
    with pytest.raises(ValueError, match="number of action leaves"):
        hub.send((), None, True, 0)
    with pytest.raises(ValueError, match="wrong size"):
        hub.send((np.zeros(3, np.int64),), None, True, 0)
    with pytest.raises(TypeError, match="int64"):
        hub.send((np.zeros(1, np.int64),), np.zeros(1, np.int32), True, 0)
    with pytest.raises((BufferError, ValueError)):
        hub.send((np.zeros(4, np.int64)[::2],), None, True, 0)
    with pytest.raises(ValueError, match="one per env"):
        hub.command(Op.RESET, None, np.zeros(1, np.int64), np.zeros(2, np.uint8), True)
    assert hub.send(actions, np.array([0, 2]), True, 0) == ("bad_env", 2)
    assert hub.send(actions, np.array([0, -1]), True, 0) == ("bad_env", -1)
    assert hub.outstanding() == 0
    assert hub.send(actions, None, True, 0) is None
    assert hub.send(actions, None, True, 0) == ("busy", 0)
    assert hub.outstanding() == 2


def test_env_id_given_twice_is_refused_and_outstanding_stays(ends):
    hub, slot = ends.hub(), ends.slot()
    for env_id in range(2):
        slot.host(env_id, lambda action: (obs_of(0), 0.0, False, False, {}))
    zeros, none = np.zeros(2, np.int64), np.zeros(2, np.uint8)
    hub.send((zeros,), None, True, 0)
    slot.serve()
    assert hub.recv(2, 2, 0)[0][1:] == (0, 2)
    assert hub.command(Op.RESET, zeros, zeros, none, True) == ("busy", 0)
    assert (hub.outstanding(), hub.owed(0)[0]) == (0, 0)
    hub.send((np.zeros(1, np.int64),), np.array([0]), False, 0)
    owed = hub.owed(0)
    assert hub.command(Op.RESET, zeros, zeros, none, False) == ("busy", 0)
    assert (hub.outstanding(), hub.owed(0)) == (1, owed)


def test_request_without_a_free_block_changes_nothing(ends):
    hub, slot = ends.hub(row_range_type=lambda block, start, stop: block), ends.slot()
    for env_id in range(2):
        slot.host(env_id, lambda action: (obs_of(0), 0.0, False, False, {}))
    actions = (np.zeros(2, np.int64),)
    lent = []
    while (refusal := hub.send(actions, None, True, 0)) is None:
        slot.serve()
        lent.append(hub.recv(2, 2, 0)[0])
        assert hub.lend(lent[-1])
    assert refusal[0] == "no_block"
    assert (hub.outstanding(), hub.owed(0), hub.owed(1)) == (0, (0, 0), (0, 0))
    hub.take_back(lent[0])
    assert hub.send(actions, None, True, 0) is None and hub.outstanding() == 2


def test_superseded_commands_are_dropped_before_a_slot_was_first_idle(ends):
    """The counter of superseded commands passes zero at the fourth reset. Zero was once its value in a new slot."""
    hub, slot = ends.hub(), ends.slot()
    made = []
    for env_id in range(2):
        slot.host(env_id, lambda action: made.append(action) or (obs_of(0), 0.0, False, False, {}))
    zeros, none = np.zeros(2, np.int64), np.zeros(2, np.uint8)

    def answer_resets():
        for env_id in range(2):
            assert slot.serve()[:3] == (events.COMMAND, env_id, Op.RESET)
            assert slot.publish(obs_of(0), 0.0, False, False, {}, RowFlag.RESET, None)
        assert hub.recv(2, 2, 0)[0][1:] == (0, 2)

    assert hub.command(Op.RESET, None, zeros, none, True) == 1
    answer_resets()
    assert hub.send((zeros,), None, True, 0) is None
    assert hub.command(Op.RESET, None, zeros, none, True) == 5
    answer_resets()
    assert made == []


def test_superseded_commands_are_dropped_before_there_is_a_slot(ends):
    """The successor of a worker that died in a step drops them too."""
    hub, made = ends.hub(), []
    zeros = np.zeros(2, np.int64)
    assert hub.send((zeros,), None, True, 0) is None
    assert hub.command(Op.RESET, None, zeros, np.zeros(2, np.uint8), True) == 3
    slot = ends.slot()
    for env_id in range(2):
        slot.host(env_id, lambda action: made.append(action) or (obs_of(0), 0.0, False, False, {}))
    assert slot.serve()[:3] == (events.COMMAND, 0, Op.RESET)
    assert made == []


def test_calls_beyond_the_queue_are_refused_and_overwrite_nothing(ends):
    hub = ends.hub()
    many = np.zeros(1000, np.int64)
    flags = np.zeros(1000, np.uint8)
    assert hub.command(Op.CALL, many, many, flags, False)[0] == "busy"
    one = np.zeros(1, np.int64)
    accepted = 0
    while isinstance(hub.command(Op.CALL, one, one, flags[:1], False), int):
        accepted += 1
    assert 0 < accepted < ends.plan.words["queue_size"]
    assert hub.send((np.zeros(2, np.int64),), None, True, 0) is None


def test_publish_needs_a_command(ends):
    slot = ends.slot()
    with pytest.raises(RuntimeError, match="without a command"):
        slot.publish(obs_of(0), 0.0, False, False, {}, 0, None)
    slot.finish()  # there is no command to finish
    with pytest.raises(ValueError, match="env_id"):
        slot.host(2, print)
    with pytest.raises(ValueError, match="env_id"):
        slot.set_seed(2, 0)
    with pytest.raises(ValueError, match="env_id"):
        slot.set_counters(2, 0, 0.0, 0)


@pytest.mark.parametrize("wrong", [-1, 2, 2**80])
def test_unknown_envs_and_slots_are_refused(ends, wrong):
    hub, slot = ends.hub(), ends.slot()
    for call in (hub.owed, hub.cancel, slot.records, slot.start_digest, slot.is_snapshot_due):
        with pytest.raises(ValueError, match="env_id out of range"):
            call(wrong)
        with pytest.raises(TypeError):
            call("0")
    for call in (
        hub.reap,
        hub.state,
        hub.take_fragment,
        lambda slot: hub.write_payload(slot, b""),
        lambda slot: hub.requeue(slot, ()),
    ):
        with pytest.raises(ValueError, match="slot out of range"):
            call(wrong)
        with pytest.raises(TypeError):
            call("0")


def test_command_for_an_env_without_a_host_is_an_error(ends):
    hub, slot = ends.hub(), ends.slot()
    hub.send((np.zeros(2, np.int64),), None, True, 0)
    with pytest.raises(RuntimeError, match="another slot"):
        slot.serve()


def test_stop_is_seen_before_the_tail_it_moves(ends):
    hub, slot = ends.hub(), ends.slot()
    hub.stop()
    assert slot.serve()[0] == _native.EVENT_STOP


def test_info_keys_beyond_the_table_are_refused(ends):
    hub = ends.hub()
    assert hub.add_info_key("x" * arena.INFO_KEY_NBYTES) == -1
    assert hub.add_info_key("zero\0inside") == -1
    found = [hub.add_info_key(f"key {i}") for i in range(columns.INFO_KEYS + 2)]
    assert found == [*range(columns.INFO_KEYS), -1, -1]
    with pytest.raises(TypeError):
        hub.add_info_key(3)


def cells_of(names, info, infos=0):
    """Send one answer with this info; return (was it written, was it flagged, [(tag, value) of the first cells])."""
    ends = Ends()
    hub, slot = ends.hub(), ends.slot(infos=infos)
    try:
        for name in names:
            assert hub.add_info_key(name) >= 0
        slot.host(0, lambda action: (obs_of(1), 1.0, False, False, info))
        slot.host(1, lambda action: (obs_of(1), 1.0, False, False, {}))
        hub.send((np.zeros(2, np.int64),), None, True, 0)
        if slot.serve()[0] != _native.EVENT_IDLE:
            return False, False, []
        (block, _, _), flags = hub.recv(2, 2, 0)
        columns = BlockRows(ends.plan, ends.memory, block).columns
        tags, values = columns["info_tags"][0].tolist(), columns["info_values"][0].tolist()
        return True, bool(flags & _native.F_INFO), list(zip(tags, values))[: len(names)]
    finally:
        ends.close()


ALL, COLUMNS, DONE, NONE = range(4)
INT, BYTE = 0x28, 0x61  # tags of a Python int and of a uint8 of NumPy


@pytest.mark.parametrize(
    "names, info, infos, expected",
    [
        (["a", "b"], {"b": 2, "a": 1}, ALL, (True, True, [(INT, 1), (INT, 2)])),
        (["a", "b"], {"b": 2}, ALL, (True, True, [(0, 0), (INT, 2)])),
        (["a"], {"a": 1, "b": 2}, ALL, (False, False, [])),
        (["a"], {"a": 1, "b": "text"}, COLUMNS, (True, True, [(INT, 1)])),
        (["a"], {"a": 1, "b": 2}, COLUMNS, (False, False, [])),
        (["a"], {"a": "text"}, COLUMNS, (True, False, [(0, 0)])),
        (["a"], {"a": 2**64}, COLUMNS, (True, False, [(0, 0)])),
        (["a"], {"a": 1}, DONE, (True, False, [(0, 0)])),
        (["a"], {"a": 1}, NONE, (True, False, [(0, 0)])),
        (["a\x1fb"], {"a": {"b": 3}}, ALL, (True, True, [(INT, 3)])),
        (["a\x1fb"], {"a": 3}, ALL, (False, False, [])),
        (["a\x1fb"], {"a": {}}, ALL, (False, False, [])),
        (["a\x1e2", "\x1d"], {"a": np.array([7, 8], np.uint8)}, ALL, (True, True, [(BYTE, 7), (BYTE, 8)])),
        (["a\x1e2", "\x1d"], {"a": np.arange(9, 0, -1, np.uint8)[::5]}, ALL, (True, True, [(BYTE, 9), (BYTE, 4)])),
        (["a\x1e2", "\x1d"], {"a": np.zeros(3, np.uint8)}, ALL, (False, False, [])),
        (["a\x1e2", "\x1d"], {"a": [7, 8]}, ALL, (False, False, [])),
        (["a\x1e2"], {"a": np.zeros(2, np.uint8)}, ALL, (False, False, [])),  # its second cell has no name yet
    ],
    ids=repr,
)
def test_infos_in_cells(names, info, infos, expected):
    assert cells_of(names, info, infos) == expected


def final_rows(hub, ends):
    """Return (flags, first cells of the infos, first cells of the final infos) of the batch, by row."""
    (block, _, _), _ = hub.recv(2, 2, 0)
    columns = BlockRows(ends.plan, ends.memory, block).columns
    first = [columns[name][:, 0].tolist() for name in ("info_values", "final_values")]
    return columns["flags"].tolist(), *first


def ending_envs(slot, *first_infos):
    """Make every step of env i end an episode with {'a': 10 + i} and begin one with first_infos[i]."""

    class Env:
        def __init__(self, number, info):
            self.number, self.info = number, info

        def step(self, action):
            return obs_of(1), 1.0, True, False, {"a": 10 + self.number}

        def reset(self):
            return obs_of(0), self.info

    for i, info in enumerate(first_infos):
        env = Env(i, info)
        slot.host(i, env.step, env)


FINAL = _native.F_FINAL if _native else 0


def test_final_infos_have_their_own_cells(ends):
    hub, slot = ends.hub(), ends.slot(autoreset=2)
    hub.add_info_key("a")
    ending_envs(slot, {"a": 2}, {"a": 3})
    hub.send((np.zeros(2, np.int64),), None, True, 0)
    assert slot.serve()[0] == _native.EVENT_IDLE
    flags = FINAL | _native.F_INFO | _native.F_FINAL_INFO
    assert final_rows(hub, ends) == ([flags, flags], [2, 3], [10, 11])


def test_final_observation_is_kept_whole(ends):
    hub, slot = ends.hub(), ends.slot(autoreset=2)
    hub.add_info_key("a")
    ending_envs(slot, {}, {})
    hub.send((np.zeros(2, np.int64),), None, True, 0)
    assert slot.serve()[0] == _native.EVENT_IDLE
    views = BlockRows(ends.plan, ends.memory, hub.recv(2, 2, 0)[0][0])
    for leaves, number in ((views.leaves, 0), (views.final_leaves, 1)):
        gear, position = (leaf[:2].tolist() for leaf in sorted(leaves, key=np.ndim))
        assert (gear, position) == ([number] * 2, [[number] * 2] * 2)


def test_final_info_waits_in_cells_for_the_rest_of_its_row(ends):
    hub, slot = ends.hub(), ends.slot(autoreset=2)
    hub.add_info_key("a")
    ending_envs(slot, {"a": "text"}, {})
    hub.send((np.zeros(2, np.int64),), None, True, 0)
    assert slot.serve()[:2] == (_native.EVENT_RESULT, 0)
    assert not slot.publish(obs_of(0), 1.0, True, False, {"a": "text"}, FINAL, None)
    assert slot.publish(obs_of(0), 1.0, True, False, None, FINAL | _native.F_MESSAGE, None)
    assert slot.serve()[0] == _native.EVENT_IDLE
    flags, _, values = final_rows(hub, ends)
    both = FINAL | _native.F_FINAL_INFO
    assert (flags, values) == ([both | _native.F_MESSAGE, both], [10, 11])


def test_final_info_refused_or_cancelled_is_not_in_a_later_row(ends):
    hub, slot = ends.hub(), ends.slot(autoreset=2)
    hub.add_info_key("a")
    ending_envs(slot, {"a": "text"})
    slot.host(1, lambda action: [])
    hub.send((np.zeros(2, np.int64),), None, False, 0)
    assert slot.serve()[:2] == (_native.EVENT_RESULT, 0)
    slot.finish()  # Ctrl-C has this effect
    assert slot.serve()[:2] == (_native.EVENT_RESULT, 1)
    odd = (obs_of(0), 1.0, True, False, {"a": "text"}, FINAL, obs_of(1), {"a": 1})
    assert not slot.publish(*odd)
    assert not slot.publish(*odd[:4], {}, *odd[5:7], {"a": 1, "b": 1})
    assert slot.publish(*odd[:4], None, FINAL | _native.F_MESSAGE, obs_of(1))
    _, flags = hub.recv(1, 1, 0)
    assert flags == FINAL | _native.F_MESSAGE


@pytest.mark.parametrize("counts", [(0, 2), (0, 0), (2, 1)])
def test_recv_of_no_rows_does_not_wait(ends, counts):
    with pytest.raises(ValueError, match="min_count"):
        ends.hub().recv(*counts, 0)


def test_payload_that_was_not_taken_is_not_given_to_the_next_command(ends):
    """A signal handler of an env may raise before the payload is taken."""
    hub, slot = ends.hub(), ends.slot()
    for env_id in range(2):
        slot.host(env_id, lambda action: (obs_of(0), 0.0, False, False, {}))
    zeros, flags = np.zeros(2, np.int64), np.full(2, CommandFlag.PAYLOAD, np.uint8)
    for payloads in ((b"one", b"two"), (b"three", b"four"), (b"five", b"six")):
        hub.command(Op.STEP, np.arange(2), zeros, flags, True)
        for payload in payloads:
            assert hub.write_payload(0, payload) == len(payload)
        for payload, is_taken in zip(payloads, (False, payloads[1] != b"four")):
            assert slot.serve()[0] == events.COMMAND
            assert not is_taken or slot.take_payload() == payload
            assert slot.publish(obs_of(0), 0.0, False, False, None, 0, None)
        assert hub.recv(2, 2, 0)[0][1:] == (0, 2)


def test_watch_refuses_an_invalid_descriptor():
    with pytest.raises((TypeError, ValueError)):
        _native.watch_parent(1, "no descriptor", 0, "")


# ---- leaks ----------------------------------------------------------------------------------


def info_for(i):
    """Return an info with numbers, with arrays, or with values that have no cells."""
    nested = {"d": np.float32(i), "e": np.ones((2, 1 + (i == 4)))}
    return {"a": i, "b": 0.5, "c": nested} if i % 3 else {"a": i, f"key {i}": 2**70}


def rounds(count, autoreset):
    """Send, step and receive plain rows, odd rows, ends, infos, exceptions and messages."""
    ends = Ends()
    hub, slot = ends.hub(), ends.slot(autoreset=autoreset)
    results = deque([(i, float(i), i > 5, False, info_for(i)) for i in range(11)])
    for name in ("a", "b", "c\x1fd", "c\x1fe\x1e2,1", "\x1d"):
        hub.add_info_key(name)

    def step(action):
        results.rotate()
        number, *rest = results[0]
        if number == 3:
            raise ValueError("three")
        result = obs_of(number), *rest
        return result if number != 5 else list(result)

    class Env:
        def reset(self):
            number = results[0][0]
            return (obs_of(7) if number < 7 else [7]), info_for(number)

    env = Env()
    env.step = step
    for env_id in range(2):
        slot.host(env_id, step, env)
    actions = (np.zeros(2, np.int64),)
    for _ in range(count):
        hub.send(actions, None, True, 0)
        while slot.serve()[0] != _native.EVENT_IDLE:
            slot.send_message(b"message")
            slot.publish(obs_of(1), 0.0, False, False, None, 0, obs_of(2))
        hub.take_fragment(0)
        assert hub.recv(2, 2, 0)[0][1:] == (0, 2)
        while hub.take_fragment(0):
            pass
    ends.close()


@pytest.mark.extended
@pytest.mark.skipif(not hasattr(sys, "getrefcount"), reason="counts references")
@pytest.mark.parametrize("autoreset", [0, 1, 2], ids=["DISABLED", "NEXT_STEP", "SAME_STEP"])
def test_objects_and_memory_are_released(autoreset):
    rounds(50, autoreset)
    gc.collect()
    blocks, values = sys.getallocatedblocks(), sys.getrefcount(None)
    rounds(2000, autoreset)
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 200
    assert abs(sys.getrefcount(None) - values) < 200


@pytest.mark.extended
def test_objects_release_the_memory(ends):
    count = [sys.getrefcount(ends.memory), sys.getrefcount(ends.counters)]
    hub, slot = ends.hub(), ends.slot()
    del hub, slot
    gc.collect()
    left = [sys.getrefcount(ends.memory), sys.getrefcount(ends.counters)]
    assert left == count


@pytest.mark.extended
def test_env_that_refers_to_its_slot_is_collected(ends):
    class Env:
        def step(self, action):
            return action

    import weakref

    env = Env()
    env.slot = ends.slot()
    env.slot.host(0, env.step)
    reference = weakref.ref(env)
    del env
    gc.collect()
    assert reference() is None


@pytest.mark.extended
def test_refused_constructor_leaves_nothing_behind(ends):
    count = [sys.getrefcount(ends.memory), sys.getrefcount(ends.counters)]
    for _ in range(50):
        with pytest.raises(ValueError):
            ends.slot(slot=9)
        with pytest.raises(ValueError):
            ends.hub(depth=1)
    gc.collect()
    left = [sys.getrefcount(ends.memory), sys.getrefcount(ends.counters)]
    assert left == count
