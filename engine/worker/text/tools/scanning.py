"""JSON of tool calls, read as it comes. Pure.

Values are told on verbatim, so what has been told is a valid beginning if the model's JSON is. Brackets and
strings are matched; what else is wrong in a value is for its reader.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

    from engine.worker.text.tools.told import Told

_WHITE: Final = " \t\r\n"
_IN_STRING: Final = re.compile(r'[^"\\]*')
_OUTSIDE: Final = re.compile(r'[^"{}\[\],]*')
_CLOSERS: Final = {"{": "}", "[": "]"}
_LARGEST_HEAD: Final = 4096
"""Characters of a call before its arguments. Longer ones are of no call."""

_LARGEST_HELD: Final = 64 * 1024
"""Characters of a value that is held until it is whole, as is one that comes before the name."""

_DEEPEST: Final = 256

MORE: Final = -1
BROKEN: Final = -2


class ValueScan:
    """Finds the end of one JSON value."""

    __slots__ = ("_closers", "_escaped", "_in_string", "broken_at")

    def __init__(self) -> None:
        self.broken_at = 0  # the place of what is wrong
        self._closers: list[str] = []
        self._in_string = False
        self._escaped = False

    def feed(self, text: str, at: int) -> int:
        """Return where the value ends (the first place behind it), `MORE` or `BROKEN`. It begins at `at`."""
        size = len(text)
        while at < size:
            if self._in_string:
                at = self._string(text, at)
                if at < 0 or not self._closers:
                    return at
                continue
            found = _OUTSIDE.match(text, at)
            assert found is not None
            at = found.end()
            if at == size:
                return MORE
            letter = text[at]
            if not self._closers and letter in ",}]":  # the end of a number or a word
                return at
            if not self._step(letter):
                self.broken_at = at
                return BROKEN
            at += 1
            if not self._closers and not self._in_string:
                return at
        return MORE

    def _string(self, text: str, at: int) -> int:
        """Go on in a string; return the place behind its end, or `MORE`."""
        if self._escaped:
            self._escaped = False
            at += 1
        while True:
            found = _IN_STRING.match(text, at)
            assert found is not None
            at = found.end()
            if at >= len(text):
                return MORE
            if text[at] == '"':
                self._in_string = False
                return at + 1
            if at + 1 == len(text):
                self._escaped = True
                return MORE
            at += 2

    def _step(self, letter: str) -> bool:
        if letter == '"':
            self._in_string = True
        elif letter in _CLOSERS:
            if len(self._closers) == _DEEPEST:
                return False
            self._closers.append(_CLOSERS[letter])
        elif letter != ",":
            return bool(self._closers) and self._closers.pop() == letter
        return True


class CallScan:
    """Reads one call: an object with `name`, and with `arguments` or `parameters`.

    The call is told of when its name is known and its arguments begin. Until then `raw` is its text, so that
    it can become content if it is no call.
    """

    __slots__ = (
        "_at",
        "_expects",
        "_key",
        "_mark",
        "_names",
        "_value",
        "_waiting",
        "broken",
        "done",
        "name",
        "raw",
        "told",
    )

    def __init__(self, *, names: Collection[str] = ()) -> None:
        """With `names`, only calls of these are calls."""
        self._names = names
        self._expects = "{"  # one of `{`, `key`, `:`, `value`, `in`, `,`
        self._key = ""
        self._mark = 0  # where the key, or the value, begins
        self._at = 0
        self._value = ValueScan()
        self._waiting = ""  # arguments whose call has no name yet
        self.raw = ""
        self.name = ""
        self.told = False
        self.done = False
        self.broken = False

    def feed(self, text: str, told: Told) -> str:
        """Read on; return what is behind the call, or what broke it and follows.

        Where a call breaks does not depend on how its text is cut, so what follows can be another one.
        """
        self.raw += text
        while self._at < len(self.raw) and not self.done and not self.broken:
            before = self._at, self._expects
            self._step(told)
            if (self._at, self._expects) == before:
                break
        if not (self.told or self.done) and self._at > _LARGEST_HEAD and self._expects != "in":
            self.broken = True
        if self.broken and self.told:
            return self.raw[self._mark :]
        if self.done or self.broken:
            rest = self.raw[self._at :]
            self.raw = self.raw[: self._at]
            return rest
        if self.told and self._expects != "in":
            self._forget()
        return ""

    def _forget(self) -> None:
        """Drop what has been read, once it can't become content any more."""
        start = self._mark if self._expects in ("key", "in") else self._at
        self.raw = self.raw[start:]
        self._mark -= start
        self._at -= start
        if self._expects not in ("key", "in"):
            self._mark = 0

    def _step(self, told: Told) -> None:
        if self._expects == "in":
            self._go_on(told)
            return
        if self._expects == "key":
            self._read_key()
            return
        while self._at < len(self.raw) and self.raw[self._at] in _WHITE:
            self._at += 1
        if self._at == len(self.raw):
            return
        letter = self.raw[self._at]
        if self._expects == "value":
            self._begin_value(letter, told)
        elif letter == "}" and self._expects in ('"', ","):
            self._at += 1
            self._end(told)
        elif letter != self._expects and not (self._expects == "," and letter == ","):
            self._break()
        else:
            self._at += 1
            if letter == '"':
                self._mark = self._at - 1
            self._expects = {"{": '"', '"': "key", ":": "value", ",": '"'}[letter]

    def _break(self) -> None:
        self.broken = True
        if self.told:
            self._mark = self._at

    def _read_key(self) -> None:
        end = self.raw.find('"', self._at)
        if end < 0:
            self._at = len(self.raw)
            return
        self._key = self.raw[self._mark + 1 : end]
        self._at = end + 1
        self._expects = ":"

    def _begin_value(self, letter: str, told: Told) -> None:
        self._mark = self._at
        self._value = ValueScan()
        self._expects = "in"
        if self._of_arguments and letter == "{" and self.name and not self.told:
            self._begin(told)

    @property
    def _of_arguments(self) -> bool:
        return self._key in ("arguments", "parameters") and not self._waiting

    def _begin(self, told: Told) -> bool:
        """Tell of the call; return False if it is none."""
        if self._names and self.name not in self._names:
            self._break()
            return False
        self.told = True
        told.call(self.name)
        return True

    def _go_on(self, told: Told) -> None:
        """Read more of a value. Arguments of a call that is told of are told on; `_mark` is what was told."""
        streamed = self.told and self._of_arguments and not self.broken
        end = self._value.feed(self.raw, self._at)
        stop = {MORE: len(self.raw), BROKEN: self._value.broken_at}.get(end, end)
        if streamed:
            told.arguments(self.raw[self._mark : stop])
            self.raw = self.raw[stop:]
            self._at = self._mark = 0
        else:
            self._at = stop
        if end == BROKEN:
            self._break()
        elif end == MORE:
            if not streamed and self._at - self._mark > _LARGEST_HELD:
                self._break()
        else:
            if not streamed:
                self._take_value(self.raw[self._mark : end], told)
            else:
                self._waiting = "told"
            self._expects = ","

    def _take_value(self, value: str, told: Told) -> None:
        """Take a value that has come whole."""
        if self._key == "name" and not self.told:
            name = _parsed(value)
            if not isinstance(name, str) or not name:
                self._break()
                return
            self.name = name
        elif self._of_arguments:
            arguments = _as_arguments(value)
            if arguments is None:
                self._break()
                return
            self._waiting = arguments
        if self.name and self._waiting and not self.told and self._begin(told):
            told.arguments(self._waiting)

    def _end(self, told: Told) -> None:
        if not self.name:
            self._break()
            return
        if not self.told and not self._begin(told):
            return
        if not self._waiting:
            told.arguments("{}")
        self.done = True


def _parsed(text: str) -> object:
    try:
        parsed: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return parsed


def _as_arguments(value: str) -> str | None:
    """Return arguments that came whole: an object, or one written in a string; None if it is neither."""
    parsed = _parsed(value)
    if isinstance(parsed, dict):
        return value
    if isinstance(parsed, str):
        return parsed if isinstance(_parsed(parsed), dict) else None
    return "{}" if value.strip() == "null" else None
