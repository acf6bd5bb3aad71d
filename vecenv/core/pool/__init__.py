"""Pools: the interface that all front ends stand on.

pool            the public calls
face            the members that front ends have in common
lifecycle       owner, lock and end of a pool
requests        checks and sends actions, resets and calls
waiter          waits for rows, messages, deaths and deadlines
engine          the calls that an engine must provide
serial          an engine with the envs in the caller's process
process         an engine with the envs in worker processes
spare_envs      requests and receives of a pool with spare envs, which are reset ahead and take over rows
spare_queues    which env serves which row
spare_resets    the seeds of spare envs, and their resets
spare_answers   the answers that rows owe
spare_rows      copies of rows, put together from answers of two envs
starting        time limits and log lines while envs are built
worker_starts   starts workers, the first ones and successors, and hands the arena to them
monitor         announces a pool to `vecenv top`
times           reads the times of envs, workers and the caller
waiting         finds envs that wait most of their time
rules           verdicts about the speed of a pool
case, facts     the numbers and facts that rules need
backends        makes a pool by the name of its engine
sizing, auto    how many workers and threads fit a measured env
slots           which slot serves an env, which worker has a slot
death           the death or hang of a worker, from its notice to its successor
"""
