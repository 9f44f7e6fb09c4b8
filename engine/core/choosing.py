"""Which core runs: the modules of the hot path as mypyc compiled them, or their Python source.

A wheel for one Python may have a folder `tritium_core` beside our packages. It holds a compiled twin of
each module that `[tool.tritium.core]` of `pyproject.toml` lists, built from the same file by
`hatch_build.py`, and a manifest. Nothing finds the twins by itself: workers, which may run on another
Python, see the source alone. A process that wants them puts a finder before all others, prior to its
first import of a module that has a twin.

The twins of a folder call each other without looking each other up. So they are used together or not at all,
and only where the source is what they were compiled from. That is more than their own: constants and types of
what they import are compiled in, so the manifest names those modules, too.
"""

from __future__ import annotations

import ast
import importlib
import json
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

PURE: Final = "TRITIUM_PURE"
"""The environment variable that chooses the Python source, with any value but an empty one, 0 or false."""

COMPILE: Final = "TRITIUM_COMPILE"
"""The one that has a build compile the core, by the same values."""

FOLDER: Final = "tritium_core"
LIBRARY: Final = f"{FOLDER}__mypyc"
"""The one library that holds the code of all twins. Each twin is a file that points into it."""

MANIFEST: Final = "manifest.json"

_OUR_ROOT: Final = Path(__file__).parents[2]


class Unusable(Exception):
    """Twins that can't be used. The message is why."""


@dataclass(frozen=True, slots=True)
class Core:
    """What a process runs: `modules` are those it has compiled; `reason` says why there are none."""

    modules: frozenset[str] = frozenset()
    reason: str = ""

    @property
    def name(self) -> str:
        """`compiled` or `python`."""
        return "compiled" if self.modules else "python"

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})" if self.reason else self.name


class TwinFinder(MetaPathFinder):
    """Finds compiled twins, and the library, by their names."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to load a twin, or None: others may find the module."""
        file = self._files.get(fullname)
        return None if file is None else spec_from_file_location(fullname, file)


def choose(environ: Mapping[str, str], *, root: Path = _OUR_ROOT) -> Core:
    """Use the compiled core where there is one, from here on in this process.

    `root` has the packages whose modules would be imported otherwise.
    """
    if asked(environ, PURE):
        return Core(reason=f"{PURE} is set")
    try:
        folder = _folder()
        files = twins(folder, root)
        _put_first(files)
    except Unusable as why:
        return Core(reason=str(why))
    return Core(frozenset(files) - {LIBRARY})


def asked(environ: Mapping[str, str], name: str) -> bool:
    """Whether a variable is set, to anything but 0 or false."""
    return environ.get(name, "").lower() not in {"", "0", "false"}


def twins(folder: Path, root: Path) -> dict[str, Path]:
    """Return the files of all twins and the library by module, if they fit this Python and the source.

    Raises Unusable.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        compiled_for, sources, besides = (manifest[key] for key in ("suffix", "sources", "besides"))
    except OSError as error:
        raise Unusable(f"{folder / MANIFEST} can't be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError):
        raise Unusable(f"{folder / MANIFEST} is not what a build writes now; install it again") from None
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    if compiled_for != suffix:
        raise Unusable(f"it was compiled for {compiled_for}, and this Python loads {suffix}")
    for name, digest in {**sources, **besides}.items():
        if digest_of(source(root, name)) != digest:
            raise Unusable(f"{source(root, name)} has changed since the core was compiled; install it again")
    files = {name: folder / f"{name.replace('.', '/')}{suffix}" for name in (*sources, LIBRARY)}
    if missing := [file for file in files.values() if not file.is_file()]:
        raise Unusable(f"{missing[0]} is missing; install it again")
    return files


def source(root: Path, name: str) -> Path:
    """Return the file of a module below the root of our packages."""
    return root / f"{name.replace('.', '/')}.py"


def digest_of(file: Path) -> str:
    """Return what a manifest says of a source. A file that can't be read has none that a manifest holds."""
    try:
        return blake2b(file.read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return ""


def imported(root: Path, names: Iterable[str]) -> list[str]:
    """Return those of our modules that the named ones import, directly or not, without these themselves."""
    listed = frozenset(names)
    found, left = set(listed), list(listed)
    while left:
        tree = ast.parse(source(root, left.pop()).read_bytes())
        new = {name for name in _names_in(tree) if source(root, name).is_file()} - found
        found |= new
        left += new
    return sorted(found - listed)


def _folder() -> Path:
    spec = find_spec(FOLDER)
    if spec is None or not spec.submodule_search_locations:
        raise Unusable("none was compiled for this installation")
    return Path(next(iter(spec.submodule_search_locations)))


def _put_first(files: Mapping[str, Path]) -> None:
    early = sorted(files.keys() & sys.modules.keys())
    if early:
        raise Unusable(f"{early[0]} was imported before the core was chosen")
    finder = TwinFinder(files)
    sys.meta_path.insert(0, finder)
    try:
        importlib.import_module(LIBRARY)
    except ImportError as error:
        sys.meta_path.remove(finder)
        raise Unusable(f"its library does not load: {error}") from None


def _names_in(tree: ast.Module) -> Iterator[str]:
    """Yield what may be modules among what is imported, under `TYPE_CHECKING` as well."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
