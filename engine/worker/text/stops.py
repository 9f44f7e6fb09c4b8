"""Texts that end a generation, found in text as it comes. Pure.

The automaton of Aho and Corasick takes one step a character, whatever the stop texts are. Its state is the
longest end of the text that some stop text begins with; so many characters are held back.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Stops:
    """The automaton of some stop texts, which many choices may share."""

    __slots__ = ("depths", "fails", "founds", "steps")

    def __init__(self, texts: Iterable[str]) -> None:
        """Empty texts are left out."""
        self.steps: list[dict[str, int]] = [{}]
        self.depths = [0]
        self.founds = [""]  # the longest stop text that ends here
        self.fails = [0]
        for text in texts:
            if text:
                self._add(text)
        self._link()

    def _add(self, text: str) -> None:
        state = 0
        for letter in text:
            following = self.steps[state].get(letter)
            if following is None:
                following = len(self.steps)
                self.steps.append({})
                self.depths.append(self.depths[state] + 1)
                self.founds.append("")
                self.fails.append(0)
                self.steps[state][letter] = following
            state = following
        self.founds[state] = text

    def _link(self) -> None:
        waiting = deque(self.steps[0].values())
        while waiting:
            state = waiting.popleft()
            for letter, following in self.steps[state].items():
                self.fails[following] = self.after(self.fails[state], letter)
                waiting.append(following)
            if not self.founds[state]:
                self.founds[state] = self.founds[self.fails[state]]

    def after(self, state: int, letter: str) -> int:
        """Return the state behind one more character."""
        while True:
            following = self.steps[state].get(letter)
            if following is not None:
                return following
            if not state:
                return 0
            state = self.fails[state]


class StopSearch:
    """Looks for stop texts in one choice's text. What may be the beginning of one is held back."""

    __slots__ = ("_held", "_include", "_state", "_stops", "found")

    def __init__(self, stops: Stops, *, include: bool = False) -> None:
        """`include`: the stop text belongs to the choice's text."""
        self._stops = stops
        self._include = include
        self._state = 0
        self._held = ""
        self.found = ""  # the stop text that has come; nothing is to be fed after it

    def feed(self, text: str) -> str:
        """Return what of the text is certain now. Of stop texts that end at one place the longest counts."""
        stops, state = self._stops, self._state
        steps = stops.steps
        for place, letter in enumerate(text):
            following = steps[state].get(letter)
            state = stops.after(state, letter) if following is None else following
            if stops.founds[state]:
                self.found = stops.founds[state]
                whole = self._held + text[: place + 1]
                self._held = ""
                return whole if self._include else whole[: len(whole) - len(self.found)]
        self._state = state
        whole = self._held + text
        certain = len(whole) - stops.depths[state]
        self._held = whole[certain:]
        return whole[:certain]

    def end(self) -> str:
        """Return what was held back, as nothing more comes."""
        held, self._held = self._held, ""
        return held
