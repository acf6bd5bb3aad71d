"""Gymnasium envs as ALF environments, and Gymnasium wrappers that are applied below time steps."""
