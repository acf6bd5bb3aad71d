"""The engine: pools of workers that step envs and answer in batches.

Along the data path, more or less as they build on each other (`tests/test_layers.py` has the order):

    clock, shm, threads, stacks     time and deadlines; memory; numeric libraries; stacks of workers
    spec, arena, rows, infos        what a row holds, where it lies, its words, the cells of its info
    native                          C or Python
    streams                         global random generators of each env's own
    mail                            what has no column
    hub, batch, leases              the parent's end: actions out, rows in; what the caller gets, and may keep
    host                            the worker's end: the envs of one slot (the slot itself: native/slot.h)
    twin_*                          hub and slot where there is no C; begin with `twin_words`
    worker                          the process around hosts
    preload, spawning, supervise,   starting, ending and killing workers
    crew
    options, inbox, watchdog        what a pool is told; whose mail is whose; who is late
    life, waist, sending,           a pool, the waist that everything above stands on, in parts
    receiving, pool
    serial, process                 its engines: envs in this process, envs in workers

When a worker dies or hangs:

    deaths                          hears of it
    recovery                        decides what follows; `recycling` replaces workers that are well
    journal, pages                  what its envs were asked
    keeping                         from which state on
    replay                          does that again inside its successor
    reproducer                      puts it into a file where that fails, too
"""
