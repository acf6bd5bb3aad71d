"""The engine: pools of workers that step envs and answer in batches.

One step of all envs passes these files (files of native/ in brackets):

    pool/requests       check the actions, write them into the rows of the envs    [parent/hub_send]
    parent/hub          queue the commands and wake the workers                    [shm/request, shm/park]
    host/host           the worker takes the action and calls env.step             [worker/serve]
    host/slot           write the five values into a row, commit the row           [worker/row, py/tree, shm/claim]
    pool/waiter         wait until enough rows are committed                       [shm/wait, parent/hub_recv]
    parent/batch        views of these rows

Rooms. A room imports the rooms below it only (`tests/test_layers.py`); each has its own list of files:

    pool        the interface that all front ends stand on
    recovery    the log of the calls of each env, and the decisions after a failure
    processes   starting, ending and killing workers
    fallback    the extension's interface in Python
    parent      the parent's end: actions out, batches in
    host        the worker's end: envs, their answers, their return after a crash
    layout      the contents of a row, and the address of each value
    system      the operating system; knows no env

`options.py` beside the rooms has the options of a pool.

Words:

    slot        a thread of a worker that takes commands: a queue, a doorbell, some envs
    hub         the parent's end of all slots; a host drives the envs of one slot
    block       N rows of one batch, column by column; a ring of them lies in the arena
    row         one answer of an env: observation, reward, flags, info cells; it stands at a place, in an epoch
    commit      a row is whole: its word in the block is the epoch now
    claim       a worker takes the next free row of the open block
    seal        the parent closes the open block to further claims
    lease       a block that the caller may keep
    command     a step, reset or call of one env, numbered by step_id
    journal     the commands of each env since a point from which it can be built again
    record      a digest of the newest answers of an env; its successor is compared with that
"""
