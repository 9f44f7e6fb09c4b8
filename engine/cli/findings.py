"""What `tritium check` has found, as text for a terminal or a pipe, and as JSON.

A report is made into lines of styled pieces once; a terminal gets them in colour, a pipe without.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from actors.values.specs import (
    DirectStrategy,
    DynamicBatching,
    Ensemble,
    InstanceSpec,
    LanguageServing,
    ModelSpec,
    SequenceBatching,
)
from engine.config.complete import ENSEMBLE
from engine.config.jsonform import config_json
from engine.config.loaded import LoadedConfig, VersionConfig
from engine.config.provenance import DEFAULT, Line, text_lines
from engine.models.problems import Problem, Severity
from engine.observability.text import printable

UNSERVED: Final = "valid, but not served by this version"

_WIDEST: Final = 64  # column of the comments, at most; longer lines push theirs
_INDENT: Final = "    "
_IDENTITY: Final = ("name", "platform", "backend", "runtime", "version_policy")
_SEVERITIES: Final = {Severity.ERROR: "red", Severity.WARNING: "yellow"}

Piece = tuple[str, str]  # text and style
StyledLine = Sequence[Piece]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is known about one model: its configuration, or why there is none to speak of."""

    name: str
    config: LoadedConfig | None = None
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether the model would be loaded."""
        return self.config is not None and self.config.ok

    @property
    def only_unserved(self) -> bool:
        """Whether there is nothing that its owner could mend."""
        return self.config is not None and not self.ok and self.config.unserved == self.config.errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found in the repositories."""

    findings: tuple[Finding, ...]
    problems: tuple[Problem, ...]  # of the repositories themselves

    @property
    def ok(self) -> bool:
        """Whether all of it would be served."""
        return all(finding.ok for finding in self.findings) and not any(p.is_error for p in self.problems)


def advice(spec: ModelSpec) -> Iterator[str]:
    """Yield what an operator should know about a configuration that is valid."""
    if spec.isolation == "thread":
        yield (
            'tritium.isolation is "thread": the model runs in the server process, and a crash of it takes the server down;'
            ' "process" contains it'
        )
    if isinstance(spec.scheduling, LanguageServing):
        if spec.scheduling.hang_within == 0:
            yield "tritium.hang_within is 0: an engine that stands still is not noticed"
    elif spec.execution_timeout == 0 and not isinstance(spec.scheduling, Ensemble):
        yield (
            "tritium.execution_timeout is off: hangs are not contained; set it to the seconds that a batch may take, or"
            " --default-execution-timeout for all models"
        )


# -- as text


def plain(lines: Iterable[StyledLine]) -> str:
    """Return the lines without their styles."""
    return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines)


def drawn(lines: Iterable[StyledLine]) -> None:
    """Write the lines to the terminal, in colour."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for line in lines:
        console.print(Text.assemble(*line))


def as_lines(report: Report) -> Iterator[StyledLine]:
    """Yield the report for a reader."""
    for problem in report.problems:
        yield from _problem(problem, "")
    for at, finding in enumerate(report.findings):
        if at or report.problems:
            yield []
        yield from _finding(finding)
    if report.findings:
        yield []
    yield from _total(report)


def _total(report: Report) -> Iterator[StyledLine]:
    total = len(report.findings)
    if not total:
        yield [("no models found", "")]
        return
    good = sum(finding.ok for finding in report.findings)
    unserved = sum(finding.only_unserved for finding in report.findings)
    said = f"{good} of {total} model{'s' if total != 1 else ''} would load"
    if unserved:
        said += f"; {unserved} {'are' if unserved != 1 else 'is'} {UNSERVED}"
    yield [(said, "bold")]


def in_short(report: Report) -> Iterator[StyledLine]:
    """Yield a line for each model, what is wrong with any, and once what holds for many."""
    for problem in report.problems:
        yield from _problem(problem, "")
    width = max((len(printable(finding.name)) for finding in report.findings), default=0)
    for finding in report.findings:
        yield from _short_finding(finding, width)
    yield from _total(report)
    off = [finding.name for finding in report.findings if any(map(_of_hangs, _advice_on(finding)))]
    if off:
        many = f"{len(off)} models" if len(off) > 1 else f"model '{printable(off[0])}'"
        yield [
            ("note", "yellow"),
            (
                f": tritium.execution_timeout is off for {many}: hangs are not contained;"
                " --default-execution-timeout sets it for all",
                "",
            ),
        ]
    if report.findings:
        yield [("--verbose shows the configurations that the models would run with", "dim")]


def _short_finding(finding: Finding, width: int) -> Iterator[StyledLine]:
    name = f"{printable(finding.name):<{width}}"
    config = finding.config
    if config is None:
        yield [_mark(finding), (name, "bold"), ("  ", ""), (f"error: {printable(finding.reason)}", "red")]
        return
    about = ""
    if config.specs:
        spec = config.specs[-1]
        about = ", ".join(
            filter(None, [spec.backend or spec.platform, f"batching: {_batching(spec)}", _counted(spec)])
        )
    yield [_mark(finding), (name, "bold"), (f"{_versions(config.versions)}  {printable(about)}", "")]
    for problem in config.problems:
        yield from _problem(problem, _INDENT)
    for words in _advice_on(finding):
        if not _of_hangs(words):
            yield [(_INDENT, ""), ("warning", "yellow"), (f": {words}", "")]


def _counted(spec: ModelSpec) -> str:
    count = len(spec.instances)
    return "" if isinstance(spec.scheduling, Ensemble) else f"{count} instance{'s' if count != 1 else ''}"


def _advice_on(finding: Finding) -> Iterator[str]:
    if finding.config is not None and finding.config.specs:
        yield from advice(finding.config.specs[-1])


def _of_hangs(words: str) -> bool:
    return words.startswith("tritium.execution_timeout is off")


def one_line_each(report: Report) -> Iterator[str]:
    """Yield a line for each model, with the first thing that is wrong with it, and each bad repository."""
    for problem in report.problems:
        yield printable(str(problem))
    for finding in report.findings:
        yield f"{printable(finding.name)}: {_in_short(finding)}"


def _in_short(finding: Finding) -> str:
    config = finding.config
    if config is None:
        return f"error: {printable(finding.reason)}"
    errors = list(config.errors)
    if not errors:
        warnings = sum(problem.severity is Severity.WARNING for problem in config.problems)
        return "ok" if not warnings else f"ok, {warnings} warning{'s' if warnings > 1 else ''}"
    first = printable(str(errors[0]).strip().partition("\n")[0])
    return first if len(errors) == 1 else f"{first} (and {len(errors) - 1} more)"


def _mark(finding: Finding) -> Piece:
    if finding.only_unserved:
        return "○ ", "bold yellow"
    return ("✓ ", "bold green") if finding.ok else ("✗ ", "bold red")


def _finding(finding: Finding) -> Iterator[StyledLine]:
    mark = _mark(finding)
    name = (printable(finding.name), "bold")
    config = finding.config
    if config is None:
        yield [mark, name]
        yield [(_INDENT, ""), ("error", "red"), (f": {printable(finding.reason)}", "")]
        return
    yield [mark, name, (_versions(config.versions), "")]
    unserved = config.unserved
    for problem in config.problems:
        if problem not in unserved:
            yield from _problem(problem, _INDENT)
    if unserved:
        yield [(f"{_INDENT}{UNSERVED}:", "yellow")]
        for problem in unserved:
            yield from _problem(problem, _INDENT)
    if config.specs:
        spec = config.specs[-1]
        for words in advice(spec):
            yield [(_INDENT, ""), ("warning", "yellow"), (f": {words}", "")]
        for label, value in _settings(spec):
            yield [(f"{_INDENT}{label:<18} {printable(value)}", "")]
    yield from _configurations(config)


def _problem(problem: Problem, indent: str) -> Iterator[StyledLine]:
    """Yield a problem: its message, and what would have worked, on lines of its own if it has several."""
    head, word, rest = str(problem).partition(problem.severity.value)  # the first one: paths come before it
    if problem.path is not None:
        at = len(str(problem.path))
        before, word, rest = str(problem)[at:].partition(problem.severity.value)
        head = str(problem.path) + before
    hint = f" ({problem.hint})" if problem.hint else ""
    broken = "\n" in problem.message or "\n" in problem.hint
    message = rest.removesuffix(hint) if broken else rest
    first, *more = message.splitlines() or [""]
    yield [(indent + printable(head), "dim"), (word, _SEVERITIES[problem.severity]), (printable(first), "")]
    if broken:
        more += problem.hint.splitlines()
    for line in filter(None, map(str.rstrip, more)):
        yield [(f"{indent}{_INDENT}{printable(line)}", "")]


def _versions(versions: Sequence[int]) -> str:
    if not versions:
        return ""
    return f"  version{'s' if len(versions) > 1 else ''} {', '.join(map(str, versions))}"


def _settings(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    yield "batching", _batching(spec)
    if isinstance(spec.scheduling, Ensemble):
        return  # it has no instances, and nothing of its own is executed
    yield "instances", _instances(spec.instances)
    yield "isolation", f"{spec.isolation}, retry {spec.retry.value}"
    own = "tritium.execution_timeout" in spec.parameters
    source = "" if own else ", by --default-execution-timeout"
    yield "execution timeout", f"{spec.execution_timeout:g} s{source}" if spec.execution_timeout else "off"


def _batching(spec: ModelSpec) -> str:
    if isinstance(spec.scheduling, Ensemble):
        return "each step's own"
    if isinstance(spec.scheduling, SequenceBatching):
        strategy = "direct" if isinstance(spec.scheduling.strategy, DirectStrategy) else "oldest"
        return f"sequences, {strategy}, up to {max(1, spec.max_batch_size)} in one batch"
    if not spec.batches:
        return "none"
    if not isinstance(spec.scheduling, DynamicBatching):
        return f"up to {spec.max_batch_size} rows in one request"
    delay = spec.scheduling.max_queue_delay
    return f"dynamic, up to {spec.max_batch_size} rows" + (
        f", waiting {delay * 1e3:g} ms for more" if delay else ""
    )


def _instances(instances: Sequence[InstanceSpec]) -> str:
    return ", ".join(
        f"{instance.name} ({_device(instance)}{f', {instance.lanes} lanes' if instance.lanes > 1 else ''}"
        f"{', passive' if instance.passive else ''})"
        for instance in instances
    )


def _device(instance: InstanceSpec) -> str:
    return f"gpu:{instance.device_id}" if instance.kind == "GPU" else instance.kind.lower()


# -- configurations


def _shared(configs: Sequence[VersionConfig]) -> Iterator[tuple[tuple[int, ...], VersionConfig]]:
    """Yield each distinct configuration with the versions that have it, the newest first."""
    newest_first = sorted(configs, key=lambda each: -each.version)
    for _, group in groupby(newest_first, key=lambda each: each.config.SerializeToString(deterministic=True)):
        alike = list(group)
        yield tuple(sorted(each.version for each in alike)), alike[0]


def _configurations(config: LoadedConfig) -> Iterator[StyledLine]:
    distinct = list(_shared(config.configs))
    for versions, each in distinct:
        yield []
        if len(distinct) > 1:
            yield [(f"{_INDENT}# as{_versions(versions)}", "bold")]
        yield from _configuration(each)


def _configuration(each: VersionConfig) -> Iterator[StyledLine]:
    origins = each.origins
    lines = list(text_lines(each.config))
    if each.config.max_batch_size == 0 and each.config.platform != ENSEMBLE:
        lines.insert(_after_identity(lines), Line(text="max_batch_size: 0", key="max_batch_size"))
    shown = [printable(line.text) for line in lines]
    width = min(max(map(len, shown), default=0), _WIDEST)
    for line, text in zip(lines, shown, strict=True):
        if not line.key:
            yield [(_INDENT + text, "")]
            continue
        origin = origins.get(line.key, DEFAULT)
        yield [(f"{_INDENT}{text:<{width}}  ", ""), (f"# {printable(origin)}", _style(origin))]


def _after_identity(lines: Sequence[Line]) -> int:
    """Return where `max_batch_size` stands: text format leaves 0 out, but it means something."""
    for at, line in enumerate(lines):
        if not line.text.startswith((" ", "}", *_IDENTITY)):
            return at
    return len(lines)


def _style(origin: str) -> str:
    if origin == DEFAULT:
        return "dim"
    if origin.startswith(("config", "override")):
        return "cyan"
    return "green" if origin.startswith("model file") or "auto_complete" in origin else "yellow"


# -- as JSON


def as_json(report: Report) -> Mapping[str, Any]:
    """Return the report for a program."""
    return {
        "ok": report.ok,
        "problems": [_problem_json(problem) for problem in report.problems],
        "models": [_finding_json(finding) for finding in report.findings],
    }


def _finding_json(finding: Finding) -> Mapping[str, Any]:
    config = finding.config
    if config is None:
        return {"name": finding.name, "ok": False, "reason": finding.reason, "versions": [], "problems": []}
    entry: dict[str, Any] = {
        "name": finding.name,
        "ok": config.ok,
        "unserved": finding.only_unserved,
        "reason": config.reason,
        "reasons": {str(version): reason for version, reason in config.reasons.items()},
        "path": str(config.path),
        "versions": list(config.versions),
        "problems": [
            _problem_json(problem, unserved=problem in config.unserved) for problem in config.problems
        ],
        "configurations": [
            {
                "versions": [version for version in versions if version],
                "config": json.loads(config_json(each.config)),
                "origins": dict(each.origins),
            }
            for versions, each in _shared(config.configs)
        ],
    }
    if config.specs:
        spec = config.specs[-1]
        entry["advice"] = list(advice(spec))
        entry["backend"] = spec.backend
        entry["instances"] = [
            {"name": i.name, "kind": i.kind, "device": i.device_id, "lanes": i.lanes, "passive": i.passive}
            for i in spec.instances
        ]
        entry["isolation"] = spec.isolation
        entry["retry"] = spec.retry.value
        entry["execution_timeout"] = spec.execution_timeout
        entry["config"] = json.loads(spec.config_json)
    return entry


def _problem_json(problem: Problem, *, unserved: bool = False) -> Mapping[str, Any]:
    return {
        "severity": problem.severity.value,
        "code": problem.code.name,
        "unserved": unserved,
        "message": problem.message,
        "path": None if problem.path is None else str(problem.path),
        "line": problem.line,
        "column": problem.column,
        "key": problem.key,
        "hint": problem.hint,
        "versions": list(problem.versions),
    }
