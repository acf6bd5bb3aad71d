"""Checks of an env against the rules that the engine relies on."""
