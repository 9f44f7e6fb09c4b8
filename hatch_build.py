"""Compiles the core into a wheel: the modules that `[tool.tritium.core]` lists, by mypyc and the C compiler.

It also compiles the library that connects backends in C to a worker (`engine.worker.native.building`).

It does so where the environment has `TRITIUM_COMPILE=1`; a wheel is pure Python otherwise::

    TRITIUM_COMPILE=1 pip install -v .

`-v` shows the progress. Where the compiler is missing or fails, the wheel is pure, and the reason is printed.
The compiled twins lie in a folder of their own, `tritium_core`, beside a manifest. `engine.core.choosing`
says how they are found, and when they are not used.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

OPTIMISED = "1"  # gcc's -O1: -O2 takes a third longer, and the core is not measurably faster


class CoreHook(BuildHookInterface):
    """Adds the compiled core to a wheel, where it is asked for."""

    PLUGIN_NAME = "custom"

    def _asked(self) -> bool:
        choosing = _choosing(Path(self.root))
        return bool(choosing.asked(os.environ, choosing.COMPILE))

    def dependencies(self) -> list[str]:
        """Return what the build needs besides; nothing for a pure wheel."""
        if not self._asked():
            return []
        # Types of what the core imports decide how it is compiled.
        return [*_settings(Path(self.root))["requires"], *self.metadata.core.dependencies]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say which files the wheel has besides."""
        if self.target_name != "wheel" or not self._asked():
            return
        # Until the process ends, which is when the wheel is written.
        scratch = Path(tempfile.mkdtemp(prefix="tritium-core-"))
        began = time.monotonic()
        try:
            files = compiled(Path(self.root), scratch)
        except (Exception, SystemExit) as error:  # noqa: BLE001
            # A pure wheel serves as well, whatever it is. mypyc raises SystemExit.
            _tell(f"the core stays pure Python: {type(error).__name__}: {error}")
            return
        key = "force_include_editable" if version == "editable" else "force_include"
        build_data[key] |= files | shim(Path(self.root), scratch)
        build_data.update(pure_python=False, infer_tag=True)
        _tell(f"the core is compiled, in {time.monotonic() - began:.0f} s")


def shim(root: Path, scratch: Path) -> dict[str, str]:
    """Compile what connects C libraries to a worker, and return where it belongs; nothing if that fails."""
    sys.path.insert(0, str(root))
    try:
        from engine.worker.native import building  # imports nothing but the standard library
    finally:
        sys.path.remove(str(root))
    path = scratch / building.NAME
    try:
        building.build(str(path), os.environ)
    except building.CanNotBuild as error:
        _tell(f"C libraries will need a compiler where this wheel is used: {error}")
        return {}
    return {str(path): f"engine/worker/native/{building.NAME}"}


def compiled(root: Path, scratch: Path) -> dict[str, str]:
    """Compile the core, and return where each file belongs in the wheel. Raises what compilers raise."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    choosing = _choosing(root)
    names = _settings(root)["modules"]
    sources = [choosing.source(root, name) for name in names]
    _tell(f"{len(names)} modules: reading types")
    os.chdir(root)  # mypyc writes paths into tracebacks as it is given them
    extensions = mypycify(
        ["--no-incremental", *(str(each.relative_to(root)) for each in sources)],
        multi_file=True,
        opt_level=OPTIMISED,
        debug_level="0",
        group_name=choosing.FOLDER,
        target_dir=str(scratch / "c"),
    )
    command = build_ext(Distribution({"name": choosing.FOLDER, "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(scratch / "lib"), str(scratch / "objects")
    command.ensure_finalized()
    _at_once(command, sum(len(each.sources) for each in extensions))
    command.run()
    told = {
        "suffix": command.get_ext_filename(""),
        "sources": {name: choosing.digest_of(choosing.source(root, name)) for name in names},
        "besides": {
            name: choosing.digest_of(choosing.source(root, name)) for name in choosing.imported(root, names)
        },
    }
    (scratch / "lib" / choosing.MANIFEST).write_text(json.dumps(told, indent=1))
    built = (file for file in (scratch / "lib").rglob("*") if file.is_file())
    return {str(file): f"{choosing.FOLDER}/{file.relative_to(scratch / 'lib')}" for file in built}


def _at_once(command: Any, total: int) -> None:
    """Have each core of the machine compile one file at a time, and tell how far that has come.

    By itself setuptools compiles the files of one library one after the other.
    """
    done = count(1)

    def spread(one: Callable[..., list[str]]) -> Callable[..., list[str]]:
        def compile_(sources: Sequence[str], **options: Any) -> list[str]:
            def each(source: str) -> list[str]:
                made = one([source], **options)
                at = next(done)
                if at % 20 == 0 or at == total:
                    _tell(f"{at} of {total} files compiled")
                return made

            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                return [made for some in pool.map(each, sources) for made in some]

        return compile_

    plain = command.build_extensions

    def build() -> None:
        command.compiler.compile = spread(command.compiler.compile)
        plain()

    command.build_extensions = build


def _settings(root: Path) -> dict[str, Any]:
    """Return `[tool.tritium.core]`."""
    settings: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["tritium"]["core"]
    return settings


def _choosing(root: Path) -> Any:
    """Load `engine.core.choosing` from its file: nothing of ours is installed yet."""
    spec = importlib.util.spec_from_file_location("choosing", root / "engine/core/choosing.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _tell(text: str) -> None:
    sys.stderr.write(f"tritium: {text}\n")
    sys.stderr.flush()
