"""The JSON forms of `tritium.fairness` and `tritium.slo`.

    {"tenant": {"header": "x-tenant"}, "weights": {"gold": 4, "free": 1}, "max_queued": 64,
     "when_full": "refuse", "age": 2}
    {"p99": 0.05, "refuse": true, "tune": true}
    {"ttft": 0.5, "itl": 0.05, "refuse": true}        of a language model

All mistakes are found in one pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from actors.serving.policy.plan_reading import InvalidDocument, PlanReader, shown
from actors.serving.policy.tallies import OTHERS
from actors.values.specs import Fairness, Slo

_WORDS: Final = ("address", "identity")
_TENANT: Final = '{"header": "x-tenant"}, {"parameter": "tenant"}, "address" or "identity"'
_FAIRNESS: Final = '{"tenant": {"header": "x-tenant"}, "weights": {"gold": 4}}'
_SLO: Final = '{"p99": 0.05}'
_TIMES: Final = ("ttft", "itl")
_WEIGHTS: Final = '{"gold": 4, "free": 1}'
_LEAST_WEIGHT: Final = 0.001
_LARGEST_WEIGHT: Final = 1000.0
# Tenants that are listed: each has series of its own.
_MOST_TENANTS: Final = 256
_LONGEST_NAME: Final = 128
_KEYS: Final = ("tenant", "weights", "default_weight", "unlisted", "max_queued", "when_full", "age")
_OF_TENANTS: Final = ("weights", "default_weight", "unlisted", "max_queued", "when_full")


class InvalidFairness(InvalidDocument):
    """A document that is not a valid description of fairness."""

    subject = "fairness"


class InvalidSlo(InvalidDocument):
    """A document that is not a valid promise."""

    subject = "slo"


def read_fairness(document: object) -> Fairness:
    """Return the settings of a decoded `tritium.fairness`. Raises InvalidFairness with all its mistakes."""
    reader = _FairnessReader()
    fairness = reader.fairness(document)
    if reader.mistakes:
        raise InvalidFairness(reader.mistakes)
    return fairness


def read_slo(document: object) -> Slo:
    """Return the settings of a decoded `tritium.slo`. Raises InvalidSlo with all its mistakes."""
    reader = _SloReader()
    slo = reader.slo(document)
    if reader.mistakes:
        raise InvalidSlo(reader.mistakes)
    return slo


class _FairnessReader(PlanReader):
    def fairness(self, document: object) -> Fairness:
        fields = self.members("", document, _KEYS, _FAIRNESS)
        if not fields:
            if not self.mistakes:
                self.note("", "asks for nothing", f'use {_FAIRNESS}, or {{"age": 2}}')
            return Fairness()
        header, parameter, word = self._tenant(fields)
        if "tenant" not in fields:
            for name in _OF_TENANTS:
                if name in fields:
                    self.note(name, "is about tenants, and 'tenant' is missing", f'add "tenant": {_TENANT}')
        return Fairness(
            tenant_header=header,
            tenant_parameter=parameter,
            tenant_address=word == "address",
            tenant_identity=word == "identity",
            weights=self._weights(fields),
            default_weight=self._weight("default_weight", fields.get("default_weight", 1.0)),
            unlisted_together=self._unlisted(fields),
            max_queued=self.whole("max_queued", fields["max_queued"]) if "max_queued" in fields else 0,
            refuses=self._refuses(fields),
            ageing=self._age(fields),
        )

    def _tenant(self, fields: Mapping[str, Any]) -> tuple[str, str, str]:
        """Return the header, the parameter, or the word that tells tenants apart; the others are empty."""
        value = fields.get("tenant", "")
        if "tenant" not in fields or value in _WORDS:
            return "", "", value
        if not isinstance(value, Mapping):
            self.note("tenant", f"is {shown(value)}", f"use {_TENANT}")
            return "", "", ""
        given = self.members("tenant", value, ("header", "parameter"), _TENANT)
        if len(given) == 2:
            self.note("tenant", "names both a header and a parameter", f"use {_TENANT}")
        elif not value:
            self.note("tenant", "names nothing to go by", f"use {_TENANT}")
        header = self.header("tenant.header", given["header"], "x-tenant") if "header" in given else ""
        parameter = (
            self.parameter("tenant.parameter", given["parameter"], "tenant") if "parameter" in given else ""
        )
        return header, parameter, ""

    def _weights(self, fields: Mapping[str, Any]) -> dict[str, float]:
        value = fields.get("weights", {})
        if not isinstance(value, Mapping):
            self.note("weights", "is no object of weights by tenant", f"use {_WEIGHTS}")
            return {}
        if len(value) > _MOST_TENANTS:
            self.note(
                "weights",
                f"lists {len(value)} tenants",
                f"list at most {_MOST_TENANTS}, and give the others 'default_weight'",
            )
        if OTHERS in value:
            remedy = (
                "give it another name: metrics count all tenants without a name of their own under this one"
            )
            self.note(f"weights.{OTHERS}", "is no tenant", remedy)
        for name in value:
            if not 0 < len(name) <= _LONGEST_NAME:
                remedy = (
                    f"use names of 1 to {_LONGEST_NAME} characters; clients without one have 'default_weight'"
                )
                self.note("weights", f"lists the tenant {shown(name)}", remedy)
        return {str(name): self._weight(f"weights.{name}", weight) for name, weight in sorted(value.items())}

    def _weight(self, key: str, value: object) -> float:
        return self.number(key, value, at_least=_LEAST_WEIGHT, at_most=_LARGEST_WEIGHT)

    def _unlisted(self, fields: Mapping[str, Any]) -> bool:
        value = fields.get("unlisted", "each")
        if value not in ("each", "together"):
            remedy = 'use "each" for a share for each of them, or "together" for one share for all of them'
            self.note("unlisted", f"is {shown(value)}", remedy)
        return bool(value == "together")

    def _refuses(self, fields: Mapping[str, Any]) -> bool:
        value = fields.get("when_full", "wait")
        if value not in ("wait", "refuse"):
            self.note("when_full", f"is {shown(value)}", 'use "wait" or "refuse"')
        elif "when_full" in fields and "max_queued" not in fields:
            self.note("when_full", "is about a bound, and there is none", 'add "max_queued": 64')
        return bool(value == "refuse")

    def _age(self, fields: Mapping[str, Any]) -> float:
        if "age" not in fields:
            return 0.0
        age = self.number("age", fields["age"], at_least=0.0)
        if age == 0.0 and not any(mistake.key == "age" for mistake in self.mistakes):
            self.note("age", "is 0", "use seconds above 0, such as 2, or leave it out")
        return age


class _SloReader(PlanReader):
    def slo(self, document: object) -> Slo:
        fields = self.members("", document, ("p99", "refuse", "tune", *_TIMES), _SLO)
        p99 = self.number("p99", fields["p99"], at_least=0.0) if "p99" in fields else 0.0
        ttft, itl = (self._time(name, fields) for name in _TIMES)
        refuse = self.boolean("refuse", fields.get("refuse", True))
        tune = self.boolean("tune", fields.get("tune", True))
        if self.mistakes:
            return Slo()
        if ttft or itl:
            return self._of_tokens(fields, ttft, itl, refuse=refuse)
        if "p99" in fields and p99 == 0.0:
            self.note("p99", "is 0", "use seconds above 0, such as 0.05")
        elif not fields or not (refuse or (tune and p99)):
            self.note(
                "",
                "asks for nothing",
                f'use {_SLO}, {{"ttft": 0.5}} for a language model, or {{"refuse": true}} for requests\' own'
                " deadlines",
            )
        elif fields.get("tune") and not p99:
            self.note("tune", "has nothing to tune for", 'add "p99": 0.05')
        return Slo(p99=p99, refuse=refuse, tune=tune)

    def _time(self, name: str, fields: Mapping[str, Any]) -> float:
        if name not in fields:
            return 0.0
        time = self.number(name, fields[name], at_least=0.0)
        if time == 0.0 and not any(mistake.key == name for mistake in self.mistakes):
            self.note(name, "is 0", "use seconds above 0, such as 0.05")
        return time

    def _of_tokens(self, fields: Mapping[str, Any], ttft: float, itl: float, *, refuse: bool) -> Slo:
        for name in ("p99", "tune"):
            if name in fields:
                self.note(
                    name, "is of models that make batches, and 'ttft' and 'itl' are not", "leave it out"
                )
        if not refuse:
            self.note("refuse", "is false, and nothing else keeps these promises", "leave it out")
        return Slo(refuse=refuse, ttft=ttft, itl=itl)
