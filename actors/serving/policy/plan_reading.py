"""Reading the settings that are JSON objects.

All mistakes in one are reported at once, each with its place and a value that would have worked.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from actors.values.errors import InvalidArgument

LARGEST_WHOLE: Final = 2**63 - 1

_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")  # RFC 9110, a field name


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake in a document.

    It says where it is (`weights.2`; empty: as a whole), what it is, and what would have worked.
    """

    key: str
    complaint: str
    remedy: str

    def __str__(self) -> str:
        where = f"'{self.key}' " if self.key else ""
        return f"{where}{self.complaint}: {self.remedy}"


class InvalidDocument(InvalidArgument):
    """A document that is not valid; `mistakes` has at least one entry, and the message names them all."""

    subject = "document"

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__(f"invalid {self.subject}: " + "; ".join(map(str, self.mistakes)))


class PlanReader:
    """One pass over a document. A mistake is noted, and a default stands in so that the pass can go on."""

    def __init__(self) -> None:
        self.mistakes: list[Mistake] = []

    def members(self, key: str, value: object, known: tuple[str, ...], example: str) -> Mapping[str, Any]:
        """Return the known members of an object; unknown ones are mistakes."""
        if not isinstance(value, Mapping):
            self.note(key, "is no JSON object", f"use {example}")
            return {}
        for name in value:
            if name not in known:
                from difflib import get_close_matches  # only a mistake pays for it

                close = get_close_matches(str(name), known, n=1)
                remedy = f"did you mean '{close[0]}'?" if close else "known are " + ", ".join(known)
                self.note(f"{key}.{name}" if key else str(name), "is unknown", remedy)
        return {name: value[name] for name in known if name in value}

    def number(self, key: str, value: object, *, at_least: float, at_most: float = math.inf) -> float:
        """Return a number within bounds, `at_least` in place of anything else."""
        try:
            number = (
                math.nan if isinstance(value, bool) or not isinstance(value, int | float) else float(value)
            )
        except OverflowError:  # an int beyond any float
            number = math.nan
        if math.isfinite(number) and at_least <= number <= at_most:
            return number
        bounds = f"from {at_least:g} to {at_most:g}" if at_most < math.inf else f"of at least {at_least:g}"
        self.note(key, f"is {shown(value)}", f"use a number {bounds}")
        return at_least

    def whole(self, key: str, value: object) -> int:
        """Return a whole number of at least 1, 1 in place of anything else."""
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LARGEST_WHOLE:
            return value
        self.note(key, f"is {shown(value)}", "use a whole number of at least 1")
        return 1

    def boolean(self, key: str, value: object) -> bool:
        """Return true or false, false in place of anything else."""
        if isinstance(value, bool):
            return value
        self.note(key, f"is {shown(value)}", "use true or false")
        return False

    def header(self, key: str, value: object, example: str) -> str:
        """Return the name of a header in lower case, nothing in place of anything else."""
        if isinstance(value, str) and _HEADER.match(value):
            return value.lower()
        self.note(key, "is no name of a header", f'use one such as "{example}"')
        return ""

    def parameter(self, key: str, value: object, example: str) -> str:
        """Return the name of a request parameter, nothing in place of anything else."""
        if isinstance(value, str) and value:
            return value
        self.note(key, "is no name of a request parameter", f'use one such as "{example}"')
        return ""

    def note(self, key: str, complaint: str, remedy: str) -> None:
        """Remember a mistake."""
        self.mistakes.append(Mistake(key, complaint, remedy))


def shown(value: object) -> str:
    """Return `value` as JSON, cut if it is long."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."
