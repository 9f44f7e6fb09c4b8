"""Bodies of requests: which the v2 API takes, judged by the head, and how they are read."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

import trio

from actors.seams.slices import in_slices
from actors.values.errors import InvalidArgument, TritiumError, Unsupported
from actors.values.interfaces import Models
from actors.values.tensors import Buffer
from protocols.http.admission import (
    DISCARD_PAUSE,
    DISCARD_TIME,
    MOST_DISCARDED,
    Admission,
    Admitted,
    limited,
    short,
    unread,
)
from protocols.http.answers import Answer, Receive, Send, error_answer, failure
from protocols.http.fields import Header
from protocols.http.routes import Endpoint, Route
from protocols.kserve.caps import REGISTER_BODY, REPOSITORY_BODY, check_json_size
from protocols.kserve.compression import is_compressed
from protocols.kserve.documents import TooLong, read_short
from protocols.kserve.long_texts import LongText

Message = MutableMapping[str, Any]

NO_DECOUPLED = "HTTP end point doesn't support models with decoupled transaction policy"
ONLY_IDENTITY = "Unsupported content-encoding, only 'identity' is supported."

_PLAIN = frozenset((b"", b"identity"))


class BodyLimits:
    """How long a body may be, by its route.

    Inferences bring tensors, loads bring files, all other requests next to nothing.
    """

    def __init__(self, models: Models, *, max_input_size: int, max_body_size: int) -> None:
        """A JSON text may have `max_input_size` bytes; with binary tensors behind it, `max_body_size`."""
        self._models = models
        self._max_input_size = max_input_size
        self._max_body_size = max_body_size

    def admit(
        self, route: Route, fields: Sequence[Header], length: int, *, uploads: bool = True
    ) -> Admission:
        """Say whether the body of a request may come, which has `length` bytes or is chunked (-1).

        `uploads` says whether a load may bring files. Raises TritiumError for a request that is refused
        whatever its body, such as one for an unknown model.
        """
        match route.endpoint:
            case Endpoint.INFER:
                return self._admit_inference(route, dict(fields), length)
            case Endpoint.GENERATE | Endpoint.GENERATE_STREAM:
                self._models.resolve(route.model, route.version)
                if dict(fields).get(b"content-encoding", b"") not in _PLAIN:
                    raise InvalidArgument(ONLY_IDENTITY)
                return limited(self._max_input_size, length, self._too_long_a_text)
            case Endpoint.MODEL_LOAD if uploads:
                return limited(self._max_input_size, length, self._too_long_a_text)
            case Endpoint.MODEL_LOAD:
                return limited(REPOSITORY_BODY, length, _too_long_a_load)
            case Endpoint.FLEET:
                return limited(REGISTER_BODY, length, _too_long_a_document)
            case endpoint if "POST" not in endpoint.methods:
                return unread(length)
            case _:
                return short(length)

    def _admit_inference(self, route: Route, fields: dict[bytes, bytes], length: int) -> Admission:
        model = self._models.resolve(route.model, route.version)
        if model.spec.decoupled:
            raise Unsupported(NO_DECOUPLED)
        compressed = is_compressed(fields.get(b"content-encoding", b""))
        if compressed or b"inference-header-content-length" in fields:
            return limited(self._max_body_size, length, self._too_long)
        return limited(self._max_input_size, length, self._too_long_a_text)

    def _too_long(self, size: int) -> Answer:
        return error_answer(
            413,
            f"request body of {size} bytes exceeds the maximum allowed size of {self._max_body_size} bytes",
        )

    def _too_long_a_text(self, size: int) -> Answer:
        try:
            check_json_size(size, self._max_input_size)
        except TritiumError as error:
            return failure(error)
        raise AssertionError(f"a text of {size} bytes was taken to be too long")


def _too_long_a_load(size: int) -> Answer:
    return error_answer(
        413,
        f"request body of {size} bytes exceeds the {REPOSITORY_BODY} bytes of a load that may not bring files",
    )


def _too_long_a_document(size: int) -> Answer:
    return error_answer(
        413, f"request body of {size} bytes exceeds the {REGISTER_BODY} bytes that the register takes"
    )


def announced(fields: Sequence[Header]) -> int:
    """Return how long a body is by its head: 0 for none, -1 where that is not known."""
    length = 0
    for name, value in fields:
        if name == b"transfer-encoding":
            return -1
        if name == b"content-length" and value.isdigit():
            length = int(value[:20])
    return length


class BodyTooLong(Exception):
    """More of a body came than is allowed. `answer` is the answer to the client."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self.answer = answer


class ForeignBody:
    """A body that a foreign ASGI server passes on.

    Not more of it is taken than was admitted. The rest is dropped once the request is answered. In a
    `stream`, as over HTTP/2, the end of a body comes by itself, also of an empty one. No answer may be
    complete before: hypercorn fails of data for a stream that is closed, and with trio its process does.
    """

    def __init__(self, receive: Receive, verdict: Admission, length: int, *, stream: bool = False) -> None:
        self.ended = length == 0 and not stream
        self._stream = stream
        self._receive = receive
        self._verdict = verdict
        self._size = 0

    async def receive(self) -> Message:
        """Pass on the next message. Raises BodyTooLong."""
        message = await self._receive()
        self._note(message)
        if isinstance(self._verdict, Admitted) and self._size > self._verdict.most:
            raise BodyTooLong(self._verdict.too_long(self._size))
        return message

    def _note(self, message: Message) -> None:
        if message["type"] != "http.request" or not message.get("more_body", False):
            self.ended = True
        self._size += len(message.get("body", b""))

    async def answer(self, send: Send, answer: Answer, headers: Sequence[Header]) -> None:
        """Send a whole answer with these headers; its end only behind that of the request's body."""
        body = b"".join(answer.buffers)
        if answer.release is not None:
            answer.release()
        fields = [*headers, (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": answer.status, "headers": fields})
        if not self.ended:
            # A server that learns that the answer is complete would close the connection while the body
            # still comes.
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await self._discard()
            body = b""
        await send({"type": "http.response.body", "body": body})

    async def _discard(self) -> None:
        """Drop the rest as it comes, so that the client reads its answer; see `protocols.http.admission`.

        In a `stream` there is no bound but the server's own: for how long it waits for its client's bytes
        (hypercorn's `--read-timeout`). An answer that was ended before would cost more than one that waits.
        """
        while self._stream and not self.ended:
            self._note(await self._receive())
        most = self._size + MOST_DISCARDED
        with trio.move_on_after(DISCARD_TIME):
            while not self.ended and self._size < most:
                with trio.move_on_after(DISCARD_PAUSE) as pause:
                    self._note(await self._receive())
                if pause.cancelled_caught:
                    return


async def read_body(receive: Receive) -> Buffer | None:
    """Return a request's body; None where the client left before its end."""
    message = await receive()
    if message["type"] != "http.request":
        return None
    body: Buffer = message.get("body", b"")
    if not message.get("more_body", False):
        return body
    parts = [body]
    while message.get("more_body", False):
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
    return b"".join(parts)


async def read_document(
    receive: Receive, max_input_size: int, *, long_strings: bool = False
) -> dict[str, Any] | None:
    """Return the members of the JSON object in the body, none for an empty body.

    None: the client left.
    """
    body = await read_body(receive)
    if body is None:
        return None
    document = await parsed(body, max_input_size, long_strings=long_strings) if body else {}
    return document if type(document) is dict else {}


async def parsed(body: Buffer, max_input_size: int, *, long_strings: bool = False) -> Any:
    """Return the JSON value of a body of at most `max_input_size` bytes."""
    check_json_size(len(body), max_input_size)
    try:
        return read_short(body)
    except TooLong:
        return await in_slices(LongText(body, long_strings=long_strings).document())
