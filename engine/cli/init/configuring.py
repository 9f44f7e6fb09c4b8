"""Writes the configuration of a model that has just been laid out, completed as by `tritium check`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine.config.inspection.autofill import snippet
from engine.config.inspection.torch_file import Sketch, read_torch
from engine.config.inspection.wire import Port, Unreadable
from engine.config.load import load_model_config
from engine.config.loaded import LoadedConfig
from engine.config.provenance import text_lines
from engine.models.links import Links
from engine.models.problems import Problem
from engine.processes.backends import BackendTraits
from engine.repository.bare.finding import BareModel
from engine.repository.bare.policy import formats
from engine.repository.bare.policy.formats import Engine
from protocols.kserve.proto.model_config_pb2 import ModelConfig

CONFIG: Final = "config.pbtxt"
_FOREST_INPUT, _FOREST_OUTPUT = "input__0", "output__0"
_BATCH: Final = 4
_READ_ONLY: Final = ("backend", "platform", "default_model_filename", "parameters")
_TAKEN: Final = (
    "max_batch_size",
    "input",
    "output",
    "dynamic_batching",
    "sequence_batching",
    "model_transaction_policy",
)
_LARGEST_SOURCE: Final = 1024 * 1024
_GOES_IN: Final = re.compile(r"get_input_tensor_by_name\(\s*\w+\s*,\s*['\"]([^'\"\n]{1,200})['\"]")
_COMES_OUT: Final = re.compile(r"\bTensor(?:\.from_dlpack)?\(\s*['\"]([^'\"\n]{1,200})['\"]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """A model with its configuration. `todo` is what its owner has to fill in; `problems` is all else."""

    config: ModelConfig
    loaded: LoadedConfig | None
    todo: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether a server here would load the model, and clients could ask it."""
        return self.loaded is not None and self.loaded.ok and not self.todo

    @property
    def answering(self) -> ModelConfig:
        """The configuration that the newest version would have."""
        told = self.loaded.configs if self.loaded is not None else ()
        return told[-1].completed.config if told else self.config


def configure(
    model: BareModel,
    engine: Engine,
    directory: Path,
    backends: Mapping[str, BackendTraits],
    *,
    gpus: int = 0,
    run_model_code: bool = True,
) -> Configured:
    """Write config.pbtxt into the model's directory, with all that the model tells. Raises OSError."""

    def read() -> LoadedConfig:
        return load_model_config(
            directory,
            backends=backends,
            gpus=gpus,
            verify_files=True,
            links=Links.ANYWHERE,
            run_model_code=run_model_code,
        )

    config = _first(model, engine)
    path = directory / CONFIG
    _write(path, config, ())
    if engine.backend not in backends:
        return Configured(config=config, loaded=None, todo=_forest_todo(model))
    loaded = read()
    by_itself = engine.backend == "python" or backends[engine.backend].language
    if not by_itself and loaded.ok:
        # Of a file that can't be told whole, a part would look like all of it.
        config = _completed(config, loaded)
    hints = _hints(model, config, loaded, directory, engine)
    _write(path, config, [line for hint in hints for line in ("", *hint)])
    if not by_itself:
        loaded = read()
    todo = (*_forest_todo(model), *(_asked_for(hint) for hint in hints))
    problems = tuple(problem for problem in loaded.problems if not (hints and _says_the_same(problem)))
    return Configured(config=config, loaded=loaded, todo=todo, problems=problems)


def _first(model: BareModel, engine: Engine) -> ModelConfig:
    """Return what is known of a model without reading more of it."""
    config = ModelConfig(backend=engine.backend, platform=engine.platform)
    if engine.named:
        config.default_model_filename = engine.file
    for key, value in engine.parameters.items():
        config.parameters[key].string_value = value
    forest = model.forest
    if forest is not None:
        config.parameters["is_classifier"].string_value = "true" if forest.classifies else "false"
        if forest.columns:
            config.max_batch_size = _BATCH
            config.input.add(name=_FOREST_INPUT, data_type="TYPE_FP32", dims=[forest.columns])
            config.output.add(name=_FOREST_OUTPUT, data_type="TYPE_FP32", dims=[1])
            config.dynamic_batching.SetInParent()
    return config


def _forest_todo(model: BareModel) -> tuple[str, ...]:
    forest = model.forest
    said = []
    if forest is not None and forest.classifies is None:
        said.append('write is_classifier "true" if it classifies: its file does not tell')
    if forest is not None and not forest.columns:
        said.append("write 'input' and 'output': its file does not tell how many columns there are")
    return tuple(said)


def _completed(config: ModelConfig, loaded: LoadedConfig) -> ModelConfig:
    """Return the configuration with what the newest version told."""
    if not loaded.configs:
        return config
    told = loaded.configs[-1].completed.config
    whole = ModelConfig()
    whole.CopyFrom(config)
    for name in _TAKEN:
        field = ModelConfig.DESCRIPTOR.fields_by_name[name]
        whole.ClearField(name)
        if field.message_type is None:
            setattr(whole, name, getattr(told, name))
        elif field.is_repeated:
            getattr(whole, name).MergeFrom(getattr(told, name))
        elif told.HasField(name):
            getattr(whole, name).CopyFrom(getattr(told, name))
    # What is a default belongs to the server that reads it.
    if whole.HasField("dynamic_batching"):
        whole.dynamic_batching.ClearField("preferred_batch_size")
    return whole


def _hints(
    model: BareModel, config: ModelConfig, loaded: LoadedConfig, directory: Path, engine: Engine
) -> list[list[str]]:
    """Return lines to fill in, for each side that a model's file does not tell."""
    told = loaded.configs[-1].completed.config if loaded.configs else config
    sides: Mapping[str, Sequence[Port]] = {}
    if model.form in (formats.TORCHSCRIPT, formats.COMPILED):
        newest = directory / str(model.versions[-1].number) / engine.file
        sides = _of_torch(newest)
    elif model.form is formats.PYTHON and loaded.ok and not told.input and not told.output:
        sides = _of_python(model.versions[-1].pieces[0].source)
    missing = {side: ports for side, ports in sides.items() if not getattr(told, side)}
    return [_lines(side, ports) for side, ports in missing.items()]


def _of_torch(path: Path) -> Mapping[str, Sequence[Port]]:
    try:
        found = read_torch(path)
    except Unreadable:
        return {}
    return {"input": found.inputs, "output": found.outputs} if isinstance(found, Sketch) else {}


def _of_python(path: Path) -> Mapping[str, Sequence[Port]]:
    with path.open("rb") as file:
        source = file.read(_LARGEST_SOURCE).decode(errors="replace")

    def ports(pattern: re.Pattern[str], instead: str) -> list[Port]:
        names = dict.fromkeys(pattern.findall(source)) or {instead: None}
        return [Port(name=name, datatype=None, shape=None) for name in names]

    return {"input": ports(_GOES_IN, "INPUT0"), "output": ports(_COMES_OUT, "OUTPUT0")}


def _lines(side: str, ports: Sequence[Port]) -> list[str]:
    guessed = [port.name for port in ports if port.datatype is None or port.shape is None]
    what = "types and dims are guessed" if guessed else "dims are an example's"
    return [
        f"# Correct it ({_plain(what)}; -1 is any size), and remove the '#':",
        *(f"# {_plain(line)}" for line in snippet(side, ports, batches=False).splitlines()),
    ]


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def _asked_for(hint: Sequence[str]) -> str:
    return f"fill in {hint[1].removeprefix('# ')}"


def _says_the_same(problem: Problem) -> bool:
    return "does not tell them" in problem.message or "autofill failed" in problem.message


def _write(path: Path, config: ModelConfig, more: Sequence[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in [*_config_lines(config), *more]), encoding="utf-8")


def _config_lines(config: ModelConfig) -> Iterator[str]:
    first = ModelConfig()
    first.CopyFrom(config)
    for name in [field.name for field, _ in config.ListFields()]:
        if name not in _READ_ONLY:
            first.ClearField(name)
    rest = ModelConfig()
    rest.CopyFrom(config)
    for name in _READ_ONLY:
        rest.ClearField(name)
    yield from (line.text for part in (first, rest) for line in text_lines(part))
