"""A model that answers where it is asked, so that a loop is measured and no worker; and what to ask it."""

from __future__ import annotations

import json
import threading
from collections import deque
from pathlib import Path
from typing import Final

import numpy as np

from actors.serving.validation import Validator
from actors.values.datatypes import DataType
from actors.values.marks import ClientMarks
from actors.values.requests import InferRequest, InferResponse, ServedModel
from actors.values.specs import Direct, InputSpec, ModelSpec, OutputSpec
from actors.values.tensors import Tensor

_KEPT: Final = 256


class Inline(ServedModel):
    """Checks a request as the server does, and answers with its inputs under the outputs' names."""

    __slots__ = ("_line", "_spec", "_validate")

    def __init__(self, spec: ModelSpec, line: tuple[deque[object], threading.Lock] | None) -> None:
        """Requests pass `line`, a queue of all threads, if there is one."""
        self._spec = spec
        self._validate = Validator(spec)
        self._line = line

    @property
    def spec(self) -> ModelSpec:
        """Its configuration."""
        return self._spec

    @property
    def marks(self) -> ClientMarks | None:
        """None."""
        return None

    async def submit(self, request: InferRequest) -> None:
        """Answer."""
        self.submit_nowait(request)

    def submit_nowait(self, request: InferRequest) -> None:
        """Answer."""
        self._validate(request)
        if self._line is not None:
            queue, lock = self._line
            with lock:
                queue.append(request)
                if len(queue) > _KEPT:
                    queue.popleft()
        outputs = [
            Tensor(declared.name, tensor.datatype, tensor.shape, tensor.data)
            for declared, tensor in zip(self._spec.outputs, request.inputs, strict=True)
        ]
        response = InferResponse(model_name=self._spec.name, model_version=1, id=request.id, outputs=outputs)
        request.reply.put(response, final=True)

    def cancel(self, request: InferRequest) -> None:
        """Too late."""


def request_bytes(spec: ModelSpec) -> bytes:
    """Return a whole binary request of one row."""
    arrays = {each.name: np.ones((1, *each.dims), each.datatype.numpy) for each in spec.inputs}
    inputs = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": "FP32",
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in arrays.items()
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    body = head + b"".join(array.tobytes() for array in arrays.values())
    lines = (
        b"POST /v2/models/%b/infer HTTP/1.1" % spec.name.encode(),
        b"Host: a",
        b"Inference-Header-Content-Length: %d" % len(head),
        b"Content-Length: %d" % len(body),
    )
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def add_sub() -> ModelSpec:
    """Return the specification of the model that the other measurements load: two FP32[16] in, two out."""
    return ModelSpec(
        name="add_sub",
        version=1,
        platform="",
        backend="",
        max_batch_size=64,
        inputs=tuple(
            InputSpec(name=name, datatype=DataType.FP32, dims=(16,)) for name in ("INPUT0", "INPUT1")
        ),
        outputs=tuple(
            OutputSpec(name=name, datatype=DataType.FP32, dims=(16,)) for name in ("OUTPUT0", "OUTPUT1")
        ),
        scheduling=Direct(),
        instances=(),
        model_directory=Path(),
        version_directory=Path(),
        artifact="",
        config_json=b"{}",
    )


def inputs_of(spec: ModelSpec) -> tuple[Tensor, ...]:
    """Return one row of ones for a model of fixed shapes."""
    return tuple(
        Tensor.from_numpy(each.name, np.ones((1, *each.dims), each.datatype.numpy), each.datatype)
        for each in spec.inputs
    )
