"""The worker's end: it steps envs, writes their answers, and brings them back after a crash.

host            drives the envs of one slot
slot            interface of a slot: queue, doorbell, rows
shortcut        calls of the innermost env past the wrappers of `gymnasium.make`
checks          validation of the values that an env returned
global_rngs     streams of the global random generators, one per env
snapshots       states of envs, taken between two episodes
replay          repeats the calls of an env in the successor of a dead worker
"""
