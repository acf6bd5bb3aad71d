"""Start, end and kill worker processes.

worker_main     the process around hosts
builder         builds the envs of a worker in its threads
worker          one worker, as its parent has it
slots           which slot serves an env, which worker has a slot
worker_group    all workers of a pool, with their descriptors and memory
worker_output   the lines that workers write while they build envs, equal ones once
measure         the cost of one env
preload         modules of the main fork server
env_modules     the modules that env factories need
import_client   starts import servers, which import those modules once, and chooses one
import_server   an import server itself
standby         the process of a worker that an env server lends to one pool after the other
env_stock       the envs that such a worker has built, and the env factory that takes them
leased_workers  the connection of a pool to an env server
shared_generators   random generators of modules that forked workers would share
"""
