"""Kill all workers of a pool, and collect the state from which another pool continues."""

from __future__ import annotations

import pickle
from typing import Any

from tests.faults.traces import kill
from tests.inside import engine_of, entries_of, hub_of, requests_of, waiter_of
from vecenv.core.layout.commands import Command, Commands, Effect
from vecenv.core.layout.flags import CommandFlag, Op
from vecenv.core.pool.process import ProcessPool
from vecenv.core.recovery.resume import Resume, make_resume


def lose(pool: ProcessPool) -> Resume:
    """Kill all workers of a pool, close it, and return its state; rows that were not received count as unanswered."""
    for worker_id in range(len(pool.worker_pids)):
        kill(pool, worker_id)
    engine: Any = engine_of(pool)
    inbox, requests = waiter_of(pool).inbox, requests_of(pool)
    records = pool.read_records()
    owed = [(env_id, *hub_of(pool).owed(env_id)) for env_id in range(pool.num_envs)]
    queued = [command_of(engine.journal, env_id, step_id) for env_id, op, step_id in owed if op != Op.NONE]
    commands = Commands.listed([*queued, *inbox.unanswered_calls.values()])
    jobs = requests.new_jobs(range(pool.num_envs), commands)
    resume = make_resume(engine.recovery, records, commands, jobs)
    data = pickle.dumps(resume)
    pool.close(timeout=0)
    copy: Resume = pickle.loads(data)
    return copy


def command_of(journal: Any, env_id: int, step_id: int) -> Command:
    """Return a command of a journal, as its sender would have kept it."""
    entry = next(entry for entry in entries_of(journal, env_id, step_id) if entry.step_id == step_id)
    has_seed = entry.op == Op.RESET and entry.flags & CommandFlag.SEED and not entry.flags & CommandFlag.DRAWN
    effect = Effect.SEEDS if has_seed and entry.argument >= 0 else Effect.ONCE
    return Command(step_id, env_id, entry.op, entry.flags, entry.argument, effect, None, entry.payload)
