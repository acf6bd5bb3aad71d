"""Wrappers above time steps, grouped by the part of a time step that they change."""
