"""Kill all workers of a pool, and collect the state from which another pool continues."""

from __future__ import annotations

import pickle
from typing import Any

from tests.faults.traces import kill
from vecenv.core.layout.flags import Op
from vecenv.core.pool.process import ProcessPool
from vecenv.core.recovery.resume import QueuedCommand, Resume, make_resume


def lose(pool: ProcessPool, **plan: Any) -> Resume:
    """Kill all workers of a pool, close it, and return its state; rows that were not received count as unanswered.

    `plan`: further arguments of `make_resume`.
    """
    for worker_id in range(len(pool.worker_pids)):
        kill(pool, worker_id)
    engine: Any = pool._engine
    inbox, requests = pool._waiter.inbox, pool._requests
    records = pool.read_records()
    owed = [(env_id, *pool._hub.owed(env_id)) for env_id in range(pool.num_envs)]
    queued = [command_of(engine.journal, env_id, step_id) for env_id, op, step_id in owed if op != Op.NONE]
    for step_id, (env_id, payload) in inbox.payloads.items():
        queued.append(QueuedCommand(Op.CALL, env_id, step_id, payload=payload))
    plan.setdefault("last_delivered", pool._hub.last_delivered_obs)
    resume = make_resume(engine.recovery, records, queued, takes_seed=requests.takes_seed, **plan)
    data = pickle.dumps(resume)
    pool.close(timeout=0)
    copy: Resume = pickle.loads(data)
    return copy


def command_of(journal: Any, env_id: int, step_id: int) -> QueuedCommand:
    """Return a command of a journal, as its sender would have kept it."""
    entry = next(entry for entry in journal._entries(env_id, step_id) if entry.step_id == step_id)
    has_action = isinstance(entry.payload, tuple)
    payload, action = (None, entry.payload) if has_action else (entry.payload, ())
    return QueuedCommand(entry.op, env_id, step_id, entry.argument, entry.flags, payload, action)
