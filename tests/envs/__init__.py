"""Mirrors vecenv.envs."""
