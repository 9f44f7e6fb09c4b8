"""Whether a configuration and its model can meet: what a backend refuses at the load, told before.

Contract: model_config.md 8.1. These are decisions over values, for `tritium check`. A server leaves them to
the backend, which knows the model once it is loaded. What an ONNX file leaves open (a type, a rank) may
become anything, and is no disagreement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from actors.values.datatypes import BY_NUMBER
from actors.values.errors import ErrorCode
from engine.config.inspection.wire import Port, Ports
from engine.models.problems import Problem, Severity, did_you_mean
from engine.settings.parameters import read_parameters, settings_of
from engine.worker.backends.onnx_texts import unsupported
from engine.worker.backends.shape_texts import misfit, spelt, unbatchable
from protocols.kserve.proto.model_config_pb2 import BatchInput, ModelConfig, ModelInput, ModelWarmup

_CONTAINERS: Final = ("sequence", "map", "opaque", "sparse_tensor", "optional")
_TAKE_NOTHING_ELSE: Final = ("onnxruntime", "pytorch")  # a Python model may look for what it does not declare


def disagreements(config: ModelConfig, ports: Ports, file: str) -> Iterator[Problem]:
    """Yield where a completed configuration contradicts the ONNX file called `file`.

    The configuration is that of a model without sequences.
    """
    defaulted = {port.name for port in ports.defaulted}
    made = [name for each in config.batch_input for name in each.target_name]
    expected = sum(tensor.name not in defaulted for tensor in config.input) + len(made)
    if expected != len(ports.inputs):
        yield _refused(
            config,
            f"configuration expects {expected} inputs, model provides {len(ports.inputs)}",
            key="input",
            hint=f"{file} takes {', '.join(port.name for port in ports.inputs) or 'nothing'}",
        )
    inputs = {port.name: port for port in (*ports.inputs, *ports.defaulted)}
    outputs = {port.name: port for port in ports.outputs}
    for at, tensor in enumerate(config.input):
        if tensor.optional and config.max_batch_size > 0:
            yield _refused(
                config,
                f"optional input '{tensor.name}' is not supported for models that support batching",
                key=f"input[{at}].optional",
            )
        yield from _tensor(config, "input", at, tensor, inputs, file)
    yield from _made(config, inputs, file)
    for at, given in enumerate(config.output):
        yield from _tensor(config, "output", at, given, outputs, file)


def warmup_misfits(config: ModelConfig, ports: Ports | None) -> Iterator[Problem]:
    """Yield what samples have that the model does not take.

    `ports` are an ONNX file's, by which that is certain. If there are sequences, names beside those of
    `input` are a scheduler's controls and states.
    """
    known = {} if ports is None else {port.name: port for port in (*ports.inputs, *ports.defaulted)}
    declared = {tensor.name: tensor for tensor in config.input}
    if config.HasField("sequence_batching"):
        return
    for at, sample in enumerate(config.model_warmup):
        for name, source in sorted(sample.inputs.items() if sample.batch_size else ()):
            key = f'model_warmup[{at}].inputs["{name}"]'
            what = f"warmup sample '{sample.name}' for {config.name}"
            if name not in declared:
                yield Problem(
                    message=f"{what} has an input '{name}', which is no input of the model",
                    severity=Severity.ERROR if config.backend in _TAKE_NOTHING_ELSE else Severity.WARNING,
                    key=key,
                    hint=did_you_mean(name, declared),
                )
            else:
                yield from _misfit(config, what, declared[name], source, known.get(name), key)


def _misfit(
    config: ModelConfig, what: str, tensor: ModelInput, source: ModelWarmup.Input, port: Port | None, key: str
) -> Iterator[Problem]:
    if port is None or tensor.HasField("reshape"):
        severity = Severity.WARNING
        typed, shape, given = int(tensor.data_type), tuple(tensor.dims), list(source.dims)
    else:
        severity = Severity.ERROR
        typed = port.datatype.number if port.datatype is not None else source.data_type
        shape = port.shape or ()
        given = [1] * (config.max_batch_size > 0) + list(source.dims)
    if source.data_type in BY_NUMBER and typed in BY_NUMBER and typed != source.data_type:
        typed_as, wanted = BY_NUMBER[source.data_type].config_name, BY_NUMBER[typed].config_name
        yield Problem(
            message=f"{what} gives input '{tensor.name}' as {typed_as}, and the model takes {wanted}",
            severity=severity,
            key=f"{key}.data_type",
        )
    if not _fits(shape, given) and min(given, default=0) >= 0:
        yield Problem(
            message=(
                f"{what} gives input '{tensor.name}' the shape {spelt(given)}, and the model takes"
                f" {spelt(shape)}"
            ),
            severity=severity,
            key=f"{key}.dims",
        )


def _tensor(
    config: ModelConfig, side: str, at: int, tensor: Any, ports: Mapping[str, Port], file: str
) -> Iterator[Problem]:
    """Compare one configured tensor with the file's, as the backend does with the session's."""
    name = tensor.name
    port = ports.get(name)
    if port is None:
        allowed = ", ".join(sorted(ports))
        said = f"unexpected inference {side} '{name}', allowed {side}s are: {allowed}"
        yield _refused(config, said, key=f"{side}[{at}].name", hint=did_you_mean(name, ports))
        return
    if port.spelling in _CONTAINERS:
        yield _told(unsupported(name, port.spelling), key=f"{side}[{at}].name")
        return
    wanted = BY_NUMBER.get(tensor.data_type)
    untyped = port.datatype is None and port.spelling.startswith("element type")
    if wanted is not None and wanted is not port.datatype and not untyped:
        provided = "TYPE_INVALID" if port.datatype is None else port.datatype.config_name
        said = f"configuration expects datatype {wanted.config_name} for {side} '{name}', model provides {provided}"
        yield _refused(config, said, key=f"{side}[{at}].data_type", hint=f"{file} has type {port.spelling}")
    if side == "input" and tensor.allow_ragged_batch:
        if port.shape is not None and port.shape != (-1,):
            said = (
                f"configuration expects model provides input with shape [-1]  for ragged input '{name}',"
                " model provides"
                f" {spelt(port.shape)}"
            )
            yield _refused(
                config, said, key=f"{side}[{at}].allow_ragged_batch", hint=f"{file} has that shape"
            )
        return
    if side == "output" and any(name in each.target_name for each in config.batch_output):
        return
    batches = config.max_batch_size > 0
    configured = [-1] * batches + _dims(tensor)
    shape = _open(config, side, name, port.shape or ())
    if not _fits(shape, configured):
        said = (
            unbatchable(config.name, name, shape)
            if batches and shape[0] != -1
            else misfit(config.name, name, shape, configured, batches=batches)
        )
        yield _told(said, key=f"{side}[{at}].dims", hint=f"{file} has that shape")


def _made(config: ModelConfig, ports: Mapping[str, Port], file: str) -> Iterator[Problem]:
    """Compare the tensors that tell where requests are with the file's inputs."""
    ranks = {tensor.name: len(_dims(tensor)) for tensor in config.input}
    for at, each in enumerate(config.batch_input):
        table = each.kind == BatchInput.BATCH_ITEM_SHAPE and each.source_input
        shape = [-1, ranks.get(each.source_input[0], 0)] if table else [-1]
        wanted = BY_NUMBER.get(each.data_type)
        for name in each.target_name:
            port = ports.get(name)
            if port is None:
                said = f"unexpected inference input '{name}', allowed inputs are: {', '.join(sorted(ports))}"
                yield _refused(
                    config, said, key=f"batch_input[{at}].target_name", hint=did_you_mean(name, ports)
                )
                continue
            if wanted is not None and port.datatype is not None and wanted is not port.datatype:
                said = (
                    f"configuration expects datatype {wanted.config_name} for input '{name}', model provides"
                    f" {port.datatype.config_name}"
                )
                yield _refused(config, said, key=f"batch_input[{at}].data_type", hint=f"{file} has that type")
            if not _fits(port.shape or (), shape):
                said = misfit(config.name, name, port.shape or (), shape, batches=False)
                yield _told(said, key=f"batch_input[{at}]", hint=f"{file} has that shape")


def _open(config: ModelConfig, side: str, name: str, shape: Sequence[int]) -> Sequence[int]:
    """Return a file's shape without the sizes that padding makes of a dimension of any size."""
    parameters = {key: parameter.string_value for key, parameter in config.parameters.items()}
    tritium = settings_of(read_parameters(parameters)[0])
    sizes = list(shape)
    buckets = tritium.pad_to.get(name, {}) if side == "input" else {}
    cuts = tritium.pad_outputs.get(name, ()) if side == "output" else ()
    for axis, of in enumerate(shape):
        padded = buckets.get(axis)
        only = padded is not None and not padded.longer and tuple(padded.sizes) == (of,)
        if only or any(cut.axis == axis for cut in cuts):
            sizes[axis] = -1
    return sizes


def _dims(tensor: Any) -> list[int]:
    return list(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)


def _refused(config: ModelConfig, message: str, *, key: str, hint: str = "") -> Problem:
    return _told(f"unable to load model '{config.name}', {message}", key=key, hint=hint)


def _told(message: str, *, key: str, hint: str = "") -> Problem:
    return Problem(message=message, key=key, hint=hint, code=ErrorCode.INTERNAL)


def _fits(shape: Sequence[int], given: Sequence[int]) -> bool:
    """Whether a model whose shape is `shape` takes or gives `given`; () is a scalar, or of any rank."""
    return not shape or (
        len(shape) == len(given) and all(own in (-1, other) for own, other in zip(shape, given, strict=True))
    )
