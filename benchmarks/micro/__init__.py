"""Micro runs: `python -m pytest benchmarks/micro`, one hot operation each, by pytest-benchmark."""
