"""Resume: the state of a pool whose workers are lost, from which another pool continues the same episodes.

    first pool     Journal, newest records, unanswered commands -> make_resume -> Resume
    second pool    ProcessEngine(env_fns, options, resume=Resume) -> the same rows as the first pool would have had

The first pool may be on another machine, and it may have died: whoever sent its commands can make the Resume. A Resume
is made of these parts, and can be pickled:

    restore_jobs    by env: the commands that bring a new env to its state, as after the death of a worker
    records         by env: digests and episode counters of the newest answers; repeated ones are compared with them
    queued          the commands without an answer; `Pool.send_commands` sends them to the second pool, under their
                    old step_ids
    next_step_id    of the first command that neither pool has had

Maker. The maker keeps a `Journal` of the commands, numbered as by the hub of the first pool, and a `Recovery` over this
journal. It passes the restore points that arrive from workers to the journal: `ProcessEngine(listener=...)` receives
them. It keeps the newest records, see `Pool.read_records`. They are complete if they contain, for each env, the record
of the newest row that has arrived, and if the restore points before that row have arrived. Records of rows that have
not arrived do no harm.

Second pool. `Pool.start` builds the envs. An env is restored right before its first command. The rows of the queued
commands are delivered by `recv`, and results of queued calls by `collect_calls`. The journal of the second pool
contains the old commands too, so that its own workers may die at any time.

The second pool must have the same `env_fns`, autoreset mode and spaces. It may have another number of workers. The
digests of rows with and without C differ: the implementation must be the same, or episodes end as truncated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..host.replay import RestoreJob, Snapshotter
from ..host.saving import SavedEnv
from ..layout.arena import RECORD, ArenaPlan, read_record
from ..layout.commands import GIVEN_STATE, Commands, GivenState, LastingCall, RestorePlan, RestorePoint
from ..layout.messages import Payload, dump
from ..layout.spec import Array
from ..system.clock import now_ns
from .policy import Recovery
from .reset_seeds import ResetSeeds

__all__ = ["Resume", "make_resume", "read_records", "resume_of"]


@dataclass
class Resume:
    """The state from which a pool continues; see the text of this module.

    Attributes:
        restore_jobs: how to restore each env, by env_id.
        records: (num_envs, 2), with the fields of `ArenaPlan.records`; `began_ns` is the age of the episode.
        queued: commands without an answer, ordered by step_id.
        next_step_id: step_id of the next command.
        seeds: of the resets so far; None: another pool numbers and checks the requests.
        spares: a `spares.envs.SavedSpares`; None: there are no spare envs.
    """

    restore_jobs: dict[int, RestoreJob]
    records: Array
    queued: Commands
    next_step_id: int
    seeds: ResetSeeds | None = None
    spares: Any = None

    def part(self, env_ids: Sequence[int]) -> Resume:
        """Return the state of some envs, for a pool whose requests are numbered elsewhere, without `queued`."""
        jobs = {env_id: self.restore_jobs[env_id] for env_id in env_ids if env_id in self.restore_jobs}
        return Resume(jobs, self.records[list(env_ids)], Commands.listed([]), self.next_step_id)

    def write_records(self, plan: ArenaPlan, memory: Any) -> None:
        """Write the records into a new arena, before workers attach to it."""
        records = self.records.copy()
        records["began_ns"] = now_ns() - records["began_ns"]
        plan.records(memory)[:] = records


def read_records(plan: ArenaPlan, memory: Any, env_ids: Sequence[int] | Array | None = None) -> Array:
    """Return a copy of the records of envs, (n, 2), that can be used on another machine.

    The field `began_ns` contains the age of the episode in nanoseconds, since clocks of machines differ. A record that
    a worker is writing at this moment may be incomplete, but the record of a delivered row is complete.

    Args:
        plan, memory: of the arena.
        env_ids: None for all.
    """
    found: Array = plan.records(memory)[slice(None) if env_ids is None else np.asarray(env_ids)].copy()
    found["began_ns"] = now_ns() - found["began_ns"]
    return found


def make_resume(
    recovery: Recovery,
    records: Array,
    queued: Commands,
    jobs: dict[int, RestoreJob],
    seeds: ResetSeeds | None = None,
) -> Resume:
    """Return the state from which another pool continues.

    Args:
        recovery: of the lost pool; its journal contains all commands that were sent to that pool.
        records: the newest records, (num_envs, 2), from `read_records`; zeros for envs without any. Those of queued
            commands are left out: their answers have not arrived, and will be given again.
        queued: the command that each env owes the answer to, and the calls without an answer, in any order. Commands
            that were cancelled or superseded are left out.
        jobs: of all envs, as for `Recovery.plan`, in the order of the records.
        seeds: of the resets so far, if the pool is not lost but saved. Then the next row of an env that is restored
            exactly is not marked.
    """
    left, records = queued.select(np.argsort(queued.table["step_id"])), records.copy()
    rows = dict(zip(jobs, records))
    for command in left:
        mine = rows[command.env_id]
        mine[mine["step_id"] >= command.step_id] = 0
    restore_jobs = recovery.plan(jobs, left, marks_recovery=seeds is None)
    return Resume(restore_jobs, records, left, recovery.journal.next_step_id, seeds)


def resume_of(
    saved: Mapping[int, SavedEnv],
    jobs: Mapping[int, RestoreJob],
    seeds: ResetSeeds,
    foreign: Collection[int],
    snapshotter: Snapshotter | None,
) -> Resume:
    """Return the state from which another pool continues a pool that keeps no commands.

    Args:
        saved: the envs that were reset, by env_id, each with a state.
        jobs: of these envs, from `Requests.new_jobs`.
        seeds: of the resets so far.
        foreign: envs that may have the attributes of another env, see `GIVEN_STATE`.
        snapshotter: has captured the states.
    """
    answered, following = 1, 2  # the last command of each env, and the next command of the other pool
    restore_jobs, records = {}, np.zeros((len(seeds.is_seeded), 2), RECORD)
    for env_id, env in saved.items():
        record = records[env_id, 0] = read_record(env.record)
        records[env_id, 0]["step_id"] = answered
        point = RestorePoint(following, env.state, True, not record["is_over"], env.holds_calls)
        calls = []
        if env_id in foreign and env.state is not None:
            given = GivenState(snapshotter, env.state, None, 0, 0.0, 0, None, False)
            calls = [LastingCall(answered, dump(Payload(state=given)), name=GIVEN_STATE)]
        plans = [RestorePlan(point, [], calls)]
        restore_jobs[env_id] = replace(jobs[env_id], attempts=plans, lasting_calls=calls, marks_recovery=False)
    return Resume(restore_jobs, records, Commands.listed([]), following, seeds)
