"""Facts about one request beside its answer: its instance, its batch, its attempts, and its parent request.

Records exist only where requests are logged. A request is created without one (the slot stays unset, which
costs nothing), and `RecordStage` gives it one. Readers get it with `record_of`. A server that does not log
requests registers neither `RecordStage` nor `RecordObserver`, so it need not even check whether it should.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

import trio

from actors.serving.instances.batches import InFlight
from actors.serving.model import ModelState
from actors.serving.ports import BatchObserver, Stage
from actors.serving.standing import InstanceState
from actors.values.errors import TritiumError
from actors.values.events import Event, Log
from actors.values.requests import InferRequest, InferResponse
from actors.values.specs import ModelSpec
from actors.wire.batch_frames import Result

NAMED_AT_MOST: Final = 64
"""Requests that one log line names.

So a line about the death of a worker with a thousand requests stays readable.
"""

RequestEnd: TypeAlias = Callable[[InferRequest, InferResponse | TritiumError, str], None]
"""Is told how a request ended, and which peer sent it (empty if the server itself did)."""


class RequestRecord:
    """The course of one request so far. Times are seconds on trio's clock."""

    __slots__ = (
        "batch",
        "batch_requests",
        "batch_rows",
        "cached",
        "first_dispatch",
        "first_response",
        "instance",
        "last_dispatch",
        "parent",
        "parent_id",
        "pid",
        "relation",
        "responses",
        "serial",
    )

    def __init__(self, serial: int, relation: str = "", parent: InferRequest | None = None) -> None:
        """`relation` is the request's role for its `parent`: `step`, `call` or `copy`; empty for a client."""
        known = None if parent is None else record_of(parent)
        self.serial = serial  # unique in the life of a server
        self.relation = relation
        self.parent = 0 if known is None else known.serial
        self.parent_id = "" if parent is None else parent.id
        self.instance = ""
        self.pid = 0
        # Number of the batch of the last execution, in the life of the worker.
        self.batch = 0
        self.batch_requests = 0
        self.batch_rows = 0
        self.first_dispatch: float | None = None
        self.last_dispatch: float | None = None
        self.responses = 0  # parts of a decoupled model's answer
        self.first_response: float | None = None
        self.cached = False

    def dispatched(self, batch: InFlight, rows: int, *, instance: str, pid: int, now: float) -> None:
        """It was handed to a worker, as a part of `batch` of `rows` rows."""
        self.instance, self.pid = instance, pid
        self.batch, self.batch_requests, self.batch_rows = batch.id, len(batch.requests), rows
        self.last_dispatch = now
        if self.first_dispatch is None:
            self.first_dispatch = now

    def responded(self, now: float) -> None:
        """A part of its answer has come."""
        self.responses += 1
        if self.first_response is None:
            self.first_response = now


class Recorder:
    """Numbers requests, and says where their records go; one for a server.

    With `stages`, each stage is logged as it comes.
    """

    def __init__(self, log: Log, *, on_internal: RequestEnd, stages: bool) -> None:
        """`on_internal` is told of requests that the server makes of itself, which no frontend reports."""
        self.log = log
        self.on_internal = on_internal
        self.stages = stages
        self._serials = itertools.count(1)

    def say(self, spec: ModelSpec, event: Event, **keys: object) -> None:
        """Log a stage of a request to the version `spec`."""
        self.log(event, level="debug", model=spec.name, version=spec.version, **keys)

    def open(self, request: InferRequest) -> RequestRecord:
        """Give `request` a record."""
        port = request.reply
        relation: str = getattr(port, "relation", "")
        record = RequestRecord(next(self._serials), relation, getattr(port, "parent", None))
        request.record = record
        return record


def record_of(request: InferRequest) -> RequestRecord | None:
    """Return the record of `request`; None where it has none."""
    record = getattr(request, "record", None)
    return record if isinstance(record, RequestRecord) else None


def named(requests: Iterable[InferRequest]) -> Sequence[str]:
    """Return the log's names of `requests`.

    A name is the client's id, else the server's number, else `<id_unknown>`.
    """
    real = (request for request in requests if not request.padding)
    return [_name(request) for request in itertools.islice(real, NAMED_AT_MOST)]


def _name(request: InferRequest) -> str:
    if request.id:
        return request.id
    record = record_of(request)
    return "<id_unknown>" if record is None else f"#{record.serial}"


class RecordStage(Stage):
    """Gives each request of a version a record. The server's own probes have none."""

    def __init__(self, state: ModelState, recorder: Recorder) -> None:
        self._state = state
        self._recorder = recorder

    def accepted(self, request: InferRequest) -> None:
        """See `Stage.accepted`."""
        if request.synthetic:
            return
        record = self._recorder.open(request)
        if self._recorder.stages:
            keys: dict[str, object] = {"parent": record.parent} if record.parent else {}
            self._recorder.say(
                self._state.spec,
                Event.REQUEST_ACCEPTED,
                request_id=request.id,
                serial=record.serial,
                rows=request.rows,
                queued=len(self._state.queue),
                **keys,
            )

    def cached(self, request: InferRequest) -> None:
        """See `Stage.cached`."""
        if not request.synthetic:
            record = record_of(request) or self._recorder.open(request)
            record.cached = True

    def responding(self, request: InferRequest, part: InferResponse | TritiumError, *, final: bool) -> None:
        """See `Stage.responding`."""
        record = record_of(request)
        if record is None:
            return
        said = isinstance(part, InferResponse) and (len(part.outputs) > 0 or not final)
        if said and self._state.spec.decoupled:
            record.responded(trio.current_time())
        if final and record.relation:
            # Called before the part is passed on: the request's maker may end once it has the part.
            self._recorder.on_internal(request, part, "")


class RecordObserver(BatchObserver):
    """Notes in the records of a batch's requests which instance executes them."""

    def __init__(self, state: ModelState, recorder: Recorder) -> None:
        self._state = state
        self._recorder = recorder

    def dispatched(self, batch: InFlight, instance: InstanceState) -> None:
        """See `BatchObserver.dispatched`."""
        now = trio.current_time()
        rows = sum(request.rows for request in batch.requests if not request.padding)
        for request in batch.requests:
            record = record_of(request)
            if record is not None:
                record.dispatched(batch, rows, instance=instance.spec.name, pid=instance.pid or 0, now=now)
        if self._recorder.stages:
            keys = {"alone": True} if batch.alone else {}
            self._recorder.say(
                self._state.spec,
                Event.BATCH_DISPATCHED,
                instance=instance.spec.name,
                pid=instance.pid,
                batch=batch.id,
                rows=rows,
                requests=named(batch.requests),
                **keys,
            )

    def finished(self, batch: InFlight, result: Result) -> None:
        """See `BatchObserver.finished`."""
        records = map(record_of, batch.requests if self._recorder.stages else ())
        record = next((each for each in records if each is not None), None)  # padding has none
        if record is not None:
            self._recorder.say(
                self._state.spec,
                Event.BATCH_COMPLETED,
                instance=record.instance,
                pid=record.pid,
                batch=batch.id,
                compute_input_us=result.input_ns // 1000,
                compute_infer_us=result.infer_ns // 1000,
                compute_output_us=result.output_ns // 1000,
                requests=named(batch.requests),
            )
