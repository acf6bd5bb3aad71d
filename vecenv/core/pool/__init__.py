"""Pools: the interface that all front ends stand on.

lifecycle       owner, lock and end of a pool
engine          state that both pools share
requests        checks and sends actions, resets and calls
waiter          waits for rows, messages, deaths and deadlines
pool            the public calls
serial          envs in the caller's process
process         envs in worker processes
supervisor      failures of workers
"""
