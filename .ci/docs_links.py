"""A hook of MkDocs: links from pages to files outside `docs/`, such as `../native/README.md`.

In the repository such a link opens the file, but the site does not contain it. With `repo_url` in `mkdocs.yml` the
link leads to the file there. Without it, only the path remains. A file that does not exist fails the build.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\[([^\]]*)\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")
_LOG = logging.getLogger("mkdocs.hooks.docs_links")  # below "mkdocs", so that a warning ends a strict build


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Return the page with its links to files outside `docs/` replaced."""
    root = Path(config.config_file_path).parent
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def replace(link: re.Match[str]) -> str:
        text, target, anchor = link.groups()
        path = posixpath.normpath(posixpath.join(folder, target))
        if path.startswith("docs/"):
            return link[0]
        if not (root / path).exists():
            _LOG.warning("%s contains a link to %s, which does not exist", page.file.src_uri, path)
        if config.repo_url:
            return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{path}{anchor or ''})"
        return f"`{path}`" if text.strip("`") == path else f"{text} (`{path}`)"

    return _LINK.sub(replace, markdown)
