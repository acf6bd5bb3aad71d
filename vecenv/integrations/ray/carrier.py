"""RayCarrier: each shard is an actor of Ray; requests are calls of its methods, and Ray's errors become events.

    start     a new actor -> its process and versions -> its first frame
    ask       a call; a reply of up to 8 MiB returns as several small values, which Ray sends in its messages
    kill      `ray.kill`, and a task on the node of the actor that kills a process which `ray.kill` cannot reach

Ray restarts no actors and repeats no calls: a restarted actor would have lost its envs, and a repeated step would be a
second step. The engine replaces actors, and the links number requests.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...core.host.replay import Snapshotter
from ...core.layout import messages
from ...core.operations.engine import ResumeLike
from ...core.options import PoolOptions, check_env_fns
from ...core.shards.carrier import CarrierEvent, Lost, Replied, ShardPlace, Unavailable
from ...core.shards.frames import FrameKind, count_pieces, join, pack_bare
from ...core.shards.shard import Shard
from ...core.shards.sharded_engine import ShardedEngine
from ...core.system.clock import NEVER_NS, Deadline, now_ns
from ...errors import ConfigError
from ...ray_options import RayOptions
from .actor import Place, kill_process, make_actor_class, to_pieces, versions
from .placement import Placement

__all__ = ["RayCarrier", "make_ray_engine"]

#: Longest wait before `interrupt` is noticed.
_SLICE_NS = 50_000_000
#: Seconds within which the values of a call that has returned must have arrived from their node.
_GET_SECONDS = 10.0
#: Pause before an actor that could not be reached is asked for its first frame again.
_RETRY_NS = 500_000_000
#: Seconds that `close` waits for the end of actors, and of processes that `ray.kill` cannot reach.
_CLOSE_SECONDS = 5.0


class _Actor:
    """One actor of a shard, from its start until it is killed.

    Attributes:
        boot: pieces of the boot, until the first frame has arrived.
        place: None until the actor has a process.
        retry_at_ns: when to ask for its process or first frame again.
        is_lost: whether `Lost` was reported.
    """

    def __init__(self, shard: int, handle: Any, boot: Sequence[Any]) -> None:
        self.shard = shard
        self.handle = handle
        self.boot: Sequence[Any] | None = boot
        self.place: Place | None = None
        self.retry_at_ns = NEVER_NS
        self.is_lost = False


class _Sent(NamedTuple):
    """A call that has not returned: its actor, the number of the request, and the references of its values.

    The number is None for the process of the actor, and 0 for its first frame.
    """

    actor: _Actor
    seq: int | None
    refs: list[Any]


class RayCarrier:
    """Shards as actors of Ray; see `carrier.Carrier` for the methods.

    `make_shard` makes a shard from its boot, in the actor; it must pickle by name.
    """

    def __init__(self, placement: Placement, make_shard: Callable[[bytes], Any] = Shard.in_own_process) -> None:
        import ray

        self._ray = ray
        self._owner_pid = os.getpid()
        self._job = ray.get_runtime_context().get_job_id()
        self.placement = placement
        self._make_shard = pickle.dumps(make_shard)
        self._actor_class = ray.remote(make_actor_class())
        self._kill_process = ray.remote(kill_process)
        self._actors: dict[int, _Actor] = {}
        self._sent: dict[Any, _Sent] = {}  # calls by the reference of the first value
        self._fences: list[Any] = []  # references of tasks that kill processes
        self._events: list[CarrierEvent] = []
        self._is_interrupted = False
        self._is_closed = False
        self._warned: set[str] = set()

    @property
    def _is_connected(self) -> bool:
        """Whether Ray is still the one that the actors live in. Its functions start a new one otherwise."""
        return bool(self._ray.is_initialized()) and self._ray.get_runtime_context().get_job_id() == self._job

    # ---- start -----------------------------------------------------------------------------

    def start(self, shard: int, boot: bytes) -> None:
        """Make an actor, which waits for its bundle, and ask it for its process."""
        if not self._is_connected:
            raise ConfigError("backend='ray': Ray was shut down, and the shards ended with it; close the envs")
        options = self.placement.actor_options(shard)
        actor_class = self._actor_class.options(max_restarts=0, max_task_retries=0, max_concurrency=1, **options)
        actor = _Actor(shard, actor_class.remote(self._make_shard), to_pieces(boot, count_pieces(len(boot))))
        self._actors[shard] = actor
        self._ask_to_open(actor)

    def _ask_to_open(self, actor: _Actor) -> None:
        """Ask for the process of an actor, or, if that is known, for its first frame."""
        actor.retry_at_ns = NEVER_NS
        if actor.place is None:
            self._note_sent(actor, None, [actor.handle.locate.remote()])
        elif actor.boot is not None:
            self._note_sent(actor, 0, [actor.handle.open.remote(*actor.boot)])

    def _note_sent(self, actor: _Actor, seq: int | None, refs: list[Any]) -> None:
        self._sent[refs[0]] = _Sent(actor, seq, refs)

    def _note_place(self, actor: _Actor, place: Place) -> None:
        """Ask for the first frame, unless the node has another vecenv."""
        actor.place = place
        ours = versions()
        differing = [name for name, version in ours.items() if place.versions.get(name) != version]
        text = ", ".join(f"{name} {place.versions.get(name)} there and {ours[name]} here" for name in differing)
        if "vecenv" in differing:
            if place.problem:
                release = f"vecenv {place.versions['vecenv']}, which fails" if place.versions else "no vecenv"
                text = f"{release} ({place.problem}), and here is vecenv {ours['vecenv']}"
            error = ConfigError(
                f"{self.describe(actor.shard)} has {text}; install the same release there, or ship it by runtime_env"
            )
            attachment = pickle.dumps(messages.pack_error(error))
            self._events.append(Replied(actor.shard, pack_bare(0, FrameKind.FAILED, attachment)))
            return
        self._ask_to_open(actor)
        if differing and text not in self._warned:
            self._warned.add(text)
            warnings.warn(
                f"{self.describe(actor.shard)} has {text}; results may differ from node to node",
                RuntimeWarning,
                stacklevel=2,
            )

    # ---- requests --------------------------------------------------------------------------

    def share(self, data: bytes) -> Any:
        """Put a value into the store of Ray, once for all shards; return its reference."""
        return self._ray.put(np.frombuffer(data, np.uint8))

    def ask(self, shard: int, seq: int, request: bytes, most_nbytes: int, shared: Sequence[Any] = ()) -> None:
        actor = self._actors.get(shard)
        if actor is None or actor.is_lost or not self._is_connected:
            return  # `wait` has reported that, or will do so
        num_pieces = count_pieces(most_nbytes)
        pieces = to_pieces(request, count_pieces(len(request)))
        refs = actor.handle.execute.options(num_returns=num_pieces).remote(num_pieces, len(shared), *shared, *pieces)
        self._note_sent(actor, seq, [refs] if num_pieces == 1 else refs)

    def wait(self, deadline_ns: int, count: int = 1) -> list[CarrierEvent]:
        while True:
            now = now_ns()
            if not self._is_connected:
                for actor in self._actors.values():
                    self._lose(actor, "Ray was shut down")
            for actor in self._actors.values():
                if now >= actor.retry_at_ns:
                    self._ask_to_open(actor)
            self._receive(0 if self._events else min(deadline_ns - now, _SLICE_NS), count)
            if self._events or self._is_interrupted or now_ns() >= deadline_ns:
                self._is_interrupted = False
                events, self._events = self._events, []
                return events

    def _receive(self, longest_ns: int, count: int) -> None:
        """Wait for `count` calls to return, and append the events of all calls that have returned."""
        seconds = max(longest_ns, 0) / 1e9
        if not self._sent:
            time.sleep(seconds)
            return
        num_returns = max(1, min(count, len(self._sent)))
        ready, others = self._ray.wait(list(self._sent), num_returns=num_returns, timeout=seconds)
        if ready and others:
            ready += self._ray.wait(others, num_returns=len(others), timeout=0)[0]
        for ref in ready:
            sent = self._sent.get(ref)
            if sent is not None:  # The actor may have been lost.
                self._finish(sent)
                self._sent.pop(ref, None)

    def _finish(self, sent: _Sent) -> None:
        actor = sent.actor
        errors = self._ray.exceptions
        try:
            values = self._ray.get(sent.refs, timeout=_GET_SECONDS)
        except (
            errors.ActorUnavailableError,
            errors.GetTimeoutError,
            errors.ObjectLostError,
            errors.ObjectStoreFullError,
            errors.OutOfDiskError,
            errors.RpcError,
        ) as error:
            if sent.seq:
                self._events.append(Unavailable(actor.shard, sent.seq, _describe(error)))
            else:
                actor.retry_at_ns = now_ns() + _RETRY_NS
            return
        except errors.RayError as error:
            self._lose(actor, _describe(error), error.with_traceback(None))  # Its frames would keep the references.
            return
        if sent.seq is None:
            pid, node_id, node_ip, *others = values[0]
            self._note_place(actor, Place(ShardPlace(pid, node_id, node_ip), *others))
            return
        if sent.seq == 0:
            actor.boot = None
        self._events.append(Replied(actor.shard, memoryview(join(values))))

    def _lose(self, actor: _Actor, text: str, cause: Exception | None = None) -> None:
        """Report the loss of an actor, once."""
        if not actor.is_lost:
            actor.is_lost = True
            self._events.append(Lost(actor.shard, text, cause))
        self._forget_calls(actor)

    def _forget_calls(self, actor: _Actor) -> None:
        actor.retry_at_ns = NEVER_NS
        self._sent = {ref: sent for ref, sent in self._sent.items() if sent.actor is not actor}

    def interrupt(self) -> None:
        self._is_interrupted = True

    # ---- places ----------------------------------------------------------------------------

    def place_of(self, shard: int) -> ShardPlace | None:
        actor = self._actors.get(shard)
        return None if actor is None or actor.place is None else actor.place.process

    def waiting_for(self, shard: int) -> str:
        """Return the resources that the bundle of a shard needs and those of the nodes; '' once it has a process."""
        actor = self._actors.get(shard)
        if actor is None or actor.place is not None or not self._is_connected:
            return ""
        return self.placement.describe_missing(shard)

    def describe(self, shard: int) -> str:
        place = self.place_of(shard)
        if place is None:
            return "an actor without a process"
        return f"node {place.node}, process {place.pid}"

    # ---- end -------------------------------------------------------------------------------

    def kill(self, shard: int) -> None:
        """Kill the actor, and its process in any case."""
        actor = self._actors.pop(shard, None)
        if actor is None:
            return
        self._forget_calls(actor)
        self._events = [event for event in self._events if event.shard != shard]
        if self._is_connected:
            self._ray.kill(actor.handle, no_restart=True)
            self._fence(actor)

    def _fence(self, actor: _Actor) -> None:
        """Start a task on the node of an actor that kills its process; it fails at once if the node is dead."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        place = actor.place
        if place is None or place.problem:
            return
        self._fences = self._ray.wait(self._fences, num_returns=len(self._fences), timeout=0)[1] if self._fences else []
        task = self._kill_process.options(
            num_cpus=0,
            max_retries=0,
            runtime_env=self.placement.runtime_env,
            scheduling_strategy=NodeAffinitySchedulingStrategy(place.process.node_id, soft=False),
        )
        self._fences.append(task.remote(place.process.pid, place.started))

    def close(self) -> None:
        """Kill all actors, and remove the placement group unless it is one of the program."""
        if self._is_closed or os.getpid() != self._owner_pid:
            return
        self._is_closed = True
        actors, self._actors = list(self._actors.values()), {}
        busy = {sent.actor for sent in self._sent.values()}
        self._sent.clear()
        self._events.clear()
        if not self._is_connected:
            return
        deadline = Deadline(_CLOSE_SECONDS)
        for actor in actors:
            self._ray.kill(actor.handle, no_restart=True)
            if actor in busy:  # stopped, perhaps
                self._fence(actor)
        self.placement.remove()
        ends = [actor.handle.locate.remote() for actor in actors]  # fails once the actor is dead
        pending = [*ends, *self._fences]
        self._fences = []
        if pending:
            self._ray.wait(pending, num_returns=len(pending), timeout=deadline.seconds_left(), fetch_local=False)

    end_if_unclosed = close


def make_ray_engine(
    env_fns: Sequence[Callable[[], Any]],
    options: PoolOptions,
    ray: RayOptions,
    *,
    adapt: Callable[[Any], Any] | None,
    snapshotter: Snapshotter,
    resume: ResumeLike | None = None,
) -> ShardedEngine:
    """Make an engine whose shards are actors of Ray. Nothing is started, and no resources are reserved.

    Args:
        env_fns, options, adapt, snapshotter, resume: as for `ShardedEngine`, but `num_workers` is None.

    Raises:
        DependencyError: Ray is not installed.
        ConfigError: an argument is wrong, Ray is not initialised, or the cluster lacks resources.
    """
    fns = check_env_fns(env_fns)
    if options.num_workers is not None:
        raise ConfigError(
            "num_workers: with backend='ray' each shard has `cpus_per_shard` workers; set that, as in "
            "RayOptions(cpus_per_shard=...)",
            key="num_workers",
        )
    placement = Placement(ray, len(fns))
    return ShardedEngine(
        fns,
        dataclasses.replace(options, num_workers=placement.cpus_per_shard),
        num_cpus=None if ray.num_workers is None else placement.cpus_per_shard,
        carrier=RayCarrier(placement),
        num_shards=placement.num_shards,
        adapt=adapt,
        snapshotter=snapshotter,
        resume=resume,
        shard_timeout=ray.shard_timeout,
        replace_timeout=ray.replace_timeout,
    )


def _describe(error: Exception) -> str:
    """Return an error of Ray in one line: its last one; if memory was short, the first one, which names the node."""
    import ray

    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    number = 0 if isinstance(error, ray.exceptions.OutOfMemoryError) else -1
    reason = lines[number].partition(" Some common causes include:")[0] if lines else "no reason given"
    return f"{type(error).__name__}: {reason}"
