"""Sending: operations of envs on their way to the hub, checked, given payloads, and noted in the journal."""

from __future__ import annotations

import operator
import secrets
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from ...errors import ConfigError, SpaceError, StateError
from ..layout import messages
from ..layout.messages import Payload
from ..layout.rows import CommandFlag, Form, Op
from ..layout.spec import Array, split_batch
from ..parent.hub import Refusal
from ..system.signals import signals_deferred
from .engine import Waist
from .lifecycle import this_process

__all__ = ["SendingPool", "check_count"]


class SendingPool(Waist):
    """The half of a pool that asks; see `pool.Pool`."""

    def send(
        self,
        actions: Any,
        env_ids: Sequence[int] | Array | None = None,
        *,
        ordered: bool = True,
        form: Form = Form.NATIVE,
    ) -> None:
        """Step envs; each owes one row.

        Args:
            actions: nested like the action space, one row per env asked, in request order.
            env_ids: distinct ids; None for all.
            ordered: rows will stand in request order, as one batch; nothing else may be
                outstanding. False: rows come in the order that envs finish.
            form: what an action of shape () becomes in the env.

        Raises:
            SpaceError: the actions do not fit the space; nothing was sent.
            StateError: an env owes an answer already.
        """
        if self._busy or not self._lock.acquire(False):
            self._explain("send")
        try:
            self._busy = True
            if self._open_in is not this_process[0]:
                self._explain("send")
            self._ask_steps(actions, env_ids, ordered, form)
        finally:
            self._busy = False
            if self._must_close:
                self._leave()
            else:
                self._lock.release()

    def _ask_steps(self, actions: Any, env_ids: Sequence[int] | Array | None, ordered: bool, form: Form) -> None:
        """As `send`, inside the guard."""
        if self._recycler is not None:
            self._recycle()
        ids: Array | None = None
        if (
            env_ids is None
            and type(actions) is np.ndarray
            and actions.dtype == self._plain_dtype
            and actions.shape == self._plain_shape
            and actions.flags.c_contiguous
        ):  # what collectors send, without a second look
            leaves: tuple[Array, ...] = (actions,)
        else:
            ids = self._check_ids(env_ids)
            if self.action_spec.num_objects:
                self._send_letters(actions, self._ids if ids is None else ids, ordered)
                return
            leaves = self.action_spec.flatten_batch(actions, self.num_envs if ids is None else len(ids))
        try:
            refusal = self._hub.send(leaves, ids, ordered, form)
            if refusal is None and self._journal is not None:
                self._journal.note_steps(leaves, ids, form)
        except BaseException:  # also what a signal's handler raises when all has been sent
            if self._journal is not None:
                first = 0 if ids is None else int(ids[0]) % self.num_envs
                self._journal.note_interrupted(self._hub.owed(first)[1], leaves, ids, form)
            raise
        if refusal is not None:
            self._refuse("send", Refusal(*refusal))

    def send_objects(self, actions: Sequence[Any], env_ids: Sequence[int] | Array, *, ordered: bool = True) -> None:
        """Step envs with these very objects as actions; they travel pickled."""
        self._enter("send")
        try:
            self._begin("send")
            if self._recycler is not None:
                self._recycle()
            ids = self._check_ids(env_ids)
            self._send_each(actions, self._ids if ids is None else ids, ordered)
        finally:
            self._busy = False
            self._leave()

    def _send_letters(self, actions: Any, ids: Array, ordered: bool) -> None:
        self._send_each(split_batch(self.action_space, actions, len(ids)), ids, ordered)

    def _send_each(self, actions: Sequence[Any], ids: Array, ordered: bool) -> None:
        if len(actions) != len(ids):
            raise SpaceError(f"actions: expected {len(ids)}, one per env, got {len(actions)}", path="actions")
        payloads = [self._dump_payload(Payload(action=action)) for action in actions]
        self._steps_by_letter = True
        with signals_deferred():
            self._command("send", Op.STEP, ids, np.zeros(len(ids), np.int64), 0, payloads, ordered)

    def _dump_payload(self, payload: Payload) -> Any:
        """Return a payload in the form that the envs' end loads: its pickle, or the payload itself in this process."""
        return messages.dump(payload)

    def reset(
        self,
        env_ids: Sequence[int] | Array | None = None,
        *,
        seeds: Sequence[int | None] | None = None,
        kwargs: Sequence[dict[str, Any] | None] | None = None,
        ordered: bool = True,
        draw_seeds: bool = True,
    ) -> None:
        """Reset envs; each owes its first observation, in a row flagged RESET.

        A step of the same env that is still out is superseded: its answer is dropped.

        Args:
            env_ids: distinct ids; None for all.
            seeds: one per env asked, None for unseeded; then the seed of a reset that was cancelled, which the env
                may never have got, is used again.
            kwargs: further arguments of each env's `reset`, such as `{'options': ...}`.
            ordered: as for `send`.
            draw_seeds: give an env that is reset for the first time a seed if it has none, so
                that what follows can be repeated; only where workers are replaced.

        Raises:
            ConfigError: there is no such env, or there are not as many seeds or kwargs as envs asked.
            TypeError: a seed is no whole number.
            StateError: an env owes the answer to a reset already.
        """
        self._enter("reset")
        try:
            self._begin("reset")
            if self._recycler is not None:
                self._recycle()
            chosen = self._check_ids(env_ids)
            ids = self._ids if chosen is None else chosen
            superseded = self._owed_by(ids)
            check_count("reset", "seeds", seeds, len(ids))
            check_count("reset", "kwargs", kwargs, len(ids))
            if seeds is not None:
                seeds = [None if seed is None else operator.index(seed) for seed in seeds]
            if draw_seeds:
                seeds = self._draw_seeds(ids, seeds, kwargs)
            numbers = np.zeros(len(ids), np.int64)
            flags = np.zeros(len(ids), np.uint8)
            payloads: list[Any] = [None] * len(ids)
            seeded = [False] * len(ids)
            asked: list[Any] = []
            for i in range(len(ids)):
                seed = None if seeds is None else seeds[i]
                extra = {} if kwargs is None else dict(kwargs[i] or {})
                if seed is None and (not extra or (seeds is not None and "seed" not in extra)):
                    seed = self._lost_seeds.get(int(ids[i]))
                if isinstance(seed, int) and 0 <= seed < 2**63:
                    numbers[i], flags[i] = seed, CommandFlag.SEED
                elif seed is not None:
                    extra["seed"] = seed
                if self._journal is not None and (superseded or self._journal.has_cancelled(int(ids[i]))):
                    flags[i] |= CommandFlag.SNAPSHOT
                if extra:
                    payloads[i] = self._dump_payload(Payload(kwargs=extra))
                    seed = extra.get("seed", seed)
                seeded[i] = seed is not None
                asked.append(seed)
            with signals_deferred():
                self._command("reset", Op.RESET, ids, numbers, flags, payloads, ordered, seeded=seeded)
                self._unseeded[ids] = False
                self._takes_seeds[ids] |= seeded
                for env_id, seed in zip(ids.tolist(), asked):
                    self._lost_seeds.pop(env_id, None)
                    self._asked_seeds[env_id] = seed
                for step_id in superseded:
                    self._inbox.forget(step_id)
        finally:
            self._busy = False
            self._leave()

    def _draw_seeds(self, ids: Array, seeds: Any, kwargs: Any) -> Any:
        """Give the first reset of an env a seed of ours where it has none: then it can be repeated."""
        if self._journal is None or not self._unseeded[ids % self.num_envs].any():
            return seeds
        drawn = [None] * len(ids) if seeds is None else list(seeds)
        for i, env_id in enumerate((ids % self.num_envs).tolist()):
            has_own = drawn[i] is not None or (kwargs is not None and "seed" in (kwargs[i] or {}))
            if self._unseeded[env_id] and not has_own:
                drawn[i] = secrets.randbits(31)
        return drawn

    def _owed_by(self, ids: Array) -> list[int]:
        """Return the step_ids that these envs owe; ids out of range are refused later."""
        if not self._hub.outstanding():
            return []
        return [self._hub.owed(i)[1] for i in ids.tolist() if 0 <= i < self.num_envs and self._hub.owed(i)[1]]

    def _command(
        self,
        what: str,
        op: Op,
        ids: Array,
        numbers: Array,
        flags: Array | int,
        payloads: Sequence[bytes | None],
        ordered: bool,
        *,
        seeded: Sequence[bool] = (),
        names: Sequence[str | None] = (),
    ) -> int:
        """Called with handlers of signals held: who has been told is to get the payload, too, and it is noted."""
        bits = flags if isinstance(flags, np.ndarray) else np.full(len(ids), flags, np.uint8)
        bits = bits | np.array([CommandFlag.PAYLOAD if payload else 0 for payload in payloads], np.uint8)
        result = self._hub.command(op, ids, numbers, bits, payloads, ordered)
        if isinstance(result, Refusal):
            self._refuse(what, result)
        self._attention = self._attention or any(payloads)
        if op == Op.CALL:  # before anything below takes in mail: the answer may be there already
            self._inbox.register_calls(range(result, result + len(ids)), ids.tolist(), payloads)
        if self._journal is not None:
            count = len(ids)
            self._journal.note_commands(
                op,
                result,
                ids.tolist(),
                numbers.tolist(),
                bits.tolist(),
                payloads,
                names or [None] * count,
                seeded or [False] * count,
            )
        return result

    def _refuse(self, what: str, refusal: Refusal) -> NoReturn:
        env_id = refusal.env_id
        if refusal.reason == "bad_env":
            raise ConfigError(f"{what}: env_id {env_id} is not in 0..{self.num_envs - 1}")
        if refusal.reason == "busy":
            op = Op(self._hub.owed(env_id)[0])
            if op == Op.NONE and what == "call":
                raise StateError(f"{what}: too many calls of env {env_id} are waiting; wait for their answers first")
            if op == Op.NONE:
                raise StateError(f"{what}: env {env_id} was named twice")
            remedy = "receive it first" if what == "reset" else "receive it first, or reset the env"
            raise StateError(f"{what}: env {env_id} still owes the answer to a {op.name.lower()}; {remedy}")
        if refusal.reason == "mixed":
            raise StateError(
                f"{what}: {self._hub.outstanding()} envs still owe answers, and an ordered request must have the pool "
                "to itself; receive them first, or send with ordered=False"
            )
        if refusal.reason == "no_room":
            raise StateError(
                f"{what}: the queue of env {env_id}'s worker is full of commands that were cancelled, and it does not "
                "drop them; restart it"
            )
        raise StateError(f"{what}: late writers hold all blocks of the ring; restart the workers that do not answer")

    def _check_ids(self, env_ids: Sequence[int] | Array | None) -> Array | None:
        if env_ids is None:
            return None
        ids = np.ascontiguousarray(env_ids)
        if ids.ndim != 1 or not len(ids) or (ids.dtype != np.int64 and ids.dtype.kind not in "iu"):
            raise ConfigError(f"env_ids: expected a non-empty list of integers, got {env_ids!r}")
        return ids if ids.dtype == np.int64 else ids.astype(np.int64)


def check_count(what: str, name: str, values: Sequence[Any] | None, count: int) -> None:
    """Raise ConfigError unless there is one value per env asked."""
    if values is not None and len(values) != count:
        raise ConfigError(f"{what}: {name}: expected {count}, one per env asked, got {len(values)}", key=name)
