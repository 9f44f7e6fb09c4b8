"""Reasoning before the answer: `<think>`…`</think>`, told apart as text comes. Pure."""

from __future__ import annotations

from typing import Final

BEGIN: Final = "<think>"
END: Final = "</think>"

_MOST_HELD: Final = 64  # characters, spaces above all, of which it is not known if they are reasoning

OPEN: Final = "open"
"""The template has begun the reasoning: the text begins inside of it, as DeepSeek-R1's does."""

MAYBE: Final = "maybe"
"""The text has reasoning if it begins with `BEGIN`."""


def beginning_of(prompt: str) -> str:
    """Return how text behind a rendered prompt begins: `OPEN` or `MAYBE`."""
    return OPEN if prompt.rstrip().endswith(BEGIN) else MAYBE


def held_back(text: str, marker: str) -> int:
    """Return how many characters at the end of `text` may be the beginning of `marker`."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0


class Thinking:
    """Tells a choice's reasoning from its answer."""

    __slots__ = ("_held", "inside", "started")

    def __init__(self, beginning: str) -> None:
        self.inside = beginning == OPEN
        self.started = self.inside  # whether it is known if there is reasoning
        self._held = ""

    def feed(self, text: str) -> tuple[str, str]:
        """Return what is certain to be reasoning, and to be the answer."""
        if self.started and not self.inside:
            return "", text
        text = self._held + text
        self._held = ""
        if not self.started:
            stripped = text.lstrip()
            if len(text) < _MOST_HELD and len(stripped) < len(BEGIN) and BEGIN.startswith(stripped):
                self._held = text
                return "", ""
            self.started = True
            if not stripped.startswith(BEGIN):
                return "", text
            self.inside = True
            text = stripped[len(BEGIN) :]
        reasoning, marker, answer = text.partition(END)
        if marker:
            self.inside = False
            return reasoning, answer
        certain = len(text) - held_back(text, END)
        self._held = text[certain:]
        return text[:certain], ""

    def end(self) -> tuple[str, str]:
        """Return what was held back, as nothing more comes."""
        held, self._held = self._held, ""
        return (held, "") if self.inside else ("", held)
