"""State of an env at the start of an episode, so that the episode can be repeated after a crash."""
