"""Measurements of speed: the same envs are stepped in several ways, in short windows that take turns.

`vecenv bench`, `vecenv tune` and the programs in `benchmarks/` are built on it.

    target            the env to step, and actions that are made before the clock starts
    loops, measure    ways to step envs, plain loops among them, and the windows in which they are measured
    machine           cores, CPU clocks and stolen time, to print next to a number
    report            tables for a terminal, JSON and a bar chart for files
    env_names         the argument ENV of commands
"""
