"""The process that owns the models: a whole server, which takes requests from rings, too.

    python -m benchmarks.design.many_cores.owner SOCKET --model-repository=… --http-port=…

Protocol processes connect to SOCKET. What comes over their rings goes into the same intake, queue,
scheduler and workers as what comes over the server's own ports.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from functools import partial
from typing import Final

import trio

from actors.values.errors import TritiumError
from actors.values.events import Log
from actors.values.interfaces import Models
from actors.values.requests import InferRequest, InferResponse, ReplyPort, ServedModel
from benchmarks.design.many_cores import forms, line
from benchmarks.design.many_cores.forms import Book, Form
from benchmarks.design.many_cores.line import Line
from engine.server.run import run
from engine.server.running import RunningServer
from engine.settings.settings import Settings

_IN_A_TURN: Final = 64  # calls that are taken from one ring before other tasks get a turn


class Answer(ReplyPort):
    """Puts the answer to one call into the ring to the process that made it."""

    __slots__ = ("_desk", "_number", "model", "request")

    def __init__(self, desk: Desk, number: int) -> None:
        self._desk = desk
        self._number = number

    def put(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        """Take the one part. Synchronous, never raises."""
        assert final
        self._desk.answer(self._number, part)


class Desk:
    """Serves one protocol process."""

    def __init__(self, here: Line, models: Models) -> None:
        self._line = here
        self._models = models
        self._forms: dict[int, tuple[Form, ServedModel]] = {}
        self._book = Book(here.answers.put)
        self._open: dict[int, tuple[ServedModel, InferRequest]] = {}

    async def serve(self) -> None:
        """Take calls until the other process is gone."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, nursery.cancel_scope)
            nursery.start_soon(self._line.answers.ring_when_told)
            calls = self._line.calls
            while True:
                for _ in range(_IN_A_TURN):
                    frame = calls.take()
                    if frame is None:
                        break
                    await self._hear(frame)
                calls.done()
                await calls.wait()

    async def _watch(self, scope: trio.CancelScope) -> None:
        await trio.lowlevel.wait_readable(self._line.sock)
        scope.cancel()
        for model, request in list(self._open.values()):
            model.cancel(request)
        self._line.sock.close()

    async def _hear(self, frame: memoryview) -> None:
        kind = frame[0]
        if kind == forms.CALL:
            form_number, number, identity, data = forms.read_call(frame)
            form, model = self._forms[form_number]
            request = InferRequest(
                model_name=form.model,
                requested_version=form.version,
                id=identity,
                inputs=forms.cut(form, data),
                requested_outputs=form.outputs,
                reply=Answer(self, number),
                accepted_at=trio.current_time(),
            )
            self._open[number] = (model, request)
            try:
                model.submit_nowait(request)
            except trio.WouldBlock:
                await self._wait(model, request, number)
            except TritiumError as error:
                self.answer(number, error)
        elif kind == forms.FORM:
            number, form = forms.Form.decode(frame)
            self._forms[number] = form, self._models.resolve(form.model)
        else:
            _, number, _, _ = forms.read_call(frame)
            if number in self._open:
                model, request = self._open[number]
                model.cancel(request)

    async def _wait(self, model: ServedModel, request: InferRequest, number: int) -> None:
        # The queue is full: the ring is not read, and the calls behind this one wait in it.
        try:
            await model.submit(request)
        except TritiumError as error:
            self.answer(number, error)

    def answer(self, number: int, part: InferResponse | TritiumError) -> None:
        """Tell the other process how a call ended. Its credit has room for that in the ring."""
        del self._open[number]
        ring = self._line.answers
        if isinstance(part, InferResponse):
            outputs = part.outputs
            form = self._book.number(part.model_name, part.model_version, (), outputs)
            ring.put(forms.call(forms.ANSWER, form, number, "", outputs))
            part.release()
        else:
            ring.put(forms.failure(number, part.code.value, part.message))
        ring.ring_soon()


async def take_lines(path: str, running: RunningServer, _log: Log) -> None:
    """Serve every protocol process that connects to `path`."""
    await running.wait_loaded()
    models = running.server.models
    names = {entry.name for entry in await running.server.repository.index(ready_only=True)}
    specs = {name: models.resolve(name).spec for name in names}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(path)
        listening.listen()
        listening.setblocking(False)
        async with trio.open_nursery() as nursery:
            while True:
                await trio.lowlevel.wait_readable(listening)
                accepted, _ = listening.accept()
                desk = Desk(line.offer(accepted, specs), models)
                nursery.start_soon(desk.serve)


def main(argv: Sequence[str]) -> int:
    """Serve until told to stop; return the process's exit status."""
    return run(Settings.from_argv(argv[1:], os.environ), beside=partial(take_lines, argv[0]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
