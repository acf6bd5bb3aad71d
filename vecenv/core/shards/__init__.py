"""Shards: pools in other processes or on other machines, behind one pool of the driver.

    sharded_engine       the engine of the driver's pool
    shard_status         the state of one shard
    shard_starts         starts processes of shards, limits the time that they take, and reads their reports
    shard_supervisor     fences and replaces lost shards, and handles the notices of all shards
    shard_log_records    log records of shards, until the loggers of the driver get them
    shard_hub            the hub of the driver's pool: commands to all shards, rows and messages from them
    newest_commands      which env owes which answer
    row_store            the newest row and record of each env, and batches of these rows
    shard_link           numbered requests to one shard, each executed exactly once
    carrier              the interface to the transport; local_carrier: child processes
    shard                the other end: a pool that executes numbered requests
    shard_engine         the engine of this pool: worker processes, or the process of the shard
    requests             the contents of a request
    shard_counters       copies of the counters of a shard, which travel with replies
    shard_table          counters of shards for `vecenv top`
    shard_times          times of envs and workers in shards, joined
    frames               replies as flat buffers, which travel in pieces

A task is a function that runs in a shard and commands its envs by itself, such as a collector with its policy:

    task_calls           the driver's end of one call of a task
    task_runner          runs the tasks of a shard, in a thread
    recorded_pool        the pool as a task uses it, which records its commands for the journal of the driver
"""
