"""The names that a type hint declares a tensor with: `FP32[Array, 16]` is sixteen 32-bit floats.

To a type checker such a hint is `Annotated[Array, 16]`, hence an `Array`. Here it carries what a
configuration says of a tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from actors.values.datatypes import DataType

__all__ = [
    "BF16",
    "BOOL",
    "BYTES",
    "FP16",
    "FP32",
    "FP64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "Array",
    "DeclarationError",
    "TensorType",
]

Array = np.ndarray[Any, Any]


class DeclarationError(TypeError):
    """A function or class can't be made a model: its type hints or the decorator's arguments are wrong."""


class TensorType(NamedTuple):
    """What a hint says of a tensor.

    `dims` are without the batch dimension; -1 is any length (contract, model_config.md section 3).
    """

    datatype: DataType
    dims: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.datatype}[Array, {', '.join(map(str, self.dims))}]"

    def port(self, name: str) -> dict[str, Any]:
        """Return the entry of a configuration's `input` or `output` for a tensor of this type."""
        return {"name": name, "data_type": self.datatype.config_name, "dims": list(self.dims)}


class _Hint:
    """One datatype, to be indexed with the array type and the dims."""

    def __init__(self, datatype: DataType) -> None:
        self._datatype = datatype

    def __getitem__(self, item: Any) -> Any:
        array, *dims = item if isinstance(item, tuple) else (item,)
        whole = all(isinstance(dim, int) and not isinstance(dim, bool) for dim in dims)
        if not dims or isinstance(array, int) or not whole or any(dim == 0 or dim < -1 for dim in dims):
            given = ", ".join(getattr(part, "__name__", repr(part)) for part in (array, *dims))
            raise DeclarationError(
                f"{self._datatype}[{given}] declares no tensor: write {self._datatype}[Array, 16], the array's type and then its dims"
                " without the batch dimension; -1 stands for any length"
            )
        return Annotated[array, TensorType(self._datatype, tuple(dims))]

    def __repr__(self) -> str:
        return f"tritium.{self._datatype}"


if TYPE_CHECKING:
    from typing import Annotated as BF16
    from typing import Annotated as BOOL
    from typing import Annotated as BYTES
    from typing import Annotated as FP16
    from typing import Annotated as FP32
    from typing import Annotated as FP64
    from typing import Annotated as INT8
    from typing import Annotated as INT16
    from typing import Annotated as INT32
    from typing import Annotated as INT64
    from typing import Annotated as UINT8
    from typing import Annotated as UINT16
    from typing import Annotated as UINT32
    from typing import Annotated as UINT64
else:
    BOOL = _Hint(DataType.BOOL)
    UINT8 = _Hint(DataType.UINT8)
    UINT16 = _Hint(DataType.UINT16)
    UINT32 = _Hint(DataType.UINT32)
    UINT64 = _Hint(DataType.UINT64)
    INT8 = _Hint(DataType.INT8)
    INT16 = _Hint(DataType.INT16)
    INT32 = _Hint(DataType.INT32)
    INT64 = _Hint(DataType.INT64)
    FP16 = _Hint(DataType.FP16)
    FP32 = _Hint(DataType.FP32)
    FP64 = _Hint(DataType.FP64)
    BF16 = _Hint(DataType.BF16)
    BYTES = _Hint(DataType.BYTES)
