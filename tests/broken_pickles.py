"""Values that pickle and cannot be unpickled, and an env that tells one."""

from __future__ import annotations

from typing import Any

from vecenv.envs import toys


class BrokenPickle:
    """Pickles, and cannot be made again."""

    def __reduce__(self) -> Any:
        return _refuse_to_be_made, ()


def _refuse_to_be_made() -> None:
    raise LookupError("nothing of that kind here")


class BrokenPickleInfo(toys.CountEnv):
    """Tells something in its second step that cannot be unpickled."""

    def make_info(self) -> dict[str, Any]:
        return {"odd": BrokenPickle()} if self.elapsed_steps == 2 else super().make_info()
