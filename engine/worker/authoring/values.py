"""Between the tensors of requests and the arrays that a model's function takes and gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from actors.values.datatypes import DataType, from_numpy_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actors.values.tensors import Array
    from engine.worker.authoring.signature import Signature
    from engine.worker.authoring.tensors import TensorType
    from engine.worker.backends.base import Output


class WrongOutput(TypeError):
    """The function gave something else than it declares."""


def outputs_of(given: Any, signature: Signature, *, rows: int | None, batched: bool) -> list[Output]:
    """Return the outputs in what a function returned or yielded, checked against what it declares.

    An array must be of the declared datatype and dims. If the model is `batched`, the batch dimension comes
    before these, and is `rows` long unless that is None. Numbers, text and lists are made arrays. An output
    that is None is left out. Raises WrongOutput.
    """
    outputs = []
    for name, value in _named(given, signature).items():
        if value is not None:
            declared = signature.outputs[name]
            array = _array(value, declared, f"output '{name}' of '{signature.name}'")
            _check_shape(
                array, declared, f"output '{name}' of '{signature.name}'", rows=rows, batched=batched
            )
            outputs.append((name, declared.datatype, array))
    return outputs


def _named(given: Any, signature: Signature) -> Mapping[str, Any]:
    names = signature.outputs
    if signature.bare:
        return dict.fromkeys(names, given)
    if isinstance(given, dict):
        unknown = sorted(set(given) - set(names))
        if unknown:
            raise WrongOutput(
                f"'{signature.name}' gave '{unknown[0]}', which it does not declare: {', '.join(names)}"
            )
        return given
    if all(hasattr(given, name) for name in names):
        return {name: getattr(given, name) for name in names}
    raise WrongOutput(
        f"'{signature.name}' gave {type(given).__name__}, and declares something with the fields {', '.join(names)}"
    )


def _array(value: Any, declared: TensorType, where: str) -> Array:
    """Return `value` as a C-contiguous array of the declared datatype.

    Only a value that is no array yet is converted.
    """
    if declared.datatype is DataType.BYTES:
        return _text(value, where)
    if not isinstance(value, (np.ndarray, np.generic)):
        try:
            return np.asarray(value, declared.datatype.numpy)
        except (TypeError, ValueError, OverflowError) as error:
            raise WrongOutput(
                f"{where} is declared {declared}, and can't be made from {value!r:.80}: {error}"
            ) from error
    array = np.asarray(value)
    if array.dtype != declared.datatype.numpy:
        wanted = declared.datatype.numpy.name
        raise WrongOutput(
            f"{where} is declared {declared} and is an array of {array.dtype}: return it with .astype(np.{wanted}), or declare"
            f" {from_numpy_dtype(array.dtype) or 'another datatype'}"
        )
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _text(value: Any, where: str) -> Array:
    array = (
        np.asarray(value) if isinstance(value, (np.ndarray, np.generic)) else np.asarray(value, dtype=object)
    )
    if array.dtype.kind in "US":
        array = array.astype(object)
    odd = next((each for each in array.ravel() if not isinstance(each, (str, bytes))), None)
    if array.dtype.kind != "O" or odd is not None:
        raise WrongOutput(
            f"{where} is declared BYTES and holds {array.dtype if odd is None else type(odd).__name__}: give str or bytes"
        )
    return array


def _check_shape(array: Array, declared: TensorType, where: str, *, rows: int | None, batched: bool) -> None:
    dims = array.shape[1:] if batched else array.shape
    fits = len(dims) == len(declared.dims) and all(
        want in (-1, dim) for want, dim in zip(declared.dims, dims)
    )
    if batched and not array.ndim:
        fits = False
    if fits and (not batched or rows is None or len(array) == rows):
        return
    wanted = [rows if rows is not None else -1, *declared.dims] if batched else list(declared.dims)
    lead = ", the batch dimension first" if batched else ""
    raise WrongOutput(
        f"{where} has shape {list(array.shape)} and is declared {declared}: {wanted} would fit{lead}"
    )
