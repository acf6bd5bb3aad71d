"""Find loaded modules that are not on any search path, so that workers can import them by name.

Plugins loaded by `importlib.util.spec_from_file_location` are such modules, and so are pytest's test modules with
`--import-mode=importlib`. Workers need them because pickle refers to a module's classes and functions by name.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["find_sources", "import_from"]


def find_sources() -> dict[str, str]:
    """Return {module name: absolute file} of the loaded modules that `sys.path` does not lead to."""
    folders = set(_search_path())
    is_importable: dict[str, bool] = {}  # by the name of the outermost package, which decides for all of its modules
    found = {}
    for name in list(sys.modules):
        outermost = name.partition(".")[0]
        if outermost not in is_importable:
            is_importable[outermost] = _is_importable(outermost, folders)
        if not is_importable[outermost]:
            spec = _spec_of(name)
            if spec is not None and spec.name == name and spec.has_location and spec.origin:
                with contextlib.suppress(FileNotFoundError):  # a relative path in a folder that was removed
                    found[name] = os.path.abspath(spec.origin)
    return found


def _search_path() -> Iterator[str]:
    for entry in sys.path:
        # a relative path in a removed folder, or an entry that is not a path
        with contextlib.suppress(OSError, TypeError):
            yield os.path.abspath(os.fsdecode(entry))


def _is_importable(name: str, folders: set[str]) -> bool:
    spec = _spec_of(name)
    if spec is None:
        return False
    locations = [spec.origin] if spec.has_location and spec.origin else list(spec.submodule_search_locations or ())
    # without a location, the module is built in
    return all(_leads_to(name, location, folders) for location in locations)


def _leads_to(name: str, location: str, folders: set[str]) -> bool:
    folder, file = os.path.split(location)
    if file.startswith("__init__."):
        folder, file = os.path.split(folder)
    return folder in folders and file.partition(".")[0] == name


def _spec_of(name: str) -> ModuleSpec | None:
    try:
        names = object.__getattribute__(sys.modules.get(name), "__dict__")  # a plain getattr would load a lazy module
    except AttributeError:  # None, or an object that replaces the module
        return None
    spec = names.get("__spec__")
    return spec if isinstance(spec, ModuleSpec) else None


def import_from(sources: Mapping[str, str]) -> None:
    """Make this process import these modules from their files if it does not find them otherwise.

    Args:
        sources: {module name: file}, as `find_sources` returns it.
    """
    if sources:
        sys.meta_path.append(_Finder(sources))


class _Finder(MetaPathFinder):
    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        source = self._sources.get(fullname)
        if source is not None and os.path.isfile(source):
            return importlib.util.spec_from_file_location(fullname, source)
        if any(name.startswith(f"{fullname}.") for name in self._sources):  # a package that contains one of the modules
            return ModuleSpec(fullname, None, is_package=True)
        return None
