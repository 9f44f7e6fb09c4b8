"""From a model's file to what its backend is told of it, by the code that a server does it with."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from actors.serving.instances.launching import model_fields
from actors.values.specs import InstanceSpec, ModelSpec
from engine.config import parse
from engine.config.load import load_model_config
from engine.config.loaded import LoadedConfig
from engine.processes.backends import BackendTraits, discover
from engine.worker.authoring.folder import check_file, config_beside, write_repository
from engine.worker.authoring.linking import model_directory
from engine.worker.joining import tensor_of
from protocols.kserve.proto.model_config_pb2 import ModelConfig


class ModelNotLoaded(Exception):
    """The model would not load on a server either. The message says all that is wrong."""


def complete(
    file: Path,
    config: Mapping[str, Any] | None,
    parameters: Mapping[str, str] | None,
    *,
    gpu: int | None = None,
) -> ModelSpec:
    """Return the specification of the model in `file`, version 1 or that of its folder in a repository.

    There are as many GPUs as make `gpu` one of them. The fields of `config`, a ModelConfig as JSON, replace
    those of its config.pbtxt, if there is one; `parameters` are added. The rest is completed from the model.
    Raises ModelNotLoaded, and NotAModelFile.
    """
    file = check_file(file)
    override = json_format.MessageToJson(_merged(file, config, parameters), preserving_proto_field_name=True)
    with tempfile.TemporaryDirectory(prefix="tritium-testing-") as folder:
        loaded = load_model_config(
            write_repository(file, Path(folder)),
            backends=_backends(),
            gpus=0 if gpu is None else gpu + 1,
            override=override,
        )
    if not loaded.ok:
        raise ModelNotLoaded(_all_errors(loaded))
    return loaded.specs[-1]


def fields(spec: ModelSpec, file: Path, *, gpu: int | None = None) -> dict[str, Any]:
    """Return the fields of `ModelInfo` except `log` and `calls`: the model is run from `file` itself.

    Its instance is on `gpu`, or on the CPU.
    """
    folder = file.resolve().parent
    name = f"{spec.name}_0_0"
    kind: dict[str, Any] = {} if gpu is None else {"kind": "GPU", "device_id": gpu}
    found: dict[str, Any] = model_fields(spec, InstanceSpec(name=name, **kind))
    for side in ("inputs", "outputs"):
        found[side] = [tensor_of(each) for each in found[side]]
    return {
        **found,
        "version": int(folder.name) if folder.name.isdigit() else 1,
        "model_directory": model_directory(str(folder)),
        "version_directory": str(folder),
        "artifact": file.name,
        "threads": 1,
    }


@functools.cache
def _backends() -> Mapping[str, BackendTraits]:
    return discover()


def _merged(
    file: Path, config: Mapping[str, Any] | None, parameters: Mapping[str, str] | None
) -> ModelConfig:
    beside = config_beside(file)
    merged = ModelConfig(backend="python")
    if beside is not None:
        parsed = parse.read(beside)
        if parsed.config is None:
            raise ModelNotLoaded("\n".join(problem.message for problem in parsed.problems))
        merged.MergeFrom(parsed.config)
    merged.ClearField("default_model_filename")  # the file is given
    for field in set(config or ()) & set(merged.DESCRIPTOR.fields_by_name):
        merged.ClearField(field)
    try:
        json_format.ParseDict(dict(config or {}), merged)
    except json_format.ParseError as error:
        raise ModelNotLoaded(f"the test's configuration is no ModelConfig: {error}") from error
    for key, value in (parameters or {}).items():
        merged.parameters[key].string_value = value
    return merged


def _all_errors(loaded: LoadedConfig) -> str:
    return "\n".join(
        problem.reason + (f" ({problem.hint})" if problem.hint else "") for problem in loaded.errors
    )
