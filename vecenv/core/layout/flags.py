"""Define the operations of commands, and the flags of commands and rows; both ends share them."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Autoreset", "CommandFlag", "FORM_MASK", "Form", "Op", "ROW_FLAGS", "RowFlag"]


class Op(IntEnum):
    """The operation of a command; NONE means that there is no command."""

    NONE = 0
    STEP = 1
    RESET = 2
    CALL = 3


class Autoreset(IntEnum):
    """The action at the end of an episode; the names are those of Gymnasium's `AutoresetMode`."""

    DISABLED = 0
    NEXT_STEP = 1
    SAME_STEP = 2


class RowFlag:
    """Bits of the `flags` column of a row (native/shm/layout.h); a plain step has 0.

    Plain ints: an operator of `enum.IntFlag` takes a microsecond, and the flags of every batch are tested.
    """

    RESET = 0x01  #: the reply to a reset
    AUTORESET = 0x02  #: NEXT_STEP: the first observation of a new episode
    FINAL = 0x04  #: SAME_STEP: the row also has the observation that ended the episode
    MESSAGE = 0x08  #: a message with this step_id was written before the row
    ERROR = 0x10  #: the env raised; the message contains the exception
    INFO = 0x20  #: cells hold values of the info
    VOID = 0x40  #: superseded: the row is dropped
    FINAL_INFO = 0x80  #: cells hold values of the info that ended the episode; only with FINAL
    FINAL_INTS = 0x200  #: the env returned the final observation with Python ints; only with FINAL
    REPEATS = 0x400  #: the env raised: its observation is the last delivered one, which the parent fills in
    FINAL_REPEATS = 0x800  #: the final observation is the last delivered one, too; only with FINAL
    CONTINUES = 0x1000  #: a state was put into the env: its episode counters are kept; only with RESET
    NOTICE = 0x100  #: a worker has sent a message over its socket; only in the flags of a batch


class CommandFlag:
    """Bits of the flags of a command, beside the form of its action.

    Resets and calls have no form, so OPTIONS and WATCH use its bits.
    """

    OPTIONS = 0x01  #: pass options=None to this reset, if the env's `reset` accepts it
    WATCH = 0x01  #: compare the env before and after this call
    PAYLOAD = 0x10  #: further values come in a message
    SEED = 0x20  #: pass a seed to this reset: the argument, or None if that is -1 or DRAWN is set
    SNAPSHOT = 0x40  #: a reset that superseded a step: take a snapshot of the env before it
    DRAWN = 0x80  #: the argument is a drawn seed, for a generator that does not exist yet
    CANCELLED = 0x100  #: cancelled, so it may have been executed or not; only in a journal
    NEW_DIGEST = 0x200  #: the digest of the env's replies starts again here; only in a journal


#: All flags that a row may have.
ROW_FLAGS = sum(flag for name, flag in vars(RowFlag).items() if name.isupper() and flag != RowFlag.NOTICE)
#: The bits of a command's flags that hold the `Form` of its action.
FORM_MASK = 0x0F


class Form(IntEnum):
    """The type of object in which an env receives an action of shape ()."""

    NATIVE = 0  #: the type that `gymnasium.vector.utils.iterate` yields
    INT = 1  #: a Python int
    VECTOR = 2  #: an array of shape (1,)
    ARRAY0 = 3  #: an array of shape ()
