"""Text workers with a true tokenizer, in this process and one step at a time.

All but the process is that of a text worker: asks are prepared and ids become text as they do there. What a
helper would do waits for `works`, so a test or a simulation says when an ask is prepared and when a stream is
replayed.
"""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import trio

from actors.generation.texts import TextWorker, TextWorkerDied
from actors.values.generation.asking import Ask
from actors.values.tensors import Buffer
from actors.wire.text_frames import decode_head, encode, lengths, pack_ids, unpack_ask, unpack_ids
from engine.worker.text.loading import Loaded
from engine.worker.text.preparing import Choices, Preparer
from engine.worker.text.refusing import Refused
from engine.worker.text.streams import Streams


class SteppedTextWorker(TextWorker):
    """One worker; see the module. `on_order` is called after each order that leaves something to do."""

    def __init__(
        self, loaded: Loaded, *, pid: int = 4712, on_order: Callable[[], object] = lambda: None
    ) -> None:
        self._pid = pid
        self._on_order = on_order
        self._reports, self._receive = trio.open_memory_channel[tuple[list[Any], Buffer]](10_000)
        self._preparer = Preparer(loaded, Choices(), rendering=lambda render: render())
        self._loaded = loaded
        self.streams = Streams(loaded.vocabulary)
        self._waiting: deque[tuple[list[Any], Buffer]] = deque()
        self.dead = False

    def readies(self) -> None:
        """Report that the tokenizer is loaded."""
        self._report(["ready", self._loaded.facts()])

    @property
    def pid(self) -> int:
        """See `TextWorker`."""
        return self._pid

    def _report(self, head: Sequence[Any], body: Buffer = b"") -> None:
        with contextlib.suppress(trio.ClosedResourceError):
            self._reports.send_nowait(_through_bytes(head, body))

    def dies(self) -> None:
        """End, with all that it was to do."""
        self.dead = True
        self._reports.close()

    def kill(self) -> None:
        """See `TextWorker`."""
        self.dies()

    async def receive(self) -> tuple[list[Any], Buffer]:
        """See `TextWorker`."""
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            raise TextWorkerDied("the text worker died") from None

    async def close(self) -> None:
        """See `TextWorker`."""
        self.dead = True

    def send(self, head: Sequence[Any], body: Buffer = b"") -> None:
        """See `TextWorker`."""
        if self.dead:
            return
        head, body = _through_bytes(head, body)
        if head[0] in ("open", "restore"):
            self.streams.add(head[1])
            self._waiting.append((head, body))
            self._on_order()
        elif head[0] == "tokens":
            failed: list[Any] = []
            pieces = self.streams.tokens(head[1], unpack_ids(body), failed)
            assert not failed, failed
            if pieces:
                self._report(["pieces", pieces])
            self._on_order()
        elif head[0] == "ping":
            self._report(["pong"])
        else:
            assert head[0] == "close", head
            self.streams.close(head[1])
            self._waiting = deque(each for each in self._waiting if each[0][1] != head[1])

    @property
    def busy(self) -> bool:
        """Whether `works` has something to do."""
        return not self.dead and bool(self._waiting or self.streams.replaying)

    def works(self) -> None:
        """Prepare one ask, or replay some ids."""
        if self._waiting:
            self._prepare(*self._waiting.popleft())
        elif self.streams.replaying:
            pieces, failed = self.streams.replay()
            assert not failed, failed
            if pieces:
                self._report(["pieces", pieces])

    def _prepare(self, head: Sequence[Any], body: Buffer) -> None:
        kind, number, packed, limits = head[:4]
        document, at = unpack_ask(packed, body)
        try:
            prepared = self._preparer.prepare(Ask.of(document), limits)
        except Refused as error:
            self.streams.close(number)
            self._report(["refused", number, error.status, str(error), error.param])
            return
        plan = json.loads(json.dumps(prepared.plan._asdict()))
        if kind == "restore":
            self.streams.restored(number, plan, head[4], body[at:])
            return
        self.streams.opened(number, plan)
        counts = [len(ids) for ids in prepared.prompts]
        ids = b"".join(pack_ids(ids) for ids in prepared.prompts)
        self._report(["opened", number, counts, dict(prepared.sampling), dict(prepared.more)], ids)


def _through_bytes(head: Sequence[Any], body: Buffer) -> tuple[list[Any], Buffer]:
    sent = b"".join(map(bytes, encode(head, body)))
    head_size, body_size = lengths(sent)
    return decode_head(sent[8 : 8 + head_size]), sent[8 + head_size : 8 + head_size + body_size]
