"""Imports: where the caller has modules from that no search path leads to, for workers to import them by name.

Plugins are loaded so, by `importlib.util.spec_from_file_location`, and pytest's test modules with
`--import-mode=importlib`. Classes of such modules travel by name, as all that a module has.
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
    """Return the files of the loaded modules that `sys.path` does not lead to, by the modules' names."""
    folders = set(_search_path())
    is_importable: dict[str, bool] = {}  # by the name of the outermost package, which leads to what is in it
    found = {}
    for name in list(sys.modules):
        outermost = name.partition(".")[0]
        if outermost not in is_importable:
            is_importable[outermost] = _is_importable(outermost, folders)
        if not is_importable[outermost]:
            spec = _spec_of(name)
            if spec is not None and spec.name == name and spec.has_location and spec.origin:
                with contextlib.suppress(FileNotFoundError):  # relative to a folder that was removed
                    found[name] = os.path.abspath(spec.origin)
    return found


def _search_path() -> Iterator[str]:
    for entry in sys.path:
        with contextlib.suppress(OSError, TypeError):  # relative to a folder that was removed; or no path at all
            yield os.path.abspath(os.fsdecode(entry))


def _is_importable(name: str, folders: set[str]) -> bool:
    spec = _spec_of(name)
    if spec is None:
        return False
    locations = [spec.origin] if spec.has_location and spec.origin else list(spec.submodule_search_locations or ())
    return all(_leads_to(name, location, folders) for location in locations)  # none: it is built in


def _leads_to(name: str, location: str, folders: set[str]) -> bool:
    folder, file = os.path.split(location)
    if file.startswith("__init__."):
        folder, file = os.path.split(folder)
    return folder in folders and file.partition(".")[0] == name


def _spec_of(name: str) -> ModuleSpec | None:
    try:
        names = object.__getattribute__(sys.modules.get(name), "__dict__")  # asked itself, a lazy module would load
    except AttributeError:  # None, or what stands in the place of a module
        return None
    spec = names.get("__spec__")
    return spec if isinstance(spec, ModuleSpec) else None


def import_from(sources: Mapping[str, str]) -> None:
    """Have this process import these modules from their files where it does not find them otherwise."""
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
        if any(name.startswith(f"{fullname}.") for name in self._sources):  # the package around one of them
            return ModuleSpec(fullname, None, is_package=True)
        return None
