"""The line from a version's generations to its text worker. Passive; it outlives the worker.

Tokens that come in one turn of the loop, of all streams, leave in one frame. A worker that dies is replaced,
and the line has the new one go on where the old one was: each stream's own journal says where that is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import trio

from actors.generation.policy.journal import Choice
from actors.generation.policy.resolving import CONTEXT
from actors.generation.texts import TextWorker
from actors.seams.bell import Bell
from actors.values.errors import ErrorCode, TritiumError, Unavailable
from actors.values.generation.asking import Ask
from actors.values.generation.context import CONTEXT_TEXT
from actors.values.generation.facts import BadAsk, TextDiffers
from actors.values.generation.pieces import TextPiece, TokenChance, TokenChances, ToolDelta
from actors.values.native import mypyc_attr
from actors.values.tensors import Buffer
from actors.wire.frames import FrameError
from actors.wire.text_frames import pack_ask, unpack_ids

MOST_DEATHS: Final = 5
"""Text workers that may die while a stream waits for one to say something of it: it may be what ends them."""
AT_ONCE: Final = 64
"""Pieces that are told, and streams that a new worker is given, in one turn of the loop."""

_REFUSALS: Final = {404: ErrorCode.NOT_FOUND, 501: ErrorCode.UNSUPPORTED}


class TextFacts:
    """What a text worker has said of its tokenizer."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.eos: Sequence[int] = facts.get("eos", ())
        self.vocabulary: int = facts.get("vocabulary", 0)
        self.template: bool = bool(facts.get("template"))
        self.defaults: Mapping[str, Any] = facts.get("sampling") or {}
        """Sampling that the model's folder recommends."""


@mypyc_attr(allow_interpreted_subclasses=True)
class TextUser(ABC):
    """One stream: a request whose text is made here."""

    __slots__ = ("ask", "deaths", "opened_with", "unnamed")

    ask: Ask
    opened_with: Sequence[int] | None
    """The lengths of its prompts, once it is opened."""
    deaths: int
    """Of workers, since one has last said something of it."""
    unnamed: Mapping[int, Sequence[Any]]
    """The chances, by prompt, for which `named` is still to come."""

    @abstractmethod
    def opened(
        self, prompts: Sequence[array[int]], sampling: Mapping[str, Any], more: Mapping[str, Any]
    ) -> None:
        """The prompts are token ids now. Never raises."""

    @abstractmethod
    def refused(self, error: TritiumError) -> None:
        """The ask can't be met. Never raises."""

    @abstractmethod
    def piece(self, piece: TextPiece) -> None:
        """More of the text of a choice has come. Never raises."""

    @abstractmethod
    def named(self, prompt: int, chances: Sequence[TokenChances | None]) -> None:
        """The tokens of a prompt have their texts. Never raises."""

    @abstractmethod
    def choices(self) -> Sequence[Choice]:
        """Return its choices that have not ended."""


class TextLine:
    """See the module."""

    def __init__(
        self,
        limits: Callable[[], Mapping[str, Any]],
        on_change: Callable[[], None],
        on_room: Callable[[], object],
    ) -> None:
        """`limits` are told with each ask. `on_change` is called when a worker has come or gone.

        `on_room` is called when a stream is opened, or ends before.
        """
        self.facts = TextFacts({})
        self.restored = 0  # streams that a new worker went on with
        self.failed = ""  # why no worker can be had; empty while one may come
        self._limits = limits
        self._on_change = on_change
        self._on_room = on_room
        self.heard = 0  # reports of workers so far
        self.opening = 0  # streams whose prompts are no ids yet
        self._worker: TextWorker | None = None
        self._users: dict[int, TextUser] = {}
        self._next = 1
        self._entries: list[tuple[int, int, int, str, Any]] = []
        self._ids: array[int] = array("i")
        self._left_over: set[int] = set()  # streams that the present worker has not been given yet
        self._flush_wanted = Bell()

    def __len__(self) -> int:
        return len(self._users)

    # -- for generations -------------------------------------------------------------------------------------

    def open(self, user: TextUser) -> int:
        """Begin a stream; return its number. Without a worker it waits for one."""
        number = self._next
        self._next += 1
        self._users[number] = user
        self.opening += 1
        self._open(number, user)
        return number

    def _forget(self, number: int) -> TextUser | None:
        user = self._users.pop(number, None)
        if user is not None and user.opened_with is None:
            self._opened()
        return user

    def _opened(self) -> None:
        self.opening -= 1
        self._on_room()

    def _open(self, number: int, user: TextUser) -> None:
        if self._worker is None:
            return
        try:
            packed, body = pack_ask(user.ask.document())
            self._worker.send(["open", number, packed, self._limits()], body)
        except RecursionError:
            self._forget(number)
            user.refused(BadAsk("The request nests too deeply"))

    def again(self, user: TextUser) -> int:
        """Begin the stream of `user` again, which was closed, where its journal is now; return its number."""
        new = self._next
        self._next += 1
        self._users[new] = user
        if self._worker is not None:
            self._restore(self._worker, new, user)
        return new

    def tokens(self, number: int, choice: int, ids: Sequence[int], finish: str, chances: Any) -> None:
        """Have text made of these ids; it comes later, as pieces."""
        if self._worker is None or number in self._left_over:  # the journal has them
            return
        if not self._entries:
            self._flush_wanted.ring()
        self._entries.append((number, choice, len(ids), finish, chances))
        self._ids.extend(ids)

    def chances(self, number: int, prompt: int, chances: Sequence[Any]) -> None:
        """Have the tokens of a prompt named; that comes before the pieces of tokens that come later."""
        if self._worker is not None:
            self._worker.send(["chances", number, prompt, chances])

    def close(self, number: int) -> None:
        """End a stream. Idempotent."""
        self._left_over.discard(number)
        if self._forget(number) is not None and self._worker is not None:
            self._worker.send(["close", number])

    # -- for the actor ---------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Send what has come, once a turn of the loop, for ever."""
        heard = 0
        while True:
            heard = await self._flush_wanted.wait(heard)
            self.flush_nowait()

    def flush_nowait(self) -> None:
        """Send what has come."""
        entries, ids = self._entries, self._ids
        if entries and self._worker is not None:
            self._entries, self._ids = [], array("i")
            self._worker.send(["tokens", entries], ids.tobytes())

    async def joined(self, worker: TextWorker, facts: Mapping[str, Any]) -> None:
        """A worker is ready: it takes over all streams, some in each turn of the loop."""
        self.facts = TextFacts(facts)
        self._worker = worker
        self.failed = ""
        self._entries, self._ids = [], array("i")
        self._left_over = set(self._users)
        self._on_change()
        for place, number in enumerate(list(self._users), 1):
            if number in self._left_over:
                self._left_over.discard(number)
                self._take_over(worker, number, self._users[number])
            if place % AT_ONCE == 0:
                await trio.lowlevel.checkpoint()

    def _take_over(self, worker: TextWorker, number: int, user: TextUser) -> None:
        if user.opened_with is None:
            self._open(number, user)
        else:
            self._restore(worker, number, user)
            self.restored += 1

    def _restore(self, worker: TextWorker, number: int, user: TextUser) -> None:
        packed, texts = pack_ask(user.ask.document())
        choices = user.choices()
        ids = b"".join(choice.ids.tobytes() for choice in choices)
        entries = [choice.restoring for choice in choices]
        for prompt, chances in user.unnamed.items():
            worker.send(["chances", number, prompt, chances])
        worker.send(["restore", number, packed, self._limits(), entries], texts + ids)

    def left(self) -> None:
        """The worker has gone: streams wait for the next one."""
        self._worker = None
        self._entries, self._ids = [], array("i")
        self._left_over.clear()
        for number, user in list(self._users.items()):
            user.deaths += 1
            if user.deaths >= MOST_DEATHS:
                self._forget(number)
                user.refused(Unavailable(f"the text worker has died {user.deaths} times at this request"))
        self._on_change()

    def never_came(self, why: str) -> None:
        """A worker has ended before it was ready: streams wait for the next one."""
        self.failed = why
        self._on_change()

    def give_up(self, why: str) -> None:
        """No worker can be had soon: refuse all streams."""
        self.failed = why
        for number, user in list(self._users.items()):
            self._forget(number)
            user.refused(Unavailable(f"the model's tokenizer can't be had: {why}"))
        self._on_change()

    def ping(self) -> None:
        """Ask the worker for a sign of life, which is a report like any other."""
        if self._worker is not None:
            self._worker.send(["ping"])

    @property
    def pids(self) -> Sequence[int]:
        """The process of its worker, if there is one."""
        return () if self._worker is None else (self._worker.pid,)

    @property
    def attended(self) -> bool:
        """Whether there is a worker."""
        return self._worker is not None

    async def report(self, head: Sequence[Any], body: Buffer) -> None:
        """Handle a worker's report. Many pieces are told over several turns of the loop.

        Raises FrameError for what is none; what a stream makes of it never raises.
        """
        self.heard += 1
        try:
            if head[0] == "pieces":
                await self._on_pieces(head[1])
            elif head[0] == "opened":
                self._on_opened(head, body)
            elif head[0] == "refused":
                self._on_refused(head)
            elif head[0] == "chances":
                await self._on_chances(head)
            elif head[0] == "differs":
                self._on_differs(head)
            elif head[0] != "pong":
                raise ValueError("its kind is none")
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise FrameError(f"a text worker's report {head[0]!r} is broken: {error!r}") from error

    def _on_opened(self, head: Sequence[Any], body: Buffer) -> None:
        _, number, counts, sampling, more = head
        user = self._users.get(number)
        if user is None or user.opened_with is not None:
            return
        ids = unpack_ids(body)
        if not isinstance(sampling, dict) or not isinstance(more, dict):
            raise FrameError("what an ask has become is no object")
        if sum(counts) != len(ids) or any(count < 0 for count in counts):
            raise FrameError(f"{len(ids)} ids of prompts of {counts}")
        prompts, at = [ids] if len(counts) == 1 else [], 0
        for count in counts if len(counts) > 1 else ():
            prompts.append(ids[at : at + count])
            at += count
        user.opened_with = counts
        self._opened()
        user.deaths = 0
        user.opened(prompts, sampling, more)

    def _on_refused(self, head: Sequence[Any]) -> None:
        _, number, status, message, param = head
        user = self._forget(number)
        if user is not None:
            user.refused(_refusal(status, str(message), str(param or "")))

    def _on_differs(self, head: Sequence[Any]) -> None:
        _, number, choice = head
        user = self._forget(number)
        if user is not None:
            user.refused(
                TextDiffers(
                    f"the text worker died, and the next one makes another text of choice {choice} than was"
                    " sent: the tokenizer's files have changed meanwhile"
                )
            )

    async def _on_chances(self, head: Sequence[Any]) -> None:
        _, number, prompt, told = head
        chances: list[TokenChances | None] = []
        for place, each in enumerate(told, 1):
            chances.append(None if each is None else _chances(each))
            if place % AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        user = self._users.get(number)
        if user is not None:
            user.deaths = 0
            user.named(prompt, chances)

    async def _on_pieces(self, pieces: Sequence[Any]) -> None:
        for place, (number, choice, fields) in enumerate(pieces, 1):
            user = self._users.get(number)
            if user is not None:
                user.deaths = 0
                user.piece(_piece(choice, fields))
            if place % AT_ONCE == 0:
                await trio.lowlevel.checkpoint()


def _refusal(status: int, message: str, param: str) -> TritiumError:
    if status == 400:
        return BadAsk(message, param=param, reason=CONTEXT if CONTEXT_TEXT in message else "")
    return TritiumError.of(_REFUSALS.get(status, ErrorCode.INTERNAL), message)


def _piece(choice: int, fields: Mapping[str, Any]) -> TextPiece:
    """Return a piece of its JSON values. Raises KeyError, TypeError and ValueError."""
    if type(choice) is not int:
        raise TypeError(f"a choice is a number, not {choice!r:.60}")
    for name, value in fields.items():
        if type(value) is not _TYPES[name]:
            raise TypeError(f"'{name}' of a piece is {value!r:.60}")
    if fields.get("tokens", 0) < 0 or fields.get("reasoning_tokens", 0) < 0:
        raise ValueError("a piece of fewer than no tokens")
    if "token_ids" in fields and set(map(type, fields["token_ids"])) - {int}:
        raise TypeError("a token id is a number")
    tools, chances = fields.get("tools"), fields.get("chances")
    if tools is None and chances is None:
        return TextPiece(choice, **fields)
    more = dict(fields)
    if tools is not None:
        more["tools"] = [_delta(*delta) for delta in tools]
    if chances is not None:
        more["chances"] = [_chances(each) for each in chances]
    return TextPiece(choice, **more)


def _chances(values: Sequence[Any]) -> TokenChances:
    chosen, others = values
    return TokenChances(_chance(chosen), [_chance(other) for other in others])


_TYPES: Final[Mapping[str, type]] = {
    **dict.fromkeys(("text", "reasoning", "finish", "reason"), str),
    **dict.fromkeys(("tokens", "reasoning_tokens"), int),
    **dict.fromkeys(("tools", "token_ids", "chances"), list),
}


def _delta(call: Any, *texts: Any) -> ToolDelta:
    """Return more of a call. Raises TypeError."""
    if type(call) is not int or set(map(type, texts)) != {str}:
        raise TypeError("a call is a number, and the rest are texts")
    return ToolDelta(call, *texts)


def _chance(values: Sequence[Any]) -> TokenChance:
    """Return a chance: id, text, logprob, rank, and its bytes as a list of numbers."""
    token, text, logprob, rank, data = values
    if type(token) is not int or type(text) is not str or type(rank) is not int:
        raise TypeError(f"{values!r:.60} is no chance of a token")
    return TokenChance(token, text, float(logprob), rank, bytes(data))
