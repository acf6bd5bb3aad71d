"""Tests of vecenv; a package so that tests share `tests.spaces`."""
