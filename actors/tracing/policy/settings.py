"""Which trace setting holds for which model, and how a change of one is carried out.

Contract, observability.md section 3.1. A model inherits each field that it has not set itself from the
setting of all models; that one goes back to what the server was started with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from actors.values.errors import InvalidArgument
from actors.values.tracing.settings import OPENTELEMETRY, TRITON, Given, SettingChange, TraceSetting

FIELDS: Final = ("levels", "rate", "count", "log_frequency")
"""What may be changed while the server runs."""


def why_invalid(setting: TraceSetting) -> str:
    """Return why nothing can be traced by `setting`; empty where it can."""
    if not setting.levels:
        return "tracing is disabled"
    if setting.rate == 0:
        return "sample rate must be non-zero"
    if setting.mode == TRITON and not setting.file:
        return "trace file name is not given"
    return ""


def samples(setting: TraceSetting) -> bool:
    """Whether any request may be traced by `setting`.

    With a rate of 0, which only the command line may give, requests are traced that come with a context.
    """
    if not why_invalid(setting):
        return True
    return setting.mode == OPENTELEMETRY and bool(setting.levels) and setting.rate == 0


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """The settings of a server: of all models, and what single models have set themselves, by field."""

    default: TraceSetting
    everywhere: TraceSetting
    own: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    @classmethod
    def of(cls, default: TraceSetting) -> TraceSettings:
        """Return the settings of a server that was started with `default`."""
        return cls(default, default)

    def setting(self, model: str) -> TraceSetting:
        """Return the setting that holds for `model`; for the empty name, for all that have set nothing."""
        own = self.own.get(model) if model else None
        return replace(self.everywhere, **own) if own else self.everywhere  # type: ignore[arg-type]

    def changed(self, model: str, change: SettingChange) -> tuple[TraceSettings, frozenset[str]]:
        """Return the settings after a change, and whose are new: of models, the empty name for all models.

        A new setting counts from its beginning. Raises InvalidArgument where any would be invalid, unless it
        disables tracing.
        """
        said = {name: getattr(change, name) for name in FIELDS}
        given = {name: value for name, value in said.items() if not isinstance(value, Given)}
        cleared = {name for name, value in said.items() if value is Given.CLEAR}
        if model:
            own = {**self.own.get(model, {}), **given}
            own = {name: value for name, value in own.items() if name not in cleared}
            others = {name: each for name, each in self.own.items() if name != model}
            after = TraceSettings(self.default, self.everywhere, {**others, model: own} if own else others)
            new = frozenset((model,)) if own else frozenset()
        else:
            back = {name: getattr(self.default, name) for name in cleared}
            everywhere = replace(self.everywhere, **back, **given)
            after = TraceSettings(self.default, everywhere, self.own)
            new = frozenset(("", *(name for name, each in self.own.items() if len(each) < len(FIELDS))))
        for name in sorted(new):
            _check(after.setting(name))
        return after, new


def _check(setting: TraceSetting) -> None:
    reason = why_invalid(setting)
    if reason and setting.levels:
        raise InvalidArgument(f"Attempting to set invalid trace setting :{reason}")
