"""The files that a configuration names beside the model: labels and warmup data. Read once, when the model is loaded.

Names are resolved inside the model directory and never followed out of it (DESIGN section 9).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from actors.messages.datatypes import BY_NUMBER, DataType
from actors.messages.errors import ErrorCode, InvalidArgument
from actors.messages.tensors import Tensor, element_count, unpack_bytes
from actors.specs import WarmupSample
from engine.config.problems import Problem
from engine.config.validate import WARMUP_PREFIX
from protocols.kserve.proto.model_config_pb2 import ModelConfig, ModelWarmup

_LARGEST_WARMUP_TENSOR: Final = 1 << 30  # bytes; a larger one is a mistyped dimension
_LARGEST_LABEL_FILE: Final = 64 * 1024 * 1024


class FileProblem(Exception):
    """A file that a configuration names can't be used."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def inside(directory: Path, name: str) -> Path | None:
    """Return the file `name` of `directory`, or None where the name or a link leads out of it."""
    try:
        root = directory.resolve()
        path = (root / name).resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, a name with a null byte
        return None
    return path if path.is_relative_to(root) else None


def read_labels(
    config: ModelConfig, model_directory: Path
) -> tuple[Mapping[str, tuple[str, ...]], list[Problem]]:
    """Return the labels of every output that has a label file, by output name."""
    labels: dict[str, tuple[str, ...]] = {}
    problems: list[Problem] = []
    for at, output in enumerate(config.output):
        if output.label_filename:
            try:
                labels[output.name] = _label_file(config, output.name, output.label_filename, model_directory)
            except FileProblem as error:
                problems.append(_at(error.problem, f"output[{at}].label_filename"))
    return labels, problems


def _label_file(config: ModelConfig, output: str, name: str, model_directory: Path) -> tuple[str, ...]:
    who = f"for output '{output}' in model '{config.name}'"
    path = inside(model_directory, name)
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
    config: ModelConfig, model_directory: Path
) -> tuple[tuple[WarmupSample, ...], list[Problem]]:
    """Return the samples as tensors (contract, scheduling.md section 10), in the configuration's order.

    `config` has passed `validate`. A sample is `batch_size` requests of one item, all with the same data.
    """
    samples: list[WarmupSample] = []
    problems: list[Problem] = []
    declared = {tensor.name for tensor in config.input}
    for at, sample in enumerate(config.model_warmup):
        if not sample.batch_size:
            continue
        tensors: list[Tensor] = []
        for name, source in sorted(sample.inputs.items()):
            batched = config.max_batch_size > 0 and name in declared
            try:
                tensors.append(_warmup_tensor(name, source, model_directory, batched=batched))
            except FileProblem as error:
                problems.append(_at(error.problem, f'model_warmup[{at}].inputs["{name}"]'))
        samples.append(
            WarmupSample(
                name=sample.name, requests=(tuple(tensors),) * sample.batch_size, count=sample.count or 1
            )
        )
    return tuple(samples), problems


def _warmup_tensor(name: str, source: ModelWarmup.Input, model_directory: Path, *, batched: bool) -> Tensor:
    datatype = BY_NUMBER[source.data_type]
    elements = element_count(source.dims)
    if elements * max(datatype.size, 4) > _LARGEST_WARMUP_TENSOR:
        raise FileProblem(
            Problem(message=f"warmup input '{name}' is larger than {_LARGEST_WARMUP_TENSOR} bytes")
        )
    match source.WhichOneof("input_data_type"):
        case "input_data_file":
            data = _warmup_file(name, source.input_data_file, model_directory, datatype, elements)
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


def _warmup_file(
    name: str, file_name: str, model_directory: Path, datatype: DataType, elements: int
) -> bytes:
    path = inside(model_directory / "warmup", file_name)
    if path is None:
        raise FileProblem(
            Problem(
                message=f"warmup data file '{file_name}' for input '{name}' is outside the model's warmup directory",
                code=ErrorCode.UNSUPPORTED,
            )
        )
    expected = elements * datatype.size
    limit = _LARGEST_WARMUP_TENSOR if datatype is DataType.BYTES else expected
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
        try:
            unpack_bytes(data, name, elements)
        except InvalidArgument as error:
            raise FileProblem(Problem(message=f"warmup data file '{file_name}': {error.message}")) from error
    return data


def _at(problem: Problem, key: str) -> Problem:
    return Problem(message=problem.message, code=problem.code, hint=problem.hint, key=key)
