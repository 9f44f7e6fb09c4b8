"""The callees of a worker: models that answer at once, later, in parts or never, and likewise subjects.

The host notes the outcome of each request. Afterwards it reports requests that were answered twice or not at
all.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import trio

from actors.calls.call import WorkerCall
from actors.calls.subjects import CallingWorker, Subjects
from actors.values.datatypes import DataType
from actors.values.errors import Cancelled, InvalidArgument, NotFound, TritiumError, Unavailable
from actors.values.requests import InferRequest, InferResponse
from actors.values.specs import ModelSpec
from actors.values.tensors import Tensor
from actors.wire.frames import FrameError
from tests.support.doubles import Double
from tests.support.model_doubles import make_spec

MODELS = ("now", "later", "parts", "full", "refuses", "sorry", "circle")
"""What the names of models say of them; there is also "unready", and none by any other name."""

SUBJECTS = ("now", "later", "wrong", "odd")
"""What is answered; "odd" ends the connection. "heard" is heard."""

_SPECS: Mapping[str, ModelSpec] = {name: make_spec(name=name, decoupled=name == "parts") for name in MODELS}
_SIZES = (0, 4, 4, 4, 2000, 90_000, 140_000)  # of answers, in bytes
_BYTES = memoryview(bytes(max(_SIZES)))


class PlayedHost:
    """Resolves names, answers, and knows circles.

    Implements `actors.calls.admission.Resolver` and `actors.calls.calls.Deadlocks`.
    """

    def __init__(self, chance: Random) -> None:
        self.subjects = Subjects()
        self.accepted: list[InferRequest] = []  # every accepted request, in order
        self.questions: list[trio.Event] = []  # of those that wait for `reply`
        self.gone: list[CallingWorker] = []
        self._chance = chance
        self._waiting: dict[InferRequest, trio.Event] = {}  # for room
        self._answered: set[InferRequest] = set()
        self._cancelled: set[InferRequest] = set()
        self._leases = 0
        for name in SUBJECTS:
            self.subjects.answer(name, getattr(self, f"_answer_{name}"))
        self.subjects.hear("heard", lambda _body, _caller: None)
        self.subjects.hear("odd", _refuse)
        self.subjects.on_end(self.gone.append)

    def resolve(self, name: str, version: str = "", *, namespace: str = "") -> PlayedModel:
        """Return a model of `MODELS`. Raises NotFound and Unavailable."""
        if name == "unready":
            raise Unavailable("not now")
        if name not in _SPECS or version not in ("", "1"):
            raise NotFound(f"no '{name}' of version '{version}'")
        return PlayedModel(self, _SPECS[name])

    def check(self, call: WorkerCall) -> None:
        """Raise Unavailable where a call that waits would wait for itself."""
        if call.model.spec.name == "circle":
            raise Unavailable("a circle")

    # -- what models do --------------------------------------------------------------------------------------

    @property
    def open(self) -> list[InferRequest]:
        """The requests that have neither had their last answer nor been cancelled."""
        return [each for each in self.accepted if each not in self._answered and each not in self._cancelled]

    def accept(self, request: InferRequest) -> None:
        """Take a request on. It must be new."""
        assert request not in self.accepted
        assert request not in self._cancelled, "cancelled before it was submitted"
        self.accepted.append(request)

    async def wait_for_room(self, request: InferRequest) -> None:
        """Wait until `make_room` or `cancel`, which is a Cancelled; then take the request on."""
        assert request not in self._waiting
        event = self._waiting[request] = trio.Event()
        try:
            await event.wait()
        finally:
            del self._waiting[request]
        if request in self._cancelled:
            raise Cancelled("")
        self.accept(request)

    def make_room(self) -> None:
        """Let in all requests that wait."""
        for event in self._waiting.values():
            event.set()

    def say(self, request: InferRequest, *, final: bool) -> None:
        """Give part of an answer to an open request, or the last part of it."""
        if final:
            self._answered.add(request)
            request.answered = True
        request.reply.put(self._part(), final=final)

    def cancel(self, request: InferRequest) -> None:
        """Note that the request is no longer needed, and tell some callers so, as a queue does."""
        assert request not in self._cancelled, "cancelled twice"
        assert request not in self._answered, "cancelled after the last answer"
        self._cancelled.add(request)
        request.cancelled = True
        if request in self._waiting:
            self._waiting[request].set()
        elif self._chance.random() < 0.3:
            request.reply.put(Cancelled(""), final=True)

    def _part(self) -> InferResponse | TritiumError:
        if self._chance.random() < 0.15:
            return Unavailable("hälf of it" * self._chance.choice((1, 2000)))
        nbytes = self._chance.choice(_SIZES)
        outputs = [Tensor("OUTPUT", DataType.FP32, (nbytes // 4,), _BYTES[:nbytes])] if nbytes else []
        parameters: Any = self._chance.choice(
            (None, None, None, {"a": 1.5, "b": "c"}, {"long": "x" * 70_000})
        )
        response = InferResponse(model_name="model", model_version=1, outputs=outputs, parameters=parameters)
        if self._chance.random() < 0.5:
            self._leases += 1
            response.on_release(self._released)
        return response

    def _released(self) -> None:
        self._leases -= 1

    # -- questions -------------------------------------------------------------------------------------------

    def reply(self, at: int) -> None:
        """Answer one of the questions that wait."""
        if self.questions:
            self.questions.pop(at % len(self.questions)).set()

    async def _answer_now(self, *_about: object) -> Mapping[str, object]:
        return {"text": "x" * self._chance.choice((1, 100_000))}

    async def _answer_later(self, *_about: object) -> Mapping[str, object]:
        event = trio.Event()
        self.questions.append(event)
        await event.wait()
        return {}

    async def _answer_wrong(self, *_about: object) -> Mapping[str, object]:
        raise InvalidArgument("nobody should ask that")

    async def _answer_odd(self, *_about: object) -> Mapping[str, object]:
        raise FrameError("nobody of ours asks that")

    # -- in the end ------------------------------------------------------------------------------------------

    def check_all_over(self) -> None:
        """Check, after the worker is gone, that every request is answered or cancelled, and is forgotten.

        Answers that come too late must be released.
        """
        assert not self.open, f"{len(self.open)} requests are neither answered nor cancelled"
        for request in self._cancelled.intersection(self.accepted):
            request.reply.put(self._part(), final=False)
            request.reply.put(self._part(), final=True)
        assert self._leases == 0, f"{self._leases} responses have not been released"
        assert len(self.gone) == 1
        assert not self._waiting
        for requests in (self.accepted, self._answered, self._cancelled):
            requests.clear()


class PlayedModel(Double):
    """One of `MODELS`. Implements `actors.values.requests.ServedModel`."""

    marks = None

    def __init__(self, host: PlayedHost, spec: ModelSpec) -> None:
        self.spec = spec
        self._host = host

    def submit_nowait(self, request: InferRequest) -> None:
        """Take a request on, and perhaps answer.

        Raises Unavailable and WouldBlock where the model's name says so.
        """
        if self.spec.name == "refuses":
            raise Unavailable("no room")
        if self.spec.name in ("full", "sorry"):
            raise trio.WouldBlock
        self._host.accept(request)
        if self.spec.name == "now":
            self._host.say(request, final=True)
        elif self.spec.name == "parts":
            for _ in range(3):
                if request in self._host.open:  # it may be cancelled for what it says
                    self._host.say(request, final=False)

    async def submit(self, request: InferRequest) -> None:
        """Wait for room; "sorry" has none in the end."""
        await trio.lowlevel.checkpoint()
        if self.spec.name == "sorry":
            raise Unavailable("no room after all")
        await self._host.wait_for_room(request)

    def cancel(self, request: InferRequest) -> None:
        """See `PlayedHost.cancel`."""
        self._host.cancel(request)


def _refuse(_body: object, _caller: object) -> None:
    raise FrameError("nobody of ours tells that")
