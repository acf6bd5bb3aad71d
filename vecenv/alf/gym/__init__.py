"""Gymnasium envs as ALF environments, and the wrappers that stand below time steps."""
