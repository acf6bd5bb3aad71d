"""Programs to read and to run: `python -m vecenv.examples.collector` and others."""
