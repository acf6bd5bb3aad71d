"""Inbox: rare mail on its way from the hub to the batch or call that it belongs to."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np

from ...errors import warn_caller
from ..layout import messages
from ..layout.commands import Start
from ..layout.info_cells import InfoColumns
from ..layout.messages import Answer, Outcome
from ..layout.rows import RowFlag, Rows
from ..system.signals import held
from .hub import Hub

__all__ = ["Inbox", "Listener"]


class Listener(Protocol):
    """Who wants to hear what workers say about recovery."""

    def note_state(self, env_id: int, start: Start, is_answered: bool) -> None:
        """An env was looked at before the reset of a command."""

    def note_outcome(self, env_id: int, outcome: Outcome) -> None:
        """An env was brought back, or not."""


class Inbox:
    """Keeps mail until its row or call is delivered, and forgets what nobody waits for.

    Attributes:
        infos: the cells that infos have; new ones are given here.
        num_slots: how many slots, from 0 on, may send mail.
        letters: of each call that has not been answered, by step_id, also of those given up: its env and its
            letter. Empty without a listener: nobody is told twice then.
    """

    def __init__(self, hub: Hub, num_slots: int, listener: Listener | None = None) -> None:
        self._hub = hub
        self._listener = listener
        self.num_slots = num_slots
        self._answers: dict[int, Answer] = {}
        # Answers with observations that have no column, as they came, since the caller may write into his:
        self._packed: dict[int, bytes] = {}  # of rows, by step_id
        self._shown: dict[int, bytes] = {}  # of the last row of each env that was delivered
        self._calls: range = range(0)
        self.letters: dict[int, tuple[int, bytes]] = {}
        self._untold: list[tuple[str, str]] = []
        self._warned: set[str] = set()
        self.infos = InfoColumns()

    def drain(self, delivered: Collection[int] = ()) -> None:
        """Take all mail that has arrived, for what is owed, called for, or just `delivered`.

        Raises nothing, since it is called when workers are being replaced and when rows have been delivered:
        what cannot be unpickled is an error of its env, and warnings wait for `tell`.
        """
        with held():  # what has been taken is to be kept
            for slot in range(self.num_slots):
                for data in self._hub.mail(slot):
                    self._take(data, delivered)

    def _take(self, data: bytes, delivered: Collection[int]) -> None:
        answer = messages.load_answer(data)
        self._untold += answer.warnings
        if answer.start is not None or answer.outcome is not None:
            self._tell(answer)
            return
        self.letters.pop(answer.step_id, None)
        if self._is_wanted(answer, delivered):
            self._answers[answer.step_id] = answer
            if answer.objects is not None and self._listener is not None:
                self._packed[answer.step_id] = data
            self.infos.learn(answer.info, self._hub.add_info_key)
            self.infos.learn(answer.final_info, self._hub.add_info_key)

    def tell(self) -> None:
        """Show the warnings that came with the mail; they may be errors to the caller, so what is lost then is one."""
        while self._untold:
            key, text = self._untold.pop(0)
            self.warn_once(key, text, UserWarning)

    def _is_wanted(self, answer: Answer, delivered: Collection[int]) -> bool:
        step_id = answer.step_id
        return step_id in delivered or step_id in self._calls or self._hub.owed(answer.env_id)[1] == step_id

    def _tell(self, answer: Answer) -> None:
        if self._listener is None:
            return
        if answer.start is not None:
            is_answered = self._hub.owed(answer.env_id)[1] != answer.step_id
            self._listener.note_state(answer.env_id, Start(answer.step_id, *answer.start), is_answered)
        if answer.outcome is not None:
            self._listener.note_outcome(answer.env_id, answer.outcome)

    def expect_calls(self, step_ids: range, env_ids: Sequence[int], letters: Sequence[bytes | None]) -> None:
        """Keep the answers to these calls when they come, and until then their letters."""
        self._calls = step_ids
        if self._listener is not None:
            self.letters.update(
                (step_id, (env_id, letter)) for step_id, env_id, letter in zip(step_ids, env_ids, letters) if letter
            )

    def forget_letters(self, env_ids: Collection[int]) -> None:
        """Drop the letters of all calls of these envs: they will not be made."""
        for step_id in [step_id for step_id, (env_id, _) in self.letters.items() if env_id in env_ids]:
            del self.letters[step_id]

    def has_call(self, step_id: int) -> bool:
        """Tell whether an expected call has been answered."""
        return step_id in self._calls and step_id in self._answers

    def answer_call(self, answer: Answer) -> None:
        """Answer an expected call in the place of a worker."""
        self._answers[answer.step_id] = answer

    def has_all_calls(self) -> bool:
        """Tell whether every expected call has been answered."""
        return all(step_id in self._answers for step_id in self._calls)

    def take_calls(self) -> list[Answer]:
        """Return the answers to the expected calls, in their order."""
        answers = [self._answers.pop(step_id) for step_id in self._calls]
        self._calls = range(0)
        return answers

    def forget_calls(self) -> None:
        """Drop what has come of calls that were given up; later answers are dropped on arrival."""
        for step_id in self._calls:
            self._answers.pop(step_id, None)
        self._calls = range(0)

    def forget(self, step_id: int) -> None:
        """Drop the mail of an operation that was superseded or cancelled."""
        self._answers.pop(step_id, None)
        self._packed.pop(step_id, None)

    def take_rows(self, rows: Rows) -> dict[int, Answer]:
        """Return {step_id: mail} of the rows flagged MAIL; their mail was written before them.

        A row whose mail could not be read is flagged ERROR.
        """
        step_ids = _mailed(rows)
        self.drain(set(step_ids))
        answers = {step_id: self._answers.pop(step_id) for step_id in step_ids}
        if self._packed:
            for step_id, answer in answers.items():
                if step_id in self._packed:
                    self._shown[answer.env_id] = self._packed.pop(step_id)
        unread = [step_id for step_id, answer in answers.items() if answer.is_unread]
        if unread:
            flags = rows.column("flags")
            flags[np.isin(rows.column("step_id"), unread)] |= np.uint32(RowFlag.ERROR)
        return answers

    def shown(self, env_id: int) -> bytes | None:
        """Return the mail with what has no column in the last delivered observation of an env; None: there is none.

        As it came: what can be read here is not always something that can be sent back.
        """
        return self._shown.get(env_id)

    def warn_once(self, key: str, text: str, category: type[Warning]) -> None:
        """Warn the first time that `key` is seen."""
        if key not in self._warned:
            self._warned.add(key)
            warn_caller(text, category)


def _mailed(rows: Rows) -> list[int]:
    has_mail = (rows.column("flags") & RowFlag.MAIL) != 0
    step_ids: list[int] = rows.column("step_id")[has_mail].tolist()
    return step_ids
