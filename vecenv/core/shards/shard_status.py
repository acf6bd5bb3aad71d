"""ShardStatus: the state of one shard, which the parts of `ShardedEngine` share.

    OPENING -> READY -> SERVING -> LOST -> (fence) -> BUILDING -> SERVING        on_failure='recover'
                                -> DEAD                                          on_failure='raise', or too many losses
                                             BUILDING -> DEAD -> LOST            a shortage; the error has been raised

`ShardStarts` sets OPENING, READY and BUILDING, `ShardSupervisor` sets the others. The engine sets the first SERVING, of
all shards at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from ...errors import WorkerDiedError, locate
from ..advice.sizing import SERIAL, Setting
from ..layout.commands import Command
from ..layout.flags import Op
from ..processes.worker_main import describe_envs
from ..system.clock import NEVER_NS, now_ns
from .carrier import Lost, ShardPlace

__all__ = ["WAITING", "ShardState", "ShardStatus", "death_of"]

#: The state, in texts, of a shard whose process is not placed yet.
WAITING = "waiting"


class ShardState(Enum):
    OPENING = "opening"
    READY = "ready"
    SERVING = "serving"
    LOST = "lost"
    BUILDING = "building"
    DEAD = "dead"


@dataclass
class ShardStatus:
    """The state of one shard.

    Attributes:
        shard: its number.
        env_ids: its envs.
        state: see the text of this module.
        num_replaced: how often it was replaced.
        lost_ns: when it was lost, on the monotonic clock; its successors may have been lost since.
        due_ns: if it is lost: when it is started again. If it is being started: when it must be placed, and after
            that, when its envs must be built.
        is_placed: whether its process is known to be placed.
        is_one_by_one: whether its successor runs the commands that are not answered one after the other; see
            `ShardBoot`.
        run_in_turn: the commands that its present process runs like that: env_id and step_id.
        why: if it is dead: the reason, for messages; else of the last loss.
        is_retried: if it is dead: whether it is started again after `error` was raised.
        error: if it is dead: an exception that is raised once, in place of a WorkerDiedError.
        exitcode: of its last process.
        counts, counts_before: its counts of failures, and the sums of those of its predecessors.
        setting: the workers of its process, as chosen; None: nothing was chosen.
        choice: the reason.
        step_seconds: see `ShardReport`.
    """

    shard: int
    env_ids: list[int]
    state: ShardState = ShardState.OPENING
    num_replaced: int = 0
    lost_ns: int = 0
    due_ns: int = NEVER_NS
    is_placed: bool = False
    is_one_by_one: bool = False
    run_in_turn: set[tuple[int, int]] = field(default_factory=set)
    why: str = ""
    is_retried: bool = False
    error: Exception | None = None
    exitcode: int | None = None
    counts: dict[str, int] = field(default_factory=dict)
    counts_before: dict[str, int] = field(default_factory=dict)
    setting: Setting | None = None
    choice: str = ""
    step_seconds: float = 0.0

    @property
    def name(self) -> str:
        """The shard and its envs, for messages."""
        return f"shard {self.shard} ({describe_envs(self.env_ids)})"

    @property
    def has_workers(self) -> bool:
        """Whether its envs run in worker processes."""
        return self.setting != SERIAL

    @property
    def is_starting(self) -> bool:
        """Whether its process is being placed, or builds its envs."""
        return self.state in (ShardState.OPENING, ShardState.BUILDING)

    def state_text(self, place: ShardPlace | None) -> str:
        """Return the state for messages and tables; `place` is that of its process, None before that is placed."""
        return WAITING if self.is_starting and place is None else self.state.value

    def add_workers(self, num_cpus: int, reason: str) -> None:
        """Have successors run the envs in workers."""
        self.setting = Setting(min(num_cpus, len(self.env_ids)))
        self.choice = f"{self.setting} for {len(self.env_ids)} envs; {reason}"

    def count(self, name: str) -> int:
        """Return one of its counts of failures, with those of its predecessors."""
        return self.counts.get(name, 0) + self.counts_before.get(name, 0)

    def take_error(self) -> Exception:
        """Return the error of a dead shard: first the one that was raised, then one that says so.

        A shard that is retried is lost from now on, so that the next call starts it.
        """
        error, self.error = self.error, None
        if self.is_retried:
            self.state, self.lost_ns, self.due_ns, self.is_retried = ShardState.LOST, now_ns(), 0, False
        if error is not None:
            return error
        again = WorkerDiedError(self.why, exitcode=self.exitcode)
        return locate(again, worker_id=self.shard, env_ids=self.env_ids)


def death_of(
    status: ShardStatus, place: str, text: str, event: Lost | None = None, commands: Sequence[Command] = ()
) -> WorkerDiedError:
    """Return the error of a shard; it names the command that the shard has run, if there was only one.

    Args:
        status: of the shard.
        place: where the shard ran, from `Carrier.describe`.
        text: the failure in words, such as "was killed by the caller".
        event: its loss; None: it was not lost by itself.
        commands: those that it may have run.
    """
    exitcode = None if event is None else event.exitcode
    env_ids, op = status.env_ids, None
    if len(commands) == 1:
        env_ids, op = [commands[0].env_id], Op(commands[0].op).name.lower()
        text = f"{text}; it was in a {op} of env {env_ids[0]}"
    error = WorkerDiedError(f"{status.name} {text} ({place})", exitcode=exitcode)
    error.__cause__ = None if event is None else event.cause
    return locate(error, worker_id=status.shard, env_ids=env_ids, op=op)
