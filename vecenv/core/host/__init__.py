"""The worker's end: it steps envs, writes their replies into rows, and restores envs after a crash.

host              drives the envs of one slot
executor          runs one command on one env, and returns the answer: autoresets, seeds, generators, exceptions
slot              interface of a slot: queue, doorbell, rows
shortcut          steps the inner env directly, past the wrappers of `gymnasium.make`
checks            validation of the values that an env returned
caught            exceptions that end an episode, and envs that are built again
failure_budget    counts the failures of envs within a window of time
global_rngs       a separate state of the global random generators for each env
generator_states  their states, read from memory and set there
torch_generator   torch's global generator, and when torch is imported
snapshots         saved states of envs, usually taken between two episodes
replay            repeats the commands of an env in the worker that replaces a dead one
"""
