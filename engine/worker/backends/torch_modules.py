"""PyTorch's runtime in Python: a module's class in a file, its weights beside it, `torch.compile` on top.

Contract: backends.md section 3.4. A model of backend `pytorch` asks for it by `runtime: "model.py"`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import sys
from typing import TYPE_CHECKING, Any

from actors.values.datatypes import DataType
from engine.worker.backends.base import LoadError
from engine.worker.backends.torch_accelerating import is_compiler, runtime
from engine.worker.backends.torch_loading import Program, device_of
from engine.worker.joining import made_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from engine.worker.backends.base import ModelInfo

RUNTIME = "model.py"
COMPILE = "TORCH_COMPILE_OPTIONAL_PARAMETERS"
_FILES = ("model.py", "model.pt")


def is_module(model: ModelInfo) -> bool:
    """Whether a model is to be run by this runtime."""
    return model.config.get("runtime") == RUNTIME


def load_module(torch: Any, model: ModelInfo) -> tuple[Program, Any]:
    """Load the model's file; return what calls it, and the device that inputs go to.

    Raises LoadError, or what torch and the model's code raise.
    """
    _check_tensors(model)
    path = _file(model)
    options = _options(model)
    device = None if model.kind == "MODEL" else device_of(torch, model)
    if path.endswith(".py"):
        module = _class_of(torch, path, model)()
        device = _device_of(module) if device is None else device
        weights = f"{path[: -len('.py')]}.pt"
        if os.path.exists(weights):
            # Of pickles only what weights consist of is read, which is torch's default.
            module.load_state_dict(torch.load(weights, map_location=device, weights_only=True))
        else:
            model.log("info", f"there are no weights for '{path}': they would be in '{weights}'")
        call = _compiled(torch, module.to(device).eval(), options, device, model)
    else:
        if options is not None:
            model.log("warning", f"{COMPILE} has no effect: '{path}' is a TorchScript program")
        call = torch.jit.load(path)
        device = _device_of(call) if device is None else device
        call = call.to(device).eval()
    return Program(lambda tensors: _listed(call(*tensors)), list(range(len(model.outputs)))), device


def _check_tensors(model: ModelInfo) -> None:
    for side, tensors in (("input", model.inputs), ("output", model.outputs)):
        if not tensors:
            raise LoadError(f"model configuration must contain at least one {side}, none were specified.")
    for tensor in [*model.inputs, *model.outputs]:
        if tensor.datatype is DataType.BYTES:
            raise LoadError(
                f"unable to load model '{model.name}', tensor '{tensor.name}' is TYPE_STRING, which modules in"
                " Python can't take and give"
            )
    assert not made_tensors(model)  # they are left out for whatever runs by this runtime


def _file(model: ModelInfo) -> str:
    named = str(model.config.get("default_model_filename", ""))
    names = [named, *_FILES] if named else list(_FILES)
    for name in names:
        path = os.path.join(model.version_directory, name)
        if os.path.exists(path):
            return path
    raise LoadError(f"No model found in {model.version_directory}/{names}")


def _class_of(torch: Any, path: str, model: ModelInfo) -> Any:
    """Import the file, and return its first subclass of `torch.nn.Module` in the order of their names.

    A class that the file itself defines goes before those that it imports. The model's folders are on
    `sys.path` from then on, as those of other Python models.
    """
    # A model's directory is read, never written to.
    sys.dont_write_bytecode = True
    at = next((i for i, each in enumerate(sys.path) if each.endswith("-packages")), len(sys.path))
    sys.path[at:at] = [model.version_directory, model.model_directory]
    name = f"{model.version}.{os.path.basename(path)[: -len('.py')]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    members = [getattr(module, each) for each in dir(module)]
    found = [each for each in members if isinstance(each, type) and issubclass(each, torch.nn.Module)]
    if not found:
        raise LoadError("Cannot find a subclass of torch.nn.Module")
    return next((each for each in found if each.__module__ == name), found[0])


def _device_of(module: Any) -> Any:
    """Return the device of a module that chooses its own, as `KIND_MODEL` has it: its first parameter's."""
    for parameter in module.parameters():
        return parameter.device
    raise LoadError("Cannot determine model device")


def _options(model: ModelInfo) -> Mapping[str, Any] | None:
    """Return the options of `torch.compile`; None if the configuration has none."""
    text = model.parameters.get(COMPILE)
    if text is None:
        return None
    try:
        options = json.loads(text)
    except ValueError as error:
        raise LoadError(f"model '{model.name}': {COMPILE} is no JSON: {error}") from error
    if not isinstance(options, dict):
        raise LoadError(f"model '{model.name}': {COMPILE} must be a JSON object, got {text}")
    if "model" in options:
        raise LoadError("'model' is not an optional parameter for 'torch.compile'")
    return options


def _compiled(
    torch: Any, module: Any, options: Mapping[str, Any] | None, device: Any, model: ModelInfo
) -> Any:
    """Return what `torch.compile` makes of a module. It compiles when it is first called."""
    given = options or {}
    if is_compiler(given.get("backend")):
        runtime(model)  # which makes the name known to torch
    if device.type == "cpu" and not given.get("disable") and given.get("backend", "inductor") == "inductor":
        compiler = shlex.split(os.environ.get("CXX", "")) or ["g++"]
        if not any(shutil.which(each) for each in (compiler[0], "clang++")):
            lacking = f"torch.compile needs a C++ compiler, and there is neither {compiler[0]} nor clang++"
            if options is not None:
                raise LoadError(f"model '{model.name}': {lacking}; write {COMPILE} {{\"disable\": true}}")
            model.log("warning", f"{lacking}: the module runs as it is")
            return module
    # A pool of processes that compile would have torch in memory once more each.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    return torch.compile(module, **given)


def _listed(results: Any) -> Sequence[Any]:
    return results if isinstance(results, (tuple, list)) else [results]
