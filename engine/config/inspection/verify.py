"""Whether a version's model file can be loaded.

It says only what is certain without a framework and without running the file.

For `tritium check`. A server lets the backend find out, which is the only one to know for sure.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from actors.values.errors import ErrorCode
from engine.config.inspection.agreement import disagreements, warmup_misfits
from engine.config.inspection.model import leads_out, missing, onnx_path, torch_path
from engine.config.inspection.onnx_file import read_onnx
from engine.config.inspection.torch_file import read_torch
from engine.config.inspection.wire import Ports, Unloadable, Unreadable
from engine.config.rules.finding import SCRIPT
from engine.config.translate import artifact
from engine.models.layout import VersionDirectory
from engine.models.links import Links
from engine.models.problems import Problem, Severity
from engine.processes.backends import BUILT_IN, BackendTraits
from engine.worker.native.symbols import NotALibrary, read_symbols
from engine.worker.native.table import EXECUTE, functions, shortcomings
from protocols.kserve.proto.model_config_pb2 import ModelConfig

_LARGEST_SOURCE: Final = 16 * 1024 * 1024


def verify(
    config: ModelConfig,
    version: VersionDirectory,
    repository: Path,
    traits: BackendTraits,
    links: Links = Links.INSIDE,
) -> Iterator[Problem]:
    """Yield what keeps a version from loading; `config` is its completed configuration.

    Model code is not executed.
    """
    file_name = artifact(config, traits)
    if traits.library:
        yield from _library(config, Path(file_name))
        yield from warmup_misfits(config, None)
        return
    if not traits.implementation and leads_out(version.path, file_name, repository, links):
        # The code that checks the versions says so.
        return
    ports: Ports | None = None
    # It is not known what other backends read.
    ours = BUILT_IN.get(traits.name)
    if not traits.target or (ours is not None and traits.target == ours.target):
        match traits.name:
            case "onnxruntime":
                path = onnx_path(version, file_name)
                problem = missing(config, path, repository, links)
                if problem is not None:
                    yield problem
                else:
                    ports, problem = _onnx(config, path)
                    yield from [problem] if problem is not None else []
            case "pytorch" if config.runtime == SCRIPT:
                yield from _module(config, version.path)
            case "pytorch":
                yield from _torch(config, torch_path(version, file_name), repository, links)
            case "python":
                yield from _python(config, version.path / file_name, repository, links)
    if ports is not None and _comparable(config):
        file = str(onnx_path(version, file_name).relative_to(version.path.parent))
        yield from disagreements(config, ports, file)
    yield from warmup_misfits(config, ports)


def _library(config: ModelConfig, path: Path) -> Iterator[Problem]:
    """Tell what a library needs of Triton's API and does not get, from its table of symbols."""
    try:
        symbols = read_symbols(str(path))
    except NotALibrary as error:
        yield Problem(
            message=f"'{path}' is no library of a backend: {error}", path=path, code=ErrorCode.INTERNAL
        )
        return
    except OSError as error:
        yield _unloadable(config, path, error.strerror or str(error))
        return
    if EXECUTE not in symbols.exported:
        said = f"'{path}' is no library of a backend: it has no function '{EXECUTE}'"
        yield Problem(message=said, path=path, code=ErrorCode.INTERNAL)
    absent, refused = shortcomings(symbols.imported, functions())
    if absent:
        said = f"'{path.name}' needs functions that this server does not know: {', '.join(absent)}"
        yield Problem(message=said, path=path, code=ErrorCode.UNSUPPORTED)
    if refused:
        said = (
            f"'{path.name}' uses functions that are refused when they are called: {', '.join(refused)}"
            " (docs/backends/c_libraries.md)"
        )
        yield Problem(severity=Severity.WARNING, message=said, path=path)


def _comparable(config: ModelConfig) -> bool:
    """Whether `input` and `output` are all that the file's inputs and outputs can be."""
    return config.max_batch_size >= 0 and not config.HasField("sequence_batching")


def _onnx(config: ModelConfig, path: Path) -> tuple[Ports | None, Problem | None]:
    try:
        return read_onnx(path), None
    except Unloadable as error:
        return None, _unloadable(config, path, str(error))
    except Unreadable as error:
        said = f"'{path.name}' could not be compared with the configuration: {error}"
        return None, Problem(severity=Severity.WARNING, message=said, path=path)


def _torch(config: ModelConfig, path: Path, repository: Path, links: Links) -> Iterator[Problem]:
    problem = missing(config, path, repository, links)
    if problem is not None:
        yield problem
        return
    try:
        read_torch(path)
    except Unloadable as error:
        yield _unloadable(config, path, str(error))
    except Unreadable:
        pass  # of a form that only torch knows


def _module(config: ModelConfig, version: Path) -> Iterator[Problem]:
    named = config.default_model_filename
    names = [*([named] if named else []), "model.py", "model.pt"]
    if not any((version / name).exists() for name in names):
        yield Problem(message=f"No model found in {version}/{names}", path=version, code=ErrorCode.INTERNAL)


def _python(config: ModelConfig, path: Path, repository: Path, links: Links) -> Iterator[Problem]:
    if path.suffix != ".py":
        message = f"Model name must end with '.py'. Model name is \"{path.name}\"."
        yield Problem(message=message, key="default_model_filename", code=ErrorCode.INTERNAL)
        return
    problem = missing(config, path, repository, links)
    if problem is not None:
        yield problem
        return
    try:
        with path.open("rb") as file:
            source = file.read(_LARGEST_SOURCE + 1)
    except OSError as error:
        yield _unloadable(config, path, error.strerror or str(error))
        return
    if len(source) > _LARGEST_SOURCE:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the model's style, which is its owner's
            compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        yield Problem(
            message=(
                f"unable to load model '{config.name}', '{path.name}' does not compile: {type(error).__name__}: {error.msg}"
            ),
            path=path,
            line=error.lineno or 0,
            column=error.offset or 0,
            code=ErrorCode.INTERNAL,
        )
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:  # null bytes; nested too deeply
        yield _unloadable(config, path, f"it does not compile: {type(error).__name__}: {error}")


def _unloadable(config: ModelConfig, path: Path, why: str) -> Problem:
    message = f"unable to load model '{config.name}', the file '{path.name}' can't be read: {why}"
    return Problem(message=message, path=path, code=ErrorCode.INTERNAL)
