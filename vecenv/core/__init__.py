"""The engine: pools of workers that step envs and answer in batches.

One step of all envs passes these files (files of native/ in brackets):

    operations/requests  check the actions, write them into the action rows  [parent/hub_send]
    parent/hub           queue one command per env and wake the workers      [shm/request, shm/park]
    recovery/journal     record the actions; most requests to all envs are recorded as they are sent   [parent/hub_send]
    host/host            the worker takes the action and calls env.step      [worker/serve]
    host/slot            write the five values into a row and commit the row [worker/row, py/tree, shm/claim]
    operations/waiter    wait until enough rows are committed                [shm/wait, parent/hub_recv]
    parent/batch         make views of these rows for the caller

A worker dies during a step. Its replacement passes these files:

    operations/waiter      the wait ends, because the worker's pidfd is readable             [shm/wait]
    pool/process           pass the event to `Supervisor.handle`, then call `Supervisor.repair`
    pool/death             `handle`, which only records:
    processes/worker         reap the process: it can write no more
    parent/inbox             take its last messages
    recovery/policy          `judge`: replace the worker, or raise; count failures; name envs to isolate
    pool/death             `repair`, which replaces:
    parent/hub               `requeue`: list its unanswered commands, clear its claimed rows [parent/hub_state]
    recovery/policy          `plan`: a `RestoreJob` for each env
    recovery/journal         `history`: the restore points and commands of each env
    processes/slots          a worker of its own for an env that fails again and again
    pool/worker_starts       start the successor; compare its spaces and code; hand over the arena and the jobs
    processes/worker_main    the successor builds the envs and maps the arena
    operations/requests      `payload_of`: send the payloads of the unanswered commands again
    host/host              the successor carries out the unanswered command and marks its row; it sends the `Outcome`
    host/replay            before that, repeat the commands of the env, compare digests      [worker/slot_records]
    parent/inbox           the outcome arrives with the row
    recovery/policy        count it, and write one log line

Envs that wait move to further workers, before a request:

    advice/waiting         the times of the envs show that they wait, and that more workers would be faster
    pool/process           costs and limits allow the move; the engine keeps a `Spreading` until all envs have moved
    pool/spreading         one env moves first; if its repeated answers are equal, the others follow
    pool/death             `add_workers`: close the envs in their workers, build them in new ones, move their slots
    host/host              `CloseHere`: the old worker closes an env and forgets it
    host/replay            the new worker restores it, as after a death

A shard has the same two verbs: `ShardSupervisor.handle` judges a loss, and its `repair` starts a successor.

A rollout in a shard (`Collector` with where='shards') is one message down and one up per shard:

    task_calls, shard_link   driver: a numbered request; the weights are a shared value, sent once per node
    shard, task_runner       the shard executes the request once, in a thread of its own
    collection/rollouts      policy and `BatchFiller` step the shard's pool; copy 1: rows into the columns of the batch
    recorded_pool            the commands are recorded for the journal of the driver
    shard, frames            copy 2: the columns are pickled; copy 3: into the frame, which is cut without a copy
    carrier                  the transport sends the pieces
    frames, shard_hub        driver: copy 4: the pieces are joined; copy 5: the columns are unpickled
    collection/shard_work    copy 6: the columns of all shards go into one batch, unless there is one shard

Rooms. A room imports only the rooms below it (`tests/test_layers.py`); the `__init__.py` of each lists its files:

    shards      pools in other processes or on other machines, behind one pool
    pool        the interface that all front ends stand on, and the engines behind it
    spares      envs that are reset ahead and take over rows
    operations  the requests and the wait of a pool, over the interface of engines
    advice      verdicts about the speed of a pool
    recovery    the log of the commands of each env, and the decisions after a failure
    processes   start, end and kill workers
    fallback    the interface of the C extension, in Python
    parent      the parent's end: actions out, batches in
    host        the worker's end: envs, their answers, their return after a crash
    layout      the contents of a row, and the address of each value
    system      the operating system; no file there knows an env

`options.py` beside the rooms contains the options of a pool.

Words:

    arena       the shared memory of a pool that its rows and actions lie in
    counters    the shared memory of a pool that other programs may read: progress, times, states of shards
    slot        a thread of a worker that runs commands: a queue, a doorbell, some envs
    hub         the parent's end of all slots; a host drives the envs of one slot
    executor    the part of a host that runs one command on one env; a replay uses it, too
    row         one answer of an env: observation, reward, flags, info cells; a row_ref is its address
    block       N rows, column by column; the ring of blocks lies in the arena
    row range   consecutive rows of one block that are delivered together
    epoch       the number of a use of a block; a row is committed when its word equals the epoch
    claim       a worker takes the next free row of the open block
    seal        the parent closes the open block to further claims
    straggler   a row that was claimed, but not committed when its batch was delivered
    lease       a block that the caller may keep
    command     a step, reset or call of one env, numbered by step_id
    payload     pickled arguments of a command; a reply is the pickled answer that has no column
    journal     the commands of each env since its restore point
    record      a digest of the newest answers of an env; its successor is compared with that
    shard       a pool in another process, which runs some of the envs of the driver's pool
    driver      the process with the pool that the caller uses, as seen from its shards
    carrier     the transport between the driver and its shards
    frame       a reply of a shard, as one flat buffer
    task        a function that runs in a shard and commands its envs by itself, such as a collector with its policy
    snapshot    the state of an env between two episodes, from which it can be restored
    resume      the state of a pool whose workers are lost, from which another pool continues
    park        sleep until a doorbell is rung

Recipe: a new column of a row. Each of these places changes:

    layout/columns.py       a line in COLUMNS, with the group to which the value belongs; the rest of Python follows it
    native/shm/layout.h     the same word at the same position of the enum, and VECENV_ABI
    native/worker/row.c     `write_row` stores the value
    fallback/slot.py        `_write_row` stores the value without C
    parent/batch.py         a property of `Batch`
    host/replay.py          only if the value must be the same after a recovery: restore it, and add it to the digest
                            [worker/slot_records, fallback/records]
    tests/core/layout       `test_native` compares both layouts; tests/contracts/test_columns.py has the value nonzero

Recipe: a further engine, beside `SerialEngine` and `ProcessEngine`. The class inherits from `Engine` of
operations/engine.py, whose docstrings have the full contract. `open` builds the envs and returns `OpenedEnvs`: spaces,
arena, hub, and a journal if envs can be restored. `serve` runs commands if the envs live in the calling thread.
`handle` records failures, and `repair` replaces what has failed. `close` ends everything within its limit. The suite
tests/contracts/test_pool.py runs over every engine.
"""
