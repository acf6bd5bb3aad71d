"""Who may import whom, as data. Imports point down: see the tables."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "vecenv"

BASE = {"checks", "errors", "config", "registry", "replaying", "tree"}
ENGINE = {"core", "_native"}
INSIDE = {"envs", "wrappers"}
FACES = {"vector", "alf", "integrations", "examples"}

# Part of the package -> parts that it may import, beside itself.
MAY_IMPORT = {
    "__init__": set(),
    "errors": set(),
    "checks": {"errors"},
    "config": {"errors"},
    "registry": {"errors"},
    "replaying": set(),
    "tree": {"errors"},
    "core": BASE | {"_native"},
    "envs": BASE,
    "wrappers": BASE | {"envs"},
    "managers": BASE | ENGINE | INSIDE,
    **{face: BASE | ENGINE | INSIDE | {"managers", "vector"} for face in FACES - {"examples"}},
    "examples": BASE | INSIDE | FACES | {"managers", "__init__"},
    "cli": BASE | ENGINE | INSIDE | FACES | {"managers", "__init__"},
    "__main__": {"cli"},
}

# Exceptions: one file -> what it may import beyond its part.
MAY_ALSO_IMPORT = {
    "managers/gym_vector.py": {"vector"},  # is built on it
    "envs/ding.py": {"wrappers"},  # applies wrappers by name
}

# Part -> foreign libraries that it may import; the parts in ANY_LAZILY import others in functions.
FOREIGN = {
    "errors": set(),
    "checks": {"numpy"},
    "config": set(),
    "registry": set(),
    "replaying": set(),
    "tree": {"numpy"},
    "core": {"numpy", "cloudpickle", "psutil"},
}
FOREIGN_DEFAULT = {"numpy", "gymnasium", "cloudpickle", "psutil"}
FOREIGN_ALSO = {
    "core/spec.py": {"gymnasium"},
    "core/registrations.py": {"gymnasium"},
    "core/shortcut.py": {"gymnasium"},
    "core/preload.py": {"gymnasium"},  # only to have it loaded
    "cli/report.py": {"rich"},  # imported by the commands once they have checked for it
}
ANY_LAZILY = {"envs", "wrappers", "managers", "cli"} | FACES

# Inside core a module imports only what stands before it.
CORE_ORDER = [
    "clock", "shm", "signals", "control", "threads", "stacks", "registrations", "imports", "spec", "arena", "rows",
    "infos", "native", "streams", "mail", "hub", "batch", "leases", "options", "pages", "history", "journal", "inbox",
    "watchdog", "copies", "replay", "keeping", "slot", "shortcut", "returned", "host",
    "twin_words", "twin_records", "twin_values", "twin_watch", "twin_slot", "twin_ledger", "twin_hub",
    "twin_socket", "twin_local", "home", "worker",
    "preload", "spawning", "supervise", "crew", "reproducer", "recovery", "recycling",
    "life", "waist", "sending", "receiving", "pool", "serial", "deaths", "process",
]  # fmt: skip

FILES = sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, bool, int]]:
    """Yield each imported module's full dotted name, whether it is imported at the top, and the line."""
    package = ["vecenv", *path.relative_to(PACKAGE).parts[:-1]]
    tree = ast.parse(path.read_text())
    lazy = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            # `from vecenv.core import ring` imports vecenv.core.ring
            names = [f"{module}.{alias.name}" for alias in node.names] if module.startswith("vecenv") else [module]
        else:
            continue
        for name in names:
            yield name, id(node) not in lazy, node.lineno


def violations(path: Path) -> Iterator[str]:
    file = path.relative_to(PACKAGE).as_posix()
    part = file.partition("/")[0].removesuffix(".py")
    allowed = MAY_IMPORT[part] | {part} | MAY_ALSO_IMPORT.get(file, set())
    foreign = FOREIGN.get(part, FOREIGN_DEFAULT) | FOREIGN_ALSO.get(file, set())
    for name, at_top, line in imports(path):
        top, *rest = name.split(".")
        if top == "vecenv":
            target = rest[0] if rest and rest[0] in {*MAY_IMPORT, "_native"} else "__init__"
            if target not in allowed and part != "__init__":  # which imports all, for the type checker only
                yield f"{file}:{line} {part} may not import {name}"
            if part == target == "core" and not core_order_holds(path.stem, rest):
                yield f"{file}:{line} stands before {name} on the data path"
        elif top not in sys.stdlib_module_names and top not in foreign and (at_top or part not in ANY_LAZILY):
            yield f"{file}:{line} may not import {name} {'at its top' if part in ANY_LAZILY else ''}"


def core_order_holds(importer: str, rest: list[str]) -> bool:
    if importer not in CORE_ORDER or len(rest) < 2 or rest[1] not in CORE_ORDER:
        return True  # test_every_core_module_has_its_place names those without
    return CORE_ORDER.index(rest[1]) < CORE_ORDER.index(importer)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_point_down(path):
    assert list(violations(path)) == []


def test_every_core_module_has_its_place():
    modules = {path.stem for path in (PACKAGE / "core").glob("*.py")} - {"__init__"}
    assert modules <= set(CORE_ORDER)


def test_the_parts_are_those_of_the_table():
    parts = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts <= set(MAY_IMPORT)
