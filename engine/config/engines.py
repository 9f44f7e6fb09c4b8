"""Repositories of TensorRT-LLM and FasterTransformer: what runs them here, or why nothing does.

Contract: llm.md section 4. TensorRT-LLM's backend of that name is a library of Triton's, in C++. The same
folder has a `model.py` that does the same work with the package `tensorrt_llm`, so that is what runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from engine.environments.declared import PATH_PARAMETER
from engine.models.problems import Problem
from engine.processes.backends import PYTHON, BackendTraits
from engine.settings.extras import is_missing
from protocols.kserve.proto.model_config_pb2 import ModelConfig

PACKAGE: Final = "tensorrt_llm"
TENSORRT_LLM: Final = ("tensorrtllm", "tensorrt_llm")
FASTER_TRANSFORMER: Final = "fastertransformer"

_SCRIPT: Final = "model.py"
_IMPORTS: Final = re.compile(rf"^(?:import|from)\s+{PACKAGE}\b", re.MULTILINE)
_READ: Final = 1024 * 1024  # bytes of a script: its imports are at its beginning
_ELSE: Final = 'serve the checkpoint\'s folder by backend "transformers" or "vllm" (docs/llm.md)'
_INSTALL: Final = f"install '{PACKAGE}' here, or name an environment that has it by {PATH_PARAMETER}"


def choose_engine(
    config: ModelConfig, name: str, version: Path | None, backends: Mapping[str, BackendTraits]
) -> tuple[str, list[Problem]]:
    """Fill in place the backend that runs a model of such an engine, if there is one.

    `version` is the model's first version directory. Returns what gave the backend away, and what keeps it
    from running. A backend of the model's name that is registered goes first.
    """
    if config.backend in backends and config.backend != PYTHON:
        return "", []
    if config.backend == FASTER_TRANSFORMER:
        return "", [_ended(name)]
    if config.backend not in (*TENSORRT_LLM, PYTHON) or version is None:
        return "", []
    script = version / (config.default_model_filename.rpartition("/")[2] or _SCRIPT)
    lacking = is_missing(PACKAGE) and not _has_environment(config, version)
    if config.backend == PYTHON:
        return "", [_package(name)] if lacking and _imports_it(script) else []
    if script.is_file() and not lacking:
        config.backend = PYTHON
        return f"file {version.name}/{script.name}, for '{PACKAGE}'", []
    return "", [_library(name, config.backend, script)]


def _has_environment(config: ModelConfig, version: Path) -> bool:
    """Whether the model's worker may have other packages than the server."""
    folders = (version, version.parent)
    return PATH_PARAMETER in config.parameters or any(
        (each / "requirements.txt").exists() for each in folders
    )


def _library(name: str, written: str, script: Path) -> Problem:
    place = f"{script.parent.name}/{script.name}"
    if script.is_file():
        message = (
            f"model '{name}' asks for backend '{written}', a C++ library that is not here, and can't run"
            f" by backend 'python' either: the package '{PACKAGE}' that {place} needs can't be imported"
        )
        hint = f"{_INSTALL}; or {_ELSE}"
    else:
        message = (
            f"model '{name}' asks for backend '{written}', a C++ library that is not here, and can't run"
            f" by backend 'python' either: there is no {place}"
        )
        hint = f"put TensorRT-LLM's {_SCRIPT} of this model there, and {_INSTALL}; or {_ELSE}"
    return Problem(message=message, key="backend", hint=hint)


def _package(name: str) -> Problem:
    return Problem(
        message=f"model '{name}' needs the package '{PACKAGE}', which can't be imported here",
        key="backend",
        hint=f"{_INSTALL}; or {_ELSE}",
    )


def _imports_it(script: Path) -> bool:
    """Whether a script can't run without the package: its import is not inside of anything."""
    if not script.is_file():  # a name that no file can have is none either
        return False
    try:
        with script.open("rb") as file:
            return _IMPORTS.search(file.read(_READ).decode(errors="replace")) is not None
    except OSError:
        return False


def _ended(name: str) -> Problem:
    return Problem(
        message=(
            f"model '{name}' asks for backend '{FASTER_TRANSFORMER}', which ended in 2023: use TensorRT-LLM,"
            " with an"
            " engine built again from the original checkpoint (c-model files do not convert), or backend"
            " 'vllm' or"
            " 'transformers' with the checkpoint's folder"
        ),
        key="backend",
        hint=(
            "clients write seed for 'random_seed', return_log_probs for 'is_return_log_probs', and INT32 for"
            " UINT32;"
            " vLLM has no 'start_id' and no beams"
        ),
    )
