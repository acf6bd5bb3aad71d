"""Spare envs, which are reset ahead and take over the rows of envs whose episodes end.

envs            requests and receives of a pool with spare envs
queues          which env serves which row
resets          the seeds of spare envs, and their resets
answers         the answers that rows owe
rows            copies of rows, put together from answers of two envs
"""
