"""A protocol process: reads HTTP and gRPC, decodes and checks requests, and hands them over to their owner.

    python -m benchmarks.design.many_cores.protocol SOCKET HTTP_PORT GRPC_PORT

It is the product's own listeners, parsers, codecs and applications. Only the models behind them are others:
they put requests into the ring to the process that owns the model. Several of these share both ports.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

import trio

from actors.serving.validation import Validator
from actors.values.errors import ErrorCode, NotFound, TritiumError
from actors.values.interfaces import Health, Server, ServerIdentity
from actors.values.marks import ClientMarks
from actors.values.requests import Endings, InferRequest, InferResponse, ServedModel
from actors.values.specs import ModelSpec
from benchmarks.design.many_cores import forms, line
from benchmarks.design.many_cores.forms import Book, Form
from benchmarks.design.many_cores.line import CREDITS, LONGEST, Line
from engine.observability.events import EventLog
from engine.server.frontends import grpc_listener, http_limits, v2_app
from engine.server.sockets import bind
from engine.settings.settings import Settings
from protocols.http.listener import HttpListener
from protocols.http.routes import is_health
from protocols.transport.listening import Listener
from protocols.transport.receiving import ReceivingRoom


class RemoteModel(ServedModel):
    """A model that another process owns."""

    __slots__ = ("_correspondence", "_spec", "_validate")

    def __init__(self, spec: ModelSpec, correspondence: Correspondence) -> None:
        self._spec = spec
        self._validate = Validator(spec)
        self._correspondence = correspondence

    @property
    def spec(self) -> ModelSpec:
        """Its configuration."""
        return self._spec

    @property
    def marks(self) -> ClientMarks | None:
        """None: the prototype carries no facts about clients."""
        return None

    async def submit(self, request: InferRequest) -> None:
        """Hand `request` over, as soon as there is credit."""
        while True:
            try:
                self.submit_nowait(request)
            except trio.WouldBlock:
                await self._correspondence.room.park()
            else:
                return

    def submit_nowait(self, request: InferRequest) -> None:
        """Check `request` and hand it over. Raises trio.WouldBlock where there is no credit."""
        self._validate(request)
        self._correspondence.send(request)

    def cancel(self, request: InferRequest) -> None:
        """Tell the owner that the client left."""
        self._correspondence.cancel(request)


class Correspondence:
    """The calls that are open with one owner."""

    def __init__(self, there: Line) -> None:
        self._line = there
        self._book = Book(there.calls.put)
        self._forms: dict[int, Form] = {}
        self._open: dict[int, InferRequest] = {}
        self._next = 0
        self.room = trio.lowlevel.ParkingLot()

    def send(self, request: InferRequest) -> None:
        """Put a request into the ring. Raises trio.WouldBlock."""
        ring = self._line.calls
        if len(self._open) >= CREDITS:
            raise trio.WouldBlock
        number = self._next
        form = self._book.number(
            request.model_name, request.requested_version, request.requested_outputs, request.inputs
        )
        frame = forms.call(forms.CALL, form, number, request.id, request.inputs)
        assert len(frame) <= LONGEST, "the prototype carries small tensors only"
        if form < 0 or not ring.put(frame):
            raise trio.WouldBlock
        self._next += 1
        request.queue_entry = number
        self._open[number] = request
        ring.ring_soon()

    def cancel(self, request: InferRequest) -> None:
        """Say that the client of an open call has left."""
        number = request.queue_entry
        if isinstance(number, int) and number in self._open:
            self._line.calls.put(forms.cancel(number))
            self._line.calls.ring_soon()

    async def take_answers(self) -> None:
        """Give answers to the requests that wait for them, for ever."""
        ring = self._line.answers
        while True:
            full = len(self._open) >= CREDITS
            while (frame := ring.take()) is not None:
                self._hear(frame)
            ring.done()
            if full:
                self.room.unpark_all()
            await ring.wait()

    def _hear(self, frame: memoryview) -> None:
        kind = frame[0]
        if kind == forms.ANSWER:
            form_number, number, _, data = forms.read_call(frame)
            form = self._forms[form_number]
            request = self._open.pop(number)
            response = InferResponse(
                model_name=form.model,
                model_version=form.version,
                id=request.id,
                outputs=forms.cut(form, data),
            )
            request.reply.put(response, final=True)
        elif kind == forms.FORM:
            number, form = forms.Form.decode(frame)
            self._forms[number] = form
        else:
            number, code, text = forms.read_failure(frame)
            self._open.pop(number).reply.put(TritiumError.of(ErrorCode(code), text), final=True)


class RemoteModels:
    """Implements `actors.values.interfaces.Models` for what another process owns."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self._models = models

    def resolve(self, name: str, version: str = "") -> ServedModel:
        """Return a model. Raises NotFound."""
        del version
        model = self._models.get(name)
        if model is None:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        return model

    def versions(self, name: str) -> Sequence[int]:
        """Return the one version."""
        return [self.resolve(name).spec.version]

    def statistics(self, name: str = "", version: str = "") -> Sequence[Mapping[str, object]]:
        """Return nothing: those are the owner's."""
        del name, version
        return []


class _Up:
    exiting = withdrawn = held = False

    def live(self) -> bool:
        return True

    async def ready(self) -> bool:
        return True

    async def model_ready(self, name: str, version: str = "") -> bool:
        del name, version
        return True


def server_of(models: RemoteModels) -> Server:
    """Return what a frontend is given. Everything but inference and health is the owner's."""
    lacking = cast("Any", None)
    return Server(
        identity=ServerIdentity(name="protocol", version="0", extensions=()),
        models=models,
        repository=lacking,
        health=cast("Health", _Up()),
        introspection=lacking,
        events=lacking,
        traffic=lacking,
        shared_memory=lacking,
        steering=lacking,
    )


async def serve(server: Server, http_port: int, grpc_port: int, *more: Callable[[], Awaitable[None]]) -> None:
    """Serve both protocols on ports that other processes, or threads, serve too; run `more` beside."""
    settings = Settings.from_argv(["--model-repository=none"], {})
    room = ReceivingRoom()
    app = v2_app(settings, server, endings=Endings(), room=room)
    http = HttpListener(
        app, limits=http_limits(settings.connections), admit=app.admit, is_welcome=is_health, room=room
    )
    grpc = grpc_listener(settings.grpc, server, tls=None, endings=Endings(), log=EventLog(), room=room)
    async with trio.open_nursery() as nursery:

        def spawn(name: str, connection: Callable[[], Awaitable[None]]) -> None:
            nursery.start_soon(connection, name=name)

        async def listen(listener: Listener[Any], port: int) -> None:
            await listener.serve(bind("127.0.0.1", port, reuse_port=True), spawn)

        nursery.start_soon(listen, http, http_port)
        nursery.start_soon(listen, grpc, grpc_port)
        for task in more:
            nursery.start_soon(task)


def main(argv: Sequence[str]) -> None:
    """Serve until killed."""
    path, http_port, grpc_port = argv
    there, specs = line.join(path)
    correspondence = Correspondence(there)
    models = RemoteModels({name: RemoteModel(spec, correspondence) for name, spec in specs.items()})
    beside = (correspondence.take_answers, there.calls.ring_when_told)
    trio.run(serve, server_of(models), int(http_port), int(grpc_port), *beside)


if __name__ == "__main__":
    main(sys.argv[1:])
