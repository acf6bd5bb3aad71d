"""What runs inside the workers: env classes, their translation to Gymnasium's calls, seeds, checks and toys."""
