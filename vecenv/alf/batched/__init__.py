"""Batched environments: many envs in worker processes (`parallel`), or one env in a thread (`thread`)."""
