"""Board games."""
