"""Mirrors vecenv.wrappers."""
