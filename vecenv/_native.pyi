"""Types of the C extension. The contracts are in its docstrings, the rules across files in native/README.md."""

from collections.abc import Callable, Collection
from typing import Any, Literal, TypeVar, final

from numpy.typing import NDArray
from typing_extensions import Buffer

from vecenv.core.host.slot import Slot as _Slot

_T = TypeVar("_T")

MAGIC: int
ABI: int
COUNTERS_MAGIC: int
COUNTERS_VERSION: int
COUNTERS_WORDS: int
HEADER_WORDS: int
CONTROL_NBYTES: int
NOTICE_OFFSET: int
SLOT_NBYTES: int
COMMAND_NBYTES: int
TIMINGS_NBYTES: int
NUM_BUCKETS: int
FIRST_OCTAVE: int
INFO_KEYS: int
INFO_KEY_NBYTES: int
CHAIN: int

F_RESET: int
F_AUTORESET: int
F_FINAL: int
F_MESSAGE: int
F_ERROR: int
F_INFO: int
F_VOID: int
F_FINAL_INFO: int
F_FINAL_INTS: int
F_REPEATS: int
F_FINAL_REPEATS: int
F_CONTINUES: int
F_NOTICE: int
F_OF_ROWS: int

C_OPTIONS: int
C_PAYLOAD: int
C_SEED: int
C_SNAPSHOT: int
C_WATCH: int
C_DRAWN: int
C_NEW_DIGEST: int
C_CANCELLED: int

OP_STEP: int
OP_RESET: int
OP_CALL: int

FORM_NATIVE: int
FORM_INT: int
FORM_VECTOR: int
FORM_ARRAY0: int

EVENT_STOP: int
EVENT_IDLE: int
EVENT_COMMAND: int
EVENT_RESULT: int
EVENT_RAISED: int

def exchange(areas: Buffer, keep: Buffer | None, fill: Buffer | None, /) -> None: ...
def watch_parent(pid: int, pidfd: int, connection: int, /) -> None: ...
def watch_lease(server: int, client: int, over: int, close_ms: int, mark: str, /) -> None: ...
def timesteps(type: type[_T], obs: list[Any], rewards: list[Any], /) -> tuple[list[_T], list[dict[str, Any]]]: ...
def trees(
    type: type[_T], slot: Any, count: int, names: tuple[str, ...], columns: tuple[list[Any] | NDArray[Any], ...], /
) -> list[_T]: ...
def read_cells(
    columns: tuple[NDArray[Any], ...],
    flag: int,
    signature: bytes,
    fields: bytes,
    values: NDArray[Any],
    mask: NDArray[Any],
    /,
) -> bytes | Literal[True] | None: ...
def common_type(values: list[Any], /) -> type | None: ...
def counted(
    first: Any,
    env: Any,
    limit: Any,
    unpack: Callable[[Any], tuple[Any, ...]],
    passed: tuple[tuple[Any, tuple[str, ...], Any], ...],
    /,
) -> Callable[[Any], Any]: ...

@final
class Hub:
    def __new__(
        cls,
        mapping: Buffer,
        counters: Buffer,
        columns: tuple[tuple[int, int], ...],
        saved_rows: Buffer,
        saved_columns: tuple[tuple[int, int], ...],
        deferred_rows: Any,
        action_leaves: tuple[tuple[int, int], ...],
        slots: tuple[int, ...],
        depth: int,
        event_fd: int,
        epoll_fd: int,
        spin_ns: int,
        soon_spin_ns: int,
        numpy_array: type,
        views: tuple[Any, ...],
        row_range_type: Callable[[Any, int, int], Any],
        event_type: Callable[[str, int, int], Any],
    ) -> Hub: ...
    def send(
        self, leaves: tuple[NDArray[Any], ...], env_ids: NDArray[Any] | None, ordered: bool, flags: int, /
    ) -> tuple[str, int] | Literal[True] | None: ...
    def record_in(self, columns: tuple[NDArray[Any], ...], words: NDArray[Any], /) -> None: ...
    def command(
        self,
        op: int,
        env_ids: NDArray[Any] | None,
        arguments: NDArray[Any],
        flags: NDArray[Any],
        ordered: bool,
        defers_wake: bool = False,
        /,
    ) -> int | tuple[str, int]: ...
    def wake_slots(self) -> None: ...
    def recv(self, min_count: int, max_count: int, deadline_ns: int, /) -> Any: ...
    def recv_envs(self, env_ids: Any, deadline_ns: int, /) -> Any: ...
    def wait(self, deadline_ns: int, /) -> Any: ...
    def waits(self) -> tuple[int, int]: ...
    def take_fragment(self, slot: int, /) -> tuple[bytes, int] | None: ...
    def write_payload(self, slot: int, data: Buffer, /) -> int: ...
    def lend(self, block: int, /) -> bool: ...
    def take_back(self, block: int, /) -> None: ...
    def outstanding(self) -> int: ...
    def num_stragglers(self) -> int: ...
    def owed(self, env_id: int, /) -> tuple[int, int]: ...
    def last_delivered(self, env_id: int, /) -> int: ...
    def cancel(self, env_id: int, /) -> None: ...
    def continue_from(self, step_id: int, /) -> None: ...
    def reap(self, slot: int, /) -> None: ...
    def requeue(self, slot: int, unanswered: Collection[int], /) -> list[tuple[int, int, int, int]]: ...
    def move(self, env_id: int, slot: int, /) -> None: ...
    def state(self, slot: int, /) -> tuple[int, int, int, int, int, int]: ...
    def pending(self, slot: int, /) -> tuple[int, int, int]: ...
    def stop(self) -> None: ...
    def take_stray_words(self) -> list[tuple[int, str, int]]: ...
    def reset_claims(self) -> None: ...
    def add_info_key(self, name: str, /) -> int: ...

@final
class Slot(_Slot):  # type: ignore[misc]  # mypy takes methods of a protocol for abstract; here C implements them
    def __new__(
        cls,
        mapping: Buffer,
        counters: Buffer,
        slot: int,
        event_fd: int,
        obs: tuple[Any, ...],
        final_obs: tuple[Any, ...] | None,
        action: tuple[Any, ...],
        autoreset: int,
        spin_ns: int,
        waits: bool,
        numpy_scalar: type,
        numpy_array: type,
        infos: int,
    ) -> Slot: ...
    def set_preferred_core(self, core: int, num_threads: int, /) -> None: ...
