"""A client that reads a stream of the OpenAI API while others attack: how long it waits for each event."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from benchmarks.hostile.languages import CONTEXTS

PACED: Final = "paced"
"""The model that it asks: one token each `PACE` seconds, for ever."""

PACE: Final = 0.005
_LONGEST: Final = 1_000_000


def write_languages(repository: Path) -> None:
    """Write the language models that are attacked, and the one that the neighbour reads from."""
    from tests.support.llm.echoing import write_model
    from tests.support.llm.spelt import TEMPLATE

    template = "{% if tools %}{{- tools | tojson }}{% endif %}" + TEMPLATE
    for name, context in CONTEXTS.items():
        write_model(repository, name, template=template, context=context, room=4096)
    write_model(repository, PACED, template=template, context=2 * _LONGEST, pace=PACE)


class StreamNeighbour:
    """One stream, whose events come at a pace."""

    def __init__(self, port: int) -> None:
        asked = {"model": PACED, "prompt": "tell me", "stream": True, "ignore_eos": True}
        body = json.dumps({**asked, "max_tokens": _LONGEST}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: n\r\ncontent-length: {len(body)}\r\n\r\n"
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60.0)
        self._socket.sendall(head.encode() + body)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self) -> float:
        """Return the seconds until more events came. Raises OSError for anything else that comes."""
        began = time.perf_counter()
        text = self._socket.recv(65_536)
        if not text or b"error" in text or b"[DONE]" in text:
            raise OSError(f"the neighbour's stream ended: {text[-200:]!r}")
        return time.perf_counter() - began

    def ask_for(self, seconds: float) -> Sequence[float]:
        """Read for so long; return how long each wait was."""
        until = time.perf_counter() + seconds
        latencies = []
        while time.perf_counter() < until:
            latencies.append(self.ask())
        return latencies
