"""Tests of the board games."""
