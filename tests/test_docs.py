"""The site of the documentation: every page is in the navigation, every public name in the API pages.

`.ci/docs` builds the site, and checks the links.
"""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import Any

import vecenv
import vecenv.alf
import vecenv.ding
import vecenv.managers
import vecenv.wrappers

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def pages_in_navigation() -> list[str]:
    """Return the pages that `mkdocs.yml` lists. PyYAML need not be there: each is the end of a line."""
    _, _, navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")
    return re.findall(r"^ +- .*: (\S+\.md)$", navigation, flags=re.MULTILINE)


def documented_names() -> list[str]:
    """Return the names of all blocks `::: name` that have no options: those show one public name each."""
    return [
        name
        for page in sorted((DOCS / "api").glob("*.md"))
        for name in re.findall(r"^::: (\S+)$(?!\n +options:)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    ]


def value_of(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def names_of_integrations() -> list[str]:
    """Return the public names of `vecenv.integrations`, whose modules need not be importable here."""
    folder = ROOT / "vecenv" / "integrations"
    found = []
    for file in [*folder.glob("*.py"), *folder.glob("*/__init__.py"), folder / "envpool" / "legacy.py"]:
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                found += [f"{module}.{name}" for name in ast.literal_eval(node.value)]
    return found


def test_navigation_lists_each_page_once():
    pages = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
    assert sorted(pages_in_navigation()) == pages


def test_api_pages_have_each_public_name_once():
    parts = [vecenv.alf, vecenv.managers, vecenv.wrappers]
    expected = [f"vecenv.{name}" for name in vecenv.__all__ if name != "__version__"]
    expected += [f"{part.__name__}.{name}" for part in parts for name in part.__all__]
    expected += names_of_integrations()
    names = documented_names()
    assert len(names) == len(set(names))
    assert set(expected) - set(names) == set()
    # The other blocks show the other names of DI-engine. A block may have the path of the module that defines a name.
    others = [*vecenv.__all__, *vecenv.managers.__all__, *vecenv.wrappers.__all__]
    rest = sorted(set(names) - set(expected), key=lambda path: path.rpartition(".")[2])
    ding = {name: getattr(vecenv.ding, name) for name in vecenv.ding.__all__ if name not in others}
    assert [path.rpartition(".")[2] for path in rest] == list(ding)
    assert [path for path, value in zip(rest, ding.values()) if value_of(path) is not value] == []
