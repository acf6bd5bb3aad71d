"""Engine: builds and runs the envs of a pool, as the pool sees it.

`Pool` checks requests, waits for answers and reports failures; an engine builds envs, runs them and ends them.
`SerialEngine` keeps them in the thread of the caller, `ProcessEngine` in worker processes. `Engine` is their base.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...errors import SpaceError, StateError, WorkerTimeoutError
from ...gymnasium_api.reward_spaces import find_reward_space, reward_shape_of
from ...statistics import EnvTimes, Shards, WorkerTimes
from ..host.replay import Snapshotter
from ..layout import messages
from ..layout.arena import ArenaPlan
from ..layout.flags import Autoreset
from ..layout.messages import Payload
from ..layout.spec import Space, Spec, copy_spaces
from ..options import Limits, PoolOptions, check_env_fns, check_options
from ..parent.hub import Event, Hub
from ..parent.inbox import Listener
from ..parent.leases import MIN_NBYTES
from ..parent.watchdog import WorkerDirectory
from ..processes.slots import SlotTable
from ..recovery.journal import Journal
from ..recovery.policy import Recovery
from ..recovery.resume import Resume

if TYPE_CHECKING:  # both use an engine
    from .requests import Requests
    from .waiter import Waiter

__all__ = ["Engine", "EnvSpaces", "OpenedEnvs", "ResumeLike"]


@dataclass(frozen=True)
class EnvSpaces:
    """Spaces of one env; all envs of a pool have the same.

    Engines compare successors with them, and requests are checked by them. So they belong to the pool, and neither an
    env nor the caller gets them: `copy` makes others for these.

    Attributes:
        observation_space, action_space: of Gymnasium.
        reward_space: see `reward_spaces.find_reward_space`; None: a reward is one number.
        obs: layout of observations in a row.
        action: layout of actions.
    """

    observation_space: Space[Any]
    action_space: Space[Any]
    reward_space: Any
    obs: Spec
    action: Spec

    @classmethod
    def of(cls, source: Any, options: PoolOptions) -> EnvSpaces:
        """Read the spaces of an env.

        Args:
            source: an env, or the `BuildReport` of a worker about one.
            options: `strict` and `ignores_extra_keys` matter for the layouts.

        Raises:
            SpaceError: the observation space or the action space is not a space of Gymnasium.
        """
        spaces = source.observation_space, source.action_space
        for name, space in zip(("observation_space", "action_space"), spaces):
            if not isinstance(space, Space):
                raise SpaceError(f"{name}: expected a gymnasium Space, got {type(space).__name__}", path=name)
        strict, ignores_extra = options.strict, options.ignores_extra_keys
        obs = Spec(spaces[0], "obs", strict=strict, ignores_extra=ignores_extra)
        action = Spec(spaces[1], "action", strict=strict, ignores_extra=ignores_extra)
        return cls(*spaces, find_reward_space(source), obs, action)

    @property
    def reward_shape(self) -> tuple[int, ...]:
        """Shape of one reward: () for one number."""
        return reward_shape_of(self.reward_space)

    def copy(self) -> EnvSpaces:
        """Return the same layouts with copies of the spaces; see `copy_spaces`."""
        observation_space, action_space, reward_space = copy_spaces(
            self.observation_space, self.action_space, self.reward_space
        )
        return EnvSpaces(observation_space, action_space, reward_space, self.obs, self.action)

    def plan_arena(self, num_envs: int, num_slots: int, envs_per_slot: int, options: PoolOptions) -> ArenaPlan:
        """Lay out the shared memory of a pool with these spaces.

        `num_slots` includes slots in reserve; `envs_per_slot` is the most envs that one slot serves.
        """
        # Lending small blocks gains nothing, and in debug mode expired batches are overwritten.
        nbytes = num_envs * sum(leaf.nbytes for leaf in self.obs.leaves)
        may_lend = nbytes >= MIN_NBYTES and not self.obs.num_objects and not options.debug
        return ArenaPlan(
            num_envs=num_envs,
            num_slots=num_slots,
            obs=self.obs,
            action=self.action,
            reward_shape=self.reward_shape,
            depth=options.depth,
            has_final=options.final_obs or options.autoreset == Autoreset.SAME_STEP,
            envs_per_slot=envs_per_slot,
            leases=options.leases if may_lend else 0,
            is_timed=options.timings,
        )


@dataclass(frozen=True)
class OpenedEnvs:
    """The result of `Engine.open`: envs that are built and wait for commands.

    Attributes:
        spaces: of one env.
        properties: name, metadata, spec and render_mode of env 0, as far as they pickle.
        implementation: 'native', or 'python' for rows without C.
        plan: layout of the arena.
        memory: the buffer that the arena lies in, page aligned and `plan.nbytes` long. It stays mapped for as long as
            anything references it, after `Engine.close` as well: batches are views of it.
        counters: the buffer that the counters of the arena lie in, `plan.counters.nbytes` long.
        hub: commands go in, rows and messages come out. A slot of the hub runs some envs one after the other: it is a
            thread of a worker, or a whole machine.
        slots: which slot serves an env, and which worker has a slot; None: one slot serves all envs, or the
            envs are in shards.
        journal: the log of requests from which envs are restored; None: the engine needs no log.
        listener: receives the messages of workers about recovery; None: such messages are ignored.
        before_request: called before steps or resets are sent, until it returns False. The engine may replace or add
            workers in it. None: not called.
        dump_payload: returns a payload as the host loads it: pickled, or a copy if the envs live in this process.
        first_env_id: number of env 0 in messages, if the envs are a part of those of another pool.
    """

    spaces: EnvSpaces
    properties: dict[str, Any]
    implementation: str
    plan: ArenaPlan
    memory: Any
    counters: Any
    hub: Hub
    slots: SlotTable | None = None
    journal: Journal | None = None
    listener: Listener | None = None
    before_request: Callable[[], bool] | None = None
    dump_payload: Callable[[Payload], Any] = field(default=messages.dump)
    first_env_id: int = 0


class Engine(WorkerDirectory):
    """Builds and runs the envs of a pool; a subclass overrides the methods that concern it.

    A pool calls its engine in this order; everything between `connect` and `close` in any order and number:

        open -> connect -> serve | handle | repair | kill | restart | ... -> close

    Threads. All of these are called with the lock of the pool, by one thread at a time, in the process that made the
    engine. `interrupt` is the exception; `statistics`, `set_limits` and the names of `WorkerDirectory` need no lock
    either. A forked child calls none of them.

    Signals. A handler may raise between any two instructions, as that of Ctrl-C does. If `open` is interrupted, `close`
    follows. After any other interruption the next call must find a usable state: steps that belong together
    go into `with signals_deferred():`, which should be short. No descriptor, process or memory may be lost.

    Failures. A wait must not wait for an answer that can never come. So it passes each of its events to `handle`, which
    records the part that has failed, and then calls `repair`. This replaces the part, so that the answer comes, or
    raises. As long as a failed part is not replaced, `has_dead` is True and `repair` raises if its envs owe an answer
    or are called.

    An engine that replaces workers
        * makes a `Journal` and a `Recovery` in `open`, and gives them to the pool in `OpenedEnvs`;
        * takes all messages first, `waiter.inbox.poll()`, once the failed process can write no more;
        * reads the remaining commands from the hub (`Hub.requeue`), and from the journal how to restore each env
          (`Requests.new_jobs`, `Recovery.plan`), and sends both to the successor with the payloads again
          (`Hub.resend_payloads`, `Requests.payload_of`);
        * answers lost calls itself (`Inbox.reply_to_call`), since collecting calls waits for each one;
        * calls `waiter.request_check()` as soon as it knows of a failure, else the next receive waits for rows alone.

    Args:
        env_fns: one constructor per env.
        options: of the pool.
        snapshotter: captures the states of envs; None: they are not captured.
        resume: the state of another pool, whose episodes are continued, or a function that returns it, given the spaces
            of one env, None if they are not known yet, and the implementation; None: all envs are new.

    Attributes:
        env_fns: one constructor per env.
        num_envs: how many envs, with ids 0 .. num_envs - 1.
        options: of the pool. Limits may change, see `set_limits`.
        runs_here: whether envs run in the thread that waits, inside `serve`. Else they run by themselves.
        recovery: decides about failures; None: they are raised. Set by `open`.
        snapshotter: as given.
        end_if_unclosed: ends what would outlive the program if the pool is never closed, such as processes; called once
            the pool is garbage, or when the interpreter exits. It must reference neither the engine nor the pool, and
            may be called after `close` and repeatedly. None: there is no such thing.
    """

    runs_here = False
    recovery: Recovery | None = None

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        options: PoolOptions | None,
        snapshotter: Snapshotter | None = None,
        resume: ResumeLike | None = None,
    ) -> None:
        self.snapshotter = snapshotter
        self._resume: Any = resume
        self.env_fns = check_env_fns(env_fns)
        self.num_envs = len(self.env_fns)
        self.options = check_options(options or PoolOptions())
        self.end_if_unclosed: Callable[[], None] | None = None

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process id of each worker, by worker_id; () without worker processes on this machine.

        Empty before `open`. The ids of replaced workers change; recovery may add workers behind the others.
        """
        return ()

    # ---- start and end -----------------------------------------------------------------------

    def _read_resume(self, spaces: EnvSpaces | None, implementation: str) -> Resume | None:
        """Return the state of the pool to continue, when the spaces of the envs are known.

        An engine that needs the state earlier calls this before with `spaces=None`, and then with the spaces, which are
        compared.
        """
        resume: Resume | None = self._resume(spaces, implementation) if callable(self._resume) else self._resume
        if spaces is not None:
            self._resume = resume
        return resume

    def _take_over(self, requests: Requests) -> None:
        """Have the requests continue those of another pool, if there is one; called in `connect`."""
        if self._resume is not None:
            requests.resume(self._resume)
            if self.recovery is not None and self._resume.seeds is not None:  # else the pool above writes the line
                self.recovery.begin_loading(self._resume.restore_jobs)

    def take_resume(self) -> Resume | None:
        """Return that state, and drop it; called once, after `connect`."""
        resume: Resume | None = self._resume
        self._resume = None
        return resume

    def open(self, check_not_closing: Callable[[str], None]) -> OpenedEnvs:
        """Build all envs, learn their spaces, and make them ready for commands.

        Args:
            check_not_closing: raises ClosedError if another thread or a signal handler has closed the pool. Call it at
                least every 50 ms while something is awaited, with the name of the operation ('construct', 'start').
                `serve` may call it too.

        Raises:
            ConfigError: memory, processes or pickling failed.
            SpaceError: an env's spaces differ from env 0's, or are none.
            WorkerTimeoutError: the constructors took longer than `options.limits.construct` seconds.
            WorkerDiedError: a worker died while it built its envs.
            Exception: the exception of an env's constructor, with the remote traceback as its cause, and a note that
                names the env.
        """
        raise NotImplementedError

    def connect(self, requests: Requests, waiter: Waiter) -> None:
        """Take the parts of the pool that failures of workers concern; called once, right after `open`."""

    def close(self, timeout: float | None) -> Exception | None:
        """End all envs and workers and release all descriptors and processes; called once, also if `open` failed.

        References to the parts of `connect`, to the hub and to the memory must be dropped.

        Args:
            timeout: seconds that workers have to end their operation and to close their envs, before they are killed;
                None: `options.limits.close`.

        Returns:
            The first exception that an env's `close` has raised, with the remote traceback as its cause; None: none.
        """
        raise NotImplementedError

    def interrupt(self) -> None:
        """Make the current wait return soon, or the operation of an env in this thread be the last one.

        Called by other threads and by signal handlers at any time, also before `open` and after `close`, and possibly
        while `open` runs. It must not block.
        """
        raise NotImplementedError

    # ---- while envs are there ----------------------------------------------------------------

    def serve(self) -> None:
        """Run envs until they have nothing to do; nothing happens where they run by themselves.

        Called before every wait, and before rows that are there are looked for.

        Raises:
            ClosedError: the pool was closed during the call.
            KeyboardInterrupt: Ctrl-C during an env's operation; the command of that env is cancelled.
        """

    def running(self) -> int:
        """Return the step_id of the command that an env of this process runs; 0: none does. Any thread may ask."""
        return 0

    def handle(self, event: Event | WorkerTimeoutError) -> None:
        """Record the failure that an event of a wait reports, if it reports one, for `repair`.

        If workers have sent log records, these are passed to the loggers of this process.

        Args:
            event: the event that has ended the wait. For an operation over its limit it is an error of the watchdog,
                whose `worker_id`, `env_ids`, `op` and `step_id` name the operation. The engine may append to its text.

        Raises:
            WorkerTimeoutError, WorkerDiedError: the policy allows no replacement.
        """
        if isinstance(event, WorkerTimeoutError):
            raise event

    def repair(self) -> None:
        """Replace workers that have failed; raise if an env owes an answer, or is called, and its worker is dead.

        Called after each event but a message, when a wait begins that is not sure to be short, and in every round of a
        wait for calls.

        Raises:
            WorkerDiedError: with one note for each further dead worker that owes an answer.
            Exception: a replacement failed.
        """

    def has_dead(self) -> bool:
        """Return whether a worker is dead and not replaced, so that waits must call `repair`."""
        return False

    def envs_of(self, worker_id: int) -> list[int]:
        """Return the ids of the envs that a worker hosts, ascending.

        Raises:
            StateError: this engine has no workers.
        """
        raise StateError("envs_of: the envs live in this process; there are no workers")

    def kill(self, worker_id: int) -> None:
        """End a worker at once, with everything that its envs have started. It is dead until `restart`.

        Raises:
            StateError: this engine has no workers.
        """
        raise StateError("kill: the envs live in this process; there are no workers")

    def restart(self, worker_id: int, new_envs: Sequence[int] | None = None) -> None:
        """Replace a worker, dead or alive, by a new one that builds the same envs; see `Pool.restart`.

        Raises:
            StateError: this engine has no workers.
            Exception: as `open`, for the envs of this worker; the worker is dead then.
        """
        raise StateError("restart: the envs live in this process; there are no workers")

    def set_limits(self, limits: Limits) -> None:
        """Change `options.limits`; may be called before `open` and after `close`.

        Raises:
            ConfigError: a limit is not a number of seconds above 0.
        """
        self.options = check_options(dataclasses.replace(self.options, limits=limits))

    def shards(self) -> Shards:
        """Return the state and the node of every shard; [] if the envs live on this machine."""
        return Shards()

    def read_times(self) -> tuple[EnvTimes, WorkerTimes] | None:
        """Return the times of envs and workers on other machines, as they are known; None: the counters have them.

        Needs no lock, and may be called before `open` and after `close`.
        """
        return None

    def ask_times(self, must_end: Callable[[], bool]) -> None:
        """Ask other machines for their times, and wait a short time for the answers, for `read_times`.

        The wait ends soon after `must_end()` has become true; the answers then arrive during later calls.
        """

    def statistics(self) -> dict[str, Any]:
        """Return counts of failures since the start, as `Pool.statistics` names them; {} if there are none to count.

        May be called before `open` and after `close`.
        """
        return {}


#: The state of another pool, or a function that returns it: see `Engine`.
ResumeLike = Resume | Callable[[EnvSpaces | None, str], Resume]
