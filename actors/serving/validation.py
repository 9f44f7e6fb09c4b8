"""Does a request fit its model? The checks of contract http.md section 9, in its order and with its texts.

A `Validator` is made once per model version and called for every request. So everything that depends on the
configuration alone is worked out when it is made, and a good request costs comparisons only. An error's text
is built only when there is an error.

One recorded quirk of Triton's is not kept. There a leading dimension of 0 means "not yet known", so that
inputs of 0 and of 3 rows pass as a request of 3. Such a request would show a model the rows of other
requests. It is refused with the text for unequal batch sizes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from struct import Struct
from struct import error as StructError
from typing import Final

import numpy as np

from actors.values.datatypes import DataType
from actors.values.errors import InvalidArgument
from actors.values.padding import Padded
from actors.values.regions import device_place
from actors.values.requests import InferRequest
from actors.values.specs import InputSpec, ModelSpec
from actors.values.strings import Strings, walk, walk_at_once
from actors.values.tensors import MAX_DIMS, Buffer, Tensor, element_count

_INT64_MAX: Final = 2**63 - 1
_length_at = Struct("<I").unpack_from
# From so many elements on, numpy's start-up cost is less than the walk that it may save.
_WORTH_A_UNIFORM_LOOK: Final = 16
# Bytes of a packed tensor that are walked in one piece: 4,096 empty elements, in less than half a
# millisecond.
_WALKED_AT_ONCE: Final = 16 * 1024


class _Input:
    """The values for one declared input's checks, worked out beforehand."""

    def __init__(self, spec: InputSpec, *, index: int, key_at: int) -> None:
        self.name = spec.name
        self.datatype = spec.datatype
        self.dims = spec.dims
        self.bit = 1 << index
        # Place of its shape in the batch key; -1: shapes may differ within a batch.
        self.key_at = key_at
        self.padded = spec.padded
        self.exact = None if -1 in spec.dims else spec.dims  # the only allowed shape, if there is only one
        self.row_elements = 0 if -1 in spec.dims else element_count(spec.dims)
        self.row_nbytes = self.row_elements * spec.datatype.size


class Validator:
    """Check requests against one model version, and fill in fields that follow from their inputs.

    Sets `rows`, `nbytes` and `batch_key`, and `requested_outputs` to all declared outputs where the client
    named none. A batch key is None where the inputs can never keep two requests apart. Requests with equal
    keys may share a batch (contract, scheduling.md section 3.2).
    """

    def __init__(self, spec: ModelSpec) -> None:
        self._model = spec.name
        self._batches = spec.batches
        self._max_batch_size = spec.max_batch_size
        self._inputs: dict[str, _Input] = {}
        self._keyed_shapes = 0
        for index, declared in enumerate(spec.inputs):
            compared = -1 in declared.dims and not declared.ragged
            key_at = self._keyed_shapes if compared else -1
            self._keyed_shapes += compared
            self._inputs[declared.name] = _Input(declared, index=index, key_at=key_at)
        self.has_strings = any(plan.datatype is DataType.BYTES for plan in self._inputs.values())
        self._required_names = tuple(declared.name for declared in spec.inputs if not declared.optional)
        self._total = len(spec.inputs)
        self._required = len(self._required_names)
        self._optional = self._required < self._total
        self._output_names = spec.output_names
        self._outputs = frozenset(spec.output_names)
        plain = all(
            plan.exact is not None and plan.datatype is not DataType.BYTES for plan in self._inputs.values()
        )
        # Where every property of a good request is fixed, one look at each input is enough.
        self._usual = tuple(self._inputs.values()) if self._batches and plain and not self._optional else None

    def __call__(self, request: InferRequest) -> None:
        """Accept `request` and complete it, or raise InvalidArgument with the contract's text."""
        if self.is_usual(request):
            return
        self._check_everything(request)
        if not request.requested_outputs:
            request.requested_outputs = self._output_names

    def must_walk(self, request: InferRequest) -> bool:
        """Whether `request` has packed inputs that are too long to be walked in one piece.

        In that case `walk_strings` must be called first.
        """
        return self.has_strings and request.strings is None and any(map(_is_long, request.inputs))

    def walk_strings(self, request: InferRequest) -> Generator[None, None, None]:
        """Walk the long packed inputs of `request`, and note the result in it.

        Yields between slices of work.
        """
        found: list[Strings | None] = []
        for tensor in request.inputs:
            if _is_long(tensor):
                # If there are more elements than the shape says, it is enough to know that there are more.
                most = element_count(tensor.shape[:MAX_DIMS])
                found.append((yield from walk(tensor.data, max(most, 0))))
            else:
                found.append(None)
        request.strings = found

    def is_usual(self, request: InferRequest) -> bool:
        """Complete a good request that has all declared inputs, in their order.

        False for a request that needs a closer look: call the validator. Raises InvalidArgument where the
        inputs are good and the requested outputs are not.
        """
        inputs, usual = request.inputs, self._usual
        if usual is None or len(inputs) != len(usual):
            return False
        rows = nbytes = 0
        for tensor, plan in zip(inputs, usual, strict=True):
            shape = tensor.shape
            if tensor.name != plan.name or tensor.datatype is not plan.datatype or not shape:
                return False
            if not rows:
                rows = shape[0]
                if not 0 < rows <= self._max_batch_size:
                    return False
            if shape[0] != rows or tuple(shape[1:]) != plan.exact:
                return False
            size = len(tensor.data)
            if size != rows * plan.row_nbytes:
                return False
            nbytes += size
        request.rows = rows
        request.nbytes = nbytes
        request.batch_key = None
        wanted = request.requested_outputs
        if not wanted:
            request.requested_outputs = self._output_names
        elif wanted is not self._output_names:
            self._check_outputs(request)
        return True

    def _check_everything(self, request: InferRequest) -> None:
        """Check all properties of a request, in the contract's order."""
        inputs = request.inputs
        count = len(inputs)
        if count > 1 and len({tensor.name for tensor in inputs}) < count:
            name = _first_repeated(tensor.name for tensor in inputs)
            raise InvalidArgument(f"{request.prefix}input '{name}' already exists in request")
        if request.requested_outputs:
            self._check_outputs(request)
        if not self._required <= count <= self._total:
            raise self._wrong_count(request)

        declared = self._lookup(inputs)
        rows = self._count_rows(request) if self._batches else 1
        nbytes = on_device = 0
        for place, (tensor, plan) in enumerate(zip(inputs, declared, strict=True)):
            if tensor.datatype is not plan.datatype:
                raise InvalidArgument(
                    f"{request.prefix}inference input '{tensor.name}' data-type is '{tensor.datatype}', "
                    f"but model '{self._model}' expects '{plan.datatype}'"
                )
            shape = tuple(tensor.shape)
            if (shape[1:] if self._batches else shape) == plan.exact and rows >= 0:
                elements = rows * plan.row_elements
            else:
                elements = self._count_elements(request, tensor.name, shape, plan)
            # In a client's region, and not read yet, or on a GPU, if it has no data.
            size = len(tensor.data)
            if not size:
                size = tensor.nbytes
                if device_place(tensor) is not None:
                    on_device |= plan.bit
            nbytes += size
            if plan.datatype is DataType.BYTES:
                found = None if request.strings is None else request.strings[place]
                self._check_strings(request, tensor, elements, found)
            elif size != elements * plan.datatype.size:
                raise self._wrong_size(request, tensor, elements * plan.datatype.size)

        request.rows = rows
        request.nbytes = nbytes or request.nbytes  # one that did not come as tensors knows how large it is
        request.batch_key = self._key(inputs, declared) if self._keyed_shapes or self._optional else None
        if on_device:
            # A batch has each input on the GPU, or in host memory.
            request.batch_key = on_device, request.batch_key

    def _check_outputs(self, request: InferRequest) -> None:
        """Check that requested outputs are distinct, and that all of them are declared."""
        wanted = set(request.requested_outputs)
        if len(wanted) < len(request.requested_outputs):
            name = _first_repeated(request.requested_outputs)
            raise InvalidArgument(f"{request.prefix}output '{name}' already exists in request")
        if not wanted <= self._outputs:
            name = next(name for name in request.requested_outputs if name not in self._outputs)
            raise InvalidArgument(f"unexpected inference output '{name}' for model '{self._model}'")
        if len(wanted) == len(self._outputs):
            # The same in other words, and cheaper to recognise.
            request.requested_outputs = self._output_names

    def _wrong_count(self, request: InferRequest) -> InvalidArgument:
        given = [tensor.name for tensor in request.inputs]
        missing = [name for name in self._required_names if name not in given]
        expected = (
            f"expected number of inputs between {self._required} and {self._total}"
            if self._optional
            else f"expected {self._total} inputs"
        )
        # Triton prints an empty list of missing inputs as a lone bracket, and clients may match on it.
        listed = _quoted(missing) if missing else "]"
        return InvalidArgument(
            f"{request.prefix}{expected} but got {len(given)} inputs for model '{self._model}'. "
            f"Got input(s) {_quoted(given)}, but missing required input(s) {listed}. "
            "Please provide all required input(s)."
        )

    def _lookup(self, inputs: Sequence[Tensor]) -> list[_Input]:
        """Return each input's plan, in the request's order."""
        try:
            return [self._inputs[tensor.name] for tensor in inputs]
        except KeyError as error:
            raise InvalidArgument(
                f"unexpected inference input '{error.args[0]}' for model '{self._model}'"
            ) from None

    def _count_rows(self, request: InferRequest) -> int:
        """Return the batch dimension that all inputs share; 1 where a request has no inputs."""
        rows = -1
        first = True
        for tensor in request.inputs:
            if not tensor.shape:
                raise InvalidArgument(
                    f"{request.prefix}input '{tensor.name}' has no shape but model requires batch dimension "
                    f"for '{self._model}'"
                )
            if first:
                rows = tensor.shape[0]
                first = False
            elif tensor.shape[0] != rows:
                raise InvalidArgument(
                    f"{request.prefix}input '{tensor.name}' batch size does not match other inputs for '{self._model}'"
                )
        if rows > self._max_batch_size:
            raise InvalidArgument(
                f"{request.prefix}inference request batch-size must be <= {self._max_batch_size} for '{self._model}'"
            )
        return 1 if first else rows

    def _count_elements(self, request: InferRequest, name: str, shape: tuple[int, ...], plan: _Input) -> int:
        """Check a shape that is not simply the declared one, and return how many elements it holds."""
        body = shape[1:] if self._batches else shape
        if len(body) != len(plan.dims):
            raise self._wrong_shape(request, name, shape, plan)
        # The product leaves zeros out, because a framework multiplies the other dimensions too.
        bound = (shape[0] or 1) if self._batches else 1
        for want, got in zip(plan.dims, body, strict=True):
            # A -1 from the client passes here, as it does in Triton. Below it is refused: it can't be left
            # open.
            if want not in (got, -1) and got != -1:
                raise self._wrong_shape(request, name, shape, plan)
            bound *= got or 1
        if plan.padded is not None:
            self._check_buckets(request, name, shape, plan.padded)
        lowest = min(shape, default=1)
        if lowest < 0:
            raise self._negative(request, name, shape)
        if bound > _INT64_MAX:
            raise InvalidArgument(
                f"{request.prefix}element count for tensor '{name}' exceeds maximum size of {_INT64_MAX}"
            )
        if bound * plan.datatype.size > _INT64_MAX:
            raise InvalidArgument(
                f"{request.prefix}byte size for tensor '{name}' exceeds maximum size of {_INT64_MAX}"
            )
        return bound if lowest else 0

    def _check_buckets(
        self, request: InferRequest, name: str, shape: tuple[int, ...], padded: Padded
    ) -> None:
        for axis, buckets in padded.buckets.items():
            if buckets.refuses(shape[axis]):
                raise InvalidArgument(
                    f"{request.prefix}dimension {axis} of input '{name}' for model '{self._model}' is"
                    f" {shape[axis]}, more"
                    f" than the {buckets.sizes[-1]} that it is padded to (tritium.pad_to). Send at most"
                    f" {buckets.sizes[-1]}."
                )

    def _negative(self, request: InferRequest, name: str, shape: tuple[int, ...]) -> InvalidArgument:
        if -1 in shape:
            return InvalidArgument(
                f"{request.prefix}All input dimensions should be specified for input '{name}' "
                f"for model '{self._model}', got {_dims(shape)}"
            )
        return InvalidArgument(
            f"{request.prefix}tensor '{name}' contains an invalid dimension in shape {_dims(shape)}"
        )

    def _wrong_shape(
        self, request: InferRequest, name: str, shape: tuple[int, ...], plan: _Input
    ) -> InvalidArgument:
        expected = (-1, *plan.dims) if self._batches else plan.dims
        text = (
            f"{request.prefix}unexpected shape for input '{name}' for model '{self._model}'. "
            f"Expected {_dims(expected)}, got {_dims(shape)}. "
        )
        if self._batches:
            text += (
                "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be "
                "prepended to each input shape. If you want to specify the full shape including the batch dim in "
                "your input dims config, try setting max_batch_size to zero. See the model configuration docs for "
                "more info on max_batch_size."
            )
        return InvalidArgument(text)

    def _wrong_size(self, request: InferRequest, tensor: Tensor, expected: int) -> InvalidArgument:
        return InvalidArgument(
            f"{request.prefix}input byte size mismatch for input '{tensor.name}' for model '{self._model}'. "
            f"Expected {expected}, got {tensor.nbytes}"
        )

    def _check_strings(
        self, request: InferRequest, tensor: Tensor, count: int, found: Strings | None
    ) -> None:
        """Check a packed BYTES tensor: `count` elements, the last ending where the data does.

        `found` is the result of a walk; if it is None, the tensor is short and is walked here. That takes
        about 0.1 µs an element where their lengths differ, and next to no time where they are all equal.
        """
        data = tensor.data
        if found is None:
            if count >= _WORTH_A_UNIFORM_LOOK and _uniform(tensor, count):
                return
            if _walk(data, count) == len(data):
                return
            found = walk_at_once(data, count)
        elif found.elements == count and found.whole:
            return
        left = found.size - found.at
        if found.whole:
            raise InvalidArgument(
                f"{request.prefix}expected {count} string elements for inference input '{tensor.name}' "
                f"for model '{self._model}', got {found.elements}"
            )
        if left < 4:
            raise InvalidArgument(
                f"{request.prefix}incomplete string length indicator for inference input '{tensor.name}' "
                f"for model '{self._model}', expecting 4 bytes but only {left} bytes available. "
                "Please make sure the string length indicator is in one buffer."
            )
        if found.elements == count:
            raise InvalidArgument(
                f"{request.prefix}unexpected number of string elements {count + 1} for inference input "
                f"'{tensor.name}' for model '{self._model}', expecting {count}"
            )
        raise InvalidArgument(
            f"{request.prefix}string element {found.elements} of inference input '{tensor.name}' for model "
            f"'{self._model}' is cut short: its length says {found.length} bytes, {left - 4} are there"
        )

    def _key(self, inputs: Sequence[Tensor], declared: Sequence[_Input]) -> object:
        """Return the batch key: the shapes of variable inputs, and which of the optional inputs are given."""
        shapes: list[tuple[int, ...] | None] = [None] * self._keyed_shapes
        present = 0
        for tensor, plan in zip(inputs, declared, strict=True):
            present |= plan.bit
            if plan.key_at >= 0:
                shape = tuple(tensor.shape) if plan.padded is None else plan.padded.shape(tensor.shape)
                shapes[plan.key_at] = shape[1:] if self._batches else shape
        return (present, *shapes) if self._optional else tuple(shapes)


def _is_long(tensor: Tensor) -> bool:
    return tensor.datatype is DataType.BYTES and len(tensor.data) > _WALKED_AT_ONCE


def _walk(data: Buffer, count: int) -> int:
    """Return where the last of `count` packed elements ends, by its own length.

    Returns -1 if an element begins beyond the end.
    """
    at = 0
    try:
        for _ in range(count):
            (length,) = _length_at(data, at)
            at += 4 + length
    except StructError:
        return -1
    return at


def _uniform(tensor: Tensor, count: int) -> bool:
    """Whether a packed BYTES tensor is `count` elements of the same length."""
    stride, rest = divmod(len(tensor.data), count)
    if rest or stride < 4:
        return False
    elements = np.frombuffer(tensor.data, np.uint8).reshape(count, stride)
    lengths = np.ascontiguousarray(elements[:, :4]).view("<u4")
    return bool((lengths == stride - 4).all())


def _first_repeated(names: Iterable[str]) -> str:
    """Return the first of `names` that occurs a second time; there is one."""
    seen: set[str] = set()
    # `set.add` returns None, so this reads: seen before, or remember it and go on.
    return next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]


def _quoted(names: Sequence[str]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"


def _dims(shape: Sequence[int]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"
