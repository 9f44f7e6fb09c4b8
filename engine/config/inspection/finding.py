"""Finds what runs a model: looks where its backend may be, and has the rule decide (`rules.finding`)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from os.path import isfile
from pathlib import Path
from typing import assert_never

from engine.config.files import inside
from engine.config.inspection.libraries import connect, unserved
from engine.config.rules.finding import SCRIPT, Candidates, Runner, escapes, find, library_of
from engine.environments.declared import ENVIRONMENT_PREFIX
from engine.environments.requirements import file_digest
from engine.models.links import Links
from engine.models.problems import Problem
from engine.processes.backends import PYTHON, BackendTraits, library_traits, python_traits
from engine.worker.native.library import SHIM
from protocols.kserve.proto.model_config_pb2 import ModelConfig


@dataclass(frozen=True, slots=True)
class FoundBackend:
    """The backends as a model sees them: its own may be another than the installed one of that name."""

    backends: Mapping[str, BackendTraits]
    problems: tuple[Problem, ...] = ()
    replaced: bool = False  # whether it is another
    settings: Mapping[str, str] = field(default_factory=dict)  # what its workers are told besides
    linked: tuple[Path, ...] = ()  # what they must be able to read besides


def find_backend(
    config: ModelConfig,
    written: ModelConfig,
    versions: Sequence[Path],
    model_directory: Path,
    backends: Mapping[str, BackendTraits],
    links: Links = Links.INSIDE,
) -> FoundBackend:
    """Return the backends with that of `config`, which has been completed, as the model gets it.

    `written` is the configuration that the model's owner wrote. `versions` are the directories of its
    versions, oldest first. `links` says how far a library in there may be a link. Looks for files, and may
    run a C compiler.
    """
    name, runtime = config.backend, written.runtime
    if not name or config.HasField("ensemble_scheduling") or escapes(runtime):
        return FoundBackend(backends)  # the rules of the configuration say what is wrong
    known = backends.get(name)
    folder = Path(known.folder) if known is not None and known.folder else None
    # Of the versions the newest, as there is one backend for all.
    places = [*versions[-1:], model_directory, *([folder] if folder is not None else [])]
    library = library_of(name, runtime)
    path = next((each / library for each in places if isfile(each / library)), None) if library else None
    there = Candidates(
        installed=known is not None and not known.implementation,
        own_script=known is not None and (known.runs_python or SCRIPT in known.runtimes),
        python=name == PYTHON,
        library=path is not None,
        script=folder is not None and isfile(folder / SCRIPT),
    )
    runner = find(name, runtime, there)
    match runner:
        case None:
            known_library = known is not None and known.library
            return FoundBackend(
                backends, _not_found(config, runtime, library, places, folder, known_library=known_library)
            )
        case Runner.INSTALLED:
            return FoundBackend(backends)
        case Runner.LIBRARY:
            assert path is not None
            shared = path.parent == folder
            traits = replace(library_traits(name, path), folder=str(folder) if folder is not None else "")
            own = not shared and links is Links.INSIDE and inside(model_directory.parent, str(path)) is None
            problems = (*_led_out(config, path, led_out=own), *unserved(config, written, path, places))
            if problems:
                return FoundBackend({**backends, name: traits}, problems, replaced=True)
            shim, problem = connect(config)
            return FoundBackend(
                {**backends, name: traits},
                () if problem is None else (problem,),
                replaced=True,
                settings={SHIM: shim},
                linked=(Path(shim).parent,),
            )
        case Runner.SCRIPT:
            if folder is None or (known is not None and known.implementation and not known.library):
                return FoundBackend(backends)
            traits = python_traits(name, folder / SCRIPT, backends[PYTHON])
            return FoundBackend({**backends, name: traits}, replaced=True)
        case _:
            assert_never(runner)


def backend_digest(traits: BackendTraits) -> str:
    """Return a digest (hex) of the code in the folder of a backend that is written in Python.

    A library's is one, too. It is empty for other backends, and if the folder can't be read. Packed
    environments are left out, because they count as the model's runtime. A file is read again only if it was
    written since.
    """
    if not traits.implementation or os.path.dirname(traits.implementation) != traits.folder:
        return ""  # what lies in the model's folder is among its files
    whole = hashlib.sha256()
    try:
        for path in _code(Path(traits.implementation).parent):
            whole.update(f"{path}\0{_file_digest(path, _identity(path))}\0".encode(errors="replace"))
    except OSError:
        return ""  # its models fail with the reason when they are loaded
    return whole.hexdigest()


def _code(folder: Path) -> Iterator[Path]:
    for found, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        paths = (Path(found, name) for name in sorted(names) if not name.startswith(ENVIRONMENT_PREFIX))
        yield from (path for path in paths if path.is_file())  # a pipe would never end


def _identity(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@lru_cache(maxsize=4096)
def _file_digest(path: Path, identity: tuple[int, ...]) -> str:
    del identity
    return file_digest(path)


def _not_found(
    config: ModelConfig,
    runtime: str,
    library: str,
    places: Sequence[Path],
    folder: Path | None,
    *,
    known_library: bool,
) -> tuple[Problem, ...]:
    if not runtime and not known_library:
        return ()  # the rules of the configuration say that there is no such backend
    if library:
        searched = ", ".join(map(str, places))
        message = (
            f"unable to find backend library '{library}' for model '{config.name}', searched: {searched}"
        )
        hint = f"leave 'runtime' out, or put the file into <--backend-directory>/{config.backend}"
    else:
        searched = str(folder) if folder is not None else f"<--backend-directory>/{config.backend}"
        message = (
            f"unable to find Python backend based backend library '{SCRIPT}' for model '{config.name}',"
            f" searched: '{searched}'"
        )
        hint = f"leave 'runtime' out, or put the backend's {SCRIPT} there"
    return (Problem(message=message, key="runtime" if runtime else "backend", hint=hint),)


def _led_out(config: ModelConfig, path: Path, *, led_out: bool) -> tuple[Problem, ...]:
    message = f"library '{path}' of model '{config.name}' is a link out of the model repository"
    return (Problem(message=message, path=path),) if led_out else ()
