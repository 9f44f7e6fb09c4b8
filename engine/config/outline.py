"""Where everything stands in a `config.pbtxt`, and every token in it that the schema has no place for.

protobuf's own parser decides what a file means, but it stops at the first mistake and forgets positions. This
walk over the same tokens, guided by the schema, goes on: it notes a mistake, steps over the field that has
it, and continues.
It never fails. If brackets don't match it stops, and says so, because what follows can't be told apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final, NoReturn

from google.protobuf import text_encoding, text_format
from google.protobuf.descriptor import FieldDescriptor

from engine.config.spans import Fault, Outline, Place, Spelling, Spoilt
from engine.config.unfilled import REMEDY, unfilled
from engine.config.wording import (
    QUOTES,
    TYPE_BYTES,
    entry_hint,
    field_suggestion,
    is_entry,
    is_map,
    remedy,
    scalar_value,
    shown,
    takes,
)
from protocols.kserve.proto.model_config_pb2 import ModelConfig

_IDENTIFIER: Final = re.compile(r"[A-Za-z_]\w*\Z")
_CLOSING: Final = {"{": "}", "<": ">", "[": "]"}
_BRACKETS: Final = re.compile(r"[{}<>\[\]]")
# More do not help the reader.
_MOST_FAULTS: Final = 100


def outline(text: str) -> Outline:
    """Walk `text`, a configuration in protobuf text format."""
    result = Outline()
    try:
        _Walk(text, result).message(ModelConfig.DESCRIPTOR, "", opened=(0, 0), end="")
    except _Lost:
        result.lost = True
    result.faults.sort(key=lambda fault: (fault.line, fault.column))
    return result


class _Lost(Exception):
    """Brackets don't match from here on."""


@dataclass(slots=True)
class _Given:
    """What one message holds so far."""

    counts: dict[str, int] = field(default_factory=dict)
    # Singular fields that may not come again: their line.
    present: dict[str, int] = field(default_factory=dict)
    chosen: dict[str, str] = field(default_factory=dict)  # by oneof


class _Tokens:
    """protobuf's tokens, each with its place, and the one behind it.

    The tokenizer tells without effort only where the token before its own stands, so it is kept one ahead.
    """

    def __init__(self, text: str) -> None:
        lines = text.split("\n")
        self._ahead: Any = text_format.Tokenizer(lines)
        self._end = len(lines), len(lines[-1]) + 1
        self.token = ""
        self.place: Place = (1, 1)
        self.advance()

    @property
    def behind(self) -> str:
        """The token after this one; empty at the end of the text."""
        return str(self._ahead.token)

    def advance(self) -> None:
        """Go to the next token; at the end of the text it is empty."""
        self.token = self._ahead.token
        self.place = self._end
        if self.token:
            self._ahead.NextToken()
            passed = self._ahead.ParseErrorPreviousToken("")
            self.place = passed.GetLine(), passed.GetColumn()

    def accept(self, token: str) -> bool:
        """Step over `token`, if it comes now."""
        if self.token != token:
            return False
        self.advance()
        return True


class _Walk:
    """One pass over the tokens."""

    def __init__(self, text: str, result: Outline) -> None:
        self._tokens = _Tokens(text)
        self._result = result
        self._map_keys: dict[str, str] = {}  # by the entry's indexed key, while inside it
        self._entries: set[str] = set()
        self._latest = ""  # key of the last field
        self._unspanned = False  # a fault was noted, and the field around it is not over

    # -- messages and fields -------------------------------------------------------------------------------

    def message(self, descriptor: Any, prefix: str, *, opened: Place, end: str) -> None:
        """Walk fields up to the token `end`, which is left to the caller."""
        tokens = self._tokens
        given = _Given()
        while tokens.token != end:
            if not tokens.token:
                bracket = next(opening for opening, closing in _CLOSING.items() if closing == end)
                self._lose(prefix[:-1], f"'{bracket}' is never closed", f"add '{end}'", place=opened)
            if _IDENTIFIER.match(tokens.token):
                self._field(descriptor, prefix, given)
            else:
                self._no_field(descriptor, prefix, end)

    def _no_field(self, descriptor: Any, prefix: str, end: str) -> None:
        """Something stands where a field's name should."""
        tokens = self._tokens
        start, token, outer = tokens.place, tokens.token, self._unspanned
        if token in _CLOSING.values():
            if end:
                self._lose(prefix[:-1], f"'{token}' does not close what is open here", f"'{end}' does")
            self._note("", f"'{token}' closes nothing", "remove it")
            tokens.advance()
        elif token in (",", ";"):
            self._note(prefix[:-1], f"'{token}' follows nothing", "remove it")
            tokens.advance()
        elif word := self._unfilled():
            self._note(prefix[:-1], unfilled(word), REMEDY, place=start)
        else:
            hint = entry_hint(descriptor, token) if is_entry(descriptor) else "a field is written name: value"
            self._note(prefix[:-1], f"a field's name is expected, not {shown(token)}", hint)
            if is_entry(descriptor):  # the whole entry is written in another way
                self._skip_to(end)
                return
            if token in _CLOSING:
                self._skip_balanced()
            else:
                self._skip_scalar()
            if tokens.token == ":":
                self._skip_value()
        self._result.spoilt.append(Spoilt(self._latest, start, tokens.place))
        self._unspanned = outer

    def _field(self, descriptor: Any, prefix: str, given: _Given) -> None:
        tokens = self._tokens
        outer, self._unspanned = self._unspanned, False
        start, name = self._tokens.place, tokens.token
        declared = descriptor.fields_by_name.get(name)
        tokens.advance()
        key = prefix + name
        if declared is None:
            self._unknown_field(descriptor, prefix, name, start)
            self._skip_value()
        else:
            key = self._known_field(declared, prefix, start, given)
        self._latest = key
        if not tokens.accept(","):
            tokens.accept(";")
        if self._unspanned:
            self._result.spoilt.append(Spoilt(key, start, self._tokens.place))
        self._unspanned = outer

    def _known_field(self, declared: Any, prefix: str, start: Place, given: _Given) -> str:
        tokens = self._tokens
        name = declared.name
        key = _key_of(declared, prefix + name, given.counts.get(name, 0))
        self._once(declared, key, start, given)
        colon = tokens.accept(":")
        if not colon and declared.message_type is None and tokens.token not in ("{", "<"):
            self._note(
                key,
                f"':' is missing after '{name}'",
                f"write {name}: {'[ … ]' if tokens.token == '[' else shown(tokens.token)}",
            )
        read = self._scalar if declared.message_type is None else self._message_value
        place, is_set = start, False
        for at in self._values(declared, key):
            if at > 0:  # the first element of a list is where the field is
                place = self._tokens.place
            element = _key_of(declared, prefix + name, given.counts.get(name, 0))
            given.counts[name] = given.counts.get(name, 0) + 1
            self._result.records.append((element, *place))
            is_set = read(declared, element)
        if not declared.is_repeated and (is_set or declared.has_presence):
            given.present.setdefault(name, start[0])
            if declared.containing_oneof is not None:
                given.chosen.setdefault(declared.containing_oneof.name, name)
        return key

    def _once(self, declared: Any, key: str, start: Place, given: _Given) -> None:
        """Note a singular field that has a value already, and a second member of a oneof."""
        name, oneof = declared.name, declared.containing_oneof
        other = given.chosen.get(oneof.name, name) if oneof is not None else name
        if other != name:
            line = given.present[other]
            self._note(
                key,
                f"'{name}' excludes '{other}', which is given on line {line}",
                "keep one of them",
                place=start,
            )
        elif name in given.present:
            self._note(
                key,
                f"'{name}' takes one value, and has one on line {given.present[name]}",
                "keep one of them",
                place=start,
            )

    def _values(self, declared: Any, key: str) -> Iterator[int]:
        """Stop at each value, giving its position: one value, or those of a `[ … ]` list."""
        tokens = self._tokens
        opened = self._tokens.place
        if tokens.token != "[":
            yield 0
            return
        if not declared.is_repeated:
            self._wrong(declared, key, "a list", opened)
            self._skip_balanced()
            return
        tokens.advance()
        if tokens.accept("]"):
            return
        for position in count():
            yield position
            if tokens.accept("]"):
                return
            if not tokens.token or tokens.token in ("}", ">", ";"):
                self._lose(key, "'[' is never closed", "add ']'", place=opened)
            if not tokens.accept(","):
                self._note(
                    key, f"',' is missing before {shown(tokens.token)}", "separate the elements of a list"
                )
            elif tokens.token == "]":
                self._note(key, "',' is followed by no element", "remove it")
                tokens.advance()
                return

    def _message_value(self, declared: Any, key: str) -> bool:
        tokens = self._tokens
        if tokens.token not in ("{", "<"):
            self._no_message(declared, key)
            return True
        opened, end = self._tokens.place, _CLOSING[tokens.token]
        tokens.advance()
        noted = len(self._result.records) - 1, len(self._result.faults), len(self._result.spoilt)
        self.message(declared.message_type, key + ".", opened=opened, end=end)
        tokens.advance()
        if is_map(declared):
            self._name_entry(key, *noted)
        return True

    def _no_message(self, declared: Any, key: str) -> None:
        """A message's field has another value, or none."""
        tokens = self._tokens
        token, place = tokens.token, self._tokens.place
        if self._is_absent():
            self._note(key, f"'{declared.name}' has no value", f"write {declared.name} {{ }}")
        elif word := self._unfilled():
            self._note(key, unfilled(word, declared.name), REMEDY, place=place)
        else:
            self._wrong(declared, key, "a list" if token == "[" else token, place)
            self._skip_value()

    def _is_absent(self) -> bool:
        """Whether what comes is no value but a closing bracket, a separator, the end, or the next field."""
        tokens = self._tokens
        token = tokens.token
        if not token or token in "}>]:;,":
            return True
        return bool(_IDENTIFIER.match(token)) and tokens.behind in (":", "{", "[", "<")

    def _name_entry(self, key: str, record: int, fault: int, spoilt: int) -> None:
        """Rename what a map entry noted from `parameters[0]` to `parameters["its key"]`."""
        written = self._map_keys.pop(key, None)
        if written is None and len(self._result.faults) > fault:
            return  # it has no key that could name it
        named = f'{key[: key.rindex("[")]}["{written or ""}"]'

        def renamed(name: str) -> str:
            return named + name.removeprefix(key).removeprefix(".value") if name.startswith(key) else name

        result = self._result
        if named in self._entries:
            result.repeated_entries.append((named, result.records[record][1:]))
        self._entries.add(named)
        for at in range(record, len(result.records)):
            name, line, column = result.records[at]
            result.records[at] = (renamed(name), line, column)
        for at in range(fault, len(result.faults)):
            result.faults[at] = replace(result.faults[at], key=renamed(result.faults[at].key))
        for at in range(spoilt, len(result.spoilt)):
            result.spoilt[at] = replace(result.spoilt[at], key=renamed(result.spoilt[at].key))

    # -- scalars -------------------------------------------------------------------------------------------

    def _scalar(self, declared: Any, key: str) -> bool:
        """Check and step over one value; return whether it differs from the field's default."""
        tokens = self._tokens
        token, place = tokens.token, self._tokens.place
        if token in _CLOSING:
            self._wrong(declared, key, "a list" if token == "[" else "{ … }", place)
            self._skip_balanced()
            return True
        if self._is_absent():
            self._note(key, f"'{declared.name}' has no value", f"it takes {takes(declared)}")
            return False
        if word := self._unfilled():
            self._note(key, unfilled(word, declared.name), REMEDY, place=place)
            return True
        if is_entry(declared.containing_type) and declared.name == "key":
            self._map_keys[key.removesuffix(".key")] = token[1:-1] if token[0] in QUOTES else token
        if declared.type == FieldDescriptor.TYPE_STRING and token[0] in QUOTES:
            return self._string(declared, key)
        value = scalar_value(declared, token)
        if value is None:
            self._wrong(declared, key, token if token[0] in QUOTES else self._word(), place)
        elif token == TYPE_BYTES:
            self._result.bytes_for_string.append(Spelling(key, place, token))
        if value is not None:
            tokens.advance()
        elif token[0] in QUOTES:
            self._skip_scalar()
        return value is None or bool(value)

    def _string(self, declared: Any, key: str) -> bool:
        """Check and step over a string: adjacent ones are one."""
        tokens = self._tokens
        place, name = self._tokens.place, declared.name
        content = b""
        try:
            while tokens.token[:1] in QUOTES:
                token = tokens.token
                if len(token) < 2 or token[-1] != token[0]:
                    self._note(key, f"'{name}' has no closing quote", f"add {token[0]}")
                    if _BRACKETS.search(token):  # they belong to the structure, most likely
                        raise _Lost
                else:
                    content += text_encoding.CUnescape(token[1:-1])
                tokens.advance()
            content.decode()
        except ValueError as error:
            self._note(key, f"'{name}' is no text: {error}", place=place)
            self._skip_scalar()
        return bool(content)

    def _unfilled(self) -> str:
        """Step over a template's place, `${name}`, if one comes now, and return it."""
        tokens = self._tokens
        if tokens.token != "$" or tokens.behind != "{":
            return ""
        tokens.advance()
        tokens.advance()
        name = tokens.token if _IDENTIFIER.match(tokens.token) else ""
        if name:
            tokens.advance()
        tokens.accept("}")
        return f"${{{name}}}"

    def _word(self) -> str:
        """Step over tokens without a space between them, and return them as one: `model.onnx` is three."""
        tokens = self._tokens
        word = ""
        line, column = self._tokens.place
        while tokens.token and self._tokens.place == (line, column + len(word)):
            if word and tokens.token in "{}<>[]:;,\"'":
                break
            word += tokens.token
            tokens.advance()
        return word

    def _wrong(self, declared: Any, key: str, instead: str, place: Place) -> None:
        """Note that `instead` is no value of the field."""
        message = f"'{declared.name}' takes {takes(declared)}, not {shown(instead)}"
        if declared.enum_type is not None and _IDENTIFIER.match(instead):
            message = f"'{instead}' is no {declared.enum_type.name}"
        elif instead == "a list" and not declared.is_repeated:
            message = f"'{declared.name}' takes one value, not a list"
        self._note(key, message, remedy(declared, instead), place=place)

    def _unknown_field(self, descriptor: Any, prefix: str, name: str, place: Place) -> None:
        if is_entry(descriptor):
            owner = prefix[: prefix.rindex("[")].rpartition(".")[2]
            message, meant, hint = (
                f"an entry of '{owner}' has no field '{name}'",
                "",
                entry_hint(descriptor, name),
            )
        else:
            message = f"'{descriptor.name}' has no field '{name}'"
            meant, hint = field_suggestion(descriptor, name)
        self._note(prefix + name, message, hint, place=place, meant=prefix + meant if meant else "")

    # -- stepping over -------------------------------------------------------------------------------------

    def _skip_value(self) -> None:
        """Step over the value of a field that is wrong or unknown."""
        tokens = self._tokens
        tokens.accept(":")
        if tokens.token in _CLOSING:
            self._skip_balanced()
        elif not self._is_absent():
            self._skip_scalar()

    def _skip_scalar(self) -> None:
        tokens = self._tokens
        if tokens.token and tokens.token[0] not in QUOTES:
            tokens.advance()
        while tokens.token[:1] in QUOTES:  # adjacent strings are one
            tokens.advance()

    def _skip_balanced(self) -> None:
        """Step over a bracket and everything up to the one that closes it."""
        opened, end = self._tokens.place, _CLOSING[self._tokens.token]
        self._tokens.advance()
        self._skip_to(end, opened)
        self._tokens.advance()

    def _skip_to(self, end: str, opened: Place | None = None) -> None:
        """Step up to the token `end`, over everything that is in brackets."""
        tokens = self._tokens
        expected = [end]
        opened = opened or self._tokens.place
        while tokens.token != expected[-1] or len(expected) > 1:
            if not tokens.token:
                self._lose(
                    "", f"'{expected[-1]}' is missing", "what is open here is never closed", place=opened
                )
            elif tokens.token == expected[-1]:
                expected.pop()
            elif tokens.token in _CLOSING:
                expected.append(_CLOSING[tokens.token])
            elif tokens.token in _CLOSING.values():
                self._lose("", f"'{tokens.token}' does not close what is open here", f"'{expected[-1]}' does")
            tokens.advance()

    # -- noting --------------------------------------------------------------------------------------------

    def _note(
        self, key: str, message: str, hint: str = "", *, place: Place | None = None, meant: str = ""
    ) -> None:
        line, column = place or self._tokens.place
        self._result.faults.append(
            Fault(line=line, column=column, key=key, message=message, hint=hint, meant=meant)
        )
        self._unspanned = True
        if len(self._result.faults) == _MOST_FAULTS:
            self._lose("", "there are more mistakes from here on", "mend those above first")

    def _lose(self, key: str, message: str, hint: str, *, place: Place | None = None) -> NoReturn:
        self._note(key, message, hint, place=place)
        raise _Lost


def _key_of(declared: Any, path: str, count: int) -> str:
    return f"{path}[{count}]" if declared.is_repeated and declared.message_type is not None else path
