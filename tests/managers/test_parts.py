"""Structure of the managers: parts own their state, and classes inherit at most three deep."""

from __future__ import annotations

import ast
import inspect
from collections import defaultdict
from pathlib import Path

import pytest

import vecenv.managers
from vecenv.managers.manager import EnvManager

FOLDER = Path(vecenv.managers.__file__).parent
FILES = sorted(FOLDER.glob("*.py"))
NAMED_TUPLE_METHODS = {"_replace", "_make", "_fields"}
# Names of parts in managers and in other parts.
PARTS = {
    *("self._agent_infos", "self._counts", "self._last_obs", "self._manager_pool"),
    *("self._layout", "self._resets", "self._spaces"),
}
# DI-engine's SubprocessEnvManagerV2 is a SyncSubprocessEnvManager, which is a BaseEnvManager.
FOUR_DEEP = {"SubprocessEnvManagerV2"}


def classes_of(path):
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]


def bases_of(node):
    return [base.id for base in node.bases if isinstance(base, ast.Name)]


CLASSES = {node.name: (path, node) for path in FILES for node in classes_of(path)}


def ancestors(name):
    """Return the names of a class and of its bases in the managers."""
    found = [name]
    for base in bases_of(CLASSES[name][1]):
        found += ancestors(base) if base in CLASSES else []
    return found


def depth(name):
    return 1 + max((depth(base) for base in bases_of(CLASSES[name][1]) if base in CLASSES), default=0)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_parts_read_no_private_attribute_of_another(path):
    found = [
        f"{path.name}:{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in NAMED_TUPLE_METHODS
        and ast.unparse(node.value) not in ("self", "cls", "super()")
    ]
    assert not found


def test_attributes_are_set_in_one_file():
    """An attribute of a class is set by methods in one file, those of its bases included."""
    own = {
        name: {
            attribute.attr
            for attribute in ast.walk(node)
            if isinstance(attribute, ast.Attribute)
            and isinstance(attribute.ctx, ast.Store)
            and ast.unparse(attribute.value) == "self"
        }
        for name, (_, node) in CLASSES.items()
    }
    for name in CLASSES:
        files = defaultdict(set)
        for ancestor in set(ancestors(name)):
            for attribute in own[ancestor]:
                files[attribute].add(CLASSES[ancestor][0].name)
        assert {attribute: names for attribute, names in files.items() if len(names) > 1} == {}


def test_attributes_of_parts_are_set_by_the_part():
    """`self._part.attribute = value` is not allowed: the part has a method for it."""
    found = [
        f"{path.name}:{node.lineno}: {ast.unparse(node)}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) in PARTS
    ]
    assert found == []


def test_classes_inherit_at_most_three_deep():
    assert {name for name in CLASSES if depth(name) > 3} == FOUR_DEEP
    assert all(depth(name) == 4 for name in FOUR_DEEP)


def test_managers_are_instances_of_the_documented_bases():
    managers = vecenv.managers
    for cls in (managers.SyncSubprocessEnvManager, managers.AsyncSubprocessEnvManager, managers.BaseEnvManagerV2):
        assert issubclass(cls, managers.BaseEnvManager)
    assert issubclass(managers.SubprocessEnvManagerV2, managers.SyncSubprocessEnvManager)
    assert all(
        issubclass(getattr(managers, name), EnvManager)
        for name in managers.__all__
        if "Manager" in name and inspect.isclass(getattr(managers, name))
    )
