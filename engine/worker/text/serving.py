"""A text worker's loop: orders come in, reports go out.

Ids that come are made into text at once, and all pieces of one look at the socket leave in one report. Asks
go to helpers (`engine.worker.text.helpers`), which take as long as they take. One is forked at the start, and
more where all of them are busy for longer than a moment.
"""

from __future__ import annotations

import gc
import re
import selectors
import sys
import time
from array import array
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from actors.wire.frames import FrameError
from actors.wire.text_frames import decode_head
from engine.worker.text import helpers
from engine.worker.text.lines import Line, LineEnded
from engine.worker.text.loading import LoadFailed, load
from engine.worker.text.speaking import named_all
from engine.worker.text.streams import Differs, Streams

if TYPE_CHECKING:
    from actors.wire.frames import Buffer
    from engine.worker.text.loading import Loaded
    from engine.worker.text.preparing import Choices
    from engine.worker.text.streams import Failed

MOST_HELPERS: Final = 4
BUSY: Final = 0.02
"""Seconds for which a helper may work before another is forked for what waits."""

PATIENCE: Final = 90.0
"""Seconds after which a helper is ended, whatever processor time it took: it may be stopped."""

MOST_IDLE_DEATHS: Final = 8
"""Helpers that may end in a row without having been asked anything: then none can live here."""

_STREAM: Final = re.compile(rb'\["(open|restore)",\s*(\d{1,18}),')
"""The beginning of an order that a helper reads. It may be long, so the worker reads no more of it."""


class HelpersFailed(Exception):
    """Helpers end before they are asked anything."""


def serve(line: Line, folder: str, choices: Choices) -> None:
    """Load a tokenizer and serve until the server goes away.

    Raises FrameError for what is no frame, and HelpersFailed.
    """
    try:
        loaded = load(folder)
    except LoadFailed as error:
        line.send(["failed", str(error)])
        return
    gc.freeze()  # helpers share what is not touched
    serving = Serving(line, loaded, choices)
    line.send(["ready", loaded.facts()])
    serving.run()


class Serving:
    """The loop, once the tokenizer is loaded."""

    def __init__(self, line: Line, loaded: Loaded, choices: Choices) -> None:
        self._line = line
        self._loaded = loaded
        self._choices = choices
        self._streams = Streams(loaded.vocabulary)
        self._selector = selectors.DefaultSelector()
        self._selector.register(line, selectors.EVENT_READ, None)
        self._helpers: list[helpers.Helper] = []
        self._waiting: deque[tuple[int, bytes, bytes]] = deque()
        self._idle_deaths = 0  # in a row
        self._fork()

    def run(self) -> None:
        """Serve until the server goes away. Raises FrameError and HelpersFailed."""
        try:
            while True:
                self._turn()
        except LineEnded:
            return  # helpers end with this process

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._patience()):
            if key.data is None:
                self._line.read()
                self._orders()
            elif key.data in self._helpers:
                self._hear(key.data)
        if self._streams.replaying:
            self._report(*self._streams.replay())
        self._tend()

    def _patience(self) -> float | None:
        if self._streams.replaying:
            return 0.0
        if self._waiting and len(self._helpers) < MOST_HELPERS:
            return BUSY
        busy = [helper.since for helper in self._helpers if helper.stream is not None]
        return max(min(busy) + PATIENCE - time.monotonic(), 0.0) if busy else None

    # -- the server

    def _orders(self) -> None:
        pieces: list[Any] = []
        failed: list[Failed] = []
        for head, body in self._line.frames():
            asked = _STREAM.match(head)
            if asked is not None:
                number = int(asked[2])
                self._streams.add(number)
                self._waiting.append((number, head, body))
                self._hand_out()
                continue
            order = decode_head(head)
            if order[0] == "tokens":
                pieces += self._streams.tokens(order[1], _ids(body), failed)
            elif order[0] == "chances":
                self._line.send(["chances", *order[1:3], named_all(order[3], self._loaded.vocabulary)])
            elif order[0] == "ping":
                self._line.send(["pong"])
            elif order[0] == "close":
                self._streams.close(order[1])
                self._waiting = deque(each for each in self._waiting if each[0] != order[1])
            else:
                raise FrameError(f"an order of kind {order[0]!r}")
        self._report(pieces, failed)

    def _report(self, pieces: list[Any], failed: list[Failed]) -> None:
        if pieces:
            self._line.send(["pieces", pieces])
        for number, error in failed:
            if isinstance(error, Differs):
                self._line.send(["differs", number, error.choice])
            else:
                self._refuse(number, 500, f"The text worker has failed at this request: {error!r}")

    def _refuse(self, number: int, status: int, message: str) -> None:
        self._streams.close(number)
        self._line.send(["refused", number, status, message, ""])

    # -- the helpers

    def _fork(self) -> None:
        helper = helpers.fork(self._loaded, self._choices, self._close_all)
        self._helpers.append(helper)
        self._selector.register(helper.line, selectors.EVENT_READ, helper)

    def _close_all(self) -> None:
        """In a new helper: close what is the worker's."""
        self._selector.close()
        self._line.close()
        for helper in self._helpers:
            helper.line.close()

    def _hand_out(self) -> None:
        for helper in list(self._helpers):
            if not self._waiting:
                return
            if helper.stream is None:
                number, head, body = self._waiting.popleft()
                helper.stream, helper.since = number, time.monotonic()
                try:
                    helper.line.send_pieces((_lengths(head, body), head, body))
                except LineEnded:
                    self._buried(helper)

    def _tend(self) -> None:
        """See to helpers that take long, and to what waits for them."""
        now = time.monotonic()
        for helper in list(self._helpers):
            if helper.stream is not None and now - helper.since > PATIENCE:
                self._buried(helper)
        if self._waiting and len(self._helpers) < MOST_HELPERS:
            longest = [
                helper for helper in self._helpers if helper.stream is None or now - helper.since > BUSY
            ]
            if longest or not self._helpers:
                self._fork()
                self._hand_out()

    def _hear(self, helper: helpers.Helper) -> None:
        try:
            helper.line.read()
            frames = list(helper.line.frames())
        except (LineEnded, FrameError):
            self._buried(helper)
            return
        for head, body in frames:
            helper.stream = None
            self._idle_deaths = 0
            self._answered(decode_head(head), body)
        if frames:
            self._hand_out()

    def _answered(self, answer: list[Any], body: Buffer) -> None:
        number = answer[1]
        if number not in self._streams:
            return  # it was closed
        if answer[0] == "opened":
            self._streams.opened(number, answer[5])
            self._line.send(answer[:5], body)
        elif answer[0] == "restored":
            self._streams.restored(number, answer[2], answer[3], body)
        else:
            self._streams.close(number)
            self._line.send(answer)

    def _buried(self, helper: helpers.Helper) -> None:
        """A helper has ended, or is ended now: its ask is refused, and another takes its place.

        Raises HelpersFailed where that has led to nothing too often.
        """
        self._selector.unregister(helper.line)
        self._helpers.remove(helper)
        said = helper.end()
        number, helper.stream = helper.stream, None
        print(f"a helper of the text worker {said}", file=sys.stderr, flush=True)  # noqa: T201
        if number is None:
            self._idle_deaths += 1
            if self._idle_deaths >= MOST_IDLE_DEATHS:
                raise HelpersFailed(f"a helper that was not asked anything yet {said}")
        elif number in self._streams:
            self._refuse(number, 400, f"Making tokens of this request {said}")
        self._fork()
        self._hand_out()


def _ids(body: Buffer) -> array[int]:
    ids = array("i")
    ids.frombytes(body)
    return ids


def _lengths(head: bytes, body: bytes) -> bytes:
    return (4 + len(head) + len(body)).to_bytes(4, "little") + len(head).to_bytes(4, "little")
