"""`Commands`: making, numbering, selecting, joining and pickling them."""

from __future__ import annotations

import pickle

import numpy as np

from vecenv.core.layout.commands import Command, Commands, Effect
from vecenv.core.layout.flags import CommandFlag, Op

CALL = Command(7, 2, int(Op.CALL), int(CommandFlag.PAYLOAD), 0, Effect.LASTS, "set gain", b"payload")
STEP = Command(8, 0, int(Op.STEP), 3, 0, Effect.ONCE, None, (b"\1", b"\2\3"))


def test_commands_of_one_request() -> None:
    resets = Commands.of(Op.RESET, np.array([4, 1]), flags=[CommandFlag.SEED, 0], arguments=[2**63 - 1, 0])
    resets.number(5)
    assert resets.op == Op.RESET and resets.env_ids.tolist() == [4, 1]
    assert list(resets) == [
        Command(5, 4, Op.RESET, CommandFlag.SEED, 2**63 - 1),
        Command(6, 1, Op.RESET),
    ]


def test_payload_sets_its_flag() -> None:
    steps = Commands.of(Op.STEP, np.arange(3), flags=1, payloads=[None, b"one", None])
    assert [command.flags for command in steps] == [1, 1 | CommandFlag.PAYLOAD, 1]
    assert [command.payload for command in steps] == [None, b"one", None]


def test_select_keeps_every_field() -> None:
    both = Commands.listed([CALL, STEP])
    parts = [both.select(slice(1)), both.select(np.array([False, True]))]
    assert list(parts[0]) == [CALL] and list(parts[1]) == [STEP]
    assert list(both.select(np.array([1, 0]))) == [STEP, CALL]
    assert len(Commands.listed(())) == 0


def test_commands_pickle_and_payloads_that_are_shared_stay_shared() -> None:
    payload = b"x" * 1_000
    calls = Commands.of(Op.CALL, np.arange(50), effects=Effect.LASTS, key="name", payloads=[payload] * 50)
    data = pickle.dumps(calls, protocol=5)
    copy = pickle.loads(data)
    assert list(copy) == list(calls) and len(data) < 5_000
    assert copy.payloads[0] is copy.payloads[49]


def test_first_command_of_each_env_has_its_lowest_number() -> None:
    commands = Commands.listed([Command(6, 1, Op.RESET), Command(4, 1, Op.STEP), Command(5, 0, Op.CALL)])
    assert {env_id: command.step_id for env_id, command in commands.first_by_env().items()} == {0: 5, 1: 4}
