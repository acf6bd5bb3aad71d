"""Messages between parent and worker, and exceptions that are sent from one to the other."""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

from vecenv.core.layout import messages
from vecenv.core.layout.messages import Payload, RemoteTraceback, Reply, copy_value
from vecenv.envs.remote import CallMethod
from vecenv.errors import EnvError


class Demanding(Exception):
    """Its constructor takes more than the message, so that pickle cannot rebuild it."""

    def __init__(self, text, *, needed):
        super().__init__(text)
        self.needed = needed


class Prefixed(Exception):
    """Pickle rebuilds it with the prefix twice."""

    def __init__(self, code, text="no"):
        super().__init__(f"{code}: {text}")


class LocksFile(OSError):
    """An error of the system with another constructor, and with a lock."""

    def __init__(self, path, *, code):
        super().__init__(code, "locked", path)
        self.lock = threading.Lock()


class Shifty(Exception):
    """Unpickles as an object of another class."""

    def __reduce__(self):
        return ValueError, ("not what it was",)


class Silent(BaseException):
    """Not an Exception, like SystemExit."""


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return caught


def crossed(error, **where):
    return messages.unpack_error(pickle.loads(pickle.dumps(messages.pack_error(raised(error)))), **where)


@pytest.mark.parametrize(
    "message",
    [
        Reply(3, 1, info={"a": 1}, objects=[None, "x"]),
        Reply(0, 2, warnings=[("key", "text")]),
        Payload(kwargs={"options": {"level": 3}}),
        Payload(action={"deep": [1, 2]}),
    ],
)
def test_message_round_trip_is_equal(message):
    assert messages.load(messages.dump(message)) == message
    assert messages.load(bytearray(messages.dump(message))) == message


def test_functions_without_a_module_travel_by_value():
    offset = 4
    payload = messages.load(messages.dump(Payload(function=lambda env: env + offset)))
    assert payload.function(3) == 7


def test_unpicklable_value_raises_at_the_sender():
    with pytest.raises(TypeError, match="pickle"):
        messages.dump(Reply(1, 0, value=threading.Lock()))


@pytest.mark.parametrize("field", ["info", "final_info"])
def test_info_that_cannot_be_pickled_is_named_by_its_keys(field):
    info = {"time": 1.0, "solver": {"name": "x", "parts": [1, (threading.Lock(),)]}}
    info["solver"]["self"] = info
    with pytest.raises(TypeError, match=f"^{field}/solver/parts/1/0: .*cannot pickle '_thread.lock' object"):
        messages.dump_reply(Reply(1, 0, **{field: info}))


def test_exception_arrives_with_the_remote_traceback_as_cause():
    error = crossed(ZeroDivisionError("by zero"), env_ids=(3,), op="step")
    assert type(error) is ZeroDivisionError and error.args == ("by zero",)
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "in raised" in str(error.__cause__) and "ZeroDivisionError: by zero" in str(error.__cause__)


def test_exception_of_a_local_class_keeps_its_class_name():
    class Local(RuntimeError):
        pass

    error = crossed(Local("here"))
    assert type(error).__qualname__ == Local.__qualname__ and isinstance(error, RuntimeError)


@pytest.mark.parametrize(
    "error",
    [
        Demanding("no", needed=1),
        Prefixed(3),
        LocksFile("/x", code=2),
        Shifty("odd"),
        RuntimeError(object()),
        KeyError(1),
    ],
    ids=lambda error: type(error).__name__,
)
def test_exception_whose_constructor_takes_more_than_a_message_arrives_as_its_own_class(error):
    arrived = crossed(error, env_ids=(3,), op="step")
    assert type(arrived) is type(error) and isinstance(arrived.__cause__, RemoteTraceback)
    if not isinstance(error, RuntimeError):
        assert (str(arrived), arrived.args) == (str(error), error.args)
    expected = {name: value for name, value in vars(error).items() if name != "lock"}
    notes = vars(arrived).pop("__notes__", [])
    assert vars(arrived) == expected and len(notes) == (vars(error) != expected)
    assert all("attributes ['lock'] could not be sent" in note for note in notes)


@pytest.mark.parametrize("error", [Silent("end"), SystemExit(3)])
def test_exception_that_cannot_be_rebuilt_becomes_a_named_env_error(error):
    arrived = crossed(error, env_ids=(3,), op="step", step_id=9)
    assert type(arrived) is EnvError
    assert type(error).__name__ in str(arrived) and "env 3" in str(arrived)
    assert (arrived.env_ids, arrived.op, arrived.step_id) == ((3,), "step", 9)
    assert arrived.exception_type.endswith(type(error).__name__)
    assert type(error).__name__ in str(arrived.__cause__)


def test_exception_that_holds_a_lock_becomes_an_env_error():
    error = RuntimeError("busy", threading.Lock())
    assert type(crossed(error)) is EnvError


def test_exception_of_a_missing_module_becomes_an_env_error():
    data, name, text, trace = messages.pack_error(raised(ValueError("x")))
    broken = (b"cno_such_module\nThing\n.", name, text, trace)
    assert type(messages.unpack_error(broken)) is EnvError
    assert data is not None


def test_chain_of_causes_is_in_the_text():
    def fail():
        try:
            {}["missing"]
        except KeyError as error:
            raise RuntimeError("outer") from error

    with pytest.raises(RuntimeError) as caught:
        fail()
    text = str(messages.unpack_error(messages.pack_error(caught.value)).__cause__)
    assert "KeyError: 'missing'" in text and "direct cause" in text


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Level:
    array: Any
    lock: Any = None


def test_copy_within_a_process_copies_containers_arrays_and_objects():
    array = np.zeros(2)
    value = {"pair": Pair(array, [array]), "level": Level(np.ones(2)), "set": {1}, "text": "x", "objects": [Level(1)]}
    copied = copy_value(value)
    assert copied["pair"].left is copied["pair"].right[0] is not array
    array[:] = value["level"].array[:] = 7
    value["set"].add(2)
    value["objects"][0].array = 2
    assert copied["pair"].left.tolist() == [0, 0] and copied["level"].array.tolist() == [1, 1]
    assert copied["set"] == {1} and copied["objects"][0].array == 1


def flags(array):
    return array.flags.writeable, array.flags.c_contiguous, array.flags.f_contiguous


@pytest.mark.parametrize("rest", [[], [Level(1)]])
def test_copy_within_a_process_equals_the_pickled_one(rest):
    """Identities, memory order and read-only arrays: plain values are copied by another function than objects."""
    frozen = np.ones(2)
    frozen.flags.writeable = False
    array, nested = np.zeros((2, 3), order="F"), {(1, "x"): np.float32(2), 3: np.zeros((4, 4))[::2, ::2]}
    arrays = {"array": array, "number": np.zeros(()), "part": nested[3]}
    value = {"nested": nested, "again": [array, nested], "rest": rest, **arrays}
    value["self"] = value
    for one in (value, {**value, "frozen": frozen}):
        copied, pickled = copy_value(one), pickle.loads(pickle.dumps(one, protocol=5))
        assert list(copied) == list(pickled) and copied["self"]["self"] is copied["self"] is not value
        assert copied["again"][0] is copied["array"] is not array
        assert copied["again"][1] is copied["nested"] is not nested
        assert copied["part"] is copied["nested"][3] and copied["nested"][1, "x"] == 2
        for key in {"frozen", *arrays} & set(one):
            assert flags(copied[key]) == flags(pickled[key]) and np.array_equal(copied[key], pickled[key])


def test_copy_within_a_process_leaves_classes_and_functions_as_they_are():
    """Regression: objects of local classes brought a copy of their class, which replaced the methods of the class."""
    seen = []

    class Local:
        table: Any = []

        def note(self):
            seen.append(self.table)

    one, table, note = Local(), Local.table, Local.note
    copied, function = copy_value([one, lambda: seen.append(1)])
    assert type(copied) is Local and copied is not one and Local.table is table and Local.note is note
    copied.note()
    assert seen == [table]
    function()  # a copy, with a list of its own
    assert seen == [table]
    assert copy_value({"class": Local, "function": crossed, "x": one})["function"] is crossed


def test_copy_within_a_process_shares_what_cannot_be_pickled():
    lock, array, items = threading.Lock(), np.zeros(2), [1]
    level = Level(items, lock)
    function = CallMethod("call", ([level], items), {"items": items, "lock": lock})
    copied = copy_value({"shared": [lock, level, iter(())], "array": array, "items": items, "function": function})
    assert copied["shared"][0] is lock and copied["shared"][1] is level and copied["array"] is not array
    assert copied["items"] == [1] and copied["items"] is not items and level.array is items
    call = copied["function"]
    assert call.args[0][0] is level and call.kwargs["lock"] is lock
    assert call.args[1] is call.kwargs["items"] == [1] and call.args[1] is not items
