"""UnansweredCommands: the commands that shards owe answers to, and how the successor of a lost shard continues them."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import WorkerError, locate
from ..layout.commands import Command
from ..layout.messages import Reply, pack_error
from ..parent.inbox import Inbox
from ..pool.requests import Requests
from ..recovery.policy import Recovery
from ..recovery.resume import Resume, make_resume
from .shard_hub import ShardHub
from .shard_status import ShardStatus

__all__ = ["UnansweredCommands"]


class UnansweredCommands:
    """The commands of one open pool that are not answered.

    Args:
        hub: has the contents of unanswered commands.
        recovery: of the pool; None: lost shards are not replaced.
        requests: which envs are called.
        inbox: the unanswered calls, and messages that have arrived.
        shards: the state of each shard.
    """

    def __init__(
        self,
        hub: ShardHub,
        recovery: Recovery | None,
        requests: Requests,
        inbox: Inbox,
        shards: Sequence[ShardStatus],
    ) -> None:
        self._hub = hub
        self._recovery = recovery
        self._requests = requests
        self._inbox = inbox
        self._shards = shards

    def has_any(self, shard: int) -> bool:
        """Return whether an env of a shard owes an answer that has not arrived, or is called."""
        calls = self._requests.calls.keys()
        return self._hub.owes(shard) or not calls.isdisjoint(self._shards[shard].env_ids)

    def suspected(self, shard: int) -> list[Command]:
        """Return the commands that a shard may have run when it was lost: the first unanswered one of each env."""
        found = list(self._hub.queued(shard, self._inbox.unanswered_calls).first_by_env().values())
        is_known = found and (found[0].env_id, found[0].step_id) in self._shards[shard].run_in_turn
        return found[:1] if is_known else found

    def resume_of(self, shard: int) -> Resume:
        """Return the state from which another process continues a shard."""
        assert self._recovery is not None
        queued, env_ids = self._hub.queued(shard, self._inbox.unanswered_calls), self._shards[shard].env_ids
        first = queued.first_by_env()
        jobs = {env_id: self._requests.new_job(env_id, first.get(env_id)) for env_id in env_ids}
        return make_resume(self._recovery, self._hub.store.records[env_ids], queued, jobs)

    def drop(self, shard: int) -> None:
        """Cancel the commands of a shard whose envs are built again; its calls are answered with an error."""
        env_ids = self._shards[shard].env_ids
        self._fail_calls(env_ids)
        self._requests.forget_envs(env_ids)

    def _fail_calls(self, env_ids: list[int]) -> None:
        """Answer the calls of envs that are built again with an error: no other answer will come."""
        inbox = self._inbox
        for env_id in env_ids:
            step_id = self._requests.calls.get(env_id)
            if step_id is not None and not inbox.has_call(step_id):
                lost = WorkerError(f"the shard of env {env_id} was restarted before a call was answered; call again")
                locate(lost, env_ids=[env_id], op="call", step_id=step_id)
                inbox.reply_to_call(Reply(step_id, env_id, error=pack_error(lost)))
        inbox.forget_calls_of(env_ids)
