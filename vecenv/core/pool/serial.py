"""SerialPool: the waist without processes. Envs run in the caller's thread when it receives.

Rows, specs, hosts and autoresets are those of `ProcessPool`; only the doorbell is missing. An
env that hangs is interrupted by a timer in the main thread; elsewhere, and for crashes of the
process, there is no help here.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Sequence
from typing import Any

from ...errors import SpaceError
from ..host.global_rngs import GlobalRngs
from ..host.host import Host, close_all
from ..layout.messages import Payload, copy_answer, copy_letter
from ..layout.native import implementation
from ..layout.rows import Op
from ..layout.spec import Array
from ..parent.hub import Hub, NativeHub, Refusal
from ..processes.worker_main import Attach, build_env, find_difference, make_slot, properties_of
from ..system.clock import now_ns
from ..system.segment import private_segment
from .pool import Pool

__all__ = ["SerialPool"]

#: What a timer is set to that is over: 0 would be none.
_AT_ONCE_SECONDS = 1e-6


class LocalMail:
    """Payloads and mail within one process instead of rings, which would have to wait.

    A payload is found by the step_id of its command: one that an interrupt has left unread is not the next one's.
    """

    def __init__(self) -> None:
        self.up: list[Any] = []
        self.down: dict[int, Any] = {}


class _LocalSlot:
    """A native slot whose mail stays in this process."""

    def __init__(self, slot: Any, hub: NativeHub, box: LocalMail) -> None:
        self.serve, self.publish, self.finish = slot.serve, slot.publish, slot.finish
        self.host, self.set_seed, self.action = slot.host, slot.set_seed, slot.action
        self.watch, self.count_step = slot.watch, slot.count_step
        self.send_message = box.up.append
        self.take_payload = lambda: box.down.pop(hub.pending(0)[2])


class _LocalHub(NativeHub):
    """The parent's end for the one slot of this process."""

    def __init__(self, box: LocalMail, *args: Any) -> None:
        super().__init__(*args)
        self._box = box

    def command(
        self, op: Op, env_ids: Array, seeds: Array, flags: Array, payloads: Sequence[Any], ordered: bool
    ) -> int | Refusal:
        """Queue one operation per env; return the step_id of the first, they count up."""
        under_way, _, first = self.pending(0)
        down = self._box.down
        for step_id in [one for one in down if under_way == Op.NONE or one < first]:
            del down[step_id]
        result = super().command(op, env_ids, seeds, flags, [None] * len(payloads), ordered)
        if isinstance(result, int):
            down.update((result + i, payload) for i, payload in enumerate(payloads) if payload is not None)
        return result

    def take_messages(self, slot: int) -> list[Any]:
        """Return the messages that have arrived."""
        messages = list(self._box.up)
        self._box.up.clear()
        return messages


class SerialPool(Pool):
    """All envs in this process; for debugging, for envs that step in no time, and as a reference."""

    _works_here = True
    _host: Host | None = None
    _envs: dict[int, Any] | None = None
    _rngs: GlobalRngs | None = None
    _event_fd = -1
    _epoll: select.epoll | None = None

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Empty: there are no workers."""
        return ()

    def _start(self) -> None:
        self._envs = {}
        self._rngs = GlobalRngs()
        with self._rngs:  # so that the caller's global generators are never touched
            for env_id, env_fn in enumerate(self.env_fns):
                self._check_not_closing("start")
                self._envs[env_id] = build_env(env_fn, self._adapt, self._rngs.of(env_id))
        first = self._envs[0]
        self._adopt_spaces(first.observation_space, first.action_space, getattr(first, "reward_space", None))
        check_same_spaces(self._envs)
        self.properties = properties_of(first)
        self._plan = self._make_plan(num_slots=1, envs_per_slot=self.num_envs)
        memory = self._memory = private_segment(self._plan.nbytes)
        self._plan.write_header(memory)
        attach = Attach(self._plan, [(0, list(self._envs))], self.options.autoreset, 0, self.options.infos)
        self.implementation = implementation()
        self._hub, slot = self._make_ends(attach, memory)
        options = self.options
        self._host = Host(
            *(slot, self._envs, self._plan, options.autoreset, self._rngs, options.infos),
            is_callers=True,
            dump_reply=copy_answer,
        )

    def _dump_payload(self, payload: Payload) -> Payload:
        return copy_letter(payload)

    def _make_ends(self, attach: Attach, memory: Any) -> tuple[Hub, Any]:
        slots = [0] * self.num_envs
        if self.implementation == "native":
            self._event_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._epoll = select.epoll()
            self._epoll.register(self._event_fd, select.EPOLLIN | select.EPOLLET)
            box = LocalMail()
            hub = _LocalHub(box, self._plan, memory, slots, self._event_fd, self._epoll.fileno(), 0)
            return hub, _LocalSlot(make_slot(attach, 0, memory, self._event_fd, False), hub, box)
        from ..fallback.local import make_local_pair

        return make_local_pair(attach, memory, slots)

    def _work(self) -> None:
        assert self._host is not None and self._rngs is not None
        try:
            with self._rngs:
                self._serve()
            self._check_not_closing("recv")
        except KeyboardInterrupt:
            env_id, self._host.interrupted = self._host.interrupted, None
            if env_id is not None:  # its answer will not come
                self._hub.cancel(env_id)
            raise

    def _serve(self) -> None:
        assert self._host is not None
        can_interrupt = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
        if not self.options.limits.has_any() or not can_interrupt:
            self._host.serve()
            return
        began_ns = now_ns()
        seconds, interval = signal.setitimer(signal.ITIMER_REAL, 0)  # the program's own, which waits for us
        handler = signal.signal(signal.SIGALRM, self._interrupt_env)
        try:
            self._serve_with_timer()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            if seconds:
                left = seconds - (now_ns() - began_ns) / 1e9
                signal.setitimer(signal.ITIMER_REAL, max(left, _AT_ONCE_SECONDS), interval)

    def _serve_with_timer(self) -> None:
        """Serve with the timer set to the shortest limit; its handler looks who is over."""
        assert self._host is not None
        limits = self.options.limits
        shortest = min(limit for limit in (limits.step, limits.reset, limits.call) if limit is not None)
        signal.setitimer(signal.ITIMER_REAL, shortest, shortest / 4)
        self._host.serve()

    def _interrupt_env(self, signum: int, frame: Any) -> None:
        self._watchdog.check()

    def _hear(self, descriptor: int) -> None:
        """Nothing but our own bell can ring."""

    def _check_alive(self) -> None:
        """Envs live as long as this process."""

    def _has_dead(self) -> bool:
        return False

    def _interrupt(self) -> None:
        """Envs run in the thread that receives: it ends after the command under way."""
        host, hub = self._host, self.__dict__.get("_hub")
        if host is not None and hub is not None:
            host.is_ending = True
            hub.stop()

    def describe_worker(self, slot: int) -> str:
        return "this process"

    def worker_of(self, slot: int) -> int | None:
        return None

    def _shut_down(self) -> None:
        try:
            with self._rngs or GlobalRngs():
                if self._host is not None:
                    self._host.close()
                else:
                    close_all(env.close for env in (self._envs or {}).values())
        finally:
            if self._epoll is not None:
                self._epoll.close()
                os.close(self._event_fd)
            self._host = self._envs = self._epoll = None
            self._forget()


def check_same_spaces(envs: dict[int, Any]) -> None:
    """Raise SpaceError for the first env whose spaces differ from env 0's."""
    for env_id, env in envs.items():
        found = find_difference(envs[0], env, 0)
        if found is not None:
            name, text = found
            raise SpaceError(f"env {env_id}: {text}", path=name)
