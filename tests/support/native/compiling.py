"""The test backend `doing.c` and the shim, compiled once for each process of the tests."""

import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from engine.worker.compilers import c_compiler
from engine.worker.native.building import find_or_build

SOURCE = Path(__file__).with_name("doing.c")
FLAGS = ("-std=gnu11", "-O1", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")


@cache
def cache_home() -> Path:
    """Return a folder for `XDG_CACHE_HOME`, in which servers find the shim; runs of tests share it."""
    return Path(tempfile.gettempdir(), f"tritium-tests-c-{os.getuid()}")


@cache
def shim() -> str:
    """Return the shim's path. Skips the test where nothing can compile it."""
    _need_compiler()
    return find_or_build(str(cache_home() / "tritium" / "shim"), os.environ)


@cache
def library(source: Path = SOURCE, name: str = "doing") -> Path:
    """Return the library of a backend in one C file. Skips the test where nothing can compile it."""
    _need_compiler()
    path = Path(tempfile.mkdtemp(prefix="tritium-c-")) / f"libtriton_{name}.so"
    subprocess.run([c_compiler(os.environ), *FLAGS, str(source), "-o", str(path)], check=True, timeout=120)
    return path


def _need_compiler() -> None:
    if not c_compiler(os.environ):
        pytest.skip("there is no C compiler here (cc, gcc or clang)")
