"""Requests whose body is nothing but the bytes of the model's only input (contract, http.md section 6.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.values.datatypes import DataType
from actors.values.errors import InvalidArgument
from actors.values.specs import InputSpec, ModelSpec
from actors.values.tensors import Tensor

if TYPE_CHECKING:
    from actors.values.tensors import Buffer


def raw_tensor(body: Buffer, spec: ModelSpec, prefix: str) -> Tensor:
    """Return the model's single input made of a whole body, its shape deduced. Raises InvalidArgument."""
    if len(spec.inputs) != 1:
        raise InvalidArgument(
            f"{prefix}Raw request must only have 1 input (found 1) to be deduced but got {len(spec.inputs)} inputs "
            f"in '{spec.name}' model configuration"
        )
    (declared,) = spec.inputs
    leading = (1,) if spec.batches else ()
    if declared.datatype is DataType.BYTES:
        if declared.dims != (1,):
            raise InvalidArgument(
                f"{prefix}For BYTE datatype raw input '{declared.name}', the model must have input shape [1]"
            )
        packed = len(body).to_bytes(4, "little") + bytes(body)
        return Tensor(declared.name, DataType.BYTES, (*leading, 1), packed)
    dims = _deduce(declared, len(body), prefix)
    return Tensor(declared.name, declared.datatype, (*leading, *dims), memoryview(body))


def _deduce(declared: InputSpec, nbytes: int, prefix: str) -> tuple[int, ...]:
    dims = declared.dims
    if dims.count(-1) == 0:
        return dims
    if dims.count(-1) > 1:
        raise InvalidArgument(
            f"{prefix}The shape of the raw input '{declared.name}' can not be deduced because there are more than "
            "one variable-sized dimension"
        )
    fixed = declared.datatype.size
    for dim in dims:
        fixed *= 1 if dim == -1 else dim
    deduced = nbytes // fixed if fixed else 0
    return tuple(deduced if dim == -1 else dim for dim in dims)
