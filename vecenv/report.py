"""Reports: verdicts about the speed of a pool. `envs.report()` returns them, `vecenv bench` prints them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Report", "Verdict"]


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
        gain: the expected factor of steps per second from that alone. It is an estimate, and those of
            several verdicts must not be multiplied. NaN if there is none.
        is_limit: whether the gain is an upper limit.
    """

    name: str
    cause: str
    number: float
    unit: str
    setting: str
    gain: float = math.nan
    is_limit: bool = False

    def __str__(self) -> str:
        times = f"{'up to' if self.is_limit else 'about'} {self.gain:.2g} times as many steps per second"
        expected = "" if math.isnan(self.gain) else f": expect {times}"
        return f"{self.name}: {self.cause}. {self.setting}{expected}"


@dataclass(frozen=True)
class Report:
    """The verdicts about a pool, those with the largest gain first; `print` shows one per line.

    It can be iterated, and `len` is the number of verdicts.

    Example:
        >>> from vecenv import Report, Verdict
        >>> print(Report((Verdict("copies", "copies take half of the time", 0.5, "share", "copy=False", 2.0),)))
        copies: copies take half of the time. copy=False: expect about 2 times as many steps per second

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
        verdicts = [{**dataclasses.asdict(one), "text": str(one)} for one in self.verdicts]
        for verdict in verdicts:
            verdict.update({key: None for key, value in verdict.items() if value != value})
        return {"verdicts": verdicts, "note": self.note}
