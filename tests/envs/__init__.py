"""Tests of vecenv.envs."""
