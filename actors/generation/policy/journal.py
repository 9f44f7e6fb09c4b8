"""What has become of a request to a language model: all that another engine, or another text worker, needs.

One journal a request, with an entry for each of its choices. An id costs four bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from actors.values.generation.pieces import TextPiece, TokenUsage
from actors.wire.delivered import Delivered

Chance = Sequence[Any]
"""A token's id, its logarithmic probability and its rank."""


class Prompt:
    """A prompt as the engine receives it: after template, special tokens and truncation."""

    __slots__ = ("cached", "hashes", "ids")

    def __init__(self, ids: array[int]) -> None:
        self.ids = ids
        self.cached = 0  # of the ids: the engine had computed them before
        self.hashes: list[int] | None = None  # of its blocks, once they were made


class Choice:
    """One choice: what the engine has generated for it, and what its client has been told of that."""

    __slots__ = (
        "attempts",
        "begun_at",
        "chances",
        "closed",
        "deaths",
        "deaths_in_row",
        "delivered",
        "finish",
        "ids",
        "index",
        "prompt",
        "reasoning",
        "sampling",
        "told",
        "unexplained_in_row",
    )

    def __init__(self, index: int, prompt: Prompt, sampling: Mapping[str, Any]) -> None:
        """`sampling` is what the engine is told, with every default resolved."""
        self.index = index
        self.prompt = prompt
        self.sampling = sampling
        self.ids: array[int] = array("i")
        self.told = 0  # of the ids: pieces of them have come
        self.reasoning = 0  # of those: they were no answer yet
        self.delivered = Delivered()  # the text of these pieces
        # Of the ids that were not told, if they were asked for: for each the chosen token, then others.
        self.chances: list[Sequence[Chance]] | None = None
        self.finish = ""  # the engine's; empty while it goes on
        self.closed = False  # its last piece has come
        self.attempts = 1  # engines that were asked for it, one after the other
        self.begun_at = 0  # ids that there were when the present one was asked
        # Deaths of engines: see `actors.generation.policy.suspects`.
        self.deaths = self.deaths_in_row = self.unexplained_in_row = 0

    def generated(self, ids: Sequence[int], chances: Sequence[Sequence[Chance]] | None, finish: str) -> None:
        """The engine has gone on."""
        self.ids.extend(ids)
        if chances is not None:
            self.chances = [*(self.chances or ()), *chances]
        self.finish = finish

    def tell(self, piece: TextPiece) -> None:
        """A piece of it goes to the client."""
        self.told += piece.tokens
        self.reasoning += piece.reasoning_tokens
        self.delivered.take(piece.text, piece.reasoning, piece.tools)
        self.closed = bool(piece.finish)
        if self.chances is not None:
            del self.chances[: piece.tokens]

    @property
    def steps(self) -> int:
        """Tokens that the present engine has given."""
        return len(self.ids) - self.begun_at

    def begin_again(self) -> None:
        """Another engine is asked from the beginning. Nothing was told to the client."""
        del self.ids[:]
        self.told = self.reasoning = 0
        self.delivered = Delivered()
        self.chances = None
        self.go_on()

    def go_on(self) -> None:
        """Another engine is asked to go on behind all ids."""
        self.finish = ""
        self.attempts += 1
        self.begun_at = len(self.ids)

    @property
    def restoring(self) -> tuple[int, int, int, list[int], str, Sequence[Any] | None]:
        """Its entry in a `restore` order (`actors.wire.text_frames`)."""
        return self.index, len(self.ids), self.told, self.delivered.told, self.finish, self.chances


class Journal:
    """The journal of one request."""

    __slots__ = ("adapter", "choices", "created", "deadline", "engine", "id", "prompts")

    def __init__(
        self,
        *,
        id: str,  # noqa: A002  # the protocol's word
        created: int,
        prompts: Sequence[Prompt],
        samplings: Sequence[Sequence[Mapping[str, Any]]],
        adapter: str = "",
        engine: str = "",
        deadline: float,
    ) -> None:
        """Each prompt has a choice for each of its `samplings`. `created` is in seconds since the epoch.

        `engine` identifies the model: no other one may go on. An adapter is identified in `samplings`.
        """
        self.id = id
        self.created = created
        self.prompts = prompts
        self.adapter = adapter
        self.engine = engine
        self.deadline = deadline
        pairs = (
            (prompt, sampling) for prompt, own in zip(prompts, samplings, strict=True) for sampling in own
        )
        self.choices = [Choice(index, *pair) for index, pair in enumerate(pairs)]

    @property
    def cached(self) -> int:
        """The prompts' tokens that the engine had computed before."""
        return sum(prompt.cached for prompt in self.prompts)

    @property
    def usage(self) -> TokenUsage:
        """The tokens so far: those of choices that were told."""
        return TokenUsage(
            prompt=sum(len(prompt.ids) for prompt in self.prompts),
            completion=sum(choice.told for choice in self.choices),
            cached=self.cached,
            reasoning=sum(choice.reasoning for choice in self.choices),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all ids."""
        return sum(4 * len(ids) for ids in self._all_ids())

    def _all_ids(self) -> Iterator[array[int]]:
        for prompt in self.prompts:
            yield prompt.ids
        for choice in self.choices:
            yield choice.ids
