"""Tensors as a Python model sees them, and the tables between numpy's types and Triton's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from actors.values.datatypes import BY_CONFIG_NAME, BY_NUMBER, DataType, from_numpy_dtype
from actors.values.tensors import pack_bytes, unpack_bytes
from engine.worker.devices import cuda, dlpack
from engine.worker.devices.arrays import CUDA, HOST_DEVICES, DeviceArray

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.values.tensors import Array
    from engine.worker.backends.base import AnyOutput


class TritonModelException(Exception):
    """Raised by this module's functions and classes."""


def decoded(what: str, value: Any) -> Any:
    """Return the text of `bytes`, which Triton takes wherever it takes a `str`, and anything else as it is.

    Raises TritonModelException for bytes that are no UTF-8.
    """
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise TritonModelException(f"{what} is bytes that are no UTF-8: {error}") from error


def as_text(what: str, value: object) -> str:
    """Return a text that a model gives as `str` or `bytes`.

    Raises TypeError for any other type, else as `decoded` does.
    """
    text = decoded(what, value)
    if not isinstance(text, str):
        raise TypeError(f"{what} is a str or bytes, got {type(value)}")
    return text


_NUMPY_TYPES: dict[DataType, Any] = {
    datatype: datatype.numpy.type for datatype in DataType if datatype is not DataType.BF16
}
_NUMPY_TYPES[DataType.BOOL] = bool  # as Triton says it


TRITON_STRING_TO_NUMPY = {
    name: _NUMPY_TYPES[datatype] for name, datatype in BY_CONFIG_NAME.items() if datatype in _NUMPY_TYPES
}
"""The table behind `triton_string_to_numpy`, which models read themselves."""


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """Return the numpy type of a data type, such as `TYPE_FP32`. Raises KeyError for others and BF16."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> Any:
    """Return the numpy type of a data type's enum number, or None."""
    return _NUMPY_TYPES.get(BY_NUMBER.get(data_type, DataType.BF16))


def numpy_to_triton_type(data_type: Any) -> int | None:
    """Return the enum number of a numpy type, or None."""
    datatype = datatype_of(np.dtype(data_type))
    return None if datatype is None else datatype.number


_BY_DTYPE = {
    datatype.numpy: datatype for datatype in DataType if datatype is not DataType.BF16
}  # BF16 shares UINT16's


def datatype_of(dtype: np.dtype[Any]) -> DataType | None:
    """Return the datatype for arrays of `dtype`, or None; fixed-width text has none."""
    datatype = _BY_DTYPE.get(dtype)
    if datatype is not None or dtype.kind == "U":
        return datatype
    return from_numpy_dtype(dtype)


def serialize_byte_tensor(input_tensor: Array) -> Any:
    """Return the elements in C order, each as a 4-byte little-endian length and its bytes; `str` as UTF-8.

    An empty array gives `()`, one that is neither of objects nor of bytes gives None.
    """
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype.kind not in "OS":
        return None
    return pack_bytes(input_tensor.ravel(order="C").tolist())


def deserialize_bytes_tensor(encoded_tensor: bytes) -> Array:
    """Return the elements of a serialised tensor as a one-dimensional object array of `bytes`."""
    count = at = 0
    while at < len(encoded_tensor):
        at += 4 + int.from_bytes(encoded_tensor[at : at + 4], "little")
        count += 1
    elements = np.empty(count, dtype=object)
    elements[:] = unpack_bytes(encoded_tensor, "encoded_tensor", count)
    return elements


class Tensor:
    """A named tensor over a numpy array. Input tensors are valid only during `execute`."""

    __slots__ = ("_array", "_datatype", "_name")

    def __init__(self, name: str | bytes, array: Array) -> None:
        if type(name) is not str:
            name = as_text("a tensor's name", name)
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        if not isinstance(array, np.ndarray):
            raise TypeError(f"Tensor '{name}' takes a numpy array, got {type(array)}")
        datatype = datatype_of(array.dtype)
        if datatype is None:
            raise TritonModelException("NumPy dtype is not supported.")
        self._name = name
        self._datatype = datatype
        self._array = array if array.flags.c_contiguous else array.copy(order="C")

    @classmethod
    def over(cls, name: str, datatype: DataType, array: Array) -> Tensor:
        """Return a tensor without the checks; `datatype` may be BF16, over `uint16` bit patterns."""
        tensor = cls.__new__(cls)
        tensor._name = name  # noqa: SLF001  # it is this class
        tensor._datatype = datatype  # noqa: SLF001
        tensor._array = array  # noqa: SLF001
        return tensor

    def name(self) -> str:
        """Return the name."""
        return self._name

    def as_output(self) -> tuple[str, DataType, Array]:
        """Return what `BatchRequest.respond` takes."""
        return self._name, self._datatype, self._array

    def as_output_of(self, gpu: int) -> AnyOutput:
        """Return what `BatchRequest.respond` takes from an instance on this GPU."""
        del gpu
        return self.as_output()

    def as_numpy(self) -> Array:
        """Return the array, not a copy. Elements of BYTES are `bytes` in inputs."""
        if self._datatype is DataType.BF16:
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
            )
        return self._array

    def shape(self) -> list[int]:
        """Return the shape, batch dimension included."""
        return list(self._array.shape)

    def triton_dtype(self) -> int:
        """Return the datatype's enum number."""
        return self._datatype.number

    def is_cpu(self) -> bool:
        """Whether the tensor lies in CPU memory."""
        return True

    def to_dlpack(self) -> object:
        """Return a DLPack capsule over the tensor's memory."""
        if self._datatype is DataType.BYTES:
            raise TritonModelException("DLPack does not have support for string tensors.")
        return dlpack.export(self._array, bfloat16=self._datatype is DataType.BF16)

    def __dlpack__(self, stream: object = None, **_: object) -> object:
        return self.to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU, 0

    @staticmethod
    def from_dlpack(name: str | bytes, tensor: Any) -> Tensor:
        """Return a tensor over the memory of a DLPack capsule, or of an object that exports one.

        The memory is the CPU's, or a CUDA device's.
        """
        name = as_text("a tensor's name", name)
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        if dlpack.is_capsule(tensor):
            capsule = tensor
            device, _ = dlpack.capsule_device(tensor)
        elif hasattr(tensor, "__dlpack__") and hasattr(tensor, "__dlpack_device__"):
            capsule = None
            device, _ = tensor.__dlpack_device__()
        else:
            raise TritonModelException(
                "Provided tensor is not supported. Tensor must be a DLPack capsule or have `__dlpack__` and"
                " `__dlpack_device__` attributes"
            )
        if device not in (*HOST_DEVICES, *dlpack.CUDA_DEVICES):
            raise TritonModelException(
                f"tensor '{name}' lies on a device of DLPack's type {int(device)}; copy it to the CPU or to a CUDA device first"
            )
        try:
            if capsule is None:
                capsule = tensor.__dlpack__()
            if device in dlpack.CUDA_DEVICES:
                return DeviceTensor(name, _contiguous(dlpack.held(capsule)))
            array, bfloat16 = dlpack.consume(capsule)
        except (BufferError, RuntimeError) as error:
            raise TritonModelException(f"tensor '{name}': {error}") from error
        array = _contiguous(array if array.flags.c_contiguous else None)
        datatype = DataType.BF16 if bfloat16 else datatype_of(array.dtype)
        if datatype is None:
            raise TritonModelException(
                f"tensor '{name}': DLPack elements of {array.dtype} are not supported."
            )
        return Tensor.over(name, datatype, array)


T = TypeVar("T")


def _contiguous(memory: T | None) -> T:
    if memory is None:
        raise TritonModelException(
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
        )
    return memory


class DeviceTensor(Tensor):
    """A tensor in a CUDA device's memory: an input that lies there, or what a model has brought by DLPack."""

    __slots__ = ("_memory",)

    def __init__(self, name: str, memory: DeviceArray) -> None:
        self._name = name
        self._datatype = memory.datatype
        self._memory = memory

    def as_output(self) -> tuple[str, DataType, Array]:
        """Return what `BatchRequest.respond` takes: a copy in host memory.

        Raises TritonModelException if there is none.
        """
        try:
            return self._name, self._datatype, self._memory.to_host()
        except cuda.CudaError as error:
            raise self._failure(error) from error

    def as_output_of(self, gpu: int) -> AnyOutput:
        """Return what `BatchRequest.respond` takes from an instance on this GPU.

        That is the memory itself if it is this GPU's, once all pending writes to it are done; else a copy in
        host memory. Raises TritonModelException if the device fails.
        """
        memory = self._memory
        if (memory.device, memory.device_id) != (CUDA, gpu):
            return self.as_output()
        self._settle()
        return self._name, self._datatype, memory

    def _settle(self) -> None:
        try:
            cuda.driver().synchronize(self._memory.device_id)
        except cuda.CudaError as error:
            raise self._failure(error) from error

    def _failure(self, error: cuda.CudaError) -> TritonModelException:
        return TritonModelException(f"tensor '{self._name}': {error}")

    def as_numpy(self) -> Array:
        """Refuse: numpy can't read a device's memory."""
        raise TritonModelException("Tensor is stored in GPU and cannot be converted to NumPy.")

    def shape(self) -> list[int]:
        """Return the shape, batch dimension included."""
        return list(self._memory.shape)

    def is_cpu(self) -> bool:
        """Whether the tensor lies in CPU memory: no."""
        return False

    def to_dlpack(self) -> object:
        """Return a DLPack capsule over the tensor's memory, once all pending writes to it are done.

        The taker needs no stream of ours: whatever streams it names or uses, they find the memory written.
        """
        self._settle()
        return dlpack.share(self._memory)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._memory.device, self._memory.device_id


class DeferredTensor(Tensor):
    """An input on the GPU for a model that wants inputs in CPU memory: copied there when it is first read."""

    __slots__ = ("_copy", "_read", "_shape")

    def __init__(self, name: str, memory: DeviceArray, read: Callable[[str], Array]) -> None:
        """`read` returns the copy of an input by its name."""
        self._name = name
        self._datatype = memory.datatype
        self._shape = memory.shape
        self._read = read
        self._copy: Array | None = None

    @property
    def _array(self) -> Array:  # type: ignore[override]  # it is never set
        if self._copy is None:
            self._copy = self._read(self._name)
        return self._copy

    def shape(self) -> list[int]:
        """Return the shape, batch dimension included."""
        return list(self._shape)
