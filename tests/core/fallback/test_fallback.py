"""The pure-Python implementation: the same rows as C, and the cases that only a pipe has."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from tests.programs import run_python
from tests.spaces import FIXED_SPACES
from vecenv.core.fallback import words
from vecenv.core.fallback.local import make_local_pair
from vecenv.core.fallback.socket import SocketHub, make_socket_slots
from vecenv.core.host import slot as events
from vecenv.core.host.global_rngs import GlobalRngs
from vecenv.core.host.host import Host
from vecenv.core.layout.arena import ArenaPlan
from vecenv.core.layout.commands import Commands
from vecenv.core.layout.flags import Autoreset, Form, Op, RowFlag
from vecenv.core.layout.native import load
from vecenv.core.layout.spec import Spec
from vecenv.core.options import Limits, PoolOptions
from vecenv.core.parent.hub import Event, Refusal
from vecenv.core.pool.process import ProcessPool
from vecenv.core.pool.serial import SerialPool
from vecenv.core.processes.worker_main import Attach, make_slot
from vecenv.core.system.clock import now_ns
from vecenv.core.system.descriptor import Descriptor, WakeEvent
from vecenv.core.system.segment import private_segment
from vecenv.core.system.worker_socket import ControlSocket
from vecenv.envs.toys import CountEnv, ExitAtStep, HangAtStep, HugeInfo, RaiseAtStep, WrongDtype
from vecenv.errors import WorkerDiedError, WorkerTimeoutError

FAR = now_ns() + 10**18


def attach_for(obs=None, action=None, num_envs=3, autoreset=Autoreset.NEXT_STEP, reward_shape=()):
    obs, action = obs or Box(-1.0, 1.0, (2,), np.float32), action or Discrete(4)
    plan = ArenaPlan(num_envs, 1, Spec(obs, "obs"), Spec(action, "action"), reward_shape, 3, True, num_envs)
    return Attach(plan, [(0, list(range(num_envs)))], autoreset, 0)


def opened(plan):
    """Return the memory of an arena and of its counters."""
    memory, counters = private_segment(plan.nbytes), private_segment(plan.counters.nbytes)
    plan.write_header(memory)
    plan.counters.write_header(counters)
    return memory, counters


def local_pair(attach):
    return make_local_pair(attach, *opened(attach.plan), [0] * attach.plan.num_envs)


@pytest.fixture
def pair():
    hub, slot = local_pair(attach_for())
    for env_id in range(3):
        slot.host(env_id, lambda action, env_id=env_id: (obs_of(env_id), 1.0, False, False, {}))
    return hub, slot


def obs_of(number):
    return np.full(2, number, np.float32)


def send(hub, env_ids, ordered=True):
    return hub.send((np.zeros(len(env_ids), np.int64),), np.array(env_ids), ordered, Form.NATIVE)


def reset(hub, env_ids, ordered=True):
    commands = Commands.of(Op.RESET, np.array(env_ids))
    return hub.command(commands, ordered) or int(commands.table["step_id"][0])


def env_ids_of(got):
    assert not isinstance(got, Event), got
    return got[0].column("env_id").tolist()


# ---- outstanding commands -------------------------------------------------------------------


def test_ordered_rows_stand_in_request_order_and_others_as_they_finish(pair):
    hub, slot = pair
    send(hub, [2, 0, 1])
    slot.serve()
    assert env_ids_of(hub.recv(3, 3, FAR)) == [2, 0, 1]
    for env_id in (1, 2):
        send(hub, [env_id], ordered=False)
    slot.serve()
    send(hub, [0], ordered=False)
    assert env_ids_of(hub.recv(1, 3, FAR)) == [1, 2]
    slot.serve()
    assert env_ids_of(hub.recv(1, 3, FAR)) == [0]


def test_rows_beyond_the_count_stay_for_the_next_call(pair):
    hub, slot = pair
    send(hub, [0, 1, 2], ordered=False)
    slot.serve()
    assert env_ids_of(hub.recv(1, 2, FAR)) == [0, 1]
    assert hub.outstanding() == 1
    assert env_ids_of(hub.recv(1, 2, FAR)) == [2]
    event = hub.recv(1, 1, now_ns())
    assert isinstance(event, Event) and event[:2] == ("timeout", -1) and event.late_ns >= 0


def test_rows_left_for_the_next_call_are_dropped_with_what_they_answer(pair):
    hub, slot = pair
    send(hub, [0, 1, 2], ordered=False)
    slot.serve()
    assert env_ids_of(hub.recv(1, 1, FAR)) == [0]
    hub.cancel(1)
    assert hub.outstanding() == 1
    assert env_ids_of(hub.recv(1, 2, FAR)) == [2]


@pytest.mark.parametrize("kind", [words.ROW_FRAME, words.VOID_FRAME], ids=["row", "void"])
def test_late_reply_to_cancelled_command_is_dropped(pair, kind):
    hub, slot = pair
    send(hub, [0], ordered=False)
    hub.cancel(0)
    send(hub, [0], ordered=False)
    owed = hub.owed(0)
    hub.take_frame((kind, 0, owed[1] - 1))
    assert hub.recv(1, 1, now_ns())[0] == "timeout" and hub.owed(0) == owed
    slot.serve()
    assert env_ids_of(hub.recv(1, 1, FAR)) == [0]


def test_successor_gets_neither_old_messages_nor_cancelled_steps(pair):
    hub, slot = pair
    for is_last in (True, False):
        hub.take_frame((words.MESSAGE_FRAME, 0, is_last, b"of the dead"))
    hub.reap(0)
    assert hub.take_messages(0) == []
    hub.take_frame((words.MESSAGE_FRAME, 0, True, b"of the living"))
    assert hub.take_messages(0) == [b"of the living"]
    send(hub, [0], ordered=False)
    hub.cancel(0)
    slot.host(0, lambda action: pytest.fail("it was given up"))
    assert slot.serve()[0] == events.IDLE


def test_requests_that_cannot_start_change_nothing(pair):
    hub, slot = pair
    assert send(hub, [0, 3]) == Refusal("bad_env", 3)
    assert send(hub, [0, 1, 0]) == Refusal("busy", 0)
    assert hub.outstanding() == 0
    send(hub, [0])
    assert send(hub, [0]) == Refusal("busy", 0)
    assert send(hub, [1]) == Refusal("mixed", 1)
    assert send(hub, [1], ordered=False) is None
    reset(hub, [2], ordered=False)
    assert reset(hub, [2], ordered=False) == Refusal("busy", 2)
    assert hub.outstanding() == 3
    with pytest.raises(ValueError, match="wrong size"):
        other, _ = local_pair(attach_for())
        other.send((np.zeros(2, np.int64),), None, True, Form.NATIVE)


def test_reset_supersedes_a_step_before_and_after_it_ran(pair):
    hub, slot = pair
    send(hub, [0, 1])
    assert hub.owed(0) == (Op.STEP, 1)
    reset(hub, [0], ordered=False)
    event = slot.serve()  # the step of env 0 was dropped, the step of env 1 was run
    assert event[:3] == (events.COMMAND, 0, Op.RESET)
    assert slot.publish(obs_of(7), 0.0, False, False, {}, RowFlag.RESET, None)
    assert env_ids_of(hub.recv(2, 3, FAR)) == [1, 0]
    send(hub, [0], ordered=False)
    slot.serve()
    reset(hub, [0], ordered=False)  # its row has arrived but is not delivered yet
    assert hub.outstanding() == 1
    slot.serve()
    slot.publish(obs_of(8), 0.0, False, False, {}, RowFlag.RESET, None)
    rows, flags = hub.recv(1, 3, FAR)
    assert flags == RowFlag.RESET and rows.obs(0).tolist() == [[8.0, 8.0]]
    assert hub.outstanding() == 0


def test_cancelled_rows_are_dropped_and_ordered_requests_go_on(pair):
    hub, slot = pair
    send(hub, [0, 1, 2])
    hub.cancel(1)
    assert hub.owed(1) == (Op.NONE, 0)
    slot.serve()
    assert env_ids_of(hub.recv(2, 3, FAR)) == [0, 2]


def test_reaping_lets_an_ordered_request_go_on_and_keeps_the_debt(pair):
    hub, _ = pair
    send(hub, [0, 1])
    hub.reap(0)
    assert hub.outstanding() == 2 and hub.owed(0)[0] == Op.STEP
    assert hub.recv(1, 3, now_ns()).kind == "timeout"


def test_batches_own_their_arrays(pair):
    hub, slot = pair
    send(hub, [0, 1])
    slot.serve()
    rows, _ = hub.recv(2, 2, FAR)
    before = rows.obs(0).copy()
    slot.host(0, lambda action: (obs_of(9), 5.0, False, False, {}))
    send(hub, [0])
    slot.serve()
    np.testing.assert_array_equal(rows.obs(0), before)
    assert rows.column("reward").tolist() == [1.0, 1.0]


def test_cancelled_command_is_not_outstanding(pair):
    hub, slot = pair

    def interrupted(action):
        raise KeyboardInterrupt

    slot.host(1, interrupted)
    send(hub, [0, 1])
    event = slot.serve()
    assert event[0] == events.RAISED and isinstance(event[-1], KeyboardInterrupt)
    slot.finish()
    assert env_ids_of(hub.recv(1, 3, FAR)) == [0]
    assert hub.outstanding() == 0


def test_state_contains_the_running_operation(pair):
    hub, slot = pair
    seen = []
    slot.host(1, lambda action: seen.append(hub.state(0)) or (obs_of(1), 0.0, False, False, {}))
    send(hub, [1])
    slot.serve()
    (state,) = seen
    assert (state.op, state.env_id, state.step_id, state.blocked) == (Op.STEP, 1, 1, 0)
    assert 0 < state.started_ns <= now_ns()
    assert hub.state(0).op == Op.NONE and hub.state(0).num_steps == 1


def test_stop_ends_serving(pair):
    hub, slot = pair
    send(hub, [0])
    hub.stop()
    assert slot.serve()[0] == events.STOP


# ---- the same as C --------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*Getting the length of a multi-dimensional:UserWarning")  # Gymnasium's own spaces
@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("name", FIXED_SPACES)
def test_actions_are_fresh_objects_of_the_types_that_iterate_gives(name, form):
    space = FIXED_SPACES[name]
    attach = attach_for(action=space, num_envs=1)
    hub, slot = local_pair(attach)
    taken = []
    slot.host(0, lambda action: taken.append(action) or (obs_of(0), 0.0, False, False, {}))
    space.seed(3)
    batch = concatenate(space, [space.sample()], create_empty_array(space, 1))
    leaves = Spec(space, "action").flatten_batch(batch, 1)
    for _ in range(2):
        assert hub.send(leaves, np.array([0]), True, form) is None
        slot.serve()
        hub.recv(1, 1, FAR)
    (expected,) = iterate(batch_space(space, 1), batch)
    for action in taken:
        _same(action, expected, form)
    for one, other in zip(_arrays(taken[0]), _arrays(taken[1])):
        assert not np.shares_memory(one, other)


def _arrays(value):
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else None
    if parts is not None:
        return [array for part in parts for array in _arrays(part)]
    return [value] if isinstance(value, np.ndarray) else []


def _same(got, expected, form):
    if isinstance(expected, dict):
        assert type(got) is dict and set(got) == set(expected)
        for key in expected:
            _same(got[key], expected[key], form)
    elif isinstance(expected, tuple):
        assert type(got) is tuple
        for one, other in zip(got, expected):
            _same(one, other, form)
    elif isinstance(expected, np.ndarray) and expected.ndim:
        assert type(got) is np.ndarray and got.dtype == expected.dtype and got.flags.writeable
        np.testing.assert_array_equal(got, expected)
    else:
        shape = {Form.VECTOR: (1,)}.get(form, ())
        assert np.shape(got) == shape and np.all(np.asarray(got) == expected)
        if form == Form.NATIVE:
            assert type(got) is type(expected)
        elif form == Form.INT and np.asarray(expected).dtype.kind in "iu":
            assert type(got) is int


ODD_VALUES = {
    "float64": np.zeros(2),
    "wrong shape": np.zeros(3, np.float32),
    "list": [0.0, 0.0],
    "big-endian": np.zeros(2, ">f4"),
    "none": None,
}
EXACT_VALUES = {
    "array": obs_of(1),
    "with gaps": np.repeat(obs_of(1), 2)[::2],
    "backwards": obs_of(1)[::-1].copy()[::-1],
    "read-only": np.frombuffer(obs_of(1).tobytes(), np.float32),
    "memoryview": memoryview(obs_of(1)),
}


def slots_of(attach):
    """Return the slots of both implementations, each with one step of env 0 under way."""
    made = [local_pair(attach)]
    native = load()
    if native is not None:
        memory = opened(attach.plan)
        from vecenv.core.parent.hub import NativeHub

        made.append((NativeHub(attach.plan, *memory, [0] * 3, -1, -1, 0), make_slot(attach, 0, *memory, -1, False)))
    for hub, slot in made:
        slot.host(0, lambda action: "odd")
        send(hub, [0])
        assert slot.serve()[0] == events.RESULT
    return made


@pytest.mark.parametrize("name", [*ODD_VALUES, *EXACT_VALUES])
def test_publish_takes_exactly_what_c_takes(name):
    value = {**ODD_VALUES, **EXACT_VALUES}[name]
    for hub, slot in slots_of(attach_for()):
        if value is None:
            value = "nothing"
        assert slot.publish(value, 0.0, False, False, {}, 0, None) is (name in EXACT_VALUES)
        if name in EXACT_VALUES:
            assert hub.recv(1, 1, now_ns())[0].obs(0).tolist() == [np.asarray(value).tolist()]


ORDERS = {
    "fortran": np.asfortranarray,
    "reversed": lambda array: array[..., ::-1].copy()[..., ::-1],
    "part": lambda array: np.pad(array, 1)[(slice(1, -1),) * array.ndim],
    "every second": lambda array: np.repeat(array, 2, axis=0)[::2],
    "first axis last": lambda array: np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 0, -1)), -1, 0),
}


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.int32, np.float64, np.longdouble])
@pytest.mark.parametrize("shape", [(5,), (4, 3), (3, 4, 2), (2, 3, 2, 2)], ids=str)
@pytest.mark.parametrize("order", ORDERS)
def test_arrays_in_any_order_of_memory_are_written_as_they_are(dtype, shape, order):
    expected = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    value = ORDERS[order](expected)
    for hub, slot in slots_of(attach_for(Box(0, 100, shape, dtype))):
        assert slot.publish(value, 0.0, False, False, {}, 0, None)
        assert (hub.recv(1, 1, now_ns())[0].obs(0)[0] == expected).all()


SCALAR_SPACES = [Discrete(5), Box(0, 255, (), np.uint8), Box(-1.0, 1.0, (), np.float32)]
SCALARS = [3, -1, 300, 2**70, True, 1.0, np.int64(3), np.uint8(3), np.float32(1), np.array(3)]
REWARDS = [1, 1.5, True, np.float32(2), np.float64(2), np.int64(1), np.array([1.0]), np.array([1.0, 2.0]), "x", None]


@pytest.mark.parametrize("space", SCALAR_SPACES, ids=repr)
@pytest.mark.parametrize("value", SCALARS, ids=repr)
def test_publish_takes_the_same_scalars(space, value):
    taken = [slot.publish(value, 0.0, False, False, {}, 0, None) for _, slot in slots_of(attach_for(space))]
    assert len(set(taken)) == 1, taken


@pytest.mark.parametrize("reward", REWARDS, ids=repr)
@pytest.mark.parametrize("shape", [(), (2,)])
def test_publish_takes_the_same_rewards(reward, shape):
    results = []
    for hub, slot in slots_of(attach_for(reward_shape=shape)):
        taken = slot.publish(obs_of(0), reward, False, False, {}, 0, None)
        results.append((taken, hub.recv(1, 1, now_ns())[0].column("reward").tolist() if taken else None))
    assert results.count(results[0]) == len(results), results


# ---- pools ----------------------------------------------------------------------------------


def history(kind, implementation, monkeypatch, autoreset, **options):
    """Run some rounds and return everything that a caller can see of them."""
    monkeypatch.setenv("VECENV_IMPLEMENTATION", implementation)
    seen = []
    options = PoolOptions(autoreset=autoreset, num_workers=2, **options)
    env_fns = [functools.partial(CountEnv, length=3 + i) for i in range(4)]
    with kind(env_fns, options) as pool:
        pool.start()
        assert pool.implementation == implementation
        pool.reset(seeds=list(range(4)))
        for number in range(9):
            batch = pool.recv()
            names = ("env_ids", "obs", "rewards", "terminated", "truncated", "episodes", "lengths", "returns", "seeds")
            flags = batch.row_flags & ~np.uint32(RowFlag.MESSAGE | RowFlag.INFO | RowFlag.FINAL_INFO)
            values = [flags.tolist(), batch.infos(), batch.final_infos()]
            seen.append([getattr(batch, name).tolist() for name in names] + values)
            over = np.flatnonzero(batch.terminated | batch.truncated)
            if autoreset == Autoreset.DISABLED and len(over):
                pool.reset(over)
                pool.recv()
            pool.send(np.full(4, number % 2))
        seen.append(pool.call(lambda env: env.unwrapped.num_steps))
    return seen


@pytest.mark.extended
@pytest.mark.skipif(load() is None, reason="there is nothing to compare with")
@pytest.mark.parametrize("autoreset", list(Autoreset))
def test_pools_give_the_same_results_in_c_and_fallback(monkeypatch, autoreset):
    expected = history(SerialPool, "native", monkeypatch, autoreset)
    assert history(SerialPool, "python", monkeypatch, autoreset) == expected
    assert history(ProcessPool, "python", monkeypatch, autoreset, context="fork") == expected
    assert history(ProcessPool, "python", monkeypatch, autoreset, context="fork", threads_per_worker=2) == expected


@pytest.fixture
def open_pool(monkeypatch):
    monkeypatch.setenv("VECENV_IMPLEMENTATION", "python")
    opened = []

    def open_one(*env_fns, **options):
        pool = ProcessPool(list(env_fns), PoolOptions(num_workers=len(env_fns), context="fork", **options))
        opened.append(pool)
        pool.start()
        pool.reset()
        pool.recv()
        return pool

    yield open_one
    for pool in opened:
        pool.close()


def play(pool, rounds):
    for _ in range(rounds):
        pool.send(np.zeros(pool.num_envs, np.int64))
        batch = pool.recv()
        batch.raise_errors()
    return batch


LONG = functools.partial(CountEnv, length=1000)


@pytest.mark.extended
def test_worker_death_is_reported_and_earlier_rows_are_kept(open_pool):
    pool = open_pool(LONG, ExitAtStep)
    with pytest.raises(WorkerDiedError, match=r"worker 1 .*exit code 3"):
        play(pool, 10)
    pool.restart(1)
    assert pool.recv(1, timeout=60).env_ids.tolist() == [0]


@pytest.mark.extended
def test_replacement_worker_takes_over(open_pool):
    pool = open_pool(LONG, LONG)
    os.kill(pool.worker_pids[1], signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        play(pool, 2)
    pool.restart(1)
    pool.recv(1)
    pool.reset([1])
    pool.recv()
    assert play(pool, 1).env_ids.tolist() == [0, 1]


@pytest.mark.extended
def test_overdue_step_is_reported_with_its_env(open_pool):
    pool = open_pool(LONG, HangAtStep, limits=Limits(step=1.0, close=0.2))
    with pytest.raises(WorkerTimeoutError, match="step of env 1 .* within 1.0 s"):
        play(pool, 10)


@pytest.mark.extended
def test_exceptions_conversions_and_large_infos_travel(open_pool):
    pool = open_pool(LONG, RaiseAtStep)
    with pytest.raises(ZeroDivisionError):
        play(pool, 10)
    pool = open_pool(LONG, HugeInfo)
    assert any(len(repr(info)) > 0 for info in play(pool, 4).infos())
    pool = open_pool(LONG, WrongDtype)
    with pytest.warns(UserWarning, match="is converted"):
        play(pool, 4)


@pytest.mark.extended
def test_payloads_larger_than_a_socket_buffer_arrive_beside_large_replies(open_pool):
    pool = open_pool(LONG, LONG)
    big = np.arange(1_000_000)
    echoed = pool.call(lambda env, big=big: big[::-1])
    assert all((array == big[::-1]).all() for array in echoed)


@pytest.mark.extended
def test_close_waits_for_a_busy_worker(open_pool):
    pool = open_pool(LONG, LONG)
    pool.send(np.zeros(2, np.int64))
    pool.close()
    pool.close()


@pytest.mark.extended
def test_close_kills_a_worker_that_hangs(open_pool):
    pool = open_pool(LONG, HangAtStep, limits=Limits(close=0.2))
    for _ in range(4):
        pool.send(np.zeros(2, np.int64))
        try:
            pool.recv(timeout=0.2)
        except WorkerTimeoutError:
            break
    pool.close()


# ---- the socket ------------------------------------------------------------------------------


@pytest.fixture
def two_slots():
    """Return both ends of the socket of a worker with two slots: the parent's and the worker's."""
    attach = attach_for()
    attach.slots = [(0, [0]), (1, [1, 2])]
    attach.plan = ArenaPlan(3, 2, attach.plan.obs, attach.plan.action, (), 3, True, 2)
    memory = opened(attach.plan)
    ours, theirs = multiprocessing.Pipe()

    control = ControlSocket(ours)
    worker = SimpleNamespace(
        worker_id=0, slots=[0, 1], control=control, pidfd=Descriptor(), exit_report=None, log_frames=[]
    )

    hub = SocketHub(attach.plan, *memory, [0, 1, 1], [worker], Descriptor())
    slots = make_socket_slots(attach, *memory, theirs)
    yield hub, slots
    hub.stop()
    assert [slot.serve()[0] for slot in slots] == [events.STOP, events.STOP]
    control.close()
    theirs.close()


def test_messages_sent_in_pieces_are_joined_per_slot(two_slots):
    hub, slots = two_slots
    messages = [bytes([i]) * size for i, size in enumerate((0, 1, 15_000, 15_001, 200_000))]
    threads = [
        threading.Thread(target=lambda slot=slot: [slot.send_message(data) for data in messages]) for slot in slots
    ]
    for thread in threads:
        thread.start()
    found = [[], []]
    while min(map(len, found)) < len(messages):
        assert hub.wait(FAR).kind == "message"
        for slot in (0, 1):
            found[slot] += hub.take_messages(slot)
    for thread in threads:
        thread.join()
    assert found == [messages, messages]


def test_messages_read_before_an_interrupt_are_delivered_after_it(two_slots, monkeypatch):
    hub, slots = two_slots
    for slot in slots:
        slot.send_message(b"news")
    take_frame = SocketHub.take_frame

    def interrupted(hub, frame):
        take_frame(hub, frame)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(SocketHub, "take_frame", interrupted)
        hub.wait(FAR)
    assert hub.take_messages(0) == [b"news"]
    assert hub.wait(now_ns() + 30 * 10**9).kind == "message"
    assert hub.take_messages(1) == [b"news"]


def test_frame_fits_into_one_write():
    assert words.FRAGMENT_NBYTES + 1000 < 16_384


def test_doorbell_of_another_thread_ends_a_wait():
    attach = attach_for()
    event = WakeEvent()
    hub = SocketHub(attach.plan, *opened(attach.plan), [0] * 3, [], event.descriptor)
    event.wake()
    assert hub.wait(FAR) == Event("message", -1)
    event.close()


ELSEWHERE = """
import os, select, signal, sys
for module, names in {
    os: ["eventfd", "eventfd_read", "eventfd_write", "EFD_CLOEXEC", "EFD_NONBLOCK", "pidfd_open", "sched_getaffinity"],
    select: ["epoll", "EPOLLIN"],
    signal: ["SIGALRM", "setitimer", "ITIMER_REAL"],
}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "somewhere else"
import numpy as np
import vecenv
from vecenv.core.options import Limits, PoolOptions
from vecenv.core.pool.serial import SerialPool
from vecenv.envs.toys import CountEnv
for limits in (Limits(), Limits(step=60.0)):
    with SerialPool([CountEnv] * 2, PoolOptions(limits=limits)) as pool:
        pool.start()
        pool.reset()
        pool.recv()
        pool.send(np.zeros(2, np.int64))
        assert pool.recv().env_ids.tolist() == [0, 1]
        assert pool.implementation == "python"
"""


@pytest.mark.extended
def test_serial_pool_runs_without_linux():
    ran = run_python("-c", ELSEWHERE)
    assert ran.returncode == 0, ran.stderr


def test_host_serves_the_fallback_slot_until_idle():
    attach = attach_for(obs=CountEnv().observation_space, action=CountEnv().action_space, num_envs=1)
    hub, slot = local_pair(attach)
    serving = Host(slot, {0: CountEnv()}, attach.plan, attach.autoreset, GlobalRngs())
    reset(hub, [0])
    assert serving.serve() == events.IDLE
    rows, flags = hub.recv(1, 1, FAR)
    assert flags & RowFlag.RESET and rows.column("episode").tolist() == [0]
    serving.close()
