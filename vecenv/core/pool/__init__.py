"""Pools: the interface that all front ends stand on, and the engines behind it.

pool            the public calls
face            the members that front ends have in common
recipe          makes the pool of a front end, saves both, and continues them
backends        makes a pool by the name of its engine
serial          an engine with the envs in the caller's process
process         an engine with the envs in worker processes
starting        time limits and log lines while envs are built
worker_starts   starts workers, the first ones and successors, and hands the arena to them
waiting_constructors   finds constructors that wait, and the room for further workers
spreading       moves envs that wait to further workers
death           the death or hang of a worker, from its notice to its successor
monitor         announces a pool to `vecenv top`
"""
