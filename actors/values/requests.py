"""What a frontend asks of a model, what it gets back, where the answer goes, and the model that it knows.

What is called once a request is an abstract base class, and not a protocol: compiled, such a call costs a
twentieth.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Union

from actors.values.native import mypyc_attr

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from actors.values.callers import Caller
    from actors.values.errors import TritiumError
    from actors.values.generation.pieces import Generated
    from actors.values.marks import ClientMarks
    from actors.values.regions import RegionSlice, RegionUse
    from actors.values.specs import ModelSpec
    from actors.values.strings import Strings
    from actors.values.tensors import Tensor
    from actors.values.tracing.spans import Span

Parameter = Union[bool, int, float, str]
"""A request's or response's custom parameter, as JSON and gRPC can carry it."""

FLAG_SEQUENCE_START = 1
FLAG_SEQUENCE_END = 2


@mypyc_attr(allow_interpreted_subclasses=True)
class ReplyPort(ABC):
    """Where a request's answer goes: 0..n parts and exactly one final.

    `put` is synchronous and never raises. It encodes a short answer at most. A late final after the frontend
    has closed its port (the client left) is normal: it is dropped and its lease released.
    """

    __slots__ = ()

    @abstractmethod
    def put(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        """Deliver one part. Only the owner of the in-flight table calls this."""


@mypyc_attr(allow_interpreted_subclasses=True)
class InferRequest:
    """One inference request on its way through the server.

    The frontend fills the first group of fields; `actors.serving.validation` fills `rows`, `nbytes` and
    `batch_key`; the model's queue and instances own the rest. Times are seconds on trio's clock. Equality is
    identity.
    """

    __slots__ = (
        "accepted_at",
        "affinity",
        "alone_deaths",
        "answered",
        "attempts",
        "batch_key",
        "cache_ticket",
        "caller",
        "cancelled",
        "correlation_id",
        "deadline",
        "device_outputs",
        "dispatched_at",
        "extra",
        "fingerprint",
        "flags",
        "id",
        "inputs",
        "model_name",
        "nbytes",
        "output_regions",
        "parameters",
        "priority",
        "queue_entry",
        "record",
        "regions",
        "reply",
        "requested_outputs",
        "requested_version",
        "routed_to",
        "rows",
        "span",
        "strings",
        "synthetic",
        "tenant",
        "timeout",
        "unexplained_deaths",
    )

    # Unset if requests are not logged: see `actors.serving.records.record_of`.
    record: object
    # Whether it is a row without a request, which keeps the rows after it in their places.
    padding: ClassVar[bool] = False

    def __init__(
        self,
        *,
        model_name: str,
        reply: ReplyPort,
        accepted_at: float,
        requested_version: int = -1,
        id: str = "",  # noqa: A002  # the protocol's word
        inputs: Sequence[Tensor] = (),
        requested_outputs: Sequence[str] = (),
        parameters: Mapping[str, Parameter] | None = None,
        priority: int = 0,
        timeout: float = 0.0,
        deadline: float = math.inf,
        correlation_id: int | str = 0,
        flags: int = 0,
    ) -> None:
        self.model_name = model_name
        self.requested_version = requested_version  # -1: the policy's choice
        self.id = id
        self.inputs = inputs
        self.requested_outputs = requested_outputs  # empty: all of them
        self.parameters = parameters
        self.priority = priority  # 0: the model's default level
        self.timeout = timeout  # queue timeout override; 0: none
        self.deadline = deadline  # absolute; the whole request, queueing included
        self.correlation_id = correlation_id
        self.flags = flags
        self.reply = reply
        self.accepted_at = accepted_at

        # What walks of packed inputs have found, None for short ones; None if nothing was walked.
        self.strings: Sequence[Strings | None] | None = None
        # What it has of clients' shared memory, if it names any.
        self.regions: RegionUse | None = None
        # Where the client wants outputs, by their names, if an instance may write them there itself. The
        # reply port writes those that it gets.
        self.output_regions: Mapping[str, RegionSlice] | None = None
        # Outputs that may stay on the GPU of the instance: the one that asks has them read there.
        self.device_outputs: frozenset[str] | None = None
        self.span: Span | None = None  # if the request is traced
        self.rows = 1
        self.nbytes = 0
        self.batch_key: object = None  # requests with equal keys batch together

        # The model that has it, if the one it was submitted to passes requests on.
        self.routed_to: ServedModel | None = None
        self.queue_entry: object = None  # owned by the queue while the request waits in it
        self.cache_ticket: object = None  # owned by the model's cache until the request is answered
        self.dispatched_at = -1.0  # of a batch's first request, if the model promises a latency
        self.cancelled = False
        self.answered = False
        self.synthetic = False  # the server's own: a probe, which statistics leave out
        # The model's inputs beyond `inputs`: controls and states of its sequence.
        self.extra: Sequence[Tensor] = ()
        # Who asks, if the server tells identities apart: it is told of the end as of the beginning.
        self.caller: Caller | None = None
        # The frontend's notes on the client, if the model asks for them: see `actors.values.marks`.
        self.affinity = ""  # value of the header that keeps a client with one version
        self.tenant = ""  # it takes from this tenant's share of the queue
        self.fingerprint: object = None  # of its inputs, if they were hashed: a worker died under its like
        self.attempts = 0  # executions begun
        self.alone_deaths = 0  # workers it killed while it ran alone
        self.unexplained_deaths = 0  # workers that died under it for a reason no request can cause

    def inherit(self, parents: Sequence[InferRequest]) -> None:
        """Take over what holds for the `parents`, on whose behalf this request is made.

        It has as much time as the one with the most, and the client of the first.
        """
        first = parents[0]
        self.deadline, self.synthetic = first.deadline, first.synthetic
        self.affinity, self.tenant, self.caller = first.affinity, first.tenant, first.caller
        for other in parents[1:]:
            self.deadline = max(self.deadline, other.deadline)
            self.synthetic = self.synthetic and other.synthetic

    def made_by(self, caller: Caller) -> None:
        """Note who asks, and count the request as under way. Raises TooManyRequests."""
        if caller.counted:
            caller.begin()
        self.caller = caller

    @property
    def sequence_key(self) -> int | str | tuple[str, int | str]:
        """What names its sequence: identities that are told apart have sequences of their own."""
        return self.correlation_id if self.caller is None else (self.caller.name, self.correlation_id)

    def __repr__(self) -> str:
        return f"<InferRequest {self.id or '<id_unknown>'} of {self.model_name!r}, {self.rows} rows>"

    @property
    def prefix(self) -> str:
        """`[request id: …] `, which the contract puts before many error texts."""
        return f"[request id: {self.id or '<id_unknown>'}] "


class InferResponse:
    """One part of an answer. `outputs` may view an arena slot: call `release` once they are copied or sent.

    `release` is idempotent; a response without a lease makes it a no-op.
    """

    __slots__ = (
        "_on_release",
        "generated",
        "id",
        "model_name",
        "model_version",
        "outputs",
        "parameters",
        "timing",
    )

    def __init__(
        self,
        *,
        model_name: str,
        model_version: int,
        id: str = "",  # noqa: A002
        outputs: Sequence[Tensor] = (),
        parameters: Mapping[str, Parameter] | None = None,
        timing: tuple[int, int, int, int] | None = None,
    ) -> None:
        self.model_name = model_name
        self.model_version = model_version
        self.id = id
        self.outputs = outputs
        self.parameters = parameters
        self.timing = timing  # queue, compute input, compute infer, compute output: nanoseconds
        # In place of outputs, what a language model has made for a `GenerationRequest`.
        self.generated: Sequence[Generated] = ()
        self._on_release: Callable[[], None] | None = None

    @property
    def leased(self) -> bool:
        """Whether outputs still view an arena slot."""
        return self._on_release is not None

    def on_release(self, callback: Callable[[], None]) -> None:
        """Have `release` call `callback`: the outputs view memory that its owner waits for."""
        self._on_release = callback

    def release(self) -> None:
        """Give the arena slot back; the outputs' data must not be read afterwards."""
        on_release, self._on_release = self._on_release, None
        if on_release is not None:
            on_release()


def release(part: InferResponse | TritiumError) -> None:
    """Give back the memory of a part of an answer that is not wanted."""
    if isinstance(part, InferResponse):
        part.release()


@mypyc_attr(allow_interpreted_subclasses=True)
class ServedModel(ABC):
    """One READY version of one model, or what chooses or wakes one: all that a frontend knows of it."""

    __slots__ = ()

    @property
    @abstractmethod
    def spec(self) -> ModelSpec:
        """Its configuration."""

    @property
    @abstractmethod
    def marks(self) -> ClientMarks | None:
        """The facts that a frontend notes of a request's client before it submits the request; None: none."""

    @abstractmethod
    async def submit(self, request: InferRequest) -> None:
        """Validate and queue `request`; wait while the queue is full, unless its policy refuses.

        Raises InvalidArgument if the request contradicts the model, Unavailable if it can't be queued. After
        this returns, the answer comes through `request.reply`, exactly once.
        """

    @abstractmethod
    def submit_nowait(self, request: InferRequest) -> None:
        """The same for a caller that can't wait.

        Where `submit` would wait, this raises `trio.WouldBlock`, and nothing has happened.
        """

    @abstractmethod
    def cancel(self, request: InferRequest) -> None:
        """The client left: take `request` from the queue, or flag it cancelled where it runs.

        Never raises.
        """


FinishedHook: TypeAlias = "Callable[[InferRequest, InferResponse | TritiumError, str], None]"
"""Is told a request, its outcome and the client's address, before the answer's memory is given back."""


class Endings:
    """What is told how each request of a listener ended. It may change while the server runs.

    `hook` is a log's, or None while no log wants to know. Then a request pays one truth test.
    """

    __slots__ = ("hook",)

    def __init__(self, hook: FinishedHook | None = None) -> None:
        self.hook: FinishedHook | None = hook
