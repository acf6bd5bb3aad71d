"""Verdicts about the speed of a pool, and the settings that they lead to.

times           reads the times of envs, workers and the caller
facts, profile  the facts and numbers that rules need
rules           verdicts about the speed of a pool
waiting         finds envs that wait most of their time
sizing          the model of a round: workers, threads, spare envs, resets and other programs
auto            how many workers and threads fit a measured env
"""
