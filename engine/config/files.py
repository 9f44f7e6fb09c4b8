"""The files that a configuration names beside the model: labels, warmup data, initial states.

They are read once, at loading.

Names are resolved inside the model directory. A name never leads out of it, and a link only with
`Links.ANYWHERE`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from actors.values.datatypes import BY_NUMBER, DataType
from actors.values.errors import ErrorCode, InvalidArgument
from actors.values.specs import WarmupSample
from actors.values.tensors import Tensor, element_count, unpack_bytes
from engine.config.rules.instances import WARMUP_PREFIX, sample_problems
from engine.models.links import Links
from engine.models.problems import Problem
from protocols.kserve.proto.model_config_pb2 import ModelConfig, ModelSequenceBatching, ModelWarmup

_LARGEST_TENSOR: Final = 1 << 30  # bytes; a larger one is a mistyped dimension
_LARGEST_LABEL_FILE: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """What the files beside a model hold, and what is wrong with them."""

    labels: Mapping[str, tuple[str, ...]]  # by output
    states: Mapping[str, bytes]  # what states begin with, by input name; for the others it is zeros
    warmup: tuple[WarmupSample, ...]
    problems: tuple[Problem, ...] = ()


class FileProblem(Exception):
    """A file that a configuration names can't be used."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def inside(directory: Path, name: str, links: Links = Links.INSIDE) -> Path | None:
    """Return the file `name` of `directory`, or None if the name leads out of it, or a link that may not."""
    if links.follow(name):
        return directory / os.path.normpath(name)
    try:
        root = directory.resolve()
        path = (root / name).resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, a name with a null byte
        return None
    return path if path.is_relative_to(root) else None


def read_files(config: ModelConfig, model_directory: Path, links: Links = Links.INSIDE) -> Files:
    """Read every file that the completed `config` names, which may have any number of broken rules.

    What is left out if a rule is broken or a file can't be used is no loss: such a model is not started.
    """
    labels, problems = read_labels(config, model_directory, links)
    warmup, unusable = build_warmup(config, model_directory, links)
    states, missing = read_initial_states(config, model_directory, links)
    return Files(
        labels=labels,
        states=states,
        warmup=warmup,
        problems=(*missing, *problems, *unusable, *_operator_libraries(config, model_directory, links)),
    )


def _operator_libraries(config: ModelConfig, model_directory: Path, links: Links) -> Iterator[Problem]:
    """Tell of libraries that lie elsewhere. The worker, which loads them, says whether they are there."""
    for at, name in enumerate(config.model_operations.op_library_filename):
        if inside(model_directory, name, links) is None:
            yield Problem(
                message=f"model '{config.name}': no operator library '{name}' in the model directory",
                key=f"model_operations.op_library_filename[{at}]",
            )


def read_initial_states(
    config: ModelConfig, model_directory: Path, links: Links = Links.INSIDE
) -> tuple[Mapping[str, bytes], list[Problem]]:
    """Return the data of every sequence state that begins with a file, if the rules about it are kept."""
    states: dict[str, bytes] = {}
    problems: list[Problem] = []
    for at, state in enumerate(config.sequence_batching.state):
        if len(state.initial_state) != 1:
            continue
        initial = state.initial_state[0]
        if initial.WhichOneof("state_data") != "data_file" or any(dim < 0 for dim in initial.dims):
            continue
        try:
            states[state.input_name] = _initial_state_file(state.input_name, initial, model_directory, links)
        except FileProblem as error:
            key = f"sequence_batching.state[{at}].initial_state[0].data_file"
            hint = "data files are named relative to the model's directory initial_state/"
            problems.append(_at(error.problem, key, hint))
    return states, problems


def _initial_state_file(
    state: str, initial: ModelSequenceBatching.InitialState, model_directory: Path, links: Links
) -> bytes:
    datatype = BY_NUMBER.get(initial.data_type)
    if datatype is None:
        return b""  # told by the rules
    name = initial.data_file
    path = inside(model_directory / "initial_state", name, links)
    if path is None:
        raise FileProblem(
            Problem(
                message=(
                    f"initial state data file '{name}' for state '{state}' is outside the model's initial_state"
                    " directory"
                ),
                code=ErrorCode.UNSUPPORTED,
            )
        )
    elements = element_count(initial.dims)
    expected = elements * (datatype.size or 4)  # BYTES: at least the length of each element
    limit = _LARGEST_TENSOR if datatype is DataType.BYTES else min(expected, _LARGEST_TENSOR)
    data = _content(path, limit, f"initial state data file '{name}' for state '{state}'")
    if len(data) < expected:
        # The missing space is Triton's, and clients match on it.
        raise FileProblem(
            Problem(
                message=(
                    f"initial_state setting expects {expected} bytes, but the data provided from"
                    f" {name}only has {len(data)} bytes."
                )
            )
        )
    if datatype is DataType.BYTES:
        _elements(data, state, elements, f"initial state data file '{name}'")
    return data


def _elements(data: bytes, name: str, elements: int, what: str) -> None:
    """Check that a file holds `elements` strings."""
    try:
        unpack_bytes(data, name, elements)
    except InvalidArgument as error:
        raise FileProblem(Problem(message=f"{what}: {error.message}")) from error


def read_labels(
    config: ModelConfig, model_directory: Path, links: Links = Links.INSIDE
) -> tuple[Mapping[str, tuple[str, ...]], list[Problem]]:
    """Return the labels of every output that has a label file, by output name."""
    labels: dict[str, tuple[str, ...]] = {}
    problems: list[Problem] = []
    for at, output in enumerate(config.output):
        if output.label_filename:
            try:
                path = inside(model_directory, output.label_filename, links)
                labels[output.name] = _label_file(config, output.name, output.label_filename, path)
            except FileProblem as error:
                hint = "label files are named relative to the model's directory, beside config.pbtxt"
                problems.append(_at(error.problem, f"output[{at}].label_filename", hint))
    return labels, problems


def _label_file(config: ModelConfig, output: str, name: str, path: Path | None) -> tuple[str, ...]:
    who = f"for output '{output}' in model '{config.name}'"
    if path is None:
        raise FileProblem(
            Problem(
                message=f"label file path '{name}' {who} is outside model directory",
                code=ErrorCode.UNSUPPORTED,
            )
        )
    raw = _content(path, _LARGEST_LABEL_FILE + 1, f"label file '{name}' {who}")
    if len(raw) > _LARGEST_LABEL_FILE:
        raise FileProblem(
            Problem(message=f"label file '{name}' {who} is larger than {_LARGEST_LABEL_FILE} bytes")
        )
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise FileProblem(
            Problem(message=f"label file '{name}' {who} is not UTF-8 at byte {error.start}")
        ) from error
    lines = text.split("\n")
    if not lines[-1]:  # what follows the last line's end
        lines.pop()
    return tuple(line.removesuffix("\r") for line in lines)


def _content(path: Path, limit: int, what: str) -> bytes:
    """Return up to `limit` bytes of a regular file: opening a pipe would wait for a writer."""
    try:
        if path.exists() and not path.is_file():
            raise FileProblem(Problem(message=f"failed to read {what}: it is no regular file"))
        with path.open("rb") as file:
            return file.read(limit)
    except OSError as error:
        raise FileProblem(Problem(message=f"failed to read {what}: {error.strerror or error}")) from error


def build_warmup(
    config: ModelConfig, model_directory: Path, links: Links = Links.INSIDE
) -> tuple[tuple[WarmupSample, ...], list[Problem]]:
    """Return the samples as tensors (contract, scheduling.md section 10), in the configuration's order.

    A sample is `batch_size` requests of one item, all with the same data; one that breaks a rule is left out.
    """
    samples: list[WarmupSample] = []
    problems: list[Problem] = []
    declared = {tensor.name for tensor in config.input}
    for at, sample in enumerate(config.model_warmup):
        if not sample.batch_size or any(sample_problems(config, sample, "")):
            continue
        tensors: list[Tensor] = []
        for name, source in sorted(sample.inputs.items()):
            batched = config.max_batch_size > 0 and name in declared
            try:
                path = inside(model_directory / "warmup", source.input_data_file, links)
                tensors.append(_warmup_tensor(name, source, path, batched=batched))
            except FileProblem as error:
                hint = "data files are named relative to the model's directory warmup/"
                problems.append(_at(error.problem, f'model_warmup[{at}].inputs["{name}"]', hint))
        samples.append(
            WarmupSample(
                name=sample.name, requests=(tuple(tensors),) * sample.batch_size, count=sample.count or 1
            )
        )
    return tuple(samples), problems


def _warmup_tensor(name: str, source: ModelWarmup.Input, path: Path | None, *, batched: bool) -> Tensor:
    datatype = BY_NUMBER[source.data_type]
    elements = element_count(source.dims)
    if elements * max(datatype.size, 4) > _LARGEST_TENSOR:
        raise FileProblem(Problem(message=f"warmup input '{name}' is larger than {_LARGEST_TENSOR} bytes"))
    match source.WhichOneof("input_data_type"):
        case "input_data_file":
            data = _warmup_file(name, source.input_data_file, path, datatype, elements)
        case "random_data" if datatype is not DataType.BYTES:
            data = _random(datatype, elements)
        case _:
            data = bytes(elements * (datatype.size or 4))  # BYTES: each an empty string, its length 0
    shape = (1, *source.dims) if batched else tuple(source.dims)
    return Tensor(name, datatype, shape, data)


def _random(datatype: DataType, elements: int) -> bytes:
    """Return data that a model can compute with: random bits would be full of NaN. Equal at each load."""
    generator = np.random.default_rng(0)
    values: np.ndarray[Any, Any]
    if datatype is DataType.BF16:  # the upper half of an FP32
        values = (generator.random(elements, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)
    elif datatype in (DataType.FP16, DataType.FP32, DataType.FP64):
        values = generator.random(elements).astype(datatype.numpy)
    elif datatype is DataType.BOOL:
        values = generator.integers(0, 2, elements).astype(np.bool_)
    else:
        bounds = np.iinfo(datatype.numpy)
        values = generator.integers(bounds.min, bounds.max, elements, dtype=datatype.numpy, endpoint=True)
    return values.tobytes()


def _warmup_file(name: str, file_name: str, path: Path | None, datatype: DataType, elements: int) -> bytes:
    if path is None:
        raise FileProblem(
            Problem(
                message=f"warmup data file '{file_name}' for input '{name}' is outside the model's warmup directory",
                code=ErrorCode.UNSUPPORTED,
            )
        )
    expected = elements * datatype.size
    limit = _LARGEST_TENSOR if datatype is DataType.BYTES else expected
    data = _content(path, limit, f"warmup data file '{file_name}'")
    if len(data) < expected:
        # The missing space is Triton's, and clients match on it.
        raise FileProblem(
            Problem(
                message=(
                    f"{WARMUP_PREFIX}warmup setting expects {expected} bytes, but the data"
                    f" provided from {file_name}only has {len(data)} bytes"
                )
            )
        )
    if datatype is DataType.BYTES:
        _elements(data, name, elements, f"warmup data file '{file_name}'")
    return data


def _at(problem: Problem, key: str, hint: str) -> Problem:
    return replace(problem, key=key, hint=problem.hint or hint)
