"""Batches of environments: in worker processes (`parallel`), or one environment in a thread (`thread`)."""
