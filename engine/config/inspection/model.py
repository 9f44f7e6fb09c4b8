"""Asks a model what its configuration leaves out.

The answer comes from the model's file if its format tells, else through its backend. Files are read here
without a framework (`onnx_file`, `torch_file`). A backend class may have a `complete_config` of its own, as
the python backend has for `auto_complete_config`. Then that is called in a process of its own (`child`), and
its answer takes precedence over ours.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from actors.values.confinement import Sandbox
from actors.values.errors import ErrorCode
from actors.values.specs import Runtime
from engine.config.complete import normalise
from engine.config.files import inside
from engine.config.inspection import child
from engine.config.inspection.autofill import (
    fill_from_answer,
    fill_from_onnx,
    fill_from_program,
    is_complete,
    snippet,
)
from engine.config.inspection.onnx_file import read_onnx
from engine.config.inspection.torch_file import Sketch, read_torch
from engine.config.inspection.wire import Pointer, Unloadable, Unreadable
from engine.config.jsonform import json_value
from engine.config.provenance import Provenance
from engine.config.rules.finding import SCRIPT
from engine.config.settings import CONFINING, NO_FLOOR, read_settings
from engine.config.translate import artifact
from engine.models.layout import VersionDirectory
from engine.models.links import Links
from engine.models.problems import Problem, Severity
from engine.processes.backends import BackendTraits
from engine.processes.confining import confining_environ, own_user
from engine.processes.inheritance import inherited, scrubbed
from engine.processes.runtime import variables
from engine.settings.sandbox import SandboxSettings
from protocols.kserve.proto.model_config_pb2 import ModelConfig

TIMEOUT_SETTING: Final = "auto-complete-timeout-seconds"
DEFAULT_TIMEOUT: Final = 60.0  # seconds

_LARGEST_SOURCE: Final = 16 * 1024 * 1024
_OUTPUT_SHOWN: Final = 2048  # characters
# A class that can't have inherited `auto_complete_config` from elsewhere.
_PLAIN_CLASSES: Final = (
    b"\nclass TritonPythonModel:",
    b"\nclass TritonPythonModel():",
    b"\nclass TritonPythonModel(object):",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """One version of a model, to be asked. An instance is a `complete.Fill`.

    `settings` is what the command line says for its backend. Without `run_model_code` only files are read.
    Model code runs on `runtime`.
    """

    model_directory: Path
    version: VersionDirectory
    backends: Mapping[str, BackendTraits]
    settings: Mapping[str, str]
    gpus: int = 0
    run_model_code: bool = True
    runtime: Runtime = field(default_factory=Runtime)
    environ: Mapping[str, str] | None = None  # of processes that run the model's code
    floor: SandboxSettings = NO_FLOOR
    links: Links = Links.INSIDE
    linked: tuple[Path, ...] = ()  # what lies elsewhere and is the model's, for a strict sandbox

    def applies(self, config: ModelConfig) -> bool:
        """Whether there is anything to ask the model for, of a configuration whose backend is known."""
        traits = self.backends.get(config.backend)
        if traits is not None and traits.completes:
            return traits.completes_the_complete or not is_complete(config)
        if config.runtime == SCRIPT:
            return False  # its file is code, and says nothing of what goes in and out
        return (
            config.backend in ("onnxruntime", "pytorch")
            and not is_complete(config)
            and config.max_batch_size >= 0
        )

    def __call__(self, config: ModelConfig, provenance: Provenance) -> list[Problem]:
        """Complete `config` in place as far as the model tells, and return what is to be said about it."""
        traits = self.backends.get(config.backend, BackendTraits(name=config.backend))
        file_name = artifact(config, traits)
        repository = self.model_directory.parent
        if not traits.implementation and leads_out(self.version.path, file_name, repository, self.links):
            # The code that checks the versions says so.
            return []
        if not self.applies(config):
            return []
        if traits.completes:
            return self._ask_backend(config, provenance, traits, file_name)
        return self._read_file(config, provenance, file_name)

    def _read_file(self, config: ModelConfig, provenance: Provenance, file_name: str) -> list[Problem]:
        is_onnx = config.backend == "onnxruntime"
        path = onnx_path(self.version, file_name) if is_onnx else torch_path(self.version, file_name)
        problem = missing(config, path, self.model_directory.parent, self.links)
        if problem is not None:
            return [problem]
        try:
            found = read_onnx(path) if is_onnx else read_torch(path)
        except Unreadable as error:
            return [_unreadable(config, path, "ONNX" if is_onnx else "PyTorch", error)]
        if isinstance(found, Sketch):
            return [_not_told(config, found, path)]
        if is_onnx:
            return self._placed(fill_from_onnx(config, found, provenance, self.settings), path)
        kind = "pt2" if path.suffix == ".pt2" else "torch"
        return self._placed(fill_from_program(config, found, provenance, f"model file ({kind})"), path)

    def _ask_backend(
        self, config: ModelConfig, provenance: Provenance, traits: BackendTraits, file_name: str
    ) -> list[Problem]:
        path = self.version.path / file_name
        python = traits.runs_python
        origin = f"{file_name} auto_complete_config" if python else f"backend '{config.backend}'"
        if python and not _may_complete(path):
            return []
        if not self.run_model_code:
            return [
                Problem(
                    severity=Severity.WARNING,
                    message=f"skipped: {origin} was not run, and what it would fill in is missing here",
                    path=path,
                )
            ]
        model = self._model(config, file_name)
        parameters: Mapping[str, str] = model["parameters"]
        confining = {key: parameters[key] for key in CONFINING if key in parameters}
        settings, wrong = read_settings(confining, traits, floor=self.floor)
        if any(problem.is_error for problem in wrong):
            # The code that reads the settings says why.
            return []
        # As the model's workers have it.
        environ = inherited(os.environ) if self.environ is None else self.environ
        strict = settings.confinement.sandbox is Sandbox.STRICT
        environ = scrubbed(environ) if strict else environ
        timeout, problems = self._timeout(config)
        files = (self.model_directory, self.version.path, path.parent, *self.linked)
        try:
            granted, _ = own_user(settings.confinement, files, self.runtime, variables(environ, self.runtime))
        except OSError as error:
            return [*problems, Problem(message=f"{origin} can't be run: {error}", path=path)]
        answer = child.ask(
            traits.target,
            model,
            timeout=timeout,
            environ=environ,
            runtime=self.runtime,
            confined=confining_environ(settings.confinement, files, runtime=self.runtime, own_user=granted),
            own_user=granted,
            files=files,
        )
        problems += [
            Problem(severity=Severity.WARNING, message=f"{origin}: {message}", path=path)
            for level, message in answer.log
            if level in ("warning", "error")
        ]
        if answer.error or answer.broken:
            said = answer.error or f"{origin} of model '{config.name}': {answer.broken}"
            shown = f"it printed: {_shortened(answer.output)}" if answer.output else ""
            return [Problem(message=said, path=path, hint=shown, code=ErrorCode.INTERNAL), *problems]
        if answer.output:
            message = f"{origin} printed: {_shortened(answer.output)}"
            problems.append(Problem(severity=Severity.WARNING, message=message, path=path))
        if answer.config is not None:
            problems = [
                *self._placed(fill_from_answer(config, answer.config, provenance, origin), path),
                *problems,
            ]
        return problems

    def _placed(self, problems: list[Problem], path: Path) -> list[Problem]:
        """Return the problems with the model file as their place, or beside the place of a field."""
        within = self.version.path.parent
        file = path.relative_to(within) if path.is_relative_to(within) else path
        return [
            replace(problem, hint=f"about {file}: {problem.hint}")
            if problem.key
            else replace(problem, path=problem.path or path)
            for problem in problems
        ]

    def _timeout(self, config: ModelConfig) -> tuple[float, list[Problem]]:
        text = self.settings.get(TIMEOUT_SETTING, str(DEFAULT_TIMEOUT))
        try:
            seconds = float(text)
        except ValueError:
            seconds = 0.0
        if 0 < seconds < 86_400:
            return seconds, []
        wrong = Problem(
            message=f"{TIMEOUT_SETTING} of backend '{config.backend}' is '{text}', which is no time to wait",
            hint=f"--backend-config={config.backend},{TIMEOUT_SETTING}=60 is the default",
        )
        return DEFAULT_TIMEOUT, [wrong]

    def _model(self, config: ModelConfig, file_name: str) -> Mapping[str, Any]:
        """Return the fields of the `ModelInfo` that the backend's hook is given."""
        shown = ModelConfig()
        shown.CopyFrom(config)
        traits = self.backends.get(config.backend)
        normalise(shown, gpus=self.gpus, on_cpu=traits is not None and traits.runs_python)
        return {
            "name": config.name,
            "version": self.version.number,
            "model_directory": str(self.model_directory),
            "version_directory": str(self.version.path),
            "artifact": file_name,
            "max_batch_size": config.max_batch_size,
            "inputs": [],
            "outputs": [],
            "parameters": {key: config.parameters[key].string_value for key in sorted(config.parameters)},
            "settings": dict(self.settings),
            "config": json_value(shown),
            "instance_name": "",
            "kind": "CPU",
            "device_id": 0,
            "lanes": 1,
            "threads": 1,
        }


def onnx_path(version: VersionDirectory, file_name: str) -> Path:
    """Return where an ONNX model is: a directory of its name holds `model.onnx` beside its external data."""
    path = version.path / file_name
    return path / "model.onnx" if os.path.isdir(path) else path


def torch_path(version: VersionDirectory, file_name: str) -> Path:
    """Return where a PyTorch model is: if there is no `model.pt`, the backend takes `model.pt2`."""
    path, other = version.path / file_name, version.path / "model.pt2"
    return other if file_name == "model.pt" and not os.path.exists(path) and os.path.exists(other) else path


def missing(config: ModelConfig, path: Path, repository: Path, links: Links = Links.INSIDE) -> Problem | None:
    """Return the problem of a model file that is not there, or is a link out of the repository."""
    if links is Links.INSIDE and inside(repository, str(path)) is None:
        return Problem(
            message=f"model file '{path.name}' of model '{config.name}' is outside the model repository",
            path=path,
        )
    try:
        path.stat()
    except OSError as error:
        absent = isinstance(error, FileNotFoundError | NotADirectoryError)
        return Problem(
            message=f"unable to find '{path}' for model '{config.name}'",
            path=path,
            hint="" if absent else error.strerror or str(error),
            code=ErrorCode.INTERNAL,
        )
    return None


def leads_out(version_directory: Path, file_name: str, repository: Path, links: Links = Links.INSIDE) -> bool:
    """Whether a model file is named outside its version directory, or is a link out of the repository."""
    if links.follow(file_name):
        return False
    path = version_directory / file_name
    named_out = inside(version_directory.resolve(), file_name) is None and not path.is_symlink()
    return named_out or inside(repository, str(path)) is None


def _may_complete(path: Path) -> bool:
    """Whether a Python model may have `auto_complete_config`.

    Its text decides, so that most models need not be run to learn that.
    """
    if not os.path.isfile(path):
        return False  # the backend says so at the load, with the contract's text
    try:
        with path.open("rb") as file:
            source = b"\n" + file.read(_LARGEST_SOURCE)
    except OSError:
        return True
    if b"auto_complete_config" in source or b"import *" in source:
        return True
    if b"import tritium" in source or b"from tritium " in source:
        return True  # its type hints say it
    return b"TritonPythonModel" in source and not any(plain in source for plain in _PLAIN_CLASSES)


def _unreadable(config: ModelConfig, path: Path, kind: str, error: Unreadable) -> Problem:
    return Problem(
        message=(
            f"autofill failed for model '{config.name}': the {kind} file '{path.name}' does not tell its inputs and"
            f" outputs: {error}"
        ),
        path=path,
        hint=_what_to_do(kind, error),
    )


def _what_to_do(kind: str, error: Unreadable) -> str:
    if isinstance(error, Pointer):
        return ""  # its message says it
    if isinstance(error, Unloadable):
        return (
            f"it is damaged, cut short, or no {kind} model: export it again, or copy it again and compare its checksum with the"
            " original's"
        )
    return "write 'input' and 'output' into config.pbtxt if it can be run all the same"


def _not_told(config: ModelConfig, sketch: Sketch, path: Path) -> Problem:
    """Return the problem of a file that does not tell enough, with a configuration to begin with."""
    batches = config.max_batch_size > 0
    sides = [("input", config.input, sketch.inputs), ("output", config.output, sketch.outputs)]
    missing = [(side, ports) for side, given, ports in sides if not given]
    names = " and ".join(f"'{side}'" for side, _ in missing)
    lines = [snippet(side, ports, batches=batches) for side, ports in missing]
    return Problem(
        message=(
            f"model '{config.name}' has no {names} in its configuration, and '{path.name}' does not tell them: it is"
            f" {sketch.kind}, {sketch.signature}"
        ),
        path=path,
        hint="add, with the types and dims that are right:\n" + "\n".join(lines),
    )


def _shortened(text: str) -> str:
    return text if len(text) <= _OUTPUT_SHOWN else f"… {text[-_OUTPUT_SHOWN:]}"
