"""What a sequence model is given beyond what clients send: control tensors, and padding rows.

Contract, scheduling.md sections 6.3 and 6.4. Every tensor here is made once and used for many requests:
no code writes into an input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from actors.values.datatypes import DataType
from actors.values.errors import TritiumError
from actors.values.requests import (
    FLAG_SEQUENCE_END,
    FLAG_SEQUENCE_START,
    InferRequest,
    InferResponse,
    ReplyPort,
)
from actors.values.specs import ControlKind, ControlSpec, ModelSpec
from actors.values.tensors import Tensor, element_count, pack_bytes

Extra = tuple[Tensor, ...]


class Controls:
    """The control tensors of one model, each of shape [1], or [1, 1] if the model batches.

    They stand in the order of `SequenceBatching.controls`, in which the worker is told of them.
    """

    def __init__(self, controls: Sequence[ControlSpec], *, batches: bool) -> None:
        self._controls = tuple(controls)
        self._shape = (1, 1) if batches else (1,)
        self.padding: Extra = tuple(
            self._correlation(control, 0)
            if control.kind is ControlKind.CORRID
            else self._of(control, on=False)
            for control in self._controls
        )

    def of(self, correlation_id: int | str, flags: int) -> Extra:
        """Return the tensors that go with a request of sequence `correlation_id` with `flags`."""
        told = {
            ControlKind.START: bool(flags & FLAG_SEQUENCE_START),
            ControlKind.END: bool(flags & FLAG_SEQUENCE_END),
            ControlKind.READY: True,
        }
        return tuple(
            self._correlation(control, correlation_id)
            if control.kind is ControlKind.CORRID
            else self._of(control, on=told[control.kind])
            for control in self._controls
        )

    def _of(self, control: ControlSpec, *, on: bool) -> Tensor:
        value = np.full(self._shape, control.false_true[on], control.datatype.numpy)
        return Tensor(control.name, control.datatype, self._shape, value.tobytes())

    def _correlation(self, control: ControlSpec, correlation_id: int | str) -> Tensor:
        if control.datatype is DataType.BYTES:
            data = pack_bytes([correlation_id or ""])
        else:
            size = control.datatype.size
            number = int(correlation_id or 0) & ((1 << 8 * size) - 1)  # a narrower tensor has the lower bytes
            data = number.to_bytes(size, "little")
        return Tensor(control.name, control.datatype, self._shape, data)

    def mismatch(self, correlation_id: int | str) -> tuple[ControlSpec, DataType] | None:
        """Return a control that can't hold such a correlation id and a datatype that could; None: all can."""
        text = isinstance(correlation_id, str)
        for control in self._controls:
            if control.kind is ControlKind.CORRID and text != (control.datatype is DataType.BYTES):
                return control, DataType.BYTES if text else DataType.UINT64
        return None

    @property
    def wants_text(self) -> bool:
        """Whether the model is told correlation ids as strings."""
        return any(
            control.kind is ControlKind.CORRID and control.datatype is DataType.BYTES
            for control in self._controls
        )


class Nowhere(ReplyPort):
    """Where the answer to a padding row goes. Implements `actors.values.requests.ReplyPort`."""

    __slots__ = ()

    def put(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        """Drop it, with its lease."""
        del final
        if isinstance(part, InferResponse):
            part.release()


class PaddingRow(InferRequest):
    """A row without a client: it keeps the rows after it in their places. It is answered before it runs."""

    __slots__ = ()

    padding: ClassVar[bool] = True

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(
            model_name=spec.name,
            requested_outputs=spec.output_names,
            reply=Nowhere(),
            accepted_at=math.inf,
        )
        self.synthetic = True
        self.answered = True


class Padding:
    """Rows that look like a real request, with zeros for content (contract, section 6.4).

    `extra` are their controls and states. One object for each place is used again and again, unless the model
    is decoupled.
    """

    def __init__(self, spec: ModelSpec, extra: Extra) -> None:
        self._spec = spec
        self._extra = extra
        self._lasting: list[PaddingRow] = []  # none of a decoupled model's last
        self._inputs: tuple[object, Extra] | None = None  # of the last shape that was needed

    def fill(self, rows: Sequence[InferRequest | None], like: InferRequest) -> list[InferRequest]:
        """Return `rows` with padding in the empty places. Its inputs have the shapes of those of `like`."""
        inputs = self._zeros(like)
        # States may have other shapes than those of the first request. Then padding has those shapes, and
        # zeros.
        extra = self._extra if _alike(self._extra, like.extra) else _zeroed(self._extra, like.extra)
        filled: list[InferRequest] = []
        for index, request in enumerate(rows):
            if request is not None:
                filled.append(request)
            elif index < len(self._lasting):  # most rows are padding again and again
                row = self._lasting[index]
                row.inputs, row.extra = inputs, extra
                filled.append(row)
            else:
                filled.append(self._row(index, inputs, extra))
        return filled

    def _row(self, index: int, inputs: Extra, extra: Extra) -> PaddingRow:
        if self._spec.decoupled:  # the row of the last batch may still be open in the worker
            row = PaddingRow(self._spec)
        else:
            while len(self._lasting) <= index:
                self._lasting.append(PaddingRow(self._spec))
            row = self._lasting[index]
        row.inputs = inputs
        row.extra = extra
        return row

    def _zeros(self, like: InferRequest) -> Extra:
        shapes = tuple((tensor.name, tuple(tensor.shape)) for tensor in like.inputs)
        if self._inputs is None or self._inputs[0] != shapes:
            self._inputs = shapes, tuple(zeros(each.name, each.datatype, each.shape) for each in like.inputs)
        return self._inputs[1]


def zeros(name: str, datatype: DataType, shape: Sequence[int]) -> Tensor:
    """Return a tensor of zeros; of BYTES, of empty strings."""
    return Tensor(name, datatype, shape, bytes(element_count(shape) * (datatype.size or 4)))


def _alike(ours: Extra, theirs: Sequence[Tensor]) -> bool:
    return all(tuple(own.shape) == tuple(other.shape) for own, other in zip(ours, theirs, strict=True))


def _zeroed(ours: Extra, theirs: Sequence[Tensor]) -> Extra:
    return tuple(
        own if tuple(own.shape) == tuple(other.shape) else zeros(own.name, own.datatype, other.shape)
        for own, other in zip(ours, theirs, strict=True)
    )
