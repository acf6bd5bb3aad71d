"""The state of an env at the start of an episode, saved so that the episode can be repeated after a crash."""
