"""Answers of the OpenAI API, read as their bytes come: a client that leaves has what there was. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from chaos.wires.http import Broken


class Answer:
    """One answer: a stream of events, or a document."""

    def __init__(self) -> None:
        self.status = 0
        self.over = False  # all of it is there
        self.done = False  # a stream has said so
        self._held = b""
        self._fields = b""
        self._body = b""

    def feed(self, data: bytes) -> Iterator[Mapping[str, Any]]:
        """Take bytes off the connection; yield the documents that are whole now. Raises Broken."""
        self._held += data
        if not self.status:
            head, found, rest = self._held.partition(b"\r\n\r\n")
            if not found:
                return
            self._held, self.status, self._fields = rest, int(head[9:12]), head.lower()
        if b"transfer-encoding: chunked" in self._fields:
            self._body += b"".join(self._chunks())
        else:
            length = int(self._fields.partition(b"content-length:")[2].split(b"\r\n")[0])
            self._body, self.over = self._held, len(self._held) >= length
        if b"text/event-stream" in self._fields:
            yield from self._events()
        elif self.over:
            yield json.loads(self._body)

    def _chunks(self) -> Iterator[bytes]:
        while True:
            size, found, rest = self._held.partition(b"\r\n")
            length = int(size, 16) if found else 0
            if not found or len(rest) < length + 2:
                return
            self._held = rest[length + 2 :]
            if not length:
                self.over = True
                return
            yield rest[:length]

    def _events(self) -> Iterator[Mapping[str, Any]]:
        *events, self._body = self._body.split(b"\n\n")
        for event in events:
            if self.done:
                raise Broken(f"an event behind the end: {event!r}")
            if event == b"data: [DONE]":
                self.done = True
            elif event.startswith(b"data: "):
                yield json.loads(event[6:])
        if self.over and not self.done:
            raise Broken("the stream has ended without saying so")
