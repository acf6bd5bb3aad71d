"""Programs written for other systems, with their imports changed: same calls, same outcomes."""
