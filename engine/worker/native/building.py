"""Where the shim is: our own `libtritonserver.so`, through which a library written for Triton sees a worker.

A platform wheel brings it, beside this module. Elsewhere the C compiler makes it of the files in `c/` when
the first model needs it, into a cache, under a name by what it was made of and the machine. It is C without
Python's headers, so that one serves every Python.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading
from hashlib import blake2b
from typing import TYPE_CHECKING

from engine.worker.compilers import c_compiler
from engine.worker.native.table import SOURCES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NAME = "libtritonserver.so"
"""What libraries that are linked against Triton's server ask the dynamic linker for."""

FLAGS = (
    "-std=gnu11",
    "-O1",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-pthread",
    f"-Wl,-soname,{NAME}",
    "-Wl,-z,defs",
)
_TIMEOUT = 120.0  # seconds; it takes one
_BUILDING = threading.Lock()
_SHOWN = 2000  # characters of what a compiler says


class CanNotBuild(Exception):
    """There is no shim, and none can be made. The message is why, and what to do."""


def prebuilt() -> str:
    """Return where a platform wheel has put the shim; nothing if this is no such wheel."""
    path = os.path.join(os.path.dirname(SOURCES), NAME)
    return path if os.path.isfile(path) else ""


def sources(folder: str = SOURCES) -> list[str]:
    """Return the files that the shim is made of, the table and the headers included."""
    return sorted(
        os.path.join(folder, name) for name in os.listdir(folder) if name.endswith((".c", ".h", ".def"))
    )


def digest(folder: str = SOURCES, flags: Sequence[str] = FLAGS) -> str:
    """Return what tells this shim from others: its sources, how it is compiled, and for which machine."""
    hashed = blake2b(digest_size=16)
    for path in sources(folder):
        with open(path, "rb") as file:
            data = file.read()
        hashed.update(f"{os.path.basename(path)}\0{len(data)}\0".encode() + data)
    hashed.update("\0".join((*flags, os.uname().machine)).encode())
    return hashed.hexdigest()


def build(path: str, environ: Mapping[str, str], flags: Sequence[str] = FLAGS) -> None:
    """Compile the shim to `path`, whole or not at all. Raises CanNotBuild."""
    found = c_compiler(environ)
    if not found:
        named = environ.get("CC", "")
        raise CanNotBuild(
            f"there is no C compiler '{named}', which CC names"
            if named
            else "no C compiler found: install gcc (Debian: apt-get install gcc libc6-dev), or a platform"
            " wheel of Tritium"
        )
    files = [each for each in sources() if each.endswith(".c")]
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        handle, draft = tempfile.mkstemp(prefix=f"{NAME}.", dir=os.path.dirname(path))
    except OSError as error:
        raise CanNotBuild(
            f"the shim can't be put into '{os.path.dirname(path)}': {error.strerror}"
        ) from error
    os.close(handle)
    try:
        done = subprocess.run(
            [found, *flags, "-o", draft, *files],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environ),
            timeout=_TIMEOUT,
            check=False,
        )
        if done.returncode:
            said = done.stdout.decode(errors="replace").strip()[:_SHOWN]
            raise CanNotBuild(f"the C compiler '{found}' failed with status {done.returncode}: {said}")
        # Workers under users of their own read it as well.
        os.chmod(draft, 0o755)
        os.replace(draft, path)
    except (OSError, subprocess.SubprocessError) as error:
        raise CanNotBuild(f"the C compiler '{found}' can't be run: {error}") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)


def find_or_build(cache: str, environ: Mapping[str, str]) -> str:
    """Return the shim's path, in `cache` unless a wheel has brought it. Compiles it if need be.

    Two processes that do so at once make the same file. Raises CanNotBuild.
    """
    path = prebuilt()
    if not path:
        path = os.path.join(cache, digest(), NAME)
        # Models that are loaded at the same time need it once.
        with _BUILDING:
            if not os.path.isfile(path):
                build(path, environ)
    return path
