"""Tests of vecenv.wrappers."""
