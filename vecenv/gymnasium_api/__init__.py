"""The parts of Gymnasium's interface that the whole package relies on.

registrations   the registry of envs, and its state in other processes
reset_options   whether `reset` of an env takes options
first_seeds     seeds of generators that an env has not made yet
replaying       whether an env is stepped again to restore it
reward_spaces   the space of rewards, which some envs have
"""
