"""Find loaded modules that the search path does not lead to, so that workers import the files of the program.

Plugins loaded by `importlib.util.spec_from_file_location` are such modules, and so are pytest's test modules with
`--import-mode=importlib`. The search path may also lead to another file of the same name: a folder was put before the
one of the module, or the working directory has changed. Workers need the modules of the program because pickle refers
to classes and functions by the names of their modules.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import NamedTuple

__all__ = ["Source", "file_of", "find_sources", "import_from", "installed_folders", "unload"]

#: Packages that a worker may have loaded before it knows the modules of the program, and that cannot be loaded twice.
_LOADED = ("cloudpickle", "gymnasium", "numpy", "vecenv")
_EXTENSIONS = tuple(importlib.machinery.EXTENSION_SUFFIXES)


class Source(NamedTuple):
    """The origin of a module that the program has loaded.

    Attributes:
        file: its file; '' for a namespace package.
        folders: where its submodules are searched; None if it is not a package.
        other: the file or folder that the search path leads to; '' if there is none.
    """

    file: str
    folders: tuple[str, ...] | None
    other: str


def find_sources() -> dict[str, Source]:
    """Return the loaded modules that `sys.path` does not lead to, by name; all paths are absolute."""
    finders = [finder for finder in sys.meta_path if isinstance(finder, _Finder)]  # a shard or a worker has one
    found = {name: one for finder in finders for name, one in finder.sources.items() if name not in sys.modules}
    folders: dict[str, list[str]] = {"": list(_search_path())}  # where the modules of a package are searched
    for name in sorted(sys.modules):  # a package comes before its modules
        spec = _spec_in(sys.modules.get(name))
        if spec is None or spec.name != name:
            continue
        package, _, last = name.rpartition(".")
        places = spec.submodule_search_locations
        if places is not None:
            folders[name] = list(filter(None, map(_absolute, places)))
        if package in found or package not in folders:
            other: str | None = ""  # the folder of its package decides
        else:
            other = _find_other(name, last, spec, folders[package])
        if other is not None:
            file = _absolute(spec.origin) if spec.has_location and spec.origin else ""
            if file or folders.get(name):
                found[name] = Source(file, None if places is None else tuple(folders[name]), other)
    return found


@functools.cache
def installed_folders() -> tuple[str, ...]:
    """Return the folders of Python and of installed packages: their files are many, seldom edited, and not read."""
    paths = sysconfig.get_paths()
    names = "stdlib", "platstdlib", "purelib", "platlib"
    return tuple({os.path.join(folder, "") for folder in (*map(paths.__getitem__, names), *site.getsitepackages())})


def _absolute(path: str) -> str:
    """Return an absolute path; '' for a relative one if the working directory was removed."""
    try:
        return os.path.abspath(path)
    except FileNotFoundError:
        return ""


def file_of(module: object) -> str:
    """Return the file of a module; '' if it has none."""
    spec = _spec_in(module)
    return str(spec.origin) if spec is not None and spec.has_location and spec.origin else ""


def _search_path() -> Iterator[str]:
    for entry in sys.path:
        # a relative path in a removed folder, or an entry that is not a path
        with contextlib.suppress(OSError, TypeError):
            yield os.path.abspath(os.fsdecode(entry))


def _find_other(name: str, last: str, spec: ModuleSpec, folders: list[str]) -> str | None:
    """Return the file or folder that a search in these folders finds instead of this module.

    Args:
        name, last: its name, and the last part of that.
        spec: of the module.
        folders: absolute paths.

    Returns:
        '' if it finds nothing; None if it finds the module itself.
    """
    origin = spec.origin
    if folders and origin in (f"{folders[0]}/{last}.py", f"{folders[0]}/{last}/__init__.py"):  # the cheap case
        return None
    location = origin if spec.has_location else next(iter(spec.submodule_search_locations or ()), None)
    if not location:  # it is built in
        return None
    folder, file = _split(location)
    earlier = folders
    if folder in folders and file.partition(".")[0] == last:
        earlier = folders[: folders.index(folder)]
        if not earlier:
            return None
    shown = PathFinder.find_spec(name, earlier)
    if shown is None or (shown.loader is None and earlier is not folders):  # folders without `__init__` come last
        return "" if earlier is folders else None
    place = shown.origin if shown.has_location else next(iter(shown.submodule_search_locations or ()), None)
    return None if place == location else place or ""


def _split(location: str) -> tuple[str, str]:
    """Return the folder in which a module was found, and its file or folder there."""
    folder, _, file = location.rpartition(os.sep)
    if file.startswith("__init__."):
        folder, _, file = folder.rpartition(os.sep)
    return folder, file


def _spec_in(module: object) -> ModuleSpec | None:
    try:
        names = object.__getattribute__(module, "__dict__")  # a plain getattr would load a lazy module
    except AttributeError:  # None, or an object that replaces the module
        return None
    spec = names.get("__spec__")
    return spec if isinstance(spec, ModuleSpec) else None


def import_from(sources: Mapping[str, Source]) -> list[str]:
    """Make this process import these modules from their own files; replaces the effect of an earlier call.

    Args:
        sources: as `find_sources` returns it.

    Returns:
        The modules of the same names that were loaded from other files, and are not loaded any more.

    Raises:
        ImportError: another module of one of these names is loaded, and cannot be replaced.
    """
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder | _Packages)]
    replaced = []
    for name, source in sources.items():
        loaded = file_of(sys.modules.get(name))
        if loaded in ("", source.file):
            continue
        if not source.other and not os.path.isfile(source.file):  # on another machine, for example
            continue
        if name.partition(".")[0] in _LOADED:
            raise ImportError(f"module {name!r}: the program has loaded {source.file}, and its workers {loaded}")
        del sys.modules[name]
        replaced.append(name)
    if sources:
        sys.meta_path.insert(0, _Finder(sources))
        sys.meta_path.append(_Packages(sources))
    return replaced


def unload(names: Collection[str], known: Mapping[str, ModuleType]) -> list[str]:
    """Unload modules of a program whose workers serve another one next, and put back the modules from before.

    Modules of installed packages stay, and so do those of packages with extension modules, which load only once.

    Args:
        names: of modules that the program has loaded.
        known: a copy of `sys.modules` from before.

    Returns:
        The names of the modules that are not loaded any more.
    """
    lost = [name for name in names if name not in known and _is_editable(sys.modules.get(name))]
    stay = {_top(name) for name in names if file_of(sys.modules.get(name)).endswith(_EXTENSIONS)}
    lost = [name for name in lost if _top(name) not in stay]
    for name in lost:
        module = sys.modules.pop(name)
        package, _, last = name.rpartition(".")
        if vars(sys.modules.get(package, sys)).get(last) is module:
            delattr(sys.modules[package], last)
    replaced = [name for name, module in known.items() if sys.modules.get(name) is not module]
    for name in replaced:
        sys.modules[name] = known[name]
    return lost + replaced


def _top(name: str) -> str:
    return name.partition(".")[0]


def _is_editable(module: object) -> bool:
    """Return whether a module, or a package without a file, is none of Python, of an installed package or of ours."""
    spec = _spec_in(module)
    if spec is None or _top(spec.name) in _LOADED:
        return False
    places = [spec.origin] if spec.has_location else spec.submodule_search_locations
    return bool(places) and not any(str(place).startswith(installed_folders()) for place in places or ())


class _Finder(MetaPathFinder):
    """Finds modules by their sources.

    Attributes:
        sources: as `find_sources` returns it.
    """

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self.sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        source = self.sources.get(fullname)
        if source is None:
            return None
        folders = None if source.folders is None else list(source.folders)
        if not source.file:
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = folders
            return spec
        if os.path.isfile(source.file):
            return importlib.util.spec_from_file_location(fullname, source.file, submodule_search_locations=folders)
        found = PathFinder.find_spec(fullname, [_split(source.file)[0]])  # a member of an archive
        if found is not None and found.origin == source.file:
            return found
        if source.other:
            raise ImportError(
                f"module {fullname!r}: the program has loaded {source.file}, which is gone, and sys.path leads to "
                f"{source.other}",
                name=fullname,
                path=source.file,
            )
        return None


class _Packages(MetaPathFinder):
    """Finds packages that contain one of the modules and exist nowhere."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self._names = [f"{name}." for name in sources]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_wanted = any(name.startswith(f"{fullname}.") and name != f"{fullname}." for name in self._names)
        return ModuleSpec(fullname, None, is_package=True) if is_wanted else None
