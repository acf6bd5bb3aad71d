"""The allowed imports, as data: parts of the package, rooms inside the parts, folders of C files.

Imports point down, and no file imports itself by way of others. Classes inherit at most three deep.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import vecenv

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "vecenv"
NATIVE = ROOT / "native"

# Rooms of a part, lowest first: a room imports the rooms before it, and files beside the rooms that import none above.
ROOMS = {
    "core": [
        "system",
        "layout",
        "host",
        "parent",
        "fallback",
        "processes",
        "recovery",
        "advice",
        "operations",
        "spares",
        "pool",
        "shards",
    ],
    "alf": ["base", "gym", "wrappers", "batched"],
    "envs": ["state", "check"],
}
# Folders of C files, lowest first; `shm` does without Python.h. `module.c` stands above them.
C_ROOMS = ["shm", "py", "worker", "parent"]

BASE = {
    "config",
    "env_snapshot",
    "errors",
    "gymnasium_api",
    "options",
    "own_log",
    "ray_options",
    "registry",
    "report",
    "saved_state",
    "statistics",
    "tree",
    "values",
}
ENGINE = {"core", "_native"}
INSIDE = {"envs", "wrappers"}
FRONT_ENDS = {"vector", "alf", "integrations"}

# Part of the package -> parts that it may import, beside itself.
MAY_IMPORT = {
    "__init__": set(),
    "errors": set(),
    "config": {"errors"},
    "env_snapshot": {"values"},
    "gymnasium_api": {"errors", "values"},
    "options": {"errors", "values"},
    "own_log": set(),
    "ray_options": {"errors", "values", "options"},
    "registry": {"errors"},
    "report": {"values"},
    "saved_state": {"__init__", "errors", "own_log", "values"},
    "statistics": {"values"},
    "tree": {"errors"},
    "values": {"errors"},
    "core": BASE | {"_native"},
    "envs": BASE,
    "wrappers": BASE | {"envs"},
    "ding": BASE | INSIDE | {"managers"},
    "managers": BASE | ENGINE | INSIDE,
    "policies": BASE | ENGINE,
    "collection": BASE | ENGINE | {"policies", "vector"},
    **{part: BASE | ENGINE | INSIDE | {"managers", "vector"} for part in FRONT_ENDS},
    "evaluation": BASE | ENGINE | INSIDE | {"policies", "vector"},
    "examples": BASE | INSIDE | FRONT_ENDS | {"cli", "collection", "evaluation", "managers", "__init__"},
    "serving": BASE | ENGINE | INSIDE | {"measurement"},
    "measurement": BASE | ENGINE | INSIDE | {"vector"},
    "tuning": BASE | ENGINE | INSIDE | {"measurement", "vector"},
    "cli": BASE
    | ENGINE
    | INSIDE
    | FRONT_ENDS
    | {"evaluation", "managers", "measurement", "serving", "tuning", "__init__"},
    "__main__": {"cli"},
}
# Exceptions: one file -> the parts that it may import beyond those of its part.
MAY_ALSO_IMPORT = {
    "managers/gym_vector.py": {"vector"},  # is built on it
    "integrations/ray/actor.py": {"__init__"},  # compares releases
    "core/processes/leased_workers.py": {"__init__"},  # the same
    "core/pool/backends.py": {"integrations"},  # makes an engine by its name, as that over Ray
}

# Part -> foreign libraries that it may import; the parts in ANY_LAZILY import others in functions.
FOREIGN: dict[str, set[str]] = {
    "errors": set(),
    "config": set(),
    "env_snapshot": set(),
    "options": set(),
    "own_log": set(),
    "ray_options": set(),
    "registry": set(),
    "report": set(),
    "statistics": {"numpy"},
    "tree": {"numpy"},
    "gymnasium_api": {"cloudpickle", "gymnasium", "numpy"},
    "values": {"cloudpickle", "numpy"},
    "core": {"numpy", "cloudpickle", "psutil"},
}
FOREIGN_DEFAULT = {"numpy", "gymnasium", "cloudpickle", "psutil"}
FOREIGN_ALSO = {
    "core/layout/spec.py": {"gymnasium"},
    "core/layout/bounds.py": {"gymnasium"},
    "core/layout/differences.py": {"gymnasium"},
    "core/operations/requests.py": {"gymnasium"},  # an error that is one of Gymnasium's, too
    "core/host/shortcut.py": {"gymnasium"},
    "core/processes/preload.py": {"gymnasium"},  # it must be loaded, no more
    "cli/top_screen.py": {"rich"},  # `top` imports it after it has required rich
}
ANY_LAZILY = {"envs", "wrappers", "managers", "measurement", "cli"} | FRONT_ENDS

# Classes that inherit from more than two levels of own classes -> the reason.
DEEPER = {
    "vecenv.managers.v2.SubprocessEnvManagerV2": "DI-engine documents these relations",
    "vecenv.vector.base.ClosedVectorEnvError": "`except ClosedError` and Gymnasium's class must catch it",
}
# Public names that begin with an underscore: of named tuples, and of the modules os and sys.
PUBLIC_NAMES = {"_asdict", "_fields", "_make", "_replace", "_exit", "_getframe"}
# Most accesses to private attributes in tests, those of tests/inside.py left out: a further name belongs there.
MOST_PRIVATE_IN_TESTS = 140

FILES = sorted(PACKAGE.rglob("*.py"))
C_FILES = sorted([*NATIVE.rglob("*.c"), *NATIVE.rglob("*.h")])


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES}


def imports(path: Path) -> Iterator[tuple[str, bool, int]]:
    """Yield the full name of each imported module, whether it is imported at the top of the file, and the line."""
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
            # `from vecenv.core.layout import spec` imports vecenv.core.layout.spec
            full = [f"{module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else module for name in full]
        else:
            continue
        for name in dict.fromkeys(names):
            yield name, id(node) not in lazy, node.lineno


def lines_for_type_checkers(path: Path) -> set[int]:
    """Return the lines that only type checkers read."""
    blocks = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.If)]
    typed = [block for block in blocks if ast.unparse(block.test) == "TYPE_CHECKING"]
    return {line for block in typed for line in range(block.lineno, (block.end_lineno or block.lineno) + 1)}


def room_of(module: str) -> tuple[str, str] | None:
    """Return part and room of a module, None if it stands in no room."""
    names = module.split(".")
    return (names[1], names[2]) if len(names) > 2 and names[2] in ROOMS.get(names[1], ()) else None


def points_down(importer: str, imported: str) -> bool:
    above, below = room_of(importer), room_of(imported)
    if above is None or below is None or above[0] != below[0]:
        return True
    rooms = ROOMS[above[0]]
    return rooms.index(below[1]) <= rooms.index(above[1])


def violations(path: Path) -> Iterator[str]:
    file = path.relative_to(PACKAGE).as_posix()
    part = file.partition("/")[0].removesuffix(".py")
    allowed = MAY_IMPORT[part] | {part} | MAY_ALSO_IMPORT.get(file, set())
    foreign = FOREIGN.get(part, FOREIGN_DEFAULT) | FOREIGN_ALSO.get(file, set())
    for name, at_top, line in imports(path):
        top, *rest = name.split(".")
        if top == "vecenv":
            target = rest[0] if rest and rest[0] in {*MAY_IMPORT, "_native"} else "__init__"
            if target not in allowed and part != "__init__":  # `__init__` imports all, for the type checker only
                yield f"{file}:{line} {part} may not import {name}"
            if not points_down(module_of(path), name):
                yield f"{file}:{line} {name} stands in a room above"
        elif top not in sys.stdlib_module_names and top not in foreign and (at_top or part not in ANY_LAZILY):
            yield f"{file}:{line} may not import {name} {'at its top' if part in ANY_LAZILY else ''}"


def find_circle(imported: Mapping[str, Iterable[str]]) -> list[str]:
    """Return names of which each imports the next, and the last the first; empty if there is no circle."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return path[path.index(name) :]
        if name not in done:
            for other in imported.get(name, ()):
                if circle := visit(other, [*path, name]):
                    return circle
            done.add(name)
        return []

    return next((circle for name in imported if (circle := visit(name, []))), [])


def includes(path: Path) -> list[str]:
    """Return the files of ours that a C file includes."""
    return re.findall(r'#include "(.+)"', path.read_text())


def own_bases(cls: type) -> list[type]:
    return [base for base in cls.__bases__ if base.__module__.partition(".")[0] == "vecenv"]


def depth(cls: type) -> int:
    """Return the number of own classes on the longest path from this class up to its bases, itself included."""
    return 1 + max(map(depth, own_bases(cls)), default=0)


def classes() -> Iterator[type]:
    """Yield the package's classes that are attributes of a module; modules without their optional library count not."""
    for module in pkgutil.walk_packages(vecenv.__path__, "vecenv."):
        if module.name.endswith("__main__") or module.name == "vecenv.core.processes.preload":  # act on import
            continue
        try:
            names = vars(importlib.import_module(module.name))
        except ImportError:
            continue
        yield from (part for part in names.values() if inspect.isclass(part) and part.__module__ == module.name)


def private_accesses(path: Path) -> Iterator[str]:
    """Yield each access to a private attribute of an object other than `self`, `cls` and `super()`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            owner, name = node.value, node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setattr") and len(node.args) > 1:
            owner, name = node.args[0], str(getattr(node.args[1], "value", ""))
        else:
            continue
        is_private = re.match(r"_(?!_)", name) and name not in PUBLIC_NAMES
        if is_private and ast.unparse(owner) not in ("self", "cls", "super()"):
            yield f"{path.relative_to(ROOT).as_posix()}:{node.lineno} {ast.unparse(node)}"


def foreign_assignments(path: Path) -> Iterator[str]:
    """Yield each assignment to an attribute of an object other than `self`."""
    for node in ast.walk(ast.parse(path.read_text())):
        is_set = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if is_set and ast.unparse(node.value) != "self":
            yield f"{path.relative_to(PACKAGE).as_posix()}:{node.lineno} {ast.unparse(node)}"


def test_imports_point_down():
    assert [text for path in FILES for text in violations(path)] == []


def test_python_files_import_in_no_circle():
    package = module_of(PACKAGE / "__init__.py")
    imported = {}
    for path in FILES:
        typed = lines_for_type_checkers(path)
        found = [name for name, _, line in imports(path) if line not in typed]
        imported[module_of(path)] = [name for name in found if name in MODULES and name != package]
    assert find_circle(imported) == []


def test_files_of_core_are_in_rooms():
    beside = {path.name for path in (PACKAGE / "core").glob("*.py")}
    rooms = {path.parent.name for path in (PACKAGE / "core").glob("*/__init__.py")}
    assert beside == {"__init__.py", "options.py"} and rooms == set(ROOMS["core"])


def test_parts_match_the_table():
    parts = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts <= set(MAY_IMPORT)


def test_c_includes_point_down():
    wrong = [
        f"{path.relative_to(NATIVE)} includes {name}"
        for path in C_FILES
        if path.parent != NATIVE
        for name in includes(path)
        if C_ROOMS.index(name.partition("/")[0]) > C_ROOMS.index(path.parent.name)
    ]
    assert wrong == []


def test_c_units_include_in_no_circle():
    units: dict[str, set[str]] = {}  # a header and its source are one unit
    for path in C_FILES:
        unit = path.relative_to(NATIVE).with_suffix("").as_posix()
        units.setdefault(unit, set()).update(name.removesuffix(".h") for name in includes(path))
    assert find_circle({unit: sorted(others - {unit}) for unit, others in units.items()}) == []


def test_c_files_of_shm_do_not_use_python():
    assert [path.name for path in (NATIVE / "shm").iterdir() if "Python.h" in path.read_text()] == []


def test_own_classes_inherit_at_most_three_deep():
    too_deep = {f"{cls.__module__}.{cls.__qualname__}" for cls in classes() if depth(cls) > 3}
    assert too_deep == set(DEEPER)


def test_parts_read_no_private_attribute_of_another_part():
    files = [path for path in FILES if path.relative_to(PACKAGE).as_posix().startswith(("core/pool/", "managers/"))]
    assert [text for path in files for text in private_accesses(path)] == []


def test_tests_touch_few_private_attributes():
    files = [path for path in (ROOT / "tests").rglob("*.py") if path.name != "inside.py"]
    found = [text for path in files for text in private_accesses(path)]
    assert len(found) <= MOST_PRIVATE_IN_TESTS


def test_parts_of_the_pool_set_their_own_attributes_only():
    values = ("error.args", "error.seed", "error.actions", "memory.flags.writeable")  # these are values, no parts
    found = [text for path in (PACKAGE / "core/pool").glob("*.py") for text in foreign_assignments(path)]
    assert [text for text in found if not text.endswith(values)] == []
