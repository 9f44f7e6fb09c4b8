"""What a configuration and a model's file have to agree on, for several backends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.worker.backends.base import LoadError
from engine.worker.backends.shape_texts import misfit, spelt, unbatchable
from engine.worker.joining import made_tensors

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Any

    from engine.worker.backends.base import ModelInfo, TensorInfo

    Shape = Sequence[int] | None

_SETTING = "default-max-batch-size"
_DEFAULT = 4


def spell(shape: Shape) -> str:
    """Return a shape for a message."""
    return "[...]" if shape is None else spelt(shape)


def check_first_dimension(
    model: ModelInfo, tensor: TensorInfo, shape: Sequence[int], allowed: Collection[int] = (-1,)
) -> None:
    """Raise LoadError if a tensor of the model has no first dimension that can be the batch."""
    if shape and shape[0] in allowed:
        return
    raise LoadError(unbatchable(model.name, tensor.name, shape))


def check_shape(
    model: ModelInfo, tensor: TensorInfo, shape: Sequence[int], configured: Sequence[int], *, batches: bool
) -> None:
    """Raise LoadError if a tensor's shape in the model is not what the configuration makes of it.

    A dimension of any size in the model fits all, as does one that is padded or cut. With `batches` the
    first of `configured` is the batch dimension.
    """
    cut = {each.axis for each in tensor.cuts}
    if tensor.padded is not None:
        cut |= set(tensor.padded.buckets)
    fits = len(shape) == len(configured) and all(
        theirs in (-1, ours) or axis in cut or (batches and not axis)
        for axis, (theirs, ours) in enumerate(zip(shape, configured))
    )
    if not fits:
        raise LoadError(misfit(model.name, tensor.name, shape, configured, batches=batches))


def check_all_inputs(model: ModelInfo, names: Collection[str], what: str) -> list[TensorInfo]:
    """Return what the server makes for a model whose file has inputs of these `names`, and needs them all.

    Raises LoadError for an optional input, and if the configuration has more inputs, or fewer. `what` is the
    model in a message: "an OpenVINO model".
    """
    for tensor in model.inputs:
        if tensor.optional:
            raise LoadError(
                f"unable to load model '{model.name}', optional input '{tensor.name}' is not supported:"
                f" {what} needs all its inputs"
            )
    made = made_tensors(model)
    expected = len(model.inputs) + len(made)
    if expected != len(names):
        raise LoadError(
            f"unable to load model '{model.name}', configuration expects {expected} inputs, model provides"
            f" {len(names)}: {', '.join(names) or 'none'}"
        )
    return made


def default_batch_size(model: ModelInfo) -> int:
    """Return the batch size of a model that batches and whose configuration has none.

    Raises LoadError for a setting that is no number.
    """
    text = model.settings.get(_SETTING, str(_DEFAULT))
    if not text.isdigit():
        raise LoadError(f"autofill failed for model '{model.name}': {_SETTING} is '{text}'")
    return max(int(text), 1)


def supplied_by_the_server(config: Mapping[str, Any]) -> set[str]:
    """Return the inputs that clients do not send: a scheduler's controls and states."""
    sequences = config.get("sequence_batching") or {}
    controls = {each.get("name", "") for each in sequences.get("control_input", ())}
    return controls | {each.get("input_name", "") for each in sequences.get("state", ())}
