"""The JSON form of a traffic plan: the value of `tritium.traffic`, and of the HTTP extension.

The extension reads and shows it.

    {"weights": {"1": 90, "2": 10}, "sticky": {"header": "x-user"},
     "mirror": {"version": 3, "fraction": 0.1}, "rollback": {"max_error_rate": 0.05}}

`weights` says which versions answer requests that name none; the rest is optional. All mistakes are found in
one pass.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from actors.serving.policy.plan_reading import LARGEST_WHOLE, InvalidDocument, PlanReader
from actors.values.traffic import Mirror, Rollback, TrafficPlan

_WEIGHTS: Final = '{"1": 90, "2": 10}'
_STICKY: Final = '{"header": "x-user"} or {"parameter": "user"}'
_MIRROR: Final = Mirror(version=1)  # the defaults of their fields
_ROLLBACK: Final = Rollback()
_VERSION: Final = re.compile(r"[1-9][0-9]*\Z")


class InvalidPlan(InvalidDocument):
    """A document that is no traffic plan."""

    subject = "traffic plan"


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


class _Reader(PlanReader):
    """One pass over a plan."""

    def plan(self, document: object) -> TrafficPlan:
        if not isinstance(document, Mapping):
            self.note("", "is no JSON object", f"use {_plan_example()}")
            return TrafficPlan(weights={})
        fields = self.members("", document, ("weights", "sticky", "mirror", "rollback"), _plan_example())
        weights = self._weights(fields)
        # Weights with a mistake in them contradict nothing.
        sound = {} if self.mistakes else weights
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
            self.note(
                "weights", "is missing", f"give each version that answers its share, such as {_WEIGHTS}"
            )
            return {}
        value = fields["weights"]
        if not isinstance(value, Mapping) or not value:
            self.note("weights", "is no object of shares by version", f"use {_WEIGHTS}")
            return {}
        before = len(self.mistakes)
        weights: dict[int, float] = {}
        for name, share in value.items():
            key = f"weights.{name}"
            number = self.number(key, share, at_least=0.0)
            if not (_VERSION.match(str(name)) and int(name) <= LARGEST_WHOLE):
                self.note(key, "names no version", f"use version numbers, such as {_WEIGHTS}")
            else:
                weights[int(name)] = number
        total = sum(weights.values())
        if len(self.mistakes) == before and not (0.0 < total < math.inf):
            complaint = "gives no version a share" if total == 0 else "adds up to more than a number can hold"
            self.note("weights", complaint, f"use {_WEIGHTS}")
        return dict(sorted(weights.items()))

    def _sticky(self, fields: Mapping[str, Any]) -> tuple[str, str]:
        if "sticky" not in fields:
            return "", ""
        sticky = self.members("sticky", fields["sticky"], ("header", "parameter"), _STICKY)
        header, parameter = sticky.get("header", ""), sticky.get("parameter", "")
        if "header" in sticky and "parameter" in sticky:
            self.note("sticky", "names both a header and a parameter", f"use {_STICKY}")
        elif fields["sticky"] == {}:
            self.note("sticky", "names nothing to go by", f"use {_STICKY}")
        if "header" in sticky:
            header = self.header("sticky.header", header, "x-user")
        if "parameter" in sticky:
            parameter = self.parameter("sticky.parameter", parameter, "user")
        return header, parameter

    def _mirror(self, fields: Mapping[str, Any], weights: Mapping[int, float]) -> Mirror | None:
        if "mirror" not in fields:
            return None
        example = '{"version": 3, "fraction": 0.1}'
        before = len(self.mistakes)
        mirror = self.members("mirror", fields["mirror"], ("version", "fraction", "tolerance"), example)
        version = 1
        if "version" in mirror:
            version = self.whole("mirror.version", mirror["version"])
        elif len(self.mistakes) == before:
            self.note("mirror.version", "is missing", "name the version that receives copies, such as 3")
        fraction = self.number(
            "mirror.fraction", mirror.get("fraction", _MIRROR.fraction), at_least=0.0, at_most=1.0
        )
        tolerance = self.number("mirror.tolerance", mirror.get("tolerance", _MIRROR.tolerance), at_least=0.0)
        if len(self.mistakes) > before:
            return None
        if fraction == 0:
            self.note("mirror.fraction", "mirrors nothing", "use a share above 0, or leave 'mirror' out")
        if weights.get(version, 0.0) > 0:
            self.note(
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
        given = self.members("rollback", fields["rollback"], known, '{"max_error_rate": 0.05}')
        rollback = Rollback(
            max_error_rate=self.number(
                "rollback.max_error_rate", given.get("max_error_rate", 0.0), at_least=0.0, at_most=1.0
            ),
            max_latency_ratio=self.number(
                "rollback.max_latency_ratio", given.get("max_latency_ratio", 0.0), at_least=0.0
            ),
            max_latency=self.number("rollback.max_latency", given.get("max_latency", 0.0), at_least=0.0),
            min_requests=self.whole(
                "rollback.min_requests", given.get("min_requests", _ROLLBACK.min_requests)
            ),
            window=self.number("rollback.window", given.get("window", _ROLLBACK.window), at_least=0.0),
        )
        if len(self.mistakes) > before:
            return None
        if 0 < rollback.max_latency_ratio < 1:
            self.note(
                "rollback.max_latency_ratio", "asks a version to be faster than the others", "use 1 or more"
            )
        if rollback.window == 0:
            self.note("rollback.window", "is 0", "use seconds above 0, such as 5")
        if not (rollback.max_error_rate or rollback.max_latency_ratio or rollback.max_latency):
            self.note(
                "rollback",
                "has no rule",
                "set 'max_error_rate', 'max_latency_ratio' or 'max_latency' above 0",
            )
        if weights and sum(share > 0 for share in weights.values()) < 2:
            self.note(
                "rollback",
                "has no version to fall back to",
                f"give two versions or more a share, such as {_WEIGHTS}",
            )
        return rollback


def _plan_example() -> str:
    return f'{{"weights": {_WEIGHTS}}}'
