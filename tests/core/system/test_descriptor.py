"""A number has one owner, which forgets it when it closes it."""

from __future__ import annotations

import os
import threading

import pytest

from tests.canaries import Canaries, canaries
from vecenv.core.system.descriptor import Descriptor, WakeEvent


def test_closed_descriptor_leaves_the_file_that_has_its_number_now() -> None:
    first = Descriptor(os.memfd_create("first"))
    number = first.number
    first.close()
    assert first.closed and first.fileno() == -1
    second = Descriptor(os.memfd_create("second"))
    assert second.number == number
    first.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        first.duplicate()
    assert os.fstat(second.number)
    second.close()


def test_duplicate_outlives_its_origin() -> None:
    event = WakeEvent()
    copy = event.descriptor.duplicate()
    event.wake()
    event.close()
    assert os.eventfd_read(copy.number) == 1
    copy.close()


def test_wake_of_another_thread_never_reaches_the_next_file() -> None:
    for _ in range(200):
        event = WakeEvent()
        thread = threading.Thread(target=lambda: [event.wake() for _ in range(20)])  # noqa: B023
        thread.start()
        number = event.descriptor.number
        event.close()
        others = [Descriptor(os.memfd_create("checkpoint")) for _ in range(3)]
        thread.join()
        assert number in [other.number for other in others]
        for other in others:
            assert os.fstat(other.number).st_size == 0
            other.close()


@pytest.mark.parametrize(
    ("use", "found"),
    [
        (lambda number: os.write(number, b"8 bytes."), "was written"),
        (lambda number: os.eventfd_write(number, 1), "was written"),
        (lambda number: os.lseek(number, 0, os.SEEK_SET) or os.read(number, 3), "was read"),
        (os.close, "was closed"),
    ],
)
def test_canaries_notice_foreign_calls(use, found: str) -> None:
    harm: list[str] = []
    with canaries() as watch:
        number = os.memfd_create("mine")
        os.close(number)
        use(number)
        watch.end()
        harm, watch.harm = watch.harm, []
    assert len(harm) == 1 and found in harm[0]


def test_canaries_notice_calls_of_closed_numbers() -> None:
    watch = Canaries()
    with pytest.raises(OSError, match="Bad file descriptor"):
        watch.watched_call("read", -1, 8)
    assert len(watch.harm) == 1
