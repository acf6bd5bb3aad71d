"""Values that pickle and cannot be unpickled, and an env that returns one."""

from __future__ import annotations

from typing import Any

from vecenv.envs import toys


class BrokenPickle:
    """Can be pickled, but not unpickled."""

    def __reduce__(self) -> Any:
        return _refuse_to_be_made, ()


def _refuse_to_be_made() -> None:
    raise LookupError("nothing of that kind here")


class BrokenPickleInfo(toys.CountEnv):
    """Its second step returns an info that cannot be unpickled."""

    def make_info(self) -> dict[str, Any]:
        return {"odd": BrokenPickle()} if self.elapsed_steps == 2 else super().make_info()
