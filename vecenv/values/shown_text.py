"""ShownText: results that a notebook shows as `print` does."""

from __future__ import annotations

import html
from typing import Any

__all__ = ["ShownText"]


class ShownText:
    """Shows the text of an object, `str`, as the last value of a notebook cell or of IPython."""

    def _repr_pretty_(self, printer: Any, is_cyclic: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"
