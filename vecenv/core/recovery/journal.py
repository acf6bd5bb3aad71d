"""Record the commands of each env since the newest point from which it can be restored.

The journal is in the parent, outside the workers, so that it survives them:

    steps                  pages of actions (`action_pages`), one row per step
    resets                 one entry each, in the list of its env
    calls                  for the life of the env, or until they are known to have no effect (`lasting_calls`)
    restore points         per env: a seeded reset, or a snapshot of its state, mostly between episodes
                           (`restore_points`)

Recording a request of steps takes one copy per action leaf, for any number of envs. `Hub.send` records most requests
to all envs itself, in the open page; no signal handler can come between the two. The journal records the others, such
as the first step after a seeded reset, which confirms a restore point. Pages that precede the restore points of all
envs are dropped. After a crash, the rows of one env are gathered from the remaining pages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from ...own_log import own_logger
from ..layout.commands import (
    GIVEN_STATE,
    Command,
    Commands,
    Effect,
    Entry,
    History,
    LastingCall,
    RestorePlan,
    RestorePoint,
)
from ..layout.flags import FORM_MASK, CommandFlag, Op
from ..layout.lasting_calls import LastingCalls
from ..layout.spec import Array
from .action_pages import Page
from .restore_points import RestorePoints

__all__ = ["Journal", "has_reset"]

#: Number of new pages, and of requests of other kinds, between two checks for data that can be dropped.
_PRUNE_EVERY = 8
#: Approximate bytes of actions in a page, and the least number of pages that fit into the journal.
_PAGE_NBYTES, _LEAST_PAGES = 1 << 16, 16
#: Least number of requests to all envs in a page, if there is room: a new page takes longer than recording one.
_LEAST_REQUESTS = 32
#: Size of an entry beside its payload, as `sys.getsizeof` adds it up.
_ENTRY_NBYTES = 200
#: Part of `max_nbytes` that is left after data had to be dropped. Each time, every row must be read.
_TARGET_FILL = 0.75
_NEVER = np.iinfo(np.int64).max
_LOG = own_logger()
_GIVEN_UP = (
    "env %d: its %d oldest calls are no longer kept, because all calls exceed half of max_log_bytes. After a crash, "
    "its rows are marked 'unproven' unless a snapshot contains all of its state. Pass pure=True for calls that change "
    "nothing, or raise max_log_bytes"
)


class Journal:
    """The journal of one pool.

    Args:
        num_envs: number of envs.
        max_nbytes: most bytes to keep. Beyond that, the envs with the longest histories lose theirs, and cannot be
            restored until they have a new restore point.
        gather_restore_points: called before old entries are dropped: unread messages may contain newer restore points.

    Attributes:
        was_reset: by env: whether a reset was ever sent to it.
        calls: those that may have changed envs.
    """

    def __init__(self, num_envs: int, max_nbytes: int, gather_restore_points: Callable[[], None] | None = None) -> None:
        self._num_envs = num_envs
        self._max_nbytes = max_nbytes
        self._most_page_nbytes = max_nbytes // _LEAST_PAGES
        self._pages: deque[Page] = deque()
        self._open_page: Page | None = None  # last page of requests to all envs
        self._open_mixed_page: Page | None = None  # the same for requests to some envs
        self._rare_entries: list[list[Entry]] = [[] for _ in range(num_envs)]  # resets, and steps with a payload
        self.calls = LastingCalls(max_nbytes)
        self._has_warned = False
        self.was_reset = [False] * num_envs
        self._points = [RestorePoints(RestorePoint(0)) for _ in range(num_envs)]
        self._state_nbytes = [0] * num_envs  # size of the states of its restore points, by env_id
        self._unconfirmed: set[int] = set()  # envs with a pending restore point
        #: first step_id still needed, as of the last drop, by env_id; _NEVER for none
        self._first_needed = np.zeros(num_envs, np.int64)
        #: step_id and payload of the last reset or step with a payload, by env_id; never dropped
        self._payloads: dict[int, tuple[int, bytes]] = {}
        self._next_step_id = 1  # at least; see `next_step_id`
        self._dropped_before = 0  # earlier commands of envs without a restore point may have been dropped
        self._free_pages: list[Page] = []  # dropped pages to reuse: new memory costs a page fault per 4 KiB
        self._until_prune = _PRUNE_EVERY
        self._is_noting = False  # still True if `note_steps` was interrupted
        self._nbytes = 0  # without calls
        self.gather_restore_points = gather_restore_points or (lambda: None)

    @property
    def nbytes(self) -> int:
        """Bytes kept now."""
        return self._nbytes + self.calls.nbytes

    @property
    def next_step_id(self) -> int:
        """The step_id of the next command."""
        page = self._open_page  # `Hub.send` may have recorded requests there
        return self._next_step_id if page is None else max(self._next_step_id, page.stop)

    # ---- writing -------------------------------------------------------------------------

    def note_steps(self, leaves: tuple[Array, ...], env_ids: Array | None, form: int) -> Page | None:
        """Record a request of steps that has just been sent, and that `Hub.send` did not record.

        Args:
            leaves: the actions, one array (n, *S) per leaf; copied.
            env_ids: int64 (n,); None for all envs.
            form: the type in which envs receive actions of shape ().

        Returns:
            A page in which `Hub.send` may record further requests with this form; None: the same as before.
        """
        self._is_noting = True
        if self._unconfirmed:
            self._confirm(env_ids)
        if env_ids is not None:
            self._note_some(leaves, env_ids, form)
            self._is_noting = False
            return None
        first = self.next_step_id
        page = self._open_page
        is_new = page is None or page.form != form or not page.has_room()
        if page is None or is_new:
            page = self._new_page(leaves, form)
        page.add(first, leaves)
        self._next_step_id = first + self._num_envs
        if is_new:
            self._set_open_page(page)
            self._add(page)
        self._is_noting = False
        page.open(page is self._open_page and not self._unconfirmed)
        return page

    def _set_open_page(self, page: Page | None) -> None:
        self._next_step_id = self.next_step_id
        if self._open_page is not None:
            self._open_page.open(False)
        self._open_page = page

    def _close_pages(self) -> None:
        """Begin a new page at the next request."""
        self._set_open_page(None)
        self._open_mixed_page = None

    def note_interrupted(self, step_id: int, leaves: tuple[Array, ...], env_ids: Array | None, form: int) -> None:
        """Record a step request, as `note_steps`, if it had been sent before a signal handler interrupted it.

        `step_id`: the last command that was sent to the request's first env.
        """
        if self._is_noting:
            self._next_step_id = step_id + (self._num_envs if env_ids is None else len(env_ids))
            self._drop_transient()
        elif step_id >= self.next_step_id:
            self.note_steps(leaves, env_ids, form)

    def _drop_transient(self) -> None:
        """Drop everything but calls and payloads, because the last record is incomplete.

        An env can be restored again as soon as it has a new restore point.
        """
        for env_id, points in enumerate(self._points):
            points.begin_at(None)
            self._update(env_id, has_dropped=False)
        self._first_needed[:] = _NEVER
        self._rare_entries = [[] for _ in range(self._num_envs)]
        self._pages.clear()
        self._dropped_before = self.next_step_id
        self._is_noting = False
        self._compact()

    def _new_page(self, leaves: tuple[Array, ...], form: int) -> Page:
        if self._free_pages and self._free_pages[-1].clear(leaves, form):
            return self._free_pages.pop()
        self._free_pages.clear()
        return Page.blank(self._num_envs, leaves, form, self._page_nbytes(leaves))

    def _page_nbytes(self, leaves: tuple[Array, ...]) -> int:
        request_nbytes = self._num_envs * sum(leaf.nbytes // len(leaf) for leaf in leaves)
        return min(max(_PAGE_NBYTES, _LEAST_REQUESTS * request_nbytes), self._most_page_nbytes)

    def _note_some(self, leaves: tuple[Array, ...], env_ids: Array, form: int) -> None:
        page = self._open_mixed_page
        first = self.next_step_id
        is_old = page is not None and page.form == form and page.add_rows(first, leaves, env_ids)
        if not is_old:
            page = self._open_mixed_page = Page.blank_rows(self._num_envs, leaves, form, self._page_nbytes(leaves))
            page.add_rows(first, leaves, env_ids)
        self._next_step_id = first + len(env_ids)
        if page is not None and not is_old:
            self._add(page)

    def _add(self, page: Page) -> None:
        self._pages.append(page)
        self._nbytes += page.nbytes
        self._until_prune -= 1
        if self._until_prune <= 0 or self._is_over(1.0):
            self._prune()

    def note_commands(self, commands: Commands) -> None:
        """Record a request of resets, calls, or steps with payloads, which the hub has numbered."""
        payloads = commands.payloads
        for step_id, env_id, op, flags, argument, effect, key, payload in commands:
            self._next_step_id = step_id + 1
            if op == Op.CALL:
                if effect != Effect.NONE:
                    num_sharing = len(payloads) if payload is payloads[0] is payloads[-1] else 1
                    is_first = not self.was_reset[env_id]
                    call = LastingCall(step_id, payload, flags, key, num_sharing=num_sharing, is_first=is_first)
                    self.calls.note(env_id, call)
                continue
            if key == GIVEN_STATE:
                self.calls.note(env_id, LastingCall(step_id, payload, name=key))
            self._confirm_one(env_id)
            self.was_reset[env_id] = True
            if payload is not None:
                self._payloads[env_id] = step_id, payload
            entry = Entry(step_id, op, flags, argument, payload)
            self._rare_entries[env_id].append(entry)
            self._nbytes += _nbytes_of(entry)
            self._points[env_id].note_reset(step_id, flags, effect == Effect.SEEDS)
            if effect == Effect.SEEDS:
                self._await_confirmation(env_id)
        self._until_prune -= 1
        if self._until_prune <= 0 or self._is_over(1.0):
            self._prune()

    def note_restore_point(self, env_id: int, point: RestorePoint, is_answered: bool) -> None:
        """Record the state that an env had before the reset of command `point.step_id`.

        `is_answered`: whether that command has been answered.
        """
        points = self._points[env_id]
        if not points.accepts(point, self._dropped_before):
            return
        if points.newest is None:  # commands from here on are needed again
            self._first_needed[env_id] = min(point.step_id, self._first_needed[env_id])
        self.was_reset[env_id] = True
        self._update(env_id, has_dropped=points.add(point, is_answered=is_answered))

    def note_cancelled(self, env_id: int, step_id: int) -> None:
        """Record that a command was cancelled: it may have been executed or not, so it cannot be a restore point."""
        self._points[env_id].note_cancelled(step_id)
        self._update(env_id, has_dropped=False)

    def has_cancelled(self, env_id: int) -> bool:
        """Return whether a command was cancelled since the env's restore point; a new restore point is then useful."""
        return bool(self._points[env_id].cancelled)

    def forget(self, env_id: int, *, keeps_calls: bool) -> None:
        """Start the journal of an env again, because it was built again.

        `keeps_calls`: whether the new env gets the calls of the old one.
        """
        self._points[env_id].begin_at(RestorePoint(self.next_step_id))
        self._update(env_id, has_dropped=True)
        if not keeps_calls:
            self.calls.forget(env_id)
        self.was_reset[env_id] = False

    def _confirm(self, env_ids: Array | None) -> None:
        for env_id in list(self._unconfirmed) if env_ids is None else self._unconfirmed.intersection(env_ids.tolist()):
            self._confirm_one(env_id)

    def _confirm_one(self, env_id: int) -> None:
        if env_id in self._unconfirmed:
            self._update(env_id, has_dropped=self._points[env_id].confirm())

    def _await_confirmation(self, env_id: int) -> None:
        """Note that the next step of an env confirms its pending restore point; so `Hub.send` must not record it."""
        self._unconfirmed.add(env_id)
        if self._open_page is not None:
            self._open_page.open(False)

    def _update(self, env_id: int, *, has_dropped: bool) -> None:
        """Follow a change of an env's restore points.

        `has_dropped`: whether earlier points were dropped. Then the commands before the others are dropped, except
        steps, whose pages are dropped later.
        """
        points = self._points[env_id]
        (self._unconfirmed.discard if points.pending is None else self._await_confirmation)(env_id)
        nbytes = points.nbytes
        self._nbytes += nbytes - self._state_nbytes[env_id]
        self._state_nbytes[env_id] = nbytes
        if not has_dropped:
            return
        first_needed = _NEVER if points.first_needed is None else points.first_needed
        self._first_needed[env_id] = first_needed
        points.forget_before(first_needed)
        rare_entries = self._rare_entries[env_id]
        if rare_entries and rare_entries[0].step_id < first_needed:
            self._rare_entries[env_id] = [entry for entry in rare_entries if entry.step_id >= first_needed]
            self._nbytes -= sum(_nbytes_of(entry) for entry in rare_entries if entry.step_id < first_needed)
        self.calls.settle(env_id, first_needed)

    # ---- continuing another journal --------------------------------------------------------

    def continue_from(self, step_id: int) -> None:
        """Number the next command as the hub does after its `continue_from`; other envs may have had higher numbers."""
        if step_id < self.next_step_id:  # the numbers of a page increase
            self._close_pages()
        self._next_step_id = step_id

    def restore(self, histories: Mapping[int, History], next_step_id: int) -> None:
        """Continue the journal of another pool; called once, before anything else is recorded.

        Args:
            histories: the result of its `history` for each env, without the commands that will be executed again.
            next_step_id: step_id of the next command.
        """
        self._next_step_id = next_step_id
        steps: dict[int, list[tuple[int, int, tuple[bytes, ...]]]] = {}  # step_id, env_id and action, by form
        for env_id, history in histories.items():
            self.calls.restore(env_id, history.lasting_calls, history.lost_calls)
            self.was_reset[env_id] = has_reset(history)
            for entry in self._restore_env(env_id, history):
                if isinstance(entry.payload, tuple):
                    steps.setdefault(entry.flags & FORM_MASK, []).append((entry.step_id, env_id, entry.payload))
        for form, actions in steps.items():
            self._add(_page_of(self._num_envs, form, sorted(actions)))

    def _restore_env(self, env_id: int, history: History) -> list[Entry]:
        """Restore the restore points of an env, and its resets; return all commands since then."""
        by_id = {entry.step_id: entry for attempt in history.attempts for entry in attempt.entries}
        entries = [by_id[step_id] for step_id in sorted(by_id)]
        rare = [_as_noted(one) for one in entries if one.op != Op.CALL and not isinstance(one.payload, tuple)]
        self._rare_entries[env_id] = rare
        self._nbytes += sum(_nbytes_of(entry) for entry in rare)
        points = [attempt.restore_point for attempt in history.attempts]
        self._points[env_id] = RestorePoints.from_history(points, entries)
        self._first_needed[env_id] = _NEVER
        self._update(env_id, has_dropped=bool(points))
        return [entry for entry in entries if entry.step_id >= self._first_needed[env_id]]

    # ---- limiting the size ---------------------------------------------------------------

    def is_half_full(self) -> bool:
        """Return whether the journal is more than half full, so that new restore points are useful."""
        return self.nbytes > self._max_nbytes // 2

    def _prune(self) -> None:
        self._until_prune = _PRUNE_EVERY
        self.gather_restore_points()
        self._drop_unreachable()
        pages = self._pages
        first_needed = int(self._first_needed.min())
        # The last page has room for the next requests, so it stays. An earlier page with room must not keep the others.
        while len(pages) > 1 and pages[0].stop <= first_needed:
            page = pages.popleft()
            if page is self._open_page:
                self._set_open_page(None)
            self._open_mixed_page = None if page is self._open_mixed_page else self._open_mixed_page
            self._nbytes -= page.nbytes
            if page.is_whole:
                self._free_pages.append(page)
        excess = self._nbytes + sum(page.nbytes for page in self._free_pages) - self._max_nbytes // 2
        while self._free_pages and excess > 0:
            excess -= self._free_pages.pop().nbytes
        if self._is_over(1.0):
            self.calls.drop_uncompared()
            self._limit_calls()
            self._compact()
            while self._is_over(_TARGET_FILL) and self._drop_oldest_restore_points():
                self._compact()
            self._limit_calls()
        self._dropped_before = max(self._dropped_before, self.next_step_id)

    def _limit_calls(self) -> None:
        env_id, count = self.calls.limit()
        if count and not self._has_warned:
            self._has_warned = True
            _LOG.warning(_GIVEN_UP, env_id, count)

    def _is_over(self, fill: float) -> bool:
        """Return whether more than this part of `max_nbytes` is used; calls count for half of it at most."""
        most = self._max_nbytes
        return self.calls.is_over() or self._nbytes + min(self.calls.nbytes, most // 2) > fill * most

    def _drop_unreachable(self) -> None:
        """Drop the commands of envs without a restore point, except those from a pending one on."""
        for env_id in np.flatnonzero(self._first_needed == _NEVER).tolist():
            if self._rare_entries[env_id] or self.calls.has_unsettled(env_id):
                self._update(env_id, has_dropped=True)

    def _compact(self) -> None:
        """Keep only the rows of pages that an env still needs."""
        self._close_pages()
        kept: deque[Page] = deque()
        while self._pages:  # each page is freed once it is copied; copying all first would need twice the memory
            page = self._pages.popleft()
            wanted = page.step_ids() >= self._first_needed[page.envs()]
            if wanted.any():
                kept.append(page.select(wanted))
        self._pages = kept
        self._nbytes = sum(page.nbytes for page in kept) + sum(self._state_nbytes)
        self._nbytes += sum(_nbytes_of(entry) for rare_entries in self._rare_entries for entry in rare_entries)

    def _drop_oldest_restore_points(self) -> bool:
        """Drop every restore point in the older half of the journal. Return False if there was none.

        If episodes do not end and all envs are in lockstep, their restore points are equally old. Then whole pages are
        dropped, and no rows are copied.
        """
        oldest = int(self._first_needed.min())
        if oldest == _NEVER:
            return False
        newest = max(oldest, self.next_step_id)  # a pool that resumes another one sends old commands again
        for env_id in np.flatnonzero(self._first_needed <= (oldest + newest) // 2).tolist():
            self._points[env_id].drop_until(int(self._first_needed[env_id]))
            self._update(env_id, has_dropped=True)
        return True

    # ---- reading -------------------------------------------------------------------------

    def num_steps(self) -> Array:
        """Return how many steps and resets of each env would be repeated, int64 (num_envs,).

        A page counts as a whole, or not at all if it begins before the restore point.
        """
        counts = np.fromiter(map(len, self._rare_entries), np.int64, self._num_envs)
        for page in self._pages:
            if page.num_rows:
                counts += page.num_steps() * (self._first_needed <= page.step_id(0))
        return counts

    def history(self, env_id: int, queued: Collection[int]) -> History:
        """Return the restore points and commands that bring an env to the state before its first queued command.

        `queued`: step_ids of the commands that will be executed again.
        """
        mine = self._points[env_id]
        mine.note_requeued(queued)
        self._update(env_id, has_dropped=False)
        points = mine.choose(queued)
        history = History([], self.calls.all_of(env_id, queued), self.calls.lost(env_id))
        oldest = min((point.step_id for point in points), default=_NEVER)
        entries = [entry for entry in self._entries(env_id, oldest) if entry.step_id not in queued]
        entries = mine.mark(entries, points)
        for point in points:
            rest = [entry for entry in entries if entry.step_id >= point.step_id]
            calls = self.calls.before(env_id, point.step_id, queued)
            history.attempts.append(RestorePlan(point, rest, calls, self.calls.doubt(env_id, point, calls)))
        return history

    def command(self, env_id: int, step_id: int) -> Command:
        """Return an unanswered step or reset of an env; such a command is never dropped."""
        (entry,) = (one for one in self._entries(env_id, step_id) if one.step_id == step_id)
        call = self.calls.find(env_id, step_id)  # a state that is put into the env lasts as a call does
        effect, key = (Effect.ONCE, None) if call is None else (Effect.SEEDS, call.name)
        return Command(step_id, env_id, entry.op, entry.flags, entry.argument, effect, key, entry.payload)

    def payload(self, env_id: int, step_id: int) -> bytes | None:
        """Return the payload of a reset or step; None if it was dropped. An env's last payload is never dropped."""
        known, payload = self._payloads.get(env_id, (0, b""))
        if known == step_id:
            return payload
        for entry in reversed(self._rare_entries[env_id]):
            if entry.step_id == step_id and isinstance(entry.payload, bytes):
                return entry.payload
        call = self.calls.find(env_id, step_id)
        return None if call is None else call.payload

    def _entries(self, env_id: int, first_needed: int) -> list[Entry]:
        """Return the commands to an env from `first_needed` on, in order."""
        found = [entry for entry in self._rare_entries[env_id] if entry.step_id >= first_needed]
        found += self.calls.since(env_id, first_needed)
        for page in self._pages:
            if page.stop > first_needed:
                for row in page.rows_of(env_id):
                    if page.step_id(row) >= first_needed:
                        found.append(Entry(page.step_id(row), int(Op.STEP), page.form, 0, page.action(row)))
        found.sort(key=lambda entry: entry.step_id)
        return found


def has_reset(history: History) -> bool:
    """Return whether a reset was ever sent to an env; True if its commands were dropped."""
    if not history.attempts or not all(call.is_first for call in history.lasting_calls):
        return True
    return any(
        attempt.restore_point.state is not None or any(entry.op == Op.RESET for entry in attempt.entries)
        for attempt in history.attempts
    )


def _as_noted(entry: Entry) -> Entry:
    """Return an entry without the flags that `Journal.history` adds."""
    return entry._replace(flags=entry.flags & ~(CommandFlag.CANCELLED | CommandFlag.NEW_DIGEST))


def _page_of(num_envs: int, form: int, steps: Sequence[tuple[int, int, tuple[bytes, ...]]]) -> Page:
    """Return a page of steps, each (step_id, env_id, bytes of each action leaf), in the order of step_ids."""
    step_ids, env_ids, actions = zip(*steps)
    leaves = tuple(np.frombuffer(b"".join(leaf), np.uint8).reshape(len(steps), len(leaf[0])) for leaf in zip(*actions))
    return Page.of(num_envs, leaves, form, np.array(env_ids, np.int64), np.array(step_ids, np.int64))


def _nbytes_of(entry: Entry) -> int:
    payload = entry.payload
    return _ENTRY_NBYTES + (len(payload) if isinstance(payload, bytes) else 0)
