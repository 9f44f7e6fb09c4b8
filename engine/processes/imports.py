"""Where a Python finds what its processes import, and the libraries under that: all that a worker must read.

A worker with a user id of its own does not start where these are another user's alone
(`engine.processes.users`). The server's own Python is asked for its path. A Python that a model has brought
runs the model's code as soon as it starts, so its folders are read instead.
"""

from __future__ import annotations

import functools
import glob
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from actors.values.specs import Runtime

_ASK: Final = "import os, sys; os.write(1, b'\\0'.join(map(os.fsencode, sys.path)))"
_ANSWERS_WITHIN: Final = 60.0  # seconds
_PACKAGES: Final = ("numpy", "numpy.libs")  # what every worker imports
_ROOT: Final = Path(__file__).parents[2]
_OURS: Final = tuple(str(_ROOT / path) for path in ("engine/worker", "actors/values", "actors/wire"))
_LONGEST_PTH: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Imports:
    """What a worker must be able to read before its model's code runs."""

    folders: tuple[str, ...]  # that it searches for modules: their names, and what has a module's name
    packages: tuple[str, ...]  # that it imports whatever its model is: all of their files
    libraries: tuple[str, ...]  # files, and folders that are searched for them


def imports_of(runtime: Runtime, environ: Mapping[str, str]) -> Imports:
    """Return what a process of this runtime, with these environment variables, imports.

    It may start a process; call it on a thread. Raises OSError if that does not answer.
    """
    searched = _split(environ.get("LD_LIBRARY_PATH", ""))
    if runtime.interpreter:
        found = [*_standard(), *_folders_of(runtime.interpreter, environ.get("PYTHONPATH", ""))]
        folders = tuple(dict.fromkeys(found))
    else:
        folders = _own_folders(tuple(sorted(_telling(environ))))
        searched += _mapped()
    packages = (*_OURS, *_packages(folders))
    return Imports(folders=folders, packages=packages, libraries=tuple(searched))


def _split(paths: str) -> list[str]:
    return [path for path in paths.split(":") if path.startswith("/")]


def _telling(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variables that a Python's path depends on."""
    yield from ((name, value) for name, value in environ.items() if name[:6] == "PYTHON" or name == "HOME")


@functools.lru_cache(maxsize=64)
def _own_folders(environ: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """Return the path of this interpreter, with what its `.pth` files add.

    Raises OSError; then it is asked again.
    """
    libraries = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    try:
        answer = subprocess.run(
            [sys.executable, "-c", _ASK],
            env={**libraries, **dict(environ)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            check=True,
            timeout=_ANSWERS_WITHIN,
        )
    except subprocess.SubprocessError as error:
        raise OSError(f"{sys.executable} does not say where it finds modules: {error}") from error
    found = tuple(path for path in map(os.fsdecode, answer.stdout.split(b"\0")) if path.startswith("/"))
    if not found:
        raise OSError(f"{sys.executable} does not say where it finds modules: it names no folder")
    return found


def _mapped() -> list[str]:
    """Return the shared libraries of this process: those of its interpreter are among them."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    named = (line.split(maxsplit=5) for line in lines)
    return sorted({words[5] for words in named if len(words) == 6 and ".so" in words[5]})


def _standard() -> list[str]:
    """Return where the standard library of this interpreter lies: it enters the sandbox for the model's."""
    paths = sysconfig.get_paths()
    return [paths["stdlib"], os.path.join(paths["platstdlib"], "lib-dynload")]


def _folders_of(interpreter: str, searched: str) -> Iterator[str]:
    """Yield the folders that a virtual environment, or another whole Python, searches by its layout."""
    yield from _split(searched)
    for prefix in _prefixes(interpreter):
        for library in sorted(glob.glob(f"{glob.escape(prefix)}/lib*/python3*")):
            packages = f"{library}/site-packages"
            yield from (library, f"{library}/lib-dynload", packages)
            yield from _added_by(packages)


def _prefixes(interpreter: str) -> list[str]:
    places = [str(Path(path).parents[1]) for path in (interpreter, os.path.realpath(interpreter))]
    with suppress(OSError, UnicodeDecodeError):
        for line in (Path(places[0]) / "pyvenv.cfg").read_text().splitlines():
            name, _, value = line.partition("=")
            if name.strip() == "home" and value.strip().startswith("/"):
                places.append(str(Path(value.strip()).parent))
    return list(dict.fromkeys(places))


def _added_by(packages: str) -> Iterator[str]:
    """Yield what the `.pth` files of a folder name. A line that begins with `import` is code, and not run."""
    for path in sorted(glob.glob(f"{glob.escape(packages)}/*.pth")):
        with suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
            for line in file.read(_LONGEST_PTH).splitlines():
                if line.strip() and not line.startswith(("#", "import ", "import\t")):
                    yield os.path.abspath(os.path.join(packages, line.rstrip()))


def _packages(folders: Iterable[str]) -> Iterator[str]:
    for folder in folders:
        for name in _PACKAGES:
            if os.path.isdir(path := os.path.join(folder, name)):
                yield path
