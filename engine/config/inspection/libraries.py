"""Backends that are C libraries: what a model may ask of one, and what connects it to a worker."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from os.path import isfile
from pathlib import Path
from typing import Final

from actors.values.errors import ErrorCode
from engine.models.problems import Problem
from engine.processes.backends import PYTHON
from engine.settings.models import default_shim_cache
from engine.worker.native.building import CanNotBuild, find_or_build
from engine.worker.native.table import usual_library
from protocols.kserve.proto.model_config_pb2 import ModelConfig, ModelInstanceGroup

STRATEGY: Final = "TRITON_BATCH_STRATEGY_PATH"
STRATEGY_FILE: Final = "batchstrategy.so"


def connect(config: ModelConfig) -> tuple[str, Problem | None]:
    """Return where the shim is, and what keeps it from being made. May run a C compiler."""
    try:
        return find_or_build(default_shim_cache(os.environ), os.environ), None
    except CanNotBuild as error:
        message = f"model '{config.name}' needs what connects C libraries to this server, and {error}"
        return "", Problem(message=message, key="backend", code=ErrorCode.UNAVAILABLE)


def unserved(
    config: ModelConfig, written: ModelConfig, library: Path, places: Sequence[Path]
) -> Iterator[Problem]:
    """Yield what a model of a library asks for that does not work here; `written` is as its owner wrote it.

    `places` are where a batching library would be found.
    """
    if library.name == usual_library(PYTHON):
        yield Problem(
            message=(
                f"model '{config.name}' asks for '{library.name}', the library of Triton's python backend,"
                " which is not loaded here: Python models run without it"
            ),
            key="runtime",
            hint="leave 'runtime' out",
            code=ErrorCode.UNSUPPORTED,
        )
    for at, group in enumerate(written.instance_group):
        if group.kind == ModelInstanceGroup.KIND_GPU:
            yield Problem(
                message=(
                    f"instance group kind 'KIND_GPU' of model '{config.name}': the C library of backend"
                    f" '{config.backend}' gets its tensors in host memory, and no instances on a GPU"
                ),
                key=f"instance_group[{at}].kind",
                hint="write KIND_CPU",
                code=ErrorCode.UNSUPPORTED,
            )
    named = STRATEGY in written.parameters
    if named or any(isfile(each / STRATEGY_FILE) for each in places):
        yield Problem(
            message=(
                f"model '{config.name}' has a batching library"
                f" ({f'parameter {STRATEGY}' if named else STRATEGY_FILE}): those are not supported, since"
                " they would run in the server itself"
            ),
            key=f'parameters["{STRATEGY}"]' if named else "",
            hint="leave it out; 'dynamic_batching' has preferred batch sizes and a queue delay",
            code=ErrorCode.UNSUPPORTED,
        )
