"""Checks that an env follows the rules on which the engine relies."""
