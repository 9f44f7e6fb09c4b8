"""What is wrong with a model's configuration, as values.

Nothing here is raised, so that all of it can be told at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from actors.values.errors import ErrorCode


class Severity(Enum):
    """Whether a problem keeps a model from loading."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong, where it stands, and what would have worked.

    `line` and `column` count from 1; both are 0 if the problem has no place in the file (something is
    missing). `key` names the field as `input[0].dims` or `parameters["tritium.retry"]`. `versions` are those
    that have the problem, none if all do.
    """

    message: str
    severity: Severity = Severity.ERROR
    path: Path | None = None
    line: int = 0
    column: int = 0
    key: str = ""
    hint: str = ""
    code: ErrorCode = ErrorCode.INVALID_ARG
    versions: tuple[int, ...] = ()

    def __str__(self) -> str:
        place = "" if self.path is None else f"{self.path}:"
        if self.line:
            place += f"{self.line}:{self.column}:"
        hint = f" ({self.hint})" if self.hint else ""
        return f"{place} {self.severity.value}: {self.brief}{hint}".lstrip()

    @property
    def brief(self) -> str:
        """The message as it follows its place.

        It has the versions that it is about, and does not repeat the file's name.
        """
        blamed = ", ".join(map(str, self.versions))
        whose = f"version{'s' if len(self.versions) > 1 else ''} {blamed}: " if blamed else ""
        message = self.message if self.path is None else self.message.replace(f" from {self.path}: ", ": ", 1)
        return whose + message

    def concerns(self, version: int) -> bool:
        """Whether a version has this problem."""
        return not self.versions or version in self.versions

    @property
    def is_error(self) -> bool:
        """Whether this keeps the model from loading."""
        return self.severity is Severity.ERROR

    @property
    def reason(self) -> str:
        """The `<Prefix>: <message>` form of a version's reason (contract, repository.md section 4)."""
        return f"{self.code.rendered}: {self.message}"


def within(key: str, outer: str) -> bool:
    """Whether the field `key` is the field `outer`, an element of it, or a field inside it."""
    return key.startswith(outer) and (len(key) == len(outer) or key[len(outer)] in ".[")


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return `did you mean 'x'?` for the candidate that is most like `name`, or an empty string."""
    from difflib import get_close_matches  # only a mistake pays for it

    close = get_close_matches(name, sorted(candidates), n=1)
    return f"did you mean '{close[0]}'?" if close else ""
