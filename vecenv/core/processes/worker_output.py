"""Show the output of the workers of one pool while they build their envs: equal lines once, with their number."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from ..system.clock import Deadline
from ..system.output_capture import write_output
from .worker import Worker

__all__ = ["WorkerOutput"]

#: Lines are shown at the end of a start, or when the first one has waited for this long (seconds), or at this size.
_SHOW_SECONDS = 10.0
_MOST_NBYTES = 1 << 20
#: A longer text without a line break is treated as a line.
_LONGEST_LINE = 1 << 16
#: Lines of the last output of a worker, for the error of its death.
_NUM_LAST = 10
#: Most lines that are kept to recognise them in a later start.
_MOST_KNOWN = 10_000

#: Standard output or error (1 or 2), and the text of a line.
_Line = tuple[int, bytes]


class WorkerOutput:
    """The lines that the workers of one pool write while they build envs.

    Equal lines of one start are shown once, where the first one stands, with their number. Lines that a replaced
    worker writes again are not shown again.

    Args:
        mode: 'once'; 'none': nothing is shown, unless a start fails; 'all': nothing is captured.
    """

    def __init__(self, mode: str) -> None:
        self.captures = mode != "all"
        self._is_silent = mode == "none"
        self._deadline = Deadline(None)
        self._counts: Counter[_Line] = Counter()  # the lines to show, in the order of the first ones
        self._blank_after: set[_Line] = set()  # lines that a blank line follows
        self._nbytes = 0
        self._shown: set[_Line] = set()  # the lines that were shown in this start
        self._num_repeats = 0  # repetitions of lines that were shown in this start
        self._known: set[_Line] = set()  # the lines that were shown in earlier starts
        self._rests: dict[tuple[int, int], bytes] = {}  # (worker_id, stream) -> start of its next line
        self._last: dict[tuple[int, int], _Line] = {}  # (worker_id, stream) -> its last line
        self._last_lines: dict[int, deque[bytes]] = {}  # worker_id -> the last lines of both streams

    def take(self, workers: Sequence[Worker]) -> None:
        """Take the text that these workers have written; show it if the start takes long. Does not block."""
        for worker in workers:
            if worker.output is not None:
                worker.output.drain()
                for stream, data in worker.output.take():
                    self._split((worker.worker_id, stream), data)
        if self._nbytes > _MOST_NBYTES or self._deadline.is_over():
            self._show()

    def end_of(self, worker: Worker) -> str:
        """Take the last text of a worker that has ended; return its last lines, '' if there are none."""
        self.take([worker])
        for key in [key for key in self._rests if key[0] == worker.worker_id]:
            self._add(key, self._rests.pop(key))
        return b"\n".join(self._last_lines.pop(worker.worker_id, ())).decode(errors="replace")

    def finish(self, workers: Sequence[Worker], *, has_failed: bool) -> None:
        """Show the text of workers that have built their envs, or one of which has failed to do so."""
        self.take(workers)
        for key, rest in self._rests.items():
            self._add(key, rest)
        self._show(is_forced=has_failed)
        if self._num_repeats and not self._is_silent:
            write_output(2, b"vecenv: workers wrote such lines %d more times\n" % self._num_repeats)
        self._known |= self._shown
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        for each in (self._rests, self._last, self._last_lines, self._counts, self._blank_after, self._shown):
            each.clear()
        self._nbytes = self._num_repeats = 0
        if not has_failed:
            for worker in workers:
                if worker.output is not None:
                    worker.output.relay(is_silent=self._is_silent)

    def _split(self, key: tuple[int, int], data: bytes) -> None:
        *lines, rest = (self._rests.pop(key, b"") + data).split(b"\n")
        for line in lines:
            self._add(key, line)
        if len(rest) > _LONGEST_LINE:
            self._add(key, rest)
        elif rest:
            self._rests[key] = rest

    def _add(self, key: tuple[int, int], text: bytes) -> None:
        line = (key[1], text)
        if not text.strip():  # a blank line belongs to the line before
            if key in self._last:
                self._blank_after.add(self._last[key])
            return
        self._last[key] = line
        self._last_lines.setdefault(key[0], deque(maxlen=_NUM_LAST)).append(text)
        if line in self._shown:
            self._num_repeats += 1
        elif line not in self._known:
            if not self._counts:
                self._deadline = Deadline(_SHOW_SECONDS)
            self._nbytes += 0 if line in self._counts else len(text)
            self._counts[line] += 1

    def _show(self, *, is_forced: bool = False) -> None:
        if not self._is_silent or is_forced:
            for line, count in self._counts.items():
                times = b" [%d times]" % count if count > 1 else b""
                write_output(line[0], line[1] + times + (b"\n\n" if line in self._blank_after else b"\n"))
            self._shown.update(self._counts)
        elif self._nbytes <= _MOST_NBYTES:  # kept for the case that the start fails
            return
        self._counts.clear()
        self._blank_after.clear()
        self._nbytes = 0
        self._deadline = Deadline(None)
