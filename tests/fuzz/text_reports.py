"""What a text worker says to the server: either it is broken, or clients are told values of the right types.

A text worker runs templates of models and reads prompts of clients, so it may be taken over. An input is a
series of frames: a byte that is left out, and head and body with a line end between them.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import trio

from actors.generation.policy.journal import Choice
from actors.generation.text_line import TextLine, TextUser
from actors.values.errors import TritiumError
from actors.values.generation.asking import TEXT, Ask
from actors.values.generation.pieces import TextPiece, TokenChances
from actors.wire.frames import FrameError
from actors.wire.text_frames import LENGTHS_BYTES, decode_head, encode, lengths, pack_ids
from tests.fuzz.mutation import damaged
from tests.fuzz.series import parts_of, series

_ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    1,
    2,
    -1,
    1.5,
    2**70,
    "",
    "x",
    [],
    {},
    [[]],
    [1],
    {"text": "x"},
    "stop",
)
_FIELDS = (
    "text",
    "reasoning",
    "tools",
    "tokens",
    "reasoning_tokens",
    "token_ids",
    "chances",
    "finish",
    "reason",
    "choice",
)
_GOOD: Mapping[str, Any] = {
    "text": "x",
    "reasoning": "y",
    "tools": [[0, "id", "f", "{"]],
    "tokens": 1,
    "reasoning_tokens": 1,
    "token_ids": [7],
    "chances": [[[7, "x", -0.5, 1, [120]], []]],
    "finish": "stop",
    "reason": "END",
    "choice": 0,
}


class _User(TextUser):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.ask = Ask(TEXT, prompts=["x"])
        self.opened_with = None
        self.unnamed: Mapping[int, Sequence[Any]] = {}
        self.prompts: Sequence[array[int]] = ()
        self.errors: list[TritiumError] = []
        self.pieces: list[TextPiece] = []

    def opened(
        self, prompts: Sequence[array[int]], sampling: Mapping[str, Any], more: Mapping[str, Any]
    ) -> None:
        self.prompts = prompts
        assert isinstance(sampling, dict)
        assert isinstance(more, dict)

    def refused(self, error: TritiumError) -> None:
        self.errors.append(error)

    def piece(self, piece: TextPiece) -> None:
        self.pieces.append(piece)

    def named(self, prompt: int, chances: Sequence[TokenChances | None]) -> None:
        assert all(each is None or type(each.chosen.text) is str for each in chances)

    def choices(self) -> Sequence[Choice]:
        return ()


class TextReports:
    """Gives frames to the line of a version."""

    name = "texts"
    prefix = "texts"

    def generate(self, chance: Random, corpus: list[bytes]) -> bytes:
        """Some reports, of odd values or damaged."""
        octets = series((0, _report(chance)) for _ in range(chance.randrange(1, 5)))
        return octets if chance.random() < 0.7 else damaged(octets, chance, corpus)

    def check(self, octets: bytes) -> str:
        """Look at what users were told."""
        return trio.run(self._check, octets)

    async def _check(self, octets: bytes) -> str:
        line = TextLine(dict, lambda: None, lambda: None)
        users = [_User(), _User()]
        numbers = [line.open(user) for user in users]
        assert numbers == [1, 2]
        outcome = "nothing"
        for _, part in parts_of(octets):
            head, _, body = part.partition(b"\n")
            try:
                await line.report(decode_head(head), body)
            except FrameError:
                return "a broken report"
            outcome = "told"
        for user in users:
            assert all(type(ids) is array for ids in user.prompts)
            assert len(user.errors) <= 1
            assert all(error.message is not None for error in user.errors)
            for piece in user.pieces:
                _check_piece(piece)
        return outcome


def _check_piece(piece: TextPiece) -> None:
    assert all(type(text) is str for text in (piece.text, piece.reasoning, piece.finish, piece.reason)), piece
    assert all(type(count) is int for count in (piece.choice, piece.tokens, piece.reasoning_tokens)), piece
    assert min(piece.tokens, piece.reasoning_tokens) >= 0, piece
    assert all(type(token) is int for token in piece.token_ids), piece
    for delta in piece.tools:
        assert all(type(text) is str for text in (delta.id, delta.name, delta.arguments)), piece
        assert type(delta.call) is int, piece
    for chances in piece.chances:
        for each in (chances.chosen, *chances.others):
            assert type(each.text) is str, piece


def _report(chance: Random) -> bytes:
    match chance.randrange(4):
        case 0:
            head: list[Any] = ["opened", chance.choice((1, 1, 2, 9)), [2], {}, {}]
        case 1:
            head = ["refused", chance.choice((1, 2)), chance.choice((400, 404, 501, 500)), "no", "prompt"]
        case _:
            head = ["pieces", [_piece(chance) for _ in range(chance.randrange(1, 4))]]
    body = pack_ids([1, 2]) if head[0] == "opened" else b""
    if chance.random() < 0.3:
        head[chance.randrange(len(head))] = chance.choice(_ODD)
    sent = b"".join(map(bytes, encode(head, body)))
    size, _ = lengths(sent)
    return sent[LENGTHS_BYTES : LENGTHS_BYTES + size] + b"\n" + body


def _piece(chance: Random) -> list[Any]:
    fields = {name: _GOOD[name] for name in chance.sample(_FIELDS[:-1], chance.randrange(1, 5))}
    if chance.random() < 0.4:
        fields[chance.choice(_FIELDS)] = chance.choice(_ODD)
    return [chance.choice((1, 2, 7)), chance.choice((0, 0, 1)), json.loads(json.dumps(fields))]
