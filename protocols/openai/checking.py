"""The members of a JSON object, each checked for its type and range. Errors name the field and its value."""

from __future__ import annotations

import json
from array import array
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

from actors.values.generation.facts import BadAsk
from protocols.openai.fields import Field, Use

_SHOWN: Final = 60
_AT_ONCE: Final = 8192  # elements of a list that are checked in one step
_TOKEN_IDS: Final = 2**31
# What Triton says of them (contract, http.md section 14).
_TRITONS: Final = {
    "best_of": "Received best_of={value}, but only single choice (best_of=1) is currently supported",
    "suffix": "suffix is not currently supported",
}
_KINDS: Final = {
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    dict: "object",
    list: "array",
}


def refuse(param: str, what: str, *, reason: str = "invalid_value") -> NoReturn:
    """Raise BadAsk for the field `param`."""
    raise BadAsk(what, param=param, reason=reason)


def shown(value: Any) -> str:
    """Return the beginning of a value as a message shows it. Of arrays and objects it names the kind."""
    if isinstance(value, list | dict):
        return f"an {_KINDS[type(value)]} of {len(value)}"
    if type(value) is str:
        return repr(value[:_SHOWN]) + ("..." if len(value) > _SHOWN else "")
    return json.dumps(value)


def misfit(param: str, value: Any, wanted: str) -> NoReturn:
    """Raise BadAsk for a value of the wrong type, or out of range."""
    refuse(param, f"Invalid value for '{param}': expected {wanted}, got {shown(value)}")


class Members:
    """An object that is read member by member. A member that is null counts as absent.

    `path` is what stands before a member's name in errors.
    """

    __slots__ = ("_members", "_path")

    def __init__(self, members: Any, path: str = "") -> None:
        if type(members) is not dict:
            if path:
                misfit(path, members, "an object")
            refuse("", f"the body has to be a JSON object, not {shown(members)}", reason="invalid_json")
        self._members: Mapping[str, Any] = members
        self._path = f"{path}." if path else ""

    def __contains__(self, name: str) -> bool:
        return self._members.get(name) is not None

    def param(self, name: str) -> str:
        """Return a member's name as errors have it."""
        return self._path + name

    def sort(self, known: Mapping[str, Field]) -> list[str]:
        """Return the names that are not `known`. Raises BadAsk for a field that is refused."""
        unknown: list[str] = []
        for name, value in self._members.items():
            field = known.get(name)
            if field is None:
                unknown.append(self.param(name))
            elif field.use is Use.REFUSED and value is not None and not _is_one_of(value, field.harmless):
                text = _TRITONS.get(name, "'{name}' is not supported: {about}")
                refuse(
                    self.param(name),
                    text.format(name=name, about=field.about, value=shown(value)),
                    reason="unsupported_field",
                )
        return unknown

    def others(self, known: Iterable[str]) -> list[str]:
        """Return the names that are not `known`."""
        names = set(known)
        return [self.param(name) for name in self._members if name not in names]

    def get(self, name: str) -> Any:
        """Return a member of any type; None where it is absent."""
        return self._members.get(name)

    def number(self, name: str, low: float, high: float) -> float | None:
        """Return a number between `low` and `high`."""
        value = self._members.get(name)
        if value is None:
            return None
        if type(value) not in {int, float} or not low <= value <= high:
            misfit(self.param(name), value, f"a number from {low:g} to {high:g}")
        return float(value)

    def whole(self, name: str, low: int, high: int) -> int | None:
        """Return a whole number from `low` to `high`."""
        value = self._members.get(name)
        if value is None:
            return None
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int or not low <= value <= high:
            misfit(self.param(name), value, f"a whole number from {low} to {high}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean."""
        value = self._members.get(name)
        if value is None:
            return default
        if type(value) is not bool:
            misfit(self.param(name), value, "true or false")
        return value

    def text(self, name: str, most: int = 4096) -> str:
        """Return a text of at most `most` characters; empty where it is absent."""
        value = self._members.get(name)
        if value is None:
            return ""
        if type(value) is not str or len(value) > most:
            misfit(self.param(name), value, f"a text of at most {most} characters")
        return value

    def object(self, name: str) -> dict[str, Any] | None:
        """Return an object."""
        value = self._members.get(name)
        if value is not None and type(value) is not dict:
            misfit(self.param(name), value, "an object")
        return value

    def array(self, name: str, most: int) -> list[Any] | None:
        """Return an array of at most `most` elements."""
        value = self._members.get(name)
        if value is None:
            return None
        if type(value) is not list:
            misfit(self.param(name), value, "an array")
        if len(value) > most:
            misfit(self.param(name), value, f"at most {most} elements")
        return value

    def texts(self, name: str, most: int, longest: int, *, single: bool = False) -> Sequence[str]:
        """Return an array of up to `most` texts, each of 1 to `longest` characters.

        If `single`, one text may stand for an array of one.
        """
        value = self._members.get(name)
        value = [value] if single and type(value) is str else self.array(name, most) or ()
        for at, text in enumerate(value):
            if type(text) is not str or not 0 < len(text) <= longest:
                misfit(f"{self.param(name)}[{at}]", text, f"a text of 1 to {longest} characters")
        return tuple(value)


def read_ids(param: str, ids: Sequence[Any]) -> Generator[None, None, array[int]]:
    """Return token ids as 32-bit integers. Raises BadAsk for what is none. Yields between steps."""
    read = array("i")
    for start in range(0, len(ids), _AT_ONCE):
        step = ids[start : start + _AT_ONCE]
        if set(map(type, step)) != {int} or min(step) < 0 or max(step) >= _TOKEN_IDS:
            bad = (
                at for at, value in enumerate(step) if type(value) is not int or not 0 <= value < _TOKEN_IDS
            )
            at = next(bad)
            misfit(f"{param}[{start + at}]", step[at], f"a token id, a whole number below {_TOKEN_IDS}")
        read.extend(step)
        yield
    return read


def _is_one_of(value: Any, harmless: tuple[Any, ...]) -> bool:
    # True is equal to 1, and means something else.
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in harmless)
