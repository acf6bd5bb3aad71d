"""The result of `vecenv.tune`: numbers, and the text with a table, a verdict and the program to paste."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from dataclasses import dataclass
from typing import Any

from vecenv.measurement.report import TableColumn, number_text, rate_text, table_lines
from vecenv.values.shown_text import ShownText

__all__ = ["TuneCandidate", "TuneResult"]

_INDENT = "    "
_TEXT_WIDTH = 100
#: Option and value that change a program -> the change.
_NOTES = {
    ("copy", False): "copy=False: the program has to read each batch before the next ones arrive.",
    ("infos", "columns"): "infos='columns': strings, large arrays and other objects are left out of infos.",
    ("infos", "done"): "infos='done': only steps that end an episode have an info.",
    ("infos", "none"): "infos='none': infos are empty.",
}
_COLUMNS = (
    TableColumn(("", "setting"), 0, lambda one: one.name),
    TableColumn(("env steps", "per second"), 1, lambda one: rate_text(one.steps_per_second)),
    TableColumn(("x", "fastest"), 2, lambda one: number_text(one.ratio, 2)),
    TableColumn(("seconds", "measured"), 3, lambda one: number_text(one.seconds, 2)),
)


@dataclass(frozen=True)
class TuneCandidate:
    """One way to step the envs, and its speed.

    Attributes:
        backend: 'process', 'serial', or 'gymnasium' for `gymnasium.vector.SyncVectorEnv`.
        options: of `VectorEnv`; those with the default value are left out.
        min_count: rows that `recv` waits for, after `send`; None: `step` waits for all envs.
        steps_per_second: env steps per second over all windows, all envs together; resets take time, but do not count.
            NaN if it was not measured.
        ratio: this speed divided by that of the fastest candidate; NaN if it was measured for less than 1 s, or less
            than ten slow resets. Both speeds are those of the same rounds of windows.
        seconds: the length of all windows.
        failure: the reason why it was not measured; '' if it was.
        name: in tables.
    """

    backend: str
    options: dict[str, Any] = dataclasses.field(hash=False)
    min_count: int | None
    steps_per_second: float
    ratio: float
    seconds: float
    failure: str
    name: str

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON; NaN becomes None."""
        fields = dataclasses.asdict(self)
        return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in fields.items()}


@dataclass(frozen=True)
class TuneResult(ShownText):
    """The fastest way to step an env, and everything that was measured; `print` shows it as text.

    Attributes:
        env: name of the env.
        num_envs: how many envs were stepped.
        policy_ms: milliseconds of the policy per step of all envs.
        candidates: all candidates; the fastest comes first, then those with a rank, those that were not measured long
            enough for one, and those that were not measured.
        best: the fastest candidate. Worker processes, `recv`, `copy=False` and other infos than 'all' must each gain
            1.5 %.
        best_step: the fastest candidate that uses `step`.
        options: options of `VectorEnv` for the best candidate.
        call: a program that builds the vector env of the best candidate as `envs`.
        plain_call: the same for `gymnasium.vector.SyncVectorEnv`.
        ratio_to_plain: the speed of the best candidate divided by that of `SyncVectorEnv`; NaN if that was not
            measured.
        elapsed: seconds that the search took.
    """

    env: str
    num_envs: int
    policy_ms: float
    candidates: tuple[TuneCandidate, ...]
    best: TuneCandidate
    best_step: TuneCandidate
    options: dict[str, Any] = dataclasses.field(hash=False)
    call: str
    plain_call: str
    ratio_to_plain: float
    elapsed: float

    @property
    def plain_loop_wins(self) -> bool:
        """Whether a loop in the process of the caller is fastest: `SyncVectorEnv`, or the serial backend."""
        return self.best.backend != "process"

    def as_dict(self) -> dict[str, Any]:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields["candidates"] = [candidate.as_dict() for candidate in self.candidates]
        fields["best"], fields["best_step"] = self.best.as_dict(), self.best_step.as_dict()
        fields["ratio_to_plain"] = None if math.isnan(self.ratio_to_plain) else self.ratio_to_plain
        return {**fields, "plain_loop_wins": self.plain_loop_wins}

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """Return the table, the verdict, and the programs to paste; `width`: the largest length of a line, or None."""
        measured = [candidate for candidate in self.candidates if not candidate.failure]
        lines = [*table_lines(measured, width, _COLUMNS), ""]
        if any(math.isnan(candidate.ratio) for candidate in measured):
            lines += _wrap("Rows without a ratio were measured too shortly for a rank, and were left out early.", width)
        reasons: dict[str, list[str]] = {}
        for candidate in self.candidates:
            if candidate.failure:
                reasons.setdefault(candidate.failure, []).append(candidate.name)
        for reason, names in reasons.items():
            lines += _wrap(f"Not measured, because {reason}: {'; '.join(names)}.", width)
        lines += ["", *_wrap(_verdict(self), width), *_program(self.call, self.best)]
        if self.plain_loop_wins and self.best.backend != "gymnasium":
            lines += ["The same loop by Gymnasium:", *_program(self.plain_call, None)]
        if self.best_step != self.best:
            lines += _wrap(f"The fastest setting with step() is {_compare(self.best_step)}.", width)
        ranked = [candidate for candidate in measured if not math.isnan(candidate.ratio)]
        by_workers = [candidate for candidate in ranked if candidate.backend == "process"]
        if self.plain_loop_wins and by_workers:
            best = max(by_workers, key=lambda candidate: candidate.ratio)
            lines += _wrap(
                f"The fastest setting with worker processes, which survive crashes, is {_compare(best)}.", width
            )
        return "\n".join(lines)


def _verdict(result: TuneResult) -> str:
    best = result.best
    speed = f"{best.steps_per_second:,.0f} env steps per second"
    if result.plain_loop_wins:
        return f"The plain loop wins, in this process: {best.name}, {speed}. Worker processes gain nothing here."
    compared = "" if math.isnan(result.ratio_to_plain) else f", {result.ratio_to_plain:.2f} x the plain loop"
    return f"The fastest setting is {best.name}: {speed}{compared}."


def _compare(candidate: TuneCandidate) -> str:
    return f"{candidate.name}: {candidate.ratio:.2f} x as fast"


def _program(call: str, candidate: TuneCandidate | None) -> list[str]:
    lines = call.splitlines()
    if candidate is not None and candidate.min_count is not None:
        lines += [
            "envs.async_reset()",
            f"obs, rewards, terminated, truncated, infos = envs.recv({candidate.min_count})  # in a loop",
            'envs.send(actions, infos["env_id"])',
        ]
    notes = (
        []
        if candidate is None
        else [note for (name, value), note in _NOTES.items() if candidate.options.get(name) == value]
    )
    return ["", *(_INDENT + line for line in lines), "", *notes]


def _wrap(text: str, width: int | None) -> list[str]:
    return textwrap.wrap(text, width or _TEXT_WIDTH, break_on_hyphens=False)
