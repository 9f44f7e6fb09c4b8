"""The JSON form of a traffic plan: the value of `tritium.traffic`, and what the HTTP extension reads and shows.

    {"weights": {"1": 90, "2": 10}, "sticky": {"header": "x-user"},
     "mirror": {"version": 3, "fraction": 0.1}, "rollback": {"max_error_rate": 0.05}}

`weights` says which versions answer requests that name none; the rest is optional. All mistakes are found in one pass.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from actors.messages.errors import InvalidArgument
from actors.specs import Mirror, Rollback, TrafficPlan

_WEIGHTS: Final = '{"1": 90, "2": 10}'
_STICKY: Final = '{"header": "x-user"} or {"parameter": "user"}'
_MIRROR: Final = Mirror(version=1)  # what their fields are where nothing is said
_ROLLBACK: Final = Rollback()
_LARGEST_VERSION: Final = 2**63 - 1
_VERSION: Final = re.compile(r"[1-9][0-9]*\Z")
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")  # RFC 9110, a field name


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong with a plan: where (`weights.2`; empty: as a whole), what, and what would have worked."""

    key: str
    complaint: str
    remedy: str

    def __str__(self) -> str:
        where = f"'{self.key}' " if self.key else ""
        return f"{where}{self.complaint}: {self.remedy}"


class InvalidPlan(InvalidArgument):
    """A document that is no traffic plan; `mistakes` has at least one entry, and the message tells them all."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("invalid traffic plan: " + "; ".join(map(str, self.mistakes)))


def read_plan(document: Mapping[str, Any]) -> TrafficPlan:
    """Return the plan that a decoded JSON object describes. Raises InvalidPlan with every mistake in it."""
    reader = _Reader()
    plan = reader.plan(document)
    if reader.mistakes:
        raise InvalidPlan(reader.mistakes)
    return plan


def plan_document(plan: TrafficPlan) -> dict[str, Any]:
    """Return the JSON object of `plan`, its defaults written out; `read_plan` makes an equal plan of it."""
    document: dict[str, Any] = {
        "weights": {str(version): _tidy(plan.weights[version]) for version in sorted(plan.weights)}
    }
    if plan.sticky_header:
        document["sticky"] = {"header": plan.sticky_header}
    elif plan.sticky_parameter:
        document["sticky"] = {"parameter": plan.sticky_parameter}
    if plan.mirror is not None:
        document["mirror"] = {
            "version": plan.mirror.version,
            "fraction": _tidy(plan.mirror.fraction),
            "tolerance": _tidy(plan.mirror.tolerance),
        }
    if plan.rollback is not None:
        document["rollback"] = {
            "max_error_rate": _tidy(plan.rollback.max_error_rate),
            "max_latency_ratio": _tidy(plan.rollback.max_latency_ratio),
            "max_latency": _tidy(plan.rollback.max_latency),
            "min_requests": plan.rollback.min_requests,
            "window": _tidy(plan.rollback.window),
        }
    return document


def _tidy(number: float) -> float:
    """Whole numbers are written without a fraction, as a person would."""
    return int(number) if float(number).is_integer() and abs(number) < 2**53 else number


class _Reader:
    """One pass over a document. What is wrong is noted, and a default stands in so that the pass can go on."""

    def __init__(self) -> None:
        self.mistakes: list[Mistake] = []

    def plan(self, document: object) -> TrafficPlan:
        if not isinstance(document, Mapping):
            self._note("", "is no JSON object", f"use {_plan_example()}")
            return TrafficPlan(weights={})
        fields = self._object("", document, ("weights", "sticky", "mirror", "rollback"), _plan_example())
        weights = self._weights(fields)
        sound = {} if self.mistakes else weights  # what is wrong already contradicts nothing
        header, parameter = self._sticky(fields)
        mirror = self._mirror(fields, sound)
        rollback = self._rollback(fields, sound)
        return TrafficPlan(
            weights=weights,
            sticky_header=header,
            sticky_parameter=parameter,
            mirror=mirror,
            rollback=rollback,
        )

    def _weights(self, fields: Mapping[str, Any]) -> dict[int, float]:
        if "weights" not in fields:
            self._note(
                "weights", "is missing", f"give each version that answers its share, such as {_WEIGHTS}"
            )
            return {}
        value = fields["weights"]
        if not isinstance(value, Mapping) or not value:
            self._note("weights", "is no object of shares by version", f"use {_WEIGHTS}")
            return {}
        before = len(self.mistakes)
        weights: dict[int, float] = {}
        for name, share in value.items():
            key = f"weights.{name}"
            number = self._number(key, share, at_least=0.0)
            if not (_VERSION.match(str(name)) and int(name) <= _LARGEST_VERSION):
                self._note(key, "names no version", f"use version numbers, such as {_WEIGHTS}")
            else:
                weights[int(name)] = number
        total = sum(weights.values())
        if len(self.mistakes) == before and not (0.0 < total < math.inf):
            complaint = "gives no version a share" if total == 0 else "adds up to more than a number can hold"
            self._note("weights", complaint, f"use {_WEIGHTS}")
        return dict(sorted(weights.items()))

    def _sticky(self, fields: Mapping[str, Any]) -> tuple[str, str]:
        if "sticky" not in fields:
            return "", ""
        sticky = self._object("sticky", fields["sticky"], ("header", "parameter"), _STICKY)
        header, parameter = sticky.get("header", ""), sticky.get("parameter", "")
        if "header" in sticky and "parameter" in sticky:
            self._note("sticky", "names both a header and a parameter", f"use {_STICKY}")
        elif fields["sticky"] == {}:
            self._note("sticky", "names nothing to go by", f"use {_STICKY}")
        if "header" in sticky and not (isinstance(header, str) and _HEADER.match(header)):
            self._note("sticky.header", "is no name of a header", 'use one such as "x-user"')
            header = ""
        if "parameter" in sticky and not (isinstance(parameter, str) and parameter):
            self._note("sticky.parameter", "is no name of a request parameter", 'use one such as "user"')
            parameter = ""
        return header.lower(), parameter

    def _mirror(self, fields: Mapping[str, Any], weights: Mapping[int, float]) -> Mirror | None:
        if "mirror" not in fields:
            return None
        example = '{"version": 3, "fraction": 0.1}'
        before = len(self.mistakes)
        mirror = self._object("mirror", fields["mirror"], ("version", "fraction", "tolerance"), example)
        version = 1
        if "version" in mirror:
            version = self._whole("mirror.version", mirror["version"])
        elif len(self.mistakes) == before:
            self._note("mirror.version", "is missing", "name the version that receives copies, such as 3")
        fraction = self._number(
            "mirror.fraction", mirror.get("fraction", _MIRROR.fraction), at_least=0.0, at_most=1.0
        )
        tolerance = self._number("mirror.tolerance", mirror.get("tolerance", _MIRROR.tolerance), at_least=0.0)
        if len(self.mistakes) > before:
            return None
        if fraction == 0:
            self._note("mirror.fraction", "mirrors nothing", "use a share above 0, or leave 'mirror' out")
        if weights.get(version, 0.0) > 0:
            self._note(
                "mirror.version",
                f"is {version}, which answers requests itself",
                f"mirror to another version, or leave {version} out of 'weights'",
            )
        return Mirror(version=version, fraction=fraction, tolerance=tolerance)

    def _rollback(self, fields: Mapping[str, Any], weights: Mapping[int, float]) -> Rollback | None:
        if "rollback" not in fields:
            return None
        known = ("max_error_rate", "max_latency_ratio", "max_latency", "min_requests", "window")
        before = len(self.mistakes)
        given = self._object("rollback", fields["rollback"], known, '{"max_error_rate": 0.05}')
        rollback = Rollback(
            max_error_rate=self._number(
                "rollback.max_error_rate", given.get("max_error_rate", 0.0), at_least=0.0, at_most=1.0
            ),
            max_latency_ratio=self._number(
                "rollback.max_latency_ratio", given.get("max_latency_ratio", 0.0), at_least=0.0
            ),
            max_latency=self._number("rollback.max_latency", given.get("max_latency", 0.0), at_least=0.0),
            min_requests=self._whole(
                "rollback.min_requests", given.get("min_requests", _ROLLBACK.min_requests)
            ),
            window=self._number("rollback.window", given.get("window", _ROLLBACK.window), at_least=0.0),
        )
        if len(self.mistakes) > before:
            return None
        if 0 < rollback.max_latency_ratio < 1:
            self._note(
                "rollback.max_latency_ratio", "asks a version to be faster than the others", "use 1 or more"
            )
        if rollback.window == 0:
            self._note("rollback.window", "is 0", "use seconds above 0, such as 5")
        if not (rollback.max_error_rate or rollback.max_latency_ratio or rollback.max_latency):
            self._note(
                "rollback",
                "has no rule",
                "set 'max_error_rate', 'max_latency_ratio' or 'max_latency' above 0",
            )
        if weights and sum(share > 0 for share in weights.values()) < 2:
            self._note(
                "rollback",
                "has no version to fall back to",
                f"give two versions or more a share, such as {_WEIGHTS}",
            )
        return rollback

    def _object(self, key: str, value: object, known: tuple[str, ...], example: str) -> Mapping[str, Any]:
        """Return the known members of an object; unknown ones are mistakes."""
        if not isinstance(value, Mapping):
            self._note(key, "is no JSON object", f"use {example}")
            return {}
        for name in value:
            if name not in known:
                close = difflib.get_close_matches(str(name), known, n=1)
                remedy = f"did you mean '{close[0]}'?" if close else "known are " + ", ".join(known)
                self._note(f"{key}.{name}" if key else str(name), "is unknown", remedy)
        return {name: value[name] for name in known if name in value}

    def _number(self, key: str, value: object, *, at_least: float, at_most: float = math.inf) -> float:
        try:
            number = (
                math.nan if isinstance(value, bool) or not isinstance(value, int | float) else float(value)
            )
        except OverflowError:  # an int beyond any float
            number = math.nan
        if math.isfinite(number) and at_least <= number <= at_most:
            return number
        bounds = f"from {at_least:g} to {at_most:g}" if at_most < math.inf else f"of at least {at_least:g}"
        self._note(key, f"is {_shown(value)}", f"use a number {bounds}")
        return at_least

    def _whole(self, key: str, value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _LARGEST_VERSION:
            return value
        self._note(key, f"is {_shown(value)}", "use a whole number of at least 1")
        return 1

    def _note(self, key: str, complaint: str, remedy: str) -> None:
        self.mistakes.append(Mistake(key, complaint, remedy))


def _plan_example() -> str:
    return f'{{"weights": {_WEIGHTS}}}'


def _shown(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."
