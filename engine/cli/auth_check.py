"""`tritium check --auth-file`: what is wrong in an auth file and where, or what it says in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from engine.cli.findings import StyledLine
from engine.identity.reviewing import Review

_MOST_RULES: Final = 200


@dataclass(frozen=True, slots=True)
class AuthReport:
    """What was found in the auth file at `path`: an explanation, or why there is none."""

    path: str
    review: Review | None
    problem: str = ""

    @property
    def ok(self) -> bool:
        """Whether a server would start with it."""
        return self.review is not None


def inspect_auth_file(path: str, now: float) -> AuthReport:
    """Read the auth file at `path` and the key sets that it names, at `now` in seconds of the epoch."""
    from engine.identity.document import AuthFileError
    from engine.identity.loading import load_book
    from engine.identity.reviewing import review

    try:
        book, _ = load_book(path)
    except AuthFileError as error:
        return AuthReport(path, None, str(error))
    return AuthReport(path, review(book.file, now))


def auth_as_json(report: AuthReport) -> Mapping[str, object]:
    """Return the report for programs."""
    return {
        "path": report.path,
        "ok": report.ok,
        "error": report.problem or None,
        **({} if report.review is None else report.review.as_json()),
    }


def auth_in_a_line(report: AuthReport) -> str:
    """Return the report's outcome."""
    if report.review is None:
        return f"{report.path}: error: {report.problem}"
    warnings = len(report.review.warnings)
    return f"{report.path}: ok, {warnings} warning{'' if warnings == 1 else 's'}"


def auth_as_lines(report: AuthReport) -> Iterator[StyledLine]:
    """Yield the report for a reader."""
    yield [(report.path, "bold"), ("  auth file", "dim")]
    review = report.review
    if review is None:
        yield [("  error: ", "red"), (report.problem, "")]
        return
    yield from _section("identities", review.identities, "none: without a proof each client is anonymous")
    yield from _section(
        "rules, the first that matches decides, and what none allows is denied",
        review.rules[:_MOST_RULES],
        "none: only health checks and metrics are open",
    )
    if len(review.rules) > _MOST_RULES:
        yield [(f"    and {len(review.rules) - _MOST_RULES} more; --json has all of them", "dim")]
    yield from _section("limits", review.limits, "none")
    yield from _section("open to clients without credentials", review.anonymous, "nothing")
    for warning in review.warnings:
        yield [("  warning: ", "yellow"), (warning, "")]


def _section(title: str, lines: Sequence[str], otherwise: str) -> Iterator[StyledLine]:
    yield [(f"  {title}", "dim")]
    for line in lines or (otherwise,):
        yield [(f"    {line}", "")]
