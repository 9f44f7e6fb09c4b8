"""The streams of a text worker: what is known of each request, from its order to its last piece. Pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from actors.wire.delivered import Delivered
from actors.wire.text_frames import unpack_ids
from engine.worker.text.speaking import Manner, Speaker, plan_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from actors.wire.frames import Buffer
    from engine.worker.text.vocabulary import Vocabulary

REPLAYED: Final = 1024
"""Ids that are replayed at a time, between two looks at other streams."""

Entry = tuple[int, Any, str, Any]  # choice, ids, the engine's finish, chances
Told = tuple[int, int, dict[str, Any]]  # stream, choice, the fields of a piece
Failed = tuple[int, Exception]  # a stream, and why nothing more comes of it


class Differs(Exception):
    """The text of a restored choice is not what was delivered of it."""

    def __init__(self, choice: int) -> None:
        super().__init__(choice)
        self.choice = choice


class _Stream:
    """One request. It is being prepared, or replayed, until it has a manner and nothing waits."""

    __slots__ = ("manner", "replaying", "speakers", "waiting")

    def __init__(self) -> None:
        self.manner: Manner | None = None
        self.speakers: dict[int, Speaker] = {}
        self.waiting: deque[Entry] = deque()  # what comes before it can be told
        self.replaying = False

    def speaker(self, choice: int) -> Speaker:
        """Return what tells of a choice."""
        found = self.speakers.get(choice)
        if found is None:
            assert self.manner is not None
            found = self.speakers[choice] = Speaker(self.manner, choice)
        return found


class Streams:
    """All streams of one worker. What one of them makes fail is its own."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._streams: dict[int, _Stream] = {}
        self._replays: deque[tuple[int, Iterator[list[Told]]]] = deque()

    def __contains__(self, number: object) -> bool:
        return number in self._streams

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, number: int) -> None:
        """A request has come; it is being prepared."""
        self._streams[number] = _Stream()

    def close(self, number: int) -> None:
        """Forget a stream. Idempotent."""
        self._streams.pop(number, None)

    def opened(self, number: int, plan: Mapping[str, Any]) -> None:
        """A request is prepared."""
        stream = self._streams.get(number)
        if stream is not None:
            stream.manner = Manner(plan_of(plan), self._vocabulary)

    def restored(
        self, number: int, plan: Mapping[str, Any], entries: Sequence[Sequence[Any]], body: Buffer
    ) -> None:
        """A request is prepared whose choices have ids: see "restore" in `actors.wire.text_frames`."""
        self.opened(number, plan)
        stream = self._streams.get(number)
        if stream is not None:
            stream.replaying = True
            self._replays.append((number, self._replayed(number, stream, entries, unpack_ids(body))))

    def _replayed(
        self, number: int, stream: _Stream, entries: Sequence[Sequence[Any]], ids: Sequence[int]
    ) -> Iterator[list[Told]]:
        at = 0
        for choice, count, told, delivered, finish, chances in entries:
            own, at = ids[at : at + count], at + count
            speaker, made = stream.speaker(choice), Delivered()
            for start in range(0, told, REPLAYED):
                speaker.replay(own[start : min(start + REPLAYED, told)], made)
                yield []
            if made.told != delivered:
                raise Differs(choice)
            if told < count or finish:
                stream.waiting.appendleft((choice, own[told:], finish, chances))
        while stream.waiting:
            yield self._fed(number, stream, *stream.waiting.popleft())
        stream.replaying = False

    @property
    def replaying(self) -> bool:
        """Whether `replay` has work."""
        return bool(self._replays)

    def replay(self) -> tuple[list[Told], list[Failed]]:
        """Do some of that work; return pieces, and which stream has failed at what, if one has."""
        number, steps = self._replays.popleft()
        if number not in self._streams:
            return [], []
        try:
            told = next(steps, None)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is this stream's
            self.close(number)
            return [], [(number, error)]
        if told is not None:
            self._replays.append((number, steps))
        return told or [], []

    def tokens(
        self, entries: Sequence[Sequence[Any]], ids: Sequence[int], failed: list[Failed]
    ) -> list[Told]:
        """Return the pieces that an order's ids complete. Adds to `failed` what failed, and at what."""
        pieces: list[Told] = []
        at = 0
        for number, choice, count, finish, chances in entries:
            own, at = ids[at : at + count], at + count
            stream = self._streams.get(number)
            if stream is None:
                continue
            if stream.manner is None or stream.replaying:
                stream.waiting.append((choice, own, finish, chances))
                continue
            try:
                pieces += self._fed(number, stream, choice, own, finish, chances)
            except Exception as error:  # noqa: BLE001  # whatever it is, it is this stream's
                self.close(number)
                failed.append((number, error))
        return pieces

    @staticmethod
    def _fed(
        number: int, stream: _Stream, choice: int, ids: Sequence[int], finish: str, chances: Any
    ) -> list[Told]:
        piece = stream.speaker(choice).feed(ids, finish, chances)
        return [] if piece is None else [(number, choice, piece)]
