"""The option `--policy` of commands: `module:function`, a policy of the user."""

from __future__ import annotations

from typing import Any

from vecenv.errors import ConfigError
from vecenv.measurement.env_names import import_module
from vecenv.values.checks import nearest

__all__ = ["find_policy"]


def find_policy(name: str) -> Any:
    """Return the policy called `name`.

    Args:
        name: `module:function`, or a dotted path to a callable. A class is instantiated without arguments. Modules are
            looked for in the working directory too.

    Raises:
        ConfigError: the module cannot be imported, it has no such name, or the object is not callable.
    """
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        raise ConfigError(f"--policy {name}: expected module:function, such as my_policies:act")
    found: Any = import_module(name, module_name)
    for part in path.split("."):
        if not hasattr(found, part):
            guess = nearest(part, [known for known in dir(found) if not known.startswith("_")])
            hint = "" if guess is None else f"; did you mean {guess}?"
            raise ConfigError(f"--policy {name}: {module_name!r} has no {path!r}{hint}")
        found = getattr(found, part)
    if isinstance(found, type):
        try:
            found = found()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # of foreign code, of any class
            raise ConfigError(f"--policy {name}: cannot be made: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ConfigError(f"--policy {name}: expected a function policy(obs, env_id), got {type(found).__name__}")
    return found
