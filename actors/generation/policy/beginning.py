"""What is known of a request's prompts until its client is told. Pure.

A prompt is told of when its own engine request has its first token, and before any piece of its choices. If
the engine computed chances of its tokens, those have no texts yet, and the text worker's come first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from actors.values.generation.pieces import Begun, TokenChances


class Beginnings:
    """See the module. The choices of prompt `p` are `p * n` to `p * n + n - 1`."""

    __slots__ = ("_begun", "_n", "_unnamed")

    def __init__(self, begun: Sequence[Begun] = (), n: int = 1) -> None:
        """`begun` is what the prompts' lengths and texts make of them."""
        self._begun = {each.prompt: each for each in begun}
        self._n = n
        self._unnamed: dict[int, Sequence[Any]] = {}

    @property
    def unnamed(self) -> Mapping[int, Sequence[Any]]:
        """The chances by prompt whose tokens have no texts yet."""
        return self._unnamed

    def computed(self, choice: int, chances: Sequence[Any]) -> int | None:
        """The engine has told chances with a choice. Return the prompt to name, unless that has begun."""
        prompt = choice // self._n
        if prompt not in self._begun or prompt in self._unnamed:
            return None
        self._unnamed[prompt] = chances
        return prompt

    def named(self, prompt: int, chances: Sequence[TokenChances | None]) -> Begun | None:
        """The tokens of a prompt have their texts. Return what is told of it now."""
        if self._unnamed.pop(prompt, None) is None or prompt not in self._begun:
            return None
        return self._begun.pop(prompt)._replace(prompt_chances=chances)

    def at_token(self, choice: int) -> Begun | None:
        """A choice has a token. Return what is told of its prompt now."""
        return None if choice // self._n in self._unnamed else self.at_piece(choice)

    def at_piece(self, choice: int) -> Begun | None:
        """A piece of a choice is to be told. Return what is told of its prompt before."""
        return self._begun.pop(choice // self._n, None) if self._begun else None
