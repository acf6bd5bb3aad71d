"""Start, end and kill worker processes.

worker_main     the process around hosts
builder         builds the envs of a worker in its threads
worker          one worker, as its parent has it
worker_group    all workers of a pool, with their descriptors and memory
worker_output   the lines that workers write while they build envs, equal ones once
measure         the cost of one env
preload         modules that the fork server imports once
"""
