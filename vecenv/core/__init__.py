"""The engine: pools of workers that step envs and answer in batches.

One step of all envs passes here (files of native/ in brackets):

    sending     actions, checked, into the envs' rows      hub [hub_send, request]    rings doorbells [park]
    the worker wakes, takes the action, calls env.step     [serve]; what is rare: host
    the five values become a row, which is committed       [row, tree, claim]
    receiving   waits until enough rows are committed      hub [wait, ring, hub_recv]
    batch       views of those rows

Words:

    slot        a thread of a worker that takes commands: a queue, a doorbell, some envs
    hub         the parent's end of all slots; a host is what drives the envs of one slot
    block       N rows of one batch, column by column; a ring of them lies in the arena
    row         one answer of an env: observation, reward, flags, info cells; it stands at a place, in an epoch
    commit      a row is whole: its word in the block is the epoch now
    claim       a worker takes the next free row of the open block; a seal is the parent's, on what was not claimed
    late row    claimed, but not committed when its batch went out without it
    lease       a block that the caller may keep
    mail        pickled messages up, for what has no column; letters go down with a command
    command     a step, reset or call of one env, numbered by step_id
    journal     what each env was asked since its start, a point from which it can be built again
    record      what an env's newest answers were, as a digest, for its successor to be compared with
    keeper      looks into envs for a state to start from

The files, more or less as they build on each other (`tests/test_layers.py` has the order):

    clock, shm, signals, control,   time and deadlines; memory; what no handler interrupts; the sockets to workers;
    threads, stacks, registrations, numeric libraries; stacks of workers; what Gymnasium's registry is to have there;
    imports                         files of modules that no search path leads to
    spec, arena, rows, infos,       what a row holds, where it lies, its words, the cells of its info; copies of nested
    copies                          values
    native                          C or Python
    streams                         global random generators of each env's own
    mail                            what has no column
    hub, batch, leases              the parent's end: actions out, rows in; what the caller gets, and may keep
    slot, host, shortcut,           the worker's end: the envs of one slot (the slot itself: native/slot.h); past the
    returned                        wrappers of `gymnasium.make`; what an env gave, checked
    twin_*                          hub and slot where there is no C; begin with `twin_words`
    worker, home                    the process around hosts; on which core its threads are
    preload, spawning, supervise,   starting, ending and killing workers
    crew
    options, inbox, watchdog        what a pool is told; whose mail is whose; who is late
    life, waist, sending,           a pool, the waist that everything above stands on: one class in parts, each
    receiving, pool                 the base of the next
    serial, process                 its engines: envs in this process; envs in workers, over `deaths`

When a worker dies or hangs:

    deaths                          hears of it
    recovery                        decides what follows; `recycling` replaces workers that are well
    journal, pages, history         what its envs were asked
    keeping                         from which state on
    replay                          does that again inside its successor
    reproducer                      puts it into a file where that fails, too
"""
