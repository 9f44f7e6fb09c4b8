"""Models that a script steers: they answer at once, when told to, wrongly or never, and note what they see."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import trio

from actors.values.datatypes import DataType
from actors.values.errors import Internal, InvalidArgument, Poisoned, TritiumError, Unavailable
from actors.values.marks import ClientMarks
from actors.values.requests import InferRequest, InferResponse, ServedModel
from actors.values.specs import ModelSpec
from actors.values.tensors import Tensor
from tests.protocols.fakes import make_spec

OVERWRITTEN = 0xDD
"""What the memory of an answer holds once it was released: no client may see it."""


class How(Enum):
    """How a request that is held is answered."""

    RIGHT = "with what the request asks for"
    BORROWED = "the same, in memory that is used anew once it is released"
    LARGE = "with 70,000 bytes, borrowed"
    HUGE = "with 600,000 bytes, borrowed"
    LONG = "with an output whose JSON is made in slices"
    FAILED = "with an error"
    POISONED = "with another error"
    TWO_PARTS = "with two parts and a third, which is final"
    PART = "with a part, and later with the rest"
    TWICE = "with two finals"
    UNENCODABLE = "with an output that no encoder takes"
    LONG_NO_JSON = "with many numbers that JSON can't express"
    NO_JSON = "with numbers that JSON can't express"
    MISSHAPEN = "with an output whose bytes contradict its shape"
    TIMED = "with the times that it took, and a parameter"
    ELSEWHERE = "by another model, to which it was passed on"


class Bug(Exception):
    """What is not expected."""


class Ledger:
    """What all models of a stage have seen and given, by the order in which it was."""

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self.cancelled: list[str] = []
        self.left: set[InferRequest] = set()  # by their clients
        self.released: dict[str, int] = {}  # how often each response was
        self.violations: list[str] = []
        self.held: dict[str, tuple[Steered, InferRequest]] = {}  # those that are to be answered

    def answer(self, key: str, how: How) -> None:
        """Answer a request that is held."""
        model, request = self.held.pop(key)
        for part, final in model.parts(key, request, how):
            self.put(key, request, part, final=final)
        if how is How.PART:
            self.held[key + " go on"] = (model, request)

    def put(
        self, key: str, request: InferRequest, part: InferResponse | TritiumError, *, final: bool
    ) -> None:
        """Put a part of an answer, as an instance does: nothing may come back from there."""
        try:
            request.reply.put(part, final=final)
        except BaseException as failure:  # noqa: BLE001  # told at the end
            self.violations.append(f"put of {key} raised {failure!r}")


class Steered(ServedModel):
    """One model of a stage."""

    __slots__ = ("_ledger", "_marks", "_spec", "behave", "gate", "shut")

    def __init__(
        self,
        ledger: Ledger,
        spec: ModelSpec,
        behave: Callable[[Steered, str, InferRequest], None],
        *,
        marks: ClientMarks | None = None,
    ) -> None:
        self._ledger = ledger
        self._spec = spec
        self._marks = marks
        self.behave = behave
        self.shut = False  # its queue is full
        self.gate = trio.Event()

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    @property
    def submitted(self) -> list[str]:
        """What the fake server counts of a model in its statistics."""
        return []

    @property
    def marks(self) -> ClientMarks | None:
        if self._spec.name == "unmarkable":
            raise Bug("marks")
        return self._marks

    async def submit(self, request: InferRequest) -> None:
        while self.shut:
            await self.gate.wait()
        self.submit_nowait(request)

    def submit_nowait(self, request: InferRequest) -> None:
        if self.shut:
            raise trio.WouldBlock
        for tensor in request.inputs:
            if tensor.name not in self._spec.inputs_by_name:
                raise InvalidArgument(f"unexpected inference input '{tensor.name}'")
        key = f"{request.id} {described(request)}"
        self._ledger.submitted.append(key)
        self.behave(self, self._unique(key), request)

    def cancel(self, request: InferRequest) -> None:
        self._ledger.cancelled.append(f"{request.id} of {request.model_name}")
        if request in self._ledger.left:
            self._ledger.violations.append(f"{request} was cancelled twice")
        self._ledger.left.add(request)

    def hold(self, key: str, request: InferRequest) -> None:
        """Answer it when the script says so."""
        self._ledger.held[key] = (self, request)

    def at_once(self, key: str, request: InferRequest) -> None:
        """Answer it while it is being submitted."""
        for part, final in self.parts(key, request, How.BORROWED):
            self._ledger.put(key, request, part, final=final)

    def open(self) -> None:
        """Have room in the queue."""
        self.shut = False
        self.gate.set()
        self.gate = trio.Event()

    def _unique(self, key: str) -> str:
        while key in self._ledger.held or key in self._ledger.released:
            key += "'"
        return key

    # Answers

    def parts(
        self, key: str, request: InferRequest, how: How
    ) -> list[tuple[InferResponse | TritiumError, bool]]:
        """Return the parts of an answer, and which of them is final."""
        match how:
            case How.FAILED:
                return [(Unavailable(f"the model says no to {request.id}", retry_after=2.0), True)]
            case How.POISONED:
                return [(Poisoned("it kills workers"), True)]
            case How.TWO_PARTS:
                return [(self._response(f"{key} {n}", request, how), n == 2) for n in range(3)]
            case How.PART:
                return [(self._response(f"{key} part", request, how), False)]
            case How.TWICE:
                return [
                    (self._response(f"{key} one", request, how), True),
                    (self._response(f"{key} two", request, how), True),
                ]
            case How.ELSEWHERE:
                other = Steered(self._ledger, make_spec("elsewhere", version=7), Steered.hold)
                request.routed_to = other
        return [(self._response(key, request, how), True)]

    def _response(self, key: str, request: InferRequest, how: How) -> InferResponse:
        memory: list[bytearray] = []
        outputs = [self._output(declared, request, how, memory) for declared in self._wanted(request)]
        response = InferResponse(
            model_name=self._spec.name,
            model_version=self._spec.version,
            id=request.id,
            outputs=outputs,
            parameters={"a": 1, "b": "text"} if how is How.TIMED else None,
            timing=(1_000_000, 2_000, 3_000, 4_000) if how is How.TIMED else None,
        )
        self._ledger.released[key] = 0

        def released() -> None:
            self._ledger.released[key] += 1
            for each in memory:
                each[:] = bytes([OVERWRITTEN]) * len(each)

        response.on_release(released)
        return response

    def _wanted(self, request: InferRequest) -> Sequence[Any]:
        if not request.requested_outputs:
            return self._spec.outputs
        return [each for each in self._spec.outputs if each.name in request.requested_outputs]

    def _output(self, declared: Any, request: InferRequest, how: How, memory: list[bytearray]) -> Tensor:
        kind = declared.datatype
        if how is How.UNENCODABLE:
            return Tensor(declared.name, kind, (3,), 7)  # type: ignore[arg-type]  # a bug
        content = b"".join(bytes(tensor.data) for tensor in request.inputs)
        if kind is DataType.FP32:
            content = _numbers(content, how)
        size = kind.size or 1
        held = bytearray(content)
        memory.append(held)
        shape: tuple[int, ...] = (len(content) // size,)
        if kind is DataType.BYTES:
            shape = tuple(request.inputs[0].shape) if request.inputs else (0,)
        if how is How.MISSHAPEN:
            shape = (shape[0] + 1,)
        return Tensor(declared.name, kind, shape, memoryview(held) if how is not How.RIGHT else bytes(held))


def _numbers(content: bytes, how: How) -> bytes:
    """Return the bytes of some numbers that hang on `content`."""
    content = content[: len(content) // 4 * 4]
    numbers = np.nan_to_num(np.frombuffer(content, np.float32), nan=1.5, posinf=2.5, neginf=-2.5)
    size = {How.LARGE: 70_000, How.HUGE: 600_000, How.LONG: 60_000, How.LONG_NO_JSON: 60_000}.get(
        how, len(content)
    ) // 4
    if size > len(numbers):
        seed = numbers if len(numbers) else np.ones(1, np.float32)
        numbers = np.resize(seed, size)
    if how in (How.NO_JSON, How.LONG_NO_JSON):
        numbers = np.full(max(1, len(numbers)), np.nan, np.float32)
    return (numbers + np.float32(1)).astype(np.float32).tobytes()


def described(request: InferRequest) -> str:
    """Return everything that the frontend has put into a request."""
    inputs = [
        (each.name, each.datatype.name, tuple(each.shape), len(each.data), zlib.crc32(each.data))
        for each in request.inputs
    ]
    caller = None if request.caller is None else request.caller.name
    return repr(
        (
            request.model_name,
            request.requested_version,
            inputs,
            tuple(request.requested_outputs),
            None if request.parameters is None else sorted(request.parameters.items(), key=str),
            request.priority,
            request.timeout,
            request.deadline,
            request.correlation_id,
            request.flags,
            request.accepted_at,
            request.affinity,
            request.tenant,
            caller,
        )
    )


@dataclass(frozen=True, slots=True)
class _Crash:
    kind: type[BaseException]

    def __call__(self, _model: Steered, _key: str, request: InferRequest) -> None:
        raise self.kind(f"a bug, met by {request.id}")


def _fail(model: Steered, key: str, request: InferRequest) -> None:
    request.reply.put(Internal("the model failed at once"), final=True)


def _refuse(_model: Steered, _key: str, request: InferRequest) -> None:
    raise Unavailable("Exceeds maximum queue size", retry_after=1.0)


def steered_models(ledger: Ledger) -> list[Steered]:
    """Return a model of every kind."""
    numbers: dict[str, Any] = {
        "inputs": [("X", DataType.FP32, (-1,))],
        "outputs": [("Y", DataType.FP32, (-1,))],
        "max_batch_size": 0,
    }
    texts: dict[str, Any] = {
        "inputs": [("X", DataType.BYTES, (-1,))],
        "outputs": [("Y", DataType.BYTES, (-1,))],
        "max_batch_size": 0,
    }
    marks = ClientMarks(
        affinity_header="x-client", tenant_header="x-tenant", tenant_parameter="tenant", tenant_address=True
    )
    return [
        Steered(ledger, make_spec("echo", **numbers), Steered.at_once),
        Steered(ledger, make_spec("held", labels=("cat", "dog"), **numbers), Steered.hold),
        Steered(ledger, make_spec("texts", **texts), Steered.hold),
        Steered(ledger, make_spec("busy", **numbers), Steered.hold),
        Steered(ledger, make_spec("marked", **numbers), Steered.hold, marks=marks),
        Steered(ledger, make_spec("unmarkable", **numbers), Steered.hold),
        Steered(ledger, make_spec("fails", **numbers), _fail),
        Steered(ledger, make_spec("refuses", **numbers), _refuse),
        Steered(ledger, make_spec("crashes", **numbers), _Crash(Bug)),
        Steered(ledger, make_spec("streams", decoupled=True, **numbers), Steered.hold),
    ]
