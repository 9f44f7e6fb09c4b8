"""What an operator forbids of models whatever their configurations say: code, and what no signature covers.

`--no-code-models` refuses a model that brings code of its own. What a backend does with a model is the
backend's to say (`Backend.runs_model_code`), and one that says nothing is taken to run it. Files that carry
code are refused wherever they lie in the model's folder, so that no parameter has to be understood.

`--require-signed` refuses what a model would use from outside its signed folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine.environments.declared import MODEL_DIRECTORY, PATH_PARAMETER
from engine.environments.requirements import find
from engine.models.layout import shown
from engine.models.problems import Problem
from engine.processes.backends import BackendTraits
from protocols.kserve.proto.model_config_pb2 import ModelConfig

MOST_FILES: Final = 250_000
_MOST_NAMED: Final = 5

_CARRIERS: Final = (
    (re.compile(r"\.(?:py|pyc|pyo|pyw|pyz|ipynb)"), "Python code"),
    (re.compile(r"\.(?:so|pyd|dll|dylib)(?:\.[0-9.]+)?"), "a native library"),
    (re.compile(r"\.(?:pt|pth|pt2|ptl|jit)"), "a TorchScript or exported program, or a pickle"),
    (
        re.compile(r"\.(?:pkl|pickle|p|joblib|dill|cloudpickle|ckpt)"),
        "a pickle, which runs code as it is read",
    ),
    (re.compile(r"\.(?:whl|egg|conda|jar|sh)"), "a package or a program"),
)
# Parameters that name a native library, wherever that lies and whatever its name.
_LIBRARIES: Final = ("CPU_EXTENSION_PATH",)
_PLUGINS: Final = "trt_extra_plugin_lib_paths"  # of an execution accelerator, separated by semicolons
_WHY: Final = "--no-code-models forbids models that carry code"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restrictions:
    """What the operator forbids. By default nothing."""

    no_code: bool = False
    signed: bool = False  # nothing from outside the model's folder

    def forbidden(
        self, config: ModelConfig, traits: BackendTraits, model_directory: Path, *, install: bool
    ) -> list[Problem]:
        """Return everything about a completed configuration that is forbidden; nothing of the model is run.

        `install` says whether a `requirements.txt` would be installed. Reads the folder's listing.
        """
        if config.HasField("ensemble_scheduling"):
            return []  # it has no file and no worker; what it is made of is asked for by itself
        found = list(_code(config, traits, model_directory)) if self.no_code else []
        found += _libraries_outside(config, model_directory) if self.signed else ()
        if self.signed and traits.has_environments:
            found += _outside(config, model_directory, install=install and traits.runs_python)
        return found


NONE: Final = Restrictions()


def carried(name: str) -> str:
    """Return what code a file of this name carries; nothing if such files are not known to carry any."""
    suffix = re.search(r"\.[a-z0-9]+(?:\.[0-9.]+)?\Z", name.lower())
    if suffix is None:
        return ""
    return next((what for pattern, what in _CARRIERS if pattern.fullmatch(suffix[0])), "")


def _code(config: ModelConfig, traits: BackendTraits, model_directory: Path) -> Iterator[Problem]:
    if config.backend and traits.runs_model_code:
        yield Problem(
            message=f"backend '{config.backend}' may run code that a model brings; {_WHY}",
            key="backend",
            hint="convert the model to ONNX, or serve it from a server without the flag",
        )
    for library in config.model_operations.op_library_filename:
        yield Problem(
            message=f"custom operators are a native library, '{library}'; {_WHY}",
            key="model_operations.op_library_filename",
        )
    for _, key, library in _libraries(config):
        if not carried(library):
            yield Problem(message=f"'{library}' is a native library; {_WHY}", key=key)
    if _environment(config):
        yield Problem(
            message=f"'{PATH_PARAMETER}' brings an environment of packages; {_WHY}",
            key=f'parameters["{PATH_PARAMETER}"]',
        )
    for key, value in _parameters(config):
        if what := carried(value):
            yield Problem(message=f"'{value}' is {what}; {_WHY}", key=key)
    yield from _files(model_directory)


def _libraries(config: ModelConfig) -> Iterator[tuple[str, str, str]]:
    """Yield what a configuration names a native library by: its name, key and value."""
    for name in _LIBRARIES:
        if name in config.parameters and config.parameters[name].string_value:
            yield name, f'parameters["{name}"]', config.parameters[name].string_value
    for accelerator in config.optimization.execution_accelerators.gpu_execution_accelerator:
        for path in accelerator.parameters.get(_PLUGINS, "").split(";"):
            if path:
                yield _PLUGINS, "optimization.execution_accelerators", path


def _libraries_outside(config: ModelConfig, model_directory: Path) -> Iterator[Problem]:
    """Tell of libraries that the signature of a model's folder does not cover."""
    for name, key, library in _libraries(config):
        if not Path(library).resolve().is_relative_to(model_directory.resolve()):
            yield Problem(
                message=(
                    f"'{name}' is '{library}', outside the model's folder, so that no signature covers it;"
                    " --require-signed forbids that"
                ),
                key=key,
                hint=f"let the operator name it: --backend-config={config.backend},{name}={library}"
                if name in _LIBRARIES
                else "put it into the model's folder, and sign that again",
            )


def _environment(config: ModelConfig) -> str:
    """Return what a configuration names an environment by; nothing if it names none."""
    return config.parameters[PATH_PARAMETER].string_value if PATH_PARAMETER in config.parameters else ""


def _parameters(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Yield what a configuration may name a file by: key and value."""
    for name in sorted(config.parameters):
        yield f'parameters["{name}"]', config.parameters[name].string_value
    for filename in (config.default_model_filename, *sorted(config.cc_model_filenames.values())):
        yield "default_model_filename", filename
    accelerators = config.optimization.execution_accelerators
    for accelerator in (*accelerators.gpu_execution_accelerator, *accelerators.cpu_execution_accelerator):
        for name in sorted(accelerator.parameters):
            yield "optimization.execution_accelerators", accelerator.parameters[name]


def _files(model_directory: Path) -> Iterator[Problem]:
    """Tell of files that carry code, the first ones by name."""
    told, seen, entries = 0, set(), 0
    for folder, folders, names in os.walk(model_directory, followlinks=True):
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:  # a loop of links
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders.sort()
        entries += len(names) + len(folders)
        if entries > MOST_FILES:
            yield Problem(
                message=f"there are more than {MOST_FILES} files in it; {_WHY}", path=model_directory
            )
            return
        for name in sorted(names):
            if what := carried(name):
                path = Path(folder, name).relative_to(model_directory)
                told += 1
                if told > _MOST_NAMED:
                    return
                yield Problem(message=f"'{shown(str(path))}' is {what}; {_WHY}", path=model_directory)


def _outside(config: ModelConfig, model_directory: Path, *, install: bool) -> Iterator[Problem]:
    """Tell of an environment that the signature of a model's folder does not cover."""
    if given := _environment(config):
        path = Path(given.replace(MODEL_DIRECTORY, str(model_directory))).resolve()
        if not path.is_relative_to(model_directory.resolve()):
            yield Problem(
                message=(
                    f"'{PATH_PARAMETER}' is '{given}', outside the model's folder, so that no signature"
                    " covers it; --require-signed forbids that"
                ),
                key=f'parameters["{PATH_PARAMETER}"]',
                hint=f"put the archive into the model's folder and name it as {MODEL_DIRECTORY}/FILE",
            )
        return
    versions = sorted(each for each in model_directory.iterdir() if each.is_dir()) if install else []
    for path in dict.fromkeys(filter(None, (find(version, model_directory) for version in versions))):
        yield Problem(
            message=(
                f"'{path.name}' installs packages that no signature covers; --require-signed forbids that"
            ),
            path=path,
            hint=(
                f"pack the environment into the model's folder and name it by '{PATH_PARAMETER}', or set"
                " 'tritium.requirements' to 'ignore' if the server has what the model needs"
            ),
        )
