"""Short functions that fill journals and read them, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from vecenv.core.layout.commands import Command, Commands, Effect
from vecenv.core.layout.flags import CommandFlag, Op
from vecenv.core.recovery.journal import Journal

MANY = 1 << 20


def steps(journal: Journal, values: list[int], env_ids: list[int] | None = None) -> None:
    ids = None if env_ids is None else np.array(env_ids, np.int64)
    journal.note_steps((np.array(values, np.int64),), ids, 0)


def seeded_resets(env_ids: list[int], seeds: list[int], payloads: Any = ()) -> Commands:
    ids = np.array(env_ids)
    return Commands.of(Op.RESET, ids, flags=CommandFlag.SEED, arguments=seeds, effects=Effect.SEEDS, payloads=payloads)


def plain_resets(env_ids: list[int], seeds: list[int], payloads: Any = ()) -> Commands:
    return Commands.of(Op.RESET, np.array(env_ids), arguments=seeds, payloads=payloads)


def reset(journal: Journal, first: int, env_ids: list[int], seeds: list[int | None], op: Op = Op.RESET) -> None:
    flags = [0 if seed is None else CommandFlag.SEED for seed in seeds]
    effects = [Effect.ONCE if seed is None else Effect.SEEDS for seed in seeds]
    arguments = [seed or 0 for seed in seeds]
    note(journal, first, Commands.of(op, np.array(env_ids), flags=flags, arguments=arguments, effects=effects))


def note(journal: Journal, first: int, commands: Commands) -> None:
    """Record commands whose numbers count up from `first`."""
    commands.number(first)
    journal.note_commands(commands)


def call(journal: Journal, first: int, env_id: int, key: str | None, effect: int | None = None) -> None:
    """Record a call: with a key, it lasts; else its effect is unknown, or `effect`."""
    if effect is None:
        effect = Effect.ONCE if key is None else Effect.LASTS
    journal.note_commands(Commands.listed([Command(first, env_id, Op.CALL, 0, 0, effect, key, b"payload %d" % first)]))


def repeated(journal: Journal, env_id: int, queued: Any = ()) -> list[tuple[int, list[Any]]]:
    """Return (restore point, [repeated commands]) of each attempt: actions as numbers, commands by name."""
    found = []
    for point, entries, *_ in journal.history(env_id, queued).attempts:
        parts: list[Any] = []
        for entry in entries:
            if entry.op == Op.STEP:
                assert isinstance(entry.payload, tuple)
                parts.append(int(np.frombuffer(entry.payload[0], np.int64)[0]))
            else:
                parts.append(f"{Op(entry.op).name.lower()} {entry.step_id}")
        found.append((point.step_id, parts))
    return found


def lasting(journal: Journal, attempt: int = 0) -> list[int]:
    """Return the step_ids of the calls that are repeated before the restore point of an attempt, for env 0."""
    return [entry.step_id for entry in journal.history(0, ()).attempts[attempt].lasting_calls]


def two_envs() -> Journal:
    """Two envs reset with seeds (commands 1, 2), then three rounds of steps (3 .. 8)."""
    journal = Journal(2, MANY)
    reset(journal, 1, [0, 1], [5, 6])
    for number in range(3):
        steps(journal, [10 + number, 20 + number])
    return journal
