"""Pieces of one answer joined to fewer, where a client reads more slowly than they come."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from actors.values.generation.pieces import TextPiece, ToolDelta


def merged(pieces: Sequence[TextPiece]) -> list[TextPiece]:
    """Return one piece for each run of pieces that can be told as one.

    The pieces of a choice keep their order. Kinds are not mixed: a client may be told of text before calls of
    tools, and of reasoning before both.
    """
    joined: list[TextPiece] = []
    by_choice: dict[int, list[TextPiece]] = {}
    for piece in pieces:
        by_choice.setdefault(piece.choice, []).append(piece)
    for own in by_choice.values():
        joined += [_joined(list(run)) for _, run in groupby(own, _kind)]
    return joined


def _kind(piece: TextPiece) -> object:
    """Return what it has in common with the pieces that it may be joined with."""
    kinds = [name for name in ("tools", "reasoning", "text") if getattr(piece, name)]
    if len(kinds) > 1:
        return object()
    return kinds[0] if kinds else "text"


def _joined(run: Sequence[TextPiece]) -> TextPiece:
    if len(run) == 1:
        return run[0]
    return TextPiece(
        run[0].choice,
        text="".join(piece.text for piece in run),
        reasoning="".join(piece.reasoning for piece in run),
        tools=_calls([delta for piece in run for delta in piece.tools]),
        tokens=sum(piece.tokens for piece in run),
        reasoning_tokens=sum(piece.reasoning_tokens for piece in run),
        token_ids=[each for piece in run for each in piece.token_ids],
        chances=[each for piece in run for each in piece.chances],
        finish=run[-1].finish,
        reason=run[-1].reason,
        attempts=run[-1].attempts,
    )


def _calls(deltas: Sequence[ToolDelta]) -> list[ToolDelta]:
    calls: dict[int, ToolDelta] = {}
    for delta in deltas:
        known = calls.get(delta.call)
        if known is None:
            calls[delta.call] = delta
        else:
            calls[delta.call] = ToolDelta(
                delta.call,
                known.id or delta.id,
                known.name or delta.name,
                known.arguments + delta.arguments,
            )
    return list(calls.values())
