"""The code that runs in the workers: env classes, their adapters to Gymnasium's calls, seeds, checks and toys."""
