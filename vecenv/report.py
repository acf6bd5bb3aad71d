"""Reports: verdicts about the speed of a pool. `envs.report()` returns them, `vecenv bench` prints them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .values.shown_text import ShownText

__all__ = ["Report", "Verdict"]

#: A gain is known if the measured one is within this factor of the middle of its bounds.
_MOST_OFF = 1.5


@dataclass(frozen=True)
class Verdict:
    """One cause of lost time, and the setting that removes it.

    Attributes:
        name: of the cause: 'cheap envs', 'one process', 'stragglers', 'slow resets', 'waiting envs', 'slow policy',
            'too many threads', 'too few cores', 'pickled infos', 'copies', 'slow core' or 'hand-over' (to shards).
        cause: a text that names the cause and contains the measured number.
        number: the measured number, in `unit`.
        unit: 's' (seconds), 'bytes', 'cores', 'threads', 'times' (a ratio) or 'share' (0 to 1).
        setting: the setting to change.
        gain_low, gain_high: bounds of the expected factor of steps per second from that alone. They are estimates, and
            those of several verdicts must not be multiplied. NaN if they are not known.
    """

    name: str
    cause: str
    number: float
    unit: str
    setting: str
    gain_low: float = math.nan
    gain_high: float = math.nan

    @property
    def gain(self) -> float:
        """The middle of both bounds. NaN if the gain is not known, since a bound is more than 1.5 times off."""
        is_known = self.gain_high <= _MOST_OFF**2 * self.gain_low
        return math.sqrt(self.gain_low * self.gain_high) if is_known else math.nan

    def __str__(self) -> str:
        return f"{self.name}: {self.cause}. {self.setting}{self._expected()}"

    def _expected(self) -> str:
        if math.isnan(self.gain):
            return ": the gain is not known"
        return f": expect {self.gain_low:.2g} to {self.gain_high:.2g} times as many steps per second"


@dataclass(frozen=True)
class Report(ShownText):
    """The verdicts about a pool, those with the largest gain first; `print` shows one per line.

    It can be iterated, and `len` is the number of verdicts.

    Example:
        >>> from vecenv import Report, Verdict
        >>> print(Report((Verdict("copies", "copies take half of the time", 0.5, "share", "copy=False", 1.8, 2.2),)))
        copies: copies take half of the time. copy=False: expect 1.8 to 2.2 times as many steps per second

    Attributes:
        verdicts: as said.
        note: the reason why there are no verdicts; '' if there are some.
    """

    verdicts: tuple[Verdict, ...] = ()
    note: str = ""

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self.verdicts)

    def __len__(self) -> int:
        return len(self.verdicts)

    def __str__(self) -> str:
        return "\n".join(map(str, self.verdicts)) or f"no verdict: {self.note}"

    def as_dict(self) -> dict[str, Any]:
        """Return {'verdicts': [{'name': ..., 'text': ..., ...}], 'note': ...}, ready for JSON; a NaN becomes None."""
        verdicts = [{**dataclasses.asdict(one), "gain": one.gain, "text": str(one)} for one in self.verdicts]
        for verdict in verdicts:
            verdict.update({key: None for key, value in verdict.items() if value != value})
        return {"verdicts": verdicts, "note": self.note}
